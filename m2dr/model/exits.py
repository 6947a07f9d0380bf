"""What layers end in: heads that training reaches, and exits that were fitted.

A fitted exit is a linear map of the pooled state, to which QueryEncoder and its like add what the
words of the text say (words.py); layer 0 is words alone.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn

from m2dr.core.arrays import Float32
from m2dr.core.errors import UserError
from m2dr.core.files import explain_failure, write_bytes
from m2dr.model.hub import EXITS, HEADS
from m2dr.model.words import WordTable

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

    @torch.no_grad()
    def scale_to(self, layer: int, states: Float32, targets: Float32) -> Float32:
        """Scale a head to fit targets best, and return their residuals.

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


def linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """Return a linear map with these weights [W, inputs] and this bias [W]."""
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    head.weight = nn.Parameter(weight)
    if bias is not None:
        head.bias = nn.Parameter(bias)
    return head


def with_heads(
    fitted: FittedExits | None,
    heads: Mapping[int, tuple[Float32, Float32]],
    words: WordTable | None,
) -> FittedExits:
    """Return fitted exits, on the CPU, with more heads.

    Args:
        fitted: the exits so far.
        heads: weight [P, W] and bias [W] by layer, from 1.
        words: layer 0 and what is beside the heads.
    """
    made: dict[int, nn.Module] = {
        layer: linear(torch.from_numpy(weight.T.copy()), torch.from_numpy(bias.copy()))
        for layer, (weight, bias) in heads.items()
    }
    before = {} if fitted is None else {int(n): head for n, head in fitted.heads.items()}
    return FittedExits(before | made, words)


def write_heads(heads: nn.ModuleDict, folder: Path) -> None:
    """Write the exit heads of an encoder, by layer; no file where there is none."""
    state = heads.state_dict(prefix=_PREFIX)
    if state:
        save_file({name: head.contiguous() for name, head in state.items()}, folder / HEADS)


def read_heads(folder: Path, layers: int, width: int) -> nn.ModuleDict:
    """Read the exit heads of a folder.

    Args:
        folder: of a model.
        layers: those that an encoder holds; heads of others are left out.
        width: P.

    Raises:
        UserError: the file is missing, damaged, or of an encoder of another width.
    """
    with explain_failure(f"The exit heads in {folder / HEADS} cannot be read"):
        state = load_file(folder / HEADS)
        heads = {int(n.removeprefix(_PREFIX).removesuffix(_SUFFIX)): h for n, h in state.items()}
    kept = {layer: head.float() for layer, head in heads.items() if layer <= layers}
    for layer, head in kept.items():
        if head.shape != (width, width):
            shape = f"is {list(head.shape)}, and vectors have {width} dims"
            raise UserError(f"The head of layer {layer} in {folder / HEADS} {shape}.")
    return nn.ModuleDict({str(layer): linear(head) for layer, head in kept.items()})


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


def read_exits(folder: Path, layers: int, pooled_width: int, width: int) -> FittedExits:
    """Read the fitted exits of a folder.

    Args:
        folder: of a model, or of the exits of an index.
        layers: those that an encoder holds; exits of others are left out.
        pooled_width: P.
        width: W.

    Raises:
        UserError: a file is missing, damaged, or of another encoder.
    """
    words = WordTable.open(folder)
    with explain_failure(f"The fitted exits in {folder} cannot be read"):
        state = load_file(folder / EXITS)
        kept = sorted({n for n in (int(name.split(".")[1]) for name in state) if n <= layers})
        tensors = {n: (state[f"heads.{n}.weight"], state[f"heads.{n}.bias"]) for n in kept}
    shapes = [weight.shape == (width, pooled_width) for weight, _ in tensors.values()]
    shapes += [matrix.shape == (words.width, width) for matrix in words.beside.values()]
    if words.width < width or not all(shapes):
        raise UserError(f"The fitted exits in {folder} are of another model, by their shapes.")
    return FittedExits({layer: linear(*each) for layer, each in tensors.items()}, words)
