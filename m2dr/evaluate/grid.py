"""What every cut of one model is worth on one corpus."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isfinite

from m2dr.errors import UserError, counted, nearest
from m2dr.records.cut import Cut


@dataclass(frozen=True)
class Grid:
    """The measures of one model, cut by cut; not every layer needs every dim.

    >>> cells = {Cut(2, 8): {"RR@10": 0.25}, Cut(2, 16): {"RR@10": 0.5}}
    >>> grid = Grid("full-dim", "pydocs", "test", 2234, cells)
    >>> grid.best("RR@10"), grid.mean_over(grid.cuts, "RR@10")
    (Cut(layer=2, dim=16), 0.375)
    """

    model: str  # how a table or a legend calls it
    corpus: str
    split: str
    queries: int  # how many the means are over
    cells: Mapping[Cut, Mapping[str, float]]  # cut -> measure -> mean
    notes: tuple[str, ...] = ()  # what a reader must know, e.g. "own document dropped"
    unit: str = "queries"  # what `queries` counts; for sentence similarity it is "pairs"
    alarms: tuple[str, ...] = ()  # sentences that say what looks wrong and what it may mean

    def __post_init__(self) -> None:
        if not self.cells or not self.measures:
            raise UserError(f"The grid of {self.model} on {self.corpus} is empty; measure a cut.")
        for cut, values in self.cells.items():
            if values.keys() != self.cells[self.cuts[0]].keys():
                raise UserError(
                    f"The grid of {self.model} holds {', '.join(values)} for {cut} and "
                    f"{', '.join(self.measures)} for {self.cuts[0]}; measure all cuts alike."
                )
            odd = [name for name, value in values.items() if not isfinite(value)]
            if odd:
                raise UserError(
                    f"The {odd[0]} of {self.model} at {cut} is {values[odd[0]]}, not a number one "
                    f"can compare; measure that cut again."
                )

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Every cut that was measured, smallest layer first."""
        return tuple(sorted(self.cells))

    @property
    def layers(self) -> tuple[int, ...]:
        """Every layer of some cut, shallow first."""
        return tuple(sorted({cut.layer for cut in self.cells}))

    @property
    def dims(self) -> tuple[int, ...]:
        """Every dim of some cut, short first."""
        return tuple(sorted({cut.dim for cut in self.cells}))

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of the measures, as every cell has them."""
        return tuple(next(iter(self.cells.values())))

    @property
    def place(self) -> str:
        """Corpus and split, such as 'pydocs test'; a file of sentence pairs has no split."""
        return f"{self.corpus} {self.split}" if self.split else self.corpus

    def heading(self, measure: str) -> str:
        """What a table or figure shows, such as 'RR@10 on pydocs test, 2234 queries'."""
        return f"{measure} on {self.place}, {counted(self.queries, self.unit)}"

    def values(self, measure: str) -> dict[Cut, float]:
        """One measure of every cut, smallest layer first.

        Raises:
            UserError: the grid does not hold `measure`.
        """
        if measure not in self.measures:
            raise UserError(
                f"The grid of {self.model} on {self.corpus} does not hold {measure}. "
                f"{nearest(measure, self.measures)}"
            )
        return {cut: self.cells[cut][measure] for cut in self.cuts}

    def mean_over(self, cuts: Iterable[Cut], measure: str) -> float:
        """The plain mean of `measure` over `cuts`, each of which must have been measured."""
        values, wanted = self.values(measure), sorted(set(cuts))
        absent = [str(cut) for cut in wanted if cut not in values]
        if absent or not wanted:
            raise UserError(
                f"The grid of {self.model} has no mean over {', '.join(absent) or 'no cuts'}; it "
                f"holds {', '.join(map(str, self.cuts))}."
            )
        return fsum(values[cut] for cut in wanted) / len(wanted)

    def difference(self, other: "Grid", measure: str) -> dict[Cut, float]:
        """What this model gains over `other` at each cut that both measured.

        Raises:
            UserError: they were measured on different queries, or have no cut in common.
        """
        require_same_queries([self, other])
        mine, theirs = self.values(measure), other.values(measure)
        common = {cut: mine[cut] - theirs[cut] for cut in mine if cut in theirs}
        if not common:
            raise UserError(
                f"{self.model} and {other.model} have no cut in common; {self.model} has "
                f"{', '.join(map(str, mine))} and {other.model} {', '.join(map(str, theirs))}."
            )
        return common

    def best(self, measure: str) -> Cut:
        """The cut with the highest value; of equal ones the smallest."""
        values = self.values(measure)
        return max(values, key=lambda cut: values[cut])

    def worst(self, measure: str) -> Cut:
        """The cut with the lowest value; of equal ones the smallest."""
        values = self.values(measure)
        return min(values, key=lambda cut: values[cut])


def require_same_queries(grids: Iterable[Grid]) -> None:
    """Raise UserError unless there are `grids` and all were measured on the same queries."""
    settings = {(grid.place, grid.queries, grid.unit): grid.model for grid in grids}
    if not settings:
        raise UserError("No grid was given to show; pass the grid of at least one model.")
    if len(settings) > 1:
        found = "; ".join(
            f"{model} on {counted(queries, unit)} of {place}"
            for (place, queries, unit), model in settings.items()
        )
        raise UserError(
            f"Grids of different texts cannot be compared: {found}. Measure all on the same."
        )


def average(grids: Sequence[Grid], corpus: str = "") -> Grid:
    """The plain mean of one model over several corpora, each counted alike whatever its size.

    Args:
        grids: at least one, all of the same model, cuts and measures.
        corpus: what they are together; their names when empty.
    """
    first = grids[0]
    cells = {
        cut: {
            name: fsum(grid.cells[cut][name] for grid in grids) / len(grids)
            for name in first.measures
        }
        for cut in first.cuts
    }
    places = [grid.place for grid in grids]
    notes = dict.fromkeys(note for grid in grids for note in grid.notes)
    return Grid(
        first.model,
        corpus or f"mean-of-{'+'.join(places)}",
        "",
        sum(grid.queries for grid in grids),
        cells,
        (*notes, f"the mean over {', '.join(places)}, each counted alike"),
        first.unit,
    )


def require_distinct_names(grids: Iterable[Grid]) -> None:
    """Raise UserError when two models would look like one in a table or a figure."""
    names: set[str] = set()
    for grid in grids:
        if grid.model in names:
            raise UserError(
                f"Two grids are called {grid.model}, and nobody could tell them apart; "
                f"name one of them otherwise."
            )
        names.add(grid.model)


def shown(value: float) -> str:
    """Four decimals and no leading zero, as papers print a measure.

    >>> shown(0.31594), shown(-0.02), shown(1.0)
    ('.3159', '-.0200', '1.0000')
    """
    return f"{value:.4f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.4f}"
