"""Features of a text that need no transformer layer, of its tokens alone."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from m2dr.model.whole_words import WholeWords

# Shapes in this file:
#   B texts, T tokens of the longest, V ids of the vocabulary, M words of a corpus, H width of a
#   word embedding, F features of the tokens, W dims of the embedding.

RARITY = 1e-3  # a of the weight a / (a + p) of a token; of SIF (Arora et al. 2017)
_ROWS = 4096  # ids whose features are in memory at once
_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of splitmix64


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
        return shares_of(self.weights, input_ids, mask)

    def of_ids(self, words: Tensor) -> Iterator[Tensor]:
        """Yield the features of every id in order, some thousands of rows at a time."""
        for ids in torch.split(torch.arange(len(self.weights), device=words.device), _ROWS):
            parts = [words[ids].float() * self.word_scale, self.single[ids].float()]
            yield torch.cat([*parts, self._signs(ids)] if self.identity else parts, dim=1)

    def _signs(self, ids: Tensor) -> Tensor:
        """Return the random signs of ids by 1 / √identity, [ids, identity] float32."""
        signs: Tensor = random_signs(ids, self.identity) * self.seen[ids, None]
        return signs.div(self.identity**0.5)


def shares_of(weights: Tensor, input_ids: Tensor, mask: Tensor | None) -> Tensor:
    """Return the weight of each token in its text, [B, T], as `TokenFeatures.shares` does.

    Args:
        weights: [V].
        input_ids: [B, T].
        mask: [B, T] or None.
    """
    found = weights[input_ids]
    found = found if mask is None else found * mask
    return found / found.sum(dim=1, keepdim=True).clamp(min=1e-12)


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


@dataclass(frozen=True)
class WordFeatures:
    """Features of texts in which the words of a corpus stand beside their pieces.

    Attributes:
        whole_words: the tokenizer; None without words.
        tokens: features of V + M tokens.
        vectors: [V + M, H], word embeddings; of a word the mean of those of its pieces.
        pieces: ids of the tokens of each of the M words.
    """

    whole_words: WholeWords | None
    tokens: TokenFeatures
    vectors: Tensor
    pieces: Sequence[Sequence[int]] = ()

    def read(self, input_ids: Tensor, mask: Tensor | None) -> Tensor:
        """Return the features of texts of these ids, as `TokenFeatures` does."""
        found: Tensor = self.tokens(self.vectors, input_ids, mask)
        return found

    def width(self, _: object) -> int:
        """Return the number of features of a text, F."""
        return self.tokens.width(self.vectors)

    def join(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Fold the pieces of each word into its row, so that the word stands for all of them.

        Args:
            table: [V + M, W] float16, a row per token and word.

        Returns:
            The table, in which the row of a word is the mean of its own and those of its pieces,
            and the weights [V + M], in which that of a word is the sum of theirs.
        """
        weights = self.tokens.weights
        if not self.pieces:
            return table, weights
        first = len(table) - len(self.pieces)
        lengths = torch.tensor([len(part) for part in self.pieces])
        words = torch.repeat_interleave(torch.arange(len(lengths)), lengths).to(table.device)
        pieces = torch.tensor([n for part in self.pieces for n in part], device=table.device)
        rows = table.float() * weights[:, None]
        total = weights[first:].index_add(0, words, weights[pieces])
        joined = rows[first:].index_add(0, words, rows[pieces]) / total[:, None]
        return torch.cat([table[:first], joined.half()]), torch.cat([weights[:first], total])


def with_words(
    tokens: TokenFeatures,
    vectors: Tensor,
    whole_words: WholeWords,
    pieces: Sequence[Sequence[int]],
    alone: NDArray[np.float32],
    counts: NDArray[np.int64],
    identity: int,
) -> WordFeatures:
    """Add the features of words to those of the tokens of a model.

    Args:
        tokens: features of V tokens.
        vectors: [V, H], the word embeddings of the backbone.
        whole_words: the tokenizer with M words.
        pieces: ids of the tokens of each word.
        alone: [M, W], the full model's embedding of each word.
        counts: [V + M], how often each id occurs in the texts of the fit.
        identity: random signs per token.
    """
    means = torch.stack([vectors[list(part)].float().mean(0) for part in pieces]).to(vectors.dtype)
    found = torch.from_numpy(alone)
    found = (found / found.norm(dim=1).mean().clamp(min=1e-12)).half()
    ordinary = torch.cat([tokens.weights.cpu() > 0, torch.ones(len(found), dtype=torch.bool)])
    numbers = torch.from_numpy(counts)
    both = TokenFeatures(
        torch.cat([tokens.single.cpu(), found]),
        _rarity_weights(numbers, ordinary),
        tokens.word_scale.cpu(),
        (numbers > 0) & ordinary,
        identity,
    )
    return WordFeatures(whole_words, both.to(vectors.device), torch.cat([vectors, means]), pieces)


def _rarity_weights(counts: Tensor, ordinary: Tensor) -> Tensor:
    """Return the weights a / (a + p) of ids, [V] float32, 0 for special ones.

    Args:
        counts: [V], how often each id occurs in the texts of the fit.
        ordinary: [V] bool, False for special ids.
    """
    shares = counts.double() * ordinary
    shares = shares / shares.sum().clamp(min=1)
    return (RARITY / (RARITY + shares) * ordinary).float()


def float32_on(device: torch.device) -> AbstractContextManager[None]:
    """Switch autocast off where it is on; an exported graph must not hold the switch."""
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
