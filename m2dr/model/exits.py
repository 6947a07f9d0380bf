"""What layers end in: heads that training reaches, and exits that were fitted.

A fitted exit is a linear map of the pooled state, to which QueryEncoder and its like add what the
words of the text say (words.py); layer 0 is words alone.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn

from m2dr.core.arrays import Float32
from m2dr.core.errors import UserError
from m2dr.core.files import explain_failure, write_bytes
from m2dr.model.hub import EXITS, HEADS
from m2dr.model.words import WordTable

if TYPE_CHECKING:
    from m2dr.model.encoder import Encoder

# Shapes in this file:
#   B and N texts, P dims of a pooled state, W dims of the embedding.


_PREFIX, _SUFFIX = "exit_heads.", ".weight"  # parts of a tensor's name around the layer


def identity_head(width: int, device: torch.device) -> nn.Linear:
    """Return an exit head of a layer, P to P, that is the identity before training.

    With it the states of a layer, which feed the next one, need not be the embedding too.
    """
    head = nn.Linear(width, width, bias=False, device=device, dtype=torch.float32)
    nn.init.eye_(head.weight)
    return head


def through(head: nn.Module, pooled: Tensor) -> Tensor:
    """Return `pooled` [B, P] mapped by an exit head, in float32 whatever the layers multiply in."""
    with float32_on(pooled.device):
        mapped: Tensor = head(pooled)
    return mapped


def float32_on(device: torch.device) -> AbstractContextManager[None]:
    """Switch autocast off where it is on; an exported graph must not hold the switch."""
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


class FittedExits(nn.Module):
    """A head per layer below the last, fitted to give the embedding of the full model.

    Args:
        heads: by layer, from 1: P to W, with a bias.
        words: layer 0, and what words add to the output of the heads; None in a training, where
            heads are alone.
    """

    def __init__(self, heads: Mapping[int, nn.Module], words: WordTable | None) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({str(layer): head for layer, head in heads.items()})
        self.words = words

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that have a fitted exit, increasing."""
        return (*(() if self.words is None else (0,)), *sorted(map(int, self.heads)))

    def embed(self, layer: int, state: Tensor) -> Tensor:
        """Return the embeddings [B, W] of texts at a layer from 1, without their words.

        Args:
            layer: with a fitted exit.
            state: [B, P], pooled.
        """
        return through(self.heads[str(layer)], state)

    @torch.no_grad()
    def scale_to(self, layer: int, states: Float32, targets: Float32) -> Float32:
        """Scale a head so that it comes closest to targets, and return what is left of these.

        Args:
            layer: with a fitted exit.
            states: [N, P], pooled.
            targets: [N, W].
        """
        head = self.heads[str(layer)]
        vectors = head(torch.from_numpy(states).to(next(head.parameters()).device)).cpu().numpy()
        scale = float((vectors * targets).sum() / max(float((vectors**2).sum()), 1e-12))
        for part in head.parameters():
            part.mul_(scale)
        left: Float32 = targets - scale * vectors
        return left


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """Return a linear map with these weights [W, inputs] and this bias [W]."""
    head = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    head.weight, head.bias = nn.Parameter(weight), nn.Parameter(bias)
    return head


def give_exits(
    encoder: "Encoder", heads: Mapping[int, tuple[Float32, Float32]], words: WordTable | None
) -> None:
    """Give an encoder fitted exits, beside any that it has.

    Args:
        encoder: changed in place, but for the weights of its layers.
        heads: weight [P, W] and bias [W] by layer, from 1.
        words: layer 0 and what is beside the heads.
    """
    made = {} if encoder.fitted is None else dict(encoder.fitted.heads.items())
    for layer, (weight, bias) in heads.items():
        made[str(layer)] = linear(torch.from_numpy(weight.T.copy()), torch.from_numpy(bias.copy()))
    encoder.fitted = FittedExits({int(n): head for n, head in made.items()}, words)
    encoder.fitted.to(encoder.device)


def write_heads(encoder: "Encoder", folder: Path) -> None:
    """Write the exit heads of an encoder; no file when it has none."""
    heads = encoder.exit_heads.state_dict(prefix=_PREFIX)
    if heads:
        save_file({name: head.contiguous() for name, head in heads.items()}, folder / HEADS)


def last_head(encoder: "Encoder") -> Tensor | None:
    """Return the exit head [P, P] of the last layer in memory, which a cut encoder may have."""
    return encoder.exit_heads.state_dict().get(f"{encoder.layers}{_SUFFIX}")


@torch.no_grad()
def load_heads(encoder: "Encoder", folder: Path) -> None:
    """Give an encoder the exit heads of a folder for the layers that it holds.

    Raises:
        UserError: the file is missing, damaged, or of an encoder of another width.
    """
    with explain_failure(f"The exit heads in {folder / HEADS} cannot be read"):
        heads = {}
        for name, head in load_file(folder / HEADS).items():
            layer = int(name.removeprefix(_PREFIX).removesuffix(_SUFFIX))
            if layer <= encoder.layers:
                heads[layer] = head
    width = encoder.pooled_width
    for layer, head in heads.items():
        if head.shape != (width, width):
            shape = f"is {list(head.shape)}, and vectors have {width} dims"
            raise UserError(f"The head of layer {layer} in {folder / HEADS} {shape}.")
    encoder.add_exit_heads(list(heads))
    state = {f"{layer}{_SUFFIX}": head for layer, head in heads.items()}
    encoder.exit_heads.load_state_dict(state)


def write_exits(fitted: FittedExits, folder: Path) -> None:
    """Write fitted exits: the heads, and the words beside them.

    Each file is replaced at once: a search that has opened an earlier one goes on with it.

    Raises:
        UserError: a number is not finite, or the system refused to write.
    """
    state = {name: value.contiguous().cpu() for name, value in fitted.state_dict().items()}
    write_bytes(folder / EXITS, save(state))
    if fitted.words is not None:
        fitted.words.write(folder)


def has_exit(folder: Path, layer: int) -> bool:
    """Return whether a model has a fitted exit at a layer.

    Args:
        folder: of the model.
        layer: from 1.

    Raises:
        UserError: the file is missing or damaged.
    """
    with (
        explain_failure(f"The fitted exits in {folder} cannot be read"),
        safe_open(folder / EXITS, framework="pt") as file,
    ):
        return f"heads.{layer}.weight" in set(file.keys())


@torch.no_grad()
def load_exits(encoder: "Encoder", folder: Path) -> None:
    """Give an encoder the fitted exits of a folder for the layers that it holds.

    Args:
        encoder: with as many layers as the exits will be asked for.
        folder: of a model, or of the exits of an index.

    Raises:
        UserError: a file is missing, damaged, or of another encoder.
    """
    words = WordTable.open(folder)
    with explain_failure(f"The fitted exits in {folder} cannot be read"):
        state = load_file(folder / EXITS)
        layers = {int(name.split(".")[1]) for name in state}
        kept = sorted(layer for layer in layers if layer <= encoder.layers)
        tensors = {n: (state[f"heads.{n}.weight"], state[f"heads.{n}.bias"]) for n in kept}
    width = encoder.card.width
    shapes = [weight.shape == (width, encoder.pooled_width) for weight, _ in tensors.values()]
    shapes += [matrix.shape == (words.width, width) for matrix in words.beside.values()]
    if words.width < width or not all(shapes):
        raise UserError(f"The fitted exits in {folder} are of another model, by their shapes.")
    heads = {layer: linear(*tensors[layer]) for layer in kept}
    encoder.fitted = FittedExits(heads, words).to(encoder.device)
