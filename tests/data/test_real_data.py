"""Published data sets, where this machine has them."""

import os
from functools import cache
from pathlib import Path

import pytest

from m2dr.data.loaders import open_dataset

DATA = Path(os.environ.get("M2DR_DATA") or Path(__file__).parents[3] / "shared" / "data")


opened = cache(open_dataset)


def real(name: str) -> str:
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not below $M2DR_DATA")
    return str(DATA / name)


@pytest.mark.parametrize(
    ("name", "documents", "split", "queries", "judgements"),
    [
        ("beir/nfcorpus", 3_633, "test", 323, 12_334),
        ("beir/nfcorpus", 3_633, "train", 2_590, 110_575),
        ("beir/nfcorpus", 3_633, "dev", 324, 11_385),
        ("beir/scifact", 5_183, "test", 300, 339),
        ("beir/scifact", 5_183, "train", 809, 919),
        ("msmarco/passage-pool", 44_036, "dl19", 43, 9_260),
        ("msmarco/passage-pool", 44_036, "dl20", 54, 11_386),
        ("msmarco/passage-pool", 44_036, "dev_in_pool", 2_234, 2_237),
    ],
)
def test_a_published_data_set_has_its_published_size(
    name: str, documents: int, split: str, queries: int, judgements: int
) -> None:
    dataset = opened(real(name))

    assert dataset.document_count == documents
    assert len(dataset.queries(split)) == queries
    assert len(dataset.judgements(split)) == judgements
