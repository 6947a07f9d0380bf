"""Fitted exits of an encoder: the features of a text's tokens, a head per layer, and layer 0."""

# Shapes in this file:
#   B texts, T tokens of the longest, V ids of the vocabulary, H width of a word embedding,
#   F features of the tokens, P dims of a pooled state, W dims of the embedding.

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from m2dr.model.exits import float32_on
from m2dr.records.fit import TOKENS, FitInputs, inputs_of

if TYPE_CHECKING:
    from m2dr.model.encoder import Encoder

RARITY = 1e-3  # a of the weight a / (a + p) of a token; of SIF (Arora et al. 2017)
_ROWS = 4096  # ids whose features are in memory at once
_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of splitmix64


class TokenFeatures(nn.Module):
    """What the tokens of a text say without any transformer layer: the mean of their vectors.

    The vector of a token is its word embedding, beside the full model's embedding of a text of
    that token alone, beside random signs that tell it from all others; each part has a mean length
    of 1. Tokens count by their rarity, a / (a + p), special ones not at all.

    Args:
        single: [V, W] float16, embeddings of single tokens, scaled.
        weights: [V] float32.
        word_scale: 1 / mean length of a word embedding.
        seen: [V] bool, the tokens of the texts of the fit: the others have no signs, for which
            nothing was fitted.
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
        """Return how many features a text has, F."""
        return words.shape[1] + self.single.shape[1] + self.identity

    def shares(self, input_ids: Tensor, mask: Tensor | None) -> Tensor:
        """Return how much of its text each token is, [B, T]; the sum is 1, or 0 without words."""
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
    """A head per layer below the last, which gives the embedding of the full model.

    Layer 0 is folded into a table: one vector per token, of which a text's embedding is the mean,
    weighted as its features are.

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
        """The layers that have an exit, increasing."""
        return (0, *sorted(map(int, self.heads)))

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
        """Return the embeddings [B, W] of texts at these layers, each of which has an exit.

        Args:
            layers: which.
            states: [B, P] by layer, all that `states_for` names.
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
    """Return features whose parts have a mean length of 1.

    Args:
        words: [V, H], the word embeddings of the backbone.
        single: [V, W], the full model's embedding of each token alone; zeros for special ones.
        counts: [V], how often each id stands in the texts of the fit.
        special: ids that never count.
        identity: random signs per token.
    """
    ordinary = torch.ones(len(counts), dtype=torch.bool)
    ordinary[list(special)] = False
    weights = rarity_weights(torch.from_numpy(counts), ordinary)
    lengths = words.detach().float().cpu()[ordinary].norm(dim=1)
    alone = torch.from_numpy(single)
    mean = alone[ordinary].norm(dim=1).mean().clamp(min=1e-12)
    scale = 1 / lengths.mean().clamp(min=1e-12)
    seen = torch.from_numpy(counts > 0) & ordinary
    found = TokenFeatures((alone / mean).half(), weights, scale, seen, identity)
    return found.to(words.device)


def counted_anew(tokens: TokenFeatures, counts: NDArray[np.int64], identity: int) -> TokenFeatures:
    """Return the same vectors of tokens, weighted by their counts in other texts.

    Args:
        tokens: features of the tokens of the same model.
        counts: [V].
        identity: random signs per token.
    """
    ordinary = tokens.weights.cpu() > 0
    found = torch.from_numpy(counts)
    weights, seen = rarity_weights(found, ordinary), (found > 0) & ordinary
    changed = TokenFeatures(tokens.single.cpu(), weights, tokens.word_scale.cpu(), seen, identity)
    return changed.to(tokens.weights.device)


class FoldedExit(FittedExits):
    """The exit of one layer whose tokens are folded into a table, for a graph that is exported.

    Args:
        fitted: exits that read tokens beside states.
        layer: of the exit, from 1.
        words: [V, H], the word embeddings of the backbone.
    """

    @torch.no_grad()
    def __init__(self, fitted: FittedExits, layer: int, words: Tensor) -> None:
        head = fitted.heads[str(layer)]
        assert isinstance(head, nn.Linear)
        tokens = fitted.tokens.width(words)
        weight, bias = head.weight[:, -tokens:].T, head.bias
        rows = [features @ weight + bias for features in fitted.tokens.of_ids(words)]
        states = linear(head.weight[:, :-tokens].contiguous(), torch.zeros_like(bias))
        super().__init__(fitted.tokens, fitted.inputs, {layer: states}, torch.cat(rows))

    def embed(
        self,
        layers: tuple[int, ...],
        states: Mapping[int, Tensor],
        words: Tensor,  # noqa: ARG002  # they are in the table
        input_ids: Tensor,
        mask: Tensor | None,
    ) -> dict[int, Tensor]:
        """See FittedExits; `layers` is the one layer that there is."""
        (layer,) = layers
        read = [states[part] for part in inputs_of(layer, self.inputs) if part != TOKENS]
        shares = self.tokens.shares(input_ids, mask)
        said = torch.einsum("bt,btw->bw", shares, self.table[input_ids])
        return {layer: self.heads[str(layer)](torch.cat(read, dim=-1)) + said}


@torch.no_grad()
def fold(tokens: TokenFeatures, words: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the table of layer 0, [V, W] float16; ids that never count have zeros.

    Args:
        tokens: features of the tokens.
        words: [V, H].
        weight: [F, W] of the head of layer 0.
        bias: [W].
    """
    rows = [(features @ weight + bias).half() for features in tokens.of_ids(words)]
    return torch.cat(rows) * (tokens.weights > 0)[:, None]


def rarity_weights(counts: Tensor, ordinary: Tensor) -> Tensor:
    """Return the weights a / (a + p) of ids, [V] float32, 0 for special ones.

    Args:
        counts: [V], how often each id stands in the texts of the fit.
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
        encoder: changed in place; no weight of its layers is.
        tokens: features of the tokens.
        inputs: what the heads of layers from 1 read.
        heads: weight [inputs, W] and bias [W] of layers 0 to L - 1.
    """
    tensors = [(torch.from_numpy(weight), torch.from_numpy(bias)) for weight, bias in heads]
    weight, bias = (tensor.to(encoder.device) for tensor in tensors[0])
    table = fold(tokens, encoder.words, weight, bias)
    linears = {
        layer: linear(weight.T.contiguous(), bias)
        for layer, (weight, bias) in enumerate(tensors[1:], start=1)
    }
    encoder.fitted = FittedExits(tokens, inputs, linears, table).to(encoder.device)


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """Return a linear map with these weights [W, inputs] and this bias [W]."""
    head = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    head.weight, head.bias = nn.Parameter(weight), nn.Parameter(bias)
    return head
