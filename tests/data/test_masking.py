import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from m2dr.data.tokens import mask_tokens, masking_order

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
