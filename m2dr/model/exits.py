"""Exits: heads that turn the pooled state of a layer into an embedding, trained or fitted.

A trained exit head is a linear map of one layer's state. Fitted exits give every layer below the
last the embedding of the full model, from its state and from features of the text's tokens; layer 0
has these features alone.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save, save_file
from torch import Tensor, nn

from m2dr.errors import UserError
from m2dr.io import explain_failure, write_bytes
from m2dr.model.hub import EXITS, HEADS, STATIC
from m2dr.model.static import write_static
from m2dr.records.model_card import TOKENS, FitInputs, inputs_of

if TYPE_CHECKING:
    from m2dr.model.encoder import Encoder

# Shapes in this file:
#   B texts, T tokens of the longest, V ids of the vocabulary, H width of a word embedding,
#   F features of the tokens, P dims of a pooled state, W dims of the embedding.

RARITY = 1e-3  # a of the weight a / (a + p) of a token; of SIF (Arora et al. 2017)
_PREFIX, _SUFFIX = "exit_heads.", ".weight"  # parts of a tensor's name around the layer
_ROWS = 4096  # ids whose features are in memory at once
_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of splitmix64
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


def float32_on(device: torch.device) -> AbstractContextManager[None]:
    """Switch autocast off where it is on; an exported graph must not hold the switch."""
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


class TokenFeatures(nn.Module):
    """Features of a text that need no transformer layer: the weighted mean of its tokens' vectors.

    The vector of a token joins its word embedding, the full model's embedding of a text of that
    token alone, and random signs that tell it from all others; each part has a mean length of 1.
    The weight of a token is its rarity, a / (a + p), and 0 for special tokens.

    Args:
        single: [V, W] float16, embeddings of single tokens, scaled.
        weights: [V] float32.
        word_scale: 1 / mean length of a word embedding.
        seen: [V] bool, the tokens of the texts of the fit; no signs were fitted for the others,
            so that they have none.
        identity: random signs per token.
    """

    single: Tensor
    weights: Tensor
    word_scale: Tensor
    seen: Tensor

    def __init__(
        self, single: Tensor, weights: Tensor, word_scale: Tensor, seen: Tensor, identity: int
    ) -> None:
        super().__init__()
        self.register_buffer("single", single)
        self.register_buffer("weights", weights)
        self.register_buffer("word_scale", word_scale)
        self.register_buffer("seen", seen)
        self.identity = identity

    def forward(self, words: Tensor, input_ids: Tensor, mask: Tensor | None) -> Tensor:
        """Return the features of texts, [B, F] float32; zeros for a text of special tokens.

        Args:
            words: [V, H], the word embeddings of the backbone.
            input_ids: [B, T].
            mask: [B, T], 1 for a token and 0 for padding; None for no padding.
        """
        shares = self.shares(input_ids, mask)
        with float32_on(words.device):
            parts = [
                torch.einsum("bt,bth->bh", shares, words[input_ids].float()) * self.word_scale,
                torch.einsum("bt,bth->bh", shares, self.single[input_ids].float()),
            ]
            if self.identity:
                known, places = torch.unique(input_ids, return_inverse=True)
                bags = shares.new_zeros(len(shares), len(known)).scatter_add(1, places, shares)
                parts.append(bags @ self._signs(known))
        return torch.cat(parts, dim=-1)

    def width(self, words: Tensor) -> int:
        """Return the number of features of a text, F."""
        return words.shape[1] + self.single.shape[1] + self.identity

    def shares(self, input_ids: Tensor, mask: Tensor | None) -> Tensor:
        """Return the weight of each token in its text, [B, T]; the sum is 1, or 0 without words."""
        weights = self.weights[input_ids]
        weights = weights if mask is None else weights * mask
        return weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-12)

    def of_ids(self, words: Tensor) -> Iterator[Tensor]:
        """Yield the features of every id in order, some thousands of rows at a time."""
        for ids in torch.split(torch.arange(len(self.weights), device=words.device), _ROWS):
            parts = [words[ids].float() * self.word_scale, self.single[ids].float()]
            yield torch.cat([*parts, self._signs(ids)] if self.identity else parts, dim=1)

    def _signs(self, ids: Tensor) -> Tensor:
        """Return the random signs of ids by 1 / √identity, [ids, identity] float32."""
        signs: Tensor = random_signs(ids, self.identity) * self.seen[ids, None]
        return signs.div(self.identity**0.5)


def random_signs(ids: Tensor, count: int) -> Tensor:
    """Return `count` signs per id, -1 or 1 as float32, the same on every machine.

    The bits are those of splitmix64 (Steele et al. 2014) at the counter 2^32 id + word.
    """
    words = torch.arange(-(-count // 32), device=ids.device)
    found = (ids[:, None] << 32) + words
    found = (found + 1) * _signed(_MIX[0])
    for factor, shift in zip((*_MIX[1:], 1), (30, 27, 31), strict=True):
        found = (found ^ ((found >> shift) & ((1 << (64 - shift)) - 1))) * _signed(factor)
    bits = (found[..., None] >> torch.arange(32, device=ids.device)) & 1
    return bits.flatten(1)[:, :count].float() * 2 - 1


def _signed(number: int) -> int:
    """Return a number of 64 bits as the signed one of the same bits."""
    return number - (1 << 64) if number >= 1 << 63 else number


class FittedExits(nn.Module):
    """A head per layer below the last, fitted to give the embedding of the full model.

    Layer 0 is folded into a table of one vector per token; a text's embedding is their mean by the
    weights of its features.

    Args:
        tokens: features of the tokens.
        inputs: what the heads of layers from 1 read.
        heads: by layer, from 1.
        table: [V, W] float16, of layer 0.
    """

    table: Tensor

    def __init__(
        self,
        tokens: TokenFeatures,
        inputs: FitInputs,
        heads: Mapping[int, nn.Linear],
        table: Tensor,
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.inputs: FitInputs = inputs
        self.heads = nn.ModuleDict({str(layer): head for layer, head in heads.items()})
        self.register_buffer("table", table)

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
                shares = self.tokens.shares(input_ids, mask)
                found[0] = torch.einsum("bt,btw->bw", shares, self.table[input_ids].float())
            for layer, read in parts.items():
                inputs = [
                    features if part == TOKENS and features is not None else states[part]
                    for part in read
                ]
                found[layer] = self.heads[str(layer)](torch.cat(inputs, dim=-1))
        return found


def token_features(
    words: Tensor,
    single: NDArray[np.float32],
    counts: NDArray[np.int64],
    special: Sequence[int],
    identity: int,
) -> TokenFeatures:
    """Build features whose parts have a mean length of 1.

    Args:
        words: [V, H], the word embeddings of the backbone.
        single: [V, W], the full model's embedding of each token alone; zeros for special ones.
        counts: [V], how often each id occurs in the texts of the fit.
        special: ids with the weight 0.
        identity: random signs per token.
    """
    ordinary = torch.ones(len(counts), dtype=torch.bool)
    ordinary[list(special)] = False
    weights = _rarity_weights(torch.from_numpy(counts), ordinary)
    lengths = words.detach().float().cpu()[ordinary].norm(dim=1)
    alone = torch.from_numpy(single)
    mean = alone[ordinary].norm(dim=1).mean().clamp(min=1e-12)
    scale = 1 / lengths.mean().clamp(min=1e-12)
    seen = torch.from_numpy(counts > 0) & ordinary
    found = TokenFeatures((alone / mean).half(), weights, scale, seen, identity)
    return found.to(words.device)


def with_counts(tokens: TokenFeatures, counts: NDArray[np.int64], identity: int) -> TokenFeatures:
    """Return the same token vectors with the weights of their counts in other texts.

    Args:
        tokens: features by the same model.
        counts: [V], how often each id occurs in those texts.
        identity: random signs per token.
    """
    ordinary = tokens.weights.cpu() > 0
    found = torch.from_numpy(counts)
    weights, seen = _rarity_weights(found, ordinary), (found > 0) & ordinary
    changed = TokenFeatures(tokens.single.cpu(), weights, tokens.word_scale.cpu(), seen, identity)
    return changed.to(tokens.weights.device)


def _rarity_weights(counts: Tensor, ordinary: Tensor) -> Tensor:
    """Return the weights a / (a + p) of ids, [V] float32, 0 for special ones.

    Args:
        counts: [V], how often each id occurs in the texts of the fit.
        ordinary: [V] bool, False for special ids.
    """
    shares = counts.double() * ordinary
    shares = shares / shares.sum().clamp(min=1)
    return (RARITY / (RARITY + shares) * ordinary).float()


def give_exits(
    encoder: "Encoder",
    tokens: TokenFeatures,
    inputs: FitInputs,
    heads: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]],
) -> None:
    """Give an encoder fitted exits, in place of any that it has.

    Args:
        encoder: changed in place, but for the weights of its layers.
        tokens: features of the tokens.
        inputs: what the heads of layers from 1 read.
        heads: weight [inputs, W] and bias [W] of layers 0 to L - 1.
    """
    tensors = [(torch.from_numpy(weight), torch.from_numpy(bias)) for weight, bias in heads]
    weight, bias = (tensor.to(encoder.device) for tensor in tensors[0])
    table = _fold(tokens, encoder.words, weight, bias)
    linears = {
        layer: linear(weight.T.contiguous(), bias)
        for layer, (weight, bias) in enumerate(tensors[1:], start=1)
    }
    encoder.fitted = FittedExits(tokens, inputs, linears, table).to(encoder.device)


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
    with explain_failure(f"The exit heads in {folder / HEADS} cannot be read", _AGAIN):
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

    Each file is replaced at once: a search that has opened the earlier table goes on with it.

    Raises:
        UserError: a number of the table is not finite, or the system refused to write.
    """
    state = {name: value.contiguous() for name, value in fitted.state_dict().items()}
    table, weights = state.pop("table").cpu(), state["tokens.weights"].cpu()
    # One entry, because safetensors writes several in an order that differs from run to run.
    about = json.dumps({"inputs": fitted.inputs, "identity": fitted.tokens.identity})
    write_bytes(folder / EXITS, save(state, {"m2dr": about}))
    write_static(folder, table.numpy(), weights.numpy())


def has_exit(folder: Path, layer: int, remedy: str) -> bool:
    """Return whether a model has a fitted exit at a layer.

    Args:
        folder: of the model.
        layer: from 1.
        remedy: a sentence that says what to do where the file is damaged.

    Raises:
        UserError: the file is missing or damaged.
    """
    with (
        explain_failure(f"The fitted exits in {folder} cannot be read", remedy),
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
    with explain_failure(f"The fitted exits in {folder} cannot be read", remedy):
        fitted = _read_exits(encoder, folder)
        wrong = _misfit(encoder, fitted)
    if wrong:
        raise UserError(f"The fitted exits in {folder} are of another model: {wrong}. {remedy}")
    encoder.fitted = fitted.to(encoder.device)


def _read_exits(encoder: "Encoder", folder: Path) -> FittedExits:
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
        if layer <= encoder.layers
    }
    return FittedExits(tokens, inputs, heads, table)


def _misfit(encoder: "Encoder", fitted: FittedExits) -> str:
    """Return how the shapes of exits differ from what an encoder needs; empty where they agree."""
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
