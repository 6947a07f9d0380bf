"""Whatever runs a cut encoder gives the vectors that torch gives."""

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.model import graphs, runtimes
from m2dr.model.backbones import BACKBONES
from m2dr.model.checkpoint import load, save
from m2dr.model.runtimes import RUNTIMES, GraphRuntime, RuntimeKind, open_runtime

QUICK = ("bert", "qwen3")  # an export takes seconds; the others run with -m slow
SHAPES = [(1, 1), (1, 9), (2, 2), (5, 11)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def saved(
    backbone: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """A model with an exit head at layer 2; a decoder attends both ways and takes the last."""
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


def padded(texts: int, tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids and mask [B, T]; each text is one token shorter than the one before, down to one."""
    ids = np.random.default_rng(texts * tokens).integers(4, 60, (texts, tokens))
    mask = (np.arange(tokens) < np.maximum(tokens - np.arange(texts), 1)[:, None]).astype(np.int64)
    return ids * mask, mask


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize(
    "model_type",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in BACKBONES],
)
def test_every_runtime_gives_torchs_vectors_for_any_batch(
    model_type: str, kind: str, saved: Callable[[str], Path], cache: Path
) -> None:
    if not RUNTIMES[kind].installed:
        pytest.skip(f"{kind} is not installed")
    model = str(saved(model_type))

    opened = open_runtime(kind, model, 2, "auto", "auto", cache)

    encoder, _ = load(model)
    for shape in SHAPES:
        ids, mask = padded(*shape)
        expected = encoder.embed(ids, mask, [2])
        np.testing.assert_allclose(opened.runtime.embed(ids, mask, [2]), expected, atol=1e-5)


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize("layer", [2, 4])
def test_every_runtime_gives_the_vectors_of_fitted_exits(
    layer: int, kind: str, tiny_fitted: Path, cache: Path
) -> None:
    if not RUNTIMES[kind].installed:
        pytest.skip(f"{kind} is not installed")

    opened = open_runtime(kind, str(tiny_fitted), layer, "auto", "fp32", cache)

    encoder, _ = load(tiny_fitted)
    for shape in SHAPES:
        ids, mask = padded(*shape)
        expected = encoder.embed(ids, mask, [layer])
        np.testing.assert_allclose(opened.runtime.embed(ids, mask, [layer]), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["torch", "openvino", "auto"])
def test_a_runtime_that_is_asked_for_bf16_multiplies_in_it(
    name: str, saved: Callable[[str], Path], cache: Path
) -> None:
    if name in RUNTIMES and not RUNTIMES[name].installed:
        pytest.skip(f"{name} is not installed")
    model, batch = str(saved("bert")), padded(5, 11)
    exact = load(model)[0].embed(*batch, [2])[0]

    opened = open_runtime(name, model, 2, "cpu", "bf16", cache)

    found = opened.runtime.embed(*batch, [2])[0]
    assert opened.name != "onnx"  # which refuses: it has fp32 alone
    assert found.dtype == np.float32
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(exact, axis=1)
    assert ((found * exact).sum(axis=1) / norms).min() > 0.999
    if opened.name == "torch":
        assert {str(weights.dtype) for weights in opened.runtime.transformer.parameters()} == {
            "torch.bfloat16"
        }


@pytest.mark.parametrize("kind", RUNTIMES)
def test_a_graph_is_of_fp32_where_the_processor_would_take_bf16(
    kind: str, saved: Callable[[str], Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not RUNTIMES[kind].installed:
        pytest.skip(f"{kind} is not installed")
    monkeypatch.setenv("M2DR_DTYPE", "bf16")
    model, batch = str(saved("bert")), padded(5, 11)
    exact = load(model)[0].embed(*batch, [2])

    opened = open_runtime(kind, model, 2, "cpu", "auto", cache)

    np.testing.assert_allclose(opened.runtime.embed(*batch, [2]), exact, atol=1e-5)


@pytest.mark.parametrize("model_type", BACKBONES)
def test_a_batch_without_padding_needs_no_mask(
    model_type: str, backbone: Callable[[str], Path]
) -> None:
    import torch

    encoder, _ = load(backbone(model_type))
    ids = torch.from_numpy(padded(1, 9)[0].repeat(2, axis=0))
    for pooling in ("cls", "mean", "last"):
        encoder.card = replace(encoder.card, pooling=pooling)
        with torch.inference_mode():
            bare, masked = encoder(ids, None), encoder(ids, torch.ones_like(ids))
        torch.testing.assert_close(bare, masked, atol=1e-5, rtol=1e-5)


class Counting:
    """A kind of runtime that counts, and can fail."""

    def __init__(self, fails: bool = False) -> None:
        self.written, self.fails = 0, fails
        self.kind = RuntimeKind("onnx", (), ("fp32",), self.write, self.open)

    def write(self, _: object, folder: Path) -> None:
        self.written += 1
        (folder / "half").write_text("…")
        if self.fails:
            raise ValueError("no such operator.\nmany lines")
        (folder / "whole").write_text("…")

    def open(self, folder: Path, card: object, _: str) -> object:
        if (folder / "whole").read_text() != "…":
            raise ValueError("damaged")
        return type("Graph", (), {"card": card})()


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    found = Counting()
    monkeypatch.setitem(RUNTIMES, "onnx", found.kind)
    monkeypatch.setattr(graphs, "export_layer", lambda *_: None)
    return found


def test_a_graph_is_written_once_per_layer_and_again_when_it_is_damaged(
    counting: Counting, tiny_backbone: Path, tmp_path: Path
) -> None:
    def open_layer(layer: int) -> None:
        open_runtime("onnx", str(tiny_backbone), layer, "auto", "auto", tmp_path)

    open_layer(2)
    open_layer(2)
    assert counting.written == 1
    open_layer(1)
    assert counting.written == 2
    next(tmp_path.glob("graphs/*layer-02*/whole")).write_text("flipped")
    open_layer(2)
    assert counting.written == 3
    assert not list(tmp_path.glob("graphs/*.partial"))


def test_another_model_has_another_graph(
    counting: Counting, backbone: Callable[[str], Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    for model in (tiny_backbone, backbone("roberta")):
        open_runtime("onnx", str(model), 2, "auto", "auto", tmp_path)

    assert counting.written == 2


def test_an_encoder_that_cannot_be_a_graph_is_a_sentence_and_leaves_nothing(
    counting: Counting, tiny_backbone: Path, tmp_path: Path
) -> None:
    counting.fails = True

    with pytest.raises(
        UserError,
        match=r"this bert encoder cannot be written as a graph for onnx \(no such operator\)\. "
        r"Use --runtime torch",
    ):
        open_runtime("onnx", str(tiny_backbone), 2, "auto", "auto", tmp_path)
    assert not list(tmp_path.glob("graphs/*"))


def test_a_runtime_that_is_not_installed_is_named_with_its_extra(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = replace(RUNTIMES["openvino"], packages=("no_such_package",))
    monkeypatch.setitem(RUNTIMES, "openvino", kind)

    with pytest.raises(
        UserError, match=r"no_such_package is not .* pip install 'm2dr\[openvino\]'"
    ):
        open_runtime("openvino", str(tiny_backbone), 2, "auto", "auto", tmp_path)


@pytest.mark.parametrize(
    ("name", "device", "dtype", "sentence"),
    [
        ("onnx", "cuda", "auto", "--runtime onnx runs on the CPU, not on cuda"),
        ("onnx", "cpu", "bf16", "--runtime onnx multiplies in fp32, not in bf16"),
        ("opnvino", "cpu", "auto", "There is no runtime 'opnvino'. Did you mean openvino"),
    ],
)
def test_what_a_runtime_cannot_do_is_a_sentence(
    name: str, device: str, dtype: str, sentence: str, tiny_backbone: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        open_runtime(name, str(tiny_backbone), 2, device, dtype, tmp_path)


class Slept:
    """A runtime that takes its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def embed(self, *_: object) -> None:
        threading.Event().wait(self.seconds)


def test_auto_takes_the_fastest_and_says_so(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = Slept(0.2), Slept(0.0)
    kinds = {
        name: replace(RUNTIMES[name], packages=(), open=lambda *_, wait=wait: wait)
        for name, wait in (("onnx", slow), ("openvino", fast))
    }
    monkeypatch.setattr(runtimes, "RUNTIMES", kinds)
    monkeypatch.setattr(runtimes, "write_graph", lambda *_: None)
    monkeypatch.setattr(GraphRuntime, "embed", lambda self, *_: self.graph.embed())

    opened = open_runtime("auto", str(tiny_backbone), 2, "cpu", "fp32", tmp_path)

    assert opened.name == "openvino"
    assert opened.note.startswith("Runtime openvino: a query takes torch ")
    assert "onnx 2" in opened.note


def test_a_graph_gives_its_own_layer_alone() -> None:
    with pytest.raises(UserError, match="Layer 3 was asked for; this graph gives layer 2"):
        GraphRuntime(None, 2).embed(*padded(1, 3), [3])  # type: ignore[arg-type]  # never reached


def test_several_threads_may_run_one_graph(saved: Callable[[str], Path], cache: Path) -> None:
    model = str(saved("bert"))
    opened = [open_runtime(name, model, 2, "cpu", "fp32", cache).runtime for name in RUNTIMES]
    texts = [padded(1, tokens) for tokens in range(2, 12)]
    expected = [[runtime.embed(*text, [2]) for text in texts] for runtime in opened]
    wrong: list[int] = []

    def work(seed: int) -> None:
        order = np.random.default_rng(seed).integers(0, len(texts), 60)
        for number in order:
            for runtime, right in zip(opened, expected, strict=True):
                if not np.allclose(runtime.embed(*texts[number], [2]), right[number], atol=1e-6):
                    wrong.append(int(number))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong


def test_threads_of_onnx_sleep_when_they_wait(saved: Callable[[str], Path], cache: Path) -> None:
    pytest.importorskip("onnxruntime")
    opened = open_runtime("onnx", str(saved("bert")), 2, "cpu", "fp32", cache)

    options = opened.runtime.graph.session.get_session_options()

    # Spinning ones take the cores from the search that follows a query.
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_a_whole_graph_survives_a_second_writer(tmp_path: Path, tiny_backbone: Path) -> None:
    encoder, _ = load(tiny_backbone, 1)
    folder = tmp_path / "graph"

    def write(_: object, aside: Path) -> None:
        (aside / "mine").touch()

    graphs.write_graph(encoder, 1, folder, "onnx", write)
    graphs.write_graph(encoder, 1, folder, "onnx", write)

    assert [path.name for path in folder.iterdir()] == ["mine"]
    shutil.rmtree(folder)
