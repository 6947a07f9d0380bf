"""Files: read where they are regular, written whole or not at all, and locked while written."""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import socket
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from m2dr.errors import UserError, refusal_of

ASIDE = ".tmp"  # the end of a file's name while it is written
LOCK = ".m2dr.lock"  # in a folder that is being written to; of a file, the end of its lock's name
_ROOM = "Free some space or name a folder on another disk, then run the same command again"
_RIGHTS = "Name a folder that you may write to, or change its rights"
_ANOTHER = "A file stands where a folder should be, or the reverse; name another"
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.ENOTDIR: _ANOTHER,
    errno.EISDIR: _ANOTHER,
    errno.EEXIST: _ANOTHER,
    errno.EPIPE: "Whatever read it has ended; run the command again with a reader that stays",
    errno.ELOOP: "Its symbolic links lead back to themselves; name a file",
}
# Open files of this process, as /dev/stdout and `>(command)` name them.
_OPEN_FILES = re.compile(r"/proc/(\d+)(/task/\d+)?/fd|/dev/fd")
_NUMBER = re.compile(r"[0-9]{1,9}")  # of an open file
_MOST_LINKS = 40  # as Linux follows them
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # of such a file system
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}
_ENDLESS = ("a FIFO", "a device", "a socket")  # what may have no end, or only one reading


# Reading


def what_stands_at(path: Path) -> str:
    """Name what stands where a regular file belongs; empty when one is there. Nothing is opened."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "a link to nothing" if path.is_symlink() else "nothing"
    except OSError as error:
        return f"nothing that can be read ({error.strerror or error})"
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no file")


def read_regular(path: Path) -> bytes:
    """Return the bytes of a file; where a FIFO stands instead, reading would wait without end.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    found = what_stands_at(path)
    if found.startswith(_ENDLESS):
        raise OSError(errno.ENXIO, f"{found} stands there, not a file", str(path))
    return path.read_bytes()


def refuse_pipe(path: Path) -> None:
    """Raise UserError where a path that is read more than once is a pipe or a device.

    What was read from such a path once is gone, and a second reading finds nothing or waits.
    """
    if what_stands_at(path).startswith(_ENDLESS):
        raise UserError(
            f"{path} is a pipe or a device, which can be read once, and m2dr reads it more often. "
            "Write what it gives to a file, and name that file instead."
        )


def read_bytes(path: Path, remedy: str) -> bytes:
    """Return the bytes of a regular file.

    Args:
        path: the file.
        remedy: what to do when it cannot be read; a sentence.

    Raises:
        UserError: the file is missing, not regular or not readable.
    """
    found = what_stands_at(path)
    if found:
        raise UserError(f"{path} is {found} where a file belongs. {remedy}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}). {remedy}") from error


@contextmanager
def refusing(what: str, remedy: str) -> Iterator[None]:
    """Turn whatever a library raises for a damaged file into one sentence.

    Args:
        what: cannot be done, such as "The model in models/x cannot be loaded".
        remedy: what to do; a sentence.

    Raises:
        UserError: anything was raised but an interruption, or a refusal of the operating system
            that has a sentence of its own.
    """
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        if refusal_of(error):
            raise
        raise UserError(f"{what} ({first_words(error)}). {remedy}") from error


def first_words(error: BaseException) -> str:
    """Return an error's first words, at most two lines of them, without a full stop."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300].rstrip(".: ") or type(error).__name__


# Writing


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
    """Lend the path of a temporary file; when the block ends well, its content goes to `path`.

    A regular file is replaced at once when the new content is on disk: an interruption leaves the
    old file or none. Symbolic links stay, and the file that they lead to is replaced; missing
    folders are made. A FIFO, a character device and an open file of this process, such as
    /dev/stdout, stay too, and are given the content.

    The temporary name holds the process number: two processes that write the same file at once may
    each lose theirs, but neither renames what the other has half written.

    Raises:
        UserError: `path` is a folder, a socket or a disk, or the system refused, as `writing` says.
    """
    with writing(path):
        target = _followed(path)
        stream = _stream(target, path)
        if stream is None:
            target.parent.mkdir(parents=True, exist_ok=True)
    lend = _replaced(target) if stream is None else _given(target, stream)
    temporary: Path | None = None
    try:
        with lend as temporary:
            yield temporary
    except OSError as error:
        if error.filename not in (None, str(temporary), str(target)):
            raise  # of another file, which the block reads
        with writing(path):
            raise


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write `data` so that `path` is never seen with a part of it.

    Raises:
        UserError: as `aside` does.
    """
    with aside(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 with the line ends it has, whole or not at all.

    Half a surrogate pair, from a file name that is not UTF-8, is written as JSON escapes it.

    Raises:
        UserError: as `aside` does.
    """
    write_whole(path, text.encode(errors="backslashreplace"))


def make_folder(path: Path) -> None:
    """Make a folder and those above it, unless they are there; a symbolic link to none stays.

    Raises:
        UserError: a file stands there, or the system refused.
    """
    with writing(path):
        _followed(path).mkdir(parents=True, exist_ok=True)


def contents(folder: Path) -> list[Path]:
    """Return what lies in a folder beside its lock; nothing where there is no folder.

    Raises:
        UserError: a file stands there, or the folder cannot be read.
    """
    with writing(folder), suppress(FileNotFoundError):
        return [path for path in folder.iterdir() if path.name != LOCK]
    return []


def is_stdout(path: Path) -> bool:
    """Return whether `path` names what this process prints to, so that messages would mix in."""
    try:
        return os.path.samestat(path.stat(), os.fstat(1))
    except OSError:
        return False


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


def _followed(path: Path) -> Path:
    """Return where the symbolic links at `path` lead, be it to nothing; not into an open file."""
    for _ in range(_MOST_LINKS):
        path = Path(os.path.realpath(path.parent), path.name)
        if _OPEN_FILES.fullmatch(str(path.parent)) or not path.is_symlink():
            return path
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _stream(target: Path, asked: Path) -> int | None:
    """Open what is written to and not replaced; None for a regular file, or for none."""
    process = _OPEN_FILES.fullmatch(str(target.parent))
    if process and process[1] in (None, str(os.getpid())) and _NUMBER.fullmatch(target.name):
        return os.dup(int(target.name))  # opened by its name, a regular file would lose its place
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return os.open(target, os.O_WRONLY | os.O_NOCTTY)  # of a FIFO: waits for a reader
    if process or not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no file that m2dr may replace"
        raise UserError(f"{asked} is {kind}, and a file was to be written there. Name a file.")
    return None


@contextmanager
def _replaced(target: Path) -> Iterator[Path]:
    """Lend a name beside `target`, and let that file take its place."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}{ASIDE}")
    try:
        yield temporary
        with suppress(OSError):  # there is no earlier file, or the disk knows no modes
            shutil.copymode(target, temporary)
        sync(temporary)
        temporary.replace(target)
        sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _given(target: Path, stream: int) -> Iterator[Path]:
    """Lend a name elsewhere, and copy that file into an open one."""
    with (
        os.fdopen(stream, "wb") as out,
        tempfile.TemporaryDirectory(prefix="m2dr-") as folder,
    ):
        temporary = Path(folder, target.name)
        yield temporary
        with temporary.open("rb") as file:
            shutil.copyfileobj(file, out)


# Locks


@contextmanager
def locked(folder: Path, remedy: str = "name another folder") -> Iterator[None]:
    """Hold a folder, which need not exist, while something is written to it.

    The system lets go of the lock when its holder ends, however it ends; the file of the lock
    means nothing by itself. A folder that was made for the lock alone is removed with it.

    Args:
        folder: to hold.
        remedy: what may be done instead of waiting; the end of a sentence.

    Raises:
        UserError: another process holds it, or the folder cannot be written to.
    """
    made = [part for part in (folder, *folder.parents) if not part.exists()]
    try:
        with _held(folder / LOCK, folder, remedy):
            yield
    finally:
        for part in made:
            with suppress(OSError):  # it holds something, or has gone
                part.rmdir()


def locked_file(path: Path, remedy: str = "name another file") -> AbstractContextManager[None]:
    """Hold a file, which need not exist, while it is being made; as `locked`.

    What is not replaced, such as a FIFO, is not held either.
    """
    with writing(path):
        target = _followed(path)
    if target.exists() and not target.is_file():
        return nullcontext()
    return _held(target.with_name(f".{target.name}{LOCK}"), path, remedy)


@contextmanager
def _held(lock: Path, what: Path, remedy: str) -> Iterator[None]:
    with writing(what):
        handle = _locked(lock, what, remedy)
    try:
        os.ftruncate(handle, 0)
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        os.write(handle, f"{os.getpid()} on {socket.gethostname()} since {now}".encode())
        yield
    finally:
        lock.unlink(missing_ok=True)  # before it is let go: whoever waits for it looks again
        os.close(handle)


def _locked(path: Path, what: Path, remedy: str) -> int:
    """Open and lock a file that still is at `path` when it is locked."""
    while True:
        make_folder(path.parent)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue  # another process removed the folder that it had made
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 300).decode(errors="replace") or "of an unknown number"
            os.close(handle)
            raise UserError(
                f"Another process, {holder}, is writing to {what}. Wait until it has ended, or "
                f"{remedy}."
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(handle)
                raise
            warnings.warn(
                f"{what} cannot be locked ({error.strerror}): see that no other process writes "
                "there.",
                stacklevel=5,
            )
        if path.exists() and os.fstat(handle).st_ino == path.stat().st_ino:
            return handle
        os.close(handle)  # its holder removed it between our opening and our locking
