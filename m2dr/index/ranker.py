"""Documents ranked by vectors, and by what else a search asks for.

Shapes: Q queries, W width of their vectors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from m2dr.core.arrays import Bools, Floats
from m2dr.core.records import Run
from m2dr.index.bm25 import HYBRID_DEPTH, Bm25
from m2dr.index.hits import Hits
from m2dr.index.searchable import Searchable
from m2dr.index.vectors import answerable, check_depth


@dataclass(frozen=True, eq=False)
class Ranker:
    """Documents that are ranked by the vectors of queries, their words and a minimum score.

    Attributes:
        documents: the index of the vectors, perhaps only of the documents that fit a filter.
        mixed: makes the vectors to rank by from those of the queries [Q, W] and their texts.
        bm25: of all documents, where it has a weight.
        weight: of BM25, 0 to 1.
        unfit: which documents do not fit the filter, [documents]; None without a filter.
        min_score: of a hit.
    """

    documents: Searchable
    mixed: Callable[[Floats, Sequence[str]], Floats] | None = None
    bm25: Bm25 | None = None
    weight: float = 0.0
    unfit: Bools | None = None
    min_score: float = -inf

    def ranked(
        self,
        query_ids: Sequence[str],
        queries: Floats,
        k: int,
        drop: Mapping[str, str] | None = None,
        texts: Sequence[str] = (),
    ) -> Run:
        """Rank as `Searchable.ranked`; rankings of a hybrid have both scores.

        Args:
            query_ids: Q of them.
            queries: their vectors, [Q, W], not normalised.
            k: documents per query.
            drop: per query id, a docid to leave out.
            texts: of the queries; needed for words and BM25.

        Raises:
            UserError: as `Searchable.ranked` does.
        """
        queries, drop = self.mixed(queries, texts) if self.mixed else queries, drop or {}
        if not self.bm25:
            run = self.documents.ranked(query_ids, queries, k, drop)
        else:
            check_depth(k)
            docids = self.bm25.docids
            rows_of = docids.find(drop.values()) if drop else {}
            own = np.array([rows_of.get(drop.get(name, ""), -1) for name in query_ids], np.int64)
            wanted = max(k, HYBRID_DEPTH) + bool(drop)
            documents = self.documents.deeper(wanted)
            depth = min(wanted, documents.deepest)
            scores, rows = np.empty((len(own), 0), np.float32), np.empty((len(own), 0), np.int64)
            if depth:
                scores, rows = documents.search(queries, depth)
                rows[~answerable(queries, self.documents.dim)] = -1
            hits, how = [Hits(scores, rows).without(own, depth)], (self.weight, k, own, self.unfit)
            run = self.bm25.blend(hits, texts, *how, with_parts=True)[0].run(query_ids, docids)
        if self.min_score == -inf:
            return run
        return Run({name: each.down_to(self.min_score) for name, each in run.rankings.items()})
