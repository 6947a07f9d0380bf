"""Frozen vectors and a logistic regression: what a linear classifier finds. scikit-learn's door."""

# Shapes in this file:
#   N texts to learn from, M to be tested on, D coordinates.

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError, install

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

MEASURES = ("Accuracy", "F1")  # F1 is the macro one: the plain mean over the classes


@dataclass(frozen=True)
class Regression:
    """How each classifier is fitted: by L-BFGS with an L2 penalty of C = 1, as MTEB has it."""

    iterations: int = 100  # at most; MTEB's choice
    seed: int = 42


@dataclass(frozen=True)
class Learnt:
    """What the classifiers of one cut reach."""

    measures: dict[str, float]  # name of MEASURES -> the mean over the experiments
    stopped: int  # fits that reached their last iteration before they converged


def require_scikit_learn() -> None:
    """Raise UserError where scikit-learn is absent, before any text is encoded for it."""
    try:
        import sklearn.linear_model  # noqa: F401  # asked for, not used here
    except ImportError:
        raise UserError(
            "Classification needs scikit-learn, which is not installed. "
            f"Install it with: {install('tasks')}"
        ) from None


def few_of_each(labels: Sequence[str], samples: int, experiments: int, seed: int) -> list[Ints]:
    """Row numbers of a few texts per label for each experiment, as MTEB draws them.

    MTEB seeds its generator anew for each experiment but shuffles what the one before has shuffled,
    and takes the first few of each label; so a draw depends on the order of the rows.

    Args:
        labels: N of them.
        samples: rows of each label; all of a label that has fewer.
        experiments: how many draws.
        seed: of the generator.
    """
    rows = list(range(len(labels)))
    draws = []
    for _ in range(experiments):
        # The old generator, because its sequence is part of MTEB's protocol.
        np.random.RandomState(seed).shuffle(rows)
        counts: dict[str, int] = {}
        draw = []
        for row in rows:
            if counts.setdefault(labels[row], 0) < samples:
                counts[labels[row]] += 1
                draw.append(row)
        draws.append(np.array(draw, dtype=np.int64))
    return draws


def learn(
    train: Floats,
    train_labels: Ints,
    draws: Iterable[Ints],
    test: Floats,
    test_labels: Ints,
    how: Regression,
) -> Learnt:
    """Fit a classifier per draw and test each on all test texts.

    Args:
        train: [N, D].
        train_labels: [N].
        draws: rows of `train` to fit, for each experiment.
        test: [M, D].
        test_labels: [M].
        how: settings of each fit.
    """
    from sklearn.metrics import accuracy_score, f1_score

    accuracies, f1s, stopped = [], [], 0
    for draw in draws:
        classifier, converged = _fitted(train[draw], train_labels[draw], how)
        found = classifier.predict(test)
        accuracies.append(float(accuracy_score(test_labels, found)))
        f1s.append(float(f1_score(test_labels, found, average="macro")))
        stopped += not converged
    means = (fsum(values) / len(values) for values in (accuracies, f1s))
    return Learnt(dict(zip(MEASURES, means, strict=True)), stopped)


def _fitted(vectors: Floats, labels: Ints, how: Regression) -> tuple[Any, bool]:
    """A classifier, and whether its fit converged."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    classifier = LogisticRegression(max_iter=how.iterations, random_state=how.seed)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ConvergenceWarning)
        classifier.fit(vectors, labels)
    return classifier, not any(issubclass(one.category, ConvergenceWarning) for one in told)
