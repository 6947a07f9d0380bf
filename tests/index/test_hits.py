"""What queries found, as arrays."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from m2dr.core.records import Ranking
from m2dr.index.hits import Hits


@given(seed=st.integers(0, 999), k=st.integers(1, 6))
def test_leaving_out_the_own_document_is_what_a_ranking_does(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    scores = -np.sort(-rng.integers(0, 4, (5, k + 1))).astype(np.float32)
    rows = np.stack([rng.permutation(k + 1) for _ in range(5)])
    # Equal scores: the higher id first.
    rows = np.stack([line[np.lexsort((-line, -s))] for line, s in zip(rows, scores, strict=True)])
    own = rng.integers(-1, k + 3, 5).tolist()

    hits = Hits(scores, rows).without(np.array(own), k)
    kept, values = hits.rows, hits.scores

    for line in range(5):
        docids = [f"{row:03d}" for row in rows[line]]
        expected = Ranking.of(docids, scores[line], k, drop=f"{own[line]:03d}")
        held = kept[line] >= 0
        assert tuple(f"{row:03d}" for row in kept[line][held]) == expected.docids
        assert tuple(values[line][held]) == expected.scores
