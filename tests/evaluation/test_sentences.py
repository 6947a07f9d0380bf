from math import fsum, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2dr.core.errors import UserError
from m2dr.evaluation.sentence_tasks import (
    CLASS_MEASURES,
    correlations,
    learn,
    pearson,
    prefix_products,
    sample_per_label,
    separation,
    spearman,
)

stats = pytest.importorskip("scipy.stats")

# Few different values, so that most samples have ties, and of every size from tiny to large.
SCORES = st.one_of(
    st.integers(-3, 3).map(float), st.floats(-5, 5, allow_subnormal=False), st.just(1e-160)
)
SAMPLES = st.lists(st.tuples(SCORES, SCORES), min_size=3, max_size=40).map(
    lambda rows: np.array(rows).T
)


def vectors(rows: int = 7, width: int = 12, seed: int = 13) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


@given(dims=st.sets(st.integers(1, 12), min_size=1).map(sorted), seed=st.integers(0, 99))
def test_each_prefix_is_cut_first_and_normalised_after(dims: list[int], seed: int) -> None:
    some = vectors(seed=seed)
    first, second = np.random.default_rng(seed).integers(0, len(some), size=(2, 9))

    dots, cosines = prefix_products(some, first, second, dims)

    for row, dim in enumerate(dims):
        for place, (i, j) in enumerate(zip(first, second, strict=True)):
            left, right = (list(map(float, some[k, :dim])) for k in (i, j))
            dot = fsum(a * b for a, b in zip(left, right, strict=True))
            norms = sqrt(fsum(a * a for a in left)) * sqrt(fsum(b * b for b in right))
            assert dots[row][place] == pytest.approx(dot, abs=1e-12)
            assert cosines[row][place] == pytest.approx(dot / norms, abs=1e-12)


@given(seed=st.integers(0, 999), dim=st.integers(1, 384))
def test_equal_sentences_are_a_tie_at_exactly_one(seed: int, dim: int) -> None:
    some = vectors(20, 384, seed)
    rows = np.arange(20)

    assert (prefix_products(some, rows, rows, [dim])[1] == 1.0).all()


def test_a_vector_without_length_is_like_nothing() -> None:
    some = vectors()
    some[3, :4] = 0

    found = prefix_products(some, np.array([3, 3]), np.array([3, 5]), [4, 12])[1]

    assert found[0].tolist() == [0.0, 0.0]
    assert (found[1] != 0).all()


@given(sample=SAMPLES)
def test_spearman_is_that_of_scipy(sample: np.ndarray) -> None:
    x, y = sample
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert spearman(x, y) == 0.0
        return

    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-10)


@pytest.mark.parametrize("seed", range(20))
def test_pearson_is_that_of_scipy(seed: int) -> None:
    x, y = np.random.default_rng(seed).normal(size=(2, 50))
    y = np.round(y + x, 1)

    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-10)


def test_a_prefix_to_which_all_pairs_are_alike_correlates_with_no_score() -> None:
    some = np.abs(vectors())  # of one dim that is positive every cosine is 1
    first, second = np.array([0, 1, 2]), np.array([4, 5, 6])

    found = correlations(some, first, second, np.array([0.1, 0.9, 0.4]), [1])

    assert found == {1: {"Spearman": 0.0, "Pearson": 0.0}}


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_vector_that_is_not_made_of_numbers_is_refused(odd: float) -> None:
    some = vectors()
    some[[2, 5], 7] = odd

    with pytest.raises(UserError, match="2 of 7 vectors hold values that are not numbers"):
        correlations(some, np.array([0, 1]), np.array([1, 3]), np.array([0.0, 1.0]), [4])


# Pairs of two classes


# Few distinct values, so that ties are common; both classes always present.
pairs = st.lists(
    st.tuples(st.sampled_from([-1.0, -0.25, 0.0, 0.5, 0.5000001, 2.0]), st.booleans()),
    min_size=2,
    max_size=12,
).filter(lambda found: len({alike for _, alike in found}) == 2)


def naive(found: list[tuple[float, bool]]) -> dict[str, float]:
    """Every threshold by hand: at each value, and above all of them."""
    total = sum(alike for _, alike in found)
    accuracy = f1 = precision_sum = recall_before = 0.0
    for threshold in [np.inf, *sorted({value for value, _ in found}, reverse=True)]:
        taken = [alike for value, alike in found if value >= threshold]
        hits = sum(taken)
        right = hits + sum(not alike for value, alike in found if value < threshold)
        accuracy = max(accuracy, right / len(found))
        if hits:
            precision, recall = hits / len(taken), hits / total
            f1 = max(f1, 2 * precision * recall / (precision + recall))
            precision_sum += precision * (recall - recall_before)
            recall_before = recall
    return {"AP": precision_sum, "Accuracy": accuracy, "F1": f1}


@given(found=pairs)
def test_every_threshold_is_tried_and_none_parts_a_tie(found: list[tuple[float, bool]]) -> None:
    similarity, alike = (np.array(column) for column in zip(*found, strict=True))

    assert separation(similarity, alike) == pytest.approx(naive(found))


# Classification


pytest.importorskip("sklearn")


def world(seed: int = 13) -> tuple[np.ndarray, np.ndarray]:
    """Three clouds of points, and which cloud each is of."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, size=60)
    return (generator.normal(size=(60, 5)) + labels[:, None]).astype(np.float32), labels


def test_draws_are_those_of_mteb() -> None:
    tasks = pytest.importorskip("mteb.mocks.mock_tasks.classification")
    from datasets import Dataset

    labels = np.random.default_rng(3).choice(list("abcd"), size=50, p=[0.5, 0.3, 0.15, 0.05])
    task = tasks.MockClassificationTask()
    task.seed, task.samples_per_label = 42, 4
    rows = Dataset.from_dict({"text": list(labels), "label": list(labels)})
    places, expected = None, []
    for number in range(3):
        _, places, draw = task._undersample_data(rows, number, places)
        expected.append(list(draw))

    found = sample_per_label(list(labels), samples=4, experiments=3, seed=42)

    assert [draw.tolist() for draw in found] == expected


def test_measures_are_means_over_the_experiments() -> None:
    from sklearn.linear_model import LogisticRegression

    vectors, labels = world()
    test, test_labels = world(14)
    draws = sample_per_label([str(label) for label in labels], 4, 3, seed=5)

    found, _ = learn(vectors, labels, draws, test, test_labels, 100, 5)

    accuracies, f1s = [], []
    for draw in draws:
        guess = LogisticRegression(max_iter=100).fit(vectors[draw], labels[draw]).predict(test)
        accuracies.append(np.mean(guess == test_labels))
        by_class = []
        for label in range(3):
            hits = np.sum((guess == label) & (test_labels == label))
            by_class.append(2 * hits / (np.sum(guess == label) + np.sum(test_labels == label)))
        f1s.append(np.mean(by_class))
    assert tuple(found) == CLASS_MEASURES
    assert found["Accuracy"] == pytest.approx(np.mean(accuracies))
    assert found["F1"] == pytest.approx(np.mean(f1s))
