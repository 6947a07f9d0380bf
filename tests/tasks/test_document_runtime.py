"""Stores of documents that OpenVINO encoded: interrupted, resumed, shared among workers, refused."""

from pathlib import Path

import numpy as np
import pytest
from world import stopped_after

import m2dr
from m2dr.core.errors import Interrupted, UserError
from m2dr.core.files import read_record
from m2dr.core.requests import IndexRequest
from m2dr.data.loaders import open_dataset
from m2dr.index.exit_files import exits_folder, fitting_exits
from m2dr.index.manifest import StorePlan
from m2dr.index.store import Store, open_store
from m2dr.model.graphs import OPENVINO, RUNTIMES
from m2dr.tasks.index import index_corpus

pytestmark = pytest.mark.skipif(
    not RUNTIMES[OPENVINO].installed, reason="openvino is not installed"
)


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("M2DR_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("m2dr.index.exit_files.FEWEST", 1)  # exits of few documents, as of many
        yield


def request(corpus: Path, backbone: Path, root: Path, **changes: object) -> IndexRequest:
    fields = {
        "layers": (2, 4), "dims": (8,), "root": root, "device": "cpu", "dtype": "fp32",
        "shard_rows": 10, "runtime": OPENVINO, "exits": True,
    }  # fmt: skip
    return IndexRequest(str(corpus), str(backbone), **{**fields, **changes})  # type: ignore[arg-type]  # fields of any type


@pytest.fixture(scope="module")
def whole(tiny_corpus: Path, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of layers 2 and 4, encoded without an interruption."""
    root = tmp_path_factory.mktemp("whole")
    index_corpus(request(tiny_corpus, tiny_backbone, root))
    return root


def store_of(root: Path, layer: int = 4) -> Store:
    return open_store(next(root.glob(f"*/*/layer-{layer:02d}")))


def vectors_of(root: Path) -> dict[str, bytes]:
    """The bytes of all vectors, and of the exits that were fitted on them."""
    paths = [*root.glob("*/*/*/vectors-*"), *root.glob("*/*/exits/exits.safetensors")]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def begun(asked: IndexRequest) -> None:
    with stopped_after(4), pytest.raises(Interrupted, match="20 of 40 documents"):
        index_corpus(asked)


def test_a_store_says_which_runtime_made_it_and_exits_are_fitted_on_its_states(
    whole: Path,
) -> None:
    assert {store_of(whole, layer).manifest.runtime for layer in (2, 4)} == {OPENVINO}
    assert fitting_exits(store_of(whole).folder) == exits_folder(store_of(whole).folder)


def test_an_interrupted_encoding_goes_on_in_its_runtime_and_ends_with_the_same_bytes(
    whole: Path, tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    begun(request(tiny_corpus, tiny_backbone, tmp_path))
    folder = next(tmp_path.glob("*/*/layer-04"))
    assert read_record(folder / "store.partial.json", StorePlan).runtime == OPENVINO

    with pytest.raises(UserError, match=r"has runtime 'openvino', not 'torch'"):
        index_corpus(request(tiny_corpus, tiny_backbone, tmp_path, runtime="torch"))
    index_corpus(request(tiny_corpus, tiny_backbone, tmp_path, runtime="auto"))

    assert vectors_of(tmp_path) == vectors_of(whole)
    assert store_of(tmp_path).manifest == store_of(whole).manifest


@pytest.mark.slow
def test_workers_give_the_same_bytes(
    whole: Path, tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    index_corpus(request(tiny_corpus, tiny_backbone, tmp_path, workers=2))

    assert vectors_of(tmp_path) == vectors_of(whole)


def test_an_encoder_gives_the_documents_of_an_index_of_its_runtime(
    whole: Path, tiny_backbone: Path, tiny_corpus: Path
) -> None:
    texts = [document.content for document in open_dataset(str(tiny_corpus)).documents()]
    encoder = m2dr.Encoder.from_pretrained(
        tiny_backbone, runtime=OPENVINO, device="cpu", dtype="fp32"
    )

    found = encoder.encode_documents(texts)

    held = store_of(whole).rows(np.arange(len(texts)))
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(held, axis=1)
    assert ((found * held).sum(axis=1) / norms).min() > 0.9999
