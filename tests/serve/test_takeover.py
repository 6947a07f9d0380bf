"""An index that changes while it is served: no request is lost, and the new version comes soon."""

import asyncio
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient
from http_serving import Reply, Server
from serve_world import CPU, World
from shell import m2dr
from world import make_corpus

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.core.requests import ServeRequest
from m2dr.serve import sources
from m2dr.serve.app import make_app
from m2dr.serve.guard import State
from m2dr.serve.messages import SearchBody
from m2dr.serve.server import _watch
from m2dr.serve.serving import Serving

QUICK = ("--reload-seconds", "0.2", *CPU)
CUTS = ({}, {"layer": 1, "dim": 16}, {"layer": 0, "dim": 8}, {"compare": True, "layer": 2})


@contextmanager
def clients(server: Server, count: int = 4) -> Iterator[list[Reply]]:
    """Clients that search without a pause, at an indexed dim and through the store."""
    replies: list[Reply] = []
    end = threading.Event()

    def search(number: int) -> None:
        while not end.is_set():
            number += 1
            body = {"query": "read the file", "k": 40, **CUTS[number % len(CUTS)]}
            replies.append(server.post("/search", body))

    threads = [threading.Thread(target=search, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    try:
        while len(replies) < 2 * count * len(CUTS):  # all cuts are open from here on
            time.sleep(0.01)
        yield replies
    finally:
        end.set()
        for thread in threads:
            thread.join()


def refusals(replies: list[Reply]) -> set[bytes]:
    return {reply.data for reply in replies if reply.status != 200}


def changed(world: World, *words: str) -> None:
    corpus = ("--corpus", world.corpus, "--model", world.model, "--indexes", world.root)
    found = m2dr("index", *words, *map(str, corpus), cwd=world.root.parent)
    assert found.returncode == 0, found.stderr


def until(server: Server, count: int, seconds: float = 30) -> None:
    """Wait until that many documents are served."""
    end = time.monotonic() + seconds
    while server.get("/models").json["indexes"][0]["documents"] != count:
        assert time.monotonic() < end, server.log.read_text()[-3000:]
        time.sleep(0.05)


def wait_for(holds: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_changed_index_is_taken_over_under_load(copied: World, tmp_path: Path) -> None:
    (tmp_path / "more.jsonl").write_text('{"_id": "new", "title": "", "text": "read the file"}\n')
    with Server("--index", copied.home, *QUICK, cwd=tmp_path) as server:
        with clients(server) as replies:
            changed(copied, "add", str(tmp_path / "more.jsonl"), *CPU)
            until(server, 41)
            changed(copied, "delete", "d0", "d1")
            until(server, 39)
            changed(copied, "compact")
            time.sleep(1)

        assert len(replies) > 20
        assert not refusals(replies)
        last = {hit["docid"] for hit in replies[-1].json["results"][0]["hits"]}
        assert "new" in last
        assert last.isdisjoint({"d0", "d1"})
        assert server.events("takeover")
        for cut in CUTS:
            assert len(server.hits(query="read", k=40, **cut)) == 39


def test_an_index_encoded_anew_is_taken_over_under_load(copied: World, tmp_path: Path) -> None:
    corpus = tmp_path / copied.corpus.name  # as the same name, so that it has the same folder
    shutil.copytree(copied.corpus, corpus)
    world = World(corpus, copied.model, copied.root, copied.home)
    with Server("--index", copied.home, "--corpus", corpus, *QUICK, cwd=tmp_path) as server:
        with clients(server) as replies:
            shutil.rmtree(corpus)
            make_corpus(corpus, 60)
            changed(world, "corpus", "--overwrite", "--dim", "16,32", *CPU)
            until(server, 60)

        assert not refusals(replies)
        assert len(server.hits(query="read the file", k=60)) == 60


def test_an_index_that_vanishes_goes_on_being_served(copied: World, tmp_path: Path) -> None:
    with Server("--index", copied.home, *QUICK, cwd=tmp_path) as server:
        before = server.hits(query="read the file")
        scanned = server.hits(query="read", dim=24)
        shutil.rmtree(copied.root)
        time.sleep(1)

        assert server.hits(query="read the file") == before
        assert server.hits(query="read", dim=24) == scanned
        reply = server.post("/search", {"query": "read", "dim": 12})  # was not open
        assert (reply.status, "Traceback" in reply.message) == (503, False)
        assert str(copied.home) in next(iter(server.get("/ready").json["problems"].values()))
        assert server.events("takeover")[0]["level"] == "warning"
        assert server.stop(signal.SIGINT) == 0


def test_an_index_that_comes_back_has_no_problem(copied: World, tmp_path: Path) -> None:
    with Server("--index", copied.home, *QUICK, cwd=tmp_path) as server:
        copied.home.rename(tmp_path / "away")
        server.events("takeover", 1)
        assert server.get("/ready").json["problems"]

        (tmp_path / "away").rename(copied.home)

        server.events("takeover", 2)
        assert server.get("/ready").json["problems"] == {}
        changed(copied, "delete", "d0")
        until(server, 39)


def test_an_error_of_the_disk_ends_no_watch_and_is_told(
    copied: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that cannot be read now may be readable at the next look."""
    asked = ServeRequest(
        indexes=(str(copied.home),), reload_seconds=0.05, device="cpu", dtype="fp32"
    )
    serving, stop = Serving(asked), threading.Event()
    (name,) = serving.indexes
    watch = threading.Thread(target=_watch, args=(serving, stop))

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(copied.home))

    with monkeypatch.context() as broken:
        broken.setattr(sources.Path, "glob", denied)
        watch.start()
        wait_for(lambda: name in serving.problems)
        client = TestClient(make_app(serving, State()), raise_server_exceptions=False)
        for path, body in (("/search", {"query": "a", "dim": 12}), ("/embed", {"texts": ["a"]})):
            broken.setattr(serving.encoders, "find", lambda _: None)
            broken.setattr(serving.encoders, "get", denied)
            reply = client.post(path, json=body)
            assert (reply.status_code, reply.json()["error"]["message"]) == (
                503, f"{copied.home} cannot be read or written: Permission denied.",
            )  # fmt: skip

    wait_for(lambda: name not in serving.problems)
    assert watch.is_alive()
    stop.set()
    watch.join()
    serving.batcher.stop()


def test_a_search_goes_on_with_the_version_that_another_thread_opened() -> None:
    """The files change below a search, and the watching thread is the first to see it."""
    old, new = SimpleNamespace(cut=lambda *_: Cut(1, 8)), SimpleNamespace(cut=lambda *_: Cut(1, 8))
    serving = Serving.__new__(Serving)
    serving.request, serving.indexes = ServeRequest(), {"docs": old}  # type: ignore[dict-item]

    async def answer(name: str, index: object, *_: object) -> object:
        if index is old:
            serving.indexes = {name: new}  # type: ignore[dict-item]
            raise UserError("docs was changed after its index was opened.")
        return "answered"

    serving._answer = answer  # type: ignore[assignment, method-assign]

    assert asyncio.run(serving.search(SearchBody(query="a"))) == "answered"
