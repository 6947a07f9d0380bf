"""Exits fitted on the documents of an index: shallow queries search its last layer."""

import json
import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from world import WORDS, make_model

from m2dr import open_index
from m2dr.cli import main
from m2dr.core.errors import UserError
from m2dr.core.records import EXITS_FILE, Cut
from m2dr.core.requests import (
    EvaluateRequest,
    FitIndexRequest,
    IndexRequest,
    PickRequest,
    SearchRequest,
)
from m2dr.core.settings import FitSettings
from m2dr.index.exit_files import exits_folder, fitting_exits
from m2dr.model import checkpoint
from m2dr.model.export import write_table
from m2dr.model.hub import EXITS, STATIC
from m2dr.model.static import open_static
from m2dr.model.tokenizer import read_tokenizer
from m2dr.tasks import encode_corpus
from m2dr.tasks import fit_index as indexing
from m2dr.tasks.encode_texts import embed_texts
from m2dr.tasks.evaluate import evaluate, keep_record, measure_all_costs
from m2dr.tasks.fit import fit
from m2dr.tasks.fit_index import fit_index
from m2dr.tasks.index import index_corpus
from m2dr.tasks.pick import pick_cut
from m2dr.tasks.search import Searcher

Ask = Callable[..., IndexRequest]
SPLIT = ["format", "decode", "packed", "binding"]  # words of which the tokenizer makes pieces


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 150 different documents, in the layout of BEIR."""
    folder = tmp_path_factory.mktemp("corpus") / "many"
    (folder / "qrels").mkdir(parents=True)
    draw = np.random.default_rng(13)
    texts = [" ".join(draw.choice(WORDS, 6)) for _ in range(150)]
    rows = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    query = {"_id": "q0", "text": texts[3]}
    (folder / "queries.jsonl").write_text(json.dumps(query) + "\n")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td3\t1\n")
    return folder


@pytest.fixture
def ask(tiny_backbone: Path, documents: Path, tmp_path: Path) -> Ask:
    model = make_model(tiny_backbone, tmp_path / "model", similarity="cosine")

    def request(root: str = "indexes", **changes: object) -> IndexRequest:
        asked = IndexRequest(
            str(documents), str(model), root=tmp_path / root, device="cpu", shard_rows=32
        )
        return replace(asked, **changes)

    return request


def folder_of(request: IndexRequest) -> Path:
    (folder,) = request.root.glob("*/*/exits")
    return folder


def heads_of(request: IndexRequest) -> dict[str, torch.Tensor]:
    folder = folder_of(request)
    return load_file(folder / EXITS) | load_file(folder / STATIC)


def alike(one: IndexRequest, other: IndexRequest) -> bool:
    """Whether two indexes have the same exits, within 1e-6 of their largest value."""
    a, b = heads_of(one), heads_of(other)
    return a.keys() == b.keys() and all(
        torch.allclose(
            a[name].float(), b[name].float(), atol=1e-6 * float(a[name].float().abs().max())
        )
        for name in a
    )


@pytest.mark.usefixtures("dtype")
def test_queries_of_every_layer_search_the_documents_of_the_last(ask: Ask) -> None:
    request = ask()
    index_corpus(request)
    assert not any(folder_of(request).glob("states-*"))
    opened = open_index(request.corpus, model=request.model, root=request.root, device="cpu")
    texts = ["open the file", "a list of numbers", "class module"]
    full = [answer.hits for answer in opened.search(texts, k=150)]
    places = [{hit.docid: hit.rank for hit in hits} for hits in full]
    for layer in (0, 1, 2, 3):
        found = opened.search(texts, layer=layer, k=10)
        for answer, place in zip(found, places, strict=True):
            near = [place[hit.docid] for hit in answer.hits]
            assert np.median(near) < 40  # of 150; chance is 75
    with pytest.raises(UserError, match="exits is 'index' or 'model', not 'indexes'"):
        open_index(request.corpus, model=request.model, root=request.root, exits="indexes")


@pytest.mark.usefixtures("dtype")
def test_an_exit_of_the_index_gives_what_its_record_says(ask: Ask, documents: Path) -> None:
    request = ask()
    index_corpus(request)
    folder = folder_of(request)
    record = json.loads((folder / EXITS_FILE).read_text())
    encoder, tokenizer = checkpoint.load(request.model, exits=folder)
    texts = [
        json.loads(line)["text"] for line in (documents / "corpus.jsonl").read_text().splitlines()
    ]
    held = [text for place, text in enumerate(texts) if place % 8 == 7]
    found = embed_texts(encoder, tokenizer, held, "document", (0, 1, 2, 3, 4))
    found /= np.linalg.norm(found, axis=-1, keepdims=True)
    cosines = (found[:4] * found[4]).sum(-1).mean(-1)
    assert cosines[0] == pytest.approx(record["fit"]["cosines"][0], abs=0.02)
    assert cosines.min() > 0.5  # those of the others are of snippets
    assert record["fit"]["texts"] == 150 - len(held)


@pytest.mark.usefixtures("dtype")
def test_the_exits_are_the_same_however_the_documents_were_encoded(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process, killed and gone on with, by workers, and added to an index that had none."""
    whole = ask()
    index_corpus(whole)
    killed, write, calls = ask("killed"), encode_corpus.ShardEncoder._write, []

    def dies(
        self: encode_corpus.ShardEncoder, ran: encode_corpus._Vectors
    ) -> encode_corpus.WrittenShard:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the power went")
        return write(self, ran)

    with monkeypatch.context() as patch:
        patch.setattr(encode_corpus.ShardEncoder, "_write", dies)
        with pytest.raises(RuntimeError):
            index_corpus(killed)
    states = [path.name for path in sorted(folder_of(killed).iterdir())]
    assert states == ["states-00000.npz", "states-00001.npz"]
    index_corpus(killed)
    assert alike(whole, killed)
    workers = ask("workers", workers=2)
    index_corpus(workers)
    assert alike(whole, workers)
    bare = ask("bare", exits=False)
    index_corpus(bare)
    assert not list(bare.root.glob("*/*/exits"))
    fit_index(FitIndexRequest(bare.corpus, bare.model, bare.root, "cpu"))
    assert alike(whole, bare)


def test_a_store_has_the_same_bytes_with_exits_and_without(ask: Ask) -> None:
    one, other = ask(), ask("bare", exits=False)
    for request in (one, other):
        index_corpus(request)
    files = sorted(path.relative_to(other.root) for path in other.root.rglob("vectors-*"))
    assert files
    for file in files:
        assert (one.root / file).read_bytes() == (other.root / file).read_bytes()


def test_documents_that_were_encoded_anew_have_no_exits_of_the_old_ones(ask: Ask) -> None:
    request = ask()
    index_corpus(request)
    store = folder_of(request).parent / "layer-04"
    assert fitting_exits(store) == exits_folder(store)
    table = json.loads((folder_of(request) / EXITS_FILE).read_text())
    (folder_of(request) / EXITS_FILE).write_text(json.dumps({**table, "texts": "0" * 64}))
    assert fitting_exits(store) is None
    asked = SearchRequest(request.corpus, request.model, root=request.root, query_layer=1)
    with pytest.raises(UserError, match=r"no exits .*m2dr index fit --corpus"):
        Searcher(replace(asked, exits="index"))


def test_exits_that_are_damaged_are_refused(ask: Ask) -> None:
    request = ask()
    index_corpus(request)
    path = folder_of(request) / EXITS
    os.truncate(path, path.stat().st_size // 2)
    asked = SearchRequest(
        request.corpus, request.model, root=request.root, query_layer=2, device="cpu"
    )
    with pytest.raises(UserError, match=r"not the file that was written.*m2dr index fit"):
        Searcher(asked)


@pytest.fixture
def worded(ask: Ask, documents: Path, tmp_path: Path) -> IndexRequest:
    """An index of the same documents, to which words are added that are split."""
    folder = tmp_path / "worded"
    shutil.copytree(documents, folder)
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    for row, word in zip(rows, 10 * SPLIT, strict=False):
        row["text"] += f" {word}"
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ask(corpus=str(folder))


@pytest.fixture
def enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an index have whole words from a hundred documents on, with few signs."""
    monkeypatch.setattr(indexing, "FEW", 100)
    monkeypatch.setattr(indexing, "SIGNS", 128)


@pytest.mark.usefixtures("dtype", "enough")
def test_layer_0_knows_the_words_of_the_corpus(worded: IndexRequest, tmp_path: Path) -> None:
    request = worded
    index_corpus(request)
    folder = folder_of(request)
    texts = ["decode a packed file", "Format, formats; binding", "decode", "nothing known", "?"]
    encoder, tokenizer = checkpoint.load(request.model, exits=folder)

    static = open_static(request.model, folder)

    ids = static.tokenizer(texts, 64)
    known = len(encoder.words)
    assert [max(row) >= known for row in ids] == [True, True, True, False, False]
    found = static.embed(texts)
    through = embed_texts(encoder, tokenizer, texts, "query", (0, 1))[0]
    np.testing.assert_allclose(found, through, atol=1e-5 * np.abs(found).max())
    pieces = replace(static, tokenizer=read_tokenizer(Path(request.model))).embed(texts)
    assert np.abs(pieces[:3] - found[:3]).max() > 0.01 * np.abs(found).max()
    write_table(request.model, tmp_path / "table", None, folder)
    theirs = SentenceTransformer(str(tmp_path / "table"), device="cpu").encode(texts[:4])
    readme = (tmp_path / "table" / "README.md").read_text()
    assert "132 documents of the index of worded" in readme
    ours = found[:4] / np.linalg.norm(found[:4], axis=1, keepdims=True)
    assert (theirs / np.linalg.norm(theirs, axis=1, keepdims=True) * ours).sum(1).min() > 1 - 1e-5


@pytest.mark.usefixtures("enough")
def test_a_rotation_of_the_model_changes_nothing_at_full_width_of_layer_0(
    worded: IndexRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("M2DR_DTYPE", "fp32")  # bf16 rounds a rotated embedding otherwise
    monkeypatch.setattr("m2dr.tasks.fit_index.RIDGES_OF_SIGNS", (1e-2,))
    fitted = tmp_path / "fitted"
    fit(FitSettings(worded.model, worded.corpus, texts=120, rotation="learned"), fitted)
    texts = ["decode a packed file", "Format, formats; binding", "decode", "nothing known"]
    found = []
    for model, root in ((worded.model, worded.root), (str(fitted), tmp_path / "rotated")):
        index_corpus(replace(worded, model=model, root=root))
        (folder,) = root.glob("*/*/exits")
        rows = open_static(model, folder).embed(texts)
        found.append(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    before, after = found

    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=2e-3)


@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
def test_graphs_have_the_exits_of_the_index(
    runtime: str, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip({"onnx": "onnxruntime", "openvino": "openvino"}[runtime])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    request = ask()
    index_corpus(request)
    asked = SearchRequest(
        request.corpus, request.model, root=request.root, query_layer=2, device="cpu", dtype="fp32"
    )
    texts = ["open the file", "a list of numbers and a class"]
    found: list[NDArray[np.float32]] = [
        Searcher(replace(asked, runtime=one)).vectors(texts) for one in ("torch", runtime)
    ]
    assert np.allclose(found[0], found[1], atol=1e-4)


def test_a_grid_through_the_exits_of_an_index_ranks_as_a_search_does(
    ask: Ask, documents: Path, tmp_path: Path
) -> None:
    request = ask()
    asked = EvaluateRequest(
        (str(documents),), (request.model,), runs="all", exits="index", root=request.root,
        out=tmp_path / "results", device="cpu",
    )  # fmt: skip
    (grid,) = evaluate(asked).grids

    assert grid.model == "model.index-exits"
    assert grid.layers == (0, 1, 2, 3, 4)
    assert heads_of(request)  # fitted while the documents were encoded
    index_corpus(replace(request, dims=(32,)))
    opened = open_index(request.corpus, model=request.model, root=request.root, device="cpu")
    query = json.loads((documents / "queries.jsonl").read_text())["text"]
    runs = tmp_path / "results" / "many" / "test" / grid.model / "runs"
    for layer in (0, 2, 4):
        (answer,) = opened.search([query], layer=layer, k=20)
        lines = (runs / f"L{layer}D32.trec").read_text().splitlines()[:20]
        assert [hit.docid for hit in answer.hits] == [line.split()[2] for line in lines]
    names = (grid.model, "model")
    own = evaluate(replace(asked, exits="model")).grids[0]
    assert own.layers == (1, 2, 3, 4)  # the model has no layer 0 of its own
    through, itself = (runs.parents[1] / name / "runs" / "L1D32.trec" for name in names)
    assert through.read_text() != itself.read_text()


def test_a_cut_is_picked_among_those_that_pass_the_exits_of_an_index(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("M2DR_DTYPE", "fp32")
    request = ask()
    asked = EvaluateRequest(
        (request.corpus,), (request.model,), dims=(8, 32), measures=("nDCG@10",), exits="index",
        root=request.root, out=tmp_path / "results", device="cpu",
    )  # fmt: skip
    report = evaluate(asked)
    keep_record(report)
    (grid,) = report.grids
    folder = report.folder / grid.model

    choice = pick_cut(PickRequest(folder, quality=0.2, root=request.root, device="cpu"))

    assert set(choice.costs.cells) == set(grid.cuts)  # layer 0 among them
    assert choice.costs.cells[Cut(0, 8)].multiply_adds < choice.costs.cells[Cut(1, 8)].multiply_adds
    assert choice.chosen.cut.layer < 4
    _, search = choice.commands(request.root)
    assert search.endswith("--document-layer 4 --dim " + f"{choice.chosen.cut.dim} --exits index")
    index_corpus(replace(request, dims=(choice.chosen.cut.dim,)))
    told = CliRunner().invoke(main, shlex.split(search)[1:])
    assert told.exit_code == 0, told.output
    (costs,) = measure_all_costs(replace(asked, layers=(0, 1)), report)
    assert {cut.layer for cut in costs.cells} == {0, 1}
