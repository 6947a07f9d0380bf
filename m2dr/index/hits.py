"""What queries found, as scores and rows: of searches and of grids alike.

Shapes: Q queries, k documents of a ranking.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan

import numpy as np

from m2dr.core.arrays import Float32, Float64, Int64
from m2dr.core.records import Ranking, Run
from m2dr.index.docids import Docids

_NO_DROP: Mapping[str, str] = {}


@dataclass(frozen=True, eq=False)
class Hits:
    """Documents that queries found, best first.

    Attributes:
        scores: [Q, k].
        rows: of the documents, [Q, k]; -1 is no document.
        parts: of a hybrid, [Q, k, 2]: the scores by the vectors, nan where these ranked no such
            document, and by BM25.
        scale: of a hybrid, [Q, 3], as `Ranking.scale`.
    """

    scores: Float32
    rows: Int64
    parts: Float32 | None = None
    scale: Float64 | None = None

    def without(self, own: Int64, k: int) -> "Hits":
        """Leave out a document of each query, and keep at most `k` others.

        Args:
            own: the rows to leave out, [Q]; -1 for none.
            k: number of documents to keep.
        """
        if (own < 0).all():
            return Hits(self.scores[:, :k], self.rows[:, :k])
        kept = self.rows != own[:, None]
        order = np.argsort(~kept, axis=1, kind="stable")[:, :k]  # those left out go to the end
        stays = np.take_along_axis(kept, order, axis=1)
        rows = np.where(stays, np.take_along_axis(self.rows, order, axis=1), -1)
        scores = np.where(stays, np.take_along_axis(self.scores, order, axis=1), -np.inf)
        return Hits(scores, rows)

    def run(
        self,
        query_ids: Sequence[str],
        docids: Docids,
        k: int | None = None,
        drop: Mapping[str, str] = _NO_DROP,
    ) -> Run:
        """Return the rankings by docid, ties as `Ranking.of` breaks them.

        Args:
            query_ids: Q of them.
            docids: by row.
            k: documents per query; all when None.
            drop: per query id, a docid to leave out.
        """
        rankings = {}
        for number, name in enumerate(query_ids):
            found = self.rows[number] >= 0
            names, scores = docids.take(self.rows[number, found]), self.scores[number, found]
            rankings[name] = Ranking.of(names, scores.tolist(), k, drop.get(name))
            if self.parts is not None and self.scale is not None:
                pairs = self.parts[number, found].tolist()
                parts = tuple((None if isnan(vector) else vector, bm25) for vector, bm25 in pairs)
                scale = tuple(self.scale[number].tolist())
                rankings[name] = replace(rankings[name], parts=parts, scale=scale)
        return Run(rankings)
