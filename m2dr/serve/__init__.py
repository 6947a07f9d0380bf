"""Serve indexes over HTTP: search, embeddings, and a page to compare cuts on."""
