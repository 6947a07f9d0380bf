"""Serve indexes over HTTP: search, embeddings, and a page to compare cuts on."""

from m2dr.core.errors import require

require("fastapi", "uvicorn", "prometheus_client")
