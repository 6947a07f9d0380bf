"""`m2dr compare`: compare a grid with another grid, one cut of it, or a run of any system."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, nearest
from m2dr.core.files import refuse_pipe, short_name
from m2dr.core.records import Cut, Ranking, Run
from m2dr.core.requests import ALPHA, CompareRequest
from m2dr.data.qrels import read_judgements
from m2dr.evaluate.comparison import Comparison, comparison_table, write_comparison
from m2dr.evaluate.grid import GRID, SCORES, Grid, QueryScores, read_grid, read_scores, remake
from m2dr.evaluate.measures import Evaluator
from m2dr.evaluate.runs import read_run
from m2dr.evaluate.significance import paired

QRELS = Path("runs") / "qrels.tsv"  # in the folder of a grid, where runs were kept
OWN_DROPPED = "own document is dropped"  # in a note of the grid, when its dataset asks for it
USUAL = "nDCG@10"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CompareReport:
    """The comparisons, and the folder that they were written to."""

    comparisons: tuple[Comparison, ...]
    files: tuple[Path, ...]


@dataclass(frozen=True)
class _Baseline:
    """The scores of a baseline, in the order of its queries."""

    name: str
    against: str  # as Comparison has it
    rows: dict[Cut, Floats]  # cut of the model -> [Q]
    notes: tuple[str, ...] = ()


def compare_folders(request: CompareRequest) -> CompareReport:
    """Compare a grid with every baseline asked for, and write a table of each."""
    paths = {Path(one).resolve(): one for one in request.against}  # each once
    measures, rest = dict.fromkeys(request.measures or ("",)), (request.alpha, request.qrels)
    of_paths = {
        path: [compare(request.folder, one, measure, *rest) for measure in measures]
        for path, one in paths.items()
    }
    comparisons = list(_told_apart(of_paths))
    files: list[Path] = []
    for comparison in comparisons:
        name = short_name(_plain(f"{comparison.measure}-against-{comparison.baseline}"))
        files += write_comparison(comparison, (request.out or request.folder) / name)
    return CompareReport(tuple(comparisons), tuple(files))


def _told_apart(of_paths: Mapping[Path, Sequence[Comparison]]) -> Iterator[Comparison]:
    """Yield the comparisons; baselines of one name have the end of their path in its place.

    Else tables would not tell them apart, and the second would overwrite the files of the first.
    """
    names = {path: _plain(found[0].baseline) for path, found in of_paths.items()}
    for path, found in of_paths.items():
        others = [one for one in names if one != path and names[one] == names[path]]
        depth = 2
        while any(one.parts[-depth:] == path.parts[-depth:] for one in others):
            depth += 1
        for one in found:
            name = "/".join(path.parts[-depth:]) if others else one.baseline
            told = one.against.removesuffix(one.baseline) + name
            yield replace(one, baseline=name, against=told)


def compare(
    folder: Path,
    against: str,
    measure: str = "",
    alpha: float = ALPHA,
    qrels: Path | None = None,
) -> Comparison:
    """Compare every cell of a grid with a baseline, query by query.

    Args:
        folder: of the grid, as `m2dr evaluate` wrote it.
        against: another such folder, compared cut by cut; FOLDER@L6D384, with which every cell is
            compared; or a TREC run file.
        measure: nDCG@10 when empty and the grid holds it, else the grid's first.
        alpha: the level that cells are marked at.
        qrels: judgements for a run file; those kept with the results when None.

    Raises:
        UserError: a folder or file is missing or damaged, the measure was not kept, or the baseline
            is of other queries.
    """
    if not 0 < alpha < 1:
        raise UserError(f"The level {alpha:g} was asked for; alpha lies between 0 and 1.")
    grid, scores = grid_of(folder), _scores_of(folder, measure)
    baseline = _baseline(folder, grid, scores, against, qrels)
    cuts = [cut for cut in scores.cuts if cut in baseline.rows]
    if not cuts:
        raise UserError(
            f"{baseline.name} has none of the cuts of {grid.model}; compare with one of its cuts, "
            f"as FOLDER@L6D384, or evaluate both at the same layers and dims."
        )
    mine = np.stack([scores.at(cut) for cut in cuts])
    theirs = np.stack([baseline.rows[cut] for cut in cuts])
    return Comparison(
        model=grid.model,
        place=grid.place,
        measure=scores.measure,
        queries=len(scores.query_ids),
        baseline=baseline.name,
        against=baseline.against,
        alpha=alpha,
        values={cut: float(scores.at(cut).mean()) for cut in scores.cuts},
        cells=dict(zip(cuts, paired(mine, theirs, alpha), strict=True)),
        notes=baseline.notes,
    )


def tables(comparisons: Sequence[Comparison]) -> str:
    """Return the comparisons as text tables, one under the other."""
    return "\n\n".join(map(comparison_table, comparisons))


def grid_of(folder: Path) -> Grid:
    """Read the grid of a folder; the refusal names folders near it that hold one."""
    if not (folder / GRID).is_file():
        near = sorted(str(path.parent) for path in folder.glob(f"**/{GRID}"))[:5]
        hint = f"Did you mean {', or '.join(near)}?" if near else "Correct the path."
        raise UserError(f"{folder} holds no results of a model ({GRID}). {hint}")
    return read_grid(folder / GRID, f"Make it again {remake(folder)}")


def _scores_of(folder: Path, measure: str) -> QueryScores:
    held = read_scores(folder)
    name = measure or (USUAL if USUAL in held else next(iter(held)))
    if name not in held:
        raise UserError(
            f"{folder / SCORES} does not hold {name}. {nearest(name, held)} Another measure is "
            f"kept {remake(folder, (*held, name))}"
        )
    return held[name]


def _baseline(
    folder: Path, grid: Grid, scores: QueryScores, against: str, qrels: Path | None
) -> _Baseline:
    """Open the baseline that `against` names."""
    path = Path(against)
    refuse_pipe(path)
    if path.is_dir():
        return _grid_baseline(path, None, scores)
    if path.is_file():
        return _run_baseline(path, grid, scores, qrels or _kept_qrels(folder))
    place, at, word = against.rpartition("@")
    if at and Path(place).is_dir():
        return _grid_baseline(Path(place), Cut.parse(word), scores)
    raise UserError(
        f"There is no {against} to compare with; give a folder of results, one cut of it as "
        f"FOLDER@L6D384, or a TREC run file."
    )


def _grid_baseline(folder: Path, cut: Cut | None, scores: QueryScores) -> _Baseline:
    grid, theirs = grid_of(folder), _scores_of(folder, scores.measure)
    _require_same(scores.query_ids, theirs.query_ids, str(folder))
    places = {query: place for place, query in enumerate(theirs.query_ids)}
    order = [places[query] for query in scores.query_ids]
    if cut is not None:
        row, name = theirs.at(cut)[order], f"{grid.model} at {cut}"
        return _Baseline(name, name, dict.fromkeys(scores.cuts, row))
    rows = {one: theirs.at(one)[order] for one in scores.cuts if one in theirs.cuts}
    left = [str(one) for one in scores.cuts if one not in rows]
    note = f"{grid.model} was not measured at {', '.join(left)}, which are not compared"
    return _Baseline(grid.model, f"the same cut of {grid.model}", rows, (note,) if left else ())


def _run_baseline(path: Path, grid: Grid, scores: QueryScores, qrels: Path | None) -> _Baseline:
    """Measure a run as the grid was; a query without documents counts as 0."""
    if qrels is None:
        raise UserError(
            f"{path} is a run, and {grid.model}'s results keep no judgements to measure it by; "
            f"give them with --qrels, as in --qrels {grid.corpus}/qrels/{grid.split or 'test'}.tsv."
        )
    judgements = [judgement for _, judgement in read_judgements(qrels)]
    judged = tuple(dict.fromkeys(judgement.query_id for judgement in judgements))
    _require_same(scores.query_ids, judged, str(qrels))
    run, notes = read_run(path), []
    if any(OWN_DROPPED in note for note in grid.notes):
        run = _without_own(run)
        notes.append(f"the query's own document is dropped from {path.name} too")
    absent = [query for query in judged if query not in run.rankings]
    if absent and (len(absent) == len(judged) or not run.rankings.keys() <= set(judged)):
        _require_same(judged, tuple(run.rankings), str(path))
    values = Evaluator(judgements, [scores.measure]).scores(run).per_query[scores.measure]
    row = np.array([values[query] for query in scores.query_ids])
    if absent:
        told = f"{len(absent)} of {len(judged)} queries"
        notes.append(f"{told} are not in {path.name} and count as 0 there")
    return _Baseline(path.name, path.name, dict.fromkeys(scores.cuts, row), tuple(notes))


def _without_own(run: Run) -> Run:
    """Return the run without documents that have the query's own id."""
    return Run(
        {
            query: Ranking.of(ranking.docids, ranking.scores, drop=query)
            for query, ranking in run.rankings.items()
        }
    )


def _kept_qrels(folder: Path) -> Path | None:
    """Return the file of judgements that was kept with the grid, or None."""
    return folder / QRELS if (folder / QRELS).is_file() else None


def _require_same(asked: Sequence[str], found: Sequence[str], where: str) -> None:
    """Raise UserError unless both hold the same queries, in any order."""
    here, there = set(asked), set(found)
    if here == there:
        return
    lacks = _some(sorted(here - there))
    more = _some(sorted(there - here))
    raise UserError(
        f"{where} is of other queries: of the {len(here)} to compare it lacks {lacks}, and it has "
        f"{more} beside; a paired test needs the same ones. Measure both on the same split."
    )


def _some(names: Sequence[str]) -> str:
    """Return the number of names and the first few of them."""
    if not names:
        return "none"
    shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"{len(names)} ({shown})"


def _plain(name: str) -> str:
    """Return a name as a file name."""
    return "".join(char if char.isalnum() or char in "@.-_" else "-" for char in name)
