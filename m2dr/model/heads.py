"""Exit heads and fitted exits, and the files that hold them beside the weights of the blocks."""

import json
from pathlib import Path
from typing import get_args

import torch
from safetensors import safe_open
from safetensors.torch import save, save_file
from torch import Tensor

from m2dr.errors import UserError
from m2dr.io import refusing
from m2dr.model.encoder import Encoder
from m2dr.model.fitted import FittedExits, TokenFeatures, linear
from m2dr.model.places import EXITS, HEADS, STATIC
from m2dr.records.fit import FitInputs, inputs_of

PREFIX, SUFFIX = "exit_heads.", ".weight"  # of a tensor's name; the layer stands between


def write_heads(encoder: Encoder, folder: Path) -> None:
    """Write all heads of an encoder; no file when it has none."""
    heads = encoder.exit_heads.state_dict(prefix=PREFIX)
    if heads:
        save_file({name: head.contiguous() for name, head in heads.items()}, folder / HEADS)


def last_head(encoder: Encoder) -> Tensor | None:
    """The head [P, P] of the last block in memory: an encoder that was cut there has one."""
    return encoder.exit_heads.state_dict().get(f"{encoder.blocks}{SUFFIX}")


@torch.no_grad()
def load_heads(encoder: Encoder, folder: Path) -> None:
    """Give an encoder the heads of the blocks that it has in memory, and no others.

    Raises:
        UserError: the file is missing, damaged, or of an encoder of another width.
    """
    again = "Train or copy the model again."
    with refusing(f"The exit heads in {folder / HEADS} cannot be read", again):
        heads = _read(folder / HEADS, encoder.blocks)
    width = encoder.pooled_width
    for layer, head in heads.items():
        if head.shape != (width, width):
            raise UserError(
                f"The exit head of layer {layer} in {folder / HEADS} is {list(head.shape)}; "
                f"vectors of this encoder have {width} coordinates. Copy the model again."
            )
    encoder.add_exit_heads(list(heads))
    state = {f"{layer}{SUFFIX}": head for layer, head in heads.items()}
    encoder.exit_heads.load_state_dict(state)


def _read(path: Path, blocks: int) -> dict[int, Tensor]:
    with safe_open(path, framework="pt") as file:
        names = file.keys()
        layers = {name: int(name.removeprefix(PREFIX).removesuffix(SUFFIX)) for name in names}
        return {layers[name]: file.get_tensor(name) for name in names if layers[name] <= blocks}


def write_exits(fitted: FittedExits, folder: Path) -> None:
    """Write fitted exits: the heads with the features of tokens, and the table of layer 0."""
    state = {name: value.contiguous() for name, value in fitted.state_dict().items()}
    table = {"table": state.pop("table"), "weights": state["tokens.weights"]}
    # One entry: safetensors writes several in an order that differs from run to run.
    about = json.dumps({"inputs": fitted.inputs, "identity": fitted.tokens.identity})
    (folder / EXITS).write_bytes(save(state, {"m2dr": about}))
    (folder / STATIC).write_bytes(save(table))


@torch.no_grad()
def load_exits(encoder: Encoder, folder: Path, remedy: str) -> None:
    """Give an encoder the fitted exits of a folder, those of the layers that it holds.

    Args:
        encoder: with as many layers as the exits will be asked for.
        folder: of a model, or of the exits of an index.
        remedy: a sentence that says what to do where a file is damaged.

    Raises:
        UserError: a file is missing, damaged, or of another encoder.
    """
    with refusing(f"The fitted exits in {folder} cannot be read", remedy):
        fitted = _read_exits(encoder, folder)
        wrong = _misfit(encoder, fitted)
    if wrong:
        raise UserError(f"The fitted exits in {folder} are of another model: {wrong}. {remedy}")
    encoder.fitted = fitted.to(encoder.device)


def _read_exits(encoder: Encoder, folder: Path) -> FittedExits:
    with safe_open(folder / STATIC, framework="pt") as file:
        table = file.get_tensor("table")
    with safe_open(folder / EXITS, framework="pt") as file:
        about = json.loads(file.metadata()["m2dr"])
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no dict
    inputs = next(kind for kind in get_args(FitInputs) if kind == about["inputs"])
    tokens = TokenFeatures(
        state["tokens.single"],
        state["tokens.weights"],
        state["tokens.word_scale"],
        state["tokens.seen"],
        about["identity"],
    )
    weights = {
        int(name.split(".")[1]): weight
        for name, weight in state.items()
        if name.startswith("heads.") and name.endswith("weight")
    }
    heads = {
        layer: linear(weight, state[f"heads.{layer}.bias"])
        for layer, weight in weights.items()
        if layer <= encoder.blocks
    }
    return FittedExits(tokens, inputs, heads, table)


def _misfit(encoder: Encoder, fitted: FittedExits) -> str:
    """Say what in the shapes of exits is not as an encoder needs it; nothing where all is."""
    ids, width = len(encoder.words), encoder.card.width
    if fitted.table.shape != (ids, width):
        return f"their layer 0 is {list(fitted.table.shape)}, and {[ids, width]} belongs"
    features = fitted.tokens.width(encoder.words)
    for layer in fitted.layers[1:]:
        parts = inputs_of(layer, fitted.inputs)
        inputs = sum(encoder.pooled_width if part else features for part in parts)
        found = list(fitted.heads.state_dict()[f"{layer}.weight"].shape)
        if found != [width, inputs]:
            return f"their layer {layer} is {found}, and {[width, inputs]} belongs"
    return ""
