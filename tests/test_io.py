"""Files that are whole or absent, what is written through, and locks."""

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from m2dr.core.errors import UserError
from m2dr.core.files import (
    LOCK_NAME,
    atomic_path,
    list_folder,
    lock_file,
    lock_folder,
    make_folder,
    remove_stale_lock,
    write_text,
)

HOLD = """
import sys, time
from pathlib import Path
from m2dr.core.files import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def read_from(path: Path) -> Callable[[], str]:
    """Read a FIFO in a thread; what came until its writer closed it."""
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(path.read_text()), daemon=True)
    reader.start()

    def result() -> str:
        reader.join(timeout=10)
        return "".join(found)

    return result


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    write_text(path, "old")

    def interrupted() -> None:
        with atomic_path(path) as unfinished:
            unfinished.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="^$"):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_until_the_block_ends_the_name_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"

    with atomic_path(path) as unfinished:
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


def test_a_file_keeps_its_mode_when_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    path.write_text("old")
    path.chmod(0o600)

    write_text(path, "new")

    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)


@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_fifo_is_written_through_and_stays(tmp_path: Path, through_a_link: bool) -> None:
    fifo = path = tmp_path / "fifo"
    os.mkfifo(fifo)
    if through_a_link:
        path = tmp_path / "link"
        path.symlink_to(fifo)
    read = read_from(fifo)

    write_text(path, "run\n")

    assert read() == "run\n"
    assert fifo.is_fifo()
    assert path.is_symlink() == through_a_link


def test_a_fifo_is_given_nothing_of_a_write_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    read = read_from(path)

    def failed() -> None:
        with atomic_path(path) as unfinished:
            unfinished.write_text("half a run")
            raise UserError("halfway")

    with pytest.raises(UserError, match="^halfway$"):
        failed()
    assert read() == ""
    assert path.is_fifo()


def test_a_terminal_is_written_through(tmp_path: Path) -> None:
    master, slave = os.openpty()
    path = tmp_path / "link"
    path.symlink_to(os.ttyname(slave))

    write_text(path, "run\n")

    assert os.read(master, 100) == b"run\r\n"
    assert path.is_char_device()
    for handle in (master, slave):
        os.close(handle)


@pytest.mark.parametrize("minor", [3, 7])  # as /dev/null, and as /dev/full
def test_a_device_is_written_through_and_stays(tmp_path: Path, minor: int) -> None:
    path = tmp_path / "device"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        path.open("wb").close()
    except PermissionError:
        pytest.skip("Devices cannot be made here.")

    if minor == 3:
        write_text(path, "run\n")
    else:
        with pytest.raises(UserError, match="device cannot be written: No space left on device"):
            write_text(path, "run\n")

    assert path.is_char_device()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_an_open_file_goes_on_where_it_is(tmp_path: Path, kind: str) -> None:
    if kind == "pipe":
        read, write = os.pipe()
    else:
        write = os.open(tmp_path / "out.txt", os.O_RDWR | os.O_CREAT)
        read = os.open(tmp_path / "out.txt", os.O_RDONLY)
    os.write(write, b"before\n")

    write_text(Path(f"/dev/fd/{write}"), "run\n")

    os.write(write, b"after\n")
    assert os.read(read, 100) == b"before\nrun\nafter\n"
    for handle in (read, write):
        os.close(handle)


@pytest.mark.parametrize("there", [True, False])
def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path: Path, there: bool) -> None:
    target, first, second = (tmp_path / name for name in ("elsewhere/run", "first", "second"))
    first.symlink_to("second")
    second.symlink_to(target)
    if there:
        target.parent.mkdir()
        target.write_text("old")

    write_text(first, "new")

    assert first.is_symlink()
    assert second.is_symlink()
    assert target.read_text() == "new"
    assert list(target.parent.iterdir()) == [target]


def test_a_link_to_a_missing_folder_stays_and_the_folder_is_made(tmp_path: Path) -> None:
    link = tmp_path / "models"
    link.symlink_to(tmp_path / "disk" / "models")

    make_folder(link)

    assert link.is_symlink()
    assert (tmp_path / "disk" / "models").is_dir()


def test_links_that_lead_nowhere_and_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(UserError, match="loop cannot be written: .* name a file"):
        write_text(tmp_path / "loop", "run")
    with pytest.raises(UserError, match="is a folder, and m2dr writes a file there"):
        write_text(tmp_path, "run")
    with pytest.raises(UserError, match="There is a file where a folder should be"):
        write_text(tmp_path / "file" / "run", "run")
    with pytest.raises(UserError, match="There is a file where a folder should be"):
        make_folder(tmp_path / "file")
    with pytest.raises(UserError, match="There is a file where a folder should be"):
        list_folder(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "in the way"


def test_what_fails_while_another_file_is_read_is_not_said_of_this_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="other"), atomic_path(tmp_path / "run"):
        (tmp_path / "other").read_text()
    assert not list(tmp_path.iterdir())


def test_the_second_writer_is_told_and_one_that_was_killed_blocks_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "new"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder], stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"

        told = rf"Another process, {holder.pid} on \S+ since [-\d]+ [:\d]+, is writing to {folder}"
        remedy = r"Wait until it has ended, or wait\.$"
        with pytest.raises(UserError, match=rf"{told}\. {remedy}"), lock_folder(folder, "wait"):
            pass

        holder.kill()
        holder.wait()
        assert list(folder.iterdir())
        assert not list_folder(folder)
        with lock_folder(folder):
            pass
    assert not list(folder.iterdir())


def test_a_lock_is_held_until_its_block_ends_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "new"

    with lock_folder(folder):
        for _ in range(2):
            with pytest.raises(UserError, match="is writing to"), lock_folder(folder):
                pass
    assert not list(tmp_path.iterdir())
    with lock_folder(folder):
        (folder / "made").write_text("in the meantime")
    assert list(folder.iterdir()) == [folder / "made"]


def test_a_file_is_held_under_all_its_names(tmp_path: Path) -> None:
    path, link = tmp_path / "groups.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(path)

    with lock_file(path):
        with pytest.raises(UserError, match="is writing to"), lock_file(link):
            pass
        assert not path.exists()
    assert list(tmp_path.iterdir()) == [link]


def test_a_lock_that_nobody_holds_is_removed_and_one_that_is_held_is_not(tmp_path: Path) -> None:
    lock = tmp_path / LOCK_NAME
    remove_stale_lock(tmp_path)
    lock.write_text("4711 on a machine since yesterday")
    remove_stale_lock(tmp_path)
    assert not lock.exists()
    with lock_folder(tmp_path):
        remove_stale_lock(tmp_path)
        assert lock.exists()


def test_where_the_disk_knows_no_locks_a_warning_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("m2dr.core.files.fcntl.flock", refuse)

    with pytest.warns(UserWarning, match="cannot be locked"), lock_folder(tmp_path):
        assert (tmp_path / LOCK_NAME).exists()
    assert not list(tmp_path.iterdir())


def test_the_number_of_an_open_file_that_no_process_has_is_refused() -> None:
    with pytest.raises(UserError, match="/dev/fd/99999999999"):
        write_text(Path("/dev/fd/99999999999"), "run\n")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc")
def test_a_folder_that_takes_no_files_is_a_sentence() -> None:
    with pytest.raises(UserError, match="/proc/x.jsonl cannot be written: No such file"):
        lock_file(Path("/proc/x.jsonl")).__enter__()
