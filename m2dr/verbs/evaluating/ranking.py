"""Queries against stores at every cut, ranked by row number and measured layer by layer."""

# Shapes in this file:
#   Q queries, H width, k documents of a ranking.

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr import __version__
from m2dr.errors import UserError, counted
from m2dr.evaluate.measures import Evaluator
from m2dr.evaluate.parts import Part
from m2dr.evaluate.ranks import Ints, without
from m2dr.evaluate.scoring import RowEvaluator
from m2dr.index.exact import prefix_top_k
from m2dr.index.exit_files import digest_of_exits
from m2dr.index.store import Store
from m2dr.model import checkpoint
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.records.card import ModelCard
from m2dr.records.cut import Cut
from m2dr.records.run import Ranking, Run
from m2dr.records.texts import Judgement, Query
from m2dr.text.collection import Dataset
from m2dr.verbs.encoding import embed_texts
from m2dr.verbs.models import label_of
from m2dr.verbs.progress import progress

DEEPEST = 1000  # documents of a ranking where no measure says how deep it looks

Floats = NDArray[np.float32]
Keep = Callable[[Cut, Callable[[], Run]], None]  # told a cut, and what makes its run


@dataclass(frozen=True)
class Task:
    """What is asked of a corpus, and how answers are measured."""

    dataset: Dataset
    split: str
    measures: tuple[str, ...]

    @cached_property
    def queries(self) -> list[Query]:
        """Every judged query that has a text."""
        return self.dataset.queries(self.split)

    @cached_property
    def judgements(self) -> list[Judgement]:
        """Of every query that counts."""
        return self.dataset.judgements(self.split)

    def require(self) -> None:
        """Raise UserError where there is nothing to measure, or no such measure."""
        Evaluator(self.judgements, self.measures)

    @cached_property
    def digest(self) -> str:
        """The sha256 of the queries and judgements."""
        held = [[(one.id, one.text) for one in self.queries], [asdict(j) for j in self.judgements]]
        return hashlib.sha256(json.dumps(held).encode()).hexdigest()


@dataclass(frozen=True)
class Ranker:
    """One model on one task: all dims of a layer from one pass over the vectors of a store."""

    task: Task
    model: str
    card: ModelCard
    stores: Mapping[int, Store]  # by layer
    dims: tuple[int, ...]
    device: str
    dtype: str
    exits: Path | None = None  # of an index, which queries pass in place of the model's own
    _vectors: dict[int, Floats] = field(default_factory=dict, compare=False)  # of the queries

    def question(self, layer: int, document_layer: int) -> dict[str, object]:
        """All that the numbers of one query layer depend on."""
        return {
            "version": __version__,
            "model": asdict(replace(label_of(self.card, ""), cuts=())),
            "exit_head": self.card.exit_head,
            "layer": layer,
            "dims": list(self.dims),
            "store": self.stores[document_layer].manifest.digest,
            "task": self.task.digest,
            "measures": list(self._evaluator.measures),
            "depth": self.depth,
            "drop": self.task.dataset.drops_own_document,
            "dtype": str(choose_dtype(self.dtype, choose_device(self.device))),
            **({"exits": digest_of_exits(self.exits)} if self.exits else {}),
        }

    @property
    def depth(self) -> int:
        """How many documents a ranking holds, if the corpus has as many."""
        return self._evaluator.depth or DEEPEST

    def parts(
        self, pairs: Sequence[tuple[int, int]], keep: Keep
    ) -> Iterator[tuple[tuple[int, int], Part]]:
        """Measure each pair of a query layer and a document layer, one after the other.

        Args:
            pairs: at least one.
            keep: told each cut, before its layer is yielded.
        """
        self._encode({layer for layer, _ in pairs} - self._vectors.keys())
        with progress("Ranking", len(pairs) * len(self.dims), "cuts") as advance:
            for layer, source in pairs:
                yield (layer, source), self._part(layer, source, keep)
                advance(len(self.dims))

    def _part(self, layer: int, source: int, keep: Keep) -> Part:
        values, tied, empty = {}, {}, {}
        for cut, rows, scores in self._ranked(layer, source):
            make = _Maker(self, source, rows, scores)
            keep(cut, make)
            values[cut] = self._evaluator.per_query(rows, make)
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
        return Part.of(self._evaluator.query_ids, values, tied, empty, facts)

    def _ranked(self, layer: int, source: int) -> Iterator[tuple[Cut, Ints, Floats]]:
        """Rows and scores of every dim, both [Q, k], best first."""
        drops = self.task.dataset.drops_own_document
        found = prefix_top_k(
            self._vectors[layer],
            self.stores[source],
            self.dims,
            self.depth + drops,
            self.card.similarity,
            self.device,
            self._places,
        )
        for dim in self.dims:
            scores, rows = found.pop(dim)
            _refuse_odd(scores, self.model, Cut(layer, dim))
            if drops:
                rows, scores = without(rows, scores, self._own, self.depth)
            yield Cut(layer, dim), rows, scores

    def _encode(self, layers: Collection[int]) -> None:
        """Keep the query vectors of some layers, each [Q, H], from one pass."""
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
        return RowEvaluator(self.task.judgements, self.task.measures, ids, self._rows)

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        """Where docids stand when sorted; all layers hold the same documents."""
        return self._store.docids.ranks()

    @cached_property
    def _own(self) -> list[int]:
        """The row of the document that has the query's own id, or -1."""
        ids = [query.id for query in self.task.queries]
        rows = self._rows(set(ids))
        return [rows.get(name, -1) for name in ids]

    @property
    def _store(self) -> Store:
        return next(iter(self.stores.values()))

    def _rows(self, docids: Iterable[str]) -> dict[str, int]:
        """The rows of those of `docids` that there are, from one look at the file of docids."""
        wanted = {docid.encode(errors="surrogatepass"): docid for docid in docids}
        lines = enumerate(self._store.docids.data.split(b"\n"))
        return {wanted[line]: row for row, line in lines if line in wanted}


@dataclass(frozen=True, eq=False)
class _Maker:
    """Makes the run of one cut from its rows when somebody wants it."""

    ranker: Ranker
    source: int
    rows: Ints  # [Q, k], -1 after the last
    scores: Floats  # [Q, k]

    def __call__(self) -> Run:
        docids = self.ranker.stores[self.source].docids
        rankings = {}
        for query, rows, scores in zip(
            self.ranker.task.queries, self.rows, self.scores, strict=True
        ):
            held = rows >= 0
            names = tuple(docids.take(rows[held].tolist()))
            rankings[query.id] = Ranking(names, tuple(scores[held].tolist()))
        return Run(rankings)


def _refuse_odd(scores: Floats, model: str, cut: Cut) -> None:
    odd = int((~np.isfinite(scores)).any(axis=1).sum())
    if odd:
        raise UserError(
            f"Scores of {counted(odd, 'queries')} by {model} at {cut} are not numbers; measure "
            f"again with --dtype fp32, and if that does not help, train the model again."
        )
