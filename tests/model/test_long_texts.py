"""Only the beginning of a long text is tokenised, and the ids are those of the whole."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from world import TEXT

from m2dr.model.hub import find_folder
from m2dr.model.tokenizer import ModelTokenizer

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
LINES = [TEXT, TEXT.upper(), "don't  stop\n\n\tnow", "über naïve Σίσυφος 中文字 12345 !!! ..."]
PIECES = st.one_of(
    st.sampled_from([*TEXT.split(), *LINES, " ", "\n", "   ", "\u00a0", "\u2028", "\x1c", "", "中文"]),
    st.text(max_size=12),
    st.builds(str.__mul__, st.sampled_from(["a", "ab ", " ", "\n", "!", "中", "é", "x\x1c"]),
              st.integers(1, 400)),
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=8).flatmap(
    lambda pieces: st.integers(1, 6).map(lambda times: "".join(pieces) * times)
)


def trained(
    model: object, trainer: object, before: object, normalizer: object
) -> PreTrainedTokenizerBase:
    """A tokenizer of another kind, with ids around a text as its model wants them."""
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer, made.decoder = before, decoders.ByteLevel()
    if normalizer:
        made.normalizer = normalizer
    made.train_from_iterator(LINES * 20, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    tokens = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **tokens)


def byte_level() -> PreTrainedTokenizerBase:
    """As RoBERTa, ModernBERT, Llama 3 and Qwen have it."""
    kind = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False)
    before = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return trained(models.BPE(unk_token="<unk>"), kind, before, None)


def sentence_piece() -> PreTrainedTokenizerBase:
    """As XLM-R has it."""
    kind = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    return trained(models.Unigram(), kind, pre_tokenizers.Metaspace(), normalizers.NFKC())


def without_words() -> PreTrainedTokenizerBase:
    """As Llama 2 has it: merges run over the whole text, whose spaces are letters."""
    kind = trainers.BpeTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False)
    before = pre_tokenizers.Metaspace(split=False)
    return trained(models.BPE(unk_token="<unk>", fuse_unk=True), kind, before, None)


@pytest.fixture(scope="module")
def known(backbone: Callable[[str], Path]) -> dict[str, PreTrainedTokenizerBase]:
    return {
        "world": AutoTokenizer.from_pretrained(backbone("bert")),
        "minilm": AutoTokenizer.from_pretrained(find_folder("minilm")),
        "bytes": byte_level(),
        "unigram": sentence_piece(),
        "no words": without_words(),
        "the end": AutoTokenizer.from_pretrained(backbone("bert"), truncation_side="left"),
    }


@pytest.mark.parametrize("name", ["world", "minilm", "bytes", "unigram", "no words", "the end"])
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
@given(texts=st.lists(TEXTS, min_size=1, max_size=2), length=st.integers(3, 12))
def test_ids_of_a_long_text_are_those_of_the_whole(
    known: dict[str, PreTrainedTokenizerBase],
    name: str,
    texts: list[str],
    length: int,
) -> None:
    whole = known[name](texts, truncation=True, max_length=length)["input_ids"]

    assert ModelTokenizer(known[name])(texts, length) == whole


class Counting:
    """A tokenizer that counts the characters which it is given."""

    def __init__(self, inner: PreTrainedTokenizerBase) -> None:
        self.inner, self.truncation_side, self.characters = inner, inner.truncation_side, 0

    def num_special_tokens_to_add(self) -> int:
        return int(self.inner.num_special_tokens_to_add())

    def __call__(self, texts: list[str], **options: object) -> dict[str, list[list[int]]]:
        self.characters += sum(map(len, texts))
        return self.inner(texts, **options)


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("the file is read line by line\n" * 100_000, 20_000),
        ("word" + " " * 60_000 + "the file is read line by line " * 100_000, 800_000),
        ("x" * 60_000 + " the file is read line by line" * 100_000, 800_000),
    ],
    ids=["words", "spaces first", "a long word first"],
)
def test_a_document_of_megabytes_is_not_tokenised_whole(
    known: dict[str, PreTrainedTokenizerBase], text: str, most: int
) -> None:
    counting = Counting(known["minilm"])

    (row,) = ModelTokenizer(counting)([text], 256)

    assert len(row) == 256
    assert counting.characters <= most
