"""`m2dr fuse`: several run files become one."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from m2dr.errors import UserError, counted
from m2dr.evaluate.fusion import RANK_OFFSET, interpolated, reciprocal_ranks
from m2dr.evaluate.runfiles import read_run, write_run
from m2dr.records.run import Run


@dataclass(frozen=True)
class FuseRequest:
    """What `m2dr fuse` was asked."""

    runs: tuple[Path, ...]
    out: Path
    how: Literal["rrf", "interpolate"] = "rrf"
    weights: tuple[float, ...] = ()  # empty: all alike
    k: int = 1000
    rrf_k: float | None = None  # None: as published
    scale: str | None = None  # None: min-max


@dataclass(frozen=True)
class FuseReport:
    """What was written."""

    out: Path
    queries: int
    documents: int  # over all queries
    warnings: tuple[str, ...]  # queries that a run does not hold


def fuse(request: FuseRequest) -> FuseReport:
    """Fuse the runs, and write the result when all of them are read.

    Raises:
        UserError: a run file cannot be read, or a setting would change nothing.
    """
    if request.how == "rrf" and request.scale is not None:
        raise UserError("--scale is of scores, and --how rrf looks at ranks; leave it out.")
    if request.how == "interpolate" and request.rrf_k is not None:
        raise UserError("--rrf-k is of ranks, and --how interpolate looks at scores; leave it out.")
    runs = {path: read_run(path) for path in request.runs}
    given = [runs[path] for path in request.runs]
    if request.how == "rrf":
        offset = RANK_OFFSET if request.rrf_k is None else request.rrf_k
        fused = reciprocal_ranks(given, request.weights, request.k, offset)
    else:
        fused = interpolated(given, request.weights, request.k, request.scale or "min-max")
    write_run(fused, request.out, tag=f"m2dr-{request.how}")
    documents = sum(len(ranking.docids) for ranking in fused.rankings.values())
    return FuseReport(request.out, len(fused), documents, tuple(_gaps(runs, fused)))


def _gaps(runs: Mapping[Path, Run], fused: Run) -> list[str]:
    """Say which runs lack queries that another one holds."""
    counts = {path: len(fused) - len(run) for path, run in runs.items()}
    return [
        f"{path} lacks {count} of the {counted(len(fused), 'queries')}; the others decide there."
        for path, count in counts.items()
        if count
    ]
