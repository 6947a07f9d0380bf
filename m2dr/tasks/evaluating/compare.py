"""`m2dr compare`: compare a grid with another grid, one cut of it, or a run of any system.

Shapes: Q queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from m2dr.core.arrays import Float64
from m2dr.core.errors import UserError, nearest
from m2dr.core.files import short_name
from m2dr.core.records import Cut, Ranking, Run
from m2dr.core.report import Report
from m2dr.core.requests import ALPHA, CompareRequest
from m2dr.data.qrels import read_judgements
from m2dr.evaluation.comparison import Comparison, write_comparison
from m2dr.evaluation.grid import GRID, SCORES_FILE, Grid, QueryScores, read_grid, read_query_scores
from m2dr.evaluation.measures import Evaluator
from m2dr.evaluation.runs import read_run
from m2dr.evaluation.significance import paired

QRELS = Path("runs") / "qrels.tsv"  # in the folder of a grid, where runs were kept
OWN_DROPPED = "own document is dropped"  # in a note of the grid, when its dataset asks for it
USUAL = "nDCG@10"


@dataclass(frozen=True)
class CompareReport(Report):
    """The comparisons, and the files that they were written to."""

    comparisons: tuple[Comparison, ...]

    def record(self) -> dict[str, Any]:
        """Return what the command prints as JSON."""
        return {
            "comparisons": [comparison.record() for comparison in self.comparisons],
            "files": self.files,
        }


@dataclass(frozen=True)
class _Baseline:
    """The scores of a baseline, in the order of its queries."""

    name: str
    against: str  # as Comparison has it
    rows: dict[Cut, Float64]  # cut of the model -> [Q]
    notes: tuple[str, ...] = ()
    grid: Grid | None = None  # of a run there is none


def compare_folders(request: CompareRequest) -> CompareReport:
    """Compare a grid with every baseline asked for, and write a table of each.

    Raises:
        UserError: as `compare` does, or two baselines have one name.
    """
    paths = {Path(name).resolve(): name for name in request.against}
    comparisons = [
        compare(request.folder, name, measure, request.alpha, request.qrels)
        for name in paths.values()
        for measure in dict.fromkeys(request.measures) or ("",)
    ]
    files: list[Path] = []
    by_name = {plain(f"{c.measure}-against-{c.baseline}"): c for c in comparisons}
    if len(by_name) < len(comparisons):
        raise UserError("Two baselines have one name; compare each alone, with its own --out.")
    for name, comparison in by_name.items():
        files += write_comparison(comparison, (request.out or request.folder) / short_name(name))
    text = "\n".join(["\n\n".join(map(str, comparisons)), *map(str, files)])
    return CompareReport(tuple(comparisons), text=text, files=tuple(files))


def compare(
    folder: Path, against: str, measure: str = "", alpha: float = ALPHA, qrels: Path | None = None
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
        raise UserError(f"{baseline.name} has none of the cuts of {grid.model}.")
    mine = np.stack([scores.at(cut) for cut in cuts])
    theirs = np.stack([baseline.rows[cut] for cut in cuts])
    model, against, notes = grid.model, baseline.against, baseline.notes
    other = baseline.grid or grid
    if other.lengths != grid.lengths:
        notes = (f"{model}: {grid.lengths}; {other.model}: {other.lengths}", *notes)
    if other.system and other.system != grid.system:
        model, against = f"{model} ({grid.system})", f"{against} ({other.system})"
        raw = "m2dr evaluate retrieval --exits model measures a model by its own exits"
        notes = (f"these are different systems; {raw}", *notes)
    return Comparison(
        model=model,
        place=grid.place,
        measure=scores.measure,
        queries=len(scores.query_ids),
        baseline=baseline.name,
        against=against,
        alpha=alpha,
        values={cut: float(scores.at(cut).mean()) for cut in scores.cuts},
        cells=dict(zip(cuts, paired(mine, theirs, alpha), strict=True)),
        notes=notes,
    )


def grid_of(folder: Path) -> Grid:
    """Read the grid of a folder; the refusal names folders near it that hold one."""
    if not (folder / GRID).is_file():
        near = sorted(str(path.parent) for path in folder.glob(f"**/{GRID}"))[:5]
        hint = f" Did you mean {', or '.join(near)}?" if near else ""
        raise UserError(f"{folder} holds no results of a model ({GRID}).{hint}")
    return read_grid(folder)


def plain(name: str) -> str:
    """Return a name as a file name."""
    return "".join(char if char.isalnum() or char in "@.-_" else "-" for char in name)


def _scores_of(folder: Path, measure: str) -> QueryScores:
    scores = read_query_scores(folder)
    name = measure or (USUAL if USUAL in scores else next(iter(scores)))
    if name not in scores:
        raise UserError(f"{folder / SCORES_FILE} does not hold {name}. {nearest(name, scores)}")
    return scores[name]


def _baseline(
    folder: Path, grid: Grid, scores: QueryScores, against: str, qrels: Path | None
) -> _Baseline:
    """Open the baseline that `against` names."""
    path = Path(against)
    if path.is_dir():
        return _grid_baseline(path, None, scores)
    if path.is_file():
        own_qrels = folder / QRELS
        qrels = qrels or (own_qrels if own_qrels.is_file() else None)
        return _run_baseline(path, grid, scores, qrels)
    results, at, word = against.rpartition("@")
    if at and Path(results).is_dir():
        return _grid_baseline(Path(results), Cut.parse_coded(word), scores)
    raise UserError(f"{against} is no folder of results, FOLDER@L6D384 or run to compare with.")


def _grid_baseline(folder: Path, cut: Cut | None, scores: QueryScores) -> _Baseline:
    grid, theirs = grid_of(folder), _scores_of(folder, scores.measure)
    _require_same(scores.query_ids, theirs.query_ids, str(folder))
    rows_of = {query: row for row, query in enumerate(theirs.query_ids)}
    order = [rows_of[query] for query in scores.query_ids]
    if cut is not None:
        row, name = theirs.at(cut)[order], f"{grid.model} at {cut}"
        return _Baseline(name, name, dict.fromkeys(scores.cuts, row), grid=grid)
    rows = {c: theirs.at(c)[order] for c in scores.cuts if c in theirs.cuts}
    missing = [str(c) for c in scores.cuts if c not in rows]
    note = f"{grid.model} was not measured at {', '.join(missing)}, which are not compared"
    notes = (note,) if missing else ()
    return _Baseline(grid.model, f"the same cut of {grid.model}", rows, notes, grid)


def _run_baseline(path: Path, grid: Grid, scores: QueryScores, qrels: Path | None) -> _Baseline:
    """Measure a run as the grid was; a query without documents counts as 0."""
    if qrels is None:
        raise UserError(f"The results keep no judgements to measure {path.name} by; give --qrels.")
    judgements = list(read_judgements(qrels))
    judged = tuple(dict.fromkeys(judgement.query_id for judgement in judgements))
    _require_same(scores.query_ids, judged, str(qrels))
    run, notes = read_run(path), []
    if any(OWN_DROPPED in note for note in grid.notes):
        rankings = run.rankings.items()
        run = Run({q: Ranking.of(hits.docids, hits.scores, drop=q) for q, hits in rankings})
        notes.append(f"the query's own document is dropped from {path.name} too")
    absent = [query for query in judged if query not in run.rankings]
    if absent and (len(absent) == len(judged) or not run.rankings.keys() <= set(judged)):
        _require_same(judged, tuple(run.rankings), str(path))
    values = Evaluator(judgements, [scores.measure]).scores(run).per_query[scores.measure]
    row = np.array([values[query] for query in scores.query_ids])
    if absent:
        share = f"{len(absent)} of {len(judged)} queries"
        notes.append(f"{share} are not in {path.name} and count as 0 there")
    return _Baseline(path.name, path.name, dict.fromkeys(scores.cuts, row), tuple(notes))


def _require_same(query_ids: Sequence[str], others: Sequence[str], where: str) -> None:
    """Raise UserError unless both hold the same queries, in any order."""
    ours, theirs = set(query_ids), set(others)
    if ours != theirs:
        first = min(ours ^ theirs)
        lacks = f"it lacks {len(ours - theirs)} and has {len(theirs - ours)} others"
        raise UserError(f"{where} has other queries, such as {first}: {lacks}.")
