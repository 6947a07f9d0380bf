"""`m2dr index corpus --engine` and `--factory` as a person uses them."""

from pathlib import Path

import pytest
from shell import m2dr

from m2dr.index.layout import built_indexes


@pytest.fixture
def words(tiny_corpus: Path, tiny_backbone: Path) -> list[str]:
    common = ["--model", str(tiny_backbone), "--corpus", str(tiny_corpus), "--device", "cpu"]
    return ["index", "corpus", *common, "--layer", "4"]


def test_engines_are_added_later_without_encoding(words: list[str], tmp_path: Path) -> None:
    first = m2dr(*words, "--dim", "8", cwd=tmp_path)
    later = m2dr(
        *words, "--dim", "8", "--engine", "hnsw", "--engine", "pq", "--factory", "PCA4,Flat",
        cwd=tmp_path,
    )  # fmt: skip

    assert (first.returncode, later.returncode) == (0, 0), later.stderr
    assert "Encoding" not in later.stderr
    assert "32 centroids per part instead of 256" in later.stderr
    folder = next((tmp_path / "indexes").rglob("store.json")).parent
    engines = [index.engine for index in built_indexes(folder)]
    assert engines[:2] == ["flat", "hnsw"]
    assert engines[2].startswith("pca4-flat-")
    assert engines[3] == "pq"


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (["--engine", "hsnw"], "no engine 'hsnw'. Did you mean hnsw?"),
        (["--factory", "garbage"], "could not parse index string garbage"),
        (["--engine", ""], "no engine ''"),
    ],
)
def test_an_engine_that_cannot_be_is_refused_before_anything_is_encoded(
    words: list[str], tmp_path: Path, garbage: list[str], reason: str
) -> None:
    ended = m2dr(*words, "--dim", "8", *garbage, cwd=tmp_path)

    assert ended.returncode != 0
    assert reason in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "indexes").exists()
