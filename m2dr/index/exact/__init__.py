"""The exact engine: full scans that compare every document, at all dims in one pass."""

from m2dr.index.exact.exact_index import ExactIndex, prefix_runs, prefix_top_k

__all__ = ["ExactIndex", "prefix_runs", "prefix_top_k"]
