"""Documents have the same vectors in OpenVINO as in torch, at every layer."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.model import document_encoder
from m2dr.model.backbones import BACKBONES
from m2dr.model.checkpoint import load, save
from m2dr.model.devices import multiplies_bf16
from m2dr.model.document_encoder import OPENVINO, DocumentSource, choose_runtime
from m2dr.model.runtimes import RUNTIMES

QUICK = ("bert", "qwen3")  # an export takes seconds; the others run with -m slow
SHAPES = [(1, 1), (1, 9), (2, 2), (5, 11), (4, 6), (3, 8)]
ALL = [0, 1, 2, 3, 4]
Batch = tuple[NDArray[np.int64], NDArray[np.int64]]

pytestmark = pytest.mark.skipif(
    not RUNTIMES[OPENVINO].installed, reason="openvino is not installed"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def saved(
    backbone: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """A model with an exit head at layer 2."""

    def get(model_type: str) -> Path:
        encoder, tokenizer = load(backbone(model_type))
        encoder.add_exit_heads([2])
        encoder.exit_heads["2"].weight.data.mul_(0.5).add_(0.01)
        folder = tmp_path_factory.mktemp(f"saved-{model_type}")
        save(encoder, tokenizer, encoder.card, folder)
        return folder

    return get


@pytest.fixture(scope="module")
def fitted(tiny_fitted: Path, cache: Path) -> DocumentSource:
    return DocumentSource(str(tiny_fitted), 4, "cpu", "fp32", cache)


def batches() -> list[Batch]:
    """Ids and mask [B, T] of many shapes; each text is one token shorter than the one before."""

    def padded(texts: int, tokens: int) -> Batch:
        ids = np.random.default_rng(texts * tokens).integers(4, 60, (texts, tokens))
        real = np.arange(tokens) < np.maximum(tokens - np.arange(texts), 1)[:, None]
        return ids * real, real.astype(np.int64)

    return [padded(*shape) for shape in SHAPES]


@pytest.mark.parametrize(
    "model_type",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in BACKBONES],
)
def test_every_layer_has_torchs_vectors_and_states(
    model_type: str, saved: Callable[[str], Path], cache: Path
) -> None:
    model = str(saved(model_type))

    graph, _ = DocumentSource(model, 4, "cpu", "fp32", cache).open(OPENVINO)

    encoder, _ = load(model)
    found = list(graph.embed_many(iter(batches()), ALL))
    for vectors, batch in zip(found, batches(), strict=True):
        np.testing.assert_allclose(vectors, encoder.embed(*batch, ALL), atol=1e-4)
    states = list(graph.states_many(iter(batches()), [3, 4]))
    expected = list(encoder.states_many(iter(batches()), [3, 4]))
    for one, other in zip(states, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_fitted_exits_of_all_layers_have_torchs_vectors(fitted: DocumentSource) -> None:
    graph, _ = fitted.open(OPENVINO)

    encoder, _ = load(fitted.model)
    for vectors, batch in zip(graph.embed_many(batches(), ALL), batches(), strict=True):
        np.testing.assert_allclose(vectors, encoder.embed(*batch, ALL), atol=1e-4)


def test_layers_behind_the_deepest_one_are_not_in_the_graph(fitted: DocumentSource) -> None:
    shallow = replace(fitted, layer=1)
    graph, _ = shallow.open(OPENVINO)
    fitted.open(OPENVINO)

    def weights(source: DocumentSource) -> int:
        return sum(path.stat().st_size for path in source.graph_folder.glob("*.bin"))

    assert graph.layers == 1
    layer = sum(w.numel() for w in load(fitted.model)[0].transformer.encoder.layer[0].parameters())
    assert weights(fitted) - weights(shallow) >= 0.9 * 3 * 4 * layer  # equal constants are one
    with pytest.raises(UserError, match="Layer 2 was asked for; 1 are loaded"):
        list(graph.embed_many(batches(), [2]))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_vectors_do_not_depend_on_the_number_of_threads(
    dtype: str, saved: Callable[[str], Path], fitted: DocumentSource, cache: Path
) -> None:
    """To the byte without an exit; torch multiplies exits, adding in another order for each."""
    if dtype == "bf16" and not multiplies_bf16(torch.device("cpu")):
        pytest.skip("this processor does not multiply in bf16")
    plain = DocumentSource(str(saved("bert")), 4, "cpu", dtype, cache)

    for one, two, three in zip(*of_threads(plain, [1, 3, 4]), strict=True):
        assert one.tobytes() == two.tobytes() == three.tobytes()
    found = of_threads(replace(fitted, dtype=dtype), ALL)
    for one, two, three, batch in zip(*found, batches(), strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(three, one, rtol=1e-5, atol=1e-6)
        exact = load(fitted.model)[0].embed(*batch, ALL)
        norms = np.linalg.norm(one, axis=-1) * np.linalg.norm(exact, axis=-1)
        assert ((one * exact).sum(axis=-1) / norms).min() > (0.999 if dtype == "bf16" else 0.99999)


def of_threads(source: DocumentSource, layers: list[int]) -> list[list[NDArray[np.float32]]]:
    """Vectors of all batches with one, two and three threads."""
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(list(source.open(OPENVINO)[0].embed_many(batches(), layers)))
    finally:
        torch.set_num_threads(before)
    return found


def test_a_caller_that_stops_early_leaves_nothing_running(fitted: DocumentSource) -> None:
    graph, _ = fitted.open(OPENVINO)
    running = graph.embed_many(batches(), [4])
    first = next(running)

    running.close()  # type: ignore[attr-defined]  # a generator

    np.testing.assert_array_equal(next(graph.embed_many(batches(), [4])), first)


def test_a_damaged_graph_is_written_again(fitted: DocumentSource) -> None:
    source = replace(fitted, layer=1)
    source.open(OPENVINO)
    next(source.graph_folder.glob("*.xml")).write_text("<net")

    graph, _ = source.open(OPENVINO)

    expected = load(source.model, 1)[0].embed(*batches()[0], [1])
    np.testing.assert_allclose(next(graph.embed_many(batches(), [1])), expected, atol=1e-4)


@pytest.fixture
def failing(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DocumentSource]:
    """A model that OpenVINO cannot convert."""

    def fail(*_: object) -> None:
        raise RuntimeError("no conversion rule for aten::new.\nmany lines")

    monkeypatch.setattr(document_encoder, "write_openvino", fail)
    monkeypatch.setattr(document_encoder, "_export_states", fail)
    yield DocumentSource(str(tiny_backbone), 2, "cpu", "fp32", tmp_path)
    assert not list(tmp_path.glob("graphs/*"))


def test_what_openvino_cannot_convert_is_refused_by_name_and_left_to_torch_by_auto(
    failing: DocumentSource,
) -> None:
    sentence = r"this bert encoder cannot be written as a graph for openvino \(no conversion rule"
    with pytest.raises(UserError, match=sentence + r".*Use --runtime torch"):
        choose_runtime(failing, OPENVINO, 5)

    name, note = choose_runtime(failing, "auto", 10_000)

    assert name == "torch"
    assert note.startswith("Runtime torch, as openvino is not possible: Layer 2 of this bert")


def test_other_vectors_than_torchs_are_refused_and_their_graph_removed(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = DocumentSource(str(tiny_backbone), 1, "cpu", "fp32", tmp_path)
    monkeypatch.setattr(document_encoder, "LEAST_COSINE", 1.1)

    with pytest.raises(UserError, match=r"other vectors than torch .* \(cosine 1\.0000\)"):
        source.open(OPENVINO)
    assert not list(tmp_path.glob("graphs/*"))


def test_openvino_that_is_not_installed_is_named_with_its_extra(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = replace(RUNTIMES[OPENVINO], packages=("no_such_package",))
    monkeypatch.setitem(RUNTIMES, OPENVINO, kind)
    source = DocumentSource(str(tiny_backbone), 2, "cpu", "fp32", tmp_path)

    with pytest.raises(UserError, match=r"no_such_package is not .* 'm2dr\[openvino\]'"):
        choose_runtime(source, OPENVINO, 5)
    assert choose_runtime(source, "auto", 1_000_000) == ("torch", "")


@pytest.mark.parametrize("faster", ["torch", OPENVINO])
def test_auto_takes_the_faster_one_for_many_documents_and_says_so(
    faster: str, fitted: DocumentSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"torch": 0.002, OPENVINO: 0.002, faster: 0.001}
    monkeypatch.setattr(
        document_encoder, "_times", lambda encoders, _: {name: times[name] for name in encoders}
    )

    assert choose_runtime(fitted, "auto", 9_999) == ("torch", "")
    name, note = choose_runtime(fitted, "auto", 10_000)

    assert name == faster
    assert note.startswith(f"Runtime {faster}: a sample of documents takes ")
    assert "1.0 ms in" in note


def test_both_runtimes_are_timed_in_turn(fitted: DocumentSource) -> None:
    graph, tokenizer = fitted.open(OPENVINO)
    encoder, _ = fitted.open("torch")
    sample = document_encoder._sample(tokenizer, encoder.card)

    times = document_encoder._times({"torch": encoder, OPENVINO: graph}, sample)

    assert set(times) == {"torch", OPENVINO}
    assert all(0 < seconds < 60 for seconds in times.values())
