"""Encoders: models on disk, and the embeddings of each layer and prefix that they give."""
