"""JSON records, atomic writing, and locks on files and folders."""

import ctypes
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from m2dr.core.errors import UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Record = TypeVar("Record", bound=DataclassInstance)

TEMPORARY_SUFFIX = ".tmp"  # of a file while it is written
# In a folder that is being written to; of a file, the end of its lock's name.
LOCK_NAME = ".m2dr.lock"
LOG_FILE = "log.jsonl"  # what a training logged, in its folder
FORMAT = 1  # of records; raise it when the new reader would misread older files
_SEAL = "digest"  # sha256 of a record without this field
_LONG_NAME = 120  # bytes
# Of larger files of an index the digest is not computed each time they are opened for search.
# Their size is always checked; building, evaluating and m2dr index verify compare the digest too.
HASHED_BYTES = 64 * 2**20


# JSON


def read_json(path: Path, kind: object = Any) -> Any:  # what `kind` says
    """Read a JSON file that another program wrote; NaN and whole numbers of any size are read.

    Args:
        path: the file.
        kind: the type of its value, such as `list[dict[str, str]]`.

    Raises:
        UserError: the file cannot be read, is not JSON, or a value has another type.
    """
    try:
        return msgspec.convert(json.loads(path.read_bytes()), kind)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise UserError(_unreadable(path, error)) from error


def read_training_log(folder: Path) -> list[dict[str, Any]]:
    """Return the lines that a training left in its folder, docs/formats.md.

    Raises:
        UserError: there is no log, or a line is no object of JSON.
    """
    path = folder / LOG_FILE
    try:
        return msgspec.json.Decoder(dict[str, Any]).decode_lines(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise UserError(_unreadable(path, error)) from error


def read_object(path: Path, hints: Mapping[str, object]) -> dict[str, Any]:
    """Read a JSON object of which some fields are known.

    Args:
        path: the file.
        hints: types of the known fields; each may be absent, and there may be others.

    Raises:
        UserError: as `read_json`.
    """
    table: dict[str, Any] = read_json(path, dict[str, Any])
    for name in hints.keys() & table.keys():
        try:
            table[name] = msgspec.convert(table[name], hints[name])
        except msgspec.ValidationError as error:
            raise UserError(_unreadable(path, f"{name}: {error}")) from error
    return table


def read_optional_object(path: Path, hints: Mapping[str, object]) -> dict[str, Any]:
    """Read a JSON object as `read_object` does; it is empty where there is no file."""
    return read_object(path, hints) if path.exists() or path.is_symlink() else {}


def write_json(path: Path, value: object, **options: Any) -> None:  # as json types them
    """Write a value as indented JSON, atomically; the options are those of `json.dumps`."""
    text = json.dumps(value, indent=2, default=msgspec.to_builtins, **options)
    write_text(path, f"{text}\n")


def json_sha256(value: object, sort_keys: bool = True) -> str:
    """Return the SHA-256 of a value's JSON, in hex."""
    text = json.dumps(value, sort_keys=sort_keys, default=msgspec.to_builtins)
    return hashlib.sha256(text.encode()).hexdigest()


def record_table(record: "DataclassInstance", *, sealed: bool = True) -> dict[str, Any]:
    """Return the JSON of a record: its fields, a format number and, if sealed, its own sha256."""
    table = {"format": FORMAT, **asdict(record)}
    return {**table, _SEAL: json_sha256(table)} if sealed else table


def write_record(path: Path, record: "DataclassInstance", *, sealed: bool = True) -> None:
    """Write `record_table` as indented, sorted JSON, atomically."""
    table = record_table(record, sealed=sealed)
    write_json(path, table, sort_keys=True, ensure_ascii=False, allow_nan=False)


def read_record(path: Path, kind: "type[Record]", *, sealed: bool = True) -> "Record":
    """Read a record that `write_record` wrote.

    Args:
        path: the file.
        kind: the type of the record.
        sealed: whether its digest must match; a model card may be edited.

    Raises:
        UserError: the file is missing, is not JSON, has another format, is not of this type, or
            has changed.
    """
    try:
        return parse_record(path.read_bytes(), kind, sealed=sealed)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise UserError(_unreadable(path, error)) from error


def parse_record(text: str | bytes, kind: "type[Record]", *, sealed: bool = True) -> "Record":
    """Parse the JSON of a record, as `read_record` does.

    Raises:
        ValueError: it has another format, or has changed.
        msgspec.MsgspecError: it is not JSON, or not of this type.
    """
    table = msgspec.json.decode(text, type=dict[str, Any])
    if table.get("format") != FORMAT:
        raise ValueError(f"has format {table.get('format')}, and this m2dr reads format {FORMAT}")
    if sealed and table.pop(_SEAL, "") != json_sha256(table):
        raise ValueError("its content does not match its digest")
    return msgspec.convert(table, kind)


def _unreadable(path: Path, error: object) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return f"{path} cannot be read: {reason}."


# Errors of libraries


@contextmanager
def explain_failure(what: str) -> Iterator[None]:
    """Turn what a library raises for a damaged file into a UserError.

    Interruptions and errors of the operating system pass unchanged.

    Args:
        what: what cannot be done, such as "The model in models/x cannot be loaded".
    """
    try:
        yield
    except (UserError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        if isinstance(error, OSError) and error.errno:
            raise
        raise UserError(f"{what}: {error_summary(error)}.") from error


def error_summary(error: BaseException) -> str:
    """Return the first two lines of an error's message, without a full stop."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300].rstrip(".: ") or type(error).__name__


# Writing


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` when the block succeeds.

    The replacement is atomic: an interruption leaves the old file or none. Symbolic links are
    followed, and missing folders are made. The content is copied into a pipe or a device, such as
    /dev/stdout.

    The temporary name has the process number, so two processes never share one.

    Raises:
        OSError: `path` is a folder, or cannot be written.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        with tempfile.TemporaryDirectory(prefix="m2dr-") as folder:
            temporary = Path(folder, path.name)
            yield temporary
            with temporary.open("rb") as file, path.open("wb") as out:
                shutil.copyfileobj(file, out)
        return
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        yield temporary
        with suppress(OSError):  # there is no earlier file, or the disk has no modes
            shutil.copymode(target, temporary)
        fsync(temporary)
        temporary.replace(target)
        fsync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write `data` to a file as `atomic_path` does."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write `text` to a file in UTF-8, as `atomic_path` does, with its line ends unchanged."""
    write_bytes(path, text.encode())


def fsync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_state(path: Path) -> tuple[int, ...]:
    """Return inode, size and times, which differ once a file was written, whatever `touch` did."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def short_name(name: str) -> str:
    """Return a name that fits a file, whose end is a digest where it is longer than 120 bytes.

    The maximum of file systems is 255 bytes, and extensions and temporary names need some.

    >>> short_name("mine_nDCG@10"), len(short_name("mine-" * 60))
    ('mine_nDCG@10', 113)
    """
    data = os.fsencode(name)
    if len(data) <= _LONG_NAME:
        return name
    return f"{data[:100].decode(errors='ignore')}-{hashlib.sha256(data).hexdigest()[:12]}"


def list_folder(folder: Path) -> list[Path]:
    """Return the paths in a folder except its lock; empty where there is no folder."""
    with suppress(FileNotFoundError):
        return [path for path in folder.iterdir() if path.name != LOCK_NAME]
    return []


def absolute_path(path: Path) -> Path:
    """Return a path from the root, without dots; what is a symbolic link keeps its own name."""
    return Path(os.path.normpath(path.absolute()))


def folders_below(folder: Path, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """Yield a folder and those below it, also where they lie elsewhere by a symbolic link.

    A link to a folder that it lies in is not followed.

    Args:
        folder: where to begin; nothing is yielded where there is none.
        above: device and inode of the folders that it lies in.
    """
    with suppress(OSError):  # it is gone, or may not be read
        own = folder.stat()
        inside = sorted(path for path in folder.iterdir() if path.is_dir())
        here = (own.st_dev, own.st_ino)
        if here not in above:
            yield folder
            for path in inside:
                yield from folders_below(path, above | {here})


def remove_folder(folder: Path) -> None:
    """Remove a folder, or a symbolic link and the folder that it leads to."""
    shutil.rmtree(os.path.realpath(folder))
    if folder.is_symlink():
        folder.unlink()


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
            raise UserError(f"{option} {path} would overwrite the file that {name} names.")


def remove_files(folder: Path, *patterns: str) -> None:
    """Remove the files directly in `folder` that match a pattern."""
    for pattern in patterns:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    fsync(folder)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Locks


def cache_folder() -> Path:
    """Return the folder of caches: $M2DR_CACHE, else m2dr in the user's cache folder.

    Of a user who has none, or may not write there, it lies in the folder of temporary files.

    Raises:
        UserError: there it belongs to another user, or cannot be made.
    """
    if given := os.environ.get("M2DR_CACHE"):
        return Path(given)
    with suppress(RuntimeError):  # the user has no home
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "m2dr"
        if os.access(next(path for path in (folder, *folder.parents) if path.exists()), os.W_OK):
            return folder
    folder = Path(tempfile.gettempdir(), f"m2dr-{os.getuid()}")
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid == os.getuid():
            return folder
    raise UserError(f"{folder} cannot hold caches; name a folder for them by M2DR_CACHE.")


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder, which need not exist, while something is written to it.

    The operating system releases the lock when its process ends; a lock file without a process
    locks nothing. A folder that was made only for the lock is removed with it.

    Raises:
        UserError: another process holds the lock.
        OSError: the folder cannot be written to.
    """
    added = [part for part in (folder, *folder.parents) if not part.exists()]
    try:
        with _locked(folder / LOCK_NAME, folder):
            yield
    finally:
        for part in added:
            with suppress(OSError):  # it is not empty, or does not exist
                part.rmdir()


def lock_file(path: Path) -> AbstractContextManager[None]:
    """Lock a file, which need not exist, as `lock_folder` does; a FIFO or device is not locked."""
    target = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        return nullcontext()
    return _locked(target.with_name(f".{target.name}{LOCK_NAME}"), path)


def remove_stale_lock(folder: Path) -> None:
    """Remove the lock file that a killed process left in a folder.

    Nothing is done where there is no lock, where a process holds it, or on a read-only disk.
    """
    if (folder / LOCK_NAME).exists():
        with suppress(UserError, OSError), _locked(folder / LOCK_NAME, folder):
            pass


@contextmanager
def _locked(path: Path, what: Path) -> Iterator[None]:
    import filelock

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0.2, poll_interval=0.05)  # over the moment of a release
    except filelock.Timeout:
        raise UserError(f"Another process is writing to {what}.") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before the release: a process that opened it tries again
        lock.release()


# Memory


def return_free_memory() -> bool:
    """Return free pages of the heap to the system, where the C library is glibc.

    Batches of ever other shapes leave holes in the heap, and it grows with each array that fits
    into none of them; nothing else gives those pages back.
    """
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (AttributeError, OSError, TypeError):  # another C library, or Windows
        return False
