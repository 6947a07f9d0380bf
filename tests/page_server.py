"""A server that speaks the HTTP of `m2dr serve` from made-up rankings, for tests of its page."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "m2dr" / "serve" / "page"
TYPES = {"index.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}


def served_index(name: str = "books", **changes: Any) -> dict[str, Any]:  # JSON
    """Return an index as GET /models has it: layers 0 to 6, with a grid whose best is the last."""
    layers = changes.get("layers", [0, 2, 4, 6])
    dims = changes.get("dims", [32, 128, 384])
    cuts = [(layer, dim) for layer in layers for dim in dims]
    costs = [
        {"cut": f"L{layer}D{dim}", "layer": layer, "dim": dim, "bytes_per_document": 4 * dim,
         "multiply_adds": 20_000_000 * layer + 1000 * dim}
        for layer, dim in cuts
    ]  # fmt: skip
    cells = [{"layer": a, "dim": b, "value": (a + b / 100) / 10} for a, b in cuts]
    return {
        "name": name, "corpus": name, "model": f"models/{name}-fitted", "documents": 1234,
        "layers": layers, "dims": dims, "full": f"L{layers[-1]}D{dims[-1]}",
        "similarity": "cosine", "fields": [], "examples": [f"Example {n} of {name}" for n in range(3)], "costs": costs,
        "grid": {"measure": "nDCG@10", "cells": cells},
    } | changes  # fmt: skip


@dataclass
class FakeServer:
    """What the server answers, and what it was asked."""

    indexes: list[dict[str, Any]] = field(default_factory=lambda: [served_index()])
    title: str = "Title"  # each title begins so
    delays: dict[str, float] = field(default_factory=dict)  # query -> seconds
    refusals: dict[str, tuple[int, Any]] = field(default_factory=dict)  # query -> status, body
    token: str = ""
    searches: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def hits(self, query: str, layer: int, dim: int, k: int) -> list[dict[str, Any]]:
        """Rank documents 0 to 19; the smaller the cut, the more neighbours change places."""
        order = list(range(20))
        for place in range(layer, 20 - layer * 2 - dim // 64, 6):
            order[place : place + 8] = reversed(order[place : place + 8])
        return [
            {"rank": rank, "docid": f"d{one}", "score": 1 / rank,
             "title": f"{self.title} {one} of {query}", "text": f"Text {one}.\nSecond line."}
            for rank, one in enumerate(order[:k], 1)
        ]  # fmt: skip

    def search(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer POST /search."""
        index = next(one for one in self.indexes if body.get("index") in (None, one["name"]))
        last = index["layers"][-1], index["dims"][-1]
        layer, dim = body.get("layer", last[0]), body.get("dim", last[1])
        hits = self.hits(body["query"], layer, dim, body["k"])
        result: dict[str, Any] = {"query": body["query"], "hits": hits}
        if body.get("explain"):
            for hit in hits:
                words = {word: hit["score"] / 2 for word in body["query"].split()}
                hit["explain"] = words | {"(rest of the query)": -0.1}
        times = {"tokenise_ms": 0.1, "encode_ms": 0.2 + layer, "search_ms": dim / 100}
        told = {"index": index["name"], "cut": f"L{layer}D{dim}", "layer": layer, "dim": dim,
                "results": [result], "times": times}  # fmt: skip
        if body.get("compare"):
            full = self.hits(body["query"], *last, 10)
            shared = {hit["docid"] for hit in full} & {hit["docid"] for hit in hits}
            result |= {"full": full, "overlap": len(shared) / len(full)}
            told["full_times"] = {"tokenise_ms": 0.1, "encode_ms": 6.2, "search_ms": 3.84}
        return told


class _Handler(BaseHTTPRequestHandler):
    fake: FakeServer

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        name = "index.html" if self.path == "/" else self.path[1:]
        if name in TYPES:
            self._send(200, (PAGE / name).read_bytes(), TYPES[name])
        elif name != "models":
            self._send(404, {"error": {"message": "There is no such page."}})
        elif self._welcome():
            self._send(200, {"indexes": self.fake.indexes})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._welcome():
            return
        self.fake.searches.append(body)
        time.sleep(self.fake.delays.get(body["query"], 0))
        status, told = self.fake.refusals.get(body["query"], (200, None))
        self._send(status, told or self.fake.search(body))

    def _welcome(self) -> bool:
        wanted = f"Bearer {self.fake.token}"
        if not self.fake.token or self.headers.get("Authorization") == wanted:
            return True
        said = "The token is not that of this server."
        if not self.headers.get("Authorization"):
            said = "This server asks for a token."
        self._send(401, {"error": {"message": said}})
        return False

    def _send(self, status: int, told: object, kind: str = "application/json") -> None:
        data = told if isinstance(told, bytes) else json.dumps(told).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the page no longer waits for it


@contextmanager
def running(fake: FakeServer) -> Iterator[FakeServer]:
    """Serve on a free port of the loopback interface."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": fake}))
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
