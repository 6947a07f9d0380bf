"""Whatever runs an encoder, for queries or for documents, gives the vectors that torch gives."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from world import make_backbone

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.model import graphs
from m2dr.model.backbones import BACKBONES
from m2dr.model.checkpoint import load, open_model, save
from m2dr.model.export import cut_model
from m2dr.model.graphs import OPENVINO, RUNTIMES, DocumentSource, choose_runtime, open_graph
from m2dr.model.hub import ONNX_FILE
from m2dr.tasks.query import open_queries, plan_of_model

QUICK = ("bert",)  # an export takes seconds; the others run with -m slow
SHAPES = [(1, 1), (1, 9), (2, 2), (5, 11), (4, 6), (3, 8)]
ALL = [0, 1, 2, 3, 4]
Batch = tuple[NDArray[np.int64], NDArray[np.int64]]
BACKBONE_TYPES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in BACKBONES
]

pytestmark = pytest.mark.skipif(
    not all(kind.installed for kind in RUNTIMES.values()), reason="a runtime is not installed"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def saved(
    backbone: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """A model with an exit head at layer 2; a decoder attends both ways."""
    made: dict[str, Path] = {}

    def get(model_type: str) -> Path:
        if model_type not in made:
            encoder, tokenizer = load(backbone(model_type))
            encoder.add_exit_heads([2])
            encoder.exit_heads["2"].weight.data.mul_(0.5).add_(0.01)
            if BACKBONES[model_type].causal:
                encoder.card = replace(encoder.card, attention="bidirectional")
            pooling = "mean" if model_type == "bert" else encoder.card.pooling
            folder = tmp_path_factory.mktemp(f"saved-{model_type}")
            save(encoder, tokenizer, replace(encoder.card, pooling=pooling), folder)
            made[model_type] = folder
        return made[model_type]

    return get


@pytest.fixture(scope="module")
def fitted(tiny_fitted: Path, cache: Path) -> DocumentSource:
    return DocumentSource(open_model(tiny_fitted), 4, "cpu", "fp32", cache)


def padded(texts: int, tokens: int) -> Batch:
    """Ids and mask [B, T]; each text is one token shorter than the one before, down to one."""
    ids = np.random.default_rng(texts * tokens).integers(4, 60, (texts, tokens))
    mask = (np.arange(tokens) < np.maximum(tokens - np.arange(texts), 1)[:, None]).astype(np.int64)
    return ids * mask, mask


def batches() -> list[Batch]:
    return [padded(*shape) for shape in SHAPES]


def cosine(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    return float(((left * right).sum(axis=-1) / norms).min())


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize("model_type", BACKBONE_TYPES)
def test_queries_have_torchs_vectors(
    model_type: str, kind: str, saved: Callable[[str], Path], cache: Path
) -> None:
    model = str(saved(model_type))
    graph = open_graph(kind, open_model(model), 2, "auto", "auto", cache).runtime
    encoder, _ = load(model)
    for batch in batches():
        found = graph.embed(*batch, [2])
        np.testing.assert_allclose(found, encoder.embed(*batch, [2]), atol=1e-5)
    with pytest.raises(UserError, match="Layer 3 was asked for; this graph gives layer 2"):
        graph.embed(*padded(1, 3), [3])


def test_queries_have_the_vectors_of_fitted_exits_and_their_words(
    tiny_fitted: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("M2DR_CACHE", str(cache))
    texts = ["open the file", "a list of numbers", "unheard", ""]
    found = []
    for runtime in ("torch", "onnx"):
        queries = open_queries(plan_of_model(open_model(tiny_fitted), 2), runtime, "cpu", "fp32")
        found.append(queries.embed(queries.tokenize(texts), texts))
    np.testing.assert_allclose(*found, atol=1e-5)


@pytest.mark.parametrize("model_type", BACKBONE_TYPES)
def test_documents_have_torchs_vectors_and_states(
    model_type: str, saved: Callable[[str], Path], cache: Path
) -> None:
    model = str(saved(model_type))
    graph = DocumentSource(open_model(model), 4, "cpu", "fp32", cache).open(OPENVINO).runtime
    encoder, _ = load(model)
    for vectors, batch in zip(graph.embed_many(iter(batches()), ALL), batches(), strict=True):
        np.testing.assert_allclose(vectors, encoder.embed(*batch, ALL), atol=1e-4)
    expected = encoder.states_many(iter(batches()), [3, 4])
    for states, others in zip(graph.states_many(iter(batches()), [3, 4]), expected, strict=True):
        np.testing.assert_allclose(states, others, atol=1e-4)


@pytest.mark.parametrize("model_type", ["gemma3_text", "modernbert"])
def test_padding_beyond_the_window_of_a_layer_changes_no_vector(
    model_type: str, tmp_path: Path
) -> None:
    window = {"sliding_window": 4, "local_attention": 4}
    model = open_model(make_backbone(tmp_path / "backbone", model_type, **window))
    batch = padded(2, 40)
    batch[1][1, 2:] = 0

    documents = DocumentSource(model, 4, "cpu", "fp32", tmp_path).open(OPENVINO).runtime

    (found,) = documents.embed_many([batch], ALL)
    np.testing.assert_allclose(found, load(model).runtime.embed(*batch, ALL), atol=1e-5)


def test_a_graph_of_a_prefix_is_quantised_by_onnxruntime(
    saved: Callable[[str], Path], tmp_path: Path
) -> None:
    from onnxruntime import InferenceSession
    from onnxruntime.quantization import quantize_dynamic

    made = cut_model(open_model(saved("bert")), Cut(2, 8))
    graphs.write_graph_files(made.encoder, 2, tmp_path, "onnx", unit=True)

    quantize_dynamic(tmp_path / ONNX_FILE, tmp_path / "int8.onnx")

    session = InferenceSession(tmp_path / "int8.onnx", providers=["CPUExecutionProvider"])
    ids, mask = padded(3, 8)
    (found,) = session.run(None, {"input_ids": ids, "attention_mask": mask})
    assert found.shape == (3, 8)
    assert cosine(found, made.encoder.embed(ids, mask, [2])[0]) > 0.98


@pytest.mark.parametrize("name", ["torch", "openvino"])
def test_bf16_is_multiplied_where_it_is_asked_for(name: str, saved: Callable[[str], Path]) -> None:
    model, batch = open_model(saved("bert")), padded(5, 11)
    opened = open_queries(plan_of_model(model, 2), name, "cpu", "bf16").opened
    assert opened is not None
    found = opened.runtime.embed(*batch, [2])[0]
    assert found.dtype == np.float32
    assert cosine(found, load(model)[0].embed(*batch, [2])[0]) > 0.999


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_documents_do_not_depend_on_the_number_of_threads(
    dtype: str, saved: Callable[[str], Path], cache: Path
) -> None:
    units = torch.cpu.get_capabilities()
    if dtype == "bf16" and not (units.get("amx_bf16") or units.get("avx512_bf16")):
        pytest.skip("this processor does not multiply in bf16")
    source, before = DocumentSource(open_model(saved("bert")), 4, "cpu", dtype, cache), []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            before.append(list(source.open(OPENVINO).runtime.embed_many(batches(), [1, 3, 4])))
    finally:
        torch.set_num_threads(threads)
    for one, two, three in zip(*before, strict=True):
        assert one.tobytes() == two.tobytes() == three.tobytes()


def test_a_graph_is_written_once_for_a_model_and_again_when_it_is_damaged(
    backbone: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []

    def write(_: object, folder: Path) -> None:
        written.append(folder)
        (folder / "whole").write_text("…")

    def opened(folder: Path, _: str) -> object:
        if (folder / "whole").read_text() != "…":
            raise ValueError("damaged")
        return object()

    kind = replace(RUNTIMES["onnx"], packages=(), write=write, open=opened)
    monkeypatch.setitem(RUNTIMES, "onnx", kind)
    monkeypatch.setattr(graphs, "_exported", lambda *_: None)
    for model, layer, count in (("bert", 2, 1), ("bert", 2, 1), ("bert", 1, 2), ("roberta", 2, 3)):
        open_graph("onnx", open_model(backbone(model)), layer, "auto", "auto", tmp_path)
        assert len(written) == count
    next(tmp_path.glob("graphs/*layer-01*/whole")).write_text("flipped")
    open_graph("onnx", open_model(backbone("bert")), 1, "auto", "auto", tmp_path)
    assert len(written) == 4
    assert not list(tmp_path.glob("graphs/*.partial"))


def test_a_graph_with_other_vectors_is_refused_and_removed(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "LEAST_RUNTIME_COSINE", 1.1)
    with pytest.raises(UserError, match=r"differs from torch \(cosine 1\.0000\)"):
        DocumentSource(open_model(tiny_backbone), 1, "cpu", "fp32", tmp_path).open(OPENVINO)
    assert not list(tmp_path.glob("graphs/*"))


def test_auto_is_openvino_for_many_documents_where_it_can_be(
    fitted: DocumentSource,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert choose_runtime(fitted, "auto", 9_999) == "torch"
    assert choose_runtime(fitted, "auto", 10_000) == OPENVINO
    assert not capsys.readouterr().err
    monkeypatch.setattr(graphs, "LEAST_RUNTIME_COSINE", 1.1)
    assert choose_runtime(replace(fitted, cache=tmp_path), "auto", 10_000) == "torch"
    assert "not in openvino" in capsys.readouterr().err
    monkeypatch.setitem(RUNTIMES, OPENVINO, replace(RUNTIMES[OPENVINO], packages=("absent",)))
    assert choose_runtime(fitted, "auto", 10_000) == "torch"


def test_several_threads_may_run_one_graph(saved: Callable[[str], Path], cache: Path) -> None:
    model = open_model(saved("bert"))
    opened = [open_graph(name, model, 2, "cpu", "fp32", cache).runtime for name in RUNTIMES]
    texts = [padded(1, tokens) for tokens in range(2, 12)]
    expected = [[runtime.embed(*text, [2]) for text in texts] for runtime in opened]
    wrong: list[int] = []

    def work(seed: int) -> None:
        for number in np.random.default_rng(seed).integers(0, len(texts), 60):
            for runtime, right in zip(opened, expected, strict=True):
                if not np.allclose(runtime.embed(*texts[number], [2]), right[number], atol=1e-6):
                    wrong.append(int(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not wrong
