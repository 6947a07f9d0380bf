"""Whole words in the vocabulary of layer 0, which runs no layer that could join their pieces.

A WordPiece tokenizer (BERT's) splits a word that it lacks into pieces, and layer 0 would take the
mean of theirs. Words of a corpus are added behind the ids of the model; the tokenizer then finds
them by itself, because it takes the longest piece that it has.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from pathlib import Path

import tokenizers
import torch
from tokenizers import models
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from m2dr.core.files import write_bytes
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
