"""A full scan of a store: every document is compared, and every dim in the same pass.

`search` chooses how: `many` divides queries among threads (`sharing`), `few` documents; `scan` is
what both do. `source` reads vectors and `tiles` widens them; `gathered` lets through what may be
among the best, and `best` keeps those.
"""

from m2dr.index.exact.index import ExactIndex
from m2dr.index.exact.runs import prefix_runs, prefix_top_k

__all__ = ["ExactIndex", "prefix_runs", "prefix_top_k"]
