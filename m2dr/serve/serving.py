"""What a server answers: searches, embeddings and its indexes, without anything of HTTP."""

import asyncio
import base64
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

from m2dr.core.errors import UserError, nearest
from m2dr.core.records import Cut, Document, Ranking, Side
from m2dr.core.requests import ServeRequest
from m2dr.evaluate.grid import Grid
from m2dr.index.fields import typed
from m2dr.index.vectors import prefixes
from m2dr.serve.batches import Batcher, Outcome, QueueFullError, Search
from m2dr.serve.encoder_pool import EncoderPool
from m2dr.serve.examples import examples
from m2dr.serve.grids import find_grid, grid_table
from m2dr.serve.messages import EmbedBody, EmbeddingsBody, HttpError, SearchBody, sentence_of
from m2dr.serve.meters import Meters
from m2dr.serve.served_index import FilterError, NoSuchCutError, OpenCut, ServedIndex
from m2dr.serve.sources import ServedSource, open_sources

Table = dict[str, Any]
_TOP = 10  # documents of the overlap
_RENEWED, _LOOK_AGAIN = 3.0, 0.1  # seconds that a search waits for files that are changing


class Serving:
    """Indexes that are open, and what is answered from them."""

    def __init__(self, request: ServeRequest) -> None:
        """Open the indexes of a request, each at its full model.

        Raises:
            UserError: there is no such index, or its model or its texts are not at hand.
        """
        self.request = request
        self.meters = Meters()
        self.encoders = EncoderPool(request.runtime, request.device, request.dtype)
        sources = open_sources(request)
        self.indexes: dict[str, ServedIndex] = {}
        for source in sources:
            opened = ServedIndex(source, self.encoders)
            self.indexes[_name(opened, sources, self.indexes)] = opened
        self.grids: dict[str, Grid | None] = {
            name: find_grid(request.grid, index.source.corpus, index.card.fingerprint)
            for name, index in self.indexes.items()
        }
        self.problems: dict[str, str] = {}  # by index, why it is not what its files are now
        self._taking_over = threading.Lock()
        self.batcher = Batcher(
            request.batch_size, request.batch_wait / 1000, request.queue, self.meters.batch
        )

    async def search(self, body: SearchBody) -> Table:
        """Answer `POST /search`."""
        queries = self._texts(_queries(body))
        self._check_k(body.k, len(queries))
        self._check_filter(body.filter)
        end = time.monotonic() + _RENEWED
        while True:
            name, index = self._index(body.index)
            cut = _cut(index, body.layer, body.dim)
            try:
                return await self._answer(name, index, cut, queries, body)
            except FilterError as error:
                raise HttpError(422, str(error), "filter") from None
            except (UserError, OSError):
                if not await self._renewed(name, index, end):
                    raise

    async def _renewed(self, name: str, index: ServedIndex, end: float) -> bool:
        """Return whether another version stands in the place of an index whose files changed.

        Args:
            name: of the index.
            index: the version that could not answer.
            end: until when a change that is not complete is waited for, by the monotonic clock.
        """
        while self.indexes[name] is index:
            if await asyncio.to_thread(self.take_over, name):
                return True
            changed = await asyncio.to_thread(index.source.signature) != index.signature
            if self.indexes[name] is index and not (changed and time.monotonic() < end):
                return False
            await asyncio.sleep(_LOOK_AGAIN)
        return True

    async def _answer(
        self, name: str, index: ServedIndex, cut: Cut, queries: Sequence[str], body: SearchBody
    ) -> Table:
        cuts = [cut, index.full] if body.compare else [cut]
        opened = [await _opened(index, each) for each in cuts]
        depth = max(body.k, _TOP) if body.compare else body.k
        if body.compare:
            # The first query of its length at a layer, or after a rest, takes some milliseconds
            # more, which would make the cut look slower than the full model that runs after it.
            await self._run(index, opened[0], queries, depth, body.filter)
        found = await asyncio.gather(
            *(self._run(index, each, queries, depth, body.filter) for each in opened)
        )
        texts = await _documents(index, found)
        results = _results(queries, found, body.k, texts.documents, index.kinds)
        answer: Table = {
            "index": name, "cut": str(cut), "layer": cut.layer, "dim": cut.dim, "results": results,
            "times": _times(found[0]),
        }  # fmt: skip
        if body.compare:
            answer["full_times"] = _times(found[1])
        if texts.problem:
            answer["problem"] = texts.problem
        return answer

    async def _run(
        self,
        index: ServedIndex,
        opened: OpenCut,
        queries: Sequence[str],
        k: int,
        expression: str | None,
    ) -> Outcome:
        documents = opened.documents
        if expression is not None:
            documents = await asyncio.to_thread(index.filtered, opened, expression)
        search = Search(documents, k)
        try:
            return await self.batcher.run(opened.encoder, queries, "query", search)
        except QueueFullError:
            raise _busy() from None

    async def embed(self, body: EmbedBody) -> Table:
        """Answer `POST /embed`."""
        _, index = self._index(body.index)
        texts = self._texts(body.texts, "texts")
        cut, outcome = await self._embed(index, texts, body.side, body.layer, body.dim)
        return {"cut": str(cut), "vectors": _vectors(index, outcome, cut).tolist()}

    async def embeddings(self, body: EmbeddingsBody) -> Table:
        """Answer `POST /v1/embeddings`."""
        index = self._of_model(body.model)
        given = [body.input] if isinstance(body.input, str) else body.input
        texts = self._texts(given, "input")
        cut, outcome = await self._embed(index, texts, body.side, body.layer, body.dimensions)
        vectors = _vectors(index, outcome, cut)
        rows = [
            base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors
        ] if body.encoding_format == "base64" else vectors.tolist()  # fmt: skip
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": number, "embedding": row}
                for number, row in enumerate(rows)
            ],
            "model": body.model,
            "usage": {"prompt_tokens": outcome.tokens, "total_tokens": outcome.tokens},
        }

    async def _embed(
        self,
        index: ServedIndex,
        texts: Sequence[str],
        side: Side,
        layer: int | None,
        dim: int | None,
    ) -> tuple[Cut, Outcome]:
        """Return the cut of texts and their vectors.

        Documents run through the layers that queries of `layer` search.
        """
        cut = _cut(index, layer, dim)
        if side == "document":
            cut = Cut(index.document_layer(cut.layer), cut.dim)
        try:
            encoder = self.encoders.find(index.key(cut.layer))
            if encoder is None:
                encoder = await asyncio.to_thread(index.encoder, cut.layer)
            return cut, await self.batcher.run(encoder, texts, side)
        except QueueFullError:
            raise _busy() from None

    async def models(self) -> Table:
        """Answer `GET /models`."""
        rows = [self._model(name) for name in self.indexes]
        return {"indexes": [await asyncio.to_thread(row) for row in rows]}

    def openai_models(self) -> Table:
        """Answer `GET /v1/models`: the names that `/v1/embeddings` takes."""
        names = dict.fromkeys(index.model for index in self.indexes.values())
        rows = [{"id": n, "object": "model", "created": 0, "owned_by": "m2dr"} for n in names]
        return {"object": "list", "data": rows}

    def _model(self, name: str) -> Any:  # a function
        index, grid = self.indexes[name], self.grids[name]

        def table() -> Table:
            return {
                "name": name,
                "corpus": index.source.corpus,
                "model": index.model,
                "documents": index.documents,
                "layers": list(index.layers),
                "dims": list(index.dims),
                "full": str(index.full),
                "similarity": index.card.similarity,
                "fields": sorted(index.kinds),
                "examples": examples(index.dataset, index.documents),
                "costs": index.costs(),
                "grid": grid_table(grid) if grid else None,
                "problem": self.problems.get(name),
            }

        return table

    def take_over(self, name: str) -> bool:
        """Open an index again if its files have changed; return whether it was taken over.

        What is served stays open until the new one is ready, and answers the requests that began
        on it.
        """
        with self._taking_over:
            served = self.indexes[name]
            now = served.source.signature()
            if now == served.signature:
                self.problems.pop(name, None)  # its files are there again
                return False
            try:
                new = ServedIndex(served.source, self.encoders, served)
                for cut in served.open_cuts():
                    if cut.layer in new.layers:
                        new.open(new.cut(cut.layer, cut.dim))
            except (UserError, OSError) as error:
                self.problems[name] = sentence_of(error)
                return False
            self.indexes = {**self.indexes, name: new}
            self.problems.pop(name, None)
            self.encoders.keep(key for index in self.indexes.values() for key in index.keys)
            return True

    def warm_up(self) -> None:
        """Open the other layers of each index, at the longest dim; then find where texts are."""
        for index in self.indexes.values():
            for layer in index.layers:
                index.open(index.cut(layer, None))
        for index in self.indexes.values():
            index.dataset.document_at(0)

    def _index(self, name: str | None) -> tuple[str, ServedIndex]:
        if name is None:
            return next(iter(self.indexes.items()))
        if name not in self.indexes:
            raise HttpError(
                404, f"There is no index {name[:80]!r}. {nearest(name[:80], self.indexes)}", "index"
            )
        return name, self.indexes[name]

    def _of_model(self, name: str) -> ServedIndex:
        for known, index in self.indexes.items():
            if name in (known, index.model, index.source.model):
                return index
        models = dict.fromkeys(index.model for index in self.indexes.values())
        raise HttpError(
            404, f"There is no model {name[:80]!r}. {nearest(name[:80], models)}", "model"
        )

    def _texts(self, texts: Sequence[str], param: str = "queries") -> Sequence[str]:
        """Return texts that can be encoded.

        Raises:
            HttpError: there is none or there are too many, one is too long, or one is empty.
        """
        most, longest = self.request.max_texts, self.request.max_characters
        if not texts:
            raise HttpError(422, f"The list {param} is empty; give it a text.", param)
        if len(texts) > most:
            told = f"{len(texts)} {param} were sent; a request may have {most}."
            raise HttpError(422, told, param)
        for number, text in enumerate(texts):
            if len(text) > longest:
                told = f"Number {number} of {param} has {len(text)} characters; {longest} may be."
                raise HttpError(422, told, param)
            if not text.strip():
                raise HttpError(422, f"Number {number} of {param} is empty.", param)
        return texts

    def _check_k(self, k: int, queries: int) -> None:
        if k > self.request.max_k:
            told = f"{k} documents per query were asked for; {self.request.max_k} may be."
            raise HttpError(422, told, "k")
        most = self.request.max_hits
        if queries > 1 and queries * k > most:
            told = (
                f"{queries} queries with {k} documents each were sent; an answer may have {most} "
                "documents. Send fewer queries at once, or a smaller k."
            )
            raise HttpError(422, told, "k")

    def _check_filter(self, expression: str | None) -> None:
        most = self.request.max_characters
        if expression is not None and len(expression) > most:
            told = f"The filter has {len(expression)} characters; {most} may be."
            raise HttpError(422, told, "filter")


async def _opened(index: ServedIndex, cut: Cut) -> OpenCut:
    found = index.find(cut)
    return found if found is not None else await asyncio.to_thread(index.open, cut)


def _queries(body: SearchBody) -> list[str]:
    if (body.query is None) == (body.queries is None):
        raise HttpError(422, "Give `query`, a text, or `queries`, a list of texts.", "query")
    return [body.query] if body.query is not None else body.queries or []


def _cut(index: ServedIndex, layer: int | None, dim: int | None) -> Cut:
    try:
        return index.cut(layer, dim)
    except NoSuchCutError as error:
        raise HttpError(422, str(error), error.parameter) from None


async def _documents(index: ServedIndex, found: Sequence[Outcome]) -> "AnswerTexts":
    """Return the documents of rankings; another thread reads those that are not in memory."""
    docids = {docid for each in found for one in each.rankings for docid in one.docids}
    if index.remembered(docids):
        return _read(index, docids)
    return await asyncio.to_thread(_read, index, docids)


@dataclass
class AnswerTexts:
    """The documents of an answer."""

    documents: dict[str, Document] = field(default_factory=dict)
    problem: str = ""  # why some have no text


def _read(index: ServedIndex, docids: Iterable[str]) -> AnswerTexts:
    """Return documents; of those that cannot be read the ids alone."""
    found = AnswerTexts()
    for docid in docids:
        try:
            found.documents[docid] = index.document(docid)
        except UserError as error:
            found.documents[docid] = Document(docid, "")
            found.problem = str(error)
    return found


def _results(
    queries: Sequence[str],
    found: Sequence[Outcome],
    k: int,
    texts: Mapping[str, Document],
    kinds: Mapping[str, Any],
) -> list[Table]:
    """Return the hits of each query, and those of the full model if it was searched too."""
    results = []
    for number, query in enumerate(queries):
        rankings = [outcome.rankings[number] for outcome in found]
        result: Table = {"query": query, "hits": _hits(rankings[0], k, texts, kinds)}
        if len(rankings) > 1:
            result["full"] = _hits(rankings[1], k, texts, kinds)
            result["overlap"] = _overlap(rankings[0], rankings[1])
        results.append(result)
    return results


def _hits(
    ranking: Ranking, k: int, texts: Mapping[str, Document], kinds: Mapping[str, Any]
) -> list[Table]:
    pairs = zip(ranking.docids[:k], ranking.scores[:k], strict=True)
    return [
        {
            "rank": rank,
            "docid": docid,
            "score": score,
            "title": texts[docid].title,
            "text": texts[docid].text,
            "fields": typed(texts[docid].fields, kinds),
        }
        for rank, (docid, score) in enumerate(pairs, start=1)
    ]


def _overlap(cut: Ranking, full: Ranking) -> float:
    """Return the share of the full model's best documents that are among those of the cut."""
    best = full.docids[:_TOP]
    return len({*best} & {*cut.docids[:_TOP]}) / max(len(best), 1)


def _times(outcome: Outcome) -> dict[str, float]:
    return {
        "tokenise_ms": round(outcome.tokenise_ms, 3),
        "encode_ms": round(outcome.encode_ms, 3),
        "search_ms": round(outcome.search_ms, 3),
    }


def _vectors(index: ServedIndex, outcome: Outcome, cut: Cut) -> Any:  # [n, dim]
    return prefixes(outcome.vectors, cut.dim, index.card.similarity)


def _busy() -> HttpError:
    told = "Too many requests wait already. Try again in a second."
    return HttpError(429, told, kind="rate_limit_error", headers={"retry-after": "1"})


def _name(index: ServedIndex, sources: Sequence[ServedSource], known: dict[str, Any]) -> str:
    """Return the corpus of an index, with its model where several have the corpus.

    Further indexes of one name have their folder's too, and then numbers from 2.
    """
    alike = [source for source in sources if source.corpus == index.source.corpus]
    name = index.source.corpus if len(alike) == 1 else f"{index.source.corpus}-{index.model}"
    place: Path = index.source.alone or index.source.home
    name = f"{name}-{place.name}" if name in known else name
    numbered = (f"{name}-{number}" for number in count(2))
    return next(free for free in chain([name], numbered) if free not in known)
