"""Rankings and runs, and the one rule for ties."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan

from m2dr.errors import UserError


@dataclass(frozen=True, slots=True)
class Ranking:
    """The documents of one query from best to worst, with their scores (float32 values)."""

    docids: tuple[str, ...]
    scores: tuple[float, ...]

    @classmethod
    def of(
        cls,
        docids: Sequence[str],
        scores: Iterable[float],
        k: int | None = None,
        drop: str | None = None,
    ) -> "Ranking":
        """Rank by score descending, then docid descending, as trec_eval reads a run.

        Scores are compared as float32: two that differ by less are a tie in every engine.

        Args:
            docids: in any order, without repeats.
            scores: one per docid.
            k: number of documents to keep; all when None.
            drop: a docid to leave out, such as the query's own document.

        Raises:
            UserError: a docid is repeated, a score is not a number, or `k` is below 0.

        >>> Ranking.of(["a", "c", "b"], [1.0, 1.0, 2.0]).docids
        ('b', 'c', 'a')
        """
        if k is not None and k < 0:
            raise UserError(f"A ranking cannot hold {k} documents.")
        if len(set(docids)) != len(docids):
            repeated = next(docid for docid in docids if docids.count(docid) > 1)
            raise UserError(f"Document {repeated!r} comes twice in one ranking.")
        single = array("f", scores)
        if any(map(isnan, single)):
            raise UserError("A score is not a number, so documents cannot be ranked by it.")
        pairs = sorted(zip(single, docids, strict=True), reverse=True)
        kept = [pair for pair in pairs if pair[1] != drop][:k]
        return cls(tuple(docid for _, docid in kept), tuple(score for score, _ in kept))


@dataclass(frozen=True)
class Run:
    """The ranking of each query, by id; empty for a query that found nothing."""

    rankings: Mapping[str, Ranking]

    def __len__(self) -> int:
        return len(self.rankings)
