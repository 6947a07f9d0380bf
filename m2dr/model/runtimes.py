"""Runtimes of a cut query encoder: torch, or a graph of it in ONNX Runtime or OpenVINO."""

# Shapes in this file:
#   L layers, B texts, T tokens, W dims of a vector.

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np
import torch
from torch.export import ExportedProgram

from m2dr.core.errors import UserError, install, nearest
from m2dr.core.records import ModelCard
from m2dr.model import graphs
from m2dr.model.checkpoint import load, load_tokenizer
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.model.encoder import Encoder, Floats, Ints
from m2dr.model.folder import read_card
from m2dr.model.graphs import graph_folder, write_graph
from m2dr.model.tokenizer import SAMPLE, ModelTokenizer

_WARM_UPS, _ROUNDS = 2, 7  # of each candidate in turn, when the fastest is taken


class _Loaded(Protocol):
    @property
    def card(self) -> ModelCard:
        """The model card."""
        ...

    @property
    def device(self) -> torch.device:
        """The device that it runs on."""
        ...


class Runtime(_Loaded, Protocol):
    """Token ids to vectors of some layers. An Encoder is one."""

    def embed(
        self, input_ids: Ints, attention_mask: Ints, layers: Sequence[int] | None = None
    ) -> Floats:
        """Embed texts: [B, T] twice to [L, B, W], not normalised."""
        ...


class Graph(_Loaded, Protocol):
    """Token ids to vectors of one layer, by a runtime other than torch."""

    def run(self, input_ids: Ints, attention_mask: Ints) -> Floats:
        """Embed texts: [B, T] twice to [B, W], not normalised."""
        ...


@dataclass(frozen=True)
class RuntimeKind:
    """A runtime of graphs. A new one is a row of RUNTIMES, and the tests run over all rows."""

    name: str  # and its extra
    packages: tuple[str, ...]
    dtypes: tuple[str, ...]  # that it multiplies in
    write: Callable[[ExportedProgram, Path], None]
    open: Callable[[Path, ModelCard, str], Graph]

    @property
    def installed(self) -> bool:
        """Whether all of its packages are installed."""
        return not self.missing

    @property
    def missing(self) -> tuple[str, ...]:
        """Its packages that are not installed."""
        return tuple(package for package in self.packages if find_spec(package) is None)


RUNTIMES = {
    kind.name: kind
    for kind in (
        RuntimeKind("onnx", graphs.ONNX_PACKAGES, ("fp32",), graphs.write_onnx, graphs.open_onnx),
        RuntimeKind(
            "openvino",
            graphs.OPENVINO_PACKAGES,
            ("fp32", "bf16"),
            graphs.write_openvino,
            graphs.open_openvino,
        ),
    )
}
NAMES = ("torch", *RUNTIMES, "auto")


@dataclass(frozen=True)
class GraphRuntime:
    """A graph as a runtime, which gives one layer."""

    graph: Graph
    layer: int

    @property
    def card(self) -> ModelCard:
        """The model card."""
        return self.graph.card

    @property
    def device(self) -> torch.device:
        """The device that it runs on."""
        return self.graph.device

    def embed(
        self, input_ids: Ints, attention_mask: Ints, layers: Sequence[int] | None = None
    ) -> Floats:
        """Embed texts: [B, T] twice to [1, B, W], not normalised.

        Raises:
            UserError: another layer was asked for.
        """
        if layers is not None and tuple(layers) != (self.layer,):
            asked = ", ".join(map(str, layers))
            raise UserError(f"Layer {asked} was asked for; this graph gives layer {self.layer}.")
        return self.graph.run(input_ids, attention_mask)[None]


@dataclass(frozen=True)
class OpenedRuntime:
    """A runtime ready for queries of one layer."""

    name: str
    runtime: Runtime
    tokenizer: ModelTokenizer
    note: str = ""  # the times by which it was chosen, if any


@dataclass(frozen=True)
class _GraphSource:
    """The cut encoder that graphs are made of; its weights are read only when one is missing."""

    model: str
    layer: int
    cache: Path
    exits: Path | None = None  # of an index, in place of the model's own

    @cached_property
    def card(self) -> ModelCard:
        return read_card(self.model)

    @cached_property
    def encoder(self) -> Encoder:
        return load(self.model, self.layer, exits=self.exits)[0]

    def open(self, kind: RuntimeKind, dtype: str) -> GraphRuntime:
        """Open the cached graph, or write it first."""
        folder = graph_folder(
            self.cache, self.card, self.layer, kind.name, kind.packages, self.exits
        )
        if folder.exists():
            try:
                return GraphRuntime(kind.open(folder, self.card, dtype), self.layer)
            except Exception:  # a damaged graph, which is written again below
                pass
        write_graph(self.encoder, self.layer, folder, kind.name, kind.write)
        return GraphRuntime(kind.open(folder, self.card, dtype), self.layer)


def open_runtime(
    name: str,
    model: str,
    layer: int,
    device: str,
    dtype: str,
    cache: Path,
    exits: Path | None = None,
) -> OpenedRuntime:
    """Open the first layers of a model in a runtime.

    Args:
        name: torch, onnx, openvino, or auto for the fastest of those that are installed.
        model: folder or id.
        layer: number of layers that a query runs through, from 1; layer 0 needs no runtime.
        device: as `choose_device` takes it; graphs run on the CPU.
        dtype: as `choose_dtype` takes it; auto is fp32 in graphs.
        cache: folder of the graphs.
        exits: folder of the exits of an index, in place of the model's own.

    Raises:
        UserError: there is no such runtime, it is not installed, or it cannot run this encoder.
    """
    if name not in NAMES:
        raise UserError(f"There is no runtime {name!r}. {nearest(name, NAMES)}")
    source = _GraphSource(model, layer, cache, exits)
    if name == "auto":
        return _fastest(source, device, dtype)
    if name == "torch":
        return _in_torch(source, device, dtype)
    kind = RUNTIMES[name]
    refuse_runtime(kind, device, dtype)
    runtime = source.open(kind, "fp32" if dtype == "auto" else dtype)
    return OpenedRuntime(name, runtime, load_tokenizer(model))


def refuse_runtime(kind: RuntimeKind, device: str, dtype: str) -> None:
    """Raise UserError where a runtime is not installed, or lacks the device or dtype."""
    if not kind.installed:
        missing = ", ".join(kind.missing)
        raise UserError(
            f"--runtime {kind.name} was asked for and {missing} is not installed; install it "
            f"with: {install(kind.name)}"
        )
    if device not in ("auto", "cpu"):
        raise UserError(f"--runtime {kind.name} runs on the CPU, not on {device}; use torch there.")
    if dtype not in ("auto", *kind.dtypes):
        known = " or ".join(kind.dtypes)
        raise UserError(f"--runtime {kind.name} multiplies in {known}, not in {dtype}.")


def _in_torch(source: _GraphSource, device: str, dtype: str) -> OpenedRuntime:
    chosen = choose_device(device)
    multiplied = choose_dtype(dtype, chosen)
    encoder, tokenizer = load(source.model, source.layer, chosen, multiplied, source.exits)
    return OpenedRuntime("torch", encoder, tokenizer)


def _fastest(source: _GraphSource, device: str, dtype: str) -> OpenedRuntime:
    """Open every runtime that is installed, and return the one with the shortest median time."""
    opened = _in_torch(source, device, dtype)
    if opened.runtime.device.type != "cpu":
        return opened
    candidates: dict[str, Runtime] = {"torch": opened.runtime}
    failed = []
    for kind in RUNTIMES.values():
        if kind.installed and dtype in ("auto", *kind.dtypes):
            try:
                candidates[kind.name] = source.open(kind, "fp32" if dtype == "auto" else dtype)
            except UserError:
                failed.append(f"{kind.name} cannot run this encoder")
    times = _measure(candidates, opened.tokenizer, source)
    best = min(times, key=times.__getitem__)
    told = [f"{name} {1000 * seconds:.1f} ms" for name, seconds in times.items()]
    note = f"Runtime {best}: a query takes {', '.join([*told, *failed])}"
    return OpenedRuntime(best, candidates[best], opened.tokenizer, note)


def _measure(
    candidates: dict[str, Runtime], tokenizer: ModelTokenizer, source: _GraphSource
) -> dict[str, float]:
    """Return the median seconds of one query in each runtime.

    The runtimes take turns, so that other load on the machine affects all of them.
    """
    ids = np.array(tokenizer([SAMPLE], source.card.query_length), np.int64)
    mask = np.ones_like(ids)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(_WARM_UPS + _ROUNDS):
        for name, runtime in candidates.items():
            begun = time.perf_counter()
            runtime.embed(ids, mask, [source.layer])
            if number >= _WARM_UPS:
                seconds[name].append(time.perf_counter() - begun)
    return {name: median(found) for name, found in seconds.items()}
