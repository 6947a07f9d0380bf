"""Training groups whose documents a teacher scored."""

from collections.abc import Callable, Collection, Iterable, Mapping
from sys import intern
from typing import Literal

from numpy.random import default_rng

from m2dr.errors import UserError, counted
from m2dr.records.texts import Group, Query
from m2dr.text.collection import Dataset, Negatives, Score
from m2dr.text.gathering import NEGATIVES_KEPT
from m2dr.text.groups import Groups

# Scores of one pair that are further apart are those of two teachers; nearer ones differ by the
# precision of two batches, and the first counts.
SAME = 0.1
ScoredSource = Literal["given", "scored"]


class Teacher:
    """Scores by query and document, of a bounded number of documents per query.

    Kept are the documents that answer, and the first `NEGATIVES_KEPT` others: a group draws some
    ten of them, and published files score up to a thousand.

    Args:
        scores: in any order; read once.
        relevant: docids that answer, by query id; of other queries nothing is kept.
        allowed: whether a document may be a negative of a query, by their ids.

    Raises:
        UserError: a line gives a pair another score than a line above did.
    """

    def __init__(
        self,
        scores: Iterable[Score],
        relevant: Mapping[str, Collection[str]],
        allowed: Callable[[str, str], bool],
    ) -> None:
        self._relevant, self._allowed = relevant, allowed
        # By query id and origin: a margin compares with those of the same positive alone.
        self._tables: dict[tuple[str, str], dict[str, float]] = {}
        self.first: Score | None = None
        for score in scores:
            self.first = self.first or score
            if score.query_id in relevant:
                self._keep(score)

    @property
    def is_of_these(self) -> bool:
        """Whether any of the queries has a score."""
        return bool(self._tables)

    def of(self, query_id: str, positive: str) -> Mapping[str, float]:
        """Return the scores that compare with that of a positive, its own among them, by docid.

        Empty where the positive has none.
        """
        own = self._tables.get((query_id, positive))
        table = own if own is not None else self._tables.get((query_id, ""), {})
        return table if positive in table else {}

    def _keep(self, score: Score) -> None:
        relevant = self._relevant[score.query_id]
        if score.origin and score.origin not in relevant:
            return  # a margin to a document that does not answer
        table = self._tables.setdefault((score.query_id, score.origin), {})
        known = table.get(score.docid)
        if known is not None:
            if abs(known - score.value) > SAME:
                raise score.line.error(
                    f"scores document {score.docid!r} for query {score.query_id!r} with "
                    f"{score.value:g} where a line above gives {known:g}. Give the scores of one "
                    "teacher, each pair once."
                )
        elif score.docid in relevant or (
            len(table) < NEGATIVES_KEPT + len(relevant)
            and self._allowed(score.query_id, score.docid)
        ):
            table[intern(score.docid)] = score.value  # one string for all queries that share it


class TaughtGroups(Groups):
    """Groups of documents that all have a score; a query that lacks them is left out.

    A positive without a score is not drawn, and negatives are drawn among the other documents that
    the teacher scored. All else is as in `Groups`.

    Args:
        dataset: where the texts are.
        split: whose judgements train.
        negatives: of each group, 1 at least.
        source: "given" draws those that the data set gives, "scored" any that was scored.
        seed: of every draw.
        scores: of the teacher.
        where: how a sentence calls what holds the scores.

    Raises:
        UserError: the split has nothing relevant, or no query has enough scores.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: str,
        negatives: int,
        source: ScoredSource,
        seed: int,
        scores: Iterable[Score],
        where: str,
    ) -> None:
        super().__init__(dataset, split, 0, "none", seed)
        self._wanted = negatives
        self._drawn: Negatives | None = dataset.negatives(split) if source == "given" else None
        self._held: dict[str, bool] = {}  # docid -> whether the corpus holds it
        self._teacher = Teacher(scores, self._relevant, self._may_draw)
        count = len(self._queries)
        usable = {query.id: self._usable(query) for query in self._queries}
        self._left_out = [query.id for query in self._queries if not usable[query.id]]
        if len(self._left_out) == count:
            raise self._nothing(split, where)
        self._relevant = {name: docids for name, docids in usable.items() if docids}
        self._queries = [query for query in self._queries if usable[query.id]]
        self.note = self._note(count)

    def __getitem__(self, i: int) -> Group:
        query = self._queries[i]  # raises IndexError past the end, which ends a `for`
        i %= len(self)
        positive = self._positive(query, i)
        table = self._teacher.of(query.id, positive.id)
        candidates = self._candidates(query, table)
        order = default_rng([self._seed, self._epoch, i]).permutation(len(candidates))
        docids = [candidates[int(place)] for place in order[: self._wanted]]
        negatives = tuple(self._dataset.document(docid) for docid in docids)
        return Group(query, positive, negatives, tuple(table[d] for d in (positive.id, *docids)))

    def widest(self) -> float:
        """Return the largest margin: a positive's score less a negative's, either way round."""
        return max(
            abs(table[docid] - table[negative])
            for query in self._queries
            for docid in self._relevant[query.id]
            for table in [self._teacher.of(query.id, docid)]
            for negative in self._candidates(query, table)
        )

    def _candidates(self, query: Query, table: Mapping[str, float]) -> list[str]:
        """Return the docids of a table that may be negatives, in its order."""
        barred = self._barred(query)
        return [docid for docid in table if docid not in barred]

    def _usable(self, query: Query) -> list[str]:
        """Return the docids that answer, are scored, and have enough scored negatives."""
        return [
            docid
            for docid in self._relevant[query.id]
            if len(self._candidates(query, self._teacher.of(query.id, docid))) >= self._wanted
        ]

    def _may_draw(self, query_id: str, docid: str) -> bool:
        if self._drawn is not None and docid not in self._drawn.get(query_id, ()):
            return False
        if docid not in self._held:
            self._held[docid] = self._dataset.holds(docid)
        return self._held[docid]

    def _note(self, count: int) -> str:
        absent = sum(not held for held in self._held.values())
        said = []
        if self._left_out:
            said.append(
                f"{len(self._left_out):,} of {counted(count, 'queries', ',')} left out, which lack "
                f"the teacher's score of an answer or of {counted(self._wanted, 'other documents')}"
                f"; {self._left_out[0]!r} is the first."
            )
        if absent:
            said.append(
                f"{counted(absent, 'scored documents', ',')} that the corpus does not hold left "
                "out."
            )
        return " ".join(said)

    def _nothing(self, split: str, where: str) -> UserError:
        """Return what to say where no query has enough scores."""
        first, name = self._teacher.first, self._dataset.name
        if first is None:
            return UserError(
                f"Distillation needs the scores of a teacher, and {where} has none for the split "
                f"{split!r}. Give its rows pos_scores and neg_scores, or name a file of scores in "
                "teacher_scores."
            )
        if not self._teacher.is_of_these:
            return first.line.error(
                f"scores query {first.query_id!r}, and like every other query of {where} the "
                f"split {split!r} of {name} does not ask it: they are of different data sets. "
                "Give the scores of this one."
            )
        return UserError(
            f"{where} scores no query of the split {split!r} of {name} enough: each needs an "
            f"answer and {counted(self._wanted, 'other documents')} with a score, and "
            f"{self._left_out[0]!r} has fewer. Score more documents, or set fewer negatives. "
            f"{self._note(len(self._left_out))}"
        )
