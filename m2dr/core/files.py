"""Reading of regular files, atomic writing, locks on files and folders, and the heap."""

import ctypes
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
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from m2dr.core.errors import UserError, os_error_message

TEMPORARY_SUFFIX = ".tmp"  # of a file while it is written
# In a folder that is being written to; of a file, the end of its lock's name.
LOCK_NAME = ".m2dr.lock"
_ROOM = "Free some space or name a folder on another disk, then run the same command again"
_RIGHTS = "Name a folder that you may write to, or change its permissions"
_ANOTHER = "There is a file where a folder should be, or the reverse; name another"
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.ENOTDIR: _ANOTHER,
    errno.EISDIR: _ANOTHER,
    errno.EEXIST: _ANOTHER,
    errno.EPIPE: "The process that read it has ended; run the command again with another reader",
    errno.ELOOP: "Its symbolic links form a loop; name a file",
}
# Folders of a process's open files, which /dev/stdout and `>(command)` are links into.
_OPEN_FILES = re.compile(r"/proc/(\d+)(/task/\d+)?/fd|/dev/fd")
_NUMBER = re.compile(r"[0-9]{1,9}")  # of an open file
_LONG_NAME = 120  # bytes
_ATTEMPTS = 100  # to open a lock whose folder other processes remove
_MOST_LINKS = 40  # as Linux follows them
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # the file system has no locks
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}
_STREAMS = ("a FIFO", "a device", "a socket")  # may have no end, and can be read once


# Reading


def irregular_kind(path: Path) -> str:
    """Return what is at a path, such as "a folder"; empty for a regular file. Nothing is opened."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "a link to nothing" if path.is_symlink() else "nothing"
    except OSError as error:
        return f"nothing that can be read ({error.strerror or error})"
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no file")


def read_regular(path: Path) -> bytes:
    """Return the bytes of a regular file; reading a FIFO might never end.

    Raises:
        OSError: it cannot be read, or is a FIFO, device or socket.
    """
    found = irregular_kind(path)
    if found.startswith(_STREAMS):
        raise OSError(errno.ENXIO, f"it is {found}, not a file", str(path))
    return path.read_bytes()


def refuse_pipe(path: Path) -> None:
    """Raise UserError for a pipe or a device, where the caller reads a path more than once."""
    if irregular_kind(path).startswith(_STREAMS):
        raise UserError(
            f"{path} is a pipe or a device, which can be read only once, and m2dr reads it several "
            "times. Write its content to a file, and name that file instead."
        )


def read_bytes(path: Path, remedy: str) -> bytes:
    """Return the bytes of a regular file.

    Args:
        path: the file.
        remedy: what to do when it cannot be read; a sentence.

    Raises:
        UserError: the file is missing, not regular or not readable.
    """
    found = irregular_kind(path)
    if found:
        raise UserError(f"{path} is {found}, not a file. {remedy}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}). {remedy}") from error


@contextmanager
def explain_failure(what: str, remedy: str) -> Iterator[None]:
    """Turn what a library raises for a damaged file into a UserError.

    Interruptions and errors of the operating system pass unchanged.

    Args:
        what: what cannot be done, such as "The model in models/x cannot be loaded".
        remedy: what to do; a sentence.
    """
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        if os_error_message(error):
            raise
        raise UserError(f"{what} ({error_summary(error)}). {remedy}") from error


def error_summary(error: BaseException) -> str:
    """Return the first two lines of an error's message, without a full stop."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300].rstrip(".: ") or type(error).__name__


# Writing


@contextmanager
def explain_write_failure(path: Path) -> Iterator[None]:
    """Turn an OSError of writing to `path` into a UserError that says what to do."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "Check the disk and the folder's permissions")
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}. {remedy}."
        ) from error


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` when the block succeeds.

    The replacement is atomic: an interruption leaves the old file or none. Symbolic links are
    followed, and missing folders are made. A FIFO, a character device or an open file of this
    process, such as /dev/stdout, is not replaced; the content is copied into it.

    The temporary name has the process number, so two processes never share one.

    Raises:
        UserError: `path` is a folder, a socket or a disk, or it cannot be written.
    """
    with explain_write_failure(path):
        target = _followed(path)
        stream = _stream(target, path)
        if stream is None:
            target.parent.mkdir(parents=True, exist_ok=True)
    opened = _replaced(target) if stream is None else _copied(target, stream)
    temporary: Path | None = None
    try:
        with opened as temporary:
            yield temporary
    except OSError as error:
        if error.filename not in (None, str(temporary), str(target)):
            raise  # the error is of another file, which the block reads
        with explain_write_failure(path):
            raise


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write `data` to a file as `atomic_path` does."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write `text` to a file in UTF-8, as `atomic_path` does, with its line ends unchanged.

    Half a surrogate pair, from a file name that is not UTF-8, is written as a JSON escape.
    """
    write_bytes(path, text.encode(errors="backslashreplace"))


def short_name(name: str) -> str:
    """Return a name that fits a file, whose end is a digest where it is longer than 120 bytes.

    File systems take 255 bytes, of which extensions and temporary names need some.

    >>> short_name("mine_nDCG@10"), len(short_name("mine-" * 60))
    ('mine_nDCG@10', 113)
    """
    data = os.fsencode(name)
    if len(data) <= _LONG_NAME:
        return name
    return f"{data[:100].decode(errors='ignore')}-{hashlib.sha256(data).hexdigest()[:12]}"


def make_folder(path: Path) -> None:
    """Make a folder and its parents unless they exist; raise UserError when that fails."""
    with explain_write_failure(path):
        _followed(path).mkdir(parents=True, exist_ok=True)


def list_folder(folder: Path) -> list[Path]:
    """Return the paths in a folder except its lock; empty where there is no folder.

    Raises:
        UserError: it is a file, or cannot be read.
    """
    with explain_write_failure(folder), suppress(FileNotFoundError):
        return [path for path in folder.iterdir() if path.name != LOCK_NAME]
    return []


def is_stdout(path: Path) -> bool:
    """Return whether `path` is the standard output of this process."""
    try:
        return os.path.samestat(path.stat(), os.fstat(1))
    except OSError:
        return False


def refuse_same_file(option: str, path: Path | None, others: Mapping[str, object]) -> None:
    """Refuse to write a file that is also another one of the same command.

    Args:
        option: that names the file to write.
        path: of the file; None where none is written.
        others: paths that are read or written too, or names of what is read, which may be no
            files, by what names them; None for none.

    Raises:
        UserError: one of them is that file, by whatever name.
    """
    if path is None or (path.exists() and not path.is_file()):  # a stream is not replaced
        return
    for name, other in others.items():
        is_file = isinstance(other, Path) or Path(str(other or ".")).is_file()
        if is_file and os.path.realpath(str(other)) == os.path.realpath(path):
            raise UserError(
                f"{option} {path} was to be written, and {name} names the same file, which would "
                f"be lost. Name another file by {option}."
            )


def remove_files(folder: Path, *patterns: str) -> None:
    """Remove the files directly in `folder` that match a pattern."""
    with explain_write_failure(folder):
        for pattern in patterns:
            for path in folder.glob(pattern):
                path.unlink(missing_ok=True)
        sync(folder)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _followed(path: Path) -> Path:
    """Return the target of the symbolic links at `path`, which need not exist.

    A link into the open files of a process is not followed.
    """
    for _ in range(_MOST_LINKS):
        path = Path(os.path.realpath(path.parent), path.name)
        if _OPEN_FILES.fullmatch(str(path.parent)) or not path.is_symlink():
            return path
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _stream(target: Path, asked: Path) -> int | None:
    """Open a stream, which is written to and not replaced; None for a regular file, or for none."""
    process = _OPEN_FILES.fullmatch(str(target.parent))
    if process and process[1] in (None, str(os.getpid())) and _NUMBER.fullmatch(target.name):
        return os.dup(int(target.name))  # opening it by name would start at its beginning
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return os.open(target, os.O_WRONLY | os.O_NOCTTY)  # a FIFO waits for a reader
    if process or not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no file that m2dr may replace"
        raise UserError(f"{asked} is {kind}, and m2dr writes a file there. Name a file.")
    return None


@contextmanager
def _replaced(target: Path) -> Iterator[Path]:
    """Yield a temporary name beside `target`, and rename that file to `target`."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        yield temporary
        with suppress(OSError):  # there is no earlier file, or the disk has no modes
            shutil.copymode(target, temporary)
        sync(temporary)
        temporary.replace(target)
        sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _copied(target: Path, stream: int) -> Iterator[Path]:
    """Yield a name in a temporary folder, and copy that file into an open one."""
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
def lock_folder(folder: Path, remedy: str = "name another folder") -> Iterator[None]:
    """Lock a folder, which need not exist, while something is written to it.

    The operating system releases the lock when its process ends; a lock file without a process
    locks nothing. A folder that was made only for the lock is removed with it.

    Args:
        folder: to lock.
        remedy: what to do instead of waiting; the end of a sentence.

    Raises:
        UserError: another process holds the lock, or the folder cannot be written to.
    """
    made = [part for part in (folder, *folder.parents) if not part.exists()]
    try:
        with _held(folder / LOCK_NAME, folder, remedy):
            yield
    finally:
        for part in made:
            with suppress(OSError):  # it is not empty, or does not exist
                part.rmdir()


def remove_stale_lock(folder: Path) -> None:
    """Remove the lock file that a killed process left in a folder.

    Nothing is done where there is no lock, where a process holds it, or on a read-only disk.
    """
    if (folder / LOCK_NAME).exists():
        with suppress(UserError), _held(folder / LOCK_NAME, folder, ""):
            pass


def is_locked(folder: Path) -> bool:
    """Return whether another process writes to a folder; nothing is changed."""
    try:
        with (folder / LOCK_NAME).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock, or the disk has none
        return False
    return False


def lock_file(path: Path, remedy: str = "name another file") -> AbstractContextManager[None]:
    """Lock a file, which need not exist, as `lock_folder` does; a FIFO or device is not locked."""
    with explain_write_failure(path):
        target = _followed(path)
    if target.exists() and not target.is_file():
        return nullcontext()
    return _held(target.with_name(f".{target.name}{LOCK_NAME}"), path, remedy)


@contextmanager
def _held(lock: Path, what: Path, remedy: str) -> Iterator[None]:
    with explain_write_failure(what):
        handle = _locked(lock, what, remedy)
    try:
        os.ftruncate(handle, 0)
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        os.write(handle, f"{os.getpid()} on {socket.gethostname()} since {now}".encode())
        yield
    finally:
        lock.unlink(missing_ok=True)  # before the release: a process that opened it tries again
        os.close(handle)


def _locked(path: Path, what: Path, remedy: str) -> int:
    """Open and lock the lock file; try again when another process removed it meanwhile."""
    left = _ATTEMPTS
    while True:
        make_folder(path.parent)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            left -= 1
            if left:
                continue  # another process removed the folder
            raise  # the folder takes no files, as /proc
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
                f"{what} cannot be locked ({error.strerror}): make sure that no other process "
                "writes there.",
                stacklevel=5,
            )
        if path.exists() and os.fstat(handle).st_ino == path.stat().st_ino:
            return handle
        os.close(handle)  # its holder removed it between our opening and our locking


def return_free_memory() -> bool:
    """Return free pages of the heap to the system, where the C library is glibc.

    Batches of ever other shapes leave holes in the heap, and it grows with each array that fits
    into none of them; nothing else gives those pages back.
    """
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (AttributeError, OSError, TypeError):  # another C library, or Windows
        return False
