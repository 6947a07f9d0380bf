"""The measures of a model cut by cut: a grid, as tables of text, as CSV and as JSON."""

import csv
import hashlib
import io
import json
import platform
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from math import fsum, isfinite
from pathlib import Path
from typing import Any, TypeVar
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, counted, nearest
from m2dr.core.files import atomic_path, read_json, write_json, write_text
from m2dr.core.records import Cut

T = TypeVar("T")
FORMAT = 1  # of grid.json; raise it when this reader would misread an older file
# What a cell that a spreadsheet takes for a formula begins with; wide signs count too.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠", "'")


@dataclass(frozen=True)
class Grid:
    """The measures of one model, cut by cut; not every layer needs every dim.

    >>> cells = {Cut(2, 8): {"RR@10": 0.25}, Cut(2, 16): {"RR@10": 0.5}}
    >>> grid = Grid("full-dim", "pydocs", "test", 2234, cells)
    >>> grid.best("RR@10")
    Cut(layer=2, dim=16)
    """

    model: str  # its name in tables and legends
    corpus: str
    split: str
    queries: int  # number of queries that the means are over
    cells: Mapping[Cut, Mapping[str, float]]  # cut -> measure -> mean
    notes: tuple[str, ...] = ()  # how the values were measured, e.g. "own document dropped"
    unit: str = "queries"  # what `queries` counts; for sentence similarity it is "pairs"
    checks: tuple[str, ...] = ()  # a sentence for each check that failed, see m2dr.evaluate.checks

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
                    f"The {odd[0]} of {self.model} at {cut} is {values[odd[0]]}, which cannot be "
                    f"compared; measure that cut again."
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
        """The names of the measures, which all cells share."""
        return tuple(next(iter(self.cells.values())))

    @property
    def place(self) -> str:
        """Corpus and split, such as 'pydocs test'; a file of sentence pairs has no split."""
        return f"{self.corpus} {self.split}" if self.split else self.corpus

    def heading(self, measure: str) -> str:
        """Return the title of a table or figure, as 'RR@10 on pydocs test, 2234 queries'."""
        return f"{measure} on {self.place}, {counted(self.queries, self.unit)}"

    def values(self, measure: str) -> dict[Cut, float]:
        """Return one measure of every cut, smallest layer first.

        Raises:
            UserError: the grid does not hold `measure`.
        """
        if measure not in self.measures:
            raise UserError(
                f"The grid of {self.model} on {self.corpus} does not hold {measure}. "
                f"{nearest(measure, self.measures)}"
            )
        return {cut: self.cells[cut][measure] for cut in self.cuts}

    def difference(self, other: "Grid", measure: str) -> dict[Cut, float]:
        """Return this model minus `other` at each cut that both measured.

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
        """Return the cut with the highest value; of equal ones the smallest."""
        values = self.values(measure)
        return max(values, key=lambda cut: values[cut])


def require_same_queries(grids: Iterable[Grid]) -> None:
    """Raise UserError unless there are `grids` and all were measured on the same queries."""
    settings = {(grid.place, grid.queries, grid.unit): grid.model for grid in grids}
    if not settings:
        raise UserError("No grid was given; pass the grid of at least one model.")
    if len(settings) > 1:
        found = "; ".join(
            f"{model} on {counted(queries, unit)} of {place}"
            for (place, queries, unit), model in settings.items()
        )
        raise UserError(
            f"Grids of different test sets cannot be compared: {found}. Measure all on the same."
        )


def average(grids: Sequence[Grid], corpus: str = "") -> Grid:
    """Return the mean of one model over several corpora, each with equal weight.

    Args:
        grids: at least one, all of the same model, cuts and measures.
        corpus: name of the mean; made of the names of the corpora when empty.
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
    """Raise UserError when two grids have the same model name."""
    names: set[str] = set()
    for grid in grids:
        if grid.model in names:
            raise UserError(
                f"Two grids are called {grid.model}, and a table could not tell them apart; "
                f"rename one of them."
            )
        names.add(grid.model)


def format_score(value: float) -> str:
    """Return a value with four decimals and no leading zero, as papers print measures.

    >>> format_score(0.31594), format_score(-0.02), format_score(1.0)
    ('.3159', '-.0200', '1.0000')
    """
    return f"{value:.4f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.4f}"


def text_table(grid: Grid, measure: str) -> str:
    """Return a table with layers as rows and dims as columns; a star marks the best cut.

    >>> cells = {Cut(2, 8): {"RR@10": 0.25}, Cut(2, 16): {"RR@10": 0.5}}
    >>> print(text_table(Grid("full-dim", "pydocs", "test", 2234, cells), "RR@10"))
    full-dim: RR@10 on pydocs test, 2234 queries, * best
    layer      8     16
        2  .2500  .5000*
    """
    values = grid.values(measure)
    top = max(values.values())
    rows = [["layer", *map(str, grid.dims)]]
    for layer in grid.layers:
        cuts = [Cut(layer, dim) for dim in grid.dims]
        rows.append([str(layer), *(_cell(values.get(cut), top) for cut in cuts)])
    title = f"{grid.model}: {grid.heading(measure)}, * best"
    return "\n".join([title, *_starred(rows), *_notes([grid])])


def text_comparison(grids: Sequence[Grid], measure: str) -> str:
    """Return a table of several models, grouped by layer; a star marks the best of each cut.

    Raises:
        UserError: there is no grid, two have one name, or they are of different queries.
    """
    require_same_queries(grids)
    require_distinct_names(grids)
    values = [grid.values(measure) for grid in grids]
    dims = sorted({dim for grid in grids for dim in grid.dims})
    rows = [["layer", "model", *map(str, dims)]]
    for layer in sorted({layer for grid in grids for layer in grid.layers}):
        cuts = [Cut(layer, dim) for dim in dims]
        tops = [_best_of([v[cut] for v in values if cut in v]) for cut in cuts]
        present = [pair for pair in zip(grids, values, strict=True) if layer in pair[0].layers]
        for place, (grid, held) in enumerate(present):
            cells = [_cell(held.get(cut), top) for cut, top in zip(cuts, tops, strict=True)]
            rows.append([str(layer) if place == 0 else "", grid.model, *cells])
    title = f"{grids[0].heading(measure)}, * best of its cut"
    return "\n".join([title, *_starred(rows, left={1}), *_notes(grids)])


def text_cross(model: str, grids: Mapping[int, Grid], dim: int, measure: str) -> str:
    """Return a table with query layers as rows and document layers as columns, at one dim.

    Args:
        model: its name in the title.
        grids: document layer -> grid of that model, whose cuts are those of the queries.
        dim: one that all grids have.
        measure: one that all grids hold.
    """
    first = next(iter(grids.values()))
    values = {layer: grid.values(measure) for layer, grid in grids.items()}
    top = max(value for held in values.values() for cut, value in held.items() if cut.dim == dim)
    rows = [["queries", *map(str, grids)]]
    for layer in first.layers:
        rows.append([str(layer), *(_cell(values[one].get(Cut(layer, dim)), top) for one in grids)])
    title = f"{model}: {first.heading(measure)}, dim {dim}, documents by layer across, * best"
    return "\n".join([title, *_starred(rows)])


def write_cross(grids: Mapping[int, Grid], dim: int, path: Path) -> None:
    """Write all measures at one dim as CSV: a line per query layer, document layer and measure."""
    head = ("corpus", "split", "query_layer", "document_layer", "dim", "measure", "value")
    rows = [
        (grid.corpus, grid.split, cut.layer, layer, dim, name, value)
        for layer, grid in grids.items()
        for cut in grid.cuts
        if cut.dim == dim
        for name, value in grid.cells[cut].items()
    ]
    write_text(path, _csv([head, *rows]))


def write_csv(grids: Iterable[Grid], path: Path) -> None:
    """Write a CSV file with a line per model, cut and measure, values in full precision."""
    head = ("model", "corpus", "split", "layer", "dim", "measure", "value")
    rows = [
        (grid.model, grid.corpus, grid.split, cut.layer, cut.dim, name, value)
        for grid in grids
        for cut in grid.cuts
        for name, value in grid.cells[cut].items()
    ]
    write_text(path, _csv([head, *rows]))


def inert(name: str) -> str:
    """Return a name as a cell that no spreadsheet runs as a formula.

    A name that begins like a formula, or with an apostrophe, is prefixed with an apostrophe, so
    that removing one leading apostrophe gives the name back.

    >>> inert("=HYPERLINK(1)"), inert("'s"), inert("full-dim")
    ("'=HYPERLINK(1)", "''s", 'full-dim')
    """
    return f"'{name}" if name.startswith(_FORMULA) else name


def _csv(rows: Sequence[Sequence[str | float]]) -> str:
    cells = [[inert(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    # The csv module does not quote carriage returns by default, but reads them as line ends.
    returns = any("\r" in cell for row in cells for cell in row if isinstance(cell, str))
    text = io.StringIO()
    dialect = csv.unix_dialect if returns else csv.excel  # unix_dialect quotes every cell
    csv.writer(text, dialect, lineterminator="\n").writerows(cells)
    return text.getvalue()


def write_grid(grid: Grid, path: Path) -> None:
    """Write `grid` as JSON that `read_grid` reads; in a diff, each cut has lines of its own."""
    write_json(path, grid_record(grid))


def grid_record(grid: Grid) -> dict[str, Any]:
    """Return what grid.json holds of a grid."""
    cells = []
    for cut in grid.cuts:
        measures = {name: float(value) for name, value in grid.cells[cut].items()}
        cells.append({"layer": cut.layer, "dim": cut.dim, "measures": measures})
    return {
        "format": FORMAT,
        "model": grid.model,
        "corpus": grid.corpus,
        "split": grid.split,
        "queries": grid.queries,
        "unit": grid.unit,
        "notes": grid.notes,
        "alarms": grid.checks,
        "cells": cells,
    }


def read_grid(path: Path, remedy: str = "") -> Grid:
    """Read what `write_grid` wrote; `remedy` is a sentence that ends each message.

    Raises:
        UserError: the file cannot be read, or is not a grid; with the file and what is wrong.
    """
    absent = f"There is no grid file {path}; write one or correct the path."
    return load_results(path, "a grid", _grid, remedy, absent)


def load_results(
    path: Path, what: str, parse: Callable[[Any], T], remedy: str = "", absent: str = ""
) -> T:
    """Read a JSON file of results.

    Args:
        path: the file.
        what: what it should hold, such as "a grid".
        parse: turns the parsed JSON into a value; any error says that the file is another one.
        remedy: a sentence that ends each message.
        absent: the message when there is no file.

    Raises:
        UserError: the file cannot be read, or is another one; with its name and what is wrong.
    """
    after = f" {remedy}" if remedy else ""
    if absent and not path.exists():
        raise UserError(absent)
    table = read_json(path)
    try:
        return parse(table)
    except (UserError, ValueError, TypeError, AttributeError, KeyError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        reason = reason.removesuffix(".")
        raise UserError(f"{path} is not {what} that m2dr wrote: {reason}.{after}") from error


def require_format(data: Any, number: int) -> None:  # anything may stand in JSON
    """Raise ValueError unless a JSON object of results has this format number."""
    if data["format"] != number:
        raise ValueError(f"its format is {data['format']!r} and this m2dr reads {number}.")


def aligned(
    rows: Sequence[Sequence[str]], left: Collection[int] = (), gap: str = "  "
) -> list[str]:
    """Return the rows of a table as lines, columns aligned to the right.

    Args:
        rows: cells, equally many in each row.
        left: columns that are aligned to the left instead.
        gap: what separates columns.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _notes(grids: Sequence[Grid]) -> list[str]:
    """Return each note once; one that does not hold for all grids names its models."""
    lines = []
    for note in dict.fromkeys(note for grid in grids for note in grid.notes):
        holders = [grid.model for grid in grids if note in grid.notes]
        of_whom = "" if len(holders) == len(grids) else f" ({', '.join(holders)})"
        lines.append(f"Note{of_whom}: {note}")
    return lines


def _best_of(values: Sequence[float]) -> float | None:
    """Return the highest of two or more values; None for fewer, of which none is marked."""
    return max(values) if len(values) > 1 else None


def _cell(value: float | None, top: float | None) -> str:
    """Return a value, with a star if it equals `top`; a dash for a cut that was not measured."""
    return "-" if value is None else format_score(value) + "*" * (value == top)


def _starred(rows: Sequence[Sequence[str]], left: Collection[int] = ()) -> list[str]:
    """Align rows whose cells may end in a star, so that stars do not move the digits."""
    padded = [
        [cell if cell.endswith("*") and i not in left else f"{cell} " for i, cell in enumerate(row)]
        for row in rows
    ]
    return aligned(padded, left, " ")


def _grid(data: Any) -> Grid:  # anything may stand in JSON
    """Return a grid from parsed JSON; raise ValueError, TypeError or KeyError if it is none."""
    require_format(data, FORMAT)
    cells: dict[Cut, dict[str, float]] = {}
    for cell in data["cells"]:
        cut = Cut(_only(int, cell["layer"], "layer"), _only(int, cell["dim"], "dim"))
        if cut in cells:
            raise ValueError(f"it holds the cut {cut} twice.")
        cells[cut] = {name: _only(float, v, name) for name, v in cell["measures"].items()}
    words = [_only(str, data[key], key) for key in ("model", "corpus", "split")]
    notes = tuple(_only(str, note, "note") for note in data["notes"])
    queries = _only(int, data["queries"], "queries")
    unit = _only(str, data.get("unit", "queries"), "unit")  # absent in older files
    checks = tuple(_only(str, one, "alarm") for one in data.get("alarms", []))
    return Grid(words[0], words[1], words[2], queries, cells, notes, unit, checks)


def _only(kind: type[T], value: object, what: str) -> T:
    # Not isinstance, for which JSON's true would be an int.
    if type(value) is not kind:
        raise ValueError(f"its {what} is {value!r} where {kind.__name__} belongs.")
    return value


# Shapes in this file:
#   M measures, K cuts, Q queries.

Floats = NDArray[np.float64]

GRID = "grid.json"
PROVENANCE = "made.json"
SCORES = "per_query.npz"
SCORES_FORMAT = 1  # raise it when this reader would misread an older file
PARTS = "parts"
PART_FORMAT = 2  # raise it when a measure or a check is computed otherwise
_DIGITS = 16  # of the digest in a file name
_AGAINST = "*-against-*.json"
_PACKAGES = ("m2dr", "torch", "transformers", "faiss-cpu", "faiss-gpu", "numpy", "ir-measures")


@dataclass(frozen=True)
class Provenance:
    """How the results of a folder were made: all that it takes to make them again."""

    command: str  # quoted for a shell; empty when results were made from Python
    model: str  # folder or id
    corpus: str  # as given to --corpus
    split: str
    fingerprint: str  # sha256 of the model's weights, tokenizer and config.json
    versions: dict[str, str] = field(default_factory=dict)  # package -> version


def write_provenance(provenance: Provenance, folder: Path) -> None:
    """Write made.json beside a grid."""
    write_json(folder / PROVENANCE, asdict(provenance))


def read_provenance(folder: Path) -> Provenance | None:
    """Read what `write_provenance` wrote; None where there is no such file.

    Raises:
        UserError: the file is not what `write_provenance` writes.
    """
    path = folder / PROVENANCE
    if not path.exists():
        return None
    remedy = "Measure the results again with --overwrite."
    return load_results(path, "a file of provenance", lambda data: Provenance(**data), remedy)


def remake(folder: Path, measures: Sequence[str] = ()) -> str:
    """Say how to make the results of a folder again: "with: " and the command, where it is known.

    Args:
        folder: of one model's results.
        measures: measures to add to the command.
    """
    try:
        provenance = read_provenance(folder)
    except UserError:
        provenance = None
    if provenance is None or not provenance.command:
        asked = "".join(f" --measure {name}" for name in measures)
        return f"by evaluating that model again{' with' if asked else ''}{asked}"
    words = shlex.split(provenance.command)
    for name in measures:
        given = zip(words, words[1:], strict=False)
        if ("--measure", name) not in given and f"--measure={name}" not in words:
            words += ["--measure", name]
    return f"with: {shlex.join(words)}"


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that affect results."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True, eq=False)
class QueryScores:
    """One measure of every query at every cut; the mean of a row is a cell of the grid."""

    measure: str
    cuts: tuple[Cut, ...]  # K
    query_ids: tuple[str, ...]  # Q: every judged query, in the order of the judgements
    values: Floats  # [K, Q]

    def __post_init__(self) -> None:
        wanted = (len(self.cuts), len(self.query_ids))
        if self.values.shape != wanted:
            raise UserError(
                f"Scores of {self.measure} have the shape {self.values.shape} where {wanted[0]} "
                f"cuts of {wanted[1]} queries belong."
            )
        odd = np.argwhere(~np.isfinite(self.values))
        if len(odd):
            cut, query = self.cuts[odd[0][0]], self.query_ids[odd[0][1]]
            raise UserError(
                f"The {self.measure} of query {query} at {cut} is not a number; measure that cut "
                f"again."
            )

    def at(self, cut: Cut) -> Floats:
        """Return the values of one cut, [Q].

        Raises:
            UserError: the cut was not measured.
        """
        if cut not in self.cuts:
            raise UserError(
                f"There are no {self.measure} scores of {cut}. "
                f"{nearest(str(cut), map(str, self.cuts))}"
            )
        row: Floats = self.values[self.cuts.index(cut)]
        return row


def write_scores(scores: Sequence[QueryScores], folder: Path) -> Path:
    """Write all measures of one grid as `per_query.npz`, atomically, and return its path.

    The file holds arrays that numpy reads without pickle: `format`, `measures`, `cuts` and
    `query_ids` as JSON in UTF-8 (numpy would truncate ids that end in zero bytes), and `values`
    [M, K, Q] float64.

    Args:
        scores: at least one, all of the same cuts and queries.
        folder: created if need be.
    """
    return save_scores(scores, folder / SCORES)


def read_scores(folder: Path) -> dict[str, QueryScores]:
    """Return measure -> its scores, from the folder of a grid or the file itself.

    Raises:
        UserError: there is no such file, or it is not one that m2dr wrote; with what is wrong.
    """
    return load_scores(folder if folder.suffix == ".npz" else folder / SCORES)[0]


def save_scores(
    scores: Sequence[QueryScores], path: Path, facts: Mapping[str, object] | None = None
) -> Path:
    """Write scores as `write_scores` does, under any name, and JSON `facts` with them."""
    with atomic_path(path) as unfinished, unfinished.open("wb") as file:
        np.savez_compressed(
            file,
            format=_packed(SCORES_FORMAT),
            measures=_packed([one.measure for one in scores]),
            cuts=_packed([[cut.layer, cut.dim] for cut in scores[0].cuts]),
            query_ids=_packed(scores[0].query_ids),
            facts=_packed(facts or {}),
            values=np.stack([one.values for one in scores]),
        )
    return path


def load_scores(path: Path) -> tuple[dict[str, QueryScores], dict[str, Any]]:
    """Return what `save_scores` wrote: measure -> its scores, and the facts.

    Raises:
        UserError: as `read_scores`.
    """
    try:
        data = io.BytesIO(path.read_bytes())
        if not is_zipfile(data):  # numpy would take it for a pickle
            raise ValueError("it is not a zip file.")
        with np.load(data, allow_pickle=False) as held:
            return _read_scores(held), dict(_unpacked(held["facts"]))
    except FileNotFoundError:
        raise UserError(
            f"There are no scores of single queries in {path}; make them {remake(path.parent)}"
        ) from None
    except Exception as error:  # numpy raises many kinds for a damaged header
        reason = f"no {error}" if isinstance(error, KeyError) else str(error).removesuffix(".")
        raise UserError(
            f"{path} is not a file of scores that m2dr wrote: {reason}. Make it again "
            f"{remake(path.parent)}"
        ) from error


@dataclass(frozen=True, eq=False)
class LayerScores:
    """The scores of one query layer against documents of one layer."""

    scores: Mapping[str, QueryScores]  # by measure
    tied: Mapping[Cut, int]  # number of queries whose documents all have the same score
    empty: Mapping[Cut, int]  # number of queries that found nothing
    facts: Mapping[str, int]  # of the split: arguments of m2dr.evaluate.checks.query_checks

    @classmethod
    def of(
        cls,
        query_ids: Sequence[str],
        values: Mapping[Cut, Mapping[str, Floats]],
        tied: Mapping[Cut, int],
        empty: Mapping[Cut, int],
        facts: Mapping[str, int],
    ) -> "LayerScores":
        """Join the cuts, whose values are cut -> measure -> [Q]."""
        cuts = tuple(sorted(values))
        measures = values[cuts[0]]
        scores = {
            name: QueryScores(
                name, cuts, tuple(query_ids), np.stack([values[cut][name] for cut in cuts])
            )
            for name in measures
        }
        return cls(scores, tied, empty, facts)

    @property
    def dims(self) -> tuple[int, ...]:
        """Dims that were measured, increasing."""
        return tuple(cut.dim for cut in next(iter(self.scores.values())).cuts)

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the measures."""
        return tuple(self.scores)

    def only(self, dims: Collection[int], measures: Sequence[str]) -> "LayerScores":
        """Return the scores at some of the dims, by some of the measures."""
        cuts = [cut for cut in next(iter(self.scores.values())).cuts if cut.dim in dims]
        scores = {
            name: QueryScores(
                name,
                tuple(cuts),
                self.scores[name].query_ids,
                np.stack([self.scores[name].at(cut) for cut in cuts]),
            )
            for name in measures
        }
        tied, empty = ({cut: of[cut] for cut in cuts} for of in (self.tied, self.empty))
        return LayerScores(scores, tied, empty, self.facts)


@dataclass(frozen=True)
class LayerScoresFile:
    """The file of the scores of one layer, whose name holds a digest of all they depend on."""

    folder: Path  # of the grid
    layer: int  # of the queries
    document_layer: int
    question: Mapping[str, object]  # all that a score depends on, fit for JSON

    @property
    def path(self) -> Path:
        """The path, which differs for every other question."""
        text = json.dumps({**self.question, "format": PART_FORMAT}, sort_keys=True)
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
        return self.folder / PARTS / f"{self._stem}-{digest}.npz"

    @property
    def _stem(self) -> str:
        return f"queries-{self.layer:02d}-documents-{self.document_layer:02d}"

    def read(self) -> LayerScores | None:
        """Return the scores, or None where they must be measured."""
        try:
            scores, facts = load_scores(self.path)
            cuts = next(iter(scores.values())).cuts
            tied, empty = (dict(zip(cuts, facts[key], strict=True)) for key in ("tied", "empty"))
            return LayerScores(scores, tied, empty, facts["split"])
        except (UserError, KeyError, ValueError, TypeError, StopIteration):
            return None

    def forget(self) -> None:
        """Remove the files of this layer for all questions, before the runs change."""
        for path in (self.folder / PARTS).glob(f"{self._stem}-*.npz"):
            path.unlink(missing_ok=True)

    def write(self, layer: LayerScores) -> None:
        """Write the scores, atomically."""
        scores = list(layer.scores.values())
        facts = {
            "tied": [layer.tied[cut] for cut in scores[0].cuts],
            "empty": [layer.empty[cut] for cut in scores[0].cuts],
            "split": dict(layer.facts),
        }
        save_scores(scores, self.path, facts)


def join_layers(layers: Sequence[LayerScores]) -> dict[str, QueryScores]:
    """Return measure -> scores at the cuts of all layers, which have the same queries."""
    found = {}
    for name, first in layers[0].scores.items():
        held = [one.scores[name] for one in layers]
        cuts = [cut for one in held for cut in one.cuts]
        order = sorted(range(len(cuts)), key=cuts.__getitem__)
        values = np.concatenate([one.values for one in held])[order]
        found[name] = QueryScores(name, tuple(cuts[i] for i in order), first.query_ids, values)
    return found


def _read_scores(held: Mapping[str, NDArray[Any]]) -> dict[str, QueryScores]:
    require_format({"format": _unpacked(held["format"])}, SCORES_FORMAT)
    cuts = tuple(Cut(int(layer), int(dim)) for layer, dim in _unpacked(held["cuts"]))
    query_ids = tuple(map(str, _unpacked(held["query_ids"])))
    names, values = _unpacked(held["measures"]), held["values"]
    if values.dtype != np.float64:
        raise ValueError(f"its values are {values.dtype} where float64 belongs.")
    return {
        name: QueryScores(name, cuts, query_ids, rows)
        for name, rows in zip(names, values, strict=True)
    }


def _packed(value: object) -> NDArray[np.uint8]:
    # An id may hold half a surrogate pair, which JSON escapes and UTF-8 could not encode.
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


def _unpacked(array: NDArray[Any]) -> Any:  # anything may stand in JSON
    return json.loads(array.tobytes())
