import numpy as np
import pytest

from m2dr.evaluation.sentence_tasks import (
    CLASS_MEASURES,
    learn,
    sample_per_label,
)

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

    found = learn(vectors, labels, draws, test, test_labels, 100, 5)

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
