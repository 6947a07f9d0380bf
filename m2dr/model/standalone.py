"""Cut a model to one layer and dim, as a model of its own that other tools open without m2dr."""

# Shapes in this file:
#   P dims of a pooled vector, N and M dims of a vector before and behind a map, K dims of the cut.

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from m2dr.core.errors import UserError, command
from m2dr.core.records import Cut, ExportRecord, ModelCard
from m2dr.model.checkpoint import load, save
from m2dr.model.cut_readme import read_exported
from m2dr.model.encoder import Encoder
from m2dr.model.exits import FittedExits
from m2dr.model.folded_exit import FoldedExit
from m2dr.model.folder import locked_for_export, read_card
from m2dr.model.modules import Dense, Truncate
from m2dr.model.tokenizer import ModelTokenizer


@dataclass(frozen=True)
class CutModel:
    """The first layers of a model, and the exit that ends in the dims of a cut."""

    encoder: Encoder  # its vectors are those of the cut, not normalised
    tokenizer: ModelTokenizer
    card: ModelCard  # of the smaller model
    parent: ModelCard
    of_index: bool = False  # whether its exit is one that an index has

    @property
    def cut(self) -> Cut:
        """The cut."""
        return self.card.full

    @property
    def query_only(self) -> bool:
        """Whether the model trained such queries to search documents of its last layer."""
        last = self.parent.documents == "last" or self.of_index
        return last and self.cut.layer < self.parent.layers


def refuse_unready(card: ModelCard, cut: Cut, model: str, exits: Path | None) -> None:
    """Refuse a cut that was neither fitted nor trained.

    Dims between two that were trained are as good, and so are all dims of a rotation.

    Args:
        card: of the model.
        cut: that is asked for; its layer is not 0.
        model: folder or id.
        exits: folder of the exits of an index, which make every layer below the last ready.

    Raises:
        UserError: it was neither.
    """
    card.check(cut, model)
    if exits is not None and cut.layer < card.layers:
        return
    dims = [trained.dim for trained in card.cuts if trained.layer == cut.layer]
    if dims and min(dims) <= cut.dim <= max(dims):
        return
    ready = f"dims {min(dims)} to {max(dims)} of layer {cut.layer} were" if dims else (
        f"layers {', '.join(map(str, card.layers_trained)) or 'none'} were"
    )  # fmt: skip
    whole = read_exported(Path(model))
    if whole is not None:
        raise UserError(
            f"{cut} of {model} was to be exported, which is {whole.cut} of {whole.model} and has "
            f"no other cut that was fitted or trained. Export {whole.model} itself, as in: "
            f"{command('export', whole.model, cut=cut, out=f'{model}-{cut}')}"
        )
    raise UserError(
        f"{cut} of {model} was to be exported and was neither fitted nor trained ({ready}), so "
        f"that it would retrieve badly. Fit every layer and dim, in minutes and without labels, "
        f"with {command('fit', backbone=model)}, and export that; --force exports it as it is."
    )


def cut_model(model: str, cut: Cut, exits: Path | None = None) -> CutModel:
    """Load the first layers of a model, and cut its exit to the dims of a cut.

    Args:
        model: folder or id.
        cut: with a layer from 1.
        exits: folder of the exits of an index, in place of the model's own.

    Raises:
        UserError: no such model or cut, or the exits are another model's.
    """
    parent = read_card(model)
    parent.check(cut, model)
    used = exits if cut.layer < parent.layers else None
    encoder, tokenizer = load(model, cut.layer, exits=used)
    encoder.requires_grad_(False)
    if encoder.ends_fitted:
        _cut_fitted(encoder, cut)
    else:
        own = [module for name, module in encoder.exit_heads.items() if name == str(cut.layer)]
        encoder.behind = _joined([*own, *encoder.behind], cut.dim, encoder.pooled_width)
        encoder.fitted = None
    encoder.exit_heads = nn.ModuleDict()
    alone = encoder.ends_fitted or bool(used) or parent.exit_head in ("linear", "table")
    cuts = {one for one in parent.cuts if one.layer == cut.layer or not alone}
    kept = {one for one in cuts if 0 < one.layer <= cut.layer and one.dim <= cut.dim}
    card = replace(
        parent,
        layers=cut.layer,
        width=cut.dim,
        cuts=tuple(sorted(kept | {cut})),
        documents="same",
        exit_head="table" if encoder.ends_fitted else "none",
        exported_from=parent.fingerprint,
    )
    encoder.card = card
    return CutModel(encoder, tokenizer, card, parent, used is not None)


def _cut_fitted(encoder: Encoder, cut: Cut) -> None:
    """Replace the fitted exits of an encoder by the one of its last layer, cut to K dims."""
    fitted = encoder.fitted
    assert fitted is not None
    if fitted.inputs != "layer":
        encoder.fitted = FoldedExit.of(fitted, cut.layer, encoder.words, cut.dim)
        return
    head = fitted.heads[str(cut.layer)]
    assert isinstance(head, nn.Linear)
    encoder.behind = nn.Sequential(_dense(head.weight[: cut.dim], head.bias[: cut.dim]))
    encoder.fitted = None


def _joined(modules: Sequence[nn.Module], dim: int, width: int) -> nn.Sequential:
    """Return the same maps of a pooled vector, cut to K dims, with as few matrices as can be.

    Args:
        modules: an exit head, if any, and the modules behind it.
        dim: K.
        width: P.
    """
    found: list[nn.Module] = []
    for module in modules:
        if isinstance(module, Truncate):
            continue  # K is no greater
        matrix, before = _matrix(module), _matrix(found[-1]) if found else None
        if matrix is not None and before is not None:
            found[-1] = _dense((matrix.double() @ before.double()).float())
        else:
            found.append(module if matrix is None else _dense(matrix))
        if isinstance(module, Dense):
            width = module.linear.out_features
    last = _matrix(found[-1]) if found else None
    if last is not None:
        found[-1] = _dense(last[:dim])
    elif dim < width:
        found.append(_dense(torch.eye(dim, width)))
    return nn.Sequential(*found)


def _matrix(module: nn.Module) -> Tensor | None:
    """Return the matrix [M, N] of a map that is nothing more."""
    if isinstance(module, nn.Linear) and module.bias is None:
        return module.weight.detach()
    if not isinstance(module, Dense) or module.use_residual or module.linear.bias is not None:
        return None
    plain = isinstance(module.activation_function, nn.Identity)
    return module.linear.weight.detach() if plain else None


def _dense(weight: Tensor, bias: Tensor | None = None) -> Dense:
    """Return a Dense with this matrix [M, N] and this bias [M]."""
    found = Dense(weight.shape[1], weight.shape[0], bias is not None, nn.Identity(), False)
    found.linear.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    if bias is not None:
        found.linear.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    return found


def write_standalone(made: CutModel, folder: Path, record: ExportRecord, model: str) -> ModelCard:
    """Write a cut as a folder that transformers, sentence-transformers and m2dr open.

    Args:
        made: the cut.
        folder: to write; empty or missing.
        record: of the export.
        model: folder or id that it was cut from, for a command.

    Raises:
        UserError: no module of sentence-transformers expresses the exit, or `folder` holds
            something or is being written to.
    """
    fitted = made.encoder.fitted
    if isinstance(fitted, FittedExits) and fitted.inputs == "all-layers":
        graph = command("export", model, cut=made.cut, format="onnx", out=folder)
        raise UserError(
            f"{made.cut} of {model} ends in an exit that reads the states of all layers up to it "
            "(inputs = all-layers), for which sentence-transformers has no module. Export it as a "
            f"graph: {graph}"
        )
    with locked_for_export(folder):
        return save(made.encoder, made.tokenizer, made.card, folder, record)
