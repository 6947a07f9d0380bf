"""The measures of a model cut by cut: a grid, its tables and files, and the scores of its queries.

Shapes: M measures, K cuts, Q queries.
"""

import csv
import hashlib
import io
import json
import platform
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from importlib.metadata import PackageNotFoundError, version
from itertools import starmap
from math import fsum, isfinite
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from m2dr.core.arrays import Float64
from m2dr.core.errors import UserError, counted, nearest
from m2dr.core.files import atomic_path, read_record, write_text
from m2dr.core.records import F32, Cut

T = TypeVar("T")

GRID = "grid.json"
PROVENANCE = "made.json"
SCORES_FILE = "per_query.npz"
PARTS = "parts"
PART_FORMAT = 3  # raise it when a measure or a check is computed otherwise
_PACKAGES = ("m2dr", "torch", "transformers", "faiss-cpu", "faiss-gpu", "numpy", "ir-measures")


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
    checks: tuple[str, ...] = ()  # a sentence for each check that failed
    system: str = ""  # exits of the queries and layer of the documents, of retrieval
    apart: tuple[int, ...] = ()  # layers of another system, whose cuts are not called the best
    lengths: str = ""  # of queries and documents, of retrieval

    def __repr__(self) -> str:
        place = f"{self.model!r} on {self.corpus!r} {self.split}"
        return f"<{type(self).__name__} of {place}: {counted(len(self.cells), 'cuts')}>"

    def __post_init__(self) -> None:
        if not self.cells or not self.measures:
            raise UserError(f"The grid of {self.model} on {self.corpus} is empty; measure a cut.")
        for cut, values in self.cells.items():
            odd = [name for name, value in values.items() if not isfinite(value)]
            if odd:
                raise UserError(f"The {odd[0]} of {self.model} at {cut} is {values[odd[0]]}.")

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
    def codes(self) -> tuple[str, ...]:
        """Every code of the documents, f32 first."""
        return tuple(sorted({cut.code for cut in self.cells}, key=lambda code: (code != F32, code)))

    @property
    def full(self) -> Cut:
        """The largest cut, of documents in f32 where some are."""
        return max(cut for cut in self.cells if cut.code == self.codes[0])

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
            hint = nearest(measure, self.measures)
            raise UserError(f"The grid of {self.model} does not hold {measure}. {hint}")
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
            raise UserError(f"{self.model} and {other.model} have no cut in common.")
        return common

    def best(self, measure: str) -> Cut:
        """Return the cut with the highest value; of equal ones the smallest, and none `apart`."""
        values = self.values(measure)
        own = [cut for cut in values if cut.layer not in self.apart]
        return max(own or values, key=lambda cut: values[cut])


def by_code(grids: Iterable[Grid]) -> list[Grid]:
    """Return a grid of plain cuts for each code of a grid, named after both."""
    return [
        replace(
            grid,
            model=f"{grid.model}, {code}" if grid.codes != (F32,) else grid.model,
            cells={Cut(c.layer, c.dim): of for c, of in grid.cells.items() if c.code == code},
        )
        for grid in grids
        for code in grid.codes
    ]


def told_apart(grids: Sequence[Grid]) -> list[Grid]:
    """Return grids whose names tell their systems, where these differ."""
    if len({grid.system for grid in grids}) < 2:
        return list(grids)
    return [replace(grid, model=f"{grid.model} ({grid.system})") for grid in grids]


def require_same_queries(grids: Iterable[Grid]) -> None:
    """Raise UserError unless all were measured on the same queries."""
    settings = {(grid.place, grid.queries, grid.unit): grid.model for grid in grids}
    if len(settings) > 1:
        listed = "; ".join(
            f"{model} on {counted(queries, unit)} of {place}"
            for (place, queries, unit), model in settings.items()
        )
        raise UserError(f"Grids of different test sets cannot be compared: {listed}.")


def require_comparable(grids: Sequence[Grid]) -> None:
    """Raise UserError as `require_same_queries`, or when two grids have the same model name."""
    require_same_queries(grids)
    for name, count in Counter(grid.model for grid in grids).items():
        if count > 1:
            raise UserError(f"Two grids are called {name}; rename one of them.")


def average(grids: Sequence[Grid], corpus: str = "") -> Grid:
    """Return the mean of one model over several corpora, each with equal weight.

    Args:
        grids: at least one, all of the same model, cuts and measures.
        corpus: name of the mean; made of the names of the corpora when empty.
    """
    first, count = grids[0], len(grids)
    cells = {
        cut: {name: fsum(grid.cells[cut][name] for grid in grids) / count for name in values}
        for cut, values in sorted(first.cells.items())
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
        system=" or ".join(dict.fromkeys(grid.system for grid in grids)),
        apart=first.apart,
        lengths=" or ".join(dict.fromkeys(grid.lengths for grid in grids)),
    )


# Tables as text


def format_score(value: float) -> str:
    """Return a value with four decimals and no leading zero, as papers print measures.

    >>> format_score(0.31594), format_score(-0.02), format_score(1.0)
    ('.3159', '-.0200', '1.0000')
    """
    return f"{value:.4f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.4f}"


def text_tables(grids: Sequence[Grid], measures: Sequence[str] = ()) -> str:
    """Return a table per measure, layers as rows and dims as columns, and the notes below the last.

    Of one grid a star marks the best cut; several, or codes, stand under each other at each layer,
    and a star marks the best of each cut.

    Raises:
        UserError: there is no grid, two have one name, or they are of different queries.

    >>> cells = {Cut(2, 8): {"RR@10": 0.25}, Cut(2, 16): {"RR@10": 0.5}}
    >>> print(text_tables([Grid("full-dim", "pydocs", "test", 2234, cells)]))
    full-dim: RR@10 on pydocs test, 2234 queries, * best
    layer      8     16
        2  .2500  .5000*
    """
    grids, tables = by_code(grids), []
    for measure in measures or grids[0].measures:
        title, rows = table_of(grids, measure)
        tables.append("\n".join([title, *_starred(rows, left=() if len(grids) == 1 else {1})]))
    return "\n".join(["\n\n".join(tables), *_notes(told_apart(grids))])


def table_of(grids: Sequence[Grid], measure: str) -> tuple[str, list[list[str]]]:
    """Return the title and the cells of the table of one grid, or of several, the head first.

    Raises:
        UserError: as `text_tables` does.
    """
    require_comparable(grids)
    grids, several = told_apart(grids), len(grids) > 1
    values = [grid.values(measure) for grid in grids]
    dims = sorted({dim for grid in grids for dim in grid.dims})
    best = grids[0].best(measure)
    rows = [["layer", *["model"] * several, *map(str, dims)]]
    for layer in sorted({layer for grid in grids for layer in grid.layers}):
        cuts = [Cut(layer, dim) for dim in dims]
        known = [[of[cut] for of in values if cut in of] for cut in cuts]
        tops = [max(column) if len(column) > 1 else None for column in known]
        if not several:
            counts = layer not in grids[0].apart or layer == best.layer
            tops = [values[0][best] if counts else None] * len(dims)
        label = str(layer)
        for grid, of in zip(grids, values, strict=True):
            if layer in grid.layers:
                cells = [_cell(of.get(cut), top) for cut, top in zip(cuts, tops, strict=True)]
                rows.append([label, *[grid.model] * several, *cells])
                label = ""
    heading = grids[0].heading(measure)
    return (
        f"{heading}, * best of its cut" if several else f"{grids[0].model}: {heading}, * best"
    ), rows


def html_table(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Return a table for a notebook, the head first; a cell that ends in a star is bold."""

    def line(row: Sequence[str], tag: str) -> str:
        cells = [f"<b>{escape(c)}</b>" if c.endswith("*") else escape(c) for c in row]
        return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"

    body = "".join([line(rows[0], "th"), *(line(row, "td") for row in rows[1:])])
    return f"<table><caption>{escape(title)}</caption>{body}</table>"


_TEX = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "^": r"\^{}",
    "~": r"\~{}",
}


def tex_table(grids: Sequence[Grid], measure: str) -> str:
    """Return a table for LaTeX's booktabs; what has a star in `text_tables` is bold.

    Raises:
        UserError: as `text_tables` does.
    """
    title, rows = table_of(by_code(grids), measure)
    title = title.replace("* best", "best in bold")
    words = sum(not cell.isdecimal() for cell in rows[0])

    def line(row: Sequence[str]) -> str:
        cells = ["".join(_TEX.get(letter, letter) for letter in cell) for cell in row]
        cells = [rf"\textbf{{{c[:-1]}}}" if c.endswith("*") else c for c in cells]
        return " & ".join(cells) + r" \\"

    head = rf"\begin{{tabular}}{{{'l' * words}{'r' * (len(rows[0]) - words)}}}"
    body = [head, r"\toprule", line(rows[0]), r"\midrule", *map(line, rows[1:])]
    return "\n".join([f"% {title}", *body, r"\bottomrule", r"\end{tabular}", ""])


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
    if len({grid.lengths for grid in grids}) > 1:
        grids = [replace(grid, notes=(*grid.notes, grid.lengths)) for grid in grids]
    for note in dict.fromkeys(note for grid in grids for note in grid.notes):
        holders = [grid.model for grid in grids if note in grid.notes]
        of_whom = "" if len(holders) == len(grids) else f" ({', '.join(holders)})"
        lines.append(f"Note{of_whom}: {note}")
    return lines


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


# Files


def write_grid(grid: Grid, folder: Path) -> None:
    """Write `grid` as grid.json, which `read_grid` reads, and as grid.csv."""
    write_cells(folder / GRID, grid)
    write_csv([grid], folder / "grid.csv")


def read_grid(path: Path) -> Grid:
    """Read the grid of a folder, or of the file itself.

    Raises:
        UserError: the file cannot be read, or is not a grid.
    """
    return read_cells(path / GRID if path.is_dir() else path, Grid)


def write_csv(grids: Iterable[Grid], path: Path) -> None:
    """Write a CSV file with a line per model, cut and measure, values in full precision."""
    grids = list(grids)
    coded = any(grid.codes != (F32,) for grid in grids)
    columns = ("model", "corpus", "split", "layer", "dim", *("code",) * coded, "measure", "value")
    rows: list[Sequence[str | float]] = [columns]
    for grid in grids:
        for cut in grid.cuts:
            place: list[str | float] = [grid.model, grid.corpus, grid.split]
            head = [*place, cut.layer, cut.dim, *[cut.code] * coded]
            rows += [(*head, name, value) for name, value in grid.cells[cut].items()]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue())


def as_json(record: object) -> Any:  # any JSON value
    """Return a record as JSON has it; a cut as a key is written as L4D128."""
    return msgspec.json.decode(_encoded(record))


def write_cells(path: Path, record: object) -> None:
    """Write a record with `cells` by cut, as indented JSON, atomically."""
    write_text(path, f"{msgspec.json.format(_encoded(record), indent=2).decode()}\n")


def read_cells(path: Path, kind: type[T]) -> T:
    """Read a record that `write_cells` wrote.

    Raises:
        UserError: the file cannot be read, or holds something else; with what is wrong.
    """
    try:
        table = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        cells = {Cut.parse_coded(name): cell for name, cell in table["cells"].items()}
        return msgspec.convert({**table, "cells": cells}, kind)
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except (OSError, ValueError, UserError, KeyError, AttributeError) as error:
        what = kind.__name__.lower()
        raise UserError(f"{path} is not a {what} that m2dr wrote: {error}") from error


def _encoded(record: object) -> bytes:
    # A cut as a key becomes its name, a number of numpy that of Python.
    return msgspec.json.encode(record, enc_hook=lambda one: getattr(one, "item", one.__str__)())


@dataclass(frozen=True)
class Provenance:
    """How the results of a folder were made: all that it takes to make them again."""

    command: str  # quoted for a shell; empty when results were made from Python
    model: str  # folder or id
    corpus: str  # as given to --corpus
    split: str
    fingerprint: str  # sha256 of the model's weights, tokenizer and config.json
    versions: dict[str, str] = field(default_factory=dict)  # package -> version
    exits: str = ""  # digest of those of an index, where queries passed them
    blend: dict[str, float] = field(default_factory=dict)  # `Blend.weights`
    system: str = ""  # other queries or documents than those of the model, as names of results tell


def read_provenance(folder: Path) -> Provenance | None:
    """Read made.json of a grid's folder; None where there is none.

    Raises:
        UserError: the file holds something else.
    """
    path = folder / PROVENANCE
    return read_record(path, Provenance) if path.exists() else None


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that affect results."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


# Scores of single queries


@dataclass(frozen=True, eq=False)
class QueryScores:
    """One measure of every query at every cut; the mean of a row is a cell of the grid."""

    measure: str
    cuts: tuple[Cut, ...]  # K
    query_ids: tuple[str, ...]  # Q: every judged query, in the order of the judgements
    values: Float64  # [K, Q]

    def __post_init__(self) -> None:
        wanted = (len(self.cuts), len(self.query_ids))
        if self.values.shape != wanted or not np.isfinite(self.values).all():
            raise UserError(f"The {self.measure} scores are not finite or not of shape {wanted}.")

    @classmethod
    def joined(cls, parts: Sequence["QueryScores"]) -> "QueryScores":
        """Return the cuts of all parts, which have the same queries; of equal ones the last."""
        rows = {cut: part.at(cut) for part in parts for cut in part.cuts}
        cuts = tuple(sorted(rows))
        return replace(parts[-1], cuts=cuts, values=np.stack([rows[cut] for cut in cuts]))

    def only(self, cuts: tuple[Cut, ...]) -> "QueryScores":
        """Return the values of some of the cuts."""
        return replace(self, cuts=cuts, values=np.stack([self.at(cut) for cut in cuts]))

    def at(self, cut: Cut) -> Float64:
        """Return the values of one cut, [Q].

        Raises:
            UserError: the cut was not measured.
        """
        if cut not in self.cuts:
            known = nearest(str(cut), map(str, self.cuts))
            raise UserError(f"There are no {self.measure} scores of {cut}. {known}")
        row: Float64 = self.values[self.cuts.index(cut)]
        return row


def write_query_scores(
    scores: Sequence[QueryScores], path: Path, facts: Mapping[str, object] | None = None
) -> None:
    """Write all measures of one grid, and JSON `facts` with them, as arrays of numpy, atomically.

    The file holds `head`, JSON in UTF-8 with measures, cuts and query ids, and `values` [M, K, Q].

    Args:
        scores: at least one, all of the same cuts and queries.
        path: a file; of a folder its `per_query.npz`.
        facts: anything else.
    """
    head = {
        "measures": [one.measure for one in scores],
        "cuts": [(cut.layer, cut.dim, cut.code)[: 2 + (cut.code != F32)] for cut in scores[0].cuts],
        "query_ids": scores[0].query_ids,
        "facts": facts or {},
    }
    with (
        atomic_path(path if path.suffix == ".npz" else path / SCORES_FILE) as unfinished,
        unfinished.open("wb") as file,
    ):
        np.savez_compressed(
            file,
            head=np.frombuffer(json.dumps(head).encode(), np.uint8),
            values=np.stack([one.values for one in scores]),
        )


def read_query_scores(path: Path) -> dict[str, QueryScores]:
    """Return measure -> its scores, from the folder of a grid or the file itself.

    Raises:
        UserError: there is no such file, or it is not one that m2dr wrote; with what is wrong.
    """
    return _read_scores(path if path.suffix == ".npz" else path / SCORES_FILE)[0]


def _read_scores(path: Path) -> tuple[dict[str, QueryScores], dict[str, Any]]:
    """Return measure -> its scores, and the facts."""
    try:
        data = path.read_bytes()
        if data[:2] != b"PK":  # numpy would take it for a pickle
            raise ValueError("it is not a zip file")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            head, values = json.loads(arrays["head"].tobytes()), arrays["values"]
        cuts = tuple(starmap(Cut, head["cuts"]))
        rows = zip(head["measures"], values.astype(np.float64, casting="no"), strict=True)
        ids = tuple(head["query_ids"])
        return {name: QueryScores(name, cuts, ids, row) for name, row in rows}, head["facts"]
    except FileNotFoundError:
        raise UserError(f"There are no scores of single queries in {path}.") from None
    except Exception as error:  # numpy raises many kinds for a damaged header
        raise UserError(f"{path} is not a file of scores that m2dr wrote: {error}") from error


@dataclass(frozen=True, eq=False)
class LayerScores:
    """The scores of one query layer against documents of one layer."""

    scores: Mapping[str, QueryScores]  # by measure
    tied: Mapping[Cut, int]  # number of queries whose documents all have the same score
    empty: Mapping[Cut, int]  # number of queries that found nothing
    facts: Mapping[str, int]  # of the split: arguments of m2dr.evaluation.checks.query_checks

    @classmethod
    def of(
        cls,
        query_ids: Sequence[str],
        values: Mapping[Cut, Mapping[str, Float64]],
        tied: Mapping[Cut, int],
        empty: Mapping[Cut, int],
        facts: Mapping[str, int],
    ) -> "LayerScores":
        """Join the cuts, whose values are cut -> measure -> [Q]."""
        cuts = tuple(sorted(values))
        stacked = {name: np.stack([values[cut][name] for cut in cuts]) for name in values[cuts[0]]}
        ids = tuple(query_ids)
        scores = {name: QueryScores(name, cuts, ids, rows) for name, rows in stacked.items()}
        return cls(scores, tied, empty, facts)

    def holds(self, dims: Collection[int], measures: Collection[str]) -> bool:
        """Return whether all these dims and measures were measured."""
        return {*dims} <= {cut.dim for cut in self.tied} and {*measures} <= self.scores.keys()

    def only(self, dims: Collection[int], measures: Sequence[str]) -> "LayerScores":
        """Return the scores at some of the dims, by some of the measures."""
        cuts = tuple(cut for cut in sorted(self.tied) if cut.dim in dims)
        scores = {name: self.scores[name].only(cuts) for name in measures}
        tied, empty = ({cut: of[cut] for cut in cuts} for of in (self.tied, self.empty))
        return LayerScores(scores, tied, empty, self.facts)


@dataclass(frozen=True)
class LayerScoresFile:
    """The file of the scores of one layer, whose name holds a digest of all they depend on."""

    folder: Path  # of the grid
    layer: int  # of the queries
    document_layer: int
    question: Mapping[str, object]  # all that a score depends on, fit for JSON
    code: str = F32  # of the documents

    @property
    def path(self) -> Path:
        """The path, which differs for every other question."""
        text = json.dumps({**self.question, "format": PART_FORMAT}, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self.folder / PARTS / f"{self._stem}-{digest}.npz"

    @property
    def _stem(self) -> str:
        code = f"{self.code}-" * (self.code != F32)
        return f"{code}queries-{self.layer:02d}-documents-{self.document_layer:02d}"

    def read(self) -> LayerScores | None:
        """Return the scores, or None where they must be measured."""
        try:
            scores, facts = _read_scores(self.path)
        except UserError:
            return None
        cuts = next(iter(scores.values())).cuts
        tied, empty = (dict(zip(cuts, facts[key], strict=True)) for key in ("tied", "empty"))
        return LayerScores(scores, tied, empty, facts["split"])

    def forget(self) -> None:
        """Remove the files of this layer for all questions, before the runs change."""
        for path in (self.folder / PARTS).glob(f"{self._stem}-*.npz"):
            path.unlink(missing_ok=True)

    def write(self, layer: LayerScores) -> None:
        """Write the scores, atomically."""
        counts = {"tied": list(layer.tied.values()), "empty": list(layer.empty.values())}
        facts = {**counts, "split": dict(layer.facts)}
        write_query_scores(list(layer.scores.values()), self.path, facts)


def with_earlier(
    scores: Mapping[str, QueryScores], folder: Path, question: str
) -> dict[str, QueryScores]:
    """Add the cuts that a grid's folder holds besides, where they were measured alike.

    Args:
        scores: by measure.
        folder: of the grid.
        question: digest of all that the scores depend on, but for their cuts.
    """
    try:
        known, facts = _read_scores(folder / SCORES_FILE)
    except UserError:
        return dict(scores)
    if facts.get("question") != question or not scores.keys() <= known.keys():
        return dict(scores)
    return {name: QueryScores.joined([known[name], one]) for name, one in scores.items()}


def join_layers(layers: Sequence[LayerScores]) -> dict[str, QueryScores]:
    """Return measure -> scores at the cuts of all layers, which have the same queries."""
    names = layers[0].scores
    return {name: QueryScores.joined([layer.scores[name] for layer in layers]) for name in names}
