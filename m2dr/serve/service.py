"""What a server answers: searches, embeddings and its indexes, without anything of HTTP."""

import asyncio
import base64
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client import generate_latest as as_prometheus

from m2dr.core.errors import UserError, missing, nearest
from m2dr.core.progress import say
from m2dr.core.records import Cut, Document, Ranking, Side, default_dims
from m2dr.core.requests import RESULTS, Ask, SearchRequest, ServeRequest
from m2dr.evaluation.costs import bytes_per_document, search_multiply_adds
from m2dr.evaluation.grid import GRID, PROVENANCE, Grid, by_code, read_grid, read_provenance
from m2dr.index.filters import FIELDS, field_names, field_types
from m2dr.index.manifest import IndexManifest
from m2dr.index.vectors import prefixes
from m2dr.maps.files import Maps
from m2dr.serve.batches import Batcher, Outcome, QueueFullError
from m2dr.tasks.models import names_of
from m2dr.tasks.query import QueryEncoder, QueryEncoders, plan_of_model, results_suffix
from m2dr.tasks.searching.index_api import Index
from m2dr.tasks.searching.search import DEFAULT_K, EXACT, Searcher

MOST_HITS = 20_000  # documents of an answer
QUERY_TOKENS = 12  # of the query whose multiply-adds are told
_TOP = 10  # documents of the overlap
_CUTS = 64  # that stay open
_TEXTS = 4096  # documents whose texts stay in memory
_PATIENCE = 10.0  # seconds in which what writes an index ends, once it has swapped in its stores
_EXAMPLES, _LOOKED_AT = 4, 64  # queries that the page suggests, and documents they come from
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Table = dict[str, Any]


class Refused(Exception):  # noqa: N818  # as HTTPException is no error of the server
    """A request that is not answered: an HTTP status, a sentence, and the parameter at fault."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param


class Meters:
    """Counts and times of one server, for Prometheus."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "m2dr_requests", "Requests that were answered.", ("path", "status"), registry=registry
        )
        self.seconds = Histogram(
            "m2dr_request_seconds", "Seconds of a request.", ("path",), registry=registry,
            buckets=_SECONDS,
        )  # fmt: skip
        self._steps = Histogram(
            "m2dr_step_seconds", "Seconds of a step of a batch.", ("step",), registry=registry,
            buckets=_SECONDS,
        )  # fmt: skip
        self._batches = Histogram(
            "m2dr_batch_texts", "Texts that were encoded at once.", registry=registry,
            buckets=[2**n for n in range(9)],
        )  # fmt: skip
        self._tokens = Counter("m2dr_tokens", "Tokens that were encoded.", registry=registry)
        self._waiting = Gauge(
            "m2dr_waiting_texts", "Texts that wait for a batch.", registry=registry
        )

    def batch(self, outcomes: Sequence[Outcome]) -> None:
        """Count a batch."""
        self._batches.observe(outcomes[0].batch)
        self._tokens.inc(sum(outcome.tokens for outcome in outcomes))
        for step in ("tokenise", "encode", "search"):
            total = sum(getattr(outcome, f"{step}_ms") for outcome in outcomes)
            self._steps.labels(step).observe(total / 1000)

    def text(self, waiting: int) -> bytes:
        """Return everything in the format of Prometheus."""
        self._waiting.set(waiting)
        return as_prometheus(self._registry)


class ServedIndex:
    """An index as it was when it was opened: cuts that can be searched, texts, costs, a grid."""

    def __init__(
        self, request: SearchRequest, encoders: QueryEncoders, grid: Path | None = None
    ) -> None:
        """Open the full model of an index; raises UserError as `Index` and `find_grid` do.

        Without torch it is layer 0, by the exits of the index, unless another model is asked for.
        """
        self._request = request
        if not (find_spec("torch") or request.query_model):
            request = replace(request, layer=0)
        self.index = Index(request, encoders)
        resolved = self.index.resolved
        self.card, self.corpus, self.dataset = resolved.card, resolved.corpus, resolved.dataset
        self.model = names_of([resolved.model.name])[0]
        self._scanned = resolved.folder is None
        self._plans = resolved.plans()
        self.dims = self._cuts()  # by layer
        if not self.dims:
            raise UserError(f"{resolved.index} holds no documents to search.")
        self.full = Cut(max(self.dims), self.dims[max(self.dims)][-1])
        # Of what is open now, whatever is fitted again on disk.
        self._told = {layer: p.warnings(0) for layer, p in self._plans.items() if p.maps}
        self.opened: dict[Cut, Searcher] = {}  # which need no other thread
        self.document = lru_cache(_TEXTS)(self._document)
        self.documents = self.open(self.full).documents.documents
        fields = resolved.index.layer(self.document_layer(self.full.layer)) / FIELDS
        self.fields = field_names(field_types(fields)) if self._scanned else []
        self.grid = find_grid(
            grid, self.corpus, self.card.fingerprint, self.exits, request.weights, self.system
        )

    @property
    def is_outdated(self) -> bool:
        """Whether documents, indexes or exits on disk are others than those that were opened."""
        resolved = self.index.resolved
        return resolved.index.state != resolved.state

    def check_state(self) -> None:
        """Raise a UserError if the index is outdated."""
        if self.is_outdated:
            raise UserError(f"The index of {self.corpus} has changed.")

    def reopened(self) -> "ServedIndex":
        """Open what the folder holds now, at the cuts that are open here, and read the texts.

        Raises:
            UserError: it cannot be opened, also not after some seconds.
        """
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                new = ServedIndex(self._request, self.index.encoders)
                for cut in list(self.opened):
                    with suppress(Refused):  # it has no such cut any more
                        new.open(new.cut(cut.layer, cut.dim))
                with suppress(UserError, OSError):  # texts may be gone
                    new.dataset.document_at(0)
                if not new.is_outdated:
                    return new
            except UserError:
                if time.monotonic() > end:
                    raise
            time.sleep(0.2)

    def cut(self, layer: int | None, dim: int | None) -> Cut:
        """Return the cut of a layer and a dim; None is that of the full model.

        Raises:
            Refused: it cannot be searched.
        """
        layer = self.full.layer if layer is None else layer
        dims = self.dims.get(layer)
        if dims is None:
            if layer in self._plans and self._plans[layer].lacks:
                raise Refused(422, self._plans[layer].lacks, "layer")
            known = ", ".join(map(str, self.dims))
            why = f"; {missing('torch')}" * (find_spec("torch") is None)
            told = f"Layer {layer} was asked for; {self.corpus} has {known}{why}."
            raise Refused(422, told, "layer")
        dim = dims[-1] if dim is None else dim
        if dim in dims or (self._scanned and 1 <= dim <= self.card.width):
            return Cut(layer, dim)
        known = ", ".join(map(str, dims))
        raise Refused(422, f"Dim {dim} was asked for; layer {layer} has {known}.", "dim")

    def open(self, cut: Cut) -> Searcher:
        """Return what searches at a cut, opening it if needed, which may take seconds.

        Raises:
            UserError: a file is missing or damaged.
        """
        if opened := self.opened.get(cut):
            return opened
        engine = ""
        if self._scanned:  # a dim that was not built is scanned
            built = self.index.resolved.index.engines(self.document_layer(cut.layer))
            engines = {index.engine for index in built if index.dim == cut.dim}
            asked = self.index.resolved.request.engine
            engine = EXACT if not engines or (asked and asked not in engines) else asked
        searcher = self.index.searcher(cut.layer, cut.dim, engine=engine)
        if len(self.opened) >= _CUTS:
            self.opened.clear()
        self.check_state()
        self.opened[cut] = searcher
        return searcher

    def encoder(self, layer: int, side: Side = "query") -> QueryEncoder:
        """Return the encoder of a layer, loading it if needed.

        Raises:
            Refused: the vectors are imported, no model encodes documents, or torch is missing.
        """
        request, card = self.index.resolved.request, self.card
        plan = self._plans.get(layer)
        if side == "document":
            own = self.index.resolved.model
            plan = plan_of_model(own, layer) if layer <= card.query_layer else None
        if plan is None:
            raise Refused(422, f"No model embeds documents of {self.corpus}.", "side")
        if plan.lacks:
            raise Refused(422, plan.lacks, "side")
        return self.index.encoders.of(plan, request.runtime, request.device, request.dtype)

    def document_layer(self, layer: int) -> int:
        """Return the layer of the documents that queries of a layer search."""
        return self._plans[layer].document_layer

    def warning(self, cut: Cut) -> str:
        """Return why a cut may be worse than the model allows; "" where nothing is known."""
        told = self._told.get(cut.layer)
        return " ".join(self._plans[cut.layer].warnings(cut.dim) if told is None else told)

    @property
    def exits(self) -> str:
        """Digest of the exits of the index that queries pass; empty where they pass none."""
        passed = (self._plans[layer].maps for layer in self.dims)
        return next((maps.digest for maps in passed if maps), "")

    @property
    def system(self) -> str:
        """Whose queries meet which documents, where not those of the model as trained."""
        return results_suffix(self._plans, "")

    def _document(self, docid: str) -> Document:
        """Return a document.

        Raises:
            UserError: the corpus is missing, or does not hold it any more.
        """
        document = self.dataset.document(docid)
        if document.id != docid:
            raise UserError(f"The texts of {self.corpus} have changed.")
        return document

    def examples(self) -> list[str]:
        """Return a few queries that documents answer: titles, or else first sentences."""
        phrases: dict[str, None] = {}
        looked_at = min(_LOOKED_AT, self.documents)
        for number in range(looked_at):
            try:
                document = self.dataset.document_at(number * self.documents // looked_at)
            except (UserError, IndexError):
                continue  # without it the page has other examples
            phrases.update(dict.fromkeys(filter(None, [example_of(document)])))
        return list(phrases)[:_EXAMPLES]

    def costs(self) -> list[Table]:
        """Return the multiply-adds of a query and the bytes of a document, of every listed cut."""
        work: dict[int, int] = {}
        deepest: dict[tuple[str, Maps | None], int] = {}
        for layer in sorted(self.dims, reverse=True):
            plan = self._plans[layer]
            # An encoder of a layer knows the sizes of all layers below that pass the same exits.
            kind = plan.source, plan.maps
            encoder = self.encoder(deepest.setdefault(kind, layer))
            work[layer] = encoder.multiply_adds(QUERY_TOKENS, layer)
        return [
            {
                "cut": str(Cut(layer, dim)), "layer": layer, "dim": dim,
                "multiply_adds": work[layer] + search_multiply_adds(self.documents, dim),
                "bytes_per_document": bytes_per_document(dim),
            }
            for layer, dims in self.dims.items()
            for dim in dims
        ]  # fmt: skip

    def _cuts(self) -> dict[int, tuple[int, ...]]:
        """Return the dims that are listed of each layer whose documents are encoded, increasing."""
        cuts: dict[int, tuple[int, ...]] = {}
        folder, index = self.index.resolved.folder, self.index.resolved.index
        for layer, plan in self._plans.items():
            if plan.lacks:
                continue
            if folder is not None:
                if plan.is_as_trained:
                    cuts[layer] = (IndexManifest.read(folder).dim,)
            elif index.holds(plan.document_layer):
                built = {engine.dim for engine in index.engines(plan.document_layer)}
                cuts[layer] = tuple(sorted({*built, *default_dims(self.card.width)}))
        return cuts


class Service:
    """Indexes that are open, and what is answered from them."""

    def __init__(self, request: ServeRequest) -> None:
        """Open the indexes of a request, each at its full model.

        Raises:
            UserError: the index, its model or its texts are missing.
        """
        encoders, self.meters = QueryEncoders(), Meters()
        if find_spec("torch") is None:
            say(f"Warning: {missing('torch')}; until then layer 0 alone is served.")
        self._weights = request.weights
        self.indexes: dict[str, ServedIndex] = {}
        own = {each.name for each in fields(SearchRequest)} & vars(request).keys()
        options: dict[str, Any] = {name: getattr(request, name) for name in own}
        for folder in dict.fromkeys(request.indexes or ("",)):
            asked = SearchRequest(index=folder, **options)
            index = ServedIndex(asked, encoders, request.grid)
            base = index.corpus if index.corpus not in self.indexes else (
                f"{index.corpus}-{index.model}"
            )  # fmt: skip
            names = chain([base], (f"{base}-{number}" for number in count(2)))
            self.indexes[next(name for name in names if name not in self.indexes)] = index
        self._reopening: dict[str, asyncio.Task[None]] = {}
        self._batch = request.batch_size
        self.batcher = Batcher(
            request.batch_size, request.batch_wait / 1000, request.queue, self.meters.batch
        )

    async def search(
        self,
        queries: Sequence[str],
        asked: Mapping[str, Any],
        index: str | None,
        compare: bool,
    ) -> Table:
        """Answer `POST /search` from one state of an index, also while that is changed on disk.

        What is open answers until the new state is; what has to be opened waits for it.

        Raises:
            Refused: there is no such index or cut, the filter does not fit, or the queue is full.
            UserError: the index on disk cannot be opened any more.
        """
        _check_texts(queries, "queries")
        if len(queries) > 1 and len(queries) * asked.get("k", DEFAULT_K) > MOST_HITS:
            raise Refused(422, f"An answer may have {MOST_HITS} documents; ask for fewer.", "k")
        answer = partial(self._answer, queries=queries, asked=asked, compare=compare)
        return await self._of_one_state(index, answer)

    async def _of_one_state(
        self, index: str | None, answer: Callable[[str, ServedIndex], Awaitable[Table]]
    ) -> Table:
        while True:
            name, served = self._index(index)
            try:
                return await answer(name, served)
            except (Refused, UserError, OSError):
                if not served.is_outdated:
                    raise
            await asyncio.shield(self._reopened(name))  # others may wait for it too

    async def _answer(
        self,
        name: str,
        served: ServedIndex,
        queries: Sequence[str],
        asked: Mapping[str, Any],
        compare: bool,
    ) -> Table:
        cut, ask = served.cut(asked.get("layer"), asked.get("dim")), served.index.asked(asked)
        cuts = [cut, served.full] if compare else [cut]
        opened = [
            known
            if (known := served.opened.get(each))
            else await asyncio.to_thread(served.open, each)
            for each in cuts
        ]
        k = ask.k or DEFAULT_K
        depth = max(k, _TOP) if compare else k
        if compare:
            # The first query of its length at a layer, or after a rest, takes some milliseconds
            # more, which would make the cut look slower than the full model that runs after it.
            await self._ranked(served, opened[0], queries, depth, ask)
        # One after the other, as a request is not to fill the queue against itself.
        outcomes = [await self._ranked(served, each, queries, depth, ask) for each in opened]
        texts, problem = await asyncio.to_thread(_documents, served, outcomes)
        results = []
        for number, query in enumerate(queries):
            rankings = [outcome.rankings[number] for outcome in outcomes]
            hits = [_hits(ranking, k, texts) for ranking in rankings]
            if ask.explain:
                for searcher, outcome, rows in zip(opened, outcomes, hits, strict=True):
                    what = query, outcome.vectors[number], outcome.rankings[number]
                    explained = await asyncio.to_thread(_explained, searcher, *what, ask)
                    served.check_state()  # the vectors were read from disk
                    for row, shares in zip(rows, explained, strict=False):
                        row["explain"] = shares
            result: Table = {"query": query, "hits": hits[0]}
            if compare:
                best = rankings[1].docids[:_TOP]
                shared = {*best} & {*rankings[0].docids[:_TOP]}
                result |= {"full": hits[1], "overlap": len(shared) / max(len(best), 1)}
            results.append(result)
        answer: Table = {
            "index": name, "cut": str(cut), "layer": cut.layer, "dim": cut.dim, "results": results,
            "times": _times(outcomes[0]), **opened[0].blend(ask).weights,
        }  # fmt: skip
        if compare:
            answer["full_times"] = _times(outcomes[1])
        if warning := " ".join(filter(None, (served.warning(cut), outcomes[0].cut))):
            answer["warning"] = warning
        if problem:
            answer["problem"] = problem
        return answer

    async def _ranked(
        self,
        served: ServedIndex,
        searcher: Searcher,
        queries: Sequence[str],
        k: int,
        ask: Ask,
    ) -> Outcome:
        try:
            documents = await asyncio.to_thread(searcher.where, ask)
        except UserError as error:
            asked = {"filter": ask.filter, "query_mix": ask.query_mix}
            param = next((name for name, value in asked.items() if value), "hybrid")
            raise Refused(422, str(error), param) from None
        if ask.filter or any(ask.weights.values()):  # which was read from disk
            served.check_state()
        return await self._batched(searcher.encoder, queries, "query", documents, k)

    async def embeddings(
        self,
        texts: Sequence[str],
        model: str | None,
        side: Side,
        layer: int | None,
        dim: int | None,
        as_base64: bool,
    ) -> Table:
        """Answer `POST /v1/embeddings` from one state of an index, as searches are.

        Documents run through the layers that queries search.

        Raises:
            Refused: there is no such model or cut, no word of a query is known at layer 0, or the
                queue is full.
            UserError: the index on disk cannot be opened any more.
        """
        _check_texts(texts, "input")

        async def answer(_: str, served: ServedIndex) -> Table:
            cut, named = served.cut(layer, dim), {"model": model or served.model}
            return named | await self._embedded(served, cut, texts, side, as_base64)

        return await self._of_one_state(self._of_model(model), answer)

    async def _embedded(
        self, served: ServedIndex, cut: Cut, texts: Sequence[str], side: Side, as_base64: bool
    ) -> Table:
        if side == "document":
            layer = served.document_layer(cut.layer)
            encoder = await asyncio.to_thread(served.encoder, layer, side)
        else:
            layer, whole_cut = cut.layer, served.cut(cut.layer, None)
            encoder = (await asyncio.to_thread(served.open, whole_cut)).encoder
        # One batch after the other, so that searches get their turn between them.
        outcomes = [
            await self._batched(encoder, texts[start : start + self._batch], side)
            for start in range(0, len(texts), self._batch)
        ]
        whole = np.concatenate([outcome.vectors for outcome in outcomes])
        vectors = prefixes(whole, cut.dim, served.card.similarity)
        if (zeros := np.flatnonzero(~vectors.any(axis=1))).size:
            told = f"No word of number {zeros[0]} of input is known at layer {layer}"
            raise Refused(422, f"{told}, so it has no vector.", "input")
        tokens = sum(outcome.tokens for outcome in outcomes)
        rows: list[Any] = vectors.tolist()
        if as_base64:
            rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": number, "embedding": row}
                for number, row in enumerate(rows)
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        } | ({"warning": warning} if (warning := served.warning(cut)) else {})

    async def _batched(self, encoder: QueryEncoder, *work: Any) -> Outcome:
        try:
            return await self.batcher.run(encoder, *work)
        except QueueFullError:
            raise Refused(429, "Too many requests wait already. Try again in a second.") from None

    async def models(self) -> Table:
        """Answer `GET /models`; an index that has changed is opened meanwhile, as for searches."""
        names = [self._index(name)[0] for name in self.indexes]
        return {"indexes": await asyncio.to_thread(lambda: [self._model(n) for n in names])}

    def _model(self, name: str) -> Table:
        index = self.indexes[name]
        return {
            "name": name, "corpus": index.corpus, "model": index.model,
            "documents": index.documents, "layers": list(index.dims),
            "dims": list(index.dims[index.full.layer]), "full": str(index.full),
            "similarity": index.card.similarity, "fields": sorted(index.fields),
            "examples": index.examples(), "costs": index.costs(),
            **self._weights, "grid": grid_table(index.grid) if index.grid else None,
        }  # fmt: skip

    def openai_models(self) -> Table:
        """Answer `GET /v1/models`: the names that `/v1/embeddings` takes."""
        names = dict.fromkeys(index.model for index in self.indexes.values())
        rows = [{"id": n, "object": "model", "created": 0, "owned_by": "m2dr"} for n in names]
        return {"object": "list", "data": rows}

    def warm_up(self, ended: Callable[[], bool]) -> None:
        """Open the other layers of each index, at the longest dim, until the server has ended."""
        for index in list(self.indexes.values()):
            with suppress(UserError, OSError):  # which a request for it is told
                index.dataset.document_at(0)  # reads the texts, so that those of now are kept
                for layer in index.dims:
                    if ended():
                        return
                    index.open(index.cut(layer, None))

    def _index(self, name: str | None) -> tuple[str, ServedIndex]:
        name = next(iter(self.indexes)) if name is None else name
        if name not in self.indexes:
            hint = nearest(name[:80], self.indexes)
            raise Refused(404, f"There is no index {name[:80]!r}. {hint}", "index")
        if self.indexes[name].is_outdated:
            self._reopened(name)
        return name, self.indexes[name]

    def _reopened(self, name: str) -> "asyncio.Task[None]":
        """Return what opens an index again, once at a time; it may raise a UserError."""

        def reopen() -> None:
            if not self.indexes[name].is_outdated:
                return
            try:
                new = self.indexes[name].reopened()
            except UserError as error:
                say(f"{now()} {name} has changed, and is served as it was before: {error}")
                raise
            self.indexes[name] = new
            what = f"{new.documents:,} documents, {new.model} at {new.full}"
            say(f"{now()} {name} has changed: {what}")

        if name not in self._reopening or self._reopening[name].done():
            self._reopening[name] = asyncio.create_task(asyncio.to_thread(reopen))
            self._reopening[name].add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )  # which was said
        return self._reopening[name]

    def _of_model(self, name: str | None) -> str:
        """Return the name of an index, by that or by its model; None is the first."""
        if name is None:
            return next(iter(self.indexes))
        for known, index in self.indexes.items():
            if name in (known, index.model, index.index.resolved.model.name):
                return known
        hint = nearest(name[:80], dict.fromkeys(index.model for index in self.indexes.values()))
        raise Refused(404, f"There is no model {name[:80]!r}. {hint}", "model")


def now() -> str:
    """Return the time in UTC, which each line of the log has."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def example_of(document: Document) -> str:
    """Return the title of a document or its first sentence; empty where neither is a short phrase.

    >>> example_of(Document("1", "Line ends are kept. More follows.", "io.readline"))
    'Line ends are kept'
    """
    for text in (document.title, re.split(r"(?<=[.!?])\s", document.text.strip(), maxsplit=1)[0]):
        words = text.split()
        phrase = " ".join(words)
        short = 3 <= len(words) <= 12 and len(phrase) <= 64  # a line of a phone or two
        if short and re.fullmatch(r"\w[\w ,'’:-]*[.?]?", phrase):  # no formula, no code
            return phrase.rstrip(".")
    return ""


def find_grid(
    given: Path | None,
    corpus: str,
    fingerprint: str,
    exits: str,
    blend: Mapping[str, float],
    system: str,
) -> Grid | None:
    """Return the grid that was given, or that of a model and a corpus in results/, if any.

    Args:
        given: a file or its folder.
        corpus: of the index.
        fingerprint: of the model.
        exits: digest of those of the index that queries pass; empty for the model's own.
        blend: weights of what is beside the vectors.
        system: whose queries meet which documents, as `results_suffix` tells.

    Raises:
        UserError: the given file is no grid, or one of other exits.
    """
    if given is not None:
        made = read_provenance(given if given.is_dir() else given.parent)
        if made is not None and (made.exits, made.system) != (exits, system):
            others = "other exits, queries or documents"
            raise UserError(f"{given} was measured with {others} than those that are served.")
        return read_grid(given)
    for path in sorted(RESULTS.rglob(PROVENANCE)):
        try:
            made = read_provenance(path.parent)
            of = made and (made.fingerprint, made.exits, made.blend, made.system)
            if made is None or of != (fingerprint, exits, blend, system):
                continue
            grid = read_grid(path.parent / GRID)
        except UserError:
            continue  # a damaged file that nobody named
        if corpus in (made.corpus, grid.corpus):
            return grid
    return None


def grid_table(grid: Grid) -> Table:
    """Return one measure of each cut: nDCG@10 where the grid holds it."""
    preferred = [name for name in ("nDCG@10", "RR@10") if name in grid.measures]
    measure = (*preferred, *grid.measures)[0]
    cells = [
        {"layer": cut.layer, "dim": cut.dim, "value": value}
        for cut, value in by_code([grid])[0].values(measure).items()
    ]
    return {"measure": measure, "split": grid.place, "queries": grid.queries, "cells": cells}


def _check_texts(texts: Sequence[str], param: str) -> None:
    for number, text in enumerate(texts):
        if not text.strip():
            one = f"Number {number} of {param}" if len(texts) > 1 else "The text"
            raise Refused(422, f"{one} is empty.", param)


def _documents(served: ServedIndex, outcomes: Sequence[Outcome]) -> tuple[dict[str, Document], str]:
    """Return documents of rankings, and why some have no text."""
    docids = {docid for outcome in outcomes for each in outcome.rankings for docid in each.docids}
    documents, problem = {}, ""
    for docid in docids:
        try:
            documents[docid] = served.document(docid)
        except (UserError, OSError) as error:
            documents[docid], problem = Document(docid, ""), str(error)
    return documents, problem


def _explained(searcher: Searcher, *what: Any) -> list[dict[str, float]]:
    try:
        return searcher.explain(*what)
    except UserError as error:
        raise Refused(422, str(error), "explain") from None


def _hits(ranking: Ranking, k: int, texts: Mapping[str, Document]) -> list[Table]:
    pairs = zip(ranking.docids[:k], ranking.scores[:k], strict=True)
    names = ("vector_score", "bm25_score")
    parts = [dict(zip(names, part, strict=True)) for part in ranking.parts] or [{}] * k
    return [
        {
            "rank": rank, "docid": docid, "score": score, "title": texts[docid].title,
            "text": texts[docid].text, "fields": dict(texts[docid].fields),
            **parts[rank - 1],
        }
        for rank, (docid, score) in enumerate(pairs, start=1)
    ]  # fmt: skip


def _times(outcome: Outcome) -> dict[str, float]:
    steps = ("tokenise_ms", "encode_ms", "search_ms")
    return {step: round(getattr(outcome, step), 3) for step in steps}
