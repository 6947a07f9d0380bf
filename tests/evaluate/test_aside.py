from pathlib import Path

import pytest

from m2dr.evaluate.aside import aside, write_text


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    write_text(path, "old")

    def interrupted() -> None:
        with aside(path) as unfinished:
            unfinished.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="^$"):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_until_the_block_ends_the_name_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"

    with aside(path) as unfinished:
        unfinished.write_text("new")
        taken_too_early = path.exists()

    assert not taken_too_early
    assert path.read_text() == "new"


def test_whoever_reads_the_old_file_reads_it_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    write_text(path, "old")

    with path.open() as reader:
        write_text(path, "new")
        read = reader.read()

    assert read == "old"


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    path = tmp_path / "results" / "pydocs" / "table.txt"

    write_text(path, "line\n")

    assert path.read_bytes() == b"line\n"
