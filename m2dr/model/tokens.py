"""Token ids: padded batches, batches of similar length, ragged arrays and masked tokens.

Shapes in this file: B texts of a batch, T tokens of its longest.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeVar

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from m2dr.core.arrays import Int32, Int64, Intp

# Shares of the chosen tokens that are shown unchanged, and replaced by a random token (BERT).
KEPT, SWAPPED = 0.1, 0.1
_MOST_LENGTHS = 256  # distinct ones; split_by_length takes time by its square, milliseconds here

Item = TypeVar("Item")


def pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Int64, Int64]:
    """Return rows of any length as one padded array.

    Args:
        rows: token ids of B texts.
        pad_id: the id of padding, at the right.

    Returns:
        ids [B, T], and mask [B, T]: 1 for a token, 0 for padding.

    >>> ids, mask = pad([[7, 8, 9], [5]], pad_id=0)
    >>> ids.tolist(), mask.tolist()
    ([[7, 8, 9], [5, 0, 0]], [[1, 1, 1], [1, 0, 0]])
    """
    return Ragged.of(rows).pad(np.arange(len(rows)), pad_id)


@dataclass(frozen=True)
class Ragged:
    """Rows of any length in one array: 4 bytes per token, where lists of ints take up to 36.

    >>> rows = Ragged.of([[7, 8, 9], [5]])
    >>> ids, mask = rows.pad([1, 0], pad_id=0)
    >>> ids.tolist(), mask.tolist()
    ([[5, 0, 0], [7, 8, 9]], [[1, 0, 0], [1, 1, 1]])

    Attributes:
        tokens: [tokens] of all rows, concatenated.
        lengths: [rows].
    """

    tokens: Int32
    lengths: Int64

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        """Return the same rows as a ragged array."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        tokens = np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum()))
        return cls(tokens, lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def pad(self, rows: Sequence[int] | Int64, pad_id: int) -> tuple[Int64, Int64]:
        """Return a selection of the rows as `pad` does: ids [B, T], and mask [B, T]."""
        lengths = self.lengths[rows]
        starts = self.lengths.cumsum()[rows] - lengths
        real = np.arange(int(lengths.max(initial=1))) < lengths[:, None]  # [B, T], T at least 1
        ids = np.full(real.shape, pad_id, np.int64)
        ids[real] = self.tokens[(starts[:, None] + np.arange(real.shape[1]))[real]]
        return ids, real.astype(np.int64)


def buckets(lengths: ArrayLike, tokens_per_batch: int, longest_first: bool = False) -> list[Int64]:
    """Return row numbers in batches of similar length, each row in exactly one.

    Rows are taken in order of length, equal ones by row number; a batch ends before rows times
    its longest exceeds the limit. A row longer than the limit is a batch of its own.

    Args:
        lengths: [rows] tokens of each text.
        tokens_per_batch: limit of B x T.
        longest_first: whether to begin with the batch that needs most memory, so that too high a
            limit fails at once.

    >>> [batch.tolist() for batch in buckets([3, 9, 3, 4], tokens_per_batch=8)]
    [[0, 2], [3], [1]]
    """
    tokens = np.maximum(np.asarray(lengths, dtype=np.int64), 1)
    order = np.argsort(-tokens if longest_first else tokens, kind="stable")
    batches, start = [], 0
    while start < len(order):
        # Longest first, all of these fit; shortest first, each is the longest up to itself.
        most = max(1, tokens_per_batch // int(tokens[order[start]]))
        candidates = tokens[order[start : start + most]]
        costs = candidates * np.arange(1, len(candidates) + 1)  # of the first 1, 2, … rows
        rows = max(1, int(np.count_nonzero(costs <= tokens_per_batch)))
        batches.append(order[start : start + rows])
        start += rows
    return batches


def split_by_length(lengths: ArrayLike, parts: int, group_tokens: int = 0) -> list[Int64]:
    """Return row numbers in at most `parts` groups with the fewest tokens, padding among them.

    Exact, by dynamic programming over the distinct lengths: rows of one length are never
    separated. Above 256 distinct lengths they are first rounded up to a common step, which costs
    at most one step of padding per row.

    Args:
        lengths: [rows] tokens of each text.
        parts: groups allowed; fewer are returned where there are fewer distinct lengths.
        group_tokens: what one more group costs, in tokens.

    Returns:
        Row numbers by length, equal ones by row number; the groups from short to long.

    >>> [group.tolist() for group in split_by_length([5, 90, 6, 91], parts=2)]
    [[0, 2], [1, 3]]
    """
    tokens = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(tokens, kind="stable")
    values, counts = np.unique(tokens, return_counts=True)
    if len(values) == 0:
        return []
    if len(values) > _MOST_LENGTHS:  # rounded up to the finest step with few enough
        step = -(-int(tokens.max()) // _MOST_LENGTHS)
        values, counts = np.unique(-(-tokens // step) * step, return_counts=True)
    upto = np.concatenate([[0], np.cumsum(counts)])
    ends = _best_ends(values, upto, min(parts, len(values)), group_tokens)
    return np.split(order, ends[:-1])


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield successive lists of `size` items; the last may be shorter.

    >>> list(batched("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


def masking_order(row: Sequence[int], special: Collection[int], generator: Generator) -> Intp:
    """Return the positions of a text's tokens, without special ones, in random masking order.

    Args:
        row: T token ids.
        special: ids that are never masked.
        generator: of the order.
    """
    tokens = np.asarray(row, dtype=np.int64)
    return generator.permutation(np.flatnonzero(~np.isin(tokens, list(special))))


def mask_tokens(
    row: Sequence[int],
    share: float,
    order: Intp,
    mask_id: int,
    vocabulary: int,
    generator: Generator,
) -> tuple[list[int], Intp]:
    """Mask a share of a text's tokens, as BERT does (Devlin et al. 2019, section 3.1).

    Args:
        row: T token ids.
        share: of the tokens of `order`; at least one is masked, where there is one. A larger
            share of the same order masks all tokens that a smaller one does.
        order: positions from `masking_order`.
        mask_id: replaces most masked tokens.
        vocabulary: number of ids that a random replacement is drawn from.
        generator: of the replacements.

    Returns:
        The T ids of the masked text, and the positions [n] to predict, increasing.
    """
    tokens = np.asarray(row, dtype=np.int64)
    count = min(len(order), max(1, round(share * len(order))))
    positions = np.sort(order[:count])
    draws = generator.random(count)
    swaps = generator.integers(0, vocabulary, size=count)
    shown = tokens.copy()
    masked = np.where(draws < KEPT, tokens[positions], mask_id)
    shown[positions] = np.where(draws >= 1 - SWAPPED, swaps, masked)
    return [int(token) for token in shown], positions


def _best_ends(values: Int64, upto: Int64, parts: int, group_tokens: int) -> list[int]:
    """Return where each group ends among the sorted rows, for the fewest tokens.

    Args:
        values: [u] distinct lengths, increasing.
        upto: [u + 1] number of rows whose length is among the first 0, 1, … u values.
        parts: groups at most, from 1 to u.
        group_tokens: that a group costs beside those in it.
    """
    # cost[i, j]: tokens of one group that holds values i..j, padded to the longest, value j. Below
    # the diagonal it is negative by less than values j+1..i-1 cost, so it is never chosen.
    cost = (upto[1:] - upto[:-1, None]) * values  # [u, u]
    best, choices, costs = cost[0], [], [int(cost[0, -1])]
    for number in range(1, parts):
        # The last group holds values i..j, and the groups before it all values below i.
        total = np.concatenate([[0], best[:-1]])[:, None] + cost
        choices.append(total.argmin(axis=0))
        best = total.min(axis=0)
        costs.append(int(best[-1]) + number * group_tokens)
    ends, last = [len(values)], len(values) - 1
    for choice in reversed(choices[: int(np.argmin(costs))]):
        ends.append(int(choice[last]))
        last = ends[-1] - 1
    return [int(upto[end]) for end in reversed(ends)]
