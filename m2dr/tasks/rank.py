"""Rank documents at every cut, by row number, and measure the rankings layer by layer.

Shapes: Q queries, H width, k documents of a ranking.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr import __version__
from m2dr.core.errors import Interrupted, UserError, counted
from m2dr.core.files import json_sha256, remove_files
from m2dr.core.progress import progress, say
from m2dr.core.records import Cut, Judgement, ModelCard, Query, Ranking, Run
from m2dr.core.requests import Runs
from m2dr.data.dataset import Dataset
from m2dr.evaluate.checks import (
    depth_checks,
    grid_checks,
    model_checks,
    query_checks,
    ranking_checks,
)
from m2dr.evaluate.grid import (
    Grid,
    LayerScores,
    LayerScoresFile,
    join_layers,
    write_grid,
    write_scores,
)
from m2dr.evaluate.measures import Evaluator, Ints, RowEvaluator, drop_own, overall
from m2dr.evaluate.runs import write_qrels, write_run
from m2dr.index.exact import prefix_top_k
from m2dr.index.exit_files import digest_of_exits
from m2dr.index.store import Store
from m2dr.model import checkpoint
from m2dr.model.checkpoint import read_card
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.tasks.encode_texts import embed_texts
from m2dr.tasks.encoder import document_layer, label_of

WAYS = ("trained", "same", "last", "cross")
INDEX_EXITS = ".index-exits"  # after a model's name: its queries pass the exits of an index
DEEPEST = 1000  # documents of a ranking where no measure has a cutoff

Floats = NDArray[np.float32]
LayerPair = tuple[int, int]  # of the queries, of the documents
Keep = Callable[[Cut, Callable[[], Run]], None]  # receives a cut, and a function that makes its run


@dataclass(frozen=True)
class Pairing:
    """The document layer that queries of each layer search, in one grid."""

    suffix: str  # of the model's name in tables and folders; empty for the trained pairing
    layers: Mapping[int, int]  # of the queries -> of the documents


def pairings(card: ModelCard, layers: Sequence[int], documents: str) -> tuple[Pairing, ...]:
    """Return the pairings of `--documents`.

    Args:
        card: model card.
        layers: of the queries.
        documents: trained, same, last or the number of a layer; or cross, for each of `layers`.

    Raises:
        UserError: it is none of these, or the encoder has no such layer.
    """
    trained = {layer: document_layer(card, layer) for layer in layers}
    if documents == "trained":
        return (Pairing("", trained),)
    if documents == "same":
        same = {layer: layer for layer in layers}
        return (Pairing("" if same == trained else ".documents-same", same),)
    if documents == "cross":
        numbers = tuple(layers)
    elif documents == "last":
        numbers = (card.layers,)
    elif documents.isdecimal():
        numbers = (card.check(Cut(int(documents), 1)).layer,)
    else:
        raise UserError(
            f"--documents {documents} names no layer of documents; it is {', '.join(WAYS)} or the "
            f"number of a layer from {card.lowest_layer} to {card.layers}."
        )
    fixed = {number: dict.fromkeys(layers, number) for number in numbers}
    return tuple(
        Pairing("" if paired == trained else f".documents-{number:02d}", paired)
        for number, paired in fixed.items()
    )


def pairing_of(grid: str) -> tuple[str, str]:
    """Return the name of the model of a grid, and its `--documents`, by the name of the grid.

    >>> pairing_of("mine.documents-06"), pairing_of("mine.documents-same"), pairing_of("mine")
    (('mine', '6'), ('mine', 'same'), ('mine', 'trained'))
    """
    found = re.fullmatch(r"(.+)\.documents-(same|\d+)", grid)
    return (found[1], found[2].lstrip("0") or "0") if found else (grid, "trained")


@dataclass(frozen=True)
class RankingTask:
    """Queries of a split of a dataset, and the measures of their rankings."""

    dataset: Dataset
    split: str
    measures: tuple[str, ...]

    @cached_property
    def queries(self) -> list[Query]:
        """Judged queries that have a text."""
        return self.dataset.queries(self.split)

    @cached_property
    def judgements(self) -> list[Judgement]:
        """Judgements of all queries that are measured."""
        return self.dataset.judgements(self.split)

    def require(self) -> None:
        """Raise UserError if there is nothing to measure, or no such measure."""
        Evaluator(self.judgements, self.measures)

    @cached_property
    def digest(self) -> str:
        """Sha256 of the queries and judgements."""
        held = [[(one.id, one.text) for one in self.queries], [asdict(j) for j in self.judgements]]
        return json_sha256(held, sort_keys=False)


@dataclass(frozen=True)
class GridRanker:
    """Ranks for one model and task, at all dims of a layer in one pass over a store."""

    task: RankingTask
    model: str
    card: ModelCard
    stores: Mapping[int, Store]  # by layer
    dims: tuple[int, ...]
    device: str
    dtype: str
    exits: Path | None = None  # of an index, used by queries in place of those of the model
    _vectors: dict[int, Floats] = field(default_factory=dict, compare=False)  # of the queries

    def question(self, layer: int, store: str) -> dict[str, object]:
        """Return all that a score depends on, but for its dim and measure.

        Args:
            layer: of the queries.
            store: digest of the store of the documents.
        """
        return {
            "version": __version__,
            "model": asdict(replace(label_of(self.card, ""), cuts=())),
            "exit_head": self.card.exit_head,
            "layer": layer,
            "store": store,
            "task": self.task.digest,
            "drop": self.task.dataset.drops_own_document,
            "dtype": str(choose_dtype(self.dtype, choose_device(self.device))),
            **({"exits": digest_of_exits(self.exits)} if self.exits else {}),
        }

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the measures, each once."""
        return self._evaluator.measures

    @property
    def depth(self) -> int:
        """Documents of a ranking, if the corpus has as many."""
        return self._evaluator.depth or DEEPEST

    def measure(
        self, pairs: Sequence[LayerPair], keep: Keep
    ) -> Iterator[tuple[LayerPair, LayerScores]]:
        """Measure pairs of layers, at least one, one after the other.

        `keep` receives each cut before its layer is yielded.
        """
        self._encode({layer for layer, _ in pairs} - self._vectors.keys())
        with progress("Ranking", len(pairs) * len(self.dims), "cuts") as advance:
            for layer, source in pairs:
                yield (layer, source), self._measure(layer, source, keep)
                advance(len(self.dims))

    def _measure(self, layer: int, source: int, keep: Keep) -> LayerScores:
        values, tied, empty = {}, {}, {}
        for cut, rows, scores in self._ranked(layer, source):
            make_run = partial(self._run, source, rows, scores)
            keep(cut, make_run)
            values[cut] = self._evaluator.per_query(rows, make_run)
            held = (rows >= 0).sum(axis=1)
            last = scores[np.arange(len(rows)), np.maximum(held, 1) - 1] if rows.size else held
            first = scores[:, 0] if rows.size else held
            tied[cut] = int(((held > 1) & (first == last)).sum())
            empty[cut] = int((held == 0).sum())
        facts = {
            "unanswered": self._evaluator.unanswered,
            "unanswerable": self._evaluator.unanswerable,
            "unknown_documents": self._evaluator.unknown_documents,
        }
        return LayerScores.of(self._evaluator.query_ids, values, tied, empty, facts)

    def _ranked(self, layer: int, source: int) -> Iterator[tuple[Cut, Ints, Floats]]:
        """Yield the rows and scores of every dim, both [Q, k], best first."""
        drops = self.task.dataset.drops_own_document
        found = prefix_top_k(
            self._vectors[layer],
            self.stores[source],
            self.dims,
            self.depth + drops,
            self.card.similarity,
            self.device,
            self._docid_ranks,
        )
        for dim in self.dims:
            scores, rows = found.pop(dim)
            if invalid := int((~np.isfinite(scores)).any(axis=1).sum()):
                raise UserError(
                    f"Scores of {counted(invalid, 'queries')} by {self.model} at "
                    f"{Cut(layer, dim)} are not numbers; --dtype fp32 may help."
                )
            if drops:
                rows, scores = drop_own(rows, scores, self._own, self.depth)
            yield Cut(layer, dim), rows, scores

    def _encode(self, layers: Collection[int]) -> None:
        """Encode the queries at some layers, in one pass, into `_vectors`, each [Q, H]."""
        if not layers:
            return
        device = choose_device(self.device)
        dtype = choose_dtype(self.dtype, device)
        encoder, tokenizer = checkpoint.load(
            self.model, max(layers), device, dtype, exits=self.exits
        )
        texts, deeper = [query.text for query in self.task.queries], sorted(layers)
        with progress("Encoding", len(texts), "queries") as advance:
            vectors = embed_texts(encoder, tokenizer, texts, "query", deeper, advance)
        self._vectors.update(zip(deeper, vectors, strict=True))

    @cached_property
    def _evaluator(self) -> RowEvaluator:
        ids = [query.id for query in self.task.queries]
        find = self._store.docids.find
        return RowEvaluator(self.task.judgements, self.task.measures, ids, find)

    @cached_property
    def _docid_ranks(self) -> NDArray[np.int64]:
        """Positions of docids in their sorted order; all layers hold the same documents."""
        return self._store.docids.ranks()

    @cached_property
    def _own(self) -> list[int]:
        """Row of the document with the id of each query, or -1."""
        ids = [query.id for query in self.task.queries]
        rows = self._store.docids.find(ids)
        return [rows.get(name, -1) for name in ids]

    @property
    def _store(self) -> Store:
        return next(iter(self.stores.values()))

    def _run(self, source: int, rows: Ints, scores: Floats) -> Run:
        """Make the run of a cut from rows, -1 after the last, and scores, both [Q, k]."""
        docids, rankings = self.stores[source].docids, {}
        for query, found, values in zip(self.task.queries, rows, scores, strict=True):
            held = found >= 0
            names = tuple(docids.take(found[held].tolist()))
            rankings[query.id] = Ranking(names, tuple(values[held].tolist()))
        return Run(rankings)


@dataclass(frozen=True)
class GridEvaluation:
    """Measures grids of one model on one corpus, whose documents are encoded.

    Attributes:
        ranker: of the dims and measures that were asked for.
        runs: the cuts whose runs are written.
        overwrite: measure again what was measured before.
        digests: of the stores, by layer; those of layers that were not asked for besides.
    """

    ranker: GridRanker
    runs: Runs
    overwrite: bool
    digests: Mapping[int, str]

    def grid(self, name: str, pairing: Pairing, folder: Path) -> Grid:
        """Measure the layers of a pairing that were not measured before; write grid and scores.

        The files keep what was measured before: layers that are not asked for now, where they have
        the same dims and measures, and dims and measures of a layer that is.

        Returns:
            The grid that was asked for.

        Raises:
            Interrupted: Ctrl-C; the layers measured so far are kept.
        """
        card, asked = self.ranker.card, list(pairing.layers.items())
        way = pairing_of(f"grid{pairing.suffix}")[1]
        every = pairings(card, range(card.lowest_layer, card.layers + 1), way)[0].layers
        files = {
            pair: LayerScoresFile(folder, *pair, self.ranker.question(pair[0], digest))
            for pair in every.items()
            if (digest := self.digests.get(pair[1]))
        }
        read = ((pair, None if self.overwrite else file.read()) for pair, file in files.items())
        before = {pair: part for pair, part in read if part is not None}
        wide = self._widened([before[pair] for pair in asked if pair in before])
        dims, measures = wide.ranker.dims, wide.ranker.measures
        full, runs = Cut(max(pairing.layers), max(dims)), folder / "runs"

        def keeps(cut: Cut) -> bool:
            return self.runs == "all" or (self.runs == "whole" and cut == full)

        def keep(cut: Cut, run: Callable[[], Run]) -> None:
            if keeps(cut):
                write_qrels(self.ranker.task.judgements, runs / "qrels.tsv")
                tag = re.sub(r"[^\w.-]", "-", folder.name)
                write_run(run(), runs / f"{cut}.trec", tag=tag)

        def is_like(part: LayerScores) -> bool:
            return part.dims == dims and set(part.measures) == set(measures)

        known = {}
        for pair in asked:
            paths = [runs / f"{cut}.trec" for dim in dims if keeps(cut := Cut(pair[0], dim))]
            if pair in before and is_like(before[pair]) and all(path.exists() for path in paths):
                known[pair] = before[pair]
            else:
                files[pair].forget()
                if runs.is_dir():
                    remove_files(runs, f"L{pair[0]}D*.trec")  # perhaps of other weights
        if known:
            done = ", ".join(str(layer) for layer, _ in known)
            say(f"{name}: layers {done} were measured before; --overwrite measures them again")
        lacking = [pair for pair in asked if pair not in known]
        try:
            for pair, part in wide.ranker.measure(lacking, keep) if lacking else ():
                files[pair].write(part)
                known[pair] = part
        except KeyboardInterrupt:
            raise Interrupted(
                f"Measuring stopped after {len(known)} of {counted(len(asked), 'layers')}; the "
                "same command goes on from there."
            ) from None
        # The grid of the folder holds all layers of the same dims and measures.
        there = before | known
        alike = {pair: there[pair].only(dims, measures) for pair in sorted(there)
                 if is_like(there[pair])}  # fmt: skip
        if left := len(there) - len(alike):
            say(
                f"{folder} holds a grid of the dims and measures that were asked for now; "
                f"{counted(left, 'layers')} measured before have others, and come back when those "
                "are asked for"
            )
        write_scores(list(join_layers(list(alike.values())).values()), folder)
        whole = Pairing(pairing.suffix, dict(alike.keys()))
        write_grid(wide._grid(name, whole, list(alike.values())), folder)
        shown = [known[pair].only(self.ranker.dims, self.ranker.measures) for pair in asked]
        return self._grid(name, pairing, shown)

    def _widened(self, before: Sequence[LayerScores]) -> "GridEvaluation":
        """Return an evaluation of the dims and measures that were measured before, too."""
        ranker = self.ranker
        dims = {*ranker.dims, *(dim for part in before for dim in part.dims)}
        measures = dict.fromkeys(name for part in before for name in part.measures)
        task = replace(ranker.task, measures=(*measures | dict.fromkeys(ranker.measures),))
        return replace(self, ranker=replace(ranker, task=task, dims=tuple(sorted(dims))))

    def _grid(self, name: str, pairing: Pairing, parts: Sequence[LayerScores]) -> Grid:
        scores = join_layers(parts)
        first, ranker = next(iter(scores.values())), self.ranker
        cells = {
            cut: {
                measure: overall(measure, one.at(cut).tolist()) for measure, one in scores.items()
            }
            for cut in first.cuts
        }
        task, card, store = ranker.task, ranker.card, next(iter(ranker.stores.values()))
        queries, facts = len(first.query_ids), parts[0].facts
        tied = {cut: count for part in parts for cut, count in part.tied.items()}
        empty = {cut: count for part in parts for cut, count in part.empty.items()}
        depth = min(ranker.depth, store.documents - task.dataset.drops_own_document)
        own = read_card(ranker.model) if ranker.exits else card
        differences = store.manifest.label.differences(label_of(own, ranker.model))
        place = (name, task.dataset.name, task.split, queries, cells)
        checks = (
            *grid_checks(Grid(*place)),
            *ranking_checks(tied, empty, queries - facts["unanswered"]),
            *depth_checks(tuple(scores), depth, store.documents),
            *query_checks(queries, **facts),
            *model_checks(card, first.cuts, differences),
        )
        return Grid(*place, tuple(_notes(task, card, pairing)), checks=checks)


def _notes(task: RankingTask, card: ModelCard, pairing: Pairing) -> Iterator[str]:
    if task.dataset.drops_own_document:
        yield "the query's own document is dropped from its ranking"
    sources = sorted(set(pairing.layers.values()))
    if len(sources) == 1 < len(pairing.layers):
        yield f"documents are encoded by layer {sources[0]} whatever the query's layer"
    if any(document_layer(card, own) != other for own, other in pairing.layers.items()):
        yield (
            "the model was trained with documents of "
            f"{'the last layer' if card.documents == 'last' else 'the same layer as the query'}"
        )
