"""Exits: heads that turn the pooled state of a layer into an embedding, trained or fitted.

A trained exit head is a linear map of one layer's state. Fitted exits give every layer below the
last the embedding of the full model, from its state and from features of the text's tokens; layer 0
has these features alone.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save, save_file
from torch import Tensor, nn

from m2dr.core.errors import UserError
from m2dr.core.files import explain_failure, write_bytes
from m2dr.core.records import TOKENS, FitInputs, inputs_of
from m2dr.model.hub import EXITS, HEADS, STATIC, TOKENIZER
from m2dr.model.static import write_static
from m2dr.model.token_features import TokenFeatures, WordFeatures, float32_on, shares_of
from m2dr.model.whole_words import WholeWords

if TYPE_CHECKING:
    from m2dr.model.encoder import Encoder

# Shapes in this file:
#   B texts, T tokens of the longest, V ids of the vocabulary, M words of a corpus, H width of a
#   word embedding, F features of the tokens, P dims of a pooled state, W dims of the embedding.

_PREFIX, _SUFFIX = "exit_heads.", ".weight"  # parts of a tensor's name around the layer
_AGAIN = "Train or copy the model again."


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


class FittedExits(nn.Module):
    """A head per layer below the last, fitted to give the embedding of the full model.

    Layer 0 is folded into a table of one vector per token; a text's embedding is their mean by the
    weights of its features.

    Args:
        tokens: features of the tokens.
        inputs: what the heads of layers from 1 read.
        heads: by layer, from 1.
        table: [V, W] float16, of layer 0; [V + M, W] with the M words of a corpus.
        whole_words: the tokenizer that has them.
        weights: [V + M] float32, of the rows of the table; those of the tokens by default.
    """

    table: Tensor
    table_weights: Tensor

    def __init__(
        self,
        tokens: TokenFeatures,
        inputs: FitInputs,
        heads: Mapping[int, nn.Linear],
        table: Tensor,
        whole_words: WholeWords | None = None,
        weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.inputs: FitInputs = inputs
        self.heads = nn.ModuleDict({str(layer): head for layer, head in heads.items()})
        self.register_buffer("table", table)
        used = tokens.weights if weights is None else weights
        self.register_buffer("table_weights", used, persistent=False)
        self.whole_words = whole_words

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that have a fitted exit, increasing."""
        return (0, *sorted(map(int, self.heads)))

    @property
    def token_work(self) -> int:
        """Multiply-adds per token of the table of layer 0."""
        return int(self.table.shape[1])

    def states_for(self, layers: tuple[int, ...]) -> set[int]:
        """Return the layers whose states the exits of these layers read."""
        read = (inputs_of(layer, self.inputs) for layer in layers if layer in self.layers)
        return {part for parts in read for part in parts if part != TOKENS}

    def embed(
        self,
        layers: tuple[int, ...],
        states: Mapping[int, Tensor],
        words: Tensor,
        input_ids: Tensor,
        mask: Tensor | None,
    ) -> dict[int, Tensor]:
        """Return the embeddings [B, W] of texts at layers that have a fitted exit.

        Args:
            layers: which.
            states: [B, P] by layer, of all that `states_for` names.
            words: [V, H].
            input_ids: [B, T].
            mask: [B, T] or None.
        """
        found = {}
        parts = {layer: inputs_of(layer, self.inputs) for layer in layers if layer}
        features = None
        if any(TOKENS in read for read in parts.values()):
            features = self.tokens(words, input_ids, mask)
        with float32_on(words.device):
            if 0 in layers:
                found[0] = self._from_table(input_ids, mask)
            for layer, read in parts.items():
                inputs = [
                    features if part == TOKENS and features is not None else states[part]
                    for part in read
                ]
                found[layer] = self.heads[str(layer)](torch.cat(inputs, dim=-1))
        return found

    def _from_table(self, input_ids: Tensor, mask: Tensor | None) -> Tensor:
        if self.whole_words is not None:
            input_ids, mask = self.whole_words.batch(input_ids, mask)
        shares = shares_of(self.table_weights, input_ids, mask)
        return torch.einsum("bt,btw->bw", shares, self.table[input_ids].float())


def give_exits(
    encoder: "Encoder",
    tokens: TokenFeatures,
    inputs: FitInputs,
    heads: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]],
    whole: WordFeatures | None = None,
) -> None:
    """Give an encoder fitted exits, in place of any that it has.

    Args:
        encoder: changed in place, but for the weights of its layers.
        tokens: features of the tokens.
        inputs: what the heads of layers from 1 read.
        heads: weight [inputs, W] and bias [W] of layers 0 to L - 1.
        whole: what layer 0 reads, where it has the words of a corpus.
    """
    tensors = [(torch.from_numpy(weight), torch.from_numpy(bias)) for weight, bias in heads]
    weight, bias = (tensor.to(encoder.device) for tensor in tensors[0])
    read = whole or WordFeatures(None, tokens, encoder.words)
    table, weights = read.join(_fold(read.tokens, read.vectors, weight, bias))
    linears = {
        layer: linear(weight.T.contiguous(), bias)
        for layer, (weight, bias) in enumerate(tensors[1:], start=1)
    }
    exits = FittedExits(tokens, inputs, linears, table, read.whole_words, weights)
    encoder.fitted = exits.to(encoder.device)


@torch.no_grad()
def _fold(tokens: TokenFeatures, words: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the table of layer 0, [V, W] float16, with zeros for ids of weight 0.

    Args:
        tokens: features of the tokens.
        words: [V, H].
        weight: [F, W] of the head of layer 0.
        bias: [W].
    """
    rows = [(features @ weight + bias).half() for features in tokens.of_ids(words)]
    return torch.cat(rows) * (tokens.weights > 0)[:, None]


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """Return a linear map with these weights [W, inputs] and this bias [W]."""
    head = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    head.weight, head.bias = nn.Parameter(weight), nn.Parameter(bias)
    return head


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
        heads = _read_heads(folder / HEADS, encoder.layers)
    width = encoder.pooled_width
    for layer, head in heads.items():
        if head.shape != (width, width):
            raise UserError(
                f"The exit head of layer {layer} in {folder / HEADS} is {list(head.shape)}; "
                f"vectors of this encoder have {width} dims. Copy the model again."
            )
    encoder.add_exit_heads(list(heads))
    state = {f"{layer}{_SUFFIX}": head for layer, head in heads.items()}
    encoder.exit_heads.load_state_dict(state)


def _read_heads(path: Path, most: int) -> dict[int, Tensor]:
    with safe_open(path, framework="pt") as file:
        names = file.keys()
        layers = {name: int(name.removeprefix(_PREFIX).removesuffix(_SUFFIX)) for name in names}
        return {layers[name]: file.get_tensor(name) for name in names if layers[name] <= most}


def write_exits(fitted: FittedExits, folder: Path) -> None:
    """Write fitted exits: the heads with the token features, and the table of layer 0.

    Words of a corpus are written as a tokenizer.json.

    Each file is replaced at once: a search that has opened the earlier table goes on with it.

    Raises:
        UserError: a number of the table is not finite, or the system refused to write.
    """
    state = {name: value.contiguous() for name, value in fitted.state_dict().items()}
    table, weights = state.pop("table").cpu(), fitted.table_weights.cpu()
    # One entry, because safetensors writes several in an order that differs from run to run.
    about = json.dumps({"inputs": fitted.inputs, "identity": fitted.tokens.identity})
    write_bytes(folder / EXITS, save(state, {"m2dr": about}))
    write_static(folder, table.numpy(), weights.numpy())
    if fitted.whole_words is not None:
        fitted.whole_words.write(folder / TOKENIZER)


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
def load_exits(encoder: "Encoder", folder: Path, remedy: str) -> None:
    """Give an encoder the fitted exits of a folder for the layers that it holds.

    Args:
        encoder: with as many layers as the exits will be asked for.
        folder: of a model, or of the exits of an index.
        remedy: a sentence that says what to do where a file is damaged.

    Raises:
        UserError: a file is missing, damaged, or of another encoder.
    """
    with explain_failure(f"The fitted exits in {folder} cannot be read"):
        fitted = _read_exits(encoder, folder)
        wrong = _misfit(encoder, fitted)
    if wrong:
        raise UserError(f"The fitted exits in {folder} are of another model: {wrong}. {remedy}")
    encoder.fitted = fitted.to(encoder.device)


def _read_exits(encoder: "Encoder", folder: Path) -> FittedExits:
    with safe_open(folder / STATIC, framework="pt") as file:
        table, rows = file.get_tensor("table"), file.get_tensor("weights")
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
        if layer <= encoder.layers
    }
    known = len(encoder.words)
    words = WholeWords.read(folder / TOKENIZER, known) if len(table) > known else None
    return FittedExits(tokens, inputs, heads, table, words, rows)


def _misfit(encoder: "Encoder", fitted: FittedExits) -> str:
    """Return how the shapes of exits differ from what an encoder needs; empty where they agree."""
    ids, width = len(encoder.words), encoder.card.width
    ids += fitted.whole_words.count if fitted.whole_words is not None else 0
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
