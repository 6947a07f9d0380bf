"""Checks of a grid and of its rankings; each that fails gives a sentence that says why."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from statistics import median

from m2dr.core.errors import counted
from m2dr.core.records import Cut, ModelCard
from m2dr.evaluate.grid import Grid, format_score
from m2dr.evaluate.measures import parse

STEPS = 3  # a cell may deviate from its neighbours by this many median steps between cells
LEAST = 0.02  # share of the best cell that any cell may deviate by
NAMED = 3  # outliers named per measure


def grid_checks(grid: Grid) -> list[str]:
    """Return a sentence for each outlier of each measure, see `outliers`; of many the first."""
    checks = []
    for measure in grid.measures:
        values = grid.values(measure)
        words = outliers(values, grid.queries)
        checks += [
            f"{measure} of {cut} is {format_score(values[cut])}, far {words[cut]}: measure that "
            "cut again, and look for a fault in its training or its vectors."
            for cut in sorted(words)[:NAMED]
        ]
    return checks


def outliers(values: Mapping[Cut, float], queries: int) -> dict[Cut, str]:
    """Return the cells that deviate from their neighbours, and how.

    Along its row (dims of a layer) and its column (layers of a dim) a cell is compared with the
    nearest cut on either side; it is an outlier when it is below both or above both. The first and
    last of a line are compared with the two nearest: the largest must not be below both, nor the
    smallest above both. The deviation must exceed the largest of: STEPS times the median difference
    between neighbours in that direction; LEAST of the best cell; and 0.5 / sqrt(queries), the
    largest standard error of a mean of values from 0 to 1.

    Layer 0 is compared within its row alone: its token table is not part of what layer 1 computes,
    and may be better or worse.

    Args:
        values: cut -> mean of one measure.
        queries: number of queries that the means are over.

    Returns:
        Cut -> words such as "below the neighbours of its layer".
    """
    floor = max(LEAST * max(map(abs, values.values())), 0.5 / sqrt(max(1, queries)))
    words: dict[Cut, str] = {}
    for name, by_layer in (("layer", True), ("dim", False)):
        lines = _lines(values, by_layer)
        steps = [abs(values[a] - values[b]) for line in lines for a, b in pairwise(line)]
        allowed = max(floor, STEPS * median(steps or [0.0]))
        for line in lines:
            heights = [values[cut] for cut in line]
            for place, cut in enumerate(line):
                deviation = _deviation(heights, place, allowed)
                if deviation:
                    words.setdefault(cut, f"{deviation} of its {name}")
    return words


def depth_checks(names: Sequence[str], depth: int, documents: int) -> list[str]:
    """Return a sentence for each measure whose cutoff is deeper than the rankings.

    Args:
        names: of the measures.
        depth: number of documents of a ranking.
        documents: number of documents of the corpus.
    """
    cutoffs = {str(one): one.params.get("cutoff") for one in parse(names)}
    short = [name for name, cutoff in cutoffs.items() if cutoff and cutoff > depth]
    why = (
        f"the corpus has no more than {documents}, so recall that deep says nothing"
        if documents <= depth + 1
        else "what lies deeper counts as not found"
    )
    return [
        f"{name} looks deeper than the {counted(depth, 'documents')} of a ranking: {why}."
        for name in short
    ]


def query_checks(
    queries: int, unanswered: int = 0, unanswerable: int = 0, unknown_documents: int = 0
) -> list[str]:
    """Return a sentence for each thing that the queries and judgements of a split lack.

    Args:
        queries: number of judged queries.
        unanswered: number of them without a ranking.
        unanswerable: number of them without a relevant document.
        unknown_documents: number of judgements of documents that the corpus does not hold.
    """
    found = []
    if unanswered:
        found.append(
            f"{unanswered} of {counted(queries, 'judged queries')} without a text or a ranking, "
            "counted as 0: the judgements and the queries may be of different versions."
        )
    if unanswerable:
        found.append(
            f"{unanswerable} of {counted(queries, 'queries')} without a relevant document among "
            f"the judgements, counted as 0, as in trec_eval; no model can reach 1."
        )
    if unknown_documents:
        found.append(
            "The corpus does not hold the documents of "
            f"{counted(unknown_documents, 'judgements')}, "
            f"which count as never found, as in trec_eval; published sets have a few, and many "
            f"mean that the corpus is a sample or of another version."
        )
    return found


def ranking_checks(tied: Mapping[Cut, int], empty: Mapping[Cut, int], queries: int) -> list[str]:
    """Return a sentence each for rankings of one score and for empty rankings.

    Args:
        tied: cut -> number of queries whose documents all have the same score.
        empty: cut -> number of queries that found nothing.
        queries: number of queries that were ranked.
    """
    found = []
    for cuts, what, why in (
        (
            tied,
            "give one score to all documents of a ranking",
            "they are ordered by id alone; vectors of zeros have this effect",
        ),
        (empty, "find no document", "the corpus may be empty"),
    ):
        some = [cut for cut in sorted(cuts) if cuts[cut]]
        if some:
            worst = max(some, key=lambda cut: cuts[cut])
            found.append(
                f"{cuts[worst]} of {queries} queries {what} at {worst}"
                f"{_more(len(some) - 1, 'cut')}: {why}."
            )
    return found


def model_checks(
    card: ModelCard, cuts: Iterable[Cut], differences: Mapping[str, tuple[object, object]]
) -> list[str]:
    """Return a sentence for each way in which a model is used unlike it was trained.

    Args:
        card: of the model.
        cuts: the cuts that were measured.
        differences: field -> (its value in the documents' label, its value in the card).
    """
    found = [
        f"The documents were encoded with {name} {theirs!r} and the model's m2dr.json says "
        f"{mine!r}: scores are not those of the trained model."
        for name, (theirs, mine) in differences.items()
    ]
    measured = sorted(set(cuts))
    untrained = [cut for cut in measured if cut not in card.cuts]
    if untrained and card.variant == "untrained":
        found.append(
            f"{card.backbone} is measured without training, so no cut of it was trained: "
            f"{len(untrained)} of {len(measured)} cuts may be near random."
        )
    elif untrained:
        trained = [str(cut) for cut in measured if cut in card.cuts]
        found.append(
            f"{len(untrained)} of {len(measured)} cuts were not trained and may be near random; "
            f"trained are {', '.join(trained) or 'none of those measured'}."
        )
    return found


def _lines(values: Mapping[Cut, float], by_layer: bool) -> list[list[Cut]]:
    """Group cuts by layer, or by dim, where those of layer 0 make lines of their own."""
    lines: dict[tuple[int, bool], list[Cut]] = {}
    for cut in sorted(values):
        line = (cut.layer, False) if by_layer else (cut.dim, cut.layer == 0)
        lines.setdefault(line, []).append(cut)
    return list(lines.values())


def _deviation(line: Sequence[float], place: int, allowed: float) -> str:
    """Say how a cell deviates from its neighbours in a line that should grow; empty: not at all."""
    value, smaller, larger = line[place], line[:place], line[place + 1 :]
    if smaller and larger:
        near = (smaller[-1], larger[0])
        sides = (value < min(near) - allowed, value > max(near) + allowed)
    else:
        sides = (
            len(smaller) > 1 and value < min(smaller[-2:]) - allowed,
            len(larger) > 1 and value > max(larger[:2]) + allowed,
        )
    return "below the neighbours" * sides[0] or "above the neighbours" * sides[1]


def _more(count: int, unit: str) -> str:
    return f" (and at {counted(count, f'more {unit}s')})" if count > 0 else ""
