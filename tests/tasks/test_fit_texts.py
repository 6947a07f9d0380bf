"""The snippets that a fit reads, chosen for their tokens."""

from collections import Counter
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import WORDS

from m2dr.core.records import Side
from m2dr.data.tokens import Ragged
from m2dr.model import checkpoint
from m2dr.tasks import fit_texts
from m2dr.tasks.fit_texts import read_features, read_texts, widest

ROWS = st.lists(st.lists(st.integers(0, 30), max_size=6), max_size=24)


@given(ROWS, st.integers(1, 5))
def test_a_chosen_row_is_worth_most_by_the_formula(rows: list[list[int]], among: int) -> None:
    rows = rows[: len(rows) // among * among]

    chosen = widest(rows, among)

    counts: Counter[int] = Counter()
    assert [place // among for place in chosen] == list(range(len(rows) // among))
    for place in chosen:
        first = place // among * among
        worth = [
            sum(1 / sqrt(1 + counts[token]) for token in set(row)) / sqrt(max(len(set(row)), 1))
            for row in rows[first : first + among]
        ]
        assert worth[place - first] == pytest.approx(max(worth))
        counts.update(set(rows[place]))


def test_snippets_of_a_fit_have_more_rare_tokens(
    tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, tokenizer = checkpoint.load(tiny_backbone)
    draw, shares = np.random.default_rng(13), 1 / np.arange(1, len(WORDS) + 1) ** 2
    texts: list[tuple[Side, str]] = [
        ("document", " ".join(draw.choice(WORDS, 60, p=shares / shares.sum()))) for _ in range(20)
    ]
    features = read_features(encoder, tokenizer, np.ones(len(encoder.words), np.int64), 0)
    read: list[Ragged] = []
    sample = fit_texts.read_sample
    monkeypatch.setattr(
        fit_texts, "read_sample", lambda *given: read.append(given[2]) or sample(*given)
    )
    rare = [tokenizer([word], 8)[0][1] for word in WORDS[5:]]
    found = []
    for among in (4, 1):
        monkeypatch.setattr(fit_texts, "AMONG", among)
        both, of = read_texts(encoder, tokenizer, features, texts, 64, np.random.default_rng(5))
        assert of.tolist() == [place for place in range(20) for _ in range(2)]
        assert len(both) == len(texts) + len(of)
        found.append(int(np.isin(read[-1].tokens, rare).sum()))
    assert found[0] > 1.5 * found[1]
