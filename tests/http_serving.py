"""`m2dr serve` as a process of its own, and requests to it."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shell import COMMAND, ENVIRONMENT

CPU = ("--device", "cpu", "--dtype", "fp32")
STARTS = 120.0  # seconds in which a server must answer


@dataclass(frozen=True)
class World:
    """A corpus, a model, and where its index is."""

    corpus: Path
    model: Path
    root: Path
    home: Path


@dataclass
class Reply:
    """An answer of a server."""

    status: int
    data: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:  # what JSON can hold
        return json.loads(self.data)

    @property
    def message(self) -> str:
        """The sentence of an error."""
        return str(self.json["error"]["message"])


class Server:
    """A running server. Its log is a file."""

    def __init__(
        self, *words: str | Path, cwd: Path, command: Sequence[object] = COMMAND, **variables: str
    ) -> None:
        """Start it on a free port, and wait until it answers."""
        self.log = cwd / f"serve-{time.monotonic_ns()}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*map(str, command), "serve", "--port", "0", *map(str, words)], cwd=cwd,
                env={**ENVIRONMENT, **variables}, stdout=log, stderr=log,
            )  # fmt: skip
        end = time.monotonic() + STARTS
        while "Serving at " not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.05)
        self.url = self.log.read_text().split("Serving at ")[1].split()[0]
        while self.get("/health", wait=True).status != 200:
            time.sleep(0.02)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def get(self, path: str, wait: bool = False, **headers: str) -> Reply:
        try:
            return send(self.url + path, None, headers)
        except ConnectionError:
            if not wait:
                raise
            return Reply(0, b"", {})

    def post(self, path: str, body: object, **headers: str) -> Reply:
        """Send JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return send(self.url + path, data, {"Content-Type": "application/json", **headers})

    def search(self, **body: object) -> dict[str, Any]:
        reply = self.post("/search", body)
        assert reply.status == 200, reply.data
        return reply.json

    def hits(self, **body: object) -> list[str]:
        """Docids of the only query."""
        return [hit["docid"] for hit in self.search(**body)["results"][0]["hits"]]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End it; its exit code."""
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, how)
        return self.process.wait(60)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)


def send(url: str, data: bytes | None, headers: Mapping[str, str], method: str = "") -> Reply:
    request = urllib.request.Request(url, data, dict(headers), method=method or None)
    try:
        with urllib.request.urlopen(request, timeout=60) as found:
            return Reply(found.status, found.read(), dict(found.headers.items()))
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, error.read(), dict(error.headers.items()))
    except urllib.error.URLError as error:
        raise ConnectionError(str(error.reason)) from error


def texts_of(folder: Path) -> Sequence[str]:
    """Texts of the queries of a corpus in the layout of BEIR."""
    lines = (folder / "queries.jsonl").read_text().splitlines()
    return [json.loads(line)["text"] for line in lines]
