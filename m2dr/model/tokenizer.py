"""Texts to token ids, none longer than asked for; tokenizer.json read without transformers."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import normalizers

from m2dr.errors import UserError
from m2dr.io import refusing, what_stands_at
from m2dr.jsontext import read_table

SAMPLE = "read a file line by line and close it"  # about as long as people's queries are
FILE = "tokenizer.json"
SETTINGS = "tokenizer_config.json"

_AGAIN = "Copy the whole folder of the model again."
_CHARACTERS = 32  # of a long text are read at first for each token that is kept
_FIELDS: dict[str, object] = {  # of tokenizer_config.json
    "truncation_side": str | None,
    "split_special_tokens": bool | None,
}


class BaseTokenizer(ABC):
    """Texts to token ids, cut at a length; a subclass says what finds the ids."""

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
        """How many special tokens stand around each text."""

    @abstractmethod
    def _keeps_the_end(self) -> bool:
        """Return whether a text that is too long loses its beginning."""

    def _beginning(self, text: str, max_length: int) -> str:
        """Return the text, or so much of a long one that its first `max_length` ids are the same.

        It ends with a word, before white space that every tokenizer takes for the end of one, and
        holds twice as many tokens as are kept: what follows has no say in those so far from it.
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
        around = self.around
        if length <= around:
            raise UserError(
                f"{name} = {length}, and the tokenizer puts {around} around each text, so that no "
                "word is left of it; ask for more tokens."
            )


class FileTokenizer(BaseTokenizer):
    """The tokenizer of a tokenizer.json. Safe to use from several threads."""

    def __init__(self, backend: tokenizers.Tokenizer, side: str = "right") -> None:
        """Take over a tokenizer, whose padding and truncation are set here.

        Args:
            backend: of the library tokenizers.
            side: which end of a text that is too long goes, right or left.
        """
        backend.no_padding()
        backend.no_truncation()
        self._backend, self._side, self._length = backend, side, 0
        self._lock = threading.Lock()

    @property
    def ids(self) -> int:
        """How many tokens there are."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def last_id(self) -> int:
        """The greatest id of a token."""
        return max(self._backend.get_vocab(with_added_tokens=True).values())

    def write(self, path: Path, length: int) -> None:
        """Write a tokenizer.json that cuts texts by itself, for tools that cut none.

        Args:
            path: of the file.
            length: of a text with special tokens. A tool that puts none around a text is left with
                the words of the text that this tokenizer keeps.
        """
        copy = tokenizers.Tokenizer.from_str(self._backend.to_str())
        copy.enable_truncation(length - self.around, direction=self._side)
        copy.save(str(path))

    def _ids(self, texts: list[str], max_length: int) -> list[list[int]]:
        with self._lock:  # the length is kept within the backend: two threads would mix it up
            if max_length != self._length:
                self._backend.enable_truncation(max_length, direction=self._side)
                self._length = max_length
            if len(texts) == 1:  # by itself: a batch costs more to share out
                return [self._backend.encode(texts[0]).ids]
            return [found.ids for found in self._backend.encode_batch_fast(texts)]

    @property
    def around(self) -> int:
        """How many special tokens stand around each text."""
        return int(self._backend.num_special_tokens_to_add(is_pair=False))

    def _keeps_the_end(self) -> bool:
        return self._side != "right"


def read_tokenizer(folder: Path, lowercases: bool = False) -> FileTokenizer:
    """Open tokenizer.json, which gives the ids that transformers' tokenizer of the folder gives.

    Args:
        folder: that holds it.
        lowercases: whether texts are put in lower case first.

    Raises:
        UserError: there is none, or it is damaged.
    """
    path = folder / FILE
    if what_stands_at(path):
        raise UserError(
            f"{folder} has no {FILE}, the one form of a tokenizer that layer 0 reads. Take a layer "
            "from 1, or a model that has the file."
        )
    settings = read_table(folder / SETTINGS, _FIELDS, _AGAIN)
    with refusing(f"{path} cannot be read", _AGAIN):
        backend = tokenizers.Tokenizer.from_file(str(path))
        if lowercases:
            lowercase(backend)
        backend.encode_special_tokens = bool(settings.get("split_special_tokens"))
        cut = (backend.truncation or {}).get("direction", "right")
        return FileTokenizer(backend, settings.get("truncation_side") or cut)


def lowercase(backend: tokenizers.Tokenizer) -> None:
    """Let a tokenizer put texts in lower case first, as `do_lower_case` asks for."""
    first = [normalizers.Lowercase(), *([backend.normalizer] if backend.normalizer else [])]
    backend.normalizer = normalizers.Sequence(first)
