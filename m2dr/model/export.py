"""Cut a model to one layer and dim: a folder of its own, a graph, or the words of layer 0."""

# Shapes in this file:
#   B texts, T tokens, P dims of a pooled vector, N and M dims of a vector before and behind a map,
#   K dims of the cut.

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from m2dr.core.errors import UserError
from m2dr.core.files import read_record, write_record
from m2dr.core.records import (
    EXITS_FILE,
    EXPORTED_FILE,
    Cut,
    ExportRecord,
    IndexExits,
    ModelCard,
    is_ready,
)
from m2dr.model import checkpoint
from m2dr.model.card import write_readme
from m2dr.model.checkpoint import Model
from m2dr.model.embed import TextEncoder
from m2dr.model.encoder import DualEncoder
from m2dr.model.exits import FittedExits, linear
from m2dr.model.graphs import RUNTIMES, write_graph_files
from m2dr.model.modules import Dense, Truncate, write_model_settings
from m2dr.model.tokenizer import SAMPLE_QUERY
from m2dr.model.words import WordTable, unit_rows

LEAST_GRAPH_COSINE = 0.9999  # of a graph in fp32 to torch
_WORDS = SAMPLE_QUERY.split() * 28
_COUNTS = ((1,), (2, 37), (1, 3, 8, 21, 60), (250,))  # words of the texts of each probe


@dataclass(frozen=True)
class CutModel:
    """The first layers of a model, and the exit that ends in the dims of a cut."""

    loaded: TextEncoder[DualEncoder]  # its vectors are those of the cut, not normalised
    card: ModelCard  # of the smaller model
    parent: ModelCard
    of_index: bool = False  # whether its exit is one that an index has

    @property
    def encoder(self) -> DualEncoder:
        """Its layers in torch."""
        return self.loaded.runtime

    @property
    def cut(self) -> Cut:
        """The cut."""
        return self.card.full

    @property
    def query_only(self) -> bool:
        """Whether the model trained such queries to search documents of its last layer."""
        last = self.parent.documents == "last" or self.of_index
        return last and self.cut.layer < self.parent.layers


def refuse_unready(model: Model, cut: Cut, exits: Path | None) -> None:
    """Refuse a cut that was neither fitted nor trained.

    Dims between two that were trained are as good, and so are all dims of a rotation.

    Args:
        model: that was opened.
        cut: that is asked for; its layer is not 0.
        exits: folder of the exits of an index, which make every cut ready: below the last layer by
            its exits, and of the last one, whose prefixes the index searches.

    Raises:
        UserError: it was neither.
    """
    card = model.card
    card.check(cut)
    if exits is None and not is_ready(cut, card.cuts):
        raise UserError(
            f"{cut} of {model} was neither fitted nor trained: --exits takes an index's exits "
            f"(of the last layer its plain prefix), and --force exports the cut as it is."
        )


def cut_model(model: Model, cut: Cut, exits: Path | None = None) -> CutModel:
    """Load the first layers of a model, and cut its exit to the dims of a cut.

    Args:
        model: that was opened.
        cut: with a layer from 1.
        exits: folder of the exits of an index, in place of the model's own.

    Raises:
        UserError: no such model or cut, or the exits are another model's.
    """
    parent = model.card
    parent.check(cut)
    used = exits if cut.layer < parent.layers else None
    loaded = checkpoint.load(model, cut.layer, exits=used)
    encoder = loaded.runtime
    encoder.requires_grad_(False)
    fitted = encoder.fitted
    if fitted is not None and encoder.last_layer_has_exit:
        head, words = fitted.heads[str(cut.layer)], fitted.words
        assert isinstance(head, nn.Linear)
        assert words is not None  # a model that was saved has them
        alone = linear(head.weight[: cut.dim].contiguous(), head.bias[: cut.dim].contiguous())
        encoder.fitted = FittedExits({cut.layer: alone}, words.cut(cut.layer, cut.dim))
        encoder.behind = nn.Sequential()
    else:
        own = [module for name, module in encoder.exit_heads.items() if name == str(cut.layer)]
        encoder.behind = _joined([*own, *encoder.behind], cut.dim, encoder.pooled_width)
        encoder.fitted = None
    encoder.exit_heads = nn.ModuleDict()
    own_exit = encoder.last_layer_has_exit or bool(used) or parent.exit_head == "linear"
    cuts = {one for one in parent.cuts if one.layer == cut.layer or not own_exit}
    kept = {one for one in cuts if 0 < one.layer <= cut.layer and one.dim <= cut.dim}
    card = replace(
        parent,
        layers=cut.layer,
        width=cut.dim,
        cuts=tuple(sorted(kept | {cut})),
        documents="same",
        exit_head="fitted" if encoder.last_layer_has_exit else "none",
        exported_from=parent.fingerprint,
    )
    encoder.card = card
    return CutModel(loaded, card, parent, used is not None)


def _joined(modules: Sequence[nn.Module], dim: int, width: int) -> nn.Sequential:
    """Return the same maps of a pooled vector, cut to K dims, with as few matrices as can be.

    Args:
        modules: an exit head, if any, and the modules behind it.
        dim: K.
        width: P.
    """
    joined: list[nn.Module] = []
    for module in modules:
        if isinstance(module, Truncate):
            continue  # K is no greater
        matrix, before = _matrix(module), _matrix(joined[-1]) if joined else None
        if matrix is not None and before is not None:
            joined[-1] = _dense((matrix.double() @ before.double()).float())
        else:
            joined.append(module if matrix is None else _dense(matrix))
        if isinstance(module, Dense):
            width = module.linear.out_features
    last = _matrix(joined[-1]) if joined else None
    if last is not None:
        joined[-1] = _dense(last[:dim])
    elif dim < width:
        joined.append(_dense(torch.eye(dim, width)))
    return nn.Sequential(*joined)


def _matrix(module: nn.Module) -> Tensor | None:
    """Return the matrix [M, N] of a map that is nothing more."""
    if isinstance(module, nn.Linear) and module.bias is None:
        return module.weight.detach()
    return module.matrix if isinstance(module, Dense) else None


def _dense(weight: Tensor) -> Dense:
    """Return a Dense with a copy of this matrix [M, N]."""
    return Dense.of(weight.detach().clone())


def write_graph(cut: CutModel, runtime: str, folder: Path, record: ExportRecord) -> ExportRecord:
    """Write a cut as a graph that runs without torch, checked against torch.

    Args:
        cut: its encoder is changed.
        runtime: onnx or openvino.
        folder: to write; empty or missing.
        record: of the export.

    Returns:
        The record with the lowest cosine of the graph's vectors to those of torch.

    Raises:
        UserError: the architecture cannot be written as such a graph, the graph gives other vectors
            than torch, or `folder` holds something or is being written to.
    """
    kind, card, tokenizer = RUNTIMES[runtime], cut.card, cut.loaded.tokenizer
    kind.require()
    texts = [[" ".join(_WORDS[:count]) for count in counts] for counts in _COUNTS]
    probes = [tokenizer.pad(tokenizer(batch, card.document_length)) for batch in texts]
    layer = cut.encoder.layers
    expected = [unit_rows(cut.encoder.embed(*probe, [layer])[0]) for probe in probes]
    with _exported(folder) as aside:
        checkpoint.save_tokenizer(tokenizer, aside)
        unit = card.similarity == "cosine" and cut.encoder.fitted is None
        write_graph_files(cut.encoder, layer, aside, runtime, unit)
        run = kind.open(aside, "fp32")
        vectors = [unit_rows(run(*probe)) for probe in probes]
        both = zip(vectors, expected, strict=True)
        lowest = min(float((mine * theirs).sum(1).min()) for mine, theirs in both)
        if not lowest >= LEAST_GRAPH_COSINE:
            raise UserError(f"The {runtime} graph of {cut.cut} differs from torch: {lowest:.5f}.")
        record = replace(record, lowest_cosine=lowest)
        if words := cut.encoder.words:
            words.write(aside)
        write_model_settings(card, aside)
        write_record(aside / EXPORTED_FILE, record)
        module, side = kind.packages[-1], tokenizer.inner.truncation_side
        write_readme(card, aside, export=record, module=module, pad_id=tokenizer.pad_id, side=side)
    return record


@contextmanager
def _exported(folder: Path) -> Iterator[Path]:
    """Lend an empty folder whose files come into `folder` when the block ends without an error."""
    with checkpoint.locked_for_export(folder):
        with checkpoint.folder_aside(folder) as aside:
            yield aside
        for path in sorted(aside.iterdir()):
            path.replace(folder / path.name)
        aside.rmdir()


def write_words(model: Model, folder: Path, dim: int | None, exits: Path | None) -> tuple[int, int]:
    """Write layer 0, which is words.safetensors with a README.

    Args:
        model: that was opened.
        folder: to write; empty or missing.
        dim: dims to keep; all by default.
        exits: folder of the exits of an index, in place of the model's own.

    Returns:
        The numbers of words and of dims.

    Raises:
        UserError: there are no words, or fewer dims, or `folder` holds something or is being
            written to.
    """
    card = model.card
    words = WordTable.open(exits or model.folder)
    card.check(Cut(card.layers, dim or card.width))
    words = words.cut(0, dim or card.width)
    with _exported(folder) as aside:
        words.write(aside)
        fitted_on = "texts of the model's fit"
        if exits is not None:
            record = read_record(exits / EXITS_FILE, IndexExits)
            fitted_on = f"{record.fit.texts:,} documents of the index of {record.corpus}"
        write_readme(card, aside, fitted_on=fitted_on, dim=words.width)
    return len(words.rows), words.width
