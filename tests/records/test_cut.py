import pytest

from m2dr.errors import UserError
from m2dr.records.cut import Cut


@pytest.mark.parametrize(("layer", "dim"), [(0, 8), (-1, 8), (1, 0), (1, -8)])
def test_there_is_no_layer_0_and_no_dimension_0(layer: int, dim: int) -> None:
    with pytest.raises(UserError, match="at least one layer and one dimension"):
        Cut(layer, dim)


def test_cuts_sort_by_layer_and_then_by_dim() -> None:
    cuts = [Cut(2, 8), Cut(1, 128), Cut(10, 8), Cut(1, 16)]

    assert sorted(cuts) == [Cut(1, 16), Cut(1, 128), Cut(2, 8), Cut(10, 8)]


def test_equal_cuts_are_one_key() -> None:
    assert len({Cut(4, 128), Cut(dim=128, layer=4)}) == 1


def test_a_cut_prints_as_it_is_written_in_file_names() -> None:
    assert str(Cut(12, 768)) == "L12D768"
