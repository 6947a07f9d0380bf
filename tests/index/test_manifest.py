import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m2dr.core.errors import UserError
from m2dr.core.files import read_record, write_record
from m2dr.core.records import Cut
from m2dr.index.engines import ENGINES
from m2dr.index.faiss import FaissIndex
from m2dr.index.layout import store_folder
from m2dr.index.manifest import IndexManifest, Label, PartialStore, StoreManifest, StorePlan
from m2dr.index.searchable import Docids

texts = st.text(st.characters(codec="utf-8"))
counts = st.integers(1, 2**53)
lengths = {"query_length": counts, "document_length": counts}
labels = st.builds(Label, texts, **lengths, cuts=st.lists(st.tuples(counts, counts)).map(tuple))
layers = st.integers(0, 2**53)
plans = st.builds(StorePlan, layer=layers, width=counts, label=labels, shard_rows=counts)
partials = st.builds(PartialStore, plan=plans)


@pytest.fixture
def manifest(label: Label) -> IndexManifest:
    return IndexManifest("tiny", 35, 6, 8, "flat", "cosine", label, 10, "aa", "bb", "cc")


@settings(max_examples=40, deadline=None)
@given(partial=partials)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, partial: PartialStore
) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.json"

    write_record(path, partial)

    assert read_record(path, PartialStore) == partial


def test_a_manifest_is_sorted_and_indented(tmp_path: Path, manifest: IndexManifest) -> None:
    manifest.write(tmp_path)

    text = (tmp_path / "manifest.json").read_text()
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"
    assert IndexManifest.read(tmp_path) == manifest


@pytest.fixture
def index(manifest: IndexManifest) -> FaissIndex:
    return FaissIndex(manifest, Docids(b""), ENGINES["flat"], None)


def test_an_index_refuses_queries_of_another_dim_with_the_command_that_builds_theirs(
    index: FaissIndex, label: Label
) -> None:
    index.accept(label, Cut(1, 8))

    with pytest.raises(
        UserError,
        match="dimension 16 .* m2dr index corpus --corpus 'corpora/my tiny' --model models/first --layer 6 --dim 16",
    ):
        index.accept(label, Cut(1, 16))


def test_an_index_refuses_queries_of_another_model(index: FaissIndex, label: Label) -> None:
    with pytest.raises(UserError, match="come from model ffffffffffff"):
        index.accept(replace(label, fingerprint="f" * 64), Cut(6, 8))


def test_an_index_warns_of_a_query_layer_that_its_documents_are_not_aligned_with(
    index: FaissIndex,
) -> None:
    assert index.warnings(Cut(6, 8)) == []
    assert "not aligned" in index.warnings(Cut(1, 8))[0]


def test_where_the_model_lies_is_no_part_of_what_identifies_a_store(label: Label) -> None:
    first = StoreManifest("tiny", 35, 6, 16, "f16", 10, label, (), "aa", "bb")
    moved = replace(first, label=replace(label, model="elsewhere"))
    longer = replace(first, texts="cc")

    assert first.digest == moved.digest
    assert first.digest != longer.digest


@pytest.mark.parametrize("corpus", ["", "/etc", "../up", "a/../../b"])
def test_a_corpus_name_that_leaves_the_folder_of_indexes_is_refused(corpus: str) -> None:
    with pytest.raises(UserError, match="cannot name a corpus"):
        store_folder(Path("indexes"), corpus, "0" * 64, 6)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dtype": "f8"}, "cannot be stored as 'f8'. Known: f16, f32"),
        ({"width": 0}, "a layer from 0, and a dim and a row per shard at least, not 6, 0"),
        ({"layer": -1}, "a layer from 0, .*, not -1, 16 and 10"),
    ],
)
def test_an_impossible_plan_is_refused(
    plan: StorePlan, settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        replace(plan, **settings)
