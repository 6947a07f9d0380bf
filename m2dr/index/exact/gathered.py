"""Which scores may be among the best: few are, so runs of them are compared by their best."""

# Shapes in this file:
#   C queries, n columns, R columns of a run, r runs.

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from m2dr.errors import UserError

RUN = 128  # consecutive scores whose best is compared first: R
_PARTS = 512  # that wait at most, runs or none


@dataclass(frozen=True)
class Runs:
    """Consecutive scores, some of which may be among the best."""

    numbers: Tensor  # [r] int64, whose they are: the dim's, times C, plus the query's
    first: Tensor  # [r] int64, the row of the first score of each
    end: Tensor  # [r] int64, the row after the last that there is
    scores: Tensor  # [r, R]
    ordered: bool  # by number
    whole: bool  # every score is a document's


@dataclass(frozen=True)
class _Part:
    """The runs of one dim; what they stand for is worked out for many parts at once."""

    dim: int  # its number
    per_query: int  # runs of all scores, n / R
    rows: Sequence[range]  # of the documents compared, tile by tile
    best: Tensor  # of all scores; not a number where one of them is none
    found: Tensor  # [r] int64, places among the runs of all scores
    scores: Tensor  # [r, R]


class Gathered:
    """The runs whose best score reaches the bar, since they were taken last."""

    def __init__(self, dims: int, queries: int) -> None:
        """Begin with none.

        Args:
            dims: D.
            queries: C.
        """
        self._queries, self._numbers = queries, dims * queries
        self._parts: list[_Part] = []
        self._runs = 0

    def enough(self) -> bool:
        """Whether to take them, at last: each step has its cost."""
        return self._runs >= self._numbers or len(self._parts) >= _PARTS

    def add(self, dim: int, scores: Tensor, rows: Sequence[range], bar: Tensor) -> None:
        """Keep what reaches the bar.

        Args:
            dim: its number.
            scores: [C, n], of as many columns for each tile, a multiple of RUN; n never changes.
            rows: of each tile's documents, which may be fewer than its columns.
            bar: [C].
        """
        if not self._queries:
            return
        per_query = scores.shape[1] // RUN
        runs = scores.view(-1, RUN)
        best = runs.amax(dim=1)
        found = where((best.view(-1, per_query) >= bar[:, None]).view(-1))
        chosen = runs.index_select(0, found)
        self._parts.append(_Part(dim, per_query, tuple(rows), best.amax(), found, chosen))
        self._runs += len(found)

    def taken(self) -> Runs | None:
        """The runs, which are kept no longer; None before the first.

        Raises:
            UserError: a score was not a number.
        """
        parts, self._parts, self._runs = self._parts, [], 0
        if not parts:
            return None
        if bool(torch.stack([part.best for part in parts]).isnan().any()):
            raise UserError(
                "A score is not a number, so documents cannot be ranked by it. Look at the "
                "vectors: a product of two of them is beyond float32."
            )
        found = torch.cat([part.found for part in parts])
        per_query, tiles = parts[0].per_query, len(parts[0].rows)
        numbers = found // per_query
        within = found - numbers * per_query
        # Of each part: the number of its first query; of each of its tiles: its rows.
        begin = found.new_tensor([part.dim * self._queries for part in parts])
        rows = [rows for part in parts for rows in part.rows]
        starts = found.new_tensor([rows.start for rows in rows])
        ends = found.new_tensor([rows.stop for rows in rows])
        counts = found.new_tensor([len(part.found) for part in parts])
        part = torch.arange(len(parts), device=found.device).repeat_interleave(counts)
        per_tile = per_query // tiles
        tile = within // per_tile
        first = starts[part * tiles + tile] + (within - tile * per_tile) * RUN
        scores = torch.cat([part.scores for part in parts])
        whole = all(len(some) == per_tile * RUN for some in rows)
        end = ends[part * tiles + tile]
        return Runs(numbers + begin[part], first, end, scores, len(parts) == 1, whole)


def where(condition: Tensor) -> Tensor:
    """Positions at which a condition [m] holds, increasing."""
    if condition.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(condition.numpy()))  # five times as fast as torch's
    return condition.nonzero()[:, 0]
