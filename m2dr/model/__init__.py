"""Tokens become embeddings."""
