"""What `m2dr serve` answers is what the library finds."""

import base64
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
from http_serving import Server, texts_of
from openai import OpenAI
from serve_world import World

from m2dr import Encoder, open_index
from m2dr import Index as OpenIndex
from m2dr.core.errors import UserError
from m2dr.core.records import Document
from m2dr.core.requests import ServeRequest
from m2dr.serve.serving import Serving, _read

if TYPE_CHECKING:
    from m2dr.serve.served_index import ServedIndex

pytestmark = pytest.mark.filterwarnings("ignore:Cut ")
QUERIES = ("read the file", "open a path and close it", "sort")


@pytest.fixture(scope="module")
def index(world: World) -> OpenIndex:
    return open_index(
        world.corpus, model=str(world.model), root=world.root, device="cpu", dtype="fp32"
    )


def opened(*homes: Path) -> Serving:
    folders = tuple(map(str, homes))
    serving = Serving(ServeRequest(indexes=folders, device="cpu", dtype="fp32"))
    serving.batcher.stop()
    return serving


@pytest.mark.parametrize("layer", [0, 1, 4])
@pytest.mark.parametrize("dim", [16, 32])
def test_a_search_ranks_as_open_index_does(
    server: Server, index: OpenIndex, layer: int, dim: int
) -> None:
    expected = index.search(QUERIES, layer=layer, dim=dim, k=7)

    found = server.search(queries=QUERIES, layer=layer, dim=dim, k=7)

    assert found["cut"] == f"L{layer}D{dim}"
    for mine, theirs in zip(found["results"], expected, strict=True):
        assert [hit["docid"] for hit in mine["hits"]] == [hit.docid for hit in theirs.hits]
        scores = [hit["score"] for hit in mine["hits"]]
        np.testing.assert_allclose(scores, [hit.score for hit in theirs.hits], atol=1e-5)
        for hit, other in zip(mine["hits"], theirs.hits, strict=True):
            assert f"{hit['title']} {hit['text']}" == other.text


def test_a_dim_without_an_index_is_searched_through_the_store(
    server: Server, index: OpenIndex
) -> None:
    models = server.get("/models").json["indexes"][0]
    assert 8 in models["dims"]
    scan = open_index(
        index.resolved.request.corpus, model=index.resolved.model, dim=8, engine="exact",
        root=index.resolved.request.root, device="cpu", dtype="fp32",
    )  # fmt: skip

    assert server.hits(query=QUERIES[0], dim=8) == [
        hit.docid for hit in scan.search(QUERIES[0]).hits
    ]


def test_the_full_model_stands_beside_a_cut(server: Server) -> None:
    found = server.search(query=QUERIES[0], layer=1, dim=16, k=3, compare=True)
    (result,) = found["results"]
    cut, full = server.hits(query=QUERIES[0], layer=1, dim=16), server.hits(query=QUERIES[0])

    assert [hit["docid"] for hit in result["full"]] == full[:3]
    assert result["overlap"] == len({*cut} & {*full}) / 10
    assert found["full_times"]["encode_ms"] > 0


def test_requests_of_many_clients_get_their_own_answers(server: Server, world: World) -> None:
    texts = texts_of(world.corpus)
    cases = [(text, layer, dim, k) for text in texts for layer, dim, k in
             ((4, 32, 5), (1, 16, 3), (0, 8, 4))]  # fmt: skip
    alone = [server.hits(query=t, layer=n, dim=d, k=k) for t, n, d, k in cases]

    with ThreadPoolExecutor(24) as pool:
        together = list(
            pool.map(lambda c: server.hits(query=c[0], layer=c[1], dim=c[2], k=c[3]), cases * 2)
        )

    assert together == alone * 2
    assert max_batch(server) > 1


def max_batch(server: Server) -> float:
    """The mean number of texts of a batch, above which at least one batch was."""
    rows = dict(
        line.rsplit(" ", 1)
        for line in server.get("/metrics").data.decode().splitlines()
        if line.startswith("m2dr_batch_texts_")
    )
    return float(rows["m2dr_batch_texts_sum"]) / float(rows["m2dr_batch_texts_count"])


@pytest.mark.parametrize("side", ["query", "document"])
def test_vectors_are_those_of_the_encoder(server: Server, world: World, side: str) -> None:
    model = Encoder.from_pretrained(str(world.model), layer=4, dim=16, device="cpu", dtype="fp32")
    encode = model.encode_queries if side == "query" else model.encode_documents

    reply = server.post("/embed", {"texts": QUERIES, "side": side, "dim": 16}).json

    assert reply["cut"] == "L4D16"
    np.testing.assert_allclose(reply["vectors"], encode(list(QUERIES)), atol=1e-5)


def test_vectors_of_both_sides_rank_as_a_search_does(server: Server, world: World) -> None:
    lines = (world.corpus / "corpus.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    texts = [f"{row['title']} {row['text']}" for row in rows]

    def vectors(texts: list[str], side: str) -> np.ndarray:
        body = {"texts": texts, "side": side, "layer": 1, "dim": 16}
        return np.array(server.post("/embed", body).json["vectors"])

    scores = vectors(texts, "document") @ vectors([QUERIES[0]], "query")[0]
    hits = server.search(query=QUERIES[0], layer=1, dim=16, k=5)["results"][0]["hits"]

    by_id = dict(zip((row["_id"] for row in rows), scores, strict=True))
    np.testing.assert_allclose(
        [hit["score"] for hit in hits], [by_id[hit["docid"]] for hit in hits], atol=2e-3
    )


def test_the_client_of_openai_gets_vectors(server: Server) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    name = server.get("/models").json["indexes"][0]["model"]

    with client:
        found = client.embeddings.create(
            input=list(QUERIES), model=name, dimensions=16,
            extra_body={"layer": 1, "side": "query"},
        )  # fmt: skip
        floats = client.embeddings.create(
            input=QUERIES[0], model=name, dimensions=16, encoding_format="float",
            extra_body={"layer": 1, "side": "query"},
        )  # fmt: skip
        assert [model.id for model in client.models.list()] == [name]
    expected = server.post(
        "/embed", {"texts": QUERIES, "side": "query", "layer": 1, "dim": 16}
    ).json["vectors"]

    np.testing.assert_allclose([row.embedding for row in found.data], expected, atol=1e-6)
    np.testing.assert_allclose(floats.data[0].embedding, expected[0], atol=1e-6)
    assert found.usage.total_tokens > len(QUERIES)


def test_base64_holds_the_floats(server: Server) -> None:
    name = server.get("/models").json["indexes"][0]["name"]
    body = {"input": "read", "model": name}
    floats = server.post("/v1/embeddings", body).json["data"][0]["embedding"]
    coded = server.post("/v1/embeddings", {**body, "encoding_format": "base64"}).json

    read = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4")
    np.testing.assert_array_equal(read, np.array(floats, np.float32))


def test_models_tell_what_can_be_searched_and_what_it_costs(server: Server) -> None:
    (found,) = server.get("/models").json["indexes"]

    assert found["layers"] == [0, 1, 2, 3, 4]
    assert found["dims"] == [8, 16, 32]
    assert (found["full"], found["documents"], found["grid"]) == ("L4D32", 40, None)
    costs = {row["cut"]: row for row in found["costs"]}
    assert len(costs) == 15
    assert costs["L4D32"]["bytes_per_document"] == 128
    work = [costs[f"L{layer}D32"]["multiply_adds"] for layer in found["layers"]]
    assert work == sorted(work)
    for row in found["costs"]:
        server.search(query="read", layer=row["layer"], dim=row["dim"])


def test_the_log_has_no_queries_unless_asked(server: Server) -> None:
    server.search(query="string number", k=37)

    (event,) = server.events("request", 1, k=37)

    assert (event["path"], event["status"]) == ("/search", 200)
    assert "string number" not in server.log.read_text()


def test_pages_ask_nothing_of_other_hosts(server: Server) -> None:
    for path in ("/docs", "/", "/page.js", "/page.css", "/docs.css"):
        reply = server.get(path)
        assert reply.status in (200, 404)
        assert b'src="http' not in reply.data
        assert b'href="http' not in reply.data
        assert "default-src 'self'" in reply.headers["content-security-policy"]


def test_indexes_of_one_name_are_all_served(world: World, tmp_path: Path) -> None:
    homes = [shutil.copytree(world.home, tmp_path / str(n) / world.home.name) for n in range(4)]

    names = list(opened(*homes).indexes)

    first = f"tiny-{world.model.name}"
    again = f"{first}-{world.home.name}"
    assert names == [first, again, f"{again}-2", f"{again}-3"]


def test_hits_without_texts_say_why() -> None:
    class Gone:
        def document(self, docid: str) -> Document:
            if docid == "there":
                return Document(docid, "a text")
            raise UserError("The corpus is gone.")

    found = _read(cast("ServedIndex", Gone()), ["there", "gone"])

    assert found.documents["gone"] == Document("gone", "")
    assert found.documents["there"].text == "a text"
    assert found.problem == "The corpus is gone."
