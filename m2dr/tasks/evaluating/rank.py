"""Rank documents at every cut, by row number, and measure the rankings layer by layer.

Shapes: Q queries, H width, k documents of a ranking.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path

import numpy as np

from m2dr.core import VERSION
from m2dr.core.arrays import Float32, Int64
from m2dr.core.errors import Interrupted, UserError, counted
from m2dr.core.files import json_sha256
from m2dr.core.progress import progress, say
from m2dr.core.records import F32, GIVEN, Cut, Judgement, ModelCard, Query, Run
from m2dr.core.requests import Runs
from m2dr.data.dataset import Dataset
from m2dr.evaluation.checks import model_checks, query_checks, ranking_checks
from m2dr.evaluation.grid import (
    Grid,
    LayerScores,
    LayerScoresFile,
    join_layers,
    with_earlier,
    write_grid,
    write_query_scores,
)
from m2dr.evaluation.measures import Evaluator, RowEvaluator, overall
from m2dr.evaluation.runs import write_qrels, write_run
from m2dr.index.bm25 import HYBRID_DEPTH, Bm25
from m2dr.index.codes import AGAIN, learn_code
from m2dr.index.engines import sample_rows
from m2dr.index.exact import Decode, grid_top_k, scores_of
from m2dr.index.hits import Hits
from m2dr.index.store import Store
from m2dr.index.vectors import answerable
from m2dr.model.checkpoint import Model
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.tasks.query import QueryPlan, apart_of, encode_layers, notes_of, system_of

DEEPEST = 1000  # documents of a ranking where no measure has a cutoff
RESCORED = 100  # documents of a ranking that are: ten times those of a search for 10
HITS_BYTES = 2**30  # of the rankings that one pass over the documents makes, about

Part = tuple[int, int, str]  # layer of the queries, layer and code of the documents
HitsOf = dict[tuple[int, str], Hits]  # by dim and code
Keep = Callable[[Cut, Callable[[], Run]], None]  # receives a cut, and a function that makes its run


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
        queries = [(query.id, query.text) for query in self.queries]
        judgements = [asdict(judgement) for judgement in self.judgements]
        return json_sha256([queries, judgements], sort_keys=False)


@dataclass(frozen=True)
class GridRanker:
    """Ranks for one model and task, at all dims of a layer in one pass over a store."""

    task: RankingTask
    plans: Mapping[int, QueryPlan]  # of the queries, by layer
    stores: Mapping[int, Store]  # by layer
    dims: tuple[int, ...]
    device: str
    dtype: str
    bm25: Bm25 | None = None  # of the documents, where it has a weight
    codes: tuple[str, ...] = (F32,)  # of the documents; with "+", then scored as they are stored
    _vectors: dict[int, Float32] = field(default_factory=dict, compare=False)  # of the queries

    def question(self, layer: int, store: str, code: str = F32) -> dict[str, object]:
        """Return everything a score depends on, except its dim and measure.

        Args:
            layer: of the queries.
            store: digest of the store of the documents.
            code: of the documents.
        """
        plan = self.plans[layer]
        hybrid = {"hybrid": self.hybrid, "words": self.bm25.language} if self.bm25 else {}
        return {
            "version": VERSION,
            "model": asdict(self.card.encoding),
            "exit_head": self.card.exit_head,
            "layer": layer,
            "store": store,
            "task": self.task.digest,
            "drop": self.task.dataset.drops_own_document,
            "dtype": str(choose_dtype(self.dtype, choose_device(self.device))),
            **hybrid,
            **plan.facts(lambda: self._encoded([layer])[layer]),
            **({"code": code} if code != F32 else {}),
        }

    @property
    def model(self) -> Model:
        """The model of the documents."""
        return self._first_plan.model

    @property
    def card(self) -> ModelCard:
        """Card of the model of the documents."""
        return self.model.card

    @property
    def hybrid(self) -> float:
        """Weight of BM25."""
        return self._first_plan.options.hybrid

    @property
    def _first_plan(self) -> QueryPlan:
        return next(iter(self.plans.values()))

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the measures, each once."""
        return tuple(map(str, self._evaluator.measures))

    @property
    def depth(self) -> int:
        """Documents of a ranking, if the corpus has as many."""
        return self._evaluator.depth or DEEPEST

    def measure(self, parts: Collection[Part], keep: Keep) -> Iterator[tuple[Part, LayerScores]]:
        """Measure parts of a grid, at least one; documents are read once for as many as fit.

        `keep` receives each cut before its part is yielded.
        """
        self._encoded({layer for layer, *_ in parts})
        lacking: dict[tuple[int, int], list[str]] = defaultdict(list)
        for layer, source, code in parts:
            lacking[layer, source].append(code)
        passes: dict[tuple[int, tuple[str, ...]], list[int]] = defaultdict(list)
        for (layer, source), names in lacking.items():
            passes[source, tuple(names)].append(layer)
        with progress("Ranking", len(parts) * len(self.dims), "cuts") as advance:
            for (source, codes), layers in passes.items():
                rankings = 8 * len(self.dims) * len(codes) * len(self.task.queries)
                step = max(1, HITS_BYTES // max(rankings * self._scan_depth(codes), 1))
                decoders = self._decoders(source, codes)
                for start in range(0, len(layers), step):
                    batch = layers[start : start + step]
                    ranked = self._ranked(batch, source, codes, decoders)
                    for (layer, hits), code in product(zip(batch, ranked, strict=True), codes):
                        by_dim = {dim: hits.pop((dim, code)) for dim in self.dims}
                        scores = self._measure(layer, source, code, by_dim, keep)
                        yield (layer, source, code), scores
                        advance(len(self.dims))

    def _measure(
        self,
        layer: int,
        source: int,
        code: str,
        by_dim: Mapping[int, Hits],
        keep: Keep,
    ) -> LayerScores:
        values, tied, empty = {}, {}, {}
        for dim, hits in by_dim.items():
            cut, rows, scores = Cut(layer, dim, code), hits.rows, hits.scores
            make_run = partial(hits.run, self._ids, self.stores[source].docids)
            keep(cut, make_run)
            values[cut] = self._evaluator.per_query(rows, make_run)
            lengths = (rows >= 0).sum(axis=1)
            last = (
                scores[np.arange(len(rows)), np.maximum(lengths, 1) - 1] if rows.size else lengths
            )
            first = scores[:, 0] if rows.size else lengths
            tied[cut] = int(((lengths > 1) & (first == last)).sum())
            empty[cut] = int((lengths == 0).sum())
        evaluator = self._evaluator
        return LayerScores.of(evaluator.query_ids, values, tied, empty, evaluator.facts)

    @property
    def _vector_depth(self) -> int:
        """Documents of a ranking by vectors that BM25 or the measures read."""
        return max(self.depth, HYBRID_DEPTH if self.bm25 else 0)

    def _scan_depth(self, codes: Collection[str]) -> int:
        """Documents of a ranking that a scan of the store returns."""
        return max(self._vector_depth, RESCORED * any(code.endswith(AGAIN) for code in codes))

    def _decoders(self, source: int, codes: Collection[str]) -> dict[tuple[int, str], Decode]:
        """Return the decoder of each code except f32 at each dim, learned from documents."""
        names = {code.removesuffix(AGAIN) for code in codes} - {F32}
        if not names:
            return {}
        store = self.stores[source]
        rows = store.rows(sample_rows(store.documents))
        keys = list(product(self.dims, names))
        learn = partial(learn_code, similarity=self.card.similarity, rows=rows)
        with ThreadPoolExecutor() as pool:
            return dict(zip(keys, pool.map(lambda key: learn(key[1], key[0]), keys), strict=True))

    def _ranked(
        self,
        layers: Sequence[int],
        source: int,
        codes: Collection[str],
        decoders: Mapping[tuple[int, str], Decode],
    ) -> list[HitsOf]:
        """Rank documents by the queries of each layer at every dim and code, best first."""
        store, drops = self.stores[source], self.task.dataset.drops_own_document
        similarity, depth = self.card.similarity, self._vector_depth
        exact = F32 in (code.removesuffix(AGAIN) for code in codes)
        rescored = [code for code in codes if code.endswith(AGAIN)]
        vectors = [self._mixed(layer) for layer in layers]
        ranked = grid_top_k(
            vectors,
            store,
            self.dims if exact else (),
            self._scan_depth(codes) + drops,
            similarity,
            self.device,
            self._store.docids.ranks,
            codes=decoders,
        )
        for dim in self.dims if rescored else ():
            # BM25 stands beside all documents of a ranking, so all of these are scored again.
            best = slice(None if self.bm25 else RESCORED + drops)
            sets = [
                (hits, queries, name)
                for hits, queries in zip(ranked, vectors, strict=True)
                for name in rescored
            ]
            top = [hits[dim, name.removesuffix(AGAIN)][1][:, best] for hits, _, name in sets]
            new_scores = scores_of([queries for _, queries, _ in sets], top, store, dim, similarity)
            for (hits, _, name), scores in zip(sets, new_scores, strict=True):
                hits[dim, name] = self._rescored(scores, *hits[dim, name.removesuffix(AGAIN)])
        found: list[HitsOf] = []
        for layer, queries, hits in zip(layers, vectors, ranked, strict=True):
            found.append({})
            for (dim, name), (scores, rows) in hits.items():
                rows[~answerable(queries, dim)] = -1
                if invalid := int((~np.isfinite(scores)).any(axis=1).sum()):
                    cut = Cut(layer, dim, name)
                    raise UserError(f"{invalid} queries at {cut} have no finite scores.")
                found[-1][dim, name] = Hits(scores, rows).without(self._own_rows, depth)
            hits.clear()
            if self.bm25:
                _ = self.bm25.docids.ranks  # sorted once for all cuts
                vector_hits = list(found[-1].values())
                blends = self.bm25.blend(
                    vector_hits, self._texts, self.hybrid, self.depth, self._own_rows
                )
                found[-1] = dict(zip(found[-1], blends, strict=True))
        return found

    def _mixed(self, layer: int) -> Float32:
        """Return the vectors of queries of a layer [Q, H], mixed with words if asked."""
        plan = self.plans[layer]
        return plan.mixed(self._vectors[layer], self._texts, plan.mix)

    def _rescored(self, best: Float32, scores: Float32, rows: Int64) -> tuple[Float32, Int64]:
        """Sort rankings [Q, k] by new scores of their best [Q, n]; the others stay behind those."""
        rest = scores[:, best.shape[1] :]
        lowest = best.min(axis=1, keepdims=True, initial=np.inf)
        scores = np.hstack([best, rest + np.minimum(lowest - rest[:, :1], 0)])
        order = np.lexsort((-self._store.docids.ranks[rows], -scores))
        return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)

    def _encoded(self, layers: Iterable[int]) -> Mapping[int, Float32]:
        """Encode the queries of layers that are missing; return vectors by layer, [Q, H]."""
        missing = [self.plans[layer] for layer in layers if layer not in self._vectors]
        encoded = encode_layers(missing, self._texts, self._ids, self.device, self.dtype)
        self._vectors.update(encoded)
        return self._vectors

    @cached_property
    def _texts(self) -> list[str]:
        return [query.text for query in self.task.queries]

    @cached_property
    def _ids(self) -> list[str]:
        return [query.id for query in self.task.queries]

    @cached_property
    def _evaluator(self) -> RowEvaluator:
        find = self._store.docids.find
        return RowEvaluator(self.task.judgements, self.task.measures, self._ids, find)

    @cached_property
    def _own_rows(self) -> Int64:
        """Row of the document to leave out for each query, [Q]; -1 for none."""
        drops = self.task.dataset.drops_own_document
        rows = self._store.docids.find(self._ids) if drops else {}
        return np.array([rows.get(name, -1) for name in self._ids], np.int64)

    @property
    def _store(self) -> Store:
        return next(iter(self.stores.values()))


def measure_grid(ranker: GridRanker, name: str, folder: Path, runs: Runs, overwrite: bool) -> Grid:
    """Measure the layers that were not measured before; write grid and scores.

    Other cuts that were measured before, of the same vectors and queries, stay in the files.

    Args:
        ranker: of the dims and measures that were asked for; its documents are encoded.
        name: of the grid.
        folder: of the grid.
        runs: the cuts whose runs are written.
        overwrite: measure again what was measured before.

    Raises:
        Interrupted: Ctrl-C; the layers measured so far are kept.
    """
    dims, measures, runs_folder = ranker.dims, ranker.measures, folder / "runs"
    full = Cut(max(ranker.plans), max(dims), (F32 if F32 in ranker.codes else ranker.codes[0]))

    def keeps(cut: Cut) -> bool:
        return runs == "all" or (runs == "whole" and cut == full)

    def keep(cut: Cut, run: Callable[[], Run]) -> None:
        if keeps(cut):
            write_qrels(ranker.task.judgements, runs_folder / "qrels.tsv")
            write_run(run(), runs_folder / f"{cut}.trec", tag=re.sub(r"[^\w.-]", "-", folder.name))

    pairs = [(layer, plan.document_layer) for layer, plan in ranker.plans.items()]
    files = {
        (*pair, code): LayerScoresFile(
            folder,
            *pair,
            ranker.question(pair[0], ranker.stores[pair[1]].manifest.digest, code),
            code,
        )
        for code, pair in product(ranker.codes, pairs)
    }
    measured: dict[Part, LayerScores] = {}
    for part, file in files.items():
        earlier, (layer, _, code) = None if overwrite else file.read(), part
        paths = [runs_folder / f"{cut}.trec" for dim in dims if keeps(cut := Cut(layer, dim, code))]
        if earlier and earlier.holds(dims, measures) and all(path.exists() for path in paths):
            measured[part] = earlier.only(dims, measures)
            continue
        file.forget()
        for path in runs_folder.glob(f"L{layer}D*.trec"):  # perhaps of other weights
            if Cut.parse_coded(path.stem).code == code:
                path.unlink()
    if measured:
        done = ", ".join(f"{layer}" + f" in {code}" * (code != F32) for layer, _, code in measured)
        say(f"{name}: layers {done} were measured before; --overwrite measures them again")
    lacking = [part for part in files if part not in measured]
    try:
        for part, layer_scores in ranker.measure(lacking, keep) if lacking else ():
            files[part].write(layer_scores)
            measured[part] = layer_scores
    except KeyboardInterrupt:
        done = f"after {len(measured)} of {counted(len(files), 'layers')}"
        raise Interrupted(f"Measuring stopped {done}; the same command goes on.") from None
    return _write(ranker, name, folder, [measured[part] for part in files])


def _write(ranker: GridRanker, name: str, folder: Path, parts: Sequence[LayerScores]) -> Grid:
    """Write grid and scores of measured layers, and what was measured before beside them."""
    scores = join_layers(parts)
    first, store = next(iter(scores.values())), next(iter(ranker.stores.values()))
    requested = first.cuts
    by_exits = [layer for layer, plan in ranker.plans.items() if plan.maps]
    layer = min(by_exits or ranker.plans)
    question = json_sha256(ranker.question(layer, store.manifest.texts) | {"layer": 0})
    scores = with_earlier(scores, folder, question)
    write_query_scores(list(scores.values()), folder, {"question": question})
    cells = {
        cut: {measure: overall(measure, rows.at(cut).tolist()) for measure, rows in scores.items()}
        for cut in next(iter(scores.values())).cuts
    }
    task = ranker.task
    queries, facts = len(first.query_ids), parts[0].facts
    tied = {cut: count for part in parts for cut, count in part.tied.items()}
    empty = {cut: count for part in parts for cut, count in part.empty.items()}
    checks = (
        *ranking_checks(tied, empty, queries - facts["unanswered"]),
        *query_checks(queries, **facts),
        *model_checks(
            ranker.model.card,
            {cut: cells[cut][ranker.measures[0]] for cut in requested},
            ranker.measures[0],
            store.manifest.label.differences(ranker.card),
        ),
    )
    dropped = "the query's own document is dropped from its ranking"
    notes: tuple[str, ...] = (dropped,) if task.dataset.drops_own_document else ()
    notes = (*ranker.plans[layer].options.notes, *notes, *notes_of(ranker.plans))
    usual = "f32" if ranker.card.exits == "model" else "f16"
    for form in sorted({each.manifest.dtype for each in ranker.stores.values()} - {usual, "f32"}):
        notes += (f"vectors of the documents are stored in {form}",)
    if any(cut.code.endswith(AGAIN) for cut in cells):
        notes += (f"{AGAIN}: the best {RESCORED} by a code are scored again by the stored vectors",)
    grid = Grid(
        name,
        task.dataset.name,
        task.split,
        queries,
        cells,
        notes,
        checks=checks,
        system=system_of(ranker.plans),
        apart=apart_of(ranker.plans),
        lengths=(
            "texts as they were before their import"
            if ranker.card.variant == GIVEN
            else f"queries of {ranker.card.query_length} and documents of "
            f"{ranker.card.document_length} tokens at most"
        ),
    )
    write_grid(grid, folder)
    return replace(grid, cells={cut: cells[cut] for cut in requested})
