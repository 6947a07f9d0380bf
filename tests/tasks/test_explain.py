"""Why a document was found: the shares of a query's words in its score."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from commands import done, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from world import WORDS, make_model

import m2dr
from m2dr.core.requests import FitIndexRequest
from m2dr.index.bm25 import Bm25
from m2dr.index.store import open_store
from m2dr.model.words import REST, WordTable
from m2dr.tasks.indexing.fit_index import fit_index
from m2dr.tasks.searching.search import ROUNDING, SCALE

pytestmark = pytest.mark.filterwarnings("ignore:Cut ", "ignore:The words of")
FP32 = {"device": "cpu", "dtype": "fp32"}
DRAW = np.random.default_rng(5)
DOCUMENTS = [{"id": f"d{n}", "text": " ".join(DRAW.choice(WORDS, 14))} for n in range(80)]
SIMILARITIES = ("cosine", "dot")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """An index by a model of each similarity, with words, exits and a bridge."""
    place = tmp_path_factory.mktemp("explained")
    root = place / "indexes"
    for similarity in SIMILARITIES:
        model = str(make_model(tiny_backbone, place / similarity, similarity=similarity))
        engines = ("flat", "int8")
        m2dr.Index.build(
            model, DOCUMENTS, name=similarity, folder=root, dims=(8, 32), engines=engines, **FP32
        )
        request = FitIndexRequest(
            str(root / similarity), model, query_model=str(tiny_backbone), root=root, **FP32
        )
        fit_index(request)
    return place


@cache
def opened(place: Path, similarity: str, **options: object) -> m2dr.Index:
    model = str(place / similarity)
    return m2dr.open_index(place / "indexes" / similarity, model=model, **FP32, **options)


@settings(max_examples=100, deadline=None)
@given(
    similarity=st.sampled_from(SIMILARITIES),
    layer=st.sampled_from([0, 2, 4, "bridge"]),
    way=st.sampled_from(["flat", "exact", "int8", "funnel"]),
    dim=st.sampled_from([8, 32]),
    hybrid=st.sampled_from([0, 0.4, 1]),
    mix=st.sampled_from([0, 0.5]),
    words=st.lists(st.sampled_from([*WORDS, "reads", "os.path", "qqqq", "Файл"]), min_size=1),
)
def test_shares_add_up_to_the_score(
    similarity: str, layer: object, way: str, dim: int, hybrid: float, mix: float,
    words: list[str], place: Path, tiny_backbone: Path,
) -> None:  # fmt: skip
    options = {"funnel": f"4:60,{dim}"} if way == "funnel" else {"engine": way, "dim": dim}
    bridged = {"query_model": str(tiny_backbone)} if layer == "bridge" else {"layer": layer}
    index = opened(place, similarity, **options, **bridged)

    answer = index.search(" ".join(words), k=60, hybrid=hybrid, query_mix=mix)

    for hit in answer:
        shares = hit.explain()
        assert sum(shares.values()) == pytest.approx(hit.score, abs=1e-5, rel=1e-5)
        whole = layer == 4 and not (hybrid or mix)
        assert {name for name in shares if name[0] == "("} <= {REST, SCALE, ROUNDING}
        assert set(shares) - {ROUNDING} == {REST} if whole else True
        if layer == 0:
            assert REST not in shares
        if way != "int8":  # whose score is of codes
            largest = max([1, *map(abs, shares.values())])
            assert abs(shares.get(ROUNDING, 0)) < 1e-4 * largest


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_shares_are_those_of_the_formula(place: Path, similarity: str) -> None:
    """At layer 0 a word's is √count · weight · row · document over both lengths; BM25's beside."""
    index, dim = opened(place, similarity, layer=0, dim=8), 8
    query = "Read reads the file file"
    home = index.resolved.index.path
    table, store = WordTable.open(home / "exits"), open_store(home / "layer-04")
    bm25 = Bm25.open(index.resolved.index.bm25, store.docids)
    assert bm25 is not None
    vectors = {}
    for stem, count in (("read", 2), ("the", 1), ("file", 2)):
        row = table.rows[stem]
        vector = table.table[row].astype(float)
        vectors[stem] = np.sqrt(count) * float(table.weights[row]) * vector
    weights = [
        np.sqrt(n) * float(table.weights[table.rows[w]])
        for w, n in (("read", 2), ("the", 1), ("file", 2))
    ]
    total = sum(vectors.values())[:dim]
    length = np.linalg.norm(total) if similarity == "cosine" else np.linalg.norm(weights)
    names = {"read": "Read/reads", "the": "the", "file": "file"}

    alone, both = index.search(query, k=80), index.search(query, k=80, hybrid=0.4)

    low, high = min(hit.score for hit in alone), max(hit.score for hit in alone)
    best = float(bm25.scores(query).max())
    for hit in alone:
        document = store.rows([store.docids.index(hit.docid)])[0].astype(float)[:dim]
        by = np.linalg.norm(document) if similarity == "cosine" else 1
        expected = {
            names[stem]: vector[:dim] @ document / length / by for stem, vector in vectors.items()
        }
        assert hit.explain() == pytest.approx(expected, abs=1e-5, rel=1e-5)
        [beside] = [each for each in both if each.docid == hit.docid]
        row = store.docids.index(hit.docid)
        for stem, name in names.items():
            count = {"read": 2, "file": 2}.get(stem, 1)
            lexical = 0.4 * count * bm25.scores(stem)[row] / best
            share = 0.6 * expected[name] / (high - low) + lexical
            assert beside.explain()[name] == pytest.approx(share, abs=1e-4)


def test_the_command_line_says_which_words_found_a_document(place: Path) -> None:
    asked = ("search", "read the files", "--corpus", place / "indexes/cosine", "-k", 2)
    asked += ("--model", place / "cosine", "--indexes", place / "indexes", "--device", "cpu")
    asked += ("--dtype", "fp32", "--explain")
    hits = opened(place, "cosine", layer=0).search("read the files", k=2)

    told = done(*asked, "--query-layer", 0)
    rows = json.loads(done(*asked, "--query-layer", 0, "--json"))["hits"]

    name, share = next(iter(hits[0].explain().items()))
    assert f"{name} {share:.4f}" in told
    assert rows[1]["explain"] == pytest.approx(hits[1].explain())
    topics = ("--topics", place / "q.tsv", "--run", place / "run.trec")
    assert "--explain" in refused("search", *asked[2:], *topics)
