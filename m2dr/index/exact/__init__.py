"""A full scan of a store: every document is compared, and every dim in the same pass."""

from m2dr.index.exact.index import ExactIndex
from m2dr.index.exact.runs import prefix_runs, prefix_top_k

__all__ = ["ExactIndex", "prefix_runs", "prefix_top_k"]
