"""A server of the tiny world, which the tests of this folder share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from http_serving import CPU, Server, World

from m2dr.core.requests import IndexRequest
from m2dr.tasks.indexing.index import index_corpus


@pytest.fixture(scope="session")
def world(tiny_fitted: Path, tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("served") / "indexes"
    index_corpus(
        IndexRequest(
            str(tiny_corpus), str(tiny_fitted), dims=(16, 32), root=root, device="cpu", dtype="fp32"
        )
    )
    home = next(root.rglob("layer-04/store.json")).parents[1]
    return World(tiny_corpus, tiny_fitted, root, home)


@pytest.fixture(scope="session")
def server(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with Server("--index", world.home, *CPU, "--max-body", "100000000", cwd=folder) as running:
        yield running
