import pytest

from m2dr.core.errors import UserError
from m2dr.core.records import Cut


def test_cuts_sort_by_layer_and_then_by_dim() -> None:
    cuts = [Cut(2, 8), Cut(1, 128), Cut(10, 8), Cut(0, 384), Cut(1, 16)]

    assert sorted(cuts) == [Cut(0, 384), Cut(1, 16), Cut(1, 128), Cut(2, 8), Cut(10, 8)]


@pytest.mark.parametrize("cut", [Cut(0, 64), Cut(12, 768)])
def test_a_printed_cut_is_read_back_as_the_same(cut: Cut) -> None:
    assert Cut.parse(str(cut)) == cut


@pytest.mark.parametrize("word", ["L-1D64", "L0D0", "L4", "l4d8", "D8L4", ""])
def test_a_word_that_names_no_cut_is_refused(word: str) -> None:
    with pytest.raises(UserError, match=r"is no cut|A cut has"):
        Cut.parse(word)
