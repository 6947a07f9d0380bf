"""The example at a position of a training depends on the position alone."""

from hypothesis import given, settings
from hypothesis import strategies as st

from m2dr.core.records import Document, Group, Query
from m2dr.training.trainer import Examples


def named(epoch: int, place: int) -> Group:
    return Group(Query(f"{epoch}", ""), Document(f"{place}", ""))


def read(examples: Examples[Group], positions: range) -> list[tuple[str, str]]:
    return [(examples[i].query.id, examples[i].positive.id) for i in positions]


def test_every_epoch_holds_every_example_once_in_an_order_of_its_own() -> None:
    examples = Examples(count=10, example=named, total=30, seed=13)

    epochs = [read(examples, range(10 * epoch, 10 * epoch + 10)) for epoch in range(3)]

    for number, epoch in enumerate(epochs):
        assert sorted(epoch) == sorted((str(number), str(place)) for place in range(10))
    orders = [tuple(place for _, place in epoch) for epoch in epochs]
    assert len(set(orders)) == 3


@given(order=st.permutations(range(30)), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=25)
def test_a_position_holds_the_same_example_whatever_was_read_before(
    order: list[int], seed: int
) -> None:
    straight = read(Examples(10, named, 30, seed), range(30))
    other = Examples(10, named, 30, seed)

    found = {i: read(other, range(i, i + 1))[0] for i in order}

    assert [found[i] for i in range(30)] == straight
