"""A full scan of a store: every document is compared, and every dim in the same pass.

`search` chooses how: `many` divides queries among threads (`sharing`), `few` documents; `scan` is
what both do. `source` reads vectors and `tiles` widens them. `best` keeps the best as `keys`, of
what `gathered` lets through; where many scores are to be looked through, `compiled` does both.
"""

from m2dr.index.exact.index import ExactIndex
from m2dr.index.exact.runs import prefix_runs, prefix_top_k

__all__ = ["ExactIndex", "prefix_runs", "prefix_top_k"]
