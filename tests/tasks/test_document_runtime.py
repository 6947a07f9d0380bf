"""Stores of documents that OpenVINO encoded, also in int8: resumed, shared, synced, refused."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from world import stopped_after

import m2dr
from m2dr.core.errors import Interrupted, UserError
from m2dr.core.files import read_record
from m2dr.core.requests import IndexRequest
from m2dr.data.loaders import open_dataset
from m2dr.index.folder import IndexFolder
from m2dr.index.manifest import StorePlan
from m2dr.index.store import Store, open_store
from m2dr.maps.files import Maps
from m2dr.model.graphs import INT8, OPENVINO, RUNTIMES
from m2dr.model.words import unit_rows
from m2dr.tasks.indexing.index import index_corpus

pytestmark = pytest.mark.skipif(
    not RUNTIMES[OPENVINO].installed, reason="openvino is not installed"
)


# Weights at random tell few documents apart, and lose more on processors without VNNI, whose sums
# of int8 saturate: how much is lost is not looked at.
@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("M2DR_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("m2dr.model.int8.MOST_LOSS", 1)
        patch.setattr("m2dr.model.int8.LEAST_INT8_COSINE", 0)
        # Exits of few documents, as of many.
        patch.setattr("m2dr.maps.files.FEWEST_DOCUMENTS", 1)
        yield


@pytest.fixture(scope="module", params=["fp32", "int8"], autouse=True)
def dtype(request: pytest.FixtureRequest) -> str:
    if request.param == "int8":
        pytest.importorskip("nncf")
    return str(request.param)


def request(
    corpus: Path, backbone: Path, root: Path, dtype: str, **changes: object
) -> IndexRequest:
    fields = {
        "layers": (2, 4), "dims": (8,), "root": root, "device": "cpu", "dtype": dtype,
        "shard_rows": 10, "runtime": OPENVINO, "exits": True,
    }  # fmt: skip
    return IndexRequest(str(corpus), str(backbone), **{**fields, **changes})  # type: ignore[arg-type]  # fields of any type


@pytest.fixture(scope="module")
def whole(
    tiny_corpus: Path, tiny_backbone: Path, dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Stores of layers 2 and 4, encoded without an interruption."""
    root = tmp_path_factory.mktemp(f"whole-{dtype}")
    index_corpus(request(tiny_corpus, tiny_backbone, root, dtype))
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
    (runtime,) = {store_of(whole, layer).manifest.runtime for layer in (2, 4)}
    assert runtime.startswith(OPENVINO)
    assert Maps(IndexFolder.holding(store_of(whole).folder)).are_fitted


def test_an_interrupted_encoding_goes_on_in_its_runtime_and_ends_with_the_same_bytes(
    whole: Path, tiny_corpus: Path, tiny_backbone: Path, dtype: str, tmp_path: Path
) -> None:
    begun(request(tiny_corpus, tiny_backbone, tmp_path, dtype))
    folder = next(tmp_path.glob("*/*/layer-04"))
    assert read_record(folder / "store.partial.json", StorePlan).runtime.startswith(OPENVINO)

    with pytest.raises(UserError, match=r"has runtime 'openvino.*', not 'torch'|not in torch"):
        index_corpus(request(tiny_corpus, tiny_backbone, tmp_path, dtype, runtime="torch"))
    index_corpus(request(tiny_corpus, tiny_backbone, tmp_path, dtype, runtime="auto"))

    assert vectors_of(tmp_path) == vectors_of(whole)
    assert store_of(tmp_path).manifest == store_of(whole).manifest


@pytest.mark.slow
def test_workers_give_the_same_bytes(
    whole: Path, tiny_corpus: Path, tiny_backbone: Path, dtype: str, tmp_path: Path
) -> None:
    index_corpus(request(tiny_corpus, tiny_backbone, tmp_path, dtype, workers=2))

    assert vectors_of(tmp_path) == vectors_of(whole)


def test_an_encoder_gives_the_documents_of_an_index_of_its_runtime(
    whole: Path, tiny_backbone: Path, tiny_corpus: Path, dtype: str
) -> None:
    texts = [document.content for document in open_dataset(str(tiny_corpus)).documents()]
    encoder = m2dr.Encoder.from_pretrained(
        tiny_backbone, runtime=OPENVINO, device="cpu", dtype=dtype
    )

    found = encoder.encode_documents(texts)

    held = store_of(whole).rows(np.arange(len(texts)))
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(held, axis=1)
    assert ((found * held).sum(axis=1) / norms).min() > 0.9999


def test_a_changed_corpus_is_encoded_by_the_same_graph(
    tiny_corpus: Path, tiny_backbone: Path, dtype: str, tmp_path: Path
) -> None:
    corpus, root = tmp_path / "tiny", tmp_path / "indexes"
    shutil.copytree(tiny_corpus, corpus)
    index_corpus(request(corpus, tiny_backbone, root, dtype))
    before = store_of(root).manifest.runtime
    lines = (corpus / "corpus.jsonl").read_text().splitlines()
    new = json.loads(lines[3]) | {"_id": "new"}
    (corpus / "corpus.jsonl").write_text("\n".join([*lines[1:], json.dumps(new)]) + "\n")

    index_corpus(request(corpus, tiny_backbone, root, "auto", runtime="auto"))

    vectors = store_of(root).rows(np.arange(len(lines)))
    assert store_of(root).manifest.runtime == before
    np.testing.assert_array_equal(vectors[2], vectors[-1])


@pytest.fixture
def in_int8(dtype: str) -> None:
    if dtype != "int8":
        pytest.skip("of int8 alone")


@pytest.mark.usefixtures("in_int8")
class TestInt8:
    """What holds for int8 alone."""

    def test_vectors_are_near_those_of_fp32(
        self, whole: Path, tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
    ) -> None:
        index_corpus(request(tiny_corpus, tiny_backbone, tmp_path, "fp32"))

        exact, coarse = (
            unit_rows(store_of(root).rows(np.arange(40))) for root in (tmp_path, whole)
        )
        cosines = (exact * coarse).sum(axis=1)
        assert cosines.mean() > 0.98
        assert not np.array_equal(exact, coarse)

    def test_products_are_timed_on_a_processor_with_avx2_alone(self) -> None:
        code = "from m2dr.model.int8 import product_rate as rate; print(rate('int8'), rate('fp32'))"
        limited = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
        printed = subprocess.check_output([sys.executable, "-c", code], env=limited, text=True)
        assert min(map(float, printed.split())) > 0

    def test_vectors_of_another_number_format_are_refused(
        self, tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
    ) -> None:
        asked = partial(request, tiny_corpus, tiny_backbone, tmp_path)
        index_corpus(asked("fp32"))

        with pytest.raises(UserError, match="was encoded in openvino, not in int8"):
            index_corpus(asked("int8"))
        index_corpus(asked("int8", overwrite=True))
        with pytest.raises(UserError, match=r"encoded in openvino-int8-\w+, not in fp32"):
            index_corpus(asked("fp32"))

        assert store_of(tmp_path).manifest.runtime.startswith(INT8)

    def test_a_graph_that_was_lost_is_missed(
        self, tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
    ) -> None:
        asked = request(tiny_corpus, tiny_backbone, tmp_path, "int8")
        begun(asked)
        shutil.rmtree(next(tmp_path.glob("*/*/int8")))

        for again in (asked, replace(asked, dtype="auto", runtime="auto")):
            with pytest.raises(UserError, match="does not hold the graph of openvino-int8"):
                index_corpus(again)

    def test_another_layer_has_the_same_graph(
        self, whole: Path, tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
    ) -> None:
        for layers in ((4,), (2, 4)):
            index_corpus(request(tiny_corpus, tiny_backbone, tmp_path, "int8", layers=layers))

        assert vectors_of(tmp_path) == vectors_of(whole)

    def test_few_documents_leave_an_encoder_as_it_was(self, tiny_backbone: Path) -> None:
        encoder = m2dr.Encoder(tiny_backbone, device="cpu", dtype="int8")
        with pytest.raises(UserError, match="32 documents at least; there are 2"):
            encoder.encode_documents(["a b", "c"])

        vectors = encoder.encode_documents([f"word{n} and others" for n in range(32)])

        np.testing.assert_array_equal(encoder.encode_documents("word0 and others"), vectors[0])

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("LEAST_INT8_COSINE", 1.1, r"loses too much in int8: cosine \d\.\d+"),
            ("MOST_LOSS", -2.0, "mean reciprocal rank"),
            ("LEAST_DOCUMENTS", 41, "calibrated on 41 documents at least; there are 40"),
        ],
    )
    def test_what_is_not_good_is_refused(
        self, name: str, value: float, said: str, tiny_corpus: Path, tiny_backbone: Path,
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(f"m2dr.model.int8.{name}", value)

        with pytest.raises(UserError, match=said):
            index_corpus(request(tiny_corpus, tiny_backbone, tmp_path, "int8"))

        assert not list(tmp_path.glob("*/*/int8*"))
