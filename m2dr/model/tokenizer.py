"""Tokenizers: texts to token ids, by transformers or from tokenizer.json without it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from m2dr.core.arrays import Int64
from m2dr.core.errors import UserError, counted
from m2dr.core.records import ModelCard, Side, as_utf8
from m2dr.model.tokens import pad

if TYPE_CHECKING:  # layer 0 tokenises without loading transformers
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

SAMPLE_QUERY = "read a file line by line and close it"  # about as long as people's queries are
_CHARACTERS = 32  # of a long text are read at first for each token that is kept
# Classes to which earlier versions of transformers gave the ends that tokenizer_config.json names.
_FLAGGED = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer")


@dataclass(frozen=True)
class ModelTokenizer:
    """The tokenizer of transformers for a model: texts to token ids, cut at a length."""

    inner: "PreTrainedTokenizerBase"
    lowercases: bool = False  # whether texts are put in lower case first
    beyond: frozenset[int] = frozenset()  # ids of added tokens without an embedding

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
        whole = map(as_utf8, texts)  # tokenizers refuse half a surrogate pair
        return self._ids([self._beginning(text, max_length) for text in whole], max_length)

    def require_room(self, length: int, name: str) -> None:
        """Refuse a length that special tokens use up: `tokenizers` then cuts nothing, or all."""
        special = int(self.inner.num_special_tokens_to_add())
        if length <= special:
            around = counted(special, "special tokens")
            raise UserError(f"{name} = {length} leaves no text: the tokenizer adds {around}.")

    @property
    def pad_id(self) -> int:
        """Id of padding, which the mask excludes."""
        return int(self.inner.pad_token_id or 0)

    def pad(self, rows: Sequence[Sequence[int]]) -> tuple[Int64, Int64]:
        """Return rows of ids as one array [B, T], and its mask."""
        return pad(rows, self.pad_id)

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
            token = self.inner.convert_ids_to_tokens(number)
            raise UserError(f"A text holds the added token {token!r}, which has no embedding.")
        return rows

    def _beginning(self, text: str, max_length: int) -> str:
        """Return the text, or a beginning of it that has the same first `max_length` ids.

        A beginning ends with a word, before white space, where every tokenizer ends one, and holds
        twice as many tokens as are kept: what follows has no influence on those so far from it.
        """
        characters = _CHARACTERS * max_length
        if len(text) <= 2 * characters or self.inner.truncation_side != "right":
            return text
        while len(text) > 2 * characters:
            end = max(text.rfind(space, 0, characters) for space in " \n\r\t")
            if end > 0:
                beginning = text[:end].rstrip()
                if len(self._ids([beginning], 2 * max_length)[0]) == 2 * max_length:
                    return beginning
            characters *= 4
        return text


def tokenize(
    card: ModelCard, tokenizer: ModelTokenizer, texts: Sequence[str], side: Side
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


def add_ends(tokenizer: "PreTrainedTokenizerBase", settings: Mapping[str, Any]) -> None:
    """Put the tokens of begin and end around texts as tokenizer_config.json says.

    transformers 5 ignores `add_bos_token` and `add_eos_token` where there is a tokenizer.json; for
    Llama and Gemma earlier versions replaced its template. The last token of E5-Mistral, which is
    pooled, would be a word.

    Args:
        tokenizer: changed in place.
        settings: of tokenizer_config.json.

    Raises:
        UserError: it asks for a token that the tokenizer has not, or does not add.
    """
    whole: list[int] = tokenizer("a")["input_ids"]
    ids = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id}
    added = {"bos": ids["bos"] in whole[:1], "eos": ids["eos"] in whole[-1:]}
    asked = {end: settings.get(f"add_{end}_token") for end in ids}
    wanted = {end: added[end] if asked[end] is None else asked[end] for end in ids}
    kind = str(settings.get("tokenizer_class") or type(tokenizer).__name__)
    is_flagged = kind.removesuffix("Fast") in _FLAGGED
    for end, number in ids.items():
        if wanted[end] and not added[end] and (number is None or not is_flagged):
            raise UserError(f"add_{end}_token is true, and {kind} adds no {end}_token to a text.")
    if is_flagged and wanted != added:
        for end, is_wanted in wanted.items():
            setattr(tokenizer, f"add_{end}_token", is_wanted)


def lowercase(backend: "Tokenizer") -> None:
    """Make a tokenizer put texts in lower case first, as `do_lower_case` asks for."""
    from tokenizers import normalizers  # which words alone do without

    first = [normalizers.Lowercase(), *([backend.normalizer] if backend.normalizer else [])]
    backend.normalizer = normalizers.Sequence(first)
