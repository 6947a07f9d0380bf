"""Texts to token ids and masks, in batches that waste little on padding."""

# Shapes in this file: B texts of a batch, T tokens of its longest.

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Item = TypeVar("Item")

_DISTINCT = 256  # lengths; split_by_length takes time by its square, milliseconds here


class Tokenizer(Protocol):
    """What turns texts into token ids; which model it belongs to is not known here."""

    @property
    def pad_id(self) -> int:
        """The id that fills up short rows."""
        ...

    def __call__(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Token ids of each text, special tokens included, at most `max_length` of them."""
        ...


def pad(rows: Sequence[Sequence[int]], pad_id: int, multiple: int = 1) -> tuple[Ints, Ints]:
    """Rows of any length as one rectangle.

    Args:
        rows: token ids of B texts.
        pad_id: fills up at the right.
        multiple: T is rounded up to a multiple of this many tokens.

    Returns:
        ids [B, T], and mask [B, T]: 1 for a token, 0 for padding.

    >>> ids, mask = pad([[7, 8, 9], [5]], pad_id=0)
    >>> ids.tolist(), mask.tolist()
    ([[7, 8, 9], [5, 0, 0]], [[1, 1, 1], [1, 0, 0]])
    """
    lengths = np.array([len(row) for row in rows], dtype=np.int64)  # [B]
    longest = -(-int(lengths.max(initial=0)) // multiple) * multiple
    real = np.arange(longest) < lengths[:, None]  # [B, T]
    ids = np.full(real.shape, pad_id, dtype=np.int64)
    ids[real] = [token for row in rows for token in row]
    return ids, real.astype(np.int64)


def buckets(lengths: ArrayLike, tokens_per_batch: int, longest_first: bool = False) -> list[Ints]:
    """Row numbers in batches of like length, each row in exactly one.

    Rows are taken in order of length, equal ones by row number, and a batch is closed when rows
    times its longest would exceed the limit. A row longer than the limit is a batch alone.

    Args:
        lengths: [rows] tokens of each text.
        tokens_per_batch: limit of B x T.
        longest_first: begin with the batch that needs most memory, so that a limit too high
            fails at once.

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


def split_by_length(lengths: ArrayLike, parts: int) -> list[Ints]:
    """Row numbers in at most `parts` groups, so that padding each to its longest costs least.

    Exact, by dynamic programming over the distinct lengths: cutting inside a run of equal lengths
    never helps. Above 256 distinct lengths they are first rounded up to a common step, which costs
    at most one step of padding per row.

    Args:
        lengths: [rows] tokens of each text.
        parts: groups allowed; fewer are returned where there are fewer distinct lengths.

    Returns:
        Row numbers by length, equal ones by row number; the groups from short to long.

    >>> [group.tolist() for group in split_by_length([5, 90, 6, 91], parts=2)]
    [[0, 2], [1, 3]]
    """
    tokens = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(tokens, kind="stable")
    values, counts = np.unique(_coarse(tokens), return_counts=True)
    if len(values) == 0:
        return []
    ends = _best_ends(values, np.concatenate([[0], np.cumsum(counts)]), min(parts, len(values)))
    return np.split(order, ends[:-1])


def windows(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Successive lists of `size` items; the last may be shorter.

    >>> list(windows("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    source = iter(items)
    while window := list(islice(source, size)):
        yield window


def _coarse(tokens: Ints) -> Ints:
    """Lengths rounded up to the finest step that leaves few enough distinct ones."""
    if len(np.unique(tokens)) <= _DISTINCT:
        return tokens
    step = -(-int(tokens.max()) // _DISTINCT)
    rounded: Ints = -(-tokens // step) * step
    return rounded


def _best_ends(values: Ints, upto: Ints, parts: int) -> list[int]:
    """Where each group ends among the sorted rows, with least padded tokens in all.

    Args:
        values: [u] distinct lengths, increasing.
        upto: [u + 1] rows whose length is among the first 0, 1, … u values.
        parts: groups, from 1 to u.
    """
    # cost[i, j]: tokens of one group that holds values i..j, padded to the longest, value j. Below
    # the diagonal it takes back values j+1..i-1 for less than they cost, so it is never chosen.
    cost = (upto[1:] - upto[:-1, None]) * values  # [u, u]
    best, choices = cost[0], []
    for _ in range(parts - 1):
        # One more group: it holds i..j, and the groups before it hold all values below i.
        total = np.concatenate([[0], best[:-1]])[:, None] + cost
        choices.append(total.argmin(axis=0))
        best = total.min(axis=0)
    ends, last = [len(values)], len(values) - 1
    for choice in reversed(choices):
        ends.append(int(choice[last]))
        last = ends[-1] - 1
    return [int(upto[end]) for end in reversed(ends)]
