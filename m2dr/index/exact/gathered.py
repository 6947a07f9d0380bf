"""Which scores may be among the best: few are, so runs of them are compared by their best."""

# Shapes in this file:
#   C queries, n columns, R columns of a run, r runs, m candidates.

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from m2dr.errors import UserError, command

RUN = 128  # consecutive scores whose best is compared first, at most: R
# Shorter ones as long as fewer than so many documents came for each that is wanted, for most of the
# longer would have one that reaches the bar.
_SHORTER = ((64, 1), (512, 32))
_WAIT = 16  # runs that wait for each query and dim: a 16th of what is wanted, and 16 at most
_PARTS = 512  # that wait at most, runs or none


@dataclass(frozen=True)
class Candidates:
    """Documents that may be among the best."""

    numbers: Tensor  # [m] int64, increasing; whose they are: the dim's, times C, plus the query's
    rows: Tensor  # [m] int64
    scores: Tensor  # [m], unscaled; good until the next run is added


@dataclass(frozen=True)
class _Part:
    """The runs of one dim; what they stand for is worked out for many parts at once."""

    dim: int  # its number
    rows: Sequence[range]  # of the documents compared, tile by tile
    best: Tensor  # of all scores; not a number where one of them is none
    found: Tensor  # [r] int64, places among the runs of all scores


class Gathered:
    """The runs whose best score reaches the bar, since they were taken last."""

    def __init__(self, dims: int, queries: int, k: int, sifted: bool = False) -> None:
        """Begin with none.

        Args:
            dims: D.
            queries: C.
            k: how many documents are wanted for each.
            sifted: whether few reach the bar from the beginning.
        """
        self._dims, self._queries, self._k = dims, queries, k
        self._run = 1  # R of all that wait
        self._per_query = 0  # runs of all scores, n / R
        # Columns, of all dims together; when sifted, as if enough had come for the longest runs.
        self._seen = _SHORTER[-1][0] * dims * k if sifted else 0
        self._parts: list[_Part] = []
        self._runs = 0  # r of all parts
        self._scores = torch.empty(0)  # [r * R] and room for more

    def enough(self) -> bool:
        """Whether to take them, at last: each step has its cost."""
        wait = min(max(self._k // _WAIT, 1), _WAIT)
        return self._runs >= wait * self._dims * self._queries or len(self._parts) >= _PARTS

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
        if self._scores.device != scores.device or self._scores.dtype != scores.dtype:
            self._scores = scores.new_empty(0)
        if not self._parts:
            self._run = self._length()
        self._seen += scores.shape[1]
        runs = scores.view(-1, self._run)
        best = runs.amax(dim=1) if self._run > 1 else runs[:, 0]
        found = _reaching(best.view(self._queries, -1), bar)
        self._hold(runs, found)
        self._parts.append(_Part(dim, tuple(rows), best.amax(), found))
        self._per_query = scores.shape[1] // self._run

    def _hold(self, runs: Tensor, found: Tensor) -> None:
        """Copy runs behind those that wait."""
        begin, end = self._runs * self._run, (self._runs + len(found)) * self._run
        if end > len(self._scores):
            room = runs.new_empty(max(end, 2 * len(self._scores)))
            room[:begin] = self._scores[:begin]
            self._scores = room
        torch.index_select(runs, 0, found, out=self._scores[begin:end].view(-1, self._run))
        self._runs += len(found)

    def _length(self) -> int:
        """Of the next runs."""
        per_wanted = self._seen / (self._dims * self._k)
        return next((run for fewer, run in _SHORTER if per_wanted < fewer), RUN)

    def taken(self, bar: Tensor) -> Candidates | None:
        """What reaches the bar, of the runs, which are kept no longer; None before the first.

        Args:
            bar: of each number, not below what it was when a run came.

        Raises:
            UserError: a score was not a number.
        """
        parts, scores = self._parts, self._scores[: self._runs * self._run]
        self._parts, self._runs = [], 0
        if not parts:
            return None
        if bool(torch.stack([part.best for part in parts]).isnan().any()):
            raise not_a_number()
        numbers, rows, end = self._placed(parts)
        if self._run > 1:
            entering = _reaching(scores.view(-1, self._run), bar.index_select(0, numbers))
            run = entering // self._run
            begin = rows - torch.arange(0, len(scores), self._run, device=rows.device)
            rows, end = begin.index_select(0, run) + entering, end.index_select(0, run)
            numbers, scores = numbers.index_select(0, run), scores.index_select(0, entering)
        if any(len(some) < self._columns(part) for part in parts for some in part.rows):
            real = where(rows < end)
            numbers, rows, scores = numbers[real], rows[real], scores[real]
        if parts[1:]:
            numbers, order = numbers.sort(stable=True)
            rows, scores = rows[order], scores[order]
        return Candidates(numbers, rows, scores)

    def _columns(self, part: _Part) -> int:
        """Of a tile."""
        return self._per_query * self._run // len(part.rows)

    def _placed(self, parts: list[_Part]) -> tuple[Tensor, Tensor, Tensor]:
        """Each run's number, the row of its first score, and the one after its tile's last."""
        found = torch.cat([part.found for part in parts])
        query = found // self._per_query
        column = (found - query * self._per_query) * self._run
        # Of each part: the number of its first query; of each of its tiles: its rows.
        begin = found.new_tensor([part.dim * self._queries for part in parts])
        starts = found.new_tensor([rows.start for part in parts for rows in part.rows])
        ends = found.new_tensor([rows.stop for part in parts for rows in part.rows])
        if len(starts) == 1:
            return query + begin, column + starts, ends.expand(len(found))
        counts = found.new_tensor([len(part.found) for part in parts])
        part = torch.arange(len(parts), device=found.device).repeat_interleave(counts)
        tiles = len(parts[0].rows)
        if tiles == 1:
            return query + begin[part], column + starts[part], ends[part]
        columns = self._columns(parts[0])
        tile = column // columns
        of_all = part * tiles + tile
        rows = starts[of_all] + column - tile * columns
        return query + begin[part], rows, ends[of_all]


def not_a_number() -> UserError:
    """Of a score."""
    return UserError(
        "A score is not a number, so documents cannot be ranked by it. Look at the vectors: a "
        "product of two of them is beyond float32, or a file is damaged, which you see with: "
        f"{command('index', 'verify')}, and --indexes where they lie elsewhere"
    )


def _reaching(scores: Tensor, bar: Tensor) -> Tensor:
    """Places among all scores [m, R] of those that reach a row's bar, [m]."""
    if scores.device.type == "cpu":
        # Twice as fast as torch's comparison.
        reach = scores.numpy() >= bar.numpy()[:, None]
        return torch.from_numpy(np.flatnonzero(reach))
    return where((scores >= bar[:, None]).view(-1))


def where(condition: Tensor) -> Tensor:
    """Positions at which a condition [m] holds, increasing."""
    if condition.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(condition.numpy()))  # five times as fast as torch's
    return condition.nonzero()[:, 0]
