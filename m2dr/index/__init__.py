"""Indexes: vectors on disk and every way to search them."""
