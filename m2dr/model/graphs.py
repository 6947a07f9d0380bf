"""Graphs of a cut encoder for ONNX Runtime and OpenVINO: exported from torch, cached and run.

onnxruntime and openvino are imported here alone, by the functions that need them.
"""

# Shapes in this file:
#   B texts, T tokens, V ids of the vocabulary, H width of a word embedding, W dims of a vector.

import logging
import shutil
import tempfile
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.functional import normalize

from m2dr.core.errors import UserError
from m2dr.core.files import json_sha256, sha256_of
from m2dr.core.records import ModelCard
from m2dr.model.backbones import most_tokens
from m2dr.model.encoder import Encoder, Floats, IdsAndMask, Ints
from m2dr.model.folded_exit import FoldedExit
from m2dr.model.hub import EXITS, ONNX_FILE, OPENVINO_FILE

ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
OPENVINO_PACKAGES = ("openvino",)
_PRECISIONS = {"fp32": "f32", "bf16": "bf16"}  # as OpenVINO names them
_INPUTS = ("input_ids", "attention_mask")
_OUTPUT = "sentence_embedding"  # as sentence-transformers and servers of ONNX models name it
_FORMAT = 2  # raise it when the same model would be written otherwise
_EXAMPLE = (3, 7)  # texts and tokens; a size of 1 would be taken for a constant
_NOISY = "torch.onnx._internal.exporter._registration"  # warns that torchvision is missing


@dataclass(frozen=True)
class OnnxGraph:
    """One layer of an encoder in ONNX Runtime. Safe to use from several threads."""

    card: ModelCard
    session: Any  # onnxruntime.InferenceSession, which has no type stubs
    device: torch.device = torch.device("cpu")

    def run(self, input_ids: Ints, attention_mask: Ints) -> Floats:
        """Embed texts: [B, T] twice to [B, W], not normalised."""
        feed = dict(zip(_INPUTS, (input_ids, attention_mask), strict=True))
        vectors: Floats = self.session.run(None, feed)[0]
        return vectors


class OpenvinoGraph:
    """One layer of an encoder in OpenVINO. Safe to use from several threads: each has a request."""

    def __init__(self, card: ModelCard, compiled: Any) -> None:  # openvino has no stubs
        self.card = card
        self.device = torch.device("cpu")
        self._compiled = compiled
        self._own = threading.local()

    def run(self, input_ids: Ints, attention_mask: Ints) -> Floats:
        """Embed texts: [B, T] twice to [B, W], not normalised."""
        if not hasattr(self._own, "request"):
            self._own.request = self._compiled.create_infer_request()
        # Copied: the next query of this thread is written over the same memory.
        found = self._own.request.infer([input_ids, attention_mask])[0]
        return np.array(found, np.float32)


class OpenvinoBatches:
    """An OpenVINO graph that runs several batches at a time. Safe to use from several threads.

    One thread runs a batch from its first layer to its last: no thread waits for another, and the
    output for a batch is the same with any number of threads.
    """

    def __init__(self, compiled: Any, at_once: int) -> None:  # openvino has no stubs
        self._compiled = compiled
        self._at_once = at_once

    def run(self, batches: Iterable[IdsAndMask]) -> Iterator[tuple[IdsAndMask, Floats]]:
        """Yield each batch, [B, T] twice, with the output of the graph; the next ones run then."""
        idle = [self._compiled.create_infer_request() for _ in range(self._at_once)]
        under_way: deque[tuple[IdsAndMask, Any]] = deque()

        def ended() -> tuple[IdsAndMask, Floats]:
            batch, request = under_way.popleft()
            request.wait()
            # Copied: a later batch is written over the same memory.
            found = np.array(request.get_output_tensor(0).data, np.float32)
            idle.append(request)
            return batch, found

        try:
            for batch in batches:
                if not idle:
                    yield ended()
                request = idle.pop()
                request.start_async(list(batch))
                under_way.append((batch, request))
            while under_way:
                yield ended()
        finally:
            for _, request in under_way:
                request.wait()


def write_onnx(program: ExportedProgram, folder: Path) -> None:
    """Write an exported encoder as an ONNX model; weights above 2 GB get a file of their own."""
    graph = torch.onnx.export(
        program, dynamo=True, input_names=_INPUTS, output_names=[_OUTPUT], verbose=False
    )
    if graph is None:
        raise RuntimeError("torch.onnx returned no graph")
    graph.save(folder / ONNX_FILE)


def open_onnx(folder: Path, card: ModelCard, dtype: str) -> OnnxGraph:  # noqa: ARG001  # fp32 alone
    """Open an ONNX model with all graph optimisations and as many threads as torch.

    Threads that wait sleep: a search follows each query, and threads that spin would take the
    cores from it for milliseconds.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # errors alone
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(str(folder / ONNX_FILE), options, providers=providers)
    return OnnxGraph(card, session)


def write_openvino(program: ExportedProgram, folder: Path) -> None:
    """Write an exported encoder as OpenVINO's own files, with weights in float32."""
    import openvino

    graph = openvino.convert_model(program)
    graph.outputs[0].get_tensor().set_names({_OUTPUT})
    openvino.save_model(graph, folder / OPENVINO_FILE, compress_to_fp16=False)


def open_openvino(folder: Path, card: ModelCard, dtype: str) -> OpenvinoGraph:
    """Open an OpenVINO model in a number format, with as many threads as torch.

    By default OpenVINO multiplies in bf16 or f16 where the processor can, which is off by 1e-3.
    """
    return OpenvinoGraph(card, _compiled(folder, dtype, {"PERFORMANCE_HINT": "LATENCY"}))


def open_openvino_batches(folder: Path, dtype: str) -> OpenvinoBatches:
    """Open an OpenVINO model that runs as many batches at a time as torch has threads.

    Raises:
        UserError: this processor does not multiply in the number format.
    """
    threads = torch.get_num_threads()
    compiled = _compiled(folder, dtype, {"NUM_STREAMS": threads})
    found = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    if found != _PRECISIONS[dtype]:
        raise UserError(
            f"--dtype {dtype} was asked for, and OpenVINO multiplies in {found} on this processor. "
            "Use --dtype fp32, or --runtime torch."
        )
    return OpenvinoBatches(compiled, threads + 1)  # one waits, so that no thread does


def _compiled(
    folder: Path, dtype: str, settings: Mapping[str, str | int]
) -> Any:  # openvino has no stubs
    import openvino

    known = {
        "INFERENCE_PRECISION_HINT": _PRECISIONS[dtype],
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "ENABLE_CPU_PINNING": False,  # a pinned thread waits for its core while others are idle
        **settings,
    }
    return openvino.Core().compile_model(folder / OPENVINO_FILE, "CPU", known)


def graph_folder(
    cache: Path,
    card: ModelCard,
    layer: int,
    runtime: str,
    packages: Sequence[str],
    exits: Path | None = None,
) -> Path:
    """Return where a graph is cached; its name depends on the model, exits, layer and versions."""
    versions = [version(package) for package in ("torch", "transformers", *packages)]
    told = [_FORMAT, card.fingerprint, card.width, card.pooling, card.attention, card.exit_head]
    told += [versions]
    told += [sha256_of(exits / EXITS)] if exits else []
    digest = json_sha256(told, sort_keys=False)
    return cache / "graphs" / f"{card.fingerprint[:12]}-layer-{layer:02d}-{runtime}-{digest[:12]}"


def write_graph(
    encoder: Encoder,
    layer: int,
    folder: Path,
    runtime: str,
    write: Callable[[ExportedProgram, Path], None],
    export: Callable[[Encoder, int], ExportedProgram] | None = None,
) -> None:
    """Export a layer and write its graph; the folder appears when all its files are written.

    Args:
        encoder: in fp32 on the CPU.
        layer: whose vectors the graph gives.
        folder: of this graph alone; it is replaced.
        runtime: its name, for the error.
        write: writes an exported encoder into an empty folder.
        export: `export_layer` by default.

    Raises:
        UserError: the architecture cannot be written as a graph for this runtime.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".partial", dir=folder.parent))
    try:
        with quiet(), torch.no_grad():
            write((export or export_layer)(encoder, layer), aside)
        shutil.rmtree(folder, ignore_errors=True)
        aside.replace(folder)
    except OSError:
        # Another process that opened the same model may have written the same graph meanwhile.
        if not folder.exists():
            raise
    except Exception as error:  # exporters raise many classes of errors
        kind = encoder.transformer.config.model_type
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(
            f"Layer {layer} of this {kind} encoder cannot be written as a graph for {runtime} "
            f"({reason}). Use --runtime torch."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def export_layer(encoder: Encoder, layer: int, unit: bool = False) -> ExportedProgram:
    """Export the first `layer` layers and their exit: ids and mask [B, T] to vectors [B, W].

    B and T are dynamic; vectors are float32.

    Args:
        encoder: in fp32 on the CPU.
        layer: whose vectors the graph gives.
        unit: whether they are scaled to length one.
    """
    fitted = encoder.fitted
    if fitted is not None and layer in fitted.layers[1:] and fitted.inputs != "layer":
        encoder.fitted = FoldedExit.of(fitted, layer, encoder.words)
    return export_module(_OneLayer(encoder, layer, unit), encoder)


def export_module(module: nn.Module, encoder: Encoder) -> ExportedProgram:
    """Export a module that runs an encoder on ids and mask [B, T], of which B and T are dynamic."""
    texts, tokens = Dim("texts"), Dim("tokens", max=most_tokens(encoder.transformer.config))
    example = torch.zeros(_EXAMPLE, dtype=torch.int64), torch.ones(_EXAMPLE, dtype=torch.int64)
    shapes = {name: {0: texts, 1: tokens} for name in _INPUTS}
    module.requires_grad_(False)
    return torch.export.export(module.eval(), example, dynamic_shapes=shapes, strict=False)


class _OneLayer(nn.Module):
    """The module that is exported: an encoder that gives the vectors of one layer."""

    def __init__(self, encoder: Encoder, layer: int, unit: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.layer = layer
        self.unit = unit

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        vectors: Tensor = self.encoder(input_ids, attention_mask, [self.layer])
        return normalize(vectors[0], dim=-1) if self.unit else vectors[0]


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the exporters' warnings about their own deprecations, which a user cannot mend."""
    logger = logging.getLogger(_NOISY)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
