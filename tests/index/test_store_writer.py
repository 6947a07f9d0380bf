import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.core.files import sha256_of
from m2dr.index.manifest import StorePlan
from m2dr.index.store import open_store
from m2dr.index.store_writer import Shards, StoreWriter

Floats = NDArray[np.float32]
DOCIDS = [f"d{row}" for row in range(35)]


def encode(folder: Path, plan: StorePlan, vectors: Floats, docids: Sequence[str]) -> None:
    """What the command does: check what is there, write the rest, finish."""
    writer = StoreWriter(folder, plan)
    for number, start in enumerate(range(0, len(docids), plan.shard_rows)):
        rows = slice(start, start + plan.shard_rows)
        if writer.has(number):
            writer.check(number, docids[rows], texts=f"texts {number}")
        else:
            writer.write(number, docids[rows], vectors[rows], texts=f"texts {number}")
    if not writer.finished:
        writer.finish(len(docids))


def digests(folder: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in sorted(folder.iterdir())}


class Stopped(BaseException):
    """The process was killed here."""


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Stop at the nth file operation: before a rename, or in the middle of a write."""
    left = iter(range(steps, -1, -1))
    replace_file, write_bytes = os.replace, Path.write_bytes

    def tick() -> None:
        if next(left, 0) == 0:
            raise Stopped("here")

    def stopping_write(path: Path, data: bytes) -> int:
        write_bytes(path, bytes(data)[: len(data) // 2])
        tick()
        return write_bytes(path, data)

    def stopping_replace(source: Path, target: Path) -> None:
        tick()
        replace_file(source, target)

    monkeypatch.setattr(Path, "write_bytes", stopping_write)
    monkeypatch.setattr(os, "replace", stopping_replace)


@pytest.mark.parametrize("steps", range(30))
def test_a_run_stopped_anywhere_and_resumed_ends_with_the_bytes_of_one_that_was_not(
    tmp_path: Path, plan: StorePlan, vectors: Floats, steps: int
) -> None:
    encode(tmp_path / "whole", plan, vectors, DOCIDS)
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, steps)
        with pytest.raises(Stopped, match="here"):
            encode(tmp_path / "resumed", plan, vectors, DOCIDS)
    with pytest.raises(UserError, match="holds no store|is half-written"):
        open_store(tmp_path / "resumed")

    encode(tmp_path / "resumed", plan, vectors, DOCIDS)

    assert digests(tmp_path / "resumed") == digests(tmp_path / "whole")


def test_a_model_that_has_moved_meanwhile_makes_no_difference(
    tmp_path: Path, plan: StorePlan, vectors: Floats
) -> None:
    encode(tmp_path / "whole", plan, vectors, DOCIDS)
    StoreWriter(tmp_path / "resumed", plan).write(0, DOCIDS[:10], vectors[:10], texts="texts 0")

    moved = replace(plan, label=replace(plan.label, model="elsewhere"))
    encode(tmp_path / "resumed", moved, vectors, DOCIDS)

    assert digests(tmp_path / "resumed") == digests(tmp_path / "whole")


def test_a_finished_folder_holds_these_files_and_no_others(
    tmp_path: Path, plan: StorePlan, vectors: Floats
) -> None:
    encode(tmp_path, plan, vectors, DOCIDS)

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "docids.txt",
        "store.json",
        *(f"vectors-0000{number}.f16" for number in range(4)),
    ]


def test_the_next_writer_finds_every_shard_that_is_recorded_and_whole(
    tmp_path: Path, plan: StorePlan, vectors: Floats
) -> None:
    writer = StoreWriter(tmp_path, plan)
    for number in range(3):
        rows = slice(10 * number, 10 * number + 10)
        writer.write(number, DOCIDS[rows], vectors[rows], texts="")
    (tmp_path / "vectors-00001.f16").write_bytes(b"half")
    (tmp_path / "vectors-00003.f16").write_bytes(bytes(10 * 16 * 2))
    (tmp_path / "vectors-00003.f16.17.tmp").write_bytes(b"left over")

    again = StoreWriter(tmp_path, plan)

    assert (again.numbers(), again.written, again.finished) == ([0, 2], 1, False)
    assert not list(tmp_path.glob("*.tmp"))


def test_a_shard_of_an_earlier_attempt_that_is_in_no_record_is_removed_at_the_end(
    tmp_path: Path, plan: StorePlan, vectors: Floats
) -> None:
    (tmp_path / "vectors-00009.f16").write_bytes(b"of a longer corpus")

    encode(tmp_path, plan, vectors, DOCIDS)

    assert not (tmp_path / "vectors-00009.f16").exists()


def test_a_finished_store_is_seen_as_finished_whatever_the_shard_size_asked(
    tmp_path: Path, plan: StorePlan, vectors: Floats
) -> None:
    encode(tmp_path, plan, vectors, DOCIDS)

    writer = StoreWriter(tmp_path, replace(plan, shard_rows=7))

    assert (writer.finished, writer.written, writer.plan) == (True, 4, plan)


def test_a_record_left_behind_by_a_finished_store_is_removed(
    tmp_path: Path, plan: StorePlan, vectors: Floats
) -> None:
    encode(tmp_path, plan, vectors, DOCIDS)
    (tmp_path / "store.partial.json").write_text("stopped just before it was removed")

    assert StoreWriter(tmp_path, plan).finished
    assert not (tmp_path / "store.partial.json").exists()


def test_overwriting_starts_afresh(tmp_path: Path, plan: StorePlan, vectors: Floats) -> None:
    encode(tmp_path, plan, vectors, DOCIDS)

    writer = StoreWriter(tmp_path, replace(plan, dtype="f32"), overwrite=True)

    assert (writer.finished, writer.written) == (False, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["store.partial.json"]


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layer": 5}, "layer 6, not 5"),
        ({"dtype": "f32"}, "dtype 'f16', not 'f32'"),
        ({"corpus": "other"}, "corpus 'tiny', not 'other'"),
    ],
)
def test_a_folder_of_another_store_is_refused_with_the_field_that_differs(
    tmp_path: Path,
    plan: StorePlan,
    vectors: Floats,
    finished: bool,
    changes: dict[str, object],
    reason: str,
) -> None:
    writer = StoreWriter(tmp_path / "layer-06", replace(plan, shard_rows=35))
    writer.write(0, DOCIDS, vectors, texts="")
    if finished:
        writer.finish(len(DOCIDS))

    with pytest.raises(UserError, match=f"{reason}.*m2dr index corpus .*--layer 6 --overwrite"):
        StoreWriter(tmp_path / "layer-06", replace(plan, shard_rows=35, **changes))


def test_a_half_written_store_of_another_model_or_shard_size_is_refused(
    tmp_path: Path, plan: StorePlan, vectors: Floats
) -> None:
    StoreWriter(tmp_path, plan).write(0, DOCIDS[:10], vectors[:10], texts="")
    label = replace(plan.label, pooling="cls")

    with pytest.raises(UserError, match="shard_rows 10, not 20, pooling 'mean', not 'cls'"):
        StoreWriter(tmp_path, replace(plan, shard_rows=20, label=label))


@pytest.mark.parametrize(
    ("docids", "texts"), [(DOCIDS[1:11], "texts"), (DOCIDS[:9], "texts"), (DOCIDS[:10], "other")]
)
def test_a_corpus_that_changed_since_is_refused(
    tmp_path: Path, plan: StorePlan, vectors: Floats, docids: list[str], texts: str
) -> None:
    writer = StoreWriter(tmp_path, plan)
    writer.write(0, DOCIDS[:10], vectors[:10], texts="texts")
    writer.check(0, DOCIDS[:10], "texts")

    with pytest.raises(UserError, match="tiny has changed since encoding began"):
        writer.check(0, docids, texts)


@pytest.mark.parametrize("documents", [9, 10, 11])
def test_a_corpus_that_shrank_since_is_refused(
    tmp_path: Path, plan: StorePlan, vectors: Floats, documents: int
) -> None:
    writer = StoreWriter(tmp_path, plan)
    writer.write(1, DOCIDS[10:11], vectors[10:11], texts="")

    if documents == 11:
        assert writer.expect(documents) == 2
    else:
        with pytest.raises(UserError, match="at least 11 documents.*has changed since"):
            writer.expect(documents)


def test_a_finished_store_is_not_one_of_a_corpus_that_grew(
    tmp_path: Path, plan: StorePlan, vectors: Floats
) -> None:
    encode(tmp_path, plan, vectors, DOCIDS)

    with pytest.raises(UserError, match=": 35 documents were encoded and the corpus has 36"):
        StoreWriter(tmp_path, plan).expect(36)


def test_a_store_with_a_hole_is_not_finished(
    tmp_path: Path, plan: StorePlan, vectors: Floats
) -> None:
    writer = StoreWriter(tmp_path, plan)
    writer.write(0, DOCIDS[:10], vectors[:10], texts="")
    writer.write(2, DOCIDS[20:30], vectors[20:30], texts="")

    with pytest.raises(ValueError, match=r"Shards \[1\].*not written"):
        writer.finish(30)
    assert not (tmp_path / "store.json").exists()


def test_docids_that_changed_before_the_end_are_refused(
    tmp_path: Path, plan: StorePlan, vectors: Floats
) -> None:
    writer = StoreWriter(tmp_path, plan)
    writer.write(0, DOCIDS[:9], vectors[:9], texts="")
    (tmp_path / "docids-00000.txt").write_text("other\n" * 9)

    with pytest.raises(UserError, match=r"docids-00000.txt is not the file that was written"):
        writer.finish(9)


def test_a_docid_that_comes_twice_is_refused(
    tmp_path: Path, plan: StorePlan, vectors: Floats
) -> None:
    writer = StoreWriter(tmp_path, plan)
    writer.write(1, ["a"], vectors[:1], texts="")
    writer.write(0, [*DOCIDS[:9], "a"], vectors[:10], texts="")

    with pytest.raises(UserError, match="'a' comes twice"):
        writer.finish(11)


@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(4)))
def test_shards_written_in_any_order_by_anyone_make_the_same_store(
    tmp_path_factory: pytest.TempPathFactory,
    build: Callable[..., object],
    plan: StorePlan,
    order: list[int],
) -> None:
    vectors = np.random.default_rng(5).normal(size=(35, 16)).astype(np.float32)
    folder = tmp_path_factory.mktemp("any-order")
    writer = StoreWriter(folder / "mixed", plan)

    for number in order:
        rows = slice(10 * number, 10 * number + 10)
        Shards(folder / "mixed", plan).write(
            number, DOCIDS[rows], vectors[rows], texts=f"texts {number}"
        )
    writer.finish(35)

    build(folder / "straight", vectors)
    assert digests(folder / "mixed") == digests(folder / "straight")


@pytest.mark.parametrize("damage", [b"", b"{", b'{"format": 2}'])
def test_a_damaged_record_is_named(
    tmp_path: Path, plan: StorePlan, vectors: Floats, damage: bytes
) -> None:
    writer = StoreWriter(tmp_path, plan)
    writer.write(0, DOCIDS[:9], vectors[:9], texts="")
    (tmp_path / "vectors-00000.json").write_bytes(damage)

    with pytest.raises(UserError, match=r"vectors-00000.json cannot be read"):
        writer.has(0)


@pytest.mark.parametrize("docid", ["", "two\nlines", "two\rlines"])
def test_a_docid_that_one_line_cannot_hold_is_refused(
    tmp_path: Path, plan: StorePlan, vectors: Floats, docid: str
) -> None:
    with pytest.raises(UserError, match="Document 1 has the id"):
        StoreWriter(tmp_path, plan).write(0, ["a", docid], vectors[:2], texts="")


def test_a_corpus_without_documents_is_refused(tmp_path: Path, plan: StorePlan) -> None:
    with pytest.raises(UserError, match="tiny has no documents"):
        StoreWriter(tmp_path, plan).finish(0)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.nan, "'d3' is not finite"),
        (-np.inf, "'d3' is not finite"),
        (-70000.0, r"'d3' reaches 7e\+04, too large for f16. Encode with --store f32"),
    ],
)
def test_a_value_that_the_store_cannot_hold_is_refused_with_its_document(
    tmp_path: Path, plan: StorePlan, vectors: Floats, value: float, reason: str
) -> None:
    vectors[3, 5] = value

    with pytest.raises(UserError, match=reason):
        StoreWriter(tmp_path, plan).write(0, DOCIDS[:10], vectors[:10], texts="")
    assert not list(tmp_path.glob("vectors-*"))


def test_f32_holds_what_f16_cannot(tmp_path: Path, plan: StorePlan, vectors: Floats) -> None:
    vectors[3, 5] = -70000.0

    encode(tmp_path, replace(plan, dtype="f32"), vectors, DOCIDS)

    np.testing.assert_array_equal(open_store(tmp_path).rows(range(35)), vectors)


@pytest.mark.parametrize(
    ("number", "rows", "reason"),
    [(0, 11, "has 10 rows"), (0, 0, "has 10 rows")],
)
def test_a_shard_of_another_size_is_a_mistake_of_the_caller(
    tmp_path: Path, plan: StorePlan, vectors: Floats, number: int, rows: int, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        StoreWriter(tmp_path, plan).write(number, DOCIDS[:rows], vectors[:rows], texts="")


def test_a_short_shard_before_the_last_is_a_mistake_of_the_caller(
    tmp_path: Path, plan: StorePlan, vectors: Floats
) -> None:
    writer = StoreWriter(tmp_path, plan)
    writer.write(0, DOCIDS[:9], vectors[:9], texts="")
    writer.write(1, DOCIDS[10:19], vectors[10:19], texts="")

    with pytest.raises(ValueError, match="do not hold 19 documents"):
        writer.finish(19)


def test_vectors_of_another_width_are_a_mistake_of_the_caller(
    tmp_path: Path, plan: StorePlan, vectors: Floats
) -> None:
    with pytest.raises(ValueError, match=r"2 documents of 16 floats, not \(2, 8\)"):
        StoreWriter(tmp_path, plan).write(0, DOCIDS[:2], vectors[:2, :8], texts="")


@pytest.mark.parametrize("name", ["replace", "fsync"])
def test_what_the_disk_refuses_is_written_later(
    tmp_path: Path, plan: StorePlan, vectors: Floats, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    writer = StoreWriter(tmp_path, plan)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, name, refuse)
        with pytest.raises(OSError, match="No space left"):
            writer.write(0, DOCIDS[:10], vectors[:10], texts="texts 0")
    assert not list(tmp_path.glob("vectors-*"))
    encode(tmp_path, plan, vectors, DOCIDS)
    assert open_store(tmp_path).documents == 35


@settings(max_examples=25, deadline=None)
@given(
    documents=st.integers(1, 40),
    shard_rows=st.integers(1, 45),
    block=st.integers(1, 45),
    seed=st.integers(0, 99),
)
def test_what_is_stored_is_read_back_by_blocks_and_by_rows(
    tmp_path_factory: pytest.TempPathFactory,
    build: Callable[..., object],
    documents: int,
    shard_rows: int,
    block: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(documents, 3)).astype(np.float32)
    names = [f"<dbpedia:Å {row}>" for row in range(documents)]

    store = build(tmp_path_factory.mktemp("store"), vectors, names, shard_rows=shard_rows)

    stored = vectors.astype(np.float16)
    starts, blocks = zip(*store.blocks(block), strict=True)
    wanted = rng.integers(0, documents, 7)
    np.testing.assert_array_equal(np.concatenate(blocks), stored)
    assert list(starts) == list(np.cumsum([0, *map(len, blocks)])[:-1])
    assert max(map(len, blocks)) <= block
    np.testing.assert_array_equal(store.rows(wanted), stored[wanted])
    assert list(store.docids) == names
