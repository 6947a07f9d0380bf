import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import made_up

from m2dr.core.records import Document, Group, Query
from m2dr.data.loaders import open_dataset
from m2dr.data.training_rows import Groups, NegativeSource, documents_of, false_negatives


def ids(documents: Sequence[Document]) -> list[str]:
    return [document.id for document in documents]


def test_every_relevant_document_has_its_turn_before_one_comes_again() -> None:
    source = made_up([("q1", f"d{n}") for n in range(5)] + [("q2", "d9")])
    groups = Groups(source, "train", negatives=0, source="none", seed=13)

    def turns(epochs: range) -> list[str]:
        drawn = []
        for epoch in epochs:
            groups.set_epoch(epoch)
            drawn.append(groups[0].positive.id)
        return drawn

    assert sorted(turns(range(5))) == sorted(turns(range(5, 10))) == [f"d{n}" for n in range(5)]
    assert turns(range(5)) != turns(range(5, 10))


@given(order=st.permutations(range(12)), seed=st.integers(0, 99), epochs=st.permutations(range(3)))
def test_a_group_depends_on_seed_epoch_and_place_and_not_on_what_was_read_before(
    order: list[int], seed: int, epochs: list[int]
) -> None:
    judged = [(f"q{n}", f"d{m}") for n in range(12) for m in range(3)]
    source = made_up(judged, documents=30)
    first = Groups(source, "train", negatives=3, source="random", seed=seed)
    again = Groups(source, "train", negatives=3, source="random", seed=seed)
    expected = {}
    for epoch in range(3):
        first.set_epoch(epoch)
        expected[epoch] = [first[i] for i in range(12)]

    for epoch in epochs:
        again.set_epoch(epoch)
        assert {i: again[i] for i in order} == dict(enumerate(expected[epoch]))


@given(
    relevant=st.sets(st.integers(0, 9), min_size=1, max_size=6),
    given_rows=st.lists(st.integers(0, 9), unique=True),
    wanted=st.integers(1, 4),
    kind=st.sampled_from(["given", "random"]),
    epoch=st.integers(0, 5),
)
def test_negatives_are_distinct_as_many_as_wanted_and_never_known_to_answer(
    relevant: set[int], given_rows: list[int], wanted: int, kind: NegativeSource, epoch: int
) -> None:
    listed = tuple(f"d{n}" for n in given_rows)
    source = made_up([("q", f"d{n}") for n in relevant], given={"q": listed, "other": ("d1",)})
    groups = Groups(source, "train", negatives=wanted, source=kind, seed=13)
    groups.set_epoch(epoch)

    found = ids(groups[0].negatives)

    answers = {f"d{n}" for n in relevant}
    assert len(found) == len(set(found)) == wanted
    assert not answers & set(found)
    if kind == "given":
        usable = set(listed) - answers
        assert len(usable & set(found)) == min(wanted, len(usable))


def test_a_data_worker_that_starts_afresh_reads_the_same_groups(beir: Path) -> None:
    groups = Groups(open_dataset(str(beir)), "test", negatives=1, source="random", seed=13)
    groups.set_epoch(3)
    code = (
        "import pickle, sys\n"
        "sys.stdout.write(repr(pickle.load(sys.stdin.buffer)[0]))"  # as spawned workers do
    )

    done = subprocess.run(
        [sys.executable, "-c", code], input=ForkingPickler.dumps(groups), capture_output=True
    )

    assert done.stdout.decode() == repr(groups[0])


letters = st.sampled_from("abcde")
documents = st.builds(Document, letters, st.sampled_from(["s", "t", "u"]))
batches = st.lists(
    st.builds(
        Group,
        st.builds(Query, st.sampled_from(["q1", "q2", "q3"]), st.sampled_from(["s", "y"])),
        documents,
        st.lists(documents, max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=5,
)
answers = st.dictionaries(st.sampled_from(["q1", "q2", "q3"]), st.frozensets(letters))


@given(batch=batches, barred=answers)
def test_clashes_are_those_of_the_definition_read_out_cell_by_cell(
    batch: list[Group], barred: dict[str, frozenset[str]]
) -> None:
    mask = false_negatives(batch, barred)

    columns_of = documents_of(batch)
    for b, mine in enumerate(batch):
        same = [other for other in batch if other.query.text == mine.query.text]
        right = {other.positive.id for other in same}
        right = right.union(*(barred.get(other.query.id, ()) for other in same))
        read = {document.content for document in columns_of if document.id in right}
        read.add(mine.query.text)
        for n, document in enumerate(columns_of):
            expected = n != b and (document.id in right or document.content in read)
            assert mask[b, n] == expected


@pytest.mark.parametrize("name", ["quora", "other"])
def test_a_querys_own_document_is_no_negative_where_the_data_set_drops_it(name: str) -> None:
    source = made_up([("d0", "d1"), ("d1", "d0"), ("d2", "d3")], name=name)
    drops = name == "quora"
    groups = Groups(source, "train", negatives=9 - drops, source="random", seed=13)

    mask = false_negatives([groups[0], groups[1]], groups.barred)

    assert ("d0" in ids(groups[0].negatives)) != drops
    assert mask[0, 1] == drops
