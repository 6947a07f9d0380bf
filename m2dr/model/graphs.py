"""Graphs of an encoder in ONNX Runtime and OpenVINO, for queries and for batches of documents.

onnxruntime and openvino are imported here alone, by the functions that need them. Only the layers
of a document encoder run as a graph: exit heads, fitted exits and modules work on one vector per
text, so that torch runs them, in float32 as in an `DualEncoder`.
"""

# Shapes in this file:
#   L layers, B texts, T tokens, P dims of a pooled vector, W dims of a vector.

import logging
import shutil
import tempfile
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.functional import normalize

from m2dr.core.arrays import Float32, Int64
from m2dr.core.errors import UserError, nearest, require
from m2dr.core.files import error_summary, json_sha256, sha256_of
from m2dr.core.progress import say
from m2dr.core.records import ModelCard
from m2dr.model.backbones import backbone_of, sizes_of
from m2dr.model.checkpoint import Model, load, load_tokenizer
from m2dr.model.devices import DTYPES, choose_device, choose_dtype
from m2dr.model.embed import TextEncoder
from m2dr.model.encoder import DualEncoder, IdsAndMask
from m2dr.model.hub import EXITS, ONNX_FILE, OPENVINO_FILE
from m2dr.model.tokenizer import SAMPLE_QUERY
from m2dr.model.words import WordTable

OPENVINO = "openvino"
INT8 = "openvino-int8-"  # and the digest of a graph: its runtime, in stores
FEW = 10_000  # documents; auto leaves fewer to torch, as making a graph takes longer than it saves
LEAST_RUNTIME_COSINE = 0.999  # of the vectors of documents with torch's, in any number format
PRECISIONS = {"fp32": "f32", "bf16": "bf16"}  # as OpenVINO names them
_INPUTS = ("input_ids", "attention_mask")
_OUTPUT = "sentence_embedding"  # as sentence-transformers and servers of ONNX models name it
_FORMAT = 4  # raise it when the same model would be written otherwise
_EXAMPLE = (3, 7)  # texts and tokens; a size of 1 would be taken for a constant
_NOISY = "torch.onnx._internal.exporter._registration"  # warns that torchvision is missing
_LENGTHS = (1, 3, 6, 9) * 4  # of the texts of a sample, in sentences of about 10 tokens

Infer = Callable[[Int64, Int64], Float32]  # ids and mask [B, T] to vectors [B, W], not normalised


@dataclass(frozen=True)
class RuntimeKind:
    """A runtime of graphs. A new one is a row of RUNTIMES, and the tests run over all rows."""

    name: str  # and its extra
    packages: tuple[str, ...]
    dtypes: tuple[str, ...]  # that it multiplies in
    write: Callable[[ExportedProgram, Path], None]
    open: Callable[[Path, str], Infer]  # may be called from several threads

    @property
    def installed(self) -> bool:
        """Whether all of its packages are installed."""
        return all(map(find_spec, self.packages))

    def require(self, device: str = "cpu", dtype: str = "fp32") -> None:
        """Raise UserError where it is not installed, or lacks the device or dtype."""
        require(*self.packages)
        if device not in ("auto", "cpu"):
            raise UserError(f"--runtime {self.name} runs on the CPU, not on {device}.")
        if dtype not in ("auto", *self.dtypes):
            known = " or ".join(self.dtypes)
            raise UserError(f"--runtime {self.name} multiplies in {known}, not in {dtype}.")


def _write_onnx(program: ExportedProgram, folder: Path) -> None:
    graph = torch.onnx.export(
        program, dynamo=True, input_names=_INPUTS, output_names=[_OUTPUT], verbose=False
    )
    assert graph is not None  # as it is with dynamo
    for weight in graph.model.graph.initializers.values():
        # Beside the tensor it would be wrong once onnxruntime.quantization has transposed that.
        weight.shape = weight.type = None
    graph.save(folder / ONNX_FILE)  # weights above 2 GB get a file of their own


def _open_onnx(folder: Path, _: str) -> Infer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = torch.get_num_threads()
    # A search follows each query, and threads that spin would take the cores from it.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # errors alone
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(str(folder / ONNX_FILE), options, providers=providers)

    return lambda *batch: session.run(None, dict(zip(_INPUTS, batch, strict=True)))[0]


def _write_openvino(program: ExportedProgram, folder: Path) -> None:
    import openvino

    graph = openvino.convert_model(program)
    graph.outputs[0].get_tensor().set_names({_OUTPUT})
    openvino.save_model(graph, folder / OPENVINO_FILE, compress_to_fp16=False)


def _open_openvino(folder: Path, dtype: str) -> Infer:
    compiled = _compiled(folder, dtype, {"PERFORMANCE_HINT": "LATENCY"})
    own = threading.local()

    def run(input_ids: Int64, attention_mask: Int64) -> Float32:
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        # Copied: the next query of this thread is written over the same memory.
        return np.array(own.request.infer([input_ids, attention_mask])[0], np.float32)

    return run


def _compiled(
    folder: Path, dtype: str, settings: Mapping[str, str | int]
) -> Any:  # openvino has no stubs
    import openvino

    known = {
        # By default OpenVINO multiplies in bf16 or f16 where the processor can: off by 1e-3.
        "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "ENABLE_CPU_PINNING": False,  # a pinned thread waits for its core while others are idle
        **settings,
    }
    return openvino.Core().compile_model(folder / OPENVINO_FILE, "CPU", known)


RUNTIMES = {
    kind.name: kind
    for kind in (
        RuntimeKind(
            "onnx", ("onnx", "onnxscript", "onnxruntime"), ("fp32",), _write_onnx, _open_onnx
        ),
        RuntimeKind(OPENVINO, (OPENVINO,), ("fp32", "bf16"), _write_openvino, _open_openvino),
    )
}


def require_runtime(name: str) -> None:
    """Raise UserError where a runtime that vectors were made with is not installed."""
    if kind := RUNTIMES.get(name.split("-")[0]):
        kind.require()


def int8_digest(folder: Path) -> str:
    """Return what tells a graph with products in int8 from others; empty where there is none."""
    constants = (folder / OPENVINO_FILE).with_suffix(".bin")  # names elsewhere vary
    return sha256_of(constants)[:12] if constants.exists() else ""


class _Graph(nn.Module):
    """Ids and mask [B, T] to the vectors of a layer, [B, W], or pooled states, [L + 1, B, P]."""

    def __init__(self, encoder: DualEncoder, layer: int | None, unit: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.layer = layer
        self.unit = unit

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        if self.layer is None:
            layers = range(self.encoder.layers + 1)
            pooled = self.encoder.pooled(input_ids, attention_mask, layers)
            return torch.stack([pooled[layer] for layer in layers])
        vectors: Tensor = self.encoder(input_ids, attention_mask, [self.layer])
        return normalize(vectors[0], dim=-1) if self.unit else vectors[0]


def _exported(encoder: DualEncoder, layer: int | None, unit: bool) -> ExportedProgram:
    """Export a layer of an encoder, or with None the pooled states of all; B and T are dynamic."""
    module = _Graph(encoder, layer, unit)
    texts, tokens = (
        Dim("texts"),
        Dim("tokens", max=sizes_of(encoder.transformer.config.to_dict()).tokens),
    )
    example = torch.zeros(_EXAMPLE, dtype=torch.int64), torch.ones(_EXAMPLE, dtype=torch.int64)
    shapes = {name: {0: texts, 1: tokens} for name in _INPUTS}
    module.requires_grad_(False)
    if getattr(encoder.transformer.config, "sliding_window", None):
        # Padding that no token's window reaches attends to nothing, which is NaN in OpenVINO and in
        # the next layer for all tokens; eager masks are the lowest number, not minus infinity.
        encoder.transformer.set_attn_implementation("eager")
    return torch.export.export(module.eval(), example, dynamic_shapes=shapes, strict=False)


def write_graph_files(
    encoder: DualEncoder, layer: int | None, folder: Path, runtime: str, unit: bool = False
) -> None:
    """Write a layer of an encoder as a graph into a folder.

    Args:
        encoder: in fp32 on the CPU.
        layer: whose vectors [B, W] the graph gives for ids and mask [B, T]; with None it gives the
            pooled states of all layers from 0, [L + 1, B, P].
        folder: to write into.
        runtime: a name in RUNTIMES.
        unit: whether vectors are scaled to length one.

    Raises:
        UserError: the architecture cannot be written as a graph for this runtime.
    """
    logging.getLogger(_NOISY).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():  # of their deprecations
            RUNTIMES[runtime].write(_exported(encoder, layer, unit), folder)
    except OSError:
        raise
    except Exception as error:  # exporters raise many classes of errors
        kind = encoder.transformer.config.model_type
        reason = error_summary(error)
        raise UserError(f"A {kind} encoder has no graph for {runtime}: {reason}.") from error


def _graph_folder(
    cache: Path, card: ModelCard, layer: int, runtime: str, what: str, exits: Path | None = None
) -> Path:
    """Return where a graph is cached; its name depends on the model, exits, layer and versions."""
    packages = ("torch", "transformers", *RUNTIMES[runtime].packages)
    key = [_FORMAT, what, card.fingerprint, card.width, card.pooling, card.attention]
    key += [card.exit_head, [version(package) for package in packages]]
    key += [sha256_of(exits / EXITS)] if exits else []
    digest = json_sha256(key, sort_keys=False)[:12]
    return cache / "graphs" / f"{card.fingerprint[:12]}-layer-{layer:02d}-{runtime}-{digest}"


def _write_cached(encoder: DualEncoder, layer: int | None, folder: Path, runtime: str) -> None:
    """Write a graph that is cached."""
    with cached_folder(folder) as aside:
        write_graph_files(encoder, layer, aside, runtime)


@contextmanager
def cached_folder(folder: Path) -> Iterator[Path]:
    """Lend an empty folder that becomes `folder` when the block ends without an error."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".partial", dir=folder.parent))
    try:
        yield aside
        shutil.rmtree(folder, ignore_errors=True)
        aside.replace(folder)
    except OSError:
        # Another process that opened the same model may have written the same graph meanwhile.
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@dataclass(frozen=True)
class GraphRuntime:
    """A graph that gives the vectors of one layer, as an `DualEncoder` does."""

    run: Infer
    card: ModelCard
    layer: int
    words: WordTable | None  # that its fitted exit reads
    device: torch.device = field(default=torch.device("cpu"))

    def embed(
        self, input_ids: Int64, attention_mask: Int64, layers: Sequence[int] | None = None
    ) -> Float32:
        """Embed texts: [B, T] twice to [1, B, W], not normalised.

        Raises:
            UserError: another layer was asked for.
        """
        if layers is not None and tuple(layers) != (self.layer,):
            asked = ", ".join(map(str, layers))
            raise UserError(f"Layer {asked} was asked for; this graph gives layer {self.layer}.")
        return self.run(input_ids, attention_mask)[None]

    def embed_many(
        self, batches: Iterable[IdsAndMask], layers: Sequence[int] | None = None
    ) -> Iterator[Float32]:
        """Yield the embeddings of each batch."""
        return (self.embed(*batch, layers) for batch in batches)


def open_graph(
    name: str,
    model: Model,
    layer: int,
    device: str,
    dtype: str,
    cache: Path,
    exits: Path | None = None,
    words: WordTable | None = None,
) -> TextEncoder[GraphRuntime]:
    """Open a graph of the first layers of a model, which is written if needed.

    Args:
        name: of its runtime, onnx or openvino.
        model: that was opened.
        layer: number of layers that a query runs through, from 1; layer 0 needs no runtime.
        device: auto or cpu, where graphs run.
        dtype: as `choose_dtype` takes it; auto is fp32 in graphs.
        cache: folder of the graphs.
        exits: folder of the exits of an index, in place of the model's own.
        words: that the exit of the layer reads.

    Raises:
        UserError: there is no such runtime, it is not installed, or it cannot run this encoder.
    """
    if name not in RUNTIMES:
        known = ("torch", *RUNTIMES)
        raise UserError(f"There is no runtime {name!r}. {nearest(name, known)}")
    kind, form = RUNTIMES[name], "fp32" if dtype == "auto" else dtype
    kind.require(device, dtype)
    folder, run = _graph_folder(cache, model.card, layer, name, "vectors", exits), None
    if folder.exists():
        with suppress(Exception):  # a damaged graph, which is written again below
            run = kind.open(folder, form)
    if run is None:
        _write_cached(load(model, layer, exits=exits).runtime, layer, folder, name)
        run = kind.open(folder, form)
    graph = GraphRuntime(run, model.card, layer, words)
    return TextEncoder(graph, load_tokenizer(model.files))


class OpenvinoBatches:
    """An OpenVINO graph that runs several batches at a time. Safe to use from several threads.

    One thread runs a batch from its first layer to its last: no thread waits for another, and the
    output for a batch is the same with any number of threads.

    Raises:
        UserError: this processor does not multiply in the number format.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        threads = torch.get_num_threads()
        self._compiled = _compiled(folder, dtype, {"NUM_STREAMS": threads})
        self._at_once = threads + 1  # one waits, so that no thread does
        used = self._compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        if used != PRECISIONS[dtype]:
            raise UserError(f"--dtype {dtype} was asked for, and OpenVINO takes {used} here.")

    def run(self, batches: Iterable[IdsAndMask]) -> Iterator[tuple[IdsAndMask, Float32]]:
        """Yield each batch, [B, T] twice, with the output of the graph; the next ones run then."""
        idle = [self._compiled.create_infer_request() for _ in range(self._at_once)]
        under_way: deque[tuple[IdsAndMask, Any]] = deque()

        def ended() -> tuple[IdsAndMask, Float32]:
            batch, request = under_way.popleft()
            request.wait()
            # Copied: a later batch is written over the same memory.
            output = np.array(request.get_output_tensor(0).data, np.float32)
            idle.append(request)
            return batch, output

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


class GraphEncoder:
    """An encoder of documents whose layers run in OpenVINO. Safe to use from several threads.

    Args:
        encoder: in fp32 on the CPU; the weights of its layers are dropped.
        graph: gives the pooled states of layers 0 to L, [L + 1, B, P].
    """

    def __init__(self, encoder: DualEncoder, graph: OpenvinoBatches) -> None:
        self._encoder, self._graph = encoder, graph
        self.card, self.device = encoder.card, torch.device("cpu")
        self.layers, self.pooled_width = encoder.layers, encoder.pooled_width
        self.words = encoder.words
        backbone_of(encoder.transformer.config).layers_of(encoder.transformer).to("meta")

    def embed_many(
        self, batches: Iterable[IdsAndMask], layers: Sequence[int] | None = None
    ) -> Iterator[Float32]:
        """Yield the embeddings of each batch, as `Encoder.embed_many` gives them."""
        wanted = tuple(layers or range(1, self.layers + 1))

        def embed(*batch: Any) -> Tensor:  # as Encoder.embedded takes it
            return torch.stack(self._encoder.embedded(wanted, *batch))

        return self._each(batches, embed)

    def states_many(
        self, batches: Iterable[IdsAndMask], layers: Sequence[int] = ()
    ) -> Iterator[Float32]:
        """Yield the states of each batch, as `Encoder.states` gives them."""
        return self._each(batches, partial(self._encoder.join_states, layers=layers))

    @torch.inference_mode()
    def _each(
        self, batches: Iterable[IdsAndMask], finish: Callable[..., Tensor]
    ) -> Iterator[Float32]:
        """Yield what `finish` makes of the pooled states of each batch and its mask."""
        for (_, mask), states in self._graph.run(batches):
            pooled = dict(enumerate(torch.from_numpy(states)))
            vectors: Float32 = finish(pooled, torch.from_numpy(mask)).numpy()
            yield vectors


BatchEncoder = DualEncoder | GraphEncoder  # gives the vectors of many batches of documents


@dataclass(frozen=True)
class DocumentSource:
    """The model that documents are encoded with, and how.

    Attributes:
        model: that was opened.
        layer: the deepest one that is needed; those behind it do not run.
        device: as `choose_device` takes it.
        dtype: as `choose_dtype` takes it.
        cache: folder of the graphs.
        int8: folder of the graph with products in int8, where there is one; `dtype` is then that of
            what stands between them.
    """

    model: Model
    layer: int
    device: str
    dtype: str
    cache: Path
    int8: Path | None = None

    @property
    def multiplied(self) -> torch.dtype:
        """The number format of the products."""
        return choose_dtype(self.dtype, choose_device(self.device))

    @property
    def multiplied_name(self) -> str:
        """Its name: fp32 or bf16."""
        return next(name for name, kind in DTYPES.items() if kind is self.multiplied)

    @property
    def graph_folder(self) -> Path:
        """Where the graph is kept."""
        return _graph_folder(self.cache, self.model.card, self.layer, OPENVINO, "states")

    def open(self, runtime: str) -> TextEncoder[BatchEncoder]:
        """Open the encoder in a runtime: torch, or openvino, whose graph is written if needed.

        Raises:
            UserError: as `load` does, OpenVINO is not installed or cannot run this encoder, or the
                graph in int8 is not the one of the runtime.
        """
        if not runtime.startswith(OPENVINO):
            return load(self.model, self.layer, self.device, self.dtype)
        RUNTIMES[OPENVINO].require(self.device, self.dtype)
        dtype = self.multiplied_name
        loaded = load(self.model, self.layer)

        def in_openvino(folder: Path) -> TextEncoder[GraphEncoder]:
            return TextEncoder(
                GraphEncoder(loaded.runtime, OpenvinoBatches(folder, dtype)), loaded.tokenizer
            )

        if runtime != OPENVINO:
            if self.int8 is None or runtime != f"{INT8}{int8_digest(self.int8)}":
                raise UserError(f"{self.int8} does not hold the graph of {runtime}.")
            return in_openvino(self.int8)
        folder = self.graph_folder
        if folder.exists():
            with suppress(RuntimeError):  # a damaged graph, which is written again below
                return in_openvino(folder)
        sample = _sample(loaded)
        expected = loaded.runtime.embed(*sample)
        _write_cached(loaded.runtime, None, folder, OPENVINO)
        graph = in_openvino(folder)
        vectors = next(graph.runtime.embed_many([sample]))
        norms = np.linalg.norm(vectors, axis=-1) * np.linalg.norm(expected, axis=-1)
        cosine = float(((vectors * expected).sum(axis=-1) / norms).min())
        if not cosine >= LEAST_RUNTIME_COSINE:
            shutil.rmtree(folder, ignore_errors=True)
            raise UserError(f"OpenVINO differs from torch (cosine {cosine:.4f}): --runtime torch.")
        return graph


def choose_runtime(source: DocumentSource, asked: str, documents: int) -> str:
    """Return the runtime that encodes documents, ready to be opened.

    Args:
        source: the encoder.
        asked: torch, openvino, or auto: openvino where it is installed, on a CPU, for FEW documents
            and more, and torch elsewhere, or where there is no such graph, which is said.
        documents: how many there are.

    Raises:
        UserError: openvino was asked for and cannot run this encoder.
    """
    if asked == "auto":
        is_cpu = choose_device(source.device).type == "cpu"
        if not is_cpu or not RUNTIMES[OPENVINO].installed or documents < FEW or source.layer < 1:
            return "torch"
    if asked != "torch":
        try:
            source.open(OPENVINO)
        except UserError as error:
            if asked == OPENVINO:
                raise
            say(f"Encoding documents in torch, not in openvino: {error}")
            return "torch"
        return OPENVINO
    return asked


def _sample(loaded: TextEncoder[DualEncoder]) -> IdsAndMask:
    """Return a padded batch of texts of several lengths, [B, T] twice."""
    texts = [" ".join([SAMPLE_QUERY] * length) for length in _LENGTHS]
    rows = loaded.tokenizer(texts, loaded.card.document_length)
    return loaded.tokenizer.pad(rows)
