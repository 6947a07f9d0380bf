"""Rankings by row number become measures of every query: by formula, or by a provider."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from m2dr.evaluate.measures import Evaluator
from m2dr.evaluate.ranks import Floats, Ints, JudgedRows, takes, values
from m2dr.records.run import Run
from m2dr.records.texts import Judgement


class RowEvaluator:
    """Judgements prepared once, to score the rankings of one cut after the other.

    The measures that papers report need no more than where judged documents stand, which is a
    comparison of numbers; what has no formula here goes to its provider, ranking by ranking.
    """

    def __init__(
        self,
        judgements: Sequence[Judgement],
        names: Sequence[str],
        query_ids: Sequence[str],
        rows: Callable[[Iterable[str]], Mapping[str, int]],
    ) -> None:
        """Prepare to measure.

        Args:
            judgements: of every query that counts.
            names: measures as ir_measures writes them.
            query_ids: of the rankings to come, in their order.
            rows: the rows of those of some documents that the store holds, by document id.

        Raises:
            UserError: as Evaluator.
        """
        whole = Evaluator(judgements, names)
        self.measures = tuple(map(str, whole.measures))
        self.depth = whole.depth
        self.query_ids = tuple(whole.judged)
        known = rows({docid for levels in whole.judged.values() for docid in levels})
        self.judged = JudgedRows.of(whole.judged, known)
        places = {query: place for place, query in enumerate(query_ids)}
        self._answered = np.array([places.get(query, -1) for query in whole.judged], np.int64)
        self._formulas = [measure for measure in whole.measures if takes(measure)]
        others = [name for name in self.measures if name not in map(str, self._formulas)]
        self._others = Evaluator(judgements, others) if others else None

    @property
    def unanswered(self) -> int:
        """How many judged queries no ranking is of."""
        return int((self._answered < 0).sum())

    @property
    def unknown_documents(self) -> int:
        """How many judgements are of documents that the store does not hold."""
        return int((self.judged.row < 0).sum())

    @property
    def unanswerable(self) -> int:
        """How many judged queries have no relevant document."""
        relevant = np.bincount(
            self.judged.query, self.judged.level > 0, minlength=self.judged.queries
        )
        return int((relevant == 0).sum())

    def per_query(self, found: Ints, run: Callable[[], Run]) -> dict[str, Floats]:
        """Measure -> value of every judged query, [Q].

        Args:
            found: [A, k] rows, best first, of the queries in their order; -1 after the last.
            run: makes the same rankings by document id; called when a provider needs it.
        """
        ranks = self.judged.ranked(found, self._answered)
        computed = {str(measure): values(measure, ranks) for measure in self._formulas}
        if self._others:
            theirs = self._others.scores(run()).per_query
            lists = {name: [theirs[name][q] for q in self.query_ids] for name in theirs}
            computed |= {name: np.array(one, np.float64) for name, one in lists.items()}
        return {name: computed[name] for name in self.measures}
