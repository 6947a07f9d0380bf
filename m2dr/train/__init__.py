"""Embeddings become one number, and the number a better encoder."""
