"""What a process puts into a batch, and what it knows of the shares of the others."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from m2dr.core.records import Document, Group, ModelCard, Query, SentencePair
from m2dr.model.checkpoint import load
from m2dr.model.tokenizer import ModelTokenizer
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


def test_scores_of_a_teacher_are_those_of_all_processes_in_the_order_of_their_queries(
    tools: tuple[ModelCard, ModelTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = [replace(group, scores=(float(n), n - 0.5)) for n, group in enumerate(GROUPS)]

    def make(some: list[Any]) -> TokenBatch:
        return make_batch(*tools, some, KNOWN)

    whole, share = make(scored), with_others(scored[3:], make, monkeypatch)(scored[:3])

    expected = np.array([group.scores for group in scored], dtype=np.float32)
    for batch in (whole, share):
        np.testing.assert_array_equal(batch.teacher, expected)
    assert make(GROUPS).teacher is None
    assert make(GROUPS).tensors()["teacher"] is None
