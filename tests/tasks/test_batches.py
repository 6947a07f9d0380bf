"""What a process puts into a batch, and what it knows of the shares of the others."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from m2dr.core.records import Document, Group, ModelCard, Query, SentencePair
from m2dr.model.checkpoint import load
from m2dr.model.tokenizer import ModelTokenizer, tokenize
from m2dr.tasks.training import training_data
from m2dr.tasks.training.training_data import make_batch, make_pair_batch
from m2dr.training.module import TokenBatch

Make = Callable[[list[Any]], TokenBatch]


def group(query: str, positive: str, negative: str) -> Group:
    """Texts stand for their own ids."""
    return Group(Query(query, query), Document(positive, positive), (Document(negative, negative),))


GROUPS = [
    group("read a file", "open read close", "a string"),
    group("a list", "the list class", "open read close"),
    group("write a line", "path write", "the module"),
    # Of the other process; the first asks what the first above asks, by another name.
    Group(Query("other", "read a file"), Document("x", "read text"), (Document("y", "a number"),)),
    group("close a file", "the list class", "read text"),
    group("a module", "the module", "path write"),
]
KNOWN = {"write a line": frozenset({"the module"}), "other": frozenset({"a string"})}
PAIRS = [
    SentencePair("a file", "the file", 1.0),
    SentencePair("a list", "the number", 0.2),
    SentencePair("read text", "the file", 0.9),
    SentencePair("a file", "open file", 0.9),
    SentencePair("the file", "a string", 0.1),
    SentencePair("a list", "the list", 1.0),
]


@pytest.fixture(scope="module")
def tools(tiny_backbone: Path) -> tuple[ModelCard, ModelTokenizer]:
    encoder, tokenizer = load(tiny_backbone, 1)
    return encoder.card, tokenizer


def with_others(others: list[Any], make: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """`make` of the first of two processes, whose second one has `others`."""
    kept: list[list[Any]] = []
    monkeypatch.setattr(
        training_data, "all_gather_objects", lambda share: kept.append(share) or [share]
    )
    make(others)
    monkeypatch.setattr(training_data, "all_gather_objects", lambda share: [share, kept[0]])
    return make


@pytest.mark.parametrize("kind", ["groups", "pairs"])
def test_what_answers_is_no_negative_whichever_process_has_it(
    kind: str, tools: tuple[ModelCard, ModelTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    examples: list[Any] = GROUPS if kind == "groups" else PAIRS

    def make(some: list[Any]) -> TokenBatch:
        if kind == "groups":
            return make_batch(*tools, some, KNOWN)
        return make_pair_batch(*tools, some)

    whole = make(examples)

    share = with_others(examples[3:], make, monkeypatch)(examples[:3])

    assert share.queries == 3
    assert (
        sum(len(rows) for *_, rows in share.texts)
        == sum(len(rows) for *_, rows in whole.texts) // 2
    )
    np.testing.assert_array_equal(share.excluded, whole.excluded)
    assert (share.labels is None) == (kind == "groups")
    if share.labels is not None and whole.labels is not None:
        np.testing.assert_array_equal(share.labels, whole.labels)


@pytest.mark.parametrize(("tokens", "parts"), [(0, 4), (10**6, 1)])
def test_a_batch_has_fewer_parts_where_a_pass_costs_more_than_padding(
    tokens: int, parts: int, tools: tuple[ModelCard, ModelTokenizer]
) -> None:
    words = [Group(Query(f"q{n}", "word " * n), Document(f"d{n}", "a")) for n in range(1, 6)]

    batch = make_batch(*tools, words, {}, pass_tokens=tokens)

    assert len(batch.texts) == parts
    assert sorted(int(row) for *_, rows in batch.texts for row in rows) == list(range(10))


# Pairs


CARD = ModelCard(
    "made up", "untrained", 2, 8, (), 0.05, documents="same", pooling="cls", similarity="cosine"
)


class Letters:
    """One token per letter."""

    pad_id = 0

    def __call__(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        return [[ord(letter) for letter in text][:max_length] for text in texts]


def excluded(*pairs: tuple[str, str, float]) -> NDArray[np.bool_]:
    return make_pair_batch(CARD, Letters(), [SentencePair(*pair) for pair in pairs]).excluded


letters = st.sampled_from("abcd")
batches = st.lists(
    st.tuples(letters, letters, st.sampled_from([0.0, 0.5, 0.79, 0.8, 1.0])), min_size=1, max_size=7
)


@given(pairs=batches)
def test_exclusions_are_those_of_the_definition_read_out_cell_by_cell(
    pairs: list[tuple[str, str, float]],
) -> None:
    mask = excluded(*pairs)

    alike = {frozenset((first, second)) for first, second, score in pairs if score >= 0.8}
    assert not mask.diagonal().any()
    for b, (first, _, score) in enumerate(pairs):
        for n, (_, second, _) in enumerate(pairs):
            if score >= 0.8 and n != b:  # no other row is ever asked
                assert mask[b, n] == (first == second or frozenset((first, second)) in alike)


# Encoding


def test_each_side_has_its_own_prefix_and_length(backbone: Callable[[str], Path]) -> None:
    encoder, tokenizer = load(backbone("bert"))
    card = replace(
        encoder.card, query_prefix="read ", document_prefix="path ", query_length=4,
        document_length=6,
    )  # fmt: skip

    (query,), (document,) = (
        tokenize(card, tokenizer, ["a file line list text"], side) for side in ("query", "document")
    )

    assert query == tokenizer(["read a file line list text"], 4)[0]
    assert document == tokenizer(["path a file line list text"], 6)[0]
    assert (len(query), len(document)) == (4, 6)
