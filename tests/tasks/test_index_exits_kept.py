"""Exits of an index belong to its documents, and to how they were encoded; nothing else passes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from world import WORDS, make_fitted, make_model

from m2dr.core.errors import UserError
from m2dr.core.records import EXITS_FILE
from m2dr.core.requests import FitIndexRequest, IndexRequest, SearchRequest
from m2dr.index.exit_files import fitting_exits
from m2dr.model import checkpoint
from m2dr.model.checkpoint import export_cut
from m2dr.model.hub import EXITS, STATIC
from m2dr.model.static import open_static
from m2dr.tasks import fit_index as fitting
from m2dr.tasks.fit_index import HELD_OUT, SNIPPETS, fit_index, held_out, snippet_places
from m2dr.tasks.index import index_corpus
from m2dr.tasks.search import Searcher

Ask = Callable[..., IndexRequest]


def write_documents(folder: Path, seed: int = 13, count: int = 60, words: int = 6) -> Path:
    """A corpus of different documents, in the layout of BEIR."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(seed)
    texts = [" ".join(draw.choice(WORDS, words)) for _ in range(count)]
    rows = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q0", "text": texts[3]}) + "\n")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td3\t1\n")
    return folder


@pytest.fixture
def ask(tiny_backbone: Path, tmp_path: Path) -> Ask:
    model = make_model(tiny_backbone, tmp_path / "model", similarity="cosine")
    documents = write_documents(tmp_path / "many")

    def request(root: str = "indexes", **changes: object) -> IndexRequest:
        asked = IndexRequest(
            str(documents), str(model), root=tmp_path / root, device="cpu", dtype="fp32",
            shard_rows=16,
        )  # fmt: skip
        return replace(asked, **changes)

    return request


def folder_of(request: IndexRequest) -> Path:
    (folder,) = request.root.glob("*/*/exits")
    return folder


def store_of(request: IndexRequest) -> Path:
    return folder_of(request).parent / "layer-04"


def fit_of(request: IndexRequest, **changes: object) -> FitIndexRequest:
    asked = FitIndexRequest(request.corpus, request.model, request.root, "cpu", "fp32")
    return replace(asked, **changes)


def search_of(request: IndexRequest, layer: int = 2, **changes: object) -> SearchRequest:
    asked = SearchRequest(
        request.corpus, request.model, root=request.root, query_layer=layer, device="cpu",
        dtype="fp32",
    )  # fmt: skip
    return replace(asked, **changes)


def alike(one: IndexRequest, other: IndexRequest) -> bool:
    """Whether two indexes have the same exits, within 1e-6 of their largest value."""
    a, b = ({**load_file(f / EXITS), **load_file(f / STATIC)} for f in map(folder_of, (one, other)))
    return a.keys() == b.keys() and all(
        torch.allclose(
            a[name].float(), b[name].float(), atol=1e-6 * float(a[name].float().abs().max())
        )
        for name in a
    )


def change_card(model: str, **fields: object) -> None:
    path = Path(model) / "m2dr.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def unfitted(request: IndexRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode all documents, and stop before the exits are fitted: all states are left."""

    def dies(*_: object) -> None:
        raise RuntimeError("the power went")

    with monkeypatch.context() as patch:
        patch.setattr(fitting, "_fit", dies)
        with pytest.raises(RuntimeError):
            index_corpus(request)
    assert len(list(folder_of(request).glob("states-*"))) == 4


def flip(path: Path) -> None:
    """Change the last byte of a file; its header and its size stay."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


# How the documents were encoded


def test_documents_that_are_encoded_otherwise_get_other_exits(ask: Ask) -> None:
    one, other = ask(), ask("other")
    index_corpus(one)
    change_card(one.model, document_prefix="the file ")
    index_corpus(replace(one, overwrite=True))
    index_corpus(other)
    assert alike(one, other)


def test_exits_of_another_encoding_do_not_fit(ask: Ask) -> None:
    request = ask()
    index_corpus(request)
    kept = folder_of(request) / EXITS_FILE
    before = kept.read_bytes()
    change_card(request.model, document_length=5)
    index_corpus(replace(request, overwrite=True, exits=False))
    kept.write_bytes(before)
    assert fitting_exits(store_of(request)) is None


def test_a_model_that_encodes_otherwise_by_now_fits_no_exits(ask: Ask) -> None:
    request = ask(exits=False)
    index_corpus(request)
    change_card(request.model, document_prefix="the file ")
    with pytest.raises(UserError, match=r"document_prefix.* m2dr index corpus .*--overwrite"):
        fit_index(fit_of(request))


# Which documents


@pytest.mark.parametrize(("seed", "count"), [(14, 60), (13, 40), (13, 64), (13, 61)])
def test_documents_that_have_changed_are_refused_though_all_states_are_there(
    seed: int, count: int, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask()
    unfitted(request, monkeypatch)
    write_documents(Path(request.corpus), seed, count)
    with pytest.raises(UserError, match=r"are not those .*m2dr index corpus .*--overwrite"):
        fit_index(fit_of(request))


def test_a_fit_reads_its_held_out_documents_in_no_snippet(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask(exits=False)
    write_documents(Path(request.corpus), count=320, words=30)
    index_corpus(request)
    seen, inner = [], fitting.fit_states
    monkeypatch.setattr(
        fitting,
        "fit_states",
        lambda *args, **more: seen.append((args[2], args[-1])) or inner(*args, **more),
    )
    fit_index(fit_of(request))
    ((rows, parts),) = seen
    assert len(rows) == 320
    assert 0.05 < parts.held.mean() < 0.25
    held = {place for place in range(320) if place % 8 == 7}
    assert set(parts.places[parts.held].tolist()) <= held
    assert not set(parts.places[~parts.held].tolist()) & held


@pytest.mark.parametrize("count", [0, 7, 8, 150, 8191, 8200, 9999, 16383, 20_000])
def test_few_texts_are_held_out_and_some_snippets_with_them(count: int) -> None:
    held = held_out(count)
    assert held.sum() <= HELD_OUT
    assert held.sum() >= min(count // 8, HELD_OUT // 2)
    places = snippet_places(held)
    assert len(places) == min(count // 4, SNIPPETS)
    assert held[places].sum() == len(places) // 8
    if count > 100:
        assert np.diff(places, append=count).max() <= 3 * count / len(places)


# Which files


@pytest.mark.parametrize("name", [EXITS, STATIC])
def test_a_file_of_exits_that_was_changed_is_refused(name: str, ask: Ask) -> None:
    request = ask()
    index_corpus(request)
    flip(folder_of(request) / name)
    again = f"m2dr index fit --corpus {request.corpus} --model {request.model} --indexes"
    with pytest.raises(UserError, match=rf"not the file .*{again} \S+ --overwrite"):
        Searcher(search_of(request))
    if name == STATIC:
        with pytest.raises(UserError, match=rf"not the file .*{again} \S+ --overwrite"):
            Searcher(search_of(request, 0))


def test_exits_of_another_model_are_refused(ask: Ask) -> None:
    request = ask()
    index_corpus(request)
    kept = folder_of(request) / EXITS_FILE
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "fingerprint": "0" * 64}))
    with pytest.raises(UserError, match="by model 000000000000"):
        open_static(request.model, folder_of(request))
    with pytest.raises(UserError, match="by model 000000000000"):
        checkpoint.load(request.model, exits=folder_of(request))


def test_the_earlier_exits_serve_until_others_are_fitted(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, there, inner = ask(), [], fitting.fit_states
    index_corpus(request)
    monkeypatch.setattr(
        fitting,
        "fit_states",
        lambda *args, **more: (
            there.append(fitting_exits(store_of(request))) or inner(*args, **more)
        ),
    )
    fit_index(fit_of(request, overwrite=True))
    assert there == [folder_of(request)]


# What mends them


# Where there are none


def test_a_cut_that_ends_in_an_exit_of_its_own_keeps_it(ask: Ask, tmp_path: Path) -> None:
    request = ask()
    index_corpus(request)
    fitted = make_fitted(Path(request.model), tmp_path / "fitted", documents="same")
    cut = tmp_path / "cut"
    export_cut(fitted, 2, cut)
    with pytest.raises(UserError, match="ends in a fitted exit"):
        checkpoint.load(cut, exits=folder_of(request))
    of_cut = ask("of-cut", model=str(cut))
    index_corpus(of_cut)
    assert not list(of_cut.root.glob("*/*/exits"))
    with pytest.raises(UserError, match="ends in a fitted exit"):
        fit_index(fit_of(of_cut))
    Searcher(search_of(of_cut, 1))
