"""The measures of a model's cuts, as the page shows them."""

from pathlib import Path
from typing import Any

from m2dr.core.errors import UserError
from m2dr.core.requests import RESULTS
from m2dr.evaluate.grid import GRID, PROVENANCE, Grid, read_grid, read_provenance

_PREFERRED = ("nDCG@10", "RR@10")


def find_grid(given: Path | None, corpus: str, fingerprint: str) -> Grid | None:
    """Return the grid that was given, or that of a model and a corpus in results/, if any.

    Raises:
        UserError: the given file is no grid.
    """
    if given is not None:
        return read_grid(given)
    for path in sorted(RESULTS.rglob(PROVENANCE)):
        try:
            made = read_provenance(path.parent)
            if made is None or made.fingerprint != fingerprint or not (path.parent / GRID).exists():
                continue
            grid = read_grid(path.parent / GRID)
        except UserError:
            continue  # a damaged file that nobody named
        if corpus in (made.corpus, grid.corpus):
            return grid
    return None


def grid_table(grid: Grid) -> dict[str, Any]:
    """Return one measure of each cut: nDCG@10 where the grid holds it."""
    known = [name for name in _PREFERRED if name in grid.measures]
    measure = (*known, *grid.measures)[0]
    cells = [
        {"layer": cut.layer, "dim": cut.dim, "value": value}
        for cut, value in grid.values(measure).items()
    ]
    return {"measure": measure, "split": grid.place, "queries": grid.queries, "cells": cells}
