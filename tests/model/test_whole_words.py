"""Words of a corpus in the vocabulary of layer 0: the referee is the library tokenizers."""

from pathlib import Path

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from m2dr.model.exits import TokenFeatures, WholeWords, WordFeatures
from m2dr.model.tokenizer import ModelTokenizer

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcde", *(f"##{c}" for c in "abcde"), "-"] + [
    "ab", "##ab", "bead", "##ed", "[", "]", "#"
]  # fmt: skip
FIRST = 32
CORPUS = 2 * ["abba bead-deed cab", "ace acebed", "deed decade"]
SPLIT = {"abba", "deed", "cab", "ace", "acebed", "decade"}


def made(prefix: str = "##", **options: object) -> ModelTokenizer:
    vocabulary = {word.replace("##", prefix): n for n, word in enumerate(VOCABULARY)}
    model = models.WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix=prefix)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return ModelTokenizer(
        PreTrainedTokenizerFast(
            tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
            sep_token="[SEP]", **options,
        )
    )  # fmt: skip


def words_of(
    tokenizer: ModelTokenizer, texts: list[str]
) -> tuple[WholeWords, list[tuple[int, ...]]]:
    found = WholeWords.of(tokenizer, tokenizer(texts, 64), FIRST)
    assert found is not None
    return found


def test_each_word_that_is_split_is_added_with_its_pieces() -> None:
    tokenizer = made()

    words, pieces = words_of(tokenizer, CORPUS)

    assert words.count == len(SPLIT)
    expected = tokenizer.inner(sorted(SPLIT), add_special_tokens=False)["input_ids"]
    assert [list(one) for one in pieces] == expected  # in the order of their ids
    row = tokenizer(["Decade bead zed"], 64)
    ids = {word: FIRST + n for n, word in enumerate(sorted(SPLIT))}
    assert words.rows(row) == [[2, ids["decade"], VOCABULARY.index("bead"), 1, 3]]


TEXTS = st.lists(
    st.text(alphabet="abcdeAz -#[]", max_size=24)
    | st.lists(st.sampled_from([*SPLIT, "decades", "beaded", "[SEP]"])).map(" ".join),
    max_size=5,
)


@given(TEXTS)
def test_rows_are_those_of_a_tokenizer_with_the_words(texts: list[str]) -> None:
    tokenizer = made()
    words, _ = words_of(tokenizer, CORPUS)
    longer = tokenizers.Tokenizer.from_str(words._backend.to_str())

    found = words.rows(tokenizer(texts, 512))

    assert found == [longer.encode(text).ids for text in texts]


@pytest.mark.parametrize("special", [False, True])
def test_tokens_that_were_added_to_the_tokenizer_keep_their_ids(
    special: bool, tmp_path: Path
) -> None:
    tokenizer = made()
    tokenizer.inner.add_tokens(["covid-e", "[q]"], special_tokens=special)
    known = tokenizer.inner.get_vocab()

    words, pieces = words_of(tokenizer, [*CORPUS, "deed covid-e [q] abba"])

    assert words.count == len(SPLIT) == len(pieces)
    words.write(tmp_path / "tokenizer.json")
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    after = backend.get_vocab(with_added_tokens=True)
    assert after == known | {word: FIRST + n for n, word in enumerate(sorted(SPLIT))}
    text = "deed covid-e abba [q]"
    row = tokenizer([text], 64)
    (found,) = words.rows(row)
    assert found == backend.encode(text).ids
    assert {known["covid-e"], known["[q]"]} < set(found)


def test_the_row_of_a_word_stands_for_the_word_and_its_pieces() -> None:
    tokenizer, draw = made(), torch.Generator().manual_seed(13)
    words, pieces = words_of(tokenizer, CORPUS)
    count = FIRST + words.count
    weights = torch.rand(count, generator=draw) + 0.1
    weights[:4] = 0  # of special tokens
    single = torch.zeros(count, 0)
    tokens = TokenFeatures(single, weights, torch.ones(()), weights > 0, 0)
    table = torch.randn(count, 5, generator=draw).half()

    rows, joined = WordFeatures(words, tokens, single, pieces).join(table)

    (row,) = words.rows(tokenizer(["decade bead ace zed abba"], 64))
    beside = [n for word in row for n in (word, *(pieces[word - FIRST] if word >= FIRST else ()))]
    exact = table.double()
    mean = (weights.double()[beside, None] * exact[beside]).sum(0) / weights.double()[beside].sum()
    found = (joined.double()[row, None] * rows.double()[row]).sum(0) / joined.double()[row].sum()
    assert len(beside) > len(row)
    torch.testing.assert_close(found, mean, atol=2e-3, rtol=0)  # half floats
    assert torch.equal(rows[:FIRST], table[:FIRST])
