"""What runs a cut query encoder: torch, or a graph of it in ONNX Runtime or OpenVINO."""

# Shapes in this file:
#   L layers, B texts, T tokens, H width.

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
from numpy.typing import NDArray
from torch.export import ExportedProgram

from m2dr.errors import UserError, install, nearest
from m2dr.model import onnx, openvino
from m2dr.model.checkpoint import Tokenizer, load, load_tokenizer, read_card
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.model.encoder import Encoder
from m2dr.model.graphs import graph_folder, write_graph
from m2dr.model.tokenizer import SAMPLE
from m2dr.records.card import ModelCard

Ints = NDArray[np.int64]

_ROUNDS = 7  # of each candidate in turn, when the fastest is taken


class Runtime(Protocol):
    """What turns token ids into vectors. An Encoder is one."""

    @property
    def card(self) -> ModelCard:
        """What the model says of itself."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        ...

    def embed(
        self, input_ids: Ints, attention_mask: Ints, layers: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """[B, T] twice to [L, B, H], not normalised."""
        ...


class Graph(Protocol):
    """One layer of an encoder in a runtime of its own."""

    @property
    def card(self) -> ModelCard:
        """What the model says of itself."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        ...

    def run(self, input_ids: Ints, attention_mask: Ints) -> NDArray[np.float32]:
        """[B, T] twice to [B, H], not normalised."""
        ...


@dataclass(frozen=True)
class Kind:
    """One runtime of graphs. A new one is a row of KINDS, and the tests run over all rows."""

    name: str  # and its extra
    packages: tuple[str, ...]
    dtypes: tuple[str, ...]  # that it multiplies in
    write: Callable[[ExportedProgram, Path], None]
    open: Callable[[Path, ModelCard, str], Graph]

    @property
    def installed(self) -> bool:
        """Whether every package of it is there."""
        return all(find_spec(package) is not None for package in self.packages)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("onnx", onnx.PACKAGES, ("fp32",), onnx.write, onnx.open_graph),
        Kind("openvino", openvino.PACKAGES, ("fp32", "bf16"), openvino.write, openvino.open_graph),
    )
}
NAMES = ("torch", *KINDS, "auto")


@dataclass(frozen=True)
class OneLayer:
    """A graph as a runtime: the only layer that may be asked for is the graph's."""

    graph: Graph
    layer: int

    @property
    def card(self) -> ModelCard:
        """What the model says of itself."""
        return self.graph.card

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.graph.device

    def embed(
        self, input_ids: Ints, attention_mask: Ints, layers: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """[B, T] twice to [1, B, H], not normalised.

        Raises:
            UserError: another layer was asked for.
        """
        if layers is not None and tuple(layers) != (self.layer,):
            asked = ", ".join(map(str, layers))
            raise UserError(f"Layer {asked} was asked for; this graph gives layer {self.layer}.")
        return self.graph.run(input_ids, attention_mask)[None]


@dataclass(frozen=True)
class Opened:
    """A runtime ready for queries of one layer."""

    name: str
    runtime: Runtime
    tokenizer: Tokenizer
    note: str = ""  # why this one, where it was chosen by measuring


@dataclass(frozen=True)
class _Source:
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

    def open(self, kind: Kind, dtype: str) -> OneLayer:
        """Open the graph that an earlier run wrote, or write it first."""
        folder = graph_folder(
            self.cache, self.card, self.layer, kind.name, kind.packages, self.exits
        )
        if folder.exists():
            try:
                return OneLayer(kind.open(folder, self.card, dtype), self.layer)
            except Exception:  # noqa: S110  # damaged since, in whatever way: written again below
                pass
        write_graph(self.encoder, self.layer, folder, kind.name, kind.write)
        return OneLayer(kind.open(folder, self.card, dtype), self.layer)


def open_runtime(
    name: str,
    model: str,
    layer: int,
    device: str,
    dtype: str,
    cache: Path,
    exits: Path | None = None,
) -> Opened:
    """Open the first `layer` blocks of a model in a runtime.

    Args:
        name: torch, onnx, openvino, or auto for the fastest of those that are installed.
        model: folder or id.
        layer: blocks that a query runs through, from 1: layer 0 is a table, which needs no runtime.
        device: as `choose_device` takes it; graphs run on the CPU.
        dtype: as `choose_dtype` takes it; auto is fp32 in graphs.
        cache: where graphs are kept.
        exits: folder of the exits of an index, in place of the model's own.

    Raises:
        UserError: there is no such runtime, it is not installed, or it cannot run this encoder.
    """
    if name not in NAMES:
        raise UserError(f"There is no runtime {name!r}. {nearest(name, NAMES)}")
    source = _Source(model, layer, cache, exits)
    if name == "auto":
        return _fastest(source, device, dtype)
    if name == "torch":
        return _torch(source, device, dtype)
    kind = KINDS[name]
    _refuse(kind, device, dtype)
    runtime = source.open(kind, "fp32" if dtype == "auto" else dtype)
    return Opened(name, runtime, load_tokenizer(model))


def _refuse(kind: Kind, device: str, dtype: str) -> None:
    """Raise UserError where a runtime cannot do what was asked."""
    if not kind.installed:
        missing = ", ".join(package for package in kind.packages if find_spec(package) is None)
        raise UserError(
            f"--runtime {kind.name} was asked for and {missing} is not installed; install it "
            f"with: {install(kind.name)}"
        )
    if device not in ("auto", "cpu"):
        raise UserError(f"--runtime {kind.name} runs on the CPU, not on {device}; use torch there.")
    if dtype not in ("auto", *kind.dtypes):
        known = " or ".join(kind.dtypes)
        raise UserError(f"--runtime {kind.name} multiplies in {known}, not in {dtype}.")


def _torch(source: _Source, device: str, dtype: str) -> Opened:
    chosen = choose_device(device)
    multiplied = choose_dtype(dtype, chosen)
    encoder, tokenizer = load(source.model, source.layer, chosen, multiplied, source.exits)
    return Opened("torch", encoder, tokenizer)


def _fastest(source: _Source, device: str, dtype: str) -> Opened:
    """Run a query through each runtime in turn, round after round, and take the best median.

    In turn, so that what else the machine does meanwhile hits all of them.
    """
    opened = _torch(source, device, dtype)
    if opened.runtime.device.type != "cpu":
        return opened
    candidates: dict[str, Runtime] = {"torch": opened.runtime}
    failed = []
    for kind in KINDS.values():
        if kind.installed and dtype in ("auto", *kind.dtypes):
            try:
                candidates[kind.name] = source.open(kind, "fp32" if dtype == "auto" else dtype)
            except UserError:
                failed.append(f"{kind.name} cannot run this encoder")
    times = _measured(candidates, opened.tokenizer, source)
    best = min(times, key=times.__getitem__)
    told = [f"{name} {1000 * seconds:.1f} ms" for name, seconds in times.items()]
    note = f"Runtime {best}: a query takes {', '.join([*told, *failed])}"
    return Opened(best, candidates[best], opened.tokenizer, note)


def _measured(
    candidates: dict[str, Runtime], tokenizer: Tokenizer, source: _Source
) -> dict[str, float]:
    """Median seconds of one query in each runtime."""
    ids = np.array(tokenizer([SAMPLE], source.card.query_length), np.int64)
    mask = np.ones_like(ids)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(_ROUNDS + 2):
        for name, runtime in candidates.items():
            begun = time.perf_counter()
            runtime.embed(ids, mask, [source.layer])
            if number >= 2:  # the first runs allocate
                seconds[name].append(time.perf_counter() - begun)
    return {name: median(found) for name, found in seconds.items()}
