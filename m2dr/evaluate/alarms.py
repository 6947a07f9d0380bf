"""What in a grid should make its reader look again: each alarm is a sentence that says why."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from statistics import median

from m2dr.errors import counted
from m2dr.evaluate.grid import Grid, shown
from m2dr.evaluate.measures import parse
from m2dr.records.card import ModelCard
from m2dr.records.cut import Cut

STEPS = 3  # usual steps between neighbours that a cell may stand out by
LEAST = 0.02  # below this share of the best cell, no cell stands out
TOLD = 3  # cells that are named of each kind; the rest are counted


def grid_alarms(grid: Grid) -> list[str]:
    """Cells that stand out from their neighbours, for each measure."""
    return [sentence for measure in grid.measures for sentence in _outliers(grid, measure)]


def outlying(values: Mapping[Cut, float], queries: int) -> dict[Cut, str]:
    """Cells that no neighbourhood explains, and how they stand out.

    Along its row (dims of a layer) and its column (layers of a dim) a cell is compared with the
    nearest cut on either side, and stands out when it is below both or above both. At an end it is
    compared with the two nearest: more of an encoder should not be worth less than either, nor
    less of it more. How far it must stand out is the largest of: STEPS times the median difference
    between neighbours in that direction; LEAST of the best cell; and half a point over the root
    of the number of queries, the largest standard error of a mean of values from 0 to 1.

    Layer 0 has neighbours in its row alone: a table of tokens is no part of what layer 1 computes,
    and may be better or worse.

    Args:
        values: cut -> mean of one measure.
        queries: how many the means are over.

    Returns:
        Cut -> words such as "below the neighbours of its layer".
    """
    floor = max(LEAST * max(map(abs, values.values())), 0.5 / sqrt(max(1, queries)))
    found: dict[Cut, str] = {}
    for name, by_layer in (("layer", True), ("dim", False)):
        lines = _lines(values, by_layer)
        steps = [abs(values[a] - values[b]) for line in lines for a, b in pairwise(line)]
        allowed = max(floor, STEPS * median(steps or [0.0]))
        for cut, words in _standing(lines, values, allowed):
            found.setdefault(cut, f"{words} of its {name}")
    return found


def depth_alarms(names: Sequence[str], depth: int, documents: int) -> list[str]:
    """Measures that look deeper than the rankings go.

    Args:
        names: measures.
        depth: documents of a ranking.
        documents: of the corpus.
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


def query_alarms(
    queries: int, unanswered: int = 0, unanswerable: int = 0, unknown_documents: int = 0
) -> list[str]:
    """What the judgements and the queries of a split lack.

    Args:
        queries: that are judged.
        unanswered: of them, without a ranking.
        unanswerable: of them, without a relevant document.
        unknown_documents: judgements of documents that the corpus does not hold.
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


def ranking_alarms(tied: Mapping[Cut, int], empty: Mapping[Cut, int], queries: int) -> list[str]:
    """Rankings that say nothing.

    Args:
        tied: cut -> queries to which all documents of the ranking are equally alike.
        empty: cut -> queries that found nothing.
        queries: that were ranked.
    """
    found = []
    for cuts, what, why in (
        (
            tied,
            "give one score to all documents of a ranking",
            "the order by id decides, as of vectors that are zero",
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


def model_alarms(
    card: ModelCard, cuts: Iterable[Cut], differences: Mapping[str, tuple[object, object]]
) -> list[str]:
    """Where a model is used otherwise than it was trained.

    Args:
        card: what was trained.
        cuts: that were measured.
        differences: fields of the documents' label that the card has otherwise, as (label, card).
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
            f"{card.backbone} is measured as it comes, and nothing trained it to be cut: "
            f"{len(untrained)} of {len(measured)} cuts may be near random."
        )
    elif untrained:
        trained = [str(cut) for cut in measured if cut in card.cuts]
        found.append(
            f"{len(untrained)} of {len(measured)} cuts were not trained and may be near random; "
            f"trained are {', '.join(trained) or 'none of those measured'}."
        )
    return found


def _outliers(grid: Grid, measure: str) -> Iterator[str]:
    values = grid.values(measure)
    found = outlying(values, grid.queries)
    worst = sorted(found, key=lambda cut: -_distance(values, cut))
    for cut in worst[:TOLD]:
        more = _more(len(worst) - TOLD, "cell") if cut == worst[:TOLD][-1] else ""
        yield (
            f"{measure} of {cut} is {shown(values[cut])}, far {found[cut]}{more}: measure that cut "
            f"again, and see whether its training or its vectors went wrong."
        )


def _lines(values: Mapping[Cut, float], by_layer: bool) -> list[list[Cut]]:
    """Cuts of one layer by dim, or of one dim by layer, for each; by layer, 0 stands alone."""
    lines: dict[tuple[int, bool], list[Cut]] = {}
    for cut in sorted(values):
        line = (cut.layer, False) if by_layer else (cut.dim, cut.layer == 0)
        lines.setdefault(line, []).append(cut)
    return list(lines.values())


def _standing(
    lines: Iterable[Sequence[Cut]], values: Mapping[Cut, float], allowed: float
) -> Iterator[tuple[Cut, str]]:
    """The cuts of some lines that stand out from their neighbours, and how."""
    for line in lines:
        held = [values[cut] for cut in line]
        for place, cut in enumerate(line):
            if words := _words(held, place, allowed):
                yield cut, words


def _words(line: Sequence[float], place: int, allowed: float) -> str:
    """How a cell stands out from its neighbours in a line that grows; empty when it does not."""
    value, smaller, larger = line[place], line[:place], line[place + 1 :]
    if smaller and larger:
        near = (smaller[-1], larger[0])
        sides = (value < min(near) - allowed, value > max(near) + allowed)
    else:
        # At an end, one side alone: less than what is smaller gives, more than what is larger.
        sides = (
            len(smaller) > 1 and value < min(smaller[-2:]) - allowed,
            len(larger) > 1 and value > max(larger[:2]) + allowed,
        )
    return "below the neighbours" * sides[0] or "above the neighbours" * sides[1]


def _distance(values: Mapping[Cut, float], cut: Cut) -> float:
    """From the median of the nearest cuts by layer and by dim."""
    near = []
    for by_layer in (True, False):
        line = next(line for line in _lines(values, by_layer) if cut in line)
        place = line.index(cut)
        near += [values[one] for one in (*line[max(0, place - 1) : place], *line[place + 1 :][:1])]
    return abs(values[cut] - median(near)) if near else 0.0


def _more(count: int, unit: str) -> str:
    return f" (and at {counted(count, f'more {unit}s')})" if count > 0 else ""
