"""Whatever is sent to `m2dr serve`, the answer is a documented status and one sentence."""

import asyncio
import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_serving import Reply, Server
from pydantic import BaseModel
from serve_world import CPU, World
from shell import m2dr

from m2dr.serve.messages import EmbedBody, EmbeddingsBody, HttpError, SearchBody, read_body

TOKEN = "a-token-of-a-test"


@pytest.fixture(scope="module")
def guarded(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a token and narrow limits."""
    limits = (
        "--token-env", "SERVE_TOKEN", "--max-body", "4000", "--max-texts", "3", "--max-k", "20",
        "--max-characters", "100", "--timeout", "2", "--queue", "40", "--log-queries",
        "--max-hits", "30",
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("guarded")
    with Server("--index", world.home, *CPU, *limits, cwd=folder, SERVE_TOKEN=TOKEN) as running:
        yield running


def ask(server: Server, body: object, path: str = "/search", token: str = TOKEN) -> Reply:
    return server.post(path, body, Authorization=f"Bearer {token}")


BODIES = [
    (b"", 400, "Invalid JSON"),
    (b"{", 400, "Invalid JSON"),
    (b'{"query": "\xff\xfe"}', 400, "Invalid JSON"),
    (b'{"query": "\\ud800"}', 400, "Invalid JSON"),
    (b"[" * 3000, 400, "Invalid JSON"),
    (b"null", 422, "object"),
    ({}, 422, "Give `query`"),
    ({"query": "a", "queries": ["b"]}, 422, "Give `query`"),
    ({"query": ""}, 422, "query"),
    ({"query": " \n"}, 422, "empty"),
    ({"query": 1}, 422, "query"),
    ({"query": "a", "k": 0}, 422, "k"),
    ({"query": "a", "k": 21}, 422, "20"),
    ({"query": "a", "k": "10"}, 422, "k"),
    (b'{"query": "a", "k": 1e999}', 422, "k"),
    (b'{"query": "a", "k": ' + b"9" * 200 + b"}", 422, "k"),
    ({"query": "a", "layer": 5}, 422, "layers 0, 1, 2, 3, 4"),
    ({"query": "a", "layer": -1}, 422, "layer"),
    ({"query": "a", "dim": 33}, 422, "dims 8, 16, 32"),
    ({"query": "a", "index": "../../etc/passwd"}, 404, "no index"),
    ({"query": "a", "other": 1}, 422, "There is no field 'other'. Known: query, queries, k, layer"),
    ({"query": "a", "dims": 8}, 422, "There is no field 'dims'. Did you mean dim?"),
    ({"query": "a " * 80}, 422, "160 characters; 100"),
    ({"queries": ["a"] * 4}, 422, "4 queries were sent; a request may have 3"),
    ({"queries": ["a", ""]}, 422, "queries"),
    ({"queries": ["a", "b", "c"], "k": 11}, 422, "an answer may have 30 documents"),
    ({"query": "a", "filter": "(" * 101}, 422, "The filter has 101 characters; 100"),
    ({"query": "a" * 5000}, 413, "4000 bytes"),
]


@pytest.mark.parametrize(("body", "status", "told"), BODIES)
def test_a_bad_search_is_told_what_is_wrong(
    guarded: Server, body: object, status: int, told: str
) -> None:
    reply = ask(guarded, body)

    assert (reply.status, told in reply.message) == (status, True), reply.data
    assert "Traceback" not in reply.message
    assert "\n" not in reply.message


@pytest.mark.parametrize("kind", [SearchBody, EmbedBody, EmbeddingsBody])
@pytest.mark.parametrize("item", [1, ""])
def test_of_half_a_million_wrong_items_the_first_is_told(
    kind: type[BaseModel], item: object
) -> None:
    """They are read where all other requests wait."""
    name = {SearchBody: "queries", EmbedBody: "texts", EmbeddingsBody: "input"}[kind]
    body = json.dumps({name: [item] * 500_000, "model": "m"}).encode()
    begun = time.process_time()

    with pytest.raises(HttpError, match=f"{name}.0|token ids"):
        read_body(kind, body)

    assert time.process_time() - begun < 0.2


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({"input": [1, 2, 3], "model": "MODEL"}, 400, "token ids"),
        ({"input": [[1, 2]], "model": "MODEL"}, 400, "token ids"),
        ({"input": [], "model": "MODEL"}, 422, "empty"),
        ({"input": "a", "model": "gpt"}, 404, "no model 'gpt'"),
        ({"input": "a"}, 422, "model"),
        ({"input": "a", "model": "MODEL", "dimensions": 99}, 422, "dims"),
        ({"input": "a", "model": "MODEL", "encoding_format": "hex"}, 422, "encoding_format"),
    ],
)
def test_a_bad_request_of_openai_is_told_what_is_wrong(
    guarded: Server, body: dict[str, object], status: int, told: str
) -> None:
    name = guarded.get("/models", Authorization=f"Bearer {TOKEN}").json["indexes"][0]["model"]
    asked = {**body, **({"model": name} if body.get("model") == "MODEL" else {})}

    reply = ask(guarded, asked, "/v1/embeddings")

    assert (reply.status, told in reply.message) == (status, True), reply.data


def test_a_layer_or_a_dim_that_is_not_there_is_named_as_parameter(guarded: Server) -> None:
    for name in ("layer", "dim"):
        refused = ask(guarded, {"query": "a", name: 99})
        assert refused.json["error"]["param"] == name


def test_without_the_token_nothing_is_told(guarded: Server) -> None:
    for token in ("", "wrong", TOKEN + "x", TOKEN[:-1]):
        reply = ask(guarded, {"query": "a"}, token=token)
        assert (reply.status, "token" in reply.message) == (401, True)
        assert reply.headers["www-authenticate"] == "Bearer"
    for path in ("/models", "/metrics", "/docs", "/openapi.json", "/nothing"):
        assert guarded.get(path).status == 401
    assert guarded.get("/health").status == guarded.get("/ready").status == 200
    assert ask(guarded, {"query": "a"}).status == 200


def test_a_name_of_the_web_reaches_only_a_server_with_a_token(
    server: Server, guarded: Server
) -> None:
    for name in ("evil.example", "EVIL.example.:80", "127.0.0.1.evil.example", "localhost.evil"):
        reply = server.post("/search", {"query": "a"}, Host=name)
        assert (reply.status, "--allow-host" in reply.message) == (403, True)
        assert server.get("/", Host=name).status == 403
    for name in ("localhost:8080", "127.0.0.1", "[::1]:80", "a", "app.localhost"):
        assert server.get("/health", Host=name).status == 200
    assert guarded.get("/health", Host="search.example").status == 200


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/page/../../../setup.cfg", "/..%2f..%2fsetup.cfg", "/page.js/../app.py",
     "//etc/passwd", "/%00", "/page.html"],
)  # fmt: skip
def test_no_path_leads_out(server: Server, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", path)  # which does not tidy the path, as urllib does
    reply = connection.getresponse()

    assert reply.status == 404
    assert json.loads(reply.read())["error"]["message"] == "There is no such path, index or model."
    connection.close()


def test_other_methods_and_types_are_refused(server: Server) -> None:
    assert server.get("/search").status == 405
    reply = server.post("/search", b"query=a", **{"Content-Type": "text/plain"})
    assert (reply.status, "application/json" in reply.message) == (415, True)


def test_a_head_is_answered_without_a_body(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("HEAD", "/health")
    reply = connection.getresponse()
    assert (reply.status, reply.read()) == (200, b"")
    connection.close()


@pytest.mark.parametrize("framing", ["Content-Length: 10000000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("endless", [False, True])
def test_ten_megabytes_are_refused(server: Server, framing: str, endless: bool) -> None:
    """Also where they never end, or the client does not stop sending."""
    head = (
        f"POST /search HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{framing}\r\n\r\n"
    )
    part = b"a" * 50_000
    framed = part if "Length" in framing else b"%x\r\n%s\r\n" % (len(part), part)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as one:
        one.sendall(head.encode() + framed * (150 if endless else 200))
        if not endless and "chunked" in framing:
            one.sendall(b"0\r\n\r\n")
        answer = one.recv(65536)

    assert answer.startswith(b"HTTP/1.1 413")
    assert server.hits(query="read")


def test_a_body_of_two_lengths_is_refused_and_its_rest_is_no_request(server: Server) -> None:
    request = (
        b"POST /search HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    )
    answers = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as one:
        one.sendall(request)
        while part := one.recv(65536):
            answers += part

    assert answers.startswith(b"HTTP/1.1 400")
    assert answers.count(b"HTTP/1.1") == 1


def test_a_body_that_never_ends_gets_408(guarded: Server) -> None:
    head = (
        b"POST /search HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer " + TOKEN.encode() + b"\r\nContent-Length: 100\r\n\r\n{"
    )
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=30) as one:
        one.sendall(head)
        begun = time.monotonic()
        answer = one.recv(65536)

    assert answer.startswith(b"HTTP/1.1 408")
    assert time.monotonic() - begun > 1


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/one\r\n\r\n", b"\r\n\r\n\r\n",
             b"GET / HTTP/1.1\r\nHost: a\r\nA" + b"b" * 200_000 + b"\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_http_ends_the_connection_alone(server: Server, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as one:
        try:
            one.sendall(data)
            one.shutdown(socket.SHUT_WR)
            answer = one.recv(65536)
        except OSError:  # it was ended before all was sent
            answer = b""

    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert server.hits(query="read")


def at_once(server: Server, request: bytes, clients: int) -> list[bytes]:
    """Send a request from many clients, and return their answers."""

    async def one() -> bytes:
        reads, writes = await asyncio.open_connection("127.0.0.1", server.port)
        writes.write(request)
        answer = await reads.read()
        writes.close()
        return answer

    async def many() -> list[bytes]:
        return await asyncio.gather(*(one() for _ in range(clients)))

    return asyncio.run(many())


def test_a_thousand_clients_at_once_are_all_answered(server: Server) -> None:
    body = json.dumps({"query": "read the file", "layer": 1, "k": 2}).encode()
    request = (
        b"POST /search HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )

    answers = at_once(server, request, 1000)

    assert {answer.split(b"\r\n")[0] for answer in answers} == {b"HTTP/1.1 200 OK"}


def test_more_texts_than_may_wait_get_429(guarded: Server) -> None:
    body = json.dumps({"queries": ["read the file"] * 3, "layer": 4}).encode()
    request = (
        b"POST /search HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        % (TOKEN.encode(), len(body)) + body
    )  # fmt: skip

    statuses = {answer[9:12] for answer in at_once(guarded, request, 300)}

    assert statuses <= {b"200", b"429"}
    assert b"200" in statuses
    assert ask(guarded, {"query": "read"}).status == 200


def test_the_log_has_queries_where_that_was_asked(guarded: Server) -> None:
    ask(guarded, {"query": "list of\u2028numbers\u001b[2J"})

    assert guarded.events("request", 1, query="list of\u2028numbers\u001b[2J")
    line = next(line for line in guarded.log.read_text().splitlines() if "numbers" in line)

    assert line.isascii()
    assert "\x1b" not in line
    assert TOKEN not in guarded.log.read_text()


def test_a_server_that_cannot_start_says_so_in_a_sentence(server: Server, world: World) -> None:
    home = world.home
    cases = [
        (("--index", home, "--port", server.port), "cannot be listened at: Address already in use"),
        (("--index", home, "--token-env", "NOT_SET"), "that variable is not set"),
        (("--port", 0, "--index", home.parents[1] / "nothing"), "holds no finished index"),
        (("--port", 0, "--index", home, "--grid", world.corpus / "corpus.jsonl"), "corpus.jsonl"),
        (("--port", 0, "--index", home, "--engine", "hnws"), "has no such index"),
        (("--port", 0, "--index", home, "--timeout", 0), "seconds above 0"),
        (("--port", 0, "--host", "no.such.host", "--index", home), "cannot be listened at"),
        (("--port", 0, "--index", home, "--model", "nowhere/model"), "nowhere/model"),
    ]
    for words, told in cases:
        found = m2dr("serve", *map(str, words), cwd=Path("/"))
        assert (found.returncode, told in found.stderr) == (2, True), found.stderr
        assert "Traceback" not in found.stderr
