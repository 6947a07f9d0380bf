"""Files that are whole or absent: written aside, synced, then renamed."""

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from m2dr.errors import UserError

ASIDE = ".tmp"
_ROOM = "Free some space or name a folder on another disk, then run the same command again"
_RIGHTS = "Name a folder that you may write to, or change its rights"
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in a sentence what the system refused while something was written to `path`.

    Raises:
        UserError: the disk is full, the folder read-only, or another refusal of the system.
    """
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "Look at the disk and the folder's rights")
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}. {remedy}."
        ) from error


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """Lend a name to write under; when the block ends well, that file becomes `path`.

    The name holds the process number: two processes that write the same file at once may each
    lose theirs, but neither renames what the other has half written.

    Raises:
        UserError: the system refused, as `writing` says it.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}{ASIDE}")
    try:
        with writing(path):
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write `data` so that `path` is never seen with a part of it.

    Raises:
        UserError: the system refused, as `writing` says it.
    """
    with aside(path) as temporary:
        temporary.write_bytes(data)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk itself."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(folder: Path, *patterns: str) -> None:
    """Remove the files directly in `folder` that match a pattern."""
    with writing(folder):
        for pattern in patterns:
            for path in folder.glob(pattern):
                path.unlink(missing_ok=True)
        sync(folder)


def sha256(path: Path) -> str:
    """Return the digest of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
