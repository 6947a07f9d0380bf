"""Fitted exits in closed form, against numpy's own least squares."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse

from m2dr.maps.exits import DEFAULT_RIDGE, RIDGES, FittedHead, fit_head
from m2dr.maps.words import AS_MANY, ShortTexts, read_words, solve
from m2dr.model.words import WordTable

P, V, W = 6, 5, 4
Floats = NDArray[np.float32]
NONE = np.zeros(40, bool)


def fit_words(
    texts: list[str],
    vectors: Floats,
    tokens: int,
    language: str = "",
    beside: Sequence[ShortTexts] = (),
) -> WordTable:
    return read_words(texts, len(vectors), tokens, language).fit(vectors, beside)


def inputs(count: int = 40, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """States, words and targets of texts."""
    draw = np.random.default_rng(seed)
    states, words = draw.normal(1, 1, (count, P)) * 7, draw.normal(size=(count, V))
    mapping = np.random.default_rng(99).normal(size=(P, W))
    targets = states @ mapping + draw.normal(size=(count, W)) * 9
    return tuple(each.astype(np.float32) for each in (states, words, targets))


def referee(
    states: Floats, words: Floats, targets: Floats, ridge: float, scale: float
) -> NDArray[np.float64]:
    """The minimiser [P + V + 1, W] by an augmented system and numpy's lstsq, for unscaled inputs."""
    x = np.concatenate([states * scale, words, np.ones((len(words), 1))], axis=1, dtype=np.float64)
    penalty = ridge * np.mean(np.sum(x**2, axis=0))
    rows = np.concatenate([x, np.sqrt(penalty) * np.eye(x.shape[1])])
    wanted = np.concatenate([targets, np.zeros((x.shape[1], W))])
    found: NDArray[np.float64] = np.linalg.lstsq(rows, wanted, rcond=None)[0]
    found[: states.shape[1]] *= scale
    return found


def stacked(head: FittedHead) -> Floats:
    return np.concatenate([head.weight, head.beside, head.bias[None]])


@pytest.mark.parametrize(("dims", "more"), [(P, V), (P, 0), (0, V)])
def test_a_head_is_the_least_squares_of_numpy(dims: int, more: int) -> None:
    states, words, targets = inputs()
    states, words = states[:, :dims], words[:, :more]

    head = fit_head(states, words, targets, NONE)

    assert (head.ridge, head.cosine) == (DEFAULT_RIDGE, None)
    assert (head.weight.shape, head.beside.shape) == ((dims, W), (more, W))
    scale = 1 / np.linalg.norm(states, axis=1).mean() if dims else 1
    wanted = referee(states, words, targets, DEFAULT_RIDGE, scale)
    np.testing.assert_allclose(stacked(head), wanted, atol=1e-4)


def test_the_ridge_is_the_one_that_is_best_on_texts_held_out() -> None:
    states, words, targets = inputs()
    held_out, scale = np.arange(40) >= 12, 1 / np.linalg.norm(states, axis=1).mean()
    read = np.concatenate([states, words, np.ones((40, 1))], axis=1)[held_out]

    def cosine(ridge: float) -> float:
        vectors = read @ referee(states[:12], words[:12], targets[:12], ridge, scale)
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(targets[held_out], axis=1)
        return float(((vectors * targets[held_out]).sum(1) / lengths).mean())

    head = fit_head(states, words, targets, held_out)

    assert head.ridge == max(RIDGES, key=cosine)
    assert head.cosine == pytest.approx(cosine(head.ridge), abs=1e-6)


def test_values_that_are_not_finite_are_refused() -> None:
    states, words, targets = inputs()
    for broken in (states, targets):
        value, broken[3, 2] = broken[3, 2], np.nan
        with pytest.raises(ValueError, match="is not finite"):
            fit_head(states, words, targets, NONE)
        broken[3, 2] = value


# Words: the referee is numpy's solver in float64


TEXTS = ["open the file", "close the file", "a list of numbers", "parse a number", "the path"]
VECTORS = np.random.default_rng(5).normal(1, 1, (5, 70)).astype(np.float32)  # two blocks of dims
SHAPES = {"count": st.integers(2, 9), "words": st.integers(1, 12), "seed": st.integers(0, 99)}
Doubles = NDArray[np.float64]


def problem(count: int, words: int, seed: int) -> tuple[Doubles, Doubles]:
    """Rows of A [N, F] of length one, of which some are empty, and centred vectors [N, W]."""
    draw = np.random.default_rng(seed)
    shares = draw.random((count, words)) * (draw.random((count, words)) < 0.4)
    shares /= np.maximum(np.linalg.norm(shares, axis=1, keepdims=True), 1e-12)
    vectors = draw.normal(size=(count, 3))
    return shares, vectors - vectors.mean(axis=0)


@given(ridge=st.floats(0.1, 4), **SHAPES)
def test_the_normal_equations_hold_and_the_dual_agrees(
    ridge: float, count: int, words: int, seed: int
) -> None:
    shares, centred = problem(count, words, seed)
    primal = np.linalg.solve(shares.T @ shares + ridge * np.eye(words), shares.T @ centred)
    dual = shares.T @ np.linalg.solve(shares @ shares.T + ridge * np.eye(count), centred)

    rows, seven = sparse.csr_matrix(shares, dtype=np.float32), np.full(3, 7, np.float32)
    table = solve(rows, centred + 7, ridge, centre=seven, steps=40)

    np.testing.assert_allclose(dual, primal, atol=1e-10)
    np.testing.assert_allclose(table, primal, atol=1e-4)


def shares_of(texts: list[list[str]]) -> Doubles:
    """A [N, F] of texts as stems, by the formula of `WordRows.fit`."""
    names = list(dict.fromkeys(stem for text in texts for stem in text))
    counts = np.array([[text.count(name) for name in names] for text in texts], np.float64)
    rows = np.sqrt(counts) * np.log(1 + len(texts) / (counts > 0).sum(axis=0)) ** 1.5
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_a_table_is_the_ridge_of_weighted_words() -> None:
    texts = ["open file file", "close file", "list number", "path"]
    rows, vectors = shares_of([text.split() for text in texts]), VECTORS[:4].astype(np.float64)
    gram = rows.T @ rows + 0.5 * np.eye(rows.shape[1])

    fitted = fit_words(texts, VECTORS[:4], 64, "none")

    assert list(fitted.rows) == ["open", "file", "close", "list", "number", "path"]
    expected = np.linalg.solve(gram, rows.T @ (vectors - vectors.mean(axis=0)))
    np.testing.assert_allclose(fitted.table, expected, atol=1e-5)


@pytest.mark.parametrize(("weight", "each"), [(0.4, 0.8), (9.0, 3.0), (0.0, 0.0)])
def test_short_texts_are_rows_of_the_same_ridge_by_their_weight(weight: float, each: float) -> None:
    texts, short = ["open file file", "close file", "list number", "path"], ["file path", "number"]
    given = np.random.default_rng(3).normal(size=(7, 70)).astype(np.float32)
    every, vectors = shares_of([text.split() for text in texts]), given.astype(np.float64)
    idf = np.log(1 + 4 / (every > 0).sum(axis=0)) ** 1.5
    rows = np.zeros((2, every.shape[1]))
    rows[0, [1, 5]], rows[1, 4] = idf[[1, 5]] / np.linalg.norm(idf[[1, 5]]), 1.0
    left = vectors - vectors[:4].mean(axis=0)
    left[4:] -= left[4:].sum(axis=0) / (3 + AS_MANY)  # the third says no known word
    gram = every.T @ every + each * rows.T @ rows + 0.5 * np.eye(every.shape[1])

    beside = ShortTexts([*short, "unheard"], given[4:], weight * 3 / 2)
    fitted = fit_words(texts, given[:4], 64, "none", beside=[beside])

    expected = np.linalg.solve(gram, every.T @ left[:4] + each * rows.T @ left[4:6])
    np.testing.assert_allclose(fitted.table, expected, atol=1e-5)
    if weight:
        assert fitted.alone is not None
        alone = fit_words(texts, given[:4], 64, "none").table
        np.testing.assert_array_equal(fitted.alone, alone)


@pytest.mark.parametrize("texts", [[], ["", "?"]])
def test_texts_that_tell_nothing_apart_give_zeros(texts: list[str]) -> None:
    fitted = fit_words(texts, VECTORS[: len(texts)], 64)

    assert fitted.table.shape == (len(fitted.rows), VECTORS.shape[1])
    assert not fitted.table.any()


def test_only_the_beginning_of_a_text_is_read() -> None:
    texts = [text + " end" * 30 for text in TEXTS]

    cut: WordTable = fit_words(texts, VECTORS, 2)  # tokens, for each of which there are 1.5 words

    assert cut.limit == 3
    assert list(cut.rows) == ["open", "the", "file", "close", "a", "list", "of", "pars", "number",
                              "path", "end"]  # fmt: skip


def test_the_most_frequent_words_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("m2dr.maps.words.MOST_WORDS", 4)

    fitted = fit_words(TEXTS, VECTORS, 64)

    assert list(fitted.rows) == ["the", "file", "a", "number"]
    assert fitted.table.shape == (4, 70)


def test_the_stemmer_is_of_the_language_of_the_texts() -> None:
    texts = ["Die Häuser der Straße und das Haus", "Das ist nicht die Straße"]

    assert fit_words(texts, VECTORS[:2], 64).language == "german"
    assert "haus" in fit_words(texts, VECTORS[:2], 64).rows
    assert fit_words(texts, VECTORS[:2], 64, "none").language == "none"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_refused(value: float) -> None:
    vectors = VECTORS.copy()
    vectors[3, 66] = value

    with pytest.raises(ValueError, match="a vector is not finite"):
        fit_words(TEXTS, vectors, 64)
    with pytest.raises(ValueError, match="there are 5 texts and 4 vectors"):
        fit_words(TEXTS, VECTORS[:4], 64)
