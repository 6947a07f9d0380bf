"""A file appears whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A path to write to; when the block ends well, what was written there becomes `path`.

    The content is on disk before the name is: an interruption leaves the old file or none. The
    folder of `path` is made if need be.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        yield unfinished
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 with the line ends it has, whole or not at all.

    Half a surrogate pair, from a file name that is not UTF-8, is written as JSON escapes it.
    """
    with aside(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
