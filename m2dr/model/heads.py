"""Exit heads and the file that holds them, beside the weights of the blocks."""

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from m2dr.errors import UserError
from m2dr.io import refusing
from m2dr.model.encoder import Encoder
from m2dr.model.places import HEADS

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
