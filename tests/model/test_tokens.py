from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from m2dr.model.tokens import Ragged, buckets, mask_tokens, masking_order, pad, split_by_length

lengths_of_texts = st.lists(st.integers(0, 40), max_size=60)


@given(
    rows=st.lists(st.lists(st.integers(1, 9), max_size=12), max_size=8),
    pad_id=st.integers(0, 5),
)
def test_padding_adds_nothing_but_padding(rows: list[list[int]], pad_id: int) -> None:
    ids, mask = pad(rows, pad_id)

    longest = max([1, *map(len, rows)])  # a text without a token is one of padding
    assert ids.shape == mask.shape == (len(rows), longest)
    assert ids.dtype == mask.dtype == np.int64
    for row, filled, real in zip(rows, ids, mask, strict=True):
        rest = ids.shape[1] - len(row)
        assert filled.tolist() == row + [pad_id] * rest
        assert real.tolist() == [1] * len(row) + [0] * rest


@given(lengths=lengths_of_texts, limit=st.integers(1, 200), longest_first=st.booleans())
def test_batches_hold_every_row_once_and_keep_the_limit(
    lengths: list[int], limit: int, longest_first: bool
) -> None:
    found = buckets(lengths, limit, longest_first)

    assert sorted(row for batch in found for row in batch.tolist()) == list(range(len(lengths)))
    for batch in found:
        longest = max(lengths[row] for row in batch)
        assert len(batch) == 1 or len(batch) * longest <= limit
    in_order = [lengths[row] if not longest_first else -lengths[row] for b in found for row in b]
    positive = [max(value, 1) if not longest_first else min(value, -1) for value in in_order]
    assert positive == sorted(positive)


def padded(lengths: list[int], groups: list[np.ndarray]) -> int:
    return sum(len(group) * max(lengths[row] for row in group) for group in groups)


def cheapest(lengths: list[int], parts: int, group_tokens: int) -> int:
    """By trying every way to cut the sorted lengths."""
    ordered = sorted(lengths)
    costs = []
    for count in range(min(parts, len(ordered))):
        for cuts in combinations(range(1, len(ordered)), count):
            bounds = [0, *cuts, len(ordered)]
            pieces = [ordered[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
            costs.append(sum(group_tokens + len(piece) * piece[-1] for piece in pieces))
    return min(costs)


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=9),
    parts=st.integers(1, 4),
    group_tokens=st.sampled_from([0, 1, 5, 20]),
)
def test_no_other_way_to_cut_by_length_costs_less(
    lengths: list[int], parts: int, group_tokens: int
) -> None:
    groups = split_by_length(lengths, parts, group_tokens)

    assert 1 <= len(groups) <= parts
    cost = padded(lengths, groups) + group_tokens * len(groups)
    assert cost == cheapest(lengths, parts, group_tokens)


@given(lengths=st.lists(st.integers(0, 2000), max_size=800), parts=st.integers(1, 6))
def test_groups_by_length_hold_every_row_once_from_short_to_long(
    lengths: list[int], parts: int
) -> None:
    groups = split_by_length(lengths, parts)

    rows = [int(row) for group in groups for row in group]
    assert all(len(group) for group in groups)
    assert sorted(rows) == list(range(len(lengths)))
    assert rows == sorted(rows, key=lambda row: (lengths[row], row))


# Ragged rows


rows_of_tokens = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=7), max_size=9)


@given(rows=rows_of_tokens, data=st.data())
def test_some_rows_are_padded_as_they_would_be_from_lists(
    rows: list[list[int]], data: st.DataObject
) -> None:
    ragged = Ragged.of(rows)
    numbers = st.sampled_from(range(len(rows))) if rows else st.nothing()
    chosen = data.draw(st.lists(numbers, max_size=5)) if rows else []

    ids, mask = ragged.pad(chosen, pad_id=3)

    expected_ids, expected_mask = pad([rows[i] for i in chosen], pad_id=3)
    assert len(ragged) == len(rows)
    assert ids.tolist() == expected_ids.tolist()
    assert mask.tolist() == expected_mask.tolist()


# Masking


MASK, WORDS, SPECIAL = 4, 50, {0, 2, 3, 4}


def masked(row: list[int], share: float, seed: int, turn: int = 1) -> tuple[list[int], np.ndarray]:
    order = masking_order(row, SPECIAL, np.random.default_rng([seed, 0]))
    return mask_tokens(row, share, order, MASK, WORDS, np.random.default_rng([seed, turn]))


rows = st.lists(st.integers(5, WORDS - 1), max_size=60).map(lambda middle: [2, *middle, 3])


@given(rows, st.floats(0.01, 0.99), st.integers(0, 2**32 - 1))
def test_only_the_places_to_guess_are_changed_and_no_special_token_is_one(
    row: list[int], share: float, seed: int
) -> None:
    shown, places = masked(row, share, seed)

    others = np.setdiff1d(np.arange(len(row)), places)
    assert [shown[i] for i in others] == [row[i] for i in others]
    assert not {row[i] for i in places} & SPECIAL
    able = len(row) - 2
    assert len(set(places.tolist())) == len(places) == min(able, max(1, round(share * able)))


def test_eight_of_ten_hidden_tokens_are_masks_one_is_kept_and_one_swapped() -> None:
    row = [2, *([7] * 20_000), 3]

    shown, places = masked(row, 0.5, 13)

    hidden = np.array(shown)[places]
    assert len(places) == 10_000
    assert abs(np.mean(hidden == MASK) - 0.8) < 0.02
    assert abs(np.mean(hidden == 7) - 0.1) < 0.02


@given(rows, st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.integers(0, 2**32 - 1))
def test_who_sees_less_has_to_guess_what_the_other_does_and_more(
    row: list[int], one: float, other: float, seed: int
) -> None:
    few, many = sorted((one, other))
    _, fewer = masked(row, few, seed)
    _, more = masked(row, many, seed, turn=2)

    assert set(fewer.tolist()) <= set(more.tolist())
