"""Encoders of documents: torch, or an OpenVINO graph of the states of all layers.

Only the layers run as a graph. Exit heads, fitted exits and modules work on one vector per text, so
torch runs them, in float32 as in an `Encoder`.
"""

# Shapes in this file:
#   L layers, B texts, T tokens, P dims of a pooled vector.

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from m2dr.core.errors import UserError, install
from m2dr.core.records import ModelCard
from m2dr.model.backbones import backbone_of
from m2dr.model.checkpoint import load, load_tokenizer
from m2dr.model.devices import DTYPES, choose_device, choose_dtype
from m2dr.model.encoder import Encoder, Floats, IdsAndMask
from m2dr.model.folder import read_card
from m2dr.model.graphs import (
    OPENVINO_PACKAGES,
    OpenvinoBatches,
    export_module,
    graph_folder,
    open_openvino_batches,
    write_graph,
    write_openvino,
)
from m2dr.model.runtimes import RUNTIMES, refuse_runtime
from m2dr.model.tokenizer import SAMPLE, ModelTokenizer

OPENVINO = "openvino"
FEW = 10_000  # documents; auto leaves fewer to torch, as making a graph takes longer than it saves
LEAST_COSINE = 0.999  # of a graph's vectors with torch's, in any number format
_LENGTHS = (1, 3, 6, 9) * 4  # of the texts of a sample, in sentences of about 10 tokens
_WARM_UPS, _ROUNDS = 2, 7  # of each runtime in turn, when the faster one is taken
_ENOUGH = 20.0  # seconds after which fewer rounds do
_FORMAT = "states-1"  # raise the number when the same model would be written otherwise


class BatchEncoder(Protocol):
    """Gives the vectors of many batches of documents. An Encoder is one."""

    @property
    def card(self) -> ModelCard:
        """The model card."""
        ...

    @property
    def device(self) -> torch.device:
        """The device that it runs on."""
        ...

    @property
    def layers(self) -> int:
        """Number of layers that it holds."""
        ...

    @property
    def pooled_width(self) -> int:
        """Dims of a pooled vector."""
        ...

    def embed_many(
        self, batches: Iterable[IdsAndMask], layers: Sequence[int] | None = None
    ) -> Iterator[Floats]:
        """Yield the embeddings of each batch, as `Encoder.embed_many` gives them."""
        ...

    def states_many(
        self, batches: Iterable[IdsAndMask], layers: Sequence[int] = ()
    ) -> Iterator[Floats]:
        """Yield the states of each batch, as `Encoder.states` gives them."""
        ...


class GraphEncoder:
    """An encoder whose layers run in OpenVINO. Safe to use from several threads.

    Args:
        encoder: in fp32 on the CPU; the weights of its layers are dropped.
        graph: gives the pooled states of layers 0 to L, [L + 1, B, P].
    """

    def __init__(self, encoder: Encoder, graph: OpenvinoBatches) -> None:
        self._encoder, self._graph = encoder, graph
        self.card, self.device = encoder.card, torch.device("cpu")
        self.layers, self.pooled_width = encoder.layers, encoder.pooled_width
        backbone_of(encoder.transformer.config).layers_of(encoder.transformer).to("meta")

    def embed_many(
        self, batches: Iterable[IdsAndMask], layers: Sequence[int] | None = None
    ) -> Iterator[Floats]:
        """Yield the embeddings of each batch, as `Encoder.embed_many` gives them."""
        return self._each(batches, self._embed, layers)

    def states_many(
        self, batches: Iterable[IdsAndMask], layers: Sequence[int] = ()
    ) -> Iterator[Floats]:
        """Yield the states of each batch, as `Encoder.states` gives them."""
        return self._each(batches, self._encoder.join_states, layers)

    def _embed(
        self,
        pooled: Mapping[int, Tensor],
        input_ids: Tensor,
        attention_mask: Tensor,
        layers: Sequence[int] | None,
    ) -> Tensor:
        """Return the embeddings of layers, [L, B, W], from the pooled states of all of them."""
        wanted = tuple(layers or range(1, self.layers + 1))
        return torch.stack(self._encoder.embedded(wanted, pooled, input_ids, attention_mask))

    @torch.inference_mode()
    def _each(
        self,
        batches: Iterable[IdsAndMask],
        finish: Callable[..., Tensor],
        layers: Sequence[int] | None,
    ) -> Iterator[Floats]:
        """Yield what `finish` makes of the pooled states of each batch."""
        for (ids, mask), states in self._graph.run(batches):
            pooled = dict(enumerate(torch.from_numpy(states)))
            vectors: Floats = finish(
                pooled, torch.from_numpy(ids), torch.from_numpy(mask), layers
            ).numpy()
            yield vectors


@dataclass(frozen=True)
class DocumentSource:
    """The model that documents are encoded with, and how.

    Attributes:
        model: folder or id.
        layer: the deepest one that is needed; those behind it do not run.
        device: as `choose_device` takes it.
        dtype: as `choose_dtype` takes it.
        cache: folder of the graphs.
    """

    model: str
    layer: int
    device: str
    dtype: str
    cache: Path

    @property
    def multiplied(self) -> torch.dtype:
        """The number format of the products."""
        return choose_dtype(self.dtype, choose_device(self.device))

    def open(self, runtime: str) -> tuple[BatchEncoder, ModelTokenizer]:
        """Open the encoder in a runtime: torch, or openvino, whose graph is written if needed.

        Raises:
            UserError: as `load` does, or OpenVINO is not installed or cannot run this encoder.
        """
        if runtime != OPENVINO:
            return load(self.model, self.layer, choose_device(self.device), self.multiplied)
        refuse_runtime(RUNTIMES[OPENVINO], self.device, self.dtype)
        return self._open_graph(), load_tokenizer(self.model)

    @property
    def graph_folder(self) -> Path:
        """Where the graph is kept."""
        name = f"{OPENVINO}-{_FORMAT}"
        return graph_folder(self.cache, read_card(self.model), self.layer, name, OPENVINO_PACKAGES)

    def _open_graph(self) -> GraphEncoder:
        dtype = next(name for name, kind in DTYPES.items() if kind is self.multiplied)
        encoder, tokenizer = load(self.model, self.layer)
        folder = self.graph_folder
        if folder.exists():
            with suppress(RuntimeError):  # a damaged graph, which is written again below
                return GraphEncoder(encoder, open_openvino_batches(folder, dtype))
        sample = _sample(tokenizer, encoder.card)
        expected = encoder.embed(*sample)
        write_graph(encoder, self.layer, folder, OPENVINO, write_openvino, _export_states)
        made = GraphEncoder(encoder, open_openvino_batches(folder, dtype))
        cosine = _least_cosine(next(made.embed_many([sample])), expected)
        if not cosine >= LEAST_COSINE:
            shutil.rmtree(folder, ignore_errors=True)
            raise UserError(
                f"OpenVINO gives other vectors than torch with {self.model} (cosine {cosine:.4f}). "
                "Use --runtime torch."
            )
        return made


def choose_runtime(source: DocumentSource, asked: str, documents: int) -> tuple[str, str]:
    """Return the runtime that encodes documents, ready to be opened, and why it was chosen.

    Args:
        source: the encoder.
        asked: torch, openvino, or auto for the faster one of those that are installed.
        documents: how many there are.

    Raises:
        UserError: openvino was asked for and cannot run this encoder.
    """
    if asked == OPENVINO:
        source.open(OPENVINO)
    if asked != "auto":
        return asked, ""
    device = choose_device(source.device)
    kind = RUNTIMES[OPENVINO]
    if device.type != "cpu" or not kind.installed or documents < FEW or source.layer < 1:
        return "torch", ""
    try:
        graph, _ = source.open(OPENVINO)
    except UserError as error:
        return "torch", f"Runtime torch, as openvino is not possible: {error}"
    encoder, tokenizer = source.open("torch")
    times = _times({"torch": encoder, OPENVINO: graph}, _sample(tokenizer, encoder.card))
    best = min(times, key=times.__getitem__)
    told = ", ".join(f"{1000 * seconds:,.1f} ms in {name}" for name, seconds in times.items())
    return best, f"Runtime {best}: a sample of documents takes {told}"


def refuse_absent(runtime: str, why: str) -> None:
    """Raise UserError where a runtime that vectors were made with is not installed.

    Args:
        runtime: torch or openvino.
        why: names the vectors, for the error.
    """
    if runtime != "torch" and not RUNTIMES[runtime].installed:
        raise UserError(
            f"Runtime {runtime} is needed, as {why}, and is not installed; install it with: "
            f"{install(runtime)}"
        )


def _times(encoders: dict[str, BatchEncoder], sample: IdsAndMask) -> dict[str, float]:
    """Return the median seconds of a batch; the runtimes take turns, so that load affects both."""
    batches = [sample] * (2 * torch.get_num_threads())
    seconds: dict[str, list[float]] = {name: [] for name in encoders}
    until = time.perf_counter() + _ENOUGH
    for number in range(_WARM_UPS + _ROUNDS):
        for name, encoder in encoders.items():
            begun = time.perf_counter()
            for _ in encoder.embed_many(batches):
                pass
            seconds[name].append((time.perf_counter() - begun) / len(batches))
        if number >= _WARM_UPS and time.perf_counter() > until:
            break
    return {name: median(found[_WARM_UPS:]) for name, found in seconds.items()}


def _sample(tokenizer: ModelTokenizer, card: ModelCard) -> IdsAndMask:
    """Return a padded batch of texts of several lengths, [B, T] twice."""
    rows = tokenizer([" ".join([SAMPLE] * length) for length in _LENGTHS], card.document_length)
    longest = max(map(len, rows))
    ids = np.array([[*row, *[tokenizer.pad_id] * (longest - len(row))] for row in rows], np.int64)
    lengths = np.array([len(row) for row in rows])
    return ids, (np.arange(longest) < lengths[:, None]).astype(np.int64)


def _least_cosine(first: Floats, second: Floats) -> float:
    norms = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    return float(((first * second).sum(axis=-1) / norms).min())


def _export_states(encoder: Encoder, _: int) -> ExportedProgram:
    """Export all layers of an encoder: ids and mask [B, T] to pooled states [L + 1, B, P]."""
    return export_module(_PooledStates(encoder), encoder)


class _PooledStates(nn.Module):
    """The module that is exported: an encoder that gives the pooled states of layers 0 to L."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        layers = range(self.encoder.layers + 1)
        pooled = self.encoder.pooled(input_ids, attention_mask, layers)
        return torch.stack([pooled[layer] for layer in layers])
