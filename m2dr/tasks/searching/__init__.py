"""Queries are answered from an index that was built before."""
