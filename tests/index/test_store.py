from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from m2dr.errors import UserError
from m2dr.index.docids import Docids, encode
from m2dr.index.manifest import StorePlan
from m2dr.index.store import Store, open_store
from m2dr.index.writer import StoreWriter

lines = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1)


def test_a_store_says_what_it_holds(store: Store) -> None:
    assert (store.documents, store.layer, store.width) == (35, 6, 16)


def test_vectors_are_kept_at_full_width_and_not_normalised(
    store: Store, vectors: NDArray[np.float32]
) -> None:
    np.testing.assert_array_equal(store.rows([34, 0]), vectors[[34, 0]].astype(np.float16))


def test_blocks_are_views_of_files_that_nobody_can_write_to(store: Store) -> None:
    _, block = next(store.blocks())

    assert isinstance(block, np.memmap)
    assert not block.flags.writeable


@pytest.mark.parametrize("row", [-1, 35])
def test_a_row_that_is_not_there_is_refused(store: Store, row: int) -> None:
    with pytest.raises(IndexError, match="there are 35"):
        store.rows([row])


def test_a_folder_without_a_store_is_refused_with_the_command_that_makes_one(
    tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match="holds no store.*m2dr index corpus --layer 3"):
        open_store(tmp_path / "layer-03")


def test_a_half_written_store_says_how_far_it_got_and_how_to_go_on(
    tmp_path: Path, plan: StorePlan, vectors: NDArray[np.float32]
) -> None:
    writer = StoreWriter(tmp_path / "layer-06", plan)
    writer.write(0, [f"d{row}" for row in range(10)], vectors[:10], texts="")

    expected = "half-written: 1 shard with 10 documents of tiny.*--layer 6 --resume"
    with pytest.raises(UserError, match=expected):
        open_store(tmp_path / "layer-06")


@pytest.mark.parametrize("size", [None, 0, 319])
def test_a_missing_or_cut_off_shard_is_named(store: Store, size: int | None) -> None:
    shard = store.folder / "vectors-00002.f16"
    shard.unlink() if size is None else shard.write_bytes(bytes(size))

    with pytest.raises(UserError, match=r"vectors-00002\.f16 is missing or has another size"):
        open_store(store.folder)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, r"docids\.txt cannot be read \(No such file"),
        (b"d1\nd2\n", "has 2 docids for 35 documents"),
        (b"d1\n" * 35, "is not the file that was written"),
        (b"d1\nd\xff\n", r"docids\.txt, line 2: is not UTF-8"),
    ],
)
def test_docids_that_are_not_those_written_are_refused(
    store: Store, data: bytes | None, reason: str
) -> None:
    path = store.folder / "docids.txt"
    path.unlink() if data is None else path.write_bytes(data)

    with pytest.raises(UserError, match=f"{reason}.*m2dr index corpus"):
        open_store(store.folder)


def test_a_changed_byte_is_found_when_the_store_is_verified(store: Store) -> None:
    told: list[int] = []
    store.verify(told.append)
    shard = store.folder / "vectors-00003.f16"
    shard.write_bytes(bytes(shard.stat().st_size))

    with pytest.raises(UserError, match=r"vectors-00003\.f16 is not the file that was written"):
        store.verify()
    assert told == [10, 10, 10, 5]


@given(names=st.lists(lines))
def test_docids_read_as_they_were_written(names: list[str]) -> None:
    docids = Docids(encode(names))

    assert list(docids) == names
    assert docids[::-1] == names[::-1]
    assert docids.take(range(len(names))) == names


@given(names=st.lists(lines, unique=True))
def test_the_rank_of_a_docid_is_its_place_when_all_are_sorted(names: list[str]) -> None:
    ranks = Docids(encode(names)).ranks()

    assert [names[row] for row in np.argsort(ranks)] == sorted(names)


@pytest.mark.parametrize("row", [2, -3])
def test_a_docid_beyond_the_last_is_refused(row: int) -> None:
    docids = Docids(b"a\nb\n")

    assert docids[-1] == "b"
    with pytest.raises(IndexError, match="there are 2 docids"):
        docids[row]
