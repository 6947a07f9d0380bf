from dataclasses import replace
from pathlib import Path

import pytest

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.index.manifest import (
    IndexManifest,
    Label,
    StoreManifest,
    homes,
    only_home,
)


@pytest.fixture
def manifest(label: Label) -> IndexManifest:
    return IndexManifest("tiny", 35, 6, 8, "flat", "cosine", label, 10, "aa", "bb", "cc")


def test_paths_are_no_part_of_what_identifies_a_store(label: Label, tmp_path: Path) -> None:
    first = StoreManifest(
        corpus="tiny",
        layer=6,
        width=16,
        label=label,
        documents=0,
        shards=(),
        docids="aa",
        texts="b",
    )
    moved = replace(first, label=replace(label, model="elsewhere"))

    assert first.digest == moved.digest
    assert first.digest != replace(first, texts="cc").digest
    replace(first, documents=3).write(tmp_path)
    with pytest.raises(UserError, match="other numbers of rows than of documents"):
        StoreManifest.read(tmp_path)


def test_the_home_of_a_folder_is_found_from_within_and_from_above(
    tmp_path: Path, manifest: IndexManifest
) -> None:
    one, other = tmp_path / "a" / "0123456789ab", tmp_path / "b" / "0123456789ab"
    for home in (one, other, one.with_name("0123456789ab.new")):
        (home / "layer-06").mkdir(parents=True)
        (home / "layer-06" / "store.json").touch()
    index = one / "layer-06" / "dim-8"
    index.mkdir()
    manifest.write(index)

    assert homes(one) == homes(one / "layer-06") == homes(index) == homes(tmp_path / "a") == [one]
    assert homes(tmp_path) == [one, other]
    assert only_home(index) == one
    with pytest.raises(UserError, match="holds 2 indexes"):
        only_home(tmp_path)
    with pytest.raises(UserError, match="holds no finished index"):
        only_home(tmp_path / "none")


def test_labels_agree_wherever_the_model_lies_and_name_what_differs(label: Label) -> None:
    label.accept(replace(label, model="elsewhere", cuts=()), "tiny")
    other = replace(label, fingerprint="f" * 64, model="models/second")
    expected = (
        r"tiny were encoded by model 0123456789ab \(models/first\), and the queries by "
        r"ffffffffffff \(models/second\)"
    )
    with pytest.raises(UserError, match=expected):
        label.accept(other, "tiny")
    with pytest.raises(UserError, match=r"pooling .* against .*, similarity .* against"):
        label.accept(replace(label, pooling="cls", similarity="dot"), "tiny")


FITTED = ((0, 8), (6, 8))


@pytest.mark.parametrize(
    ("changes", "query", "documents", "expected"),
    [
        ({}, (6, 16), (6, 16), None),
        ({}, (6, 12), (6, 12), None),
        ({}, (6, 4), (6, 4), "L6D4 was not trained"),
        ({"cuts": ((1, 8), (6, 16)), "document_layer": "last"}, (1, 8), (6, 8), "L6D8 was not"),
        ({}, (1, 8), (6, 8), "not aligned"),
        ({"document_layer": "last"}, (1, 8), (6, 8), None),
        ({"document_layer": "last"}, (1, 8), (1, 8), "against documents of layer 6"),
        ({"cuts": FITTED}, (0, 8), (0, 8), None),
        ({"cuts": FITTED}, (0, 8), (6, 8), "not aligned"),
        ({"cuts": FITTED, "document_layer": "last"}, (0, 8), (6, 8), None),
        ({"cuts": FITTED, "document_layer": "last"}, (0, 8), (0, 8), "of layer 6"),
    ],
)
def test_what_was_not_trained_to_match_is_warned_of(
    label: Label,
    changes: dict[str, object],
    query: tuple[int, int],
    documents: tuple[int, int],
    expected: str | None,
) -> None:
    found = replace(label, **changes).warnings(Cut(*query), Cut(*documents))  # type: ignore[arg-type]  # fields of any type

    assert len(found) == (expected is not None)
    if expected:
        assert expected in found[0]
