"""Serve indexes over HTTP: search, embeddings, and a page to compare cuts on."""

from m2dr.core.errors import require

for _name in ("fastapi", "uvicorn", "prometheus_client"):
    require(_name, _name, "serve")
