import json
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import done
from safetensors.numpy import load_file, save_file
from world import load_auto, make_corpus, write_beir

from m2dr.core.errors import UserError
from m2dr.core.requests import IndexRequest, MineRequest, SearchRequest
from m2dr.data.loaders import open_dataset
from m2dr.model.checkpoint import read_card
from m2dr.tasks.indexing.index import index_corpus
from m2dr.tasks.searching.search import open_searcher
from m2dr.tasks.training import mine as verb
from m2dr.tasks.training.mine import mine

Beir = Callable[..., Path]


@pytest.fixture
def beir(tmp_path: Path) -> Beir:
    """Write a BEIR folder: docid to text or (title, text), query id to text, query to answers."""

    def write(
        documents: Mapping[str, str | tuple[str, str]],
        queries: Mapping[str, str],
        answers: Mapping[str, Mapping[str, int]],
        name: str = "small",
    ) -> Path:
        pairs = {d: ("", t) if isinstance(t, str) else t for d, t in documents.items()}
        corpus = [{"_id": d, "title": title, "text": text} for d, (title, text) in pairs.items()]
        judged = [(q, d, r) for q, levels in answers.items() for d, r in levels.items()]
        return write_beir(tmp_path / name, corpus, queries, train=judged)

    return write


def mined(path: Path) -> dict[str, list[str]]:
    """Query id to the docids of its negatives, as they stand in the file."""
    groups = [json.loads(line) for line in path.read_text().splitlines()]
    return {g["query_id"]: [d["docid"] for d in g["negative_passages"]] for g in groups}


def bm25(corpus: Path, **options: object) -> MineRequest:
    return MineRequest(corpus.parent / "groups.jsonl", str(corpus), retriever="bm25", **options)


# Ranked for "cat": d9 to d1, by how much of each is about cats.
CATS = {f"d{n}": " ".join(["cat"] * n + ["tree"] * (9 - n)) for n in range(1, 10)}


def test_what_answers_or_scores_as_an_answer_does_is_no_negative(beir: Beir) -> None:
    corpus = beir(
        {**CATS, "clone": CATS["d9"], "copy": CATS["d7"], "twin": CATS["d4"]},
        {"q1": "cat", "q2": "cat", "q3": "elsewhere"},
        {"q1": {"d7": 1, "d6": 0}, "q2": {"d8": 2}, "q3": {"d1": 0}},
    )

    report = mine(bm25(corpus, margin=0.95, skip=1, negatives=3))

    # d9 is skipped, and clone with it; d8 answers a query of the same text, d7 this one, and copy
    # reads as d7 does; d6 scores above .95 of d8; d4 reads as twin does, which ranks before it.
    assert mined(report.files[0]) == {"q1": ["d5", "twin", "d3"], "q2": ["d5", "twin", "d3"]}
    assert (report.queries, report.negatives, report.bare) == (2, 6, 0)


def test_answers_take_no_place_of_the_candidates(beir: Beir) -> None:
    answers = {f"d{n}": 1 for n in range(3, 10)}
    corpus = beir(CATS, {"q": "cat", "r": "cat tree"}, {"q": answers, "r": {"d9": 1}})

    report = mine(bm25(corpus, margin=0, depth=2, negatives=2))

    assert mined(report.files[0])["q"] == ["d2", "d1"]
    assert len(mined(report.files[0])["r"]) == 2


@pytest.mark.parametrize(("name", "kept"), [("arguana", ["d8", "d7"]), ("other", ["d9", "d8"])])
def test_the_querys_own_document_is_dropped_where_the_data_set_drops_it(
    name: str, kept: list[str], beir: Beir
) -> None:
    corpus = beir(CATS, {"d9": "cat"}, {"d9": {"d1": 1}}, name)

    report = mine(bm25(corpus, margin=0, negatives=2))

    assert mined(report.files[0]) == {"d9": kept}


def test_the_loader_reads_what_was_mined(beir: Beir) -> None:
    corpus = beir(
        {"d1": ("Cat", "tree"), "d2": ("cat", ""), "d3": ("", ""), "d4": ("ça", "chat cat\u2028")},
        {"q1": "cat", "q2": "cat tree", "q3": " ", "q4": "tree"},
        {"q1": {"d1": 1}, "q2": {"d2": 1, "d3": 1}, "q3": {"d1": 1}, "q4": {"d3": 1}},
    )

    report = mine(bm25(corpus, margin=0))

    assert report.queries == 2
    before, after = open_dataset(str(corpus)), open_dataset(str(report.files[0]))
    assert [query.text for query in after.queries("train")] == ["cat", "cat tree"]
    assert after.negatives("train") == {"q1": ("d4",), "q2": ("d1", "d4")}  # d2 is q1
    for docid in ("d1", "d2", "d4"):
        assert after.document(docid).content == before.document(docid).content


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """The tiny backbone compared by cosine, its weights so large that texts lie far apart."""
    folder = Path(shutil.copytree(tiny_backbone, tmp_path_factory.mktemp("model") / "cosine"))
    weights = load_file(folder / "model.safetensors")
    larger = {name: 15 * w if w.ndim == 2 else w for name, w in weights.items()}
    save_file(larger, folder / "model.safetensors", metadata={"format": "pt"})
    asked = {"similarity_fn_name": "cosine", "prompts": {"query": "list of ", "document": ""}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(asked))
    card = read_card(folder)
    assert (card.similarity, card.query_prefix) == ("cosine", "list of ")
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny corpus, with a second answer to every training query."""
    folder = make_corpus(tmp_path_factory.mktemp("corpus") / "tiny")
    with (folder / "qrels" / "train.tsv").open("a") as file:
        file.writelines(f"q{i}\td{i + 9}\t1\n" for i in range(24))
    return folder


@pytest.fixture(scope="module")
def indexed(
    tmp_path_factory: pytest.TempPathFactory,
    model: Path,
    corpus: Path,
    dtype: str,  # noqa: ARG001  # what `auto` means below and in the tests
) -> Path:
    root = tmp_path_factory.mktemp("indexes")
    for layers, dims in (((2,), (8,)), ((4,), (8, 32))):
        index_corpus(IndexRequest(str(corpus), str(model), dims, layers, root=root))
    return root


@pytest.fixture
def by_model(
    indexed: Path, model: Path, corpus: Path, tmp_path: Path
) -> Callable[..., MineRequest]:
    def request(**options: object) -> MineRequest:
        given = {"model": str(model), "root": indexed, "device": "cpu", **options}
        return MineRequest(tmp_path / "groups.jsonl", str(corpus), **given)

    return request


def cosines(model: Path, corpus: Path, layer: int, dim: int) -> dict[str, dict[str, float]]:
    """Query id to docid to cosine, by a full scan of vectors kept as halves of a float."""
    dataset = open_dataset(str(corpus))
    encoder = load_auto(model)
    documents, queries = list(dataset.documents()), dataset.queries("train")

    def units(texts: list[str], side: str, kept: type) -> np.ndarray:
        vectors = encoder.vectors(texts, side, [layer])[0][:, :dim]
        vectors = vectors.astype(kept).astype(np.float64)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    left = units([query.text for query in queries], "query", np.float32)
    right = units([document.content for document in documents], "document", np.float16)
    return {
        query.id: {d.id: float(np.float32(q @ v)) for d, v in zip(documents, right, strict=True)}
        for query, q in zip(queries, left, strict=True)
    }


def test_what_needs_an_index_names_the_command_that_builds_it(
    model: Path, corpus: Path, tmp_path: Path
) -> None:
    """Both a mining and a search without a name of an engine ask for the flat index."""
    named = {"model": str(model), "root": tmp_path / "indexes", "device": "cpu"}
    mining = MineRequest(tmp_path / "groups.jsonl", str(corpus), **named)
    searching = SearchRequest(str(corpus), **named)
    doors = (lambda: mine(mining), lambda: open_searcher(replace(searching, dim=32, engine="flat")))
    for door in doors:
        shutil.rmtree(tmp_path / "indexes", ignore_errors=True)
        index_corpus(IndexRequest(str(corpus), dims=(8,), engines=("hnsw",), exits=False, **named))
        with pytest.raises(UserError, match="dim.*m2dr index corpus .* builds") as told:
            door()
        words = shlex.split(str(told.value).split("m2dr ")[1].split(" builds")[0])
        done(*words, "--device", "cpu")
        door()


@pytest.mark.parametrize(
    ("layer", "dim", "margin", "skip", "depth"),
    [(4, 32, 0.0, 0, 5), (2, 8, 0.99, 1, 30)],
)
def test_a_model_mines_what_a_full_scan_would(
    layer: int,
    dim: int,
    margin: float,
    skip: int,
    depth: int,
    by_model: Callable[..., MineRequest],
    model: Path,
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verb, "QUERY_BATCH", 7)  # several batches, the last one shorter

    report = mine(
        by_model(query_layer=layer, dim=dim, margin=margin, skip=skip, depth=depth, negatives=4)
    )

    found = mined(report.files[0])
    for query, scores in cosines(model, corpus, layer, dim).items():
        answers = {f"d{int(query[1:])}", f"d{int(query[1:]) + 9}"}
        best = max(scores[docid] for docid in answers)
        most = best - (1 - margin) * abs(best) if margin else np.inf
        ranked = sorted(scores, key=lambda d: (scores[d], d), reverse=True)
        left = [docid for docid in ranked if docid not in answers][:depth][skip:]
        expected = [scores[docid] for docid in left if scores[docid] <= most][:4]
        assert [scores[docid] for docid in found[query]] == pytest.approx(expected, abs=1e-6)
    assert 0 < report.negatives <= 4 * 24
