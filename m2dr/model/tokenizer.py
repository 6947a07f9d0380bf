"""Tokenizers: texts to token ids, by transformers or from tokenizer.json without it."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import normalizers

from m2dr.core.errors import UserError, counted
from m2dr.core.files import explain_failure, read_optional_object
from m2dr.core.records import ModelCard, Side
from m2dr.model.hub import TOKENIZER

if TYPE_CHECKING:  # layer 0 tokenises without loading transformers
    from transformers import PreTrainedTokenizerBase

SAMPLE = "read a file line by line and close it"  # about as long as people's queries are
SETTINGS = "tokenizer_config.json"
_CHARACTERS = 32  # of a long text are read at first for each token that is kept
_FIELDS: dict[str, object] = {  # of tokenizer_config.json
    "truncation_side": str | None,
    "split_special_tokens": bool | None,
}


class BaseTokenizer(ABC):
    """Texts to token ids, cut at a length; a subclass finds the ids."""

    def __call__(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Return the ids of each text, special tokens included, none longer than `max_length`.

        Of a very long text only a beginning is tokenised, which gives the same ids: 10 MB of text
        take half a minute, and 256 tokens of it need a thousandth of that.

        Raises:
            UserError: that length leaves no room for a word.
        """
        if not texts:
            return []
        self.require_room(max_length, "length")
        return self._ids([self._beginning(text, max_length) for text in texts], max_length)

    @abstractmethod
    def _ids(self, texts: list[str], max_length: int) -> list[list[int]]:
        """Return the ids of each text, read to its end."""

    @property
    @abstractmethod
    def around(self) -> int:
        """Number of special tokens around each text."""

    @abstractmethod
    def _keeps_the_end(self) -> bool:
        """Return whether a text that is too long loses its beginning."""

    def _beginning(self, text: str, max_length: int) -> str:
        """Return the text, or a beginning of it that has the same first `max_length` ids.

        A beginning ends with a word, before white space, where every tokenizer ends one, and holds
        twice as many tokens as are kept: what follows has no influence on those so far from it.
        """
        characters = _CHARACTERS * max_length
        if len(text) <= 2 * characters or self._keeps_the_end():
            return text
        while len(text) > 2 * characters:
            end = max(text.rfind(space, 0, characters) for space in " \n\r\t")
            if end > 0:
                beginning = text[:end].rstrip()
                if len(self._ids([beginning], 2 * max_length)[0]) == 2 * max_length:
                    return beginning
            characters *= 4
        return text

    def require_room(self, length: int, name: str) -> None:
        """Refuse a length that special tokens use up: `tokenizers` then cuts nothing, or all."""
        if length <= self.around:
            raise UserError(
                f"{name} = {length}, and the tokenizer puts "
                f"{counted(self.around, 'special tokens')} around each text."
            )


@dataclass(frozen=True)
class ModelTokenizer(BaseTokenizer):
    """The tokenizer of transformers for a model."""

    inner: "PreTrainedTokenizerBase"
    lowercases: bool = False  # whether texts are put in lower case first
    beyond: frozenset[int] = frozenset()  # ids of added tokens without an embedding

    @property
    def pad_id(self) -> int:
        """Id of padding, which the mask excludes."""
        return int(self.inner.pad_token_id or 0)

    @property
    def around(self) -> int:
        """Number of special tokens around each text."""
        return int(self.inner.num_special_tokens_to_add())

    def pad(self, rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return rows of ids as one array [B, T], and its mask."""
        real = np.arange(max(1, *map(len, rows))) < np.array([len(row) for row in rows])[:, None]
        ids = np.full(real.shape, self.pad_id, np.int64)
        ids[real] = np.concatenate(rows)
        return ids, real.astype(np.int64)

    def ordinary_ids(self) -> list[int]:
        """Return the ids of all tokens with an embedding but the special ones, increasing."""
        added = self.inner.added_tokens_decoder
        special = {number for number, token in added.items() if token.special}
        special |= set(self.inner.all_special_ids)
        return sorted(set(self.inner.get_vocab().values()) - special - self.beyond)

    def alone(self, ids: Iterable[int]) -> list[list[int]]:
        """Return for each id the row of a text of that token alone, special tokens around it."""
        return self.enclosed([number] for number in ids)

    def enclosed(self, rows: Iterable[Sequence[int]]) -> list[list[int]]:
        """Return rows of ids without special tokens with these around each."""
        bare: list[int] = self.inner("a", add_special_tokens=False)["input_ids"]
        around: list[int] = self.inner("a")["input_ids"]
        before = next(
            start
            for start in range(len(around) - len(bare) + 1)
            if around[start : start + len(bare)] == bare
        )
        left, right = around[:before], around[before + len(bare) :]
        return [[*left, *row, *right] for row in rows]

    def _ids(self, texts: list[str], max_length: int) -> list[list[int]]:
        out = self.inner(
            texts,
            truncation=True,
            max_length=max_length,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        rows: list[list[int]] = out["input_ids"]
        for number in self.beyond.intersection(chain.from_iterable(rows)) if self.beyond else ():
            raise UserError(
                f"A text holds {self.inner.convert_ids_to_tokens(number)!r}, a token that was added"
                f" to the tokenizer as {number} and has no embedding in the model."
            )
        return rows

    def _keeps_the_end(self) -> bool:
        return self.inner.truncation_side != "right"


class FileTokenizer(BaseTokenizer):
    """The tokenizer of a tokenizer.json. Safe to use from several threads."""

    def __init__(self, backend: tokenizers.Tokenizer, side: str = "right") -> None:
        """Take over a tokenizer, whose padding and truncation are set here.

        Args:
            backend: of the library tokenizers.
            side: the end that a text which is too long loses, right or left.
        """
        backend.no_padding()
        backend.no_truncation()
        self._backend, self._side, self._length = backend, side, 0
        self._lock = threading.Lock()

    @property
    def own_ids(self) -> int:
        """Number of tokens that the vocabulary has without those that were added to it."""
        return int(self._backend.get_vocab_size(with_added_tokens=False))

    @property
    def last_id(self) -> int:
        """The greatest id of a token."""
        return max(self._backend.get_vocab(with_added_tokens=True).values())

    @property
    def around(self) -> int:
        """Number of special tokens around each text."""
        return int(self._backend.num_special_tokens_to_add(is_pair=False))

    def write(self, path: Path, length: int) -> None:
        """Write a tokenizer.json that cuts texts by itself, for tools that do not.

        Args:
            path: of the file.
            length: of a text with special tokens. A tool that adds none keeps the words of the text
                that this tokenizer keeps.
        """
        copy = tokenizers.Tokenizer.from_str(self._backend.to_str())
        copy.enable_truncation(length - self.around, direction=self._side)
        copy.save(str(path))

    def _ids(self, texts: list[str], max_length: int) -> list[list[int]]:
        with self._lock:  # the length is a state of the backend, which threads share
            if max_length != self._length:
                self._backend.enable_truncation(max_length, direction=self._side)
                self._length = max_length
            if len(texts) == 1:  # a batch of one would cost more
                return [self._backend.encode(texts[0]).ids]
            return [found.ids for found in self._backend.encode_batch_fast(texts)]

    def _keeps_the_end(self) -> bool:
        return self._side != "right"


def tokenize(
    card: ModelCard, tokenizer: BaseTokenizer, texts: Sequence[str], side: Side
) -> list[list[int]]:
    """Return the token ids of texts behind the prompt of their side, which is added here alone.

    Args:
        card: has the prompts, and the lengths that texts are cut to.
        tokenizer: of the model.
        texts: queries or documents.
        side: which of the two they are.
    """
    if side == "query":
        prompt, length = card.query_prefix, card.query_length
    else:
        prompt, length = card.document_prefix, card.document_length
    return tokenizer([prompt + text for text in texts], length)


def read_tokenizer(folder: Path, lowercases: bool = False) -> FileTokenizer:
    """Read tokenizer.json, which gives the ids that transformers' tokenizer of the folder gives.

    Args:
        folder: that holds it.
        lowercases: whether texts are put in lower case first.

    Raises:
        UserError: there is none, or it is damaged.
    """
    path = folder / TOKENIZER
    if not path.is_file():
        raise UserError(
            f"{folder} has no {TOKENIZER}, the only tokenizer file that layer 0 reads. Take a "
            "layer from 1, or a model that has the file."
        )
    settings = read_optional_object(folder / SETTINGS, _FIELDS)
    with explain_failure(f"{path} cannot be read"):
        backend = tokenizers.Tokenizer.from_file(str(path))
        if lowercases:
            lowercase(backend)
        backend.encode_special_tokens = bool(settings.get("split_special_tokens"))
        cut = (backend.truncation or {}).get("direction", "right")
        return FileTokenizer(backend, settings.get("truncation_side") or cut)


def lowercase(backend: tokenizers.Tokenizer) -> None:
    """Make a tokenizer put texts in lower case first, as `do_lower_case` asks for."""
    first = [normalizers.Lowercase(), *([backend.normalizer] if backend.normalizer else [])]
    backend.normalizer = normalizers.Sequence(first)
