"""One writer per folder: the second is told, and a dead one is in nobody's way."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from m2dr.errors import UserError
from m2dr.index.files import writing

LOCK = "store.lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder, which need not exist, while something is written to it.

    The system lets go of the lock when its holder ends, however it ends; the file itself means
    nothing.

    Raises:
        UserError: another process holds it, or the folder cannot be written to.
    """
    path = folder / LOCK
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = _held(path)
    try:
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}".encode())
        yield
    finally:
        path.unlink(missing_ok=True)  # before it is let go: whoever waits for it looks again
        os.close(handle)


def _held(path: Path) -> int:
    """Open and lock a file that still is at `path` when it is locked."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 20).decode(errors="replace") or "unknown"
            os.close(handle)
            raise UserError(
                f"Another process, {holder}, is writing to {path.parent}. Wait until it has ended, "
                f"or give another --indexes."
            ) from None
        if path.exists() and os.fstat(handle).st_ino == path.stat().st_ino:
            return handle
        os.close(handle)  # its holder removed it between our opening and our locking
