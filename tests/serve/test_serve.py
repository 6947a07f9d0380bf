"""`m2dr serve` answers what the library finds, refuses in one form, and drains at its end."""

import asyncio
import base64
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from http_serving import CPU, Reply, Server, World, send, texts_of
from openai import OpenAI, UnprocessableEntityError

from m2dr import Encoder, Index, open_index
from m2dr.core.errors import UserError
from m2dr.core.files import read_record, write_record
from m2dr.core.records import EXITS_FILE, Cut, IndexExits
from m2dr.core.requests import IndexRequest, SearchRequest, ServeRequest
from m2dr.evaluation.grid import PROVENANCE, Grid, Provenance, write_grid
from m2dr.index.folder import IndexFolder
from m2dr.serve import service
from m2dr.serve.service import Service, find_grid
from m2dr.tasks.indexing.index import index_corpus
from m2dr.tasks.query import QueryEncoders

pytestmark = pytest.mark.filterwarnings("ignore:Cut ", "ignore:The words of")
QUERIES = ("read the file", "open a path and close it", "sort")
TOKEN = "a-token-of-a-test"


@pytest.fixture(scope="module")
def index(world: World) -> Index:
    return open_index(world.corpus, model=world.model, root=world.root, device="cpu", dtype="fp32")


@pytest.fixture(scope="module")
def guarded(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a token and narrow limits."""
    limits = ("--token-env", "SERVE_TOKEN", "--max-body", "4000")
    folder = tmp_path_factory.mktemp("guarded")
    with Server("--index", world.home, *CPU, *limits, cwd=folder, SERVE_TOKEN=TOKEN) as running:
        yield running


def ask(server: Server, body: object, path: str = "/search", token: str = TOKEN) -> Reply:
    return server.post(path, body, Authorization=f"Bearer {token}")


@pytest.mark.parametrize("layer", [0, 1, 4])
@pytest.mark.parametrize("dim", [16, 32])
def test_search_ranks_as_the_library(server: Server, index: Index, layer: int, dim: int) -> None:
    expected = index.search(QUERIES, layer=layer, dim=dim, k=7)

    answer = server.search(queries=QUERIES, layer=layer, dim=dim, k=7)

    assert answer["cut"] == f"L{layer}D{dim}"
    for mine, theirs in zip(answer["results"], expected, strict=True):
        assert [hit["docid"] for hit in mine["hits"]] == [hit.docid for hit in theirs.hits]
        scores = [hit["score"] for hit in mine["hits"]]
        np.testing.assert_allclose(scores, [hit.score for hit in theirs.hits], atol=1e-5)
        for hit, other in zip(mine["hits"], theirs.hits, strict=True):
            assert f"{hit['title']} {hit['text']}" == other.text


def test_dim_that_was_not_built_is_scanned(server: Server, index: Index) -> None:
    expected = index.searcher(dim=8, engine="exact").search(QUERIES[0]).hits

    assert server.hits(query=QUERIES[0], dim=8) == [hit.docid for hit in expected]


@pytest.mark.parametrize(("hybrid", "weight"), [(True, 0.4), (0.7, 0.7), (False, 0), (None, 0)])
def test_words_beside_vectors(
    server: Server, index: Index, hybrid: float | None, weight: float
) -> None:
    expected = index.search(QUERIES, layer=1, dim=16, k=7, hybrid=hybrid)

    answer = server.search(queries=QUERIES, layer=1, dim=16, k=7, hybrid=hybrid)

    assert answer["hybrid"] == weight
    for mine, theirs in zip(answer["results"], expected, strict=True):
        for hit, other in zip(mine["hits"], theirs.hits, strict=True):
            assert hit["score"] == pytest.approx(other.score, abs=1e-4)
            assert hit.get("bm25_score") == pytest.approx(other.bm25_score)


@pytest.mark.parametrize(("layer", "hybrid"), [(0, None), (0, 0.4), (2, None), (4, None)])
def test_hits_are_explained(server: Server, index: Index, layer: int, hybrid: float | None) -> None:
    asked = {"layer": layer, "dim": 16, "k": 7, "hybrid": hybrid}
    expected = index.search(QUERIES, **asked)

    answer = server.search(queries=QUERIES, explain=True, compare=True, **asked)

    for mine, theirs in zip(answer["results"], expected, strict=True):
        for hit, other in zip(mine["hits"], theirs.hits, strict=True):
            assert hit["explain"] == pytest.approx(other.explain(), abs=1e-4)
            assert sum(hit["explain"].values()) == pytest.approx(hit["score"], abs=1e-5)
        assert all(hit["explain"] for hit in mine["full"])
    assert "explain" not in server.search(query=QUERIES[0], **asked)["results"][0]["hits"][0]


def test_hits_of_a_least_score(server: Server, index: Index) -> None:
    every = index.search(QUERIES[0], layer=0, dim=16, k=7)
    asked = {"query": QUERIES[0], "layer": 0, "dim": 16, "k": 7}

    answer = server.search(**asked, min_score=every[3].score)

    assert len(answer["results"][0]["hits"]) == sum(h.score >= every[3].score for h in every)
    refused = server.post("/search", asked | {"min_score": "p99"})
    assert (refused.status, refused.json["error"]["param"]) == (422, "min_score")


def test_words_in_queries(server: Server) -> None:
    """Layer 0 is words already; this index has none for the full model."""
    assert server.search(query=QUERIES[0], layer=0, query_mix=True)["query_mix"] == 0
    refused = server.post("/search", {"query": QUERIES[0], "query_mix": 0.3})
    assert (refused.status, refused.json["error"]["param"]) == (422, "query_mix")
    assert "no exits fitted on its documents" in refused.message


def test_untrained_cut_is_said(server: Server) -> None:
    assert server.search(query=QUERIES[0], dim=8).get("warning") is None
    assert "L4D4 was not trained" in server.search(query=QUERIES[0], dim=4)["warning"]
    assert "tokens were cut: 1 of 1." in server.search(query="open " * 999, dim=8)["warning"]


def test_full_model_beside_a_cut(server: Server) -> None:
    answer = server.search(query=QUERIES[0], layer=1, dim=16, k=3, compare=True)
    (result,) = answer["results"]
    cut, full = server.hits(query=QUERIES[0], layer=1, dim=16), server.hits(query=QUERIES[0])

    assert [hit["docid"] for hit in result["full"]] == full[:3]
    assert result["overlap"] == len({*cut} & {*full}) / 10
    assert answer["full_times"]["encode_ms"] > 0


def test_batches_keep_answers_apart(server: Server, world: World) -> None:
    texts = texts_of(world.corpus)
    cuts = ((4, 32, 5), (1, 16, 3), (0, 8, 4))
    cases = [(text, layer, dim, k) for text in texts for layer, dim, k in cuts]

    def hits(case: tuple[str, int, int, int]) -> list[str]:
        text, layer, dim, k = case
        return server.hits(query=text, layer=layer, dim=dim, k=k)

    expected = [hits(case) for case in cases]
    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(hits, cases * 2)) == expected * 2

    lines = server.get("/metrics").data.decode().splitlines()
    counts = dict(line.rsplit(" ", 1) for line in lines if line.startswith("m2dr_batch_texts_"))
    assert float(counts["m2dr_batch_texts_sum"]) > float(counts["m2dr_batch_texts_count"])
    assert any(
        line.startswith('m2dr_requests_total{path="/search",status="200"}') for line in lines
    )


@pytest.mark.parametrize("side", ["query", "document"])
def test_client_of_openai(server: Server, world: World, side: str) -> None:
    model = Encoder(world.model, layer=4, dim=16, device="cpu", dtype="fp32")
    encode = model.encode_queries if side == "query" else model.encode_documents

    with OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        name = client.models.list().data[0].id
        for how in ({}, {"encoding_format": "float"}):
            answer = client.embeddings.create(
                input=list(QUERIES), model=name, dimensions=16,
                extra_body={"layer": 4, "side": side}, **how,
            )  # fmt: skip
            vectors = [row.embedding for row in answer.data]
            np.testing.assert_allclose(vectors, encode(QUERIES), atol=1e-5)
    assert answer.usage.total_tokens > len(QUERIES)


def test_as_many_and_as_long_texts_as_clients_of_openai_send(server: Server, world: World) -> None:
    model = Encoder(world.model, layer=4, dim=16, device="cpu", dtype="fp32")
    texts = [f"{QUERIES[row % len(QUERIES)]} {row}" for row in range(2047)] + ["word " * 20_000]

    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        asked = {"model": "tiny", "dimensions": 16, "extra_body": {"layer": 4}}
        answer = client.embeddings.create(input=texts, **asked)
        with pytest.raises(UnprocessableEntityError, match="at most 2048 items"):
            client.embeddings.create(input=["a"] * 2049, **asked)

    vectors = [row.embedding for row in answer.data]
    np.testing.assert_allclose(vectors, model.encode_documents(texts), atol=1e-5)


def test_null_is_as_absent_and_base64_holds_the_floats(server: Server) -> None:
    name = server.get("/models").json["indexes"][0]["name"]
    body = {"input": "read", "model": name}
    nulls = dict.fromkeys(("dimensions", "encoding_format", "layer", "side", "user"))

    plain, null, coded = (
        server.post("/v1/embeddings", body | more).json["data"][0]["embedding"]
        for more in ({}, nulls, {"encoding_format": "base64"})
    )

    assert plain == null
    read = np.frombuffer(base64.b64decode(coded), "<f4")
    np.testing.assert_array_equal(read, np.array(plain, np.float32))
    optional = ("queries", "k", "layer", "dim", "filter", "index", "compare")
    assert server.hits(query="read", **dict.fromkeys(optional)) == server.hits(query="read")


def test_what_openai_takes_is_taken(server: Server) -> None:
    def vector(path: str = "/v1/embeddings", **more: object) -> list[float]:
        reply = server.post(path, {"input": "read", **more})
        assert reply.status == 200, reply.data
        return list(reply.json["data"][0]["embedding"])

    plain = vector(model="tiny", dimensions=16)
    assert vector(model="tiny", dimensions="16", user=5) == plain
    assert vector("/v1/embeddings/", dimensions=16) == plain
    assert server.post("/v1/embeddings", {"input": "read"}).json["model"] == "tiny-fitted"
    other = server.post("/v1/embeddings", {"input": "read", "dim": 16})
    assert (other.status, other.message) == (422, "There is no field dim.")
    for ids in ([1, 2, 3], [[1, 2], [3]]):
        refused = server.post("/v1/embeddings", {"input": ids})
        told = "input.0 should be a text; token ids are not taken."
        assert (refused.status, refused.message) == (422, told)
    for dim in ("many", True, "0", "1.5"):
        refused = server.post("/v1/embeddings", {"input": "read", "dimensions": dim})
        assert refused.status == 422
        assert refused.message == "dimensions should be a valid integer."


def test_headers_alone(server: Server, guarded: Server) -> None:
    for path in ("/", "/health", "/metrics", "/models", "/v1/models", "/openapi.json"):
        whole, head = server.get(path), send(f"{server.url}{path}", None, {}, "HEAD")
        assert (head.status, head.data) == (200, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]
    assert send(f"{server.url}/search", None, {}, "HEAD").status == 405
    assert send(f"{guarded.url}/models", None, {}, "HEAD").status == 401


def test_connections_are_no_queue_and_end_without_headers(world: World, tmp_path: Path) -> None:
    """One text may wait; neither open connections nor halves of one request count as one."""
    limits = ("--queue", "1", "--timeout", "5")
    with Server("--index", world.home, *CPU, *limits, cwd=tmp_path) as server:
        held = [socket.create_connection(("127.0.0.1", server.port), 60) for _ in range(3)]
        held[1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Never")
        held[2].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while b'"ok"' not in held[2].recv(4096):
            pass
        held[2].sendall(b"GET /health HTTP/1.1\r\n")

        assert server.get("/health").status == 200
        assert server.search(query=QUERIES[0], dim=16, compare=True)["full_times"]
        assert [each.recv(1) for each in held] == [b""] * 3
        for each in held:
            each.close()


@pytest.mark.usefixtures("here")
def test_a_grid_of_other_exits_is_not_shown() -> None:
    folder = Path("results/c/test/m")
    grid = Grid("m", "c", "test", 2, {Cut(1, 8): {"nDCG@10": 0.5}})
    write_grid(grid, folder)
    write_record(folder / PROVENANCE, Provenance("", "m", "c", "test", "print", {}, "exits"))

    for given in (None, folder):
        assert find_grid(given, "c", "print", "exits", {}, "") == grid
    assert find_grid(None, "c", "print", "", {}, "") is None
    assert find_grid(None, "c", "print", "exits", {"hybrid": 0.4}, "") is None
    assert find_grid(None, "c", "print", "exits", {}, ".queries-of-other") is None
    for exits, ending in (("", ""), ("exits", ".queries-of-other")):
        with pytest.raises(UserError, match="other exits, queries or documents"):
            find_grid(folder, "c", "print", exits, {}, ending)


def test_a_query_without_a_known_word_has_no_vector(server: Server) -> None:
    query = {"model": "tiny", "side": "query", "layer": 0, "input": ["read", "zzzz"]}

    zeros = server.post("/v1/embeddings", query)

    assert zeros.status == 422
    assert zeros.message == "No word of number 1 of input is known at layer 0, so it has no vector."


def test_models_and_costs(server: Server) -> None:
    (index,) = server.get("/models").json["indexes"]

    assert (index["layers"], index["dims"]) == ([0, 1, 2, 3, 4], [8, 16, 32])
    assert (index["full"], index["documents"], index["grid"]) == ("L4D32", 40, None)
    costs = {row["cut"]: row for row in index["costs"]}
    assert len(costs) == 15
    assert costs["L4D32"]["bytes_per_document"] == 128
    work = [costs[f"L{layer}D32"]["multiply_adds"] for layer in index["layers"]]
    assert work == sorted(work)


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"{", 400, "not JSON"),
        (b"", 422, "Send a JSON object as application/json."),
        ({"query": "a", "cut": 1}, 422, "There is no field cut."),
        (b'{"query": "\\ud800"}', 422, "query"),
        ({}, 422, "Give `query`"),
        ({"query": "a", "k": "10"}, 422, "k"),
        ({"query": "a", "layer": 5}, 422, "0, 1, 2, 3, 4"),
        ({"query": "a", "index": "../../etc/passwd"}, 404, "no index"),
        ({"queries": ["a"] * 30, "k": 1000}, 422, "20000 documents"),
        ({"query": "a", "filter": "(("}, 422, ""),
        ({"query": "a" * 5000}, 413, "4000 bytes"),
    ],
)
def test_refusals(guarded: Server, body: object, status: int, told: str) -> None:
    reply = ask(guarded, body)

    assert (reply.status, told in reply.message) == (status, True), reply.data
    assert "\n" not in reply.message


def test_token(guarded: Server) -> None:
    for token in ("", "wrong", TOKEN + "x", TOKEN[:-1]):
        reply = ask(guarded, {"query": "a"}, token=token)
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    for path in ("/models", "/v1/models", "/metrics"):
        assert guarded.get(path).status == 401
    assert guarded.get("/health").status == guarded.get("/").status == 200
    assert ask(guarded, {"query": "a"}).status == 200


def test_links_of_the_page_lead_somewhere(server: Server) -> None:
    page = server.get("/").data.decode()
    links = {each for each in re.findall(r'(?:href|src)="([^"]*)"', page) if each[0] not in "#d"}

    assert links
    assert {link: server.get(f"/{link}").status for link in links} == dict.fromkeys(links, 200)


def test_without_torch_a_layer_that_is_not_there_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "find_spec", lambda _: None)
    request = SearchRequest(index=str(world.home), device="cpu", dtype="fp32")

    with pytest.raises(service.Refused, match="tiny has 0, .*; torch is not installed"):
        service.ServedIndex(request, QueryEncoders()).cut(9, None)


def test_names_of_the_web_need_a_token(server: Server, guarded: Server) -> None:
    for name in ("evil.example", "127.0.0.1.evil.example"):
        refused = server.post("/search", {"query": "a"}, Host=name)
        assert (refused.status, "--allow-host" in refused.message) == (400, True)
    for name in ("localhost:8080", "127.0.0.1", "[::1]:80", "app.localhost"):
        assert server.get("/health", Host=name).status == 200
    assert guarded.get("/health", Host="search.example").status == 200


@pytest.fixture
def _hang_ups() -> Iterator[None]:
    """Let servers end at SIGHUP, which those of tests under nohup inherit as ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_hang_ups")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_end_answers_what_has_arrived(world: World, tmp_path: Path, how: signal.Signals) -> None:
    body = json.dumps({"queries": ["read the file"] * 200, "layer": 4}).encode()
    with Server("--index", world.home, *CPU, "--batch-size", "1", cwd=tmp_path) as server:
        statuses: list[int] = []
        threads = [
            threading.Thread(target=lambda: statuses.append(server.post("/search", body).status))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        code = server.stop(how)
        for thread in threads:
            thread.join()

        assert (statuses, code) == ([200] * 8, 0)
        assert "Traceback" not in server.log.read_text()
        lines = [json.loads(e) for e in server.log.read_text().splitlines() if e.startswith("{")]
        times = [datetime.fromisoformat(line["time"]) for line in lines]
        assert len(times) > 8
        assert times == sorted(times)


def test_an_index_that_changes_is_answered_from_one_state(world: World, tmp_path: Path) -> None:
    corpus, root = tmp_path / "corpus", tmp_path / "indexes"
    copytree(world.corpus, corpus)
    request = IndexRequest(
        str(corpus), str(world.model), dims=(16, 32), root=root, device="cpu", dtype="fp32"
    )
    index_corpus(request)
    query = {"query": "read a file", "k": 1000}
    cuts = ({}, {"layer": 0, "dim": 16}, {"layer": 1})
    asked = [query | more for more in (*cuts, {"compare": True, "dim": 24})]
    with Server("--index", root, *CPU, cwd=tmp_path) as server:

        def answers() -> list[list[str]]:
            """Documents of each answer; last bits of a score depend on what is encoded beside."""
            found = [server.search(**body)["results"][0] for body in asked]
            return [[hit["docid"] for hit in one["hits"] + one.get("full", [])] for one in found]

        before, seen = answers(), []
        path = corpus / "corpus.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()][5:]
        lines[0]["text"] = "Read a file, and a file again."
        lines += [{"_id": f"n{n}", "text": f"A file {n}.", "metadata": {"a": 1}} for n in range(9)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with ThreadPoolExecutor(1) as pool:
            syncing = pool.submit(index_corpus, request)
            while not syncing.done():
                seen.append(answers())
        # What is not open waits for the new state.
        filtered = server.hits(**query, layer=2, filter="a = 1")
        hybrid = server.hits(**query, hybrid=True)
        end = time.monotonic() + 60
        while (after := answers()) == before:
            assert time.monotonic() < end, server.log.read_text()

        def dims() -> list[int]:
            return list(server.get("/models").json["indexes"][0]["dims"])

        assert dims() == [8, 16, 32]
        index_corpus(replace(request, dims=(24,), engines=("hnsw",)))  # built beside, and found
        while dims() != [8, 16, 24, 32]:
            assert time.monotonic() < end + 60, "dim 24 was not found"
            time.sleep(0.1)
        assert "Traceback" not in server.log.read_text()

    index = open_index(root, device="cpu", dtype="fp32")
    expected = [index.search("read a file", k=1000, **cut) for cut in cuts]
    assert after[:3] == [[hit.docid for hit in answer] for answer in expected]
    assert hybrid == [hit.docid for hit in index.search("read a file", k=1000, hybrid=True)]
    assert sorted(filtered) == [f"n{n}" for n in range(9)]
    for number, states in enumerate(zip(before, after, strict=True)):
        assert all(each[number] in states for each in seen)


@pytest.mark.usefixtures("exits_of_few")
def test_words_fitted_again_on_disk_are_warned_of_until_they_answer(
    world: World, tmp_path: Path
) -> None:
    named = str(world.corpus), str(world.model)
    cpu = {"root": tmp_path, "device": "cpu", "dtype": "fp32"}
    index_corpus(IndexRequest(*named, **cpu))
    path = IndexFolder.at(tmp_path).exits / EXITS_FILE
    right = read_record(path, IndexExits)
    write_record(path, replace(right, texts="of others"))
    request = ServeRequest((str(tmp_path),), device="cpu", dtype="fp32")

    async def answers() -> list[dict[str, Any]]:
        server = Service(request)
        how = ["a"], None, "query", 0, None, False
        try:
            server.indexes["tiny"].open(Cut(0, 32))
            write_record(path, right)  # as m2dr index fit does
            old = [await server.search(["a"], {"layer": 0}, None, False)]
            old.append(await server.embeddings(*how))
            await server._reopened("tiny")
            new = [await server.search(["a"], {"layer": 0}, None, False)]
            return [*old, *new, await server.embeddings(*how)]
        finally:
            server.batcher.stop()

    told = [answer.get("warning") for answer in asyncio.run(answers())]
    assert told[2:] == [None, None]
    assert all("The words of" in each and "were fitted before" in each for each in told[:2])


# The description


# Layers, dims, indexes and filters that a description allows need not be there.
LEFT_OUT = "positive_data_acceptance"


def attack(server: Server, folder: Path, examples: int) -> int:
    """Run as many cases per operation; the number of all cases, and what was told."""
    found = subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"), "run", f"{server.url}/openapi.json",
            "--max-examples", str(examples), "--phases", "coverage,fuzzing",
            "--exclude-checks", LEFT_OUT, "--no-color", "--seed", "13",
        ],
        cwd=folder, capture_output=True, text=True, timeout=3000, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-20000:] + found.stderr[-2000:]
    count = re.search(r"(\d[\d,]*) generated", found.stdout)
    assert count, found.stdout
    return int(count[1].replace(",", ""))


def test_no_request_of_the_description_is_answered_otherwise(
    server: Server, tmp_path: Path
) -> None:
    assert attack(server, tmp_path, 10) > 100
