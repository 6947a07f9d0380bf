import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import run

from m2dr.core.files import sha256_of
from m2dr.core.requests import IndexRequest, VerifyRequest
from m2dr.index.manifest import StoreManifest
from m2dr.index.store import open_store
from m2dr.tasks.indexing.index import index_corpus
from m2dr.tasks.indexing.verify import verify


@pytest.fixture
def folder(tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path) -> Path:
    """A store of the tiny corpus in four shards, with one index."""
    index_corpus(
        IndexRequest(
            str(tiny_corpus), str(tiny_backbone), layers=(2,), dims=(8,), root=tmp_path,
            device="cpu", shard_rows=10,
        )
    )  # fmt: skip
    return next(tmp_path.glob("*/*/layer-02"))


def problems(folder: Path, corpus: Path, sample: int = 4) -> str:
    (verdict,) = verify(VerifyRequest((folder,), corpus=str(corpus), sample=sample, device="cpu"))
    return " ".join(verdict.problems)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("vectors-00002.f16", r"vectors-00002\.f16 is missing or not the file"),
        ("docids.txt", r"docids\.txt"),
        ("dim-8/index", r"index is not the file that was written"),
        ("dim-8/docid", r"docid does not hold the docids that were written"),
    ],
)
def test_one_flipped_bit_is_found(folder: Path, tiny_corpus: Path, name: str, reason: str) -> None:
    flip(folder / name)

    found = run("index", "verify", folder, "--corpus", tiny_corpus, "--device", "cpu")

    assert found.exit_code == 2
    assert "WRONG" in found.output
    assert re.search(reason, problems(folder, tiny_corpus), re.DOTALL)


def test_vectors_that_the_model_would_not_give_are_found_by_the_sample(
    folder: Path, tiny_corpus: Path
) -> None:
    """As after a fault that came before the checksum."""
    shutil.rmtree(folder / "dim-8")  # which is of the store as it was
    shard = open_store(folder).manifest.shards[0]
    vectors = np.fromfile(folder / shard.name, "<f2").reshape(10, -1)
    vectors[0] *= -1
    vectors.tofile(folder / shard.name)
    held = StoreManifest.read(folder)
    changed = replace(shard, sha256=sha256_of(folder / shard.name))
    replace(held, shards=(changed, *held.shards[1:])).write(folder)

    assert "'d0'" in problems(folder, tiny_corpus)
    assert "cosine -1.000" in problems(folder, tiny_corpus)
    assert not problems(folder, tiny_corpus, sample=0)
