"""Pyserini's own searcher finds in an index of m2dr what m2dr search finds."""

import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from shell import python
from world import make_fitted, make_model

from m2dr.core.requests import IndexRequest, SearchRequest
from m2dr.index.library import load_faiss
from m2dr.integrations.pyserini import PyseriniQueryEncoder
from m2dr.tasks.indexing.index import index_corpus
from m2dr.tasks.searching.search import open_searcher

QUERIES = {"q1": "read a file", "q2": "close the text module class path", "q3": "open"}
DEPTH = 10
Found = dict[str, list[tuple[str, float]]]  # docids and scores, by query


class StandInSearcher:
    """What FaissSearcher of Pyserini 1.6 and 2 does with a folder and an encoder."""

    def __init__(self, index_dir: str, query_encoder: PyseriniQueryEncoder) -> None:
        self.query_encoder = query_encoder
        self.index = load_faiss().read_index(f"{index_dir}/index")
        self.docids = Path(index_dir, "docid").read_text().splitlines()
        assert self.index.ntotal == len(self.docids)

    def search(self, query: str, k: int) -> list[tuple[str, float]]:
        vector = self.query_encoder.encode(query)
        assert len(vector) == self.index.d
        return self._hits(vector.reshape((1, len(vector))).astype("float32"), k)[0]

    def batch_search(self, queries: list[str], q_ids: list[str], k: int) -> Found:
        vectors = self.query_encoder.encode_batch(queries)
        _, width = vectors.shape
        assert width == self.index.d
        return dict(zip(q_ids, self._hits(vectors.astype("float32"), k), strict=True))

    def _hits(self, vectors: NDArray[np.float32], k: int) -> list[list[tuple[str, float]]]:
        return [
            [(self.docids[row], float(score)) for score, row in zip(*pair, strict=True)]
            for pair in zip(*self.index.search(vectors, k), strict=True)
        ]


def indexed(kind: str, backbone: Path, corpus: Path, place: Path) -> Path:
    """The folder of the index of a model of a kind."""
    similarity = "cosine" if kind == "fitted" else kind
    model = make_model(backbone, place / "model", similarity=similarity, query_prefix="a ")
    if kind == "fitted":
        model = make_fitted(model, place / "fitted")
    asked = IndexRequest(str(corpus), str(model), (16,), (4,), root=place / "indexes", device="cpu")
    (found,) = index_corpus(asked).files
    return found


@pytest.fixture(scope="module", params=["dot", "fitted"])
def folder(
    request: pytest.FixtureRequest, dtype: str, tiny_backbone: Path, tiny_corpus: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:  # fmt: skip
    """An index of each kind of model, in fp32 and bf16."""
    place = tmp_path_factory.mktemp(f"pyserini-{dtype}")
    return indexed(request.param, tiny_backbone, tiny_corpus, place)


def of_m2dr(folder: Path, layer: int | None) -> Found:
    searcher = open_searcher(SearchRequest(index=str(folder), layer=layer, device="cpu"))
    answers = searcher.answers(list(QUERIES.values()), DEPTH)
    return {
        name: [(hit.docid, hit.score) for hit in answer.hits]
        for name, answer in zip(QUERIES, answers, strict=True)
    }


def check(found: Found, expected: Found, near: float = 1e-4) -> None:
    """The same documents and scores; those of equal score may change places."""
    assert found.keys() == expected.keys()
    for name, hits in found.items():
        scores = [score for _, score in hits]
        assert scores == pytest.approx([score for _, score in expected[name]], abs=near)
        clear = {docid for docid, score in hits if score > min(scores) + near}
        assert clear <= {docid for docid, _ in expected[name]}


@pytest.mark.parametrize("layer", [None, 2])
def test_a_searcher_like_pyserinis_finds_what_m2dr_finds(folder: Path, layer: int | None) -> None:
    encoder = PyseriniQueryEncoder(folder, layer=layer, device="cpu")
    searcher = StandInSearcher(str(folder), encoder)
    expected = of_m2dr(folder, layer)

    together = searcher.batch_search(list(QUERIES.values()), list(QUERIES), DEPTH)
    alone = {name: searcher.search(query, DEPTH) for name, query in QUERIES.items()}

    check(together, expected)
    check(alone, expected, 1e-4 if os.environ["M2DR_DTYPE"] == "fp32" else 0.05)


SCRIPT = """
import sys
from m2dr.integrations.pyserini import PyseriniQueryEncoder
from pyserini.search.faiss import FaissSearcher

folder, layer, depth, *queries = sys.argv[1:]
searcher = FaissSearcher(folder, PyseriniQueryEncoder(folder, layer=int(layer), device="cpu"))
found = searcher.batch_search(queries, [str(i) for i in range(len(queries))], k=int(depth))
for name, hits in found.items():
    for hit in hits:
        print("hit", name, hit.docid, float(hit.score))
one = searcher.search(queries[0], k=1)[0]
print("one", one.docid, float(one.score))
"""


@pytest.mark.skipif(not find_spec("pyserini"), reason="Pyserini is not installed.")
def test_pyserini_itself_finds_what_m2dr_finds(
    tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    folder = indexed("cosine", tiny_backbone, tiny_corpus, tmp_path)
    words = [str(folder), "2", str(DEPTH), *QUERIES.values()]

    lines = [line.split() for line in python("-c", SCRIPT, *words).splitlines()]
    found: Found = {name: [] for name in QUERIES}
    for number, docid, score in (rest for word, *rest in lines if word == "hit"):
        found[list(QUERIES)[int(number)]].append((docid, float(score)))
    check(found, of_m2dr(folder, 2))
    ((docid, score),) = (rest for word, *rest in lines if word == "one")
    assert (docid, float(score)) == (found["q1"][0][0], pytest.approx(found["q1"][0][1], abs=0.05))
