from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from m2dr.core.records import Document, Group, Query
from m2dr.model.checkpoint import load
from m2dr.model.tokenizer import tokenize
from m2dr.tasks.embed import embed_texts
from m2dr.tasks.training.training_data import make_batch

TEXTS = ["read", "a file and a list of numbers and text", "open the path", "x y z", "class"] * 9


@pytest.mark.parametrize("budget", [1, 20, 10_000])
def test_batches_change_neither_order_nor_vectors(
    budget: int, backbone: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, tokenizer = load(backbone("bert"))
    monkeypatch.setattr("m2dr.tasks.embed.TOKENS_PER_BATCH", budget)

    together = embed_texts(encoder, tokenizer, TEXTS, "document", [1, 4])

    alone = [embed_texts(encoder, tokenizer, [text], "document", [1, 4]) for text in TEXTS]
    np.testing.assert_allclose(together, np.concatenate(alone, axis=1), atol=1e-5)


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


def test_a_batch_holds_queries_then_positives_then_negatives(
    backbone: Callable[[str], Path],
) -> None:
    encoder, tokenizer = load(backbone("bert"))
    groups = [
        Group(
            Query(f"q{i}", text),
            Document(f"p{i}", f"{text} file"),
            (Document(f"n{i}", f"{text} number class"),),
        )
        for i, text in enumerate(["read", "open the list", "close"])
    ]

    batch = make_batch(encoder.card, tokenizer, groups, {})

    expected = [group.query.text for group in groups]
    expected += [group.positive.text for group in groups]
    expected += [group.negatives[0].text for group in groups]
    found = {}
    for ids, mask, rows in batch.texts:
        for row_ids, row_mask, row in zip(ids, mask, rows, strict=True):
            found[int(row)] = row_ids[row_mask == 1].tolist()
    assert [found[i] for i in range(9)] == tokenizer(expected, 64)
    assert batch.queries == 3
    assert not batch.excluded.any()
