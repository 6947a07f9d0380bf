"""Files that are whole or absent, records, and locks."""

import os
import stat
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from unittest.mock import Mock

import pytest
from shell import held

from m2dr.core.errors import UserError
from m2dr.core.files import (
    LOCK_NAME,
    atomic_path,
    cache_folder,
    json_sha256,
    list_folder,
    lock_file,
    lock_folder,
    read_json,
    read_object,
    read_record,
    remove_stale_lock,
    write_record,
    write_text,
)


@dataclass(frozen=True)
class Shard:
    name: str
    rows: int
    spans: tuple[tuple[str, int], ...] = ()
    dtype: Literal["f16", "f32"] = "f32"
    mean: float | None = None


def test_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "results" / "table.txt"
    write_text(path, "old")

    def interrupted() -> None:
        with atomic_path(path) as unfinished:
            unfinished.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_replaced_file_keeps_its_mode_and_its_links(tmp_path: Path) -> None:
    path, link = tmp_path / "disk" / "run", tmp_path / "link"
    write_text(path, "old")
    path.chmod(0o600)
    link.symlink_to(path)

    write_text(link, "new")

    assert link.is_symlink()
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)
    assert list(path.parent.iterdir()) == [path]


def test_pipe_is_written_through(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.append(fifo.read_text()), daemon=True)
    reader.start()

    write_text(fifo, "run\n")

    reader.join(timeout=10)
    assert lines == ["run\n"]
    assert fifo.is_fifo()


def test_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    path, shard = tmp_path / "shard.json", Shard("a", 3, (("é", 1), ("b", 2)), "f16", 0.5)

    write_record(path, shard)

    assert read_record(path, Shard) == shard
    assert '\n  "dtype": "f16",\n  "format": 1,\n' in path.read_text()


@pytest.mark.parametrize("sealed", [True, False])
def test_a_changed_record_is_refused_unless_people_edit_it(tmp_path: Path, sealed: bool) -> None:
    path, shard = tmp_path / "shard.json", Shard("a", 3, (("é", 1), ("b", 2)), "f16", 0.5)
    write_record(path, shard, sealed=sealed)
    whole = path.read_bytes()

    for place in range(len(whole) if sealed else 0):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(UserError):
            read_record(path, Shard)
    path.write_bytes(whole.replace(b'"a"', b'"c"'))
    if not sealed:
        assert read_record(path, Shard, sealed=False) == replace(shard, name="c")
    with pytest.raises(UserError, match="does not match its digest"):
        read_record(path, Shard)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "truncated"),
        ('{"format": 2, "name": "a", "rows": 3}', "has format 2, and this m2dr reads format 1"),
        ('{"format": 1, "name": "a", "rows": "3"}', r"Expected `int`, got `str` - at `\$.rows`"),
    ],
)
def test_damaged_record_is_one_sentence(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "shard.json"
    path.write_text(text)

    with pytest.raises(UserError, match=rf"^{path} cannot be read: .*{reason}.*\.$"):
        read_record(path, Shard, sealed=False)


def test_object_of_another_program_checks_known_fields(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"layers": 12, "max": 1000000000000000019884624838656, "odd": NaN}')

    assert read_object(path, {"layers": int})["max"] > 1e29
    with pytest.raises(UserError, match="layers: Expected `str`, got `int`"):
        read_object(path, {"layers": str})
    with pytest.raises(UserError, match="No such file"):
        read_json(tmp_path / "none.json")


def test_digest_of_json_stays() -> None:
    assert json_sha256({"b": 1, "a": [1.5, None]}).startswith("ad387916")


def test_lock_blocks_until_its_process_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "new"
    with held(folder) as holder:
        with pytest.raises(UserError, match=f"is writing to {folder}"), lock_folder(folder):
            pass
        holder.kill()
        holder.wait()
        assert not list_folder(folder)
        with lock_folder(folder):
            pass
    assert not list(folder.iterdir())


def test_lock_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "new"

    with lock_folder(folder):
        for _ in range(2):
            with pytest.raises(UserError, match="is writing to"), lock_folder(folder):
                pass
    assert not list(tmp_path.iterdir())
    with lock_folder(folder):
        (folder / "weights").write_text("whole")
    assert list(folder.iterdir()) == [folder / "weights"]


def test_file_is_locked_under_all_its_names(tmp_path: Path) -> None:
    path, link = tmp_path / "groups.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(path)

    with lock_file(path), pytest.raises(UserError, match="is writing to"), lock_file(link):
        pass
    assert list(tmp_path.iterdir()) == [link]


def test_stale_lock_is_removed(tmp_path: Path) -> None:
    lock = tmp_path / LOCK_NAME
    lock.touch()
    remove_stale_lock(tmp_path)
    assert not lock.exists()
    with lock_folder(tmp_path):
        remove_stale_lock(tmp_path)
        assert lock.exists()


def test_caches_of_a_user_without_a_home_lie_with_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("M2DR_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    folder = cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    own = cache_folder()
    monkeypatch.delenv("XDG_CACHE_HOME")
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    folder.rename(tmp_path / f"m2dr-{other}")  # by another user
    with pytest.raises(UserError, match="cannot hold caches; name a folder .* M2DR_CACHE"):
        cache_folder()

    assert (folder.parent, own) == (tmp_path, tmp_path / "own" / "m2dr")
