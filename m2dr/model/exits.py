"""Whole words in the vocabulary of layer 0, which runs no layer that could join their pieces.

A WordPiece tokenizer (BERT's) splits a word that it lacks into pieces, and layer 0 would take the
mean of theirs. Words of a corpus are added behind the ids of the model; the tokenizer then finds
them by itself, because it takes the longest piece that it has.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from tokenizers import models
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from m2dr.core.errors import UserError
from m2dr.core.files import explain_failure, read_object, write_bytes, write_json
from m2dr.core.records import TOKENS, FitInputs, inputs_of
from m2dr.model.hub import (
    EXITS,
    HEADS,
    STATIC,
    TABLE_CHAIN,
    TOKENIZER,
    WEIGHTS,
    ListedModule,
    table_chain,
)
from m2dr.model.tokenizer import ModelTokenizer

Pieces = tuple[int, ...]

MOST = 32_768  # words that are added, the most frequent ones
FEWEST = 2  # times that each of them occurs


class WholeWords:
    """A WordPiece tokenizer with the words of a corpus, for rows of the tokenizer without them.

    Args:
        backend: the tokenizer with the words.
        first: ids below this are those of the model, and those from here on are words.
    """

    def __init__(self, backend: tokenizers.Tokenizer, first: int) -> None:
        self._backend, self._first = backend, first
        tokens = backend.get_vocab(with_added_tokens=True)
        self._tokens = {number: token for token, number in tokens.items() if number < first}
        self._prefix: str = backend.model.continuing_subword_prefix
        self._inner = {n for n, token in self._tokens.items() if token.startswith(self._prefix)}
        self._found: dict[Pieces, list[int]] = {}
        self.count = sum(number >= first for number in tokens.values())

    @classmethod
    def of(
        cls, tokenizer: ModelTokenizer, rows: Iterable[Sequence[int]], first: int
    ) -> tuple["WholeWords", list[Pieces]] | None:
        """Add the words of some texts that the tokenizer of a model splits.

        Args:
            tokenizer: of the model.
            rows: token ids of the texts.
            first: how many ids the model has embeddings of.

        Returns:
            The tokenizer, and the pieces of each word in the order of its ids; None where no word
            is split twice, or where the tokenizer is of another kind or keeps the end of a text.
        """
        inner = tokenizer.inner
        backend = getattr(inner, "backend_tokenizer", None)
        if backend is None or not isinstance(backend.model, models.WordPiece):
            return None
        if inner.truncation_side != "right" or inner.split_special_tokens or tokenizer.beyond:
            return None
        if not backend.model.continuing_subword_prefix:  # pieces inside words look like others
            return None
        known = cls(backend, first)
        counts = Counter(group for row in rows for group in known._groups(row) if len(group) > 1)
        words = {known._word(group): group for group in counts if group[0] not in known._inner}
        often = (word for word, group in words.items() if counts[group] >= FEWEST)
        new = [word for word in often if backend.token_to_id(word) is None]
        kept = sorted(sorted(new, key=lambda word: (-counts[words[word]], word))[:MOST])
        if not kept:
            return None
        table = json.loads(backend.to_str())
        # Tokens that were added to the tokenizer would be numbered again, behind the words.
        table["model"]["vocab"] |= {one["content"]: one["id"] for one in table["added_tokens"]}
        table["model"]["vocab"] |= {word: first + n for n, word in enumerate(kept)}
        table["truncation"] = table["padding"] = None
        longer = tokenizers.Tokenizer.from_str(json.dumps(table, ensure_ascii=False))
        return cls(longer, first), [words[word] for word in kept]

    @classmethod
    def read(cls, path: Path, first: int) -> "WholeWords":
        """Read what `write` wrote."""
        return cls(tokenizers.Tokenizer.from_file(str(path)), first)

    def write(self, path: Path) -> None:
        """Write a tokenizer.json, whole or not at all."""
        write_bytes(path, self._backend.to_str().encode())

    def rows(self, rows: Iterable[Sequence[int]]) -> list[list[int]]:
        """Return rows in which the ids of words stand for those of their pieces."""
        return [list(chain.from_iterable(map(self._ids, self._groups(row)))) for row in rows]

    def batch(self, input_ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what `rows` does for ids [B, T], whose padding is at the end, and the new mask."""
        lengths = [input_ids.shape[1]] * len(input_ids) if mask is None else mask.sum(1).tolist()
        given = zip(input_ids.tolist(), lengths, strict=True)
        rows = [torch.tensor(row) for row in self.rows(row[: int(n)] for row, n in given)]
        ones = [torch.ones_like(row) for row in rows]
        ids, real = (pad_sequence(part, batch_first=True) for part in (rows, ones))
        return ids.to(input_ids.device), real.to(input_ids.device)

    def _groups(self, row: Sequence[int]) -> list[Pieces]:
        """Return the pieces of each word of a text."""
        starts = [n for n, number in enumerate(row) if n == 0 or number not in self._inner]
        return [tuple(row[start:end]) for start, end in pairwise([*starts, len(row)])]

    def _word(self, pieces: Pieces) -> str:
        first, *others = (self._tokens[number] for number in pieces)
        return first + "".join(token.removeprefix(self._prefix) for token in others)

    def _ids(self, pieces: Pieces) -> Sequence[int]:
        """Return the ids of a word, which the tokenizer may put together from other pieces."""
        if len(pieces) == 1 or pieces[0] in self._inner:
            return pieces
        if pieces not in self._found:
            found = self._backend.model.tokenize(self._word(pieces))
            self._found[pieces] = [token.id for token in found]
        return self._found[pieces]


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
        shares = shares_of(self.weights, input_ids, mask)
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
    """Return the weight of each token in its text, [B, T]; the sum is 1, or 0 without words.

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


if TYPE_CHECKING:
    from m2dr.model.encoder import Encoder

# Shapes in this file:
#   B texts, T tokens of the longest, V ids of the vocabulary, M words of a corpus, H width of a
#   word embedding, F features of the tokens, P dims of a pooled state, W dims of the embedding.

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
        """Multiply-adds per token of the table."""
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
                if self.whole_words is not None:
                    input_ids, mask = self.whole_words.batch(input_ids, mask)
                shares = shares_of(self.table_weights, input_ids, mask)
                found[0] = torch.einsum("bt,btw->bw", shares, self.table[input_ids].float())
            for layer, read in parts.items():
                inputs = [
                    features if part == TOKENS and features is not None else states[part]
                    for part in read
                ]
                found[layer] = self.heads[str(layer)](torch.cat(inputs, dim=-1))
        return found


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
        heads = {}
        for name, head in load_file(folder / HEADS).items():
            layer = int(name.removeprefix(_PREFIX).removesuffix(_SUFFIX))
            if layer <= encoder.layers:
                heads[layer] = head
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
    from m2dr.model.static import write_static  # which reads cards, and cards know exits

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
def load_exits(encoder: "Encoder", folder: Path) -> None:
    """Give an encoder the fitted exits of a folder for the layers that it holds.

    Args:
        encoder: with as many layers as the exits will be asked for.
        folder: of a model, or of the exits of an index.

    Raises:
        UserError: a file is missing, damaged, or of another encoder.
    """
    with explain_failure(f"The fitted exits in {folder} cannot be read"):
        fitted = _read_exits(encoder, folder)
        ids, width = len(encoder.words), encoder.card.width
        ids += fitted.whole_words.count if fitted.whole_words is not None else 0
        features = fitted.tokens.width(encoder.words)
        shapes = {0: fitted.table.shape}
        belong = {0: (ids, width)}
        for layer in fitted.layers[1:]:
            parts = inputs_of(layer, fitted.inputs)
            inputs = sum(encoder.pooled_width if part else features for part in parts)
            shapes[layer] = fitted.heads.state_dict()[f"{layer}.weight"].shape
            belong[layer] = (width, inputs)
    if shapes != belong:
        raise UserError(
            f"The fitted exits in {folder} are of another model: their shapes are not those that "
            "belong to its layers."
        )
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


# Shapes in this file:
#   B texts, T tokens of the longest, V ids of the vocabulary, H width of a word embedding,
#   P dims of a pooled state, S dims of all states that an exit reads, K dims that are kept.


_FIRST = 2  # number of the folder of the first module
_CLS = "cls_token_embeddings"  # the feature that a Pooling takes for the state of the first token
_TOKENIZER = "sentence_transformers.models.tokenizer.WhitespaceTokenizer"  # never asked for a token
_WEIGHTS_FILE: dict[str, object] = {"vocab": list[str], "word_weights": dict[str, float]}


class FoldedExit(FittedExits):
    """The fitted exit of one layer whose token features are folded into a table.

    Args:
        layer: from 1.
        inputs: what the exit was fitted to read.
        head: from the states, S to K, with its bias.
        weights: [V], rarity of each token, 0 for special ones.
        table: [V, K], what each token adds.
    """

    def __init__(
        self, layer: int, inputs: FitInputs, head: nn.Linear, weights: Tensor, table: Tensor
    ) -> None:
        none = table.new_zeros((len(table), 0))
        tokens = TokenFeatures(none, weights, table.new_ones(()), weights > 0, 0)
        super().__init__(tokens, inputs, {layer: head}, table)
        self.layer = layer

    @classmethod
    @torch.no_grad()
    def of(
        cls, fitted: FittedExits, layer: int, words: Tensor, dim: int | None = None
    ) -> "FoldedExit":
        """Return the exit of one layer, cut to its first dims.

        Args:
            fitted: exits that read token features beside states, or one that is folded already.
            layer: of the exit, from 1.
            words: [V, H], the word embeddings of the backbone.
            dim: K; all by default.
        """
        head, weights = fitted.heads[str(layer)], fitted.tokens.weights
        assert isinstance(head, nn.Linear)
        if isinstance(fitted, FoldedExit):
            states = linear(head.weight[:dim].contiguous(), head.bias[:dim].contiguous())
            return cls(layer, fitted.inputs, states, weights, fitted.table[:, :dim].contiguous())
        read = fitted.tokens.width(words)
        weight = head.weight[:dim, -read:].T
        rows = torch.cat([features @ weight for features in fitted.tokens.of_ids(words)])
        kept = head.weight[:dim, :-read].contiguous(), head.bias[:dim].contiguous()
        return cls(layer, fitted.inputs, linear(*kept), weights, rows * (weights > 0)[:, None])

    @property
    def layers(self) -> tuple[int, ...]:
        """The one layer that has an exit."""
        return (self.layer,)

    def embed(
        self,
        layers: tuple[int, ...],
        states: Mapping[int, Tensor],
        words: Tensor,  # noqa: ARG002  # they are in the table
        input_ids: Tensor,
        mask: Tensor | None,
    ) -> dict[int, Tensor]:
        """Return what `FittedExits.embed` gives, for the one layer or for none."""
        if not layers:
            return {}
        read = [states[part] for part in inputs_of(self.layer, self.inputs) if part != TOKENS]
        shares = shares_of(self.tokens.weights, input_ids, mask)
        with float32_on(self.table.device):
            said = torch.einsum("bt,btw->bw", shares, self.table[input_ids])
            mapped: Tensor = self.heads[str(self.layer)](torch.cat(read, dim=-1))
        return {self.layer: mapped + said}


def write_table(exit_: FoldedExit, folder: Path) -> list[ListedModule]:
    """Write a folded exit for sentence-transformers, and return its rows of modules.json.

    Args:
        exit_: of the last layer in the folder, which reads the state of that layer alone.
        folder: of the model.
    """
    rows = [
        ListedModule(kind, f"{number}_{kind}")
        for number, kind in enumerate(TABLE_CHAIN, start=_FIRST)
    ]
    table, rarity, state, joined, added = (folder / row.path for row in rows)
    settings = {
        "tokenizer_class": _TOKENIZER, "update_embeddings": False, "max_seq_length": 1_000_000
    }  # fmt: skip
    write_json(table / "wordembedding_config.json", settings)
    nothing = {"vocab": [], "stop_words": [], "do_lower_case": False}
    write_json(table / "whitespacetokenizer_config.json", nothing)
    save_file({"emb_layer.weight": exit_.table.contiguous()}, table / WEIGHTS)
    names = [str(number) for number in range(len(exit_.table))]
    weights = dict(zip(names, exit_.tokens.weights.tolist(), strict=True))
    write_json(
        rarity / "config.json",
        {"vocab": names, "word_weights": weights, "unknown_word_weight": 0.0},
    )
    head = exit_.heads[str(exit_.layer)]
    assert isinstance(head, nn.Linear)
    _write_dense(head.weight, head.bias, state, module_output_name=_CLS)
    dim = exit_.table.shape[1]
    flags = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    write_json(joined / "config.json", {"word_embedding_dimension": dim} | flags)
    sum_of_two = torch.eye(dim).repeat(1, 2)
    _write_dense(sum_of_two, None, added)
    return rows


def _write_dense(weight: Tensor, bias: Tensor | None, folder: Path, **names: str) -> None:
    height, width = weight.shape
    settings: dict[str, Any] = {
        "in_features": width,
        "out_features": height,
        "bias": bias is not None,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    write_json(folder / "config.json", settings | names)
    tensors = {"linear.weight": weight} | ({} if bias is None else {"linear.bias": bias})
    save_file({name: one.detach().contiguous() for name, one in tensors.items()}, folder / WEIGHTS)


def read_table(folder: Path, layer: int, pooled_width: int, width: int, ids: int) -> FoldedExit:
    """Read what `write_table` wrote.

    Args:
        folder: of the model.
        layer: its last one.
        pooled_width: P of its encoder.
        width: K of its card.
        ids: V of its encoder.

    Raises:
        UserError: a file is missing, damaged, or of another encoder.
    """
    rows = [folder / row.path for row in table_chain(folder)]
    if not rows:
        raise UserError(f"{folder} lacks the table of its exit, which m2dr.json names.")
    with explain_failure(f"The exit in {folder} cannot be read"):
        table = load_file(rows[0] / WEIGHTS)["emb_layer.weight"]
        dense = load_file(rows[2] / WEIGHTS)
        head = linear(dense["linear.weight"], dense["linear.bias"])
        named = read_object(rows[1] / "config.json", _WEIGHTS_FILE)
        weights = torch.tensor([named["word_weights"][name] for name in named["vocab"]])
    found = [list(table.shape), list(head.weight.shape), list(weights.shape)]
    belongs = [[ids, width], [width, pooled_width], [ids]]
    if found != belongs:
        raise UserError(
            f"The exit in {folder} has tensors of {found}, and {belongs} belong to its encoder."
        )
    return FoldedExit(layer, "tokens+layer", head, weights, table.float())
