"""Standard errors of a difference of two cells, over the queries, pairs or texts measured on."""

# Shapes in this file:
#   C cuts of a cell, P pairs, Q queries.

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from claims import Kind
from measuring import Measured, meant

from m2dr.core.records import Cut
from m2dr.evaluation.grid import read_query_scores
from m2dr.evaluation.sentence_tasks import CORRELATIONS, separation

DRAWS, SEED = 100, 13  # of the bootstrap
Array = np.ndarray[Any, Any]
Cells = tuple[Measured, str]  # a model, and the word of a cell


def error_of_difference(above: Cells, below: Cells, measure: str, on: str = "") -> float | None:
    """Standard error of the difference of two cells; paired, and places count alike.

    Of retrieval over the queries, of pairs of sentences by a bootstrap over the pairs, of
    classification that of two shares of independent texts, which is more than the true one.
    """
    names = above[0].on(on)
    squares = [SQUARES[above[0].kind](above, below, measure, name) for name in names]
    known = [square for square in squares if square is not None]
    return math.sqrt(sum(known)) / len(known) if known else None


def scores_of_queries(found: Measured, word: str, measure: str, name: str) -> Array:
    """What a cell of a search is worth on each query, [Q]."""
    scores = read_query_scores(Path(found.details[name]))[measure]
    cuts = meant(word, found.values[name])
    rows: Array = np.mean([scores.at(Cut.parse(cut)) for cut in cuts], axis=0)
    return rows


def _queries(above: Cells, below: Cells, measure: str, name: str) -> float | None:
    rows = [scores_of_queries(found, word, measure, name) for found, word in (above, below)]
    apart = rows[0] - rows[1]  # [Q]
    return float(np.var(apart, ddof=1)) / len(apart) if len(apart) > 1 else None


def _pairs(above: Cells, below: Cells, measure: str, name: str) -> float | None:
    sides = [_cosines(found, word, name) for found, word in (above, below)]  # gold, [C, P]
    gold = sides[0][0]
    if len(gold) < 2:
        return None
    quality = _quality(above[0].kind, measure)
    generator = np.random.default_rng(SEED)
    found = []
    for _ in range(DRAWS):
        drawn = generator.integers(0, len(gold), len(gold))
        means = [
            np.mean([quality(row, gold[drawn]) for row in rows[:, drawn]]) for _, rows in sides
        ]
        found.append(means[0] - means[1])
    return float(np.var(found, ddof=1))


def _quality(kind: Kind, measure: str) -> Callable[[Array, Array], float]:
    if kind == "sts":
        return CORRELATIONS[measure]
    word = measure.removeprefix("cosine-")

    def of(row: Array, alike: Array) -> float:
        return separation(row, alike)[word] if 0 < alike.sum() < len(alike) else 0.0

    return of


def _cosines(found: Measured, word: str, name: str) -> tuple[Array, Array]:
    """What people said of each pair, [P], and the cosines of the cuts of a cell, [C, P]."""
    with np.load(found.details[name]) as held:
        gold, cosines = held["gold"], held["cosines"].astype(np.float64)
        layers, dims = held["layers"].tolist(), held["dims"].tolist()
    cuts = [Cut.parse(cut) for cut in meant(word, found.values[name])]
    return gold, np.stack([cosines[layers.index(c.layer), dims.index(c.dim)] for c in cuts])


def _shares(above: Cells, below: Cells, measure: str, name: str) -> float | None:
    texts = int(above[0].details[name])
    shares = [found.value(word, measure, name) for found, word in (above, below)]
    return sum(share * (1 - share) for share in shares) / texts


SQUARES: dict[Kind, Callable[[Cells, Cells, str, str], float | None]] = {
    "retrieval": _queries,
    "sts": _pairs,
    "pairs": _pairs,
    "classification": _shares,
}
