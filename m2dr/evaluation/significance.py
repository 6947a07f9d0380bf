"""Significance of differences between systems on the same queries: paired tests and intervals."""

# Shapes in this file:
#   C cells compared, Q queries, B random resamples.

from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from m2dr.core.arrays import Float64

SEED = 13
RESAMPLES = 10_000  # at least; more where a correction over many cells needs smaller p-values
TIE = 1e-9  # scores that differ by no more count as equal
_AT_ONCE = 2**22  # entries of a block of resamples, 32 MB as float64
_INTERVAL = (0.025, 0.975)
BETTER, WORSE, SAME = "▲", "▼", "="


@dataclass(frozen=True)
class Paired:
    """The statistics of one cell against its baseline, over the differences of all queries."""

    difference: float  # mean over the queries; above 0 when the cell is better
    low: float  # end of the 95 % bootstrap interval of that mean
    high: float
    effect: float | None  # Cohen's d of the differences; None where all are the same and not 0
    t_p: float  # of the paired t-test, two-sided
    t_corrected: float  # the same after Holm's correction over all cells
    p: float  # of the paired randomisation test, two-sided
    corrected: float  # the same after Holm's correction; the one that marks a cell
    wins: int  # queries that the cell answers better
    ties: int
    losses: int

    def mark(self, alpha: float) -> str:
        """Return the mark of the cell: better, worse, or not significantly different."""
        if self.corrected > alpha:
            return SAME
        return BETTER if self.difference > 0 else WORSE


def paired(
    scores: ArrayLike,
    baseline: ArrayLike,
    alpha: float = 0.05,
    seed: int = SEED,
    resamples: int | None = None,
) -> tuple[Paired, ...]:
    """Compare each cell with its baseline over the same queries.

    After Smucker, Allan and Carterette 2007, who find that randomisation and t-test agree and that
    Wilcoxon's and the sign test mislead.

    Args:
        scores: [C, Q], a row per cell.
        baseline: [C, Q], or [Q] when all cells have the same.
        alpha: significance level of the marks; a smaller one takes more resamples.
        seed: of the random signs and of the bootstrap.
        resamples: of both; None: 10,000, or as many as the smallest corrected p needs.

    Returns:
        One result per cell, corrected over all C of them.
    """
    differences = _differences(np.asarray(scores, float), np.asarray(baseline, float))
    cells, queries = differences.shape
    # The smallest p that B random signs can give is 1 / (B + 1), and Holm takes it C times.
    count = resamples or max(RESAMPLES, int(np.ceil(10 * cells / alpha)))
    low, high = bootstrap_interval(differences, seed, min(count, RESAMPLES))
    t_p, p = t_test(differences), randomisation_test(differences, count, seed)
    # Each [C]. A new statistic is a row here and a field of Paired; the files show it as it is.
    statistics = {
        "difference": differences.mean(axis=1),
        "low": low,
        "high": high,
        "effect": effect_size(differences),
        "t_p": t_p,
        "t_corrected": holm(t_p),
        "p": p,
        "corrected": holm(p),
        "wins": (differences > 0).sum(axis=1),
        "ties": (differences == 0).sum(axis=1),
        "losses": (differences < 0).sum(axis=1),
    }
    rows: list[dict[str, Any]] = [
        {name: column[i].item() for name, column in statistics.items()} for i in range(cells)
    ]
    return tuple(
        Paired(**(row | {"effect": None if isnan(row["effect"]) else row["effect"]}))
        for row in rows
    )


def t_test(differences: Float64) -> Float64:
    """Return the two-sided p of the paired t-test for each row of [C, Q].

    Where the test is undefined, p is 1 when all differences are 0 or there is one query, and 0,
    its limit, when all are the same and not 0.
    """
    from scipy import stats

    spread = _spread(differences)
    p = np.where((spread == 0) & (differences[:, 0] != 0) & (differences.shape[1] > 1), 0.0, 1.0)
    sound = spread > 0
    if sound.any():
        some = differences[sound]
        p[sound] = stats.ttest_rel(some, np.zeros_like(some), axis=1).pvalue
    return p


def randomisation_test(
    differences: Float64, resamples: int = RESAMPLES, seed: int = SEED
) -> Float64:
    """Return the two-sided p of the paired randomisation test for each row of [C, Q].

    It is the share of sign flips whose mean is at least as far from 0. The test is exact when all
    2^Q sign patterns are no more than `resamples`; otherwise so many are drawn, and the observed
    one counts among them, so that no p is 0 (Phipson and Smyth 2010). It is not left to scipy's
    `permutation_test`, which takes 37 times as long for 10,000 resamples of 42 cells and 300
    queries, because here all cells share the signs of a resample and one product sums them.
    """
    cells, queries = differences.shape
    observed = np.abs(differences.sum(axis=1))
    # The order of summation changes the last digits; equal sums must count as equal.
    reached = observed - 1e-12 * np.abs(differences).sum(axis=1)
    exact = 2**queries <= resamples
    generator = np.random.default_rng(seed)
    extreme = np.zeros(cells, np.int64)
    for start, stop in _blocks(2**queries if exact else resamples, queries, cells):
        if exact:
            bits = np.arange(start, stop)[:, None] >> np.arange(queries) & 1
        else:
            bits = generator.integers(0, 2, size=(stop - start, queries), dtype=np.int8)
        signs = 1.0 - 2.0 * bits.astype(np.float64)
        extreme += (np.abs(signs @ differences.T) >= reached).sum(axis=0)
    p: Float64 = extreme / 2**queries if exact else (extreme + 1) / (resamples + 1)
    return p


def holm(p: ArrayLike) -> Float64:
    """Return p-values [C] corrected for C comparisons, after Holm 1979.

    The smallest is multiplied by C, the next by C - 1, and so on; none falls below the one before.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    given = np.asarray(p, float)
    order = np.argsort(given, kind="stable")
    times = np.arange(len(given), 0, -1)
    corrected = np.empty_like(given)
    corrected[order] = np.minimum(np.maximum.accumulate(given[order] * times), 1)
    return corrected


def effect_size(differences: Float64) -> Float64:
    """Return Cohen's d of each row of [C, Q]: mean over standard deviation (of Q - 1).

    It is 0 when all differences are 0, and NaN when all are the same otherwise.
    """
    spread, means = _spread(differences), differences.mean(axis=1)
    undefined = np.where(differences.any(axis=1), np.nan, 0.0)
    found: Float64 = np.divide(means, spread, out=undefined, where=spread > 0)
    return found


def bootstrap_interval(
    differences: Float64, seed: int = SEED, resamples: int = RESAMPLES
) -> tuple[Float64, Float64]:
    """Return the ends of the 95 % percentile bootstrap interval of the mean of each row of [C, Q].

    Queries are drawn with replacement, the same ones for every row. scipy's `bootstrap` gives the
    same interval from the same seed, in 7 times as long for 10,000 resamples of 42 × 300.
    """
    cells, queries = differences.shape
    generator = np.random.default_rng(seed)
    means = np.empty((resamples, cells))
    for start, stop in _blocks(resamples, queries, cells):
        drawn = generator.integers(queries, size=(stop - start, queries))
        drawn += queries * np.arange(stop - start)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=(stop - start) * queries)
        means[start:stop] = counts.reshape(-1, queries) @ differences.T / queries
    low, high = np.quantile(means, _INTERVAL, axis=0)
    return low, high


def _differences(scores: Float64, baseline: Float64) -> Float64:
    """Return the differences [C, Q], with those of rounding set to 0."""
    found: Float64 = scores - baseline
    found[np.abs(found) <= TIE] = 0
    return found


def _spread(differences: Float64) -> Float64:
    """Return the standard deviation (of Q - 1) of each row; 0 where it is only rounding."""
    if differences.shape[1] < 2:
        return np.zeros(len(differences))
    found = differences.std(axis=1, ddof=1)
    return np.where(found > TIE * np.abs(differences).max(axis=1), found, 0)


def _blocks(resamples: int, queries: int, cells: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last + 1 of each block of resamples, so small that it fits in memory."""
    step = max(_AT_ONCE // max(queries, cells), 1)
    return ((start, min(start + step, resamples)) for start in range(0, resamples, step))
