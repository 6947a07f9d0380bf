"""The example at a position of a training depends on the position alone."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from m2dr.core.records import Document, Group, Query
from m2dr.core.settings import RunSettings
from m2dr.train.trainer import BEST, Examples, Plan


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


PLAN = Plan(
    settings=RunSettings(schedule="cosine", accumulate=2, report_to="none"),
    checkpoints=Path("out"),
    logs=Path("logs"),
    steps=40,
    batch=8,
    bf16=False,
    cpu=True,
    evaluate_steps=20,
)


def test_a_plan_says_the_same_in_the_words_of_transformers() -> None:
    said = PLAN.arguments()

    assert (said.max_steps, said.warmup_steps, said.lr_scheduler_type) == (40, 4, "cosine")
    assert (said.per_device_train_batch_size, said.gradient_accumulation_steps) == (8, 2)
    assert said.train_sampling_strategy == "sequential"  # Examples shuffles
    assert said.metric_for_best_model == BEST
    assert said.n_gpu <= 1
