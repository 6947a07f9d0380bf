"""Corpora become stores and indexes, here, on several machines, or from elsewhere."""
