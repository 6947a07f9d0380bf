"""A label, and stores made of arrays."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from world import stop_milvus

from m2dr.core.records import Cut, Label
from m2dr.index.manifest import StorePlan
from m2dr.index.milvus import Server
from m2dr.index.store import Store, begin_store, open_store, text_digests

Build = Callable[..., Store]


@pytest.fixture(scope="session")
def label() -> Label:
    return Label(
        fingerprint="0123456789abcdef" * 4,
        similarity="cosine",
        pooling="mean",
        query_prefix="query: ",
        document_prefix="",
        query_length=32,
        document_length=128,
        documents="same",
        cuts=(Cut(1, 8), Cut(1, 16), Cut(6, 8), Cut(6, 16)),
        model="models/first",
        source="corpora/my tiny",
    )


@pytest.fixture(scope="session")
def plan(label: Label) -> StorePlan:
    return StorePlan("tiny", layer=6, width=16, label=label, shard_rows=10)


@pytest.fixture(scope="session")
def build(plan: StorePlan) -> Build:
    """Write vectors [n, H] to a folder and open them as a store."""

    def build(
        folder: Path,
        vectors: NDArray[np.float32],
        docids: Sequence[str] = (),
        similarity: str = "cosine",
        **settings: object,
    ) -> Store:
        names = list(docids) or [f"d{row}" for row in range(len(vectors))]
        own = replace(plan.label, similarity=similarity)
        made = replace(plan, width=vectors.shape[1], label=own, **settings)
        writer = begin_store(folder, made)
        for number, start in enumerate(range(0, len(names), made.shard_rows)):
            rows = slice(start, start + made.shard_rows)
            writer.write(number, names[rows], vectors[rows], text_digests(names[rows]))
        writer.finish()
        return open_store(folder)

    return build


@pytest.fixture
def vectors() -> NDArray[np.float32]:
    """35 vectors of 16 dims: four shards of the plan, the last one short."""
    return np.random.default_rng(13).normal(size=(35, 16)).astype(np.float32)


@pytest.fixture
def queries() -> NDArray[np.float32]:
    return np.random.default_rng(7).normal(size=(5, 16)).astype(np.float32)


@pytest.fixture
def store(tmp_path: Path, build: Build, vectors: NDArray[np.float32]) -> Store:
    return build(tmp_path / "tiny" / "0123456789ab" / "layer-06", vectors)


@pytest.fixture(scope="session")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A file of Milvus Lite that every test shares; each writes to a collection of its own."""
    path = str(tmp_path_factory.mktemp("milvus") / "local.db")
    yield path
    stop_milvus(path)


@pytest.fixture
def server(uri: str) -> Iterator[Server]:
    server = Server(uri, create=True)
    yield server
    server.close()
