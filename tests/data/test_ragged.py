from hypothesis import given
from hypothesis import strategies as st

from m2dr.data.tokens import Ragged, pad

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
