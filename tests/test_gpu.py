"""What runs on a gpu, against the same on the processor or another library.

scripts/on_a_gpu runs these. With M2DR_TEST_DEVICE=cpu they run without a gpu, so that none rots:
`pytest tests/test_gpu.py -m gpu`; those marked slow have the like of them elsewhere.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from world import WORDS

from m2dr.core.records import Label
from m2dr.core.requests import IndexRequest, SearchRequest
from m2dr.core.settings import TrainSettings, read_settings
from m2dr.core.variants import VARIANTS
from m2dr.index.exact import ExactIndex, grid_top_k
from m2dr.index.manifest import StorePlan
from m2dr.index.store import Store, begin_store, open_store
from m2dr.model import checkpoint
from m2dr.model.backbones import BACKBONES
from m2dr.model.tokens import Ragged
from m2dr.tasks.indexing.index import index_corpus
from m2dr.tasks.searching.search import open_searcher
from m2dr.tasks.training.train import Setup, prepare, train

pytestmark = pytest.mark.gpu
DEVICE = os.environ.get("M2DR_TEST_DEVICE", "cuda")
KIND = torch.device(DEVICE).type
SHORT: dict[str, Any] = {"batch_size": 4, "dropout": 0.0, "evaluate_steps": 0, "steps": 3}
FASTER = {"query_length": 16, "document_length": 16, "log_steps": 1, "learning_rate": 1e-3}


@pytest.fixture
def fields(tiny_corpus: Path, tiny_backbone: Path) -> dict[str, Any]:
    """Settings of a training of the tiny world, on the device."""
    names = {"corpus": str(tiny_corpus), "backbone": str(tiny_backbone), "device": DEVICE}
    return {**names, **SHORT, **FASTER}


def setup_of(fields: Mapping[str, object], **more: object) -> Setup:
    torch.manual_seed(13)
    return prepare(read_settings(TrainSettings, None, (), {**fields, **more}), Path("nowhere"))


def moved(thing: object, device: str) -> object:
    """Tensors within dicts and lists, on a device."""
    if isinstance(thing, torch.Tensor):
        return thing.to(device)
    if isinstance(thing, dict):
        return {name: moved(value, device) for name, value in thing.items()}
    return [moved(value, device) for value in thing] if isinstance(thing, list) else thing


def loss_of(setup: Setup, device: str, bf16: bool) -> torch.Tensor:
    """Of the first batch; its gradients are left in the module."""
    batch = setup.batch([setup.examples[i] for i in range(4)])
    module = setup.module.train().to(device)
    with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=bf16):
        loss, _ = module(**moved(batch, device))
    loss.backward()
    return loss.detach().cpu()


def gradients(setup: Setup) -> dict[str, torch.Tensor]:
    found = setup.module.named_parameters()
    return {name: p.grad.cpu() for name, p in found if p.grad is not None}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_of_every_recipe_is_the_processors(variant: str, dtype: str, fields) -> None:
    dims = {"dims": (8,)} if variant == "separate" else {}
    here = setup_of(fields, variant=variant, **dims)
    there = setup_of(fields, variant=variant, device="cpu", **dims)

    found, expected = (
        loss_of(setup, device, dtype == "bf16" and device == DEVICE)
        for setup, device in ((here, DEVICE), (there, "cpu"))
    )

    close = 1e-3 if dtype == "fp32" else 0.05
    torch.testing.assert_close(found, expected, rtol=close, atol=close)
    ours, theirs = gradients(here), gradients(there)
    assert ours.keys() == theirs.keys()
    if dtype == "fp32":
        for name, gradient in theirs.items():
            torch.testing.assert_close(ours[name], gradient, rtol=1e-2, atol=1e-3)
    assert all(torch.isfinite(gradient).all() for gradient in ours.values())


@pytest.mark.parametrize(
    ("dtype", "more"),
    [
        ("bf16", {"exit_head": "linear", "variant": "full-dim"}),
        ("fp32", {"gradient_checkpointing": True, "variant": "elastic"}),
        ("bf16", {"negatives": 2, "variant": "dims", "weights": "dynamic"}),
        ("bf16", {"variant": "mipic", "gradient_cache": 64}),
        ("fp32", {"variant": "full-dim", "faithful": True}),
    ],
    ids=["exit heads", "checkpointing", "dynamic weights", "mipic", "faithful"],
)
def test_a_training_learns_and_its_model_opens(
    dtype: str, more: dict[str, Any], fields, tmp_path: Path
) -> None:
    table = {**fields, **more, "dtype": dtype, "steps": 6, "save_steps": 3}

    report = train(read_settings(TrainSettings, None, (), table), tmp_path / "model")

    encoder = checkpoint.load(tmp_path / "model", device=DEVICE)
    assert np.isfinite(encoder.vectors(WORDS[:3], "document", [1, 4])).all()
    assert np.isfinite(report.last_loss)


def token_rows(count: int) -> Ragged:
    """Token ids of texts of many lengths."""
    rng = np.random.default_rng(5)
    return Ragged.of([[2, *rng.integers(5, 60, n % 40).tolist(), 3] for n in range(count)])


@pytest.mark.parametrize("model_type", BACKBONES)
def test_vectors_are_the_processors(model_type: str, backbone: Callable[[str], Path]) -> None:
    rows, layers = token_rows(60), [1, 2, 4]
    here, there = (checkpoint.load(backbone(model_type), device=place) for place in (DEVICE, "cpu"))

    found = here.of_tokens(rows, layers)

    expected = there.of_tokens(rows, layers)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    again = here.of_tokens(rows, layers)
    np.testing.assert_array_equal(found, again)


def written(folder: Path, vectors: NDArray[np.float32], similarity: str = "cosine") -> Store:
    """A store of vectors."""
    label = Label(
        fingerprint="0" * 64, similarity=similarity, pooling="mean", query_length=64,
        document_length=64, documents="same",
    )  # fmt: skip
    writer = begin_store(folder, StorePlan("tiny", 1, vectors.shape[1], label, shard_rows=1000))
    for number, start in enumerate(range(0, len(vectors), 1000)):
        some = vectors[start : start + 1000]
        names = [f"d{row:05}" for row in range(start, start + len(some))]
        writer.write(number, names, some, b"")
    writer.finish()
    return open_store(folder)


def whole_numbers(rows: int, seed: int) -> NDArray[np.float32]:
    """Vectors whose products no rounding changes, and of which many are equal."""
    return np.random.default_rng(seed).integers(-3, 4, (rows, 32)).astype(np.float32)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "from files"])
@pytest.mark.parametrize(("queries", "k"), [(1, 10), (300, 10), (300, 2500), (5, 3000)])
def test_the_exact_engine_finds_what_numpy_finds(
    queries: int, k: int, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = (2**40, 2**40) if kept else (0, 2**40)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: memory)
    vectors, asked = whole_numbers(3000, 3), whole_numbers(queries, 4)
    store = written(tmp_path / "store", vectors, "dot")

    scores, rows = ExactIndex(store, 16, DEVICE).search(asked, k)

    products = asked[:, :16] @ vectors[:, :16].T
    # Of documents with equal scores an engine may find any.
    np.testing.assert_array_equal(scores, -np.sort(-products, axis=1)[:, :k])
    np.testing.assert_array_equal(scores, np.take_along_axis(products, rows, axis=1))
    assert all(len(set(found)) == scores.shape[1] for found in rows.tolist())


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_every_dim_in_one_pass_is_the_processors(similarity: str) -> None:
    vectors, asked = whole_numbers(1000, 3).astype(np.float16), whole_numbers(50, 4)

    here, there = (
        grid_top_k([asked], vectors, [8, 20, 32], 20, similarity, device)[0]
        for device in (DEVICE, "cpu")
    )

    for dim, (scores, rows) in there.items():
        np.testing.assert_allclose(here[dim][0], scores, rtol=1e-6)
        if similarity == "dot":
            np.testing.assert_array_equal(here[dim][1], rows)


@pytest.mark.parametrize("engine", ["flat", "ivf", "pq", "bits1", "hnsw"])
def test_faiss_searches_on_the_gpu_or_says_why_not(engine: str, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    from m2dr.index.faiss import build_index, on_gpu, open_faiss

    vectors = np.random.default_rng(2).normal(size=(5000, 32)).astype(np.float32)
    store, asked = written(tmp_path / "store", vectors), vectors[:50] + 0.01
    index = open_faiss(build_index(store, 32, engine, tmp_path / "store"), store)

    moved, reason = on_gpu(index, torch.device(DEVICE).index or 0)

    if KIND == "cuda" and hasattr(faiss, "StandardGpuResources") and engine != "hnsw":
        assert moved is not None, reason
    assert reason.startswith("FAISS ")
    for k in (1, 10, 3000):
        scores, rows = (moved or index).search(asked, k)
        expected, own = index.search(asked, k)
        assert np.mean(rows[:, 0] == own[:, 0]) > 0.9
        np.testing.assert_allclose(scores[:, 0], expected[:, 0], atol=1e-3)


@pytest.fixture
def model(fields, tmp_path: Path) -> Path:
    table = {**fields, "variant": "full-dim", "dims": (8,)}
    train(read_settings(TrainSettings, None, (), table), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_corpus_is_indexed_and_searched_as_on_the_processor(
    dtype: str, model: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    pytest.importorskip("faiss")
    found = []
    for device, form in ((DEVICE, dtype), ("cpu", "fp32")):
        root = tmp_path / device / form
        names = {"corpus": str(tiny_corpus), "model": str(model), "root": root, "device": device}
        index_corpus(IndexRequest(**names, dtype=form, dims=(8, 32), layers=(4,)))
        asked = SearchRequest(**names, dtype=form, dim=32, layer=4)
        for engine in ("", "exact"):
            searcher = open_searcher(replace(asked, engine=engine))
            found.append([hit.docid for hit in searcher.search("open a file", 5).hits])

    assert all(len(hits) == 5 for hits in found)
    if dtype == "fp32":
        assert found[0] == found[1] == found[2] == found[3]
