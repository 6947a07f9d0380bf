"""The fields of documents in parquet files beside a store, a row per row of the store.

layer-NN/fields-00000.parquet   a column per field: its text, and its value where it is no text
layer-NN/fields-00003.parquet   of the documents that change 3 added; compacting leaves one file

Which kind of values a field has, such as whole numbers, stands in store.json. What is not compared
is not read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from m2dr.core.errors import UserError, command, install
from m2dr.core.files import atomic_path, explain_failure, sha256_of
from m2dr.core.records import Fields
from m2dr.index.filters import (
    READERS,
    Bools,
    FieldTest,
    Filter,
    KindGuess,
    Value,
    common_kind,
    fields_of,
    holds,
)
from m2dr.index.manifest import FieldFile, Kind

# Shapes in this file: N stored rows, n of a batch.

Untyped = Any  # pyarrow has no types

FIELD_FILES = "fields-*.parquet"
MOST = 1000  # fields of a collection; those that come later are left out
_LOOK = f"See what is damaged with: {command('index', 'verify')}"
_AT_ONCE = 2**16  # rows in memory
_HASHED_BYTES = 64 * 2**20  # larger files are compared with their digest by m2dr index verify alone
_ORDERS = {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
_TYPES = {"integer": "int64", "number": "float64", "date": "int64", "boolean": "bool_"}


def field_file(revision: int) -> str:
    """Return the name of the file that a change of a store writes; 0 for the first one."""
    return f"fields-{revision:05d}.parquet"


def write_fields(
    path: Path, rows: Callable[[], Iterable[Fields]], say: Callable[[str], None] | None = None
) -> FieldFile:
    """Write the fields of documents; no file where none has any.

    Args:
        path: of the file.
        rows: returns the fields of each document, in the order of the store; called twice.
        say: is given a sentence on each field that a few odd values make text.

    Returns:
        Its record, whose name is empty where nothing was written.

    Raises:
        UserError: pyarrow is not installed, or the disk refuses.
    """
    guesses: dict[str, KindGuess] = {}
    count = 0
    for fields in rows():
        count += 1
        for name, text in fields:
            if name not in guesses and len(guesses) < MOST:
                guesses[name] = KindGuess()
            if name in guesses:
                guesses[name].add(text)
    if not guesses:
        return FieldFile("", count, "")
    kinds = {name: guess.kind for name, guess in guesses.items()}
    for doubt in filter(None, (guess.doubt(name) for name, guess in guesses.items())):
        if say:
            say(doubt)
    with atomic_path(path) as temporary:
        _write(temporary, rows(), kinds)
        digest = sha256_of(temporary)
    return FieldFile(path.name, count, digest, tuple(kinds.items()))


def _write(path: Path, rows: Iterable[Fields], kinds: Mapping[str, Kind]) -> None:
    pa = _pyarrow()
    from pyarrow.parquet import ParquetWriter

    schema = pa.schema([(name, _type_of(kind)) for name, kind in kinds.items()])
    left = iter(rows)
    with ParquetWriter(path, schema) as file:
        while batch := [dict(fields) for fields in islice(left, _AT_ONCE)]:
            columns = [
                _column([row.get(name) for row in batch], kind) for name, kind in kinds.items()
            ]
            file.write_table(pa.Table.from_arrays(columns, schema=schema))


def _type_of(kind: Kind) -> Untyped:
    pa = _pyarrow()
    parts = [("text", pa.string())]
    if kind != "text":
        parts.append(("value", getattr(pa, _TYPES[kind])()))
    return pa.struct(parts)


def _column(texts: Sequence[str | None], kind: Kind) -> Untyped:
    pa = _pyarrow()
    children, read = [pa.array(texts, pa.string())], READERS[kind]
    if kind != "text":
        values = [None if text is None else read(text) for text in texts]
        children.append(pa.array(values, getattr(pa, _TYPES[kind])()))
    return pa.StructArray.from_arrays(children, fields=list(_type_of(kind)))


def kinds_of(files: Iterable[FieldFile]) -> Mapping[str, Kind]:
    """Return the kind of each field by name, over all files of a store."""
    by_name: dict[str, list[Kind]] = {}
    for file in files:
        for name, kind in file.fields:
            by_name.setdefault(name, []).append(kind)
    return {name: common_kind(kinds) for name, kinds in by_name.items()}


class FieldTable:
    """The fields of all stored rows, read from their files when they are compared.

    Attributes:
        kinds: of the fields, by name.
    """

    def __init__(
        self, folder: Path, files: Sequence[FieldFile], corpus: str, remedy: Callable[[], str]
    ) -> None:
        """Open the files that a manifest names.

        Args:
            folder: of the store.
            files: their records, in the order of the rows.
            corpus: whose documents, in messages.
            remedy: returns "with: " and the command that makes the store again.
        """
        self._folder, self._files, self._corpus, self._remedy = folder, files, corpus, remedy
        self._compared: set[str] = set()  # names of files
        self.kinds = kinds_of(files)

    def matching(self, wanted: Filter) -> Bools:
        """Return which stored rows a filter lets through, [N].

        Raises:
            UserError: it names a field that there is not, or a value of another kind; or a file is
                missing or has changed.
        """
        wanted.bound(self.kinds, self._corpus)
        return np.concatenate([self._matching(file, wanted) for file in self._files])

    def _matching(self, file: FieldFile, wanted: Filter) -> Bools:
        """Return which rows of a file a filter lets through, [n]."""
        own = dict(file.fields)
        # A field that is text in another file is text here; whole numbers stay what they are.
        kinds = {n: kind if kind == "text" else own.get(n, kind) for n, kind in self.kinds.items()}
        condition = wanted.bound(kinds, self._corpus)
        read = {
            name: "text" if kinds[name] == "text" else "value"
            for name in fields_of(condition)
            if name in own
        }
        if not read:
            return holds(condition, lambda _: np.zeros(file.rows, np.bool_))
        found = [
            holds(condition, partial(_compared, rows, batch))
            for rows, batch in self._batches(file, read)
        ]
        return np.concatenate([np.zeros(0, np.bool_), *found])

    def values(self) -> Iterator[dict[str, Value]]:
        """Yield the values of each stored row by field, of the kinds in `kinds`."""
        for fields in self.texts():
            found = ((name, READERS[self.kinds[name]](text)) for name, text in fields)
            yield {name: value for name, value in found if value is not None}

    def texts(self) -> Iterator[Fields]:
        """Yield the fields of each stored row.

        Raises:
            UserError: a file is missing or has changed.
        """
        for file in self._files:
            names = [name for name, _ in file.fields]
            if not names:
                yield from ((),) * file.rows
                continue
            for rows, batch in self._batches(file, dict.fromkeys(names, "text")):
                columns = [batch[name].to_pylist() for name in names]
                for row in range(rows):
                    pairs = ((name, texts[row]) for name, texts in zip(names, columns, strict=True))
                    yield tuple((name, text) for name, text in pairs if text is not None)

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each file that is not the one that was written."""
        for file in self._files:
            path = self._folder / file.name
            if file.name and not (path.is_file() and sha256_of(path) == file.sha256):
                yield self._damaged(file)

    def _batches(
        self, file: FieldFile, parts: Mapping[str, str]
    ) -> Iterator[tuple[int, dict[str, Untyped]]]:
        """Yield the number of rows and some columns, each its texts or its values, in batches."""
        _pyarrow()
        from pyarrow.parquet import ParquetFile

        self._check(file)
        path = self._folder / file.name
        with (
            explain_failure(f"{path} cannot be read"),
            ParquetFile(path) as opened,
        ):
            if opened.metadata.num_rows != file.rows:
                raise UserError(self._damaged(file))
            for batch in opened.iter_batches(_AT_ONCE, columns=list(parts)):
                columns = {name: batch.column(name).field(part) for name, part in parts.items()}
                yield batch.num_rows, columns

    def _check(self, file: FieldFile) -> None:
        """Refuse a file that is missing or, if it is not large, has changed."""
        path = self._folder / file.name
        if not path.is_file() or (file.name not in self._compared and self._has_changed(file)):
            raise UserError(self._damaged(file))
        self._compared.add(file.name)

    def _has_changed(self, file: FieldFile) -> bool:
        path = self._folder / file.name
        return path.stat().st_size <= _HASHED_BYTES and sha256_of(path) != file.sha256

    def _damaged(self, file: FieldFile) -> str:
        return (
            f"{self._folder / file.name} is missing or not the file of fields that was written. "
            f"Restore the file, or make it again {self._remedy()}"
        )


def _compared(rows: int, batch: Mapping[str, Untyped], test: FieldTest) -> Bools:
    """Return which of n rows fulfil a test, [n]; none where the file lacks the field."""
    if test.field not in batch:
        return np.zeros(rows, np.bool_)
    pa = _pyarrow()
    from pyarrow import compute

    column = batch[test.field]
    if test.sign in ("in", "not in"):
        found = compute.is_in(column, value_set=pa.array(test.values, column.type))
        found = (
            found if test.sign == "in" else compute.and_(compute.invert(found), column.is_valid())
        )
    else:
        found = getattr(compute, _ORDERS[test.sign])(column, pa.scalar(test.values[0], column.type))
    return np.asarray(found.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)


def _pyarrow() -> Untyped:
    try:
        import pyarrow
    except ImportError:
        raise UserError(
            "The fields of documents are kept in parquet, by pyarrow, which is not installed. "
            f"Install it with: {install('filter')}"
        ) from None
    return pyarrow
