"""Rows of tables, whatever the file: parquet, Arrow, CSV, TSV, JSONL, folders of them, `hf:ID`.

A row is a `Line` whose `json()` returns its values by column name, so that what makes texts, groups
and pairs of rows does not depend on the file. A place of rows is a path: a file, a folder, or
`hf:ID` as `m2dr.data.huggingface` reads it.
"""

import json
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from tempfile import mkstemp
from typing import TYPE_CHECKING, Any, NamedTuple

from m2dr.core.errors import UserError, install
from m2dr.core.files import explain_failure, refuse_pipe
from m2dr.data import huggingface
from m2dr.data.readers import (
    IdTable,
    Line,
    Row,
    read_lines,
    read_table,
    stem_of,
    suffix_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

Untyped = Any  # pyarrow has no types

PARQUET = (".parquet", ".pq")
ARROW = (*PARQUET, ".arrow", ".feather")  # files of Arrow tables
TEXT = (".csv", ".tsv", ".jsonl")  # these may be gzipped
SCALARS = frozenset({"*"})  # in place of columns: all but those of lists and of bytes
ROWS_AT_ONCE = 1024  # that are converted to Python
# A split by the words of file and folder names, as the hub writes them.
SPLIT_WORDS = {"train": "train", "test": "test"} | dict.fromkeys(
    ("dev", "validation", "valid", "val"), "dev"
)
# A folder that holds one of these is no folder of tables of one kind.
_PARTS_OF_A_CORPUS = {"corpus", "collection", "queries", "qrels"}
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")  # as `datasets` numbers the files of a split

_CACHE = re.compile(r"cache-[0-9a-f]{16}\w*\.arrow")  # what `datasets` keeps of `map` and `filter`


class Part(NamedTuple):
    """Rows of one file, or of one split of a data set."""

    path: Path
    split: str  # that each row is given; empty for none
    open: "Callable[[Collection[str]], Iterable[pa.RecordBatch]]"  # some columns; empty: all


def is_arrow(path: Path) -> bool:
    """Return whether a place is a file, a folder or a data set of Arrow tables."""
    if huggingface.recognises(path):
        return True
    if path.is_dir():
        files = [file for file, _ in _files(path)]
        return bool(files) and all(suffix_of(file) in ARROW for file in files)
    return path.suffix.lower() in ARROW


def is_place(path: Path) -> bool:
    """Return whether rows can be read from a path: a file by its suffix, a folder, or hf:ID.

    A data set with a corpus and queries apart is none.
    """
    if huggingface.recognises(path):
        return not huggingface.retrieval_parts(str(path))
    if path.is_dir():
        return bool(_files(path))
    return path.is_file() and (path.suffix.lower() in ARROW or suffix_of(path) in TEXT)


def name_of(path: Path) -> str:
    """Return the name of a place, fit to name a folder.

    >>> name_of(Path("data/nli.train.parquet")), name_of(Path("hf:mteb/scifact/corpus"))
    ('nli.train', 'mteb-scifact-corpus')
    """
    if huggingface.recognises(path):
        return huggingface.short_name(str(path))
    return path.resolve().name if path.is_dir() else stem_of(path)


def split_name(word: str) -> str:
    """Return a split's name: dev for validation, others in lower case."""
    lowered = word.strip().lower()
    return SPLIT_WORDS.get(lowered, lowered)


def read_records(path: Path, columns: Collection[str] = ()) -> Iterator[Line]:
    """Yield the rows of a place; `Line.json()` returns the values of each.

    Args:
        path: a file, a folder or `hf:ID`.
        columns: to read, of Arrow tables; empty for all, or SCALARS.

    Raises:
        UserError: the place cannot be read.
    """
    if suffix_of(path) == ".jsonl" and not path.is_dir() and not huggingface.recognises(path):
        yield from read_lines(path)
        return
    for part in _parts(path):
        if suffix_of(part.path) in TEXT and not huggingface.recognises(path):
            yield from _text_rows(part)
            continue
        number = 0
        for batch in part.open(columns):
            named = _entailment_names(batch.schema)
            for start in range(0, batch.num_rows, ROWS_AT_ONCE):
                for row in batch.slice(start, ROWS_AT_ONCE).to_pylist():
                    number += 1
                    yield _line(part, number, _with_names(row, named))


def columns_of(path: Path) -> tuple[Line, list[str]] | None:
    """Return the first row of a place and the names of its columns; None when there is no row."""
    first = next(read_records(path), None)
    return None if first is None else (first, list(first.json()))


class ArrowTable(IdTable):
    """The rows of Arrow tables by number and by id.

    Files of Arrow are memory-mapped, and so is a copy of parquet in that format, which lies without
    a name in the folder of temporary files. So memory does not grow with the texts.

    Args:
        path: of a file, a folder or `hf:ID`.
        identify: as in IdTable.
        columns: that `identify` needs; a row has all but those of lists and of bytes.
    """

    def __init__(
        self, path: Path, identify: Callable[[Line], str], columns: Collection[str]
    ) -> None:
        # Each batch with its part and the number of its rows that come before it.
        self._batches = [
            (part, start, batch)
            for part in _parts(path)
            for batch, start in _numbered(_mapped(part, SCALARS))
        ]
        self._ends = list(accumulate(batch.num_rows for _, _, batch in self._batches))
        super().__init__(identify, map(identify, read_records(path, columns)))

    def line(self, row: int) -> Line:
        """See IdTable."""
        place = bisect_right(self._ends, row)
        part, start, batch = self._batches[place]
        row -= self._ends[place] - batch.num_rows
        return _line(part, start + row + 1, batch.slice(row, 1).to_pylist()[0])


def stem_without_shard(path: Path) -> str:
    """Return the name of a file without its suffix and the number of its shard.

    >>> stem_without_shard(Path("qrels/test-00000-of-00001.parquet"))
    'test'
    """
    return _SHARD.sub("", path.name if path.is_dir() else stem_of(path))


# Places


def _parts(path: Path) -> Iterator[Part]:
    """Yield the parts of a place, in order."""
    if huggingface.recognises(path):
        named = str(path).count(":") > 1
        for split, table in huggingface.load_tables(str(path)).items():
            name = path if named or not split else Path(f"{path}:{split}")
            yield Part(name, split_name(split), partial(_of_table, name, table))
        return
    files = _files(path) if path.is_dir() else [(path, "")]
    for file, split in files:
        yield Part(file, split, partial(_open, file))


def _files(folder: Path) -> list[tuple[Path, str]]:
    """Return the files of tables in a folder and one level below, by name, each with its split."""
    entries = _listed(folder)
    below = [file for entry in entries if entry.is_dir() for file in _listed(entry)]
    if any(path.name.partition(".")[0] in _PARTS_OF_A_CORPUS for path in (*entries, *below)):
        return []
    return [
        (file, _split_in_name(file.relative_to(folder)))
        for file in (*entries, *below)
        if file.is_file()
        and (file.suffix.lower() in ARROW or suffix_of(file) in TEXT)
        and not (file.name.startswith(".") or _CACHE.fullmatch(file.name))
    ]


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise UserError(
            f"{folder} cannot be read: {error.strerror or error}. Change its permissions, or name "
            "another folder."
        ) from None


def _split_in_name(path: Path) -> str:
    words = re.split(r"[^a-z0-9]+", str(path).lower())
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), "")


def _line(part: Part, number: int, row: Row) -> Line:
    """Return a row of Arrow: fields that are null in a nested object are left out, as in JSON."""
    values = {name: _without_nulls(value) for name, value in row.items()}
    if part.split:
        values.setdefault("split", part.split)
    return Line(part.path, number, "", values, "row")


def _entailment_names(schema: Untyped) -> dict[str, list[str]]:
    """Return by column the names of the numbers of NLI labels, where `datasets` recorded them.

    Data sets number entailment, neutral and contradiction in any order. A column of two classes
    whose 1 is entailment holds scores already.
    """
    try:
        record = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = record.get("info", {}).get("features", {}).items()
        names = {
            column: [str(name) for name in feature["names"]]
            for column, feature in features
            if isinstance(feature, dict) and isinstance(feature.get("names"), list)
        }
    except (ValueError, AttributeError):  # the record is damaged, or another's
        return {}
    return {
        column: known
        for column, known in names.items()
        if "entailment" in map(str.lower, known)
        and [name.lower() for name in known[1:]] != ["entailment"]
    }


def _with_names(row: Row, named: dict[str, list[str]]) -> Row:
    """Return a row with names in place of numbers; one without a name, such as -1, stays."""
    for column, known in named.items():
        value = row.get(column)
        if isinstance(value, int) and 0 <= value < len(known):
            row[column] = known[value]
    return row


def _without_nulls(value: object) -> object:
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def _text_rows(part: Part) -> Iterator[Line]:
    """Yield the rows of a file of text; the split of the file is one of their values."""
    if suffix_of(part.path) == ".jsonl":
        rows: Iterable[tuple[Line, Row]] = ((line, line.json()) for line in read_lines(part.path))
    else:
        rows = read_table(part.path)
    for line, row in rows:
        split = {"split": part.split} if part.split and "split" not in row else {}
        yield line._replace(row={**row, **split})


# Arrow


def _numbered(batches: "Iterable[pa.RecordBatch]") -> "Iterator[tuple[pa.RecordBatch, int]]":
    """Yield batches, each with the number of the rows before it."""
    done = 0
    for batch in batches:
        yield batch, done
        done += batch.num_rows


def _mapped(part: Part, columns: Collection[str]) -> "Iterable[pa.RecordBatch]":
    """Return all batches of a part, memory-mapped."""
    batches = part.open(columns)
    if huggingface.recognises(part.path) or part.path.suffix.lower() not in PARQUET:
        return batches
    return _mapped_copy(iter(batches))


def _mapped_copy(batches: "Iterator[pa.RecordBatch]") -> "Iterable[pa.RecordBatch]":
    from pyarrow import ipc, memory_map

    first = next(batches, None)
    if first is None:
        return []
    handle, name = mkstemp(".arrow", "m2dr-")
    try:
        with os.fdopen(handle, "wb") as file, ipc.new_file(file, first.schema) as copy:
            for batch in chain([first], batches):
                copy.write_batch(batch)
        found = ipc.open_file(memory_map(name))
    finally:
        Path(name).unlink()  # what is mapped stays until it is let go
    return [found.get_batch(number) for number in range(found.num_record_batches)]


def _pyarrow(path: Path) -> Untyped:
    try:
        import pyarrow
    except ImportError:
        raise UserError(
            f"{path} is read by pyarrow, which is not installed. Install it with: "
            f"{install('datasets')}"
        ) from None
    return pyarrow


def _open(path: Path, columns: Collection[str]) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a file, in batches."""
    refuse_pipe(path)
    _pyarrow(path)
    with explain_failure(f"{path} cannot be read as a table of {path.suffix}"):
        yield from (_of_parquet if path.suffix.lower() in PARQUET else _of_arrow)(path, columns)


def _of_parquet(path: Path, columns: Collection[str]) -> "Iterator[pa.RecordBatch]":
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        chosen = _chosen(path, file.schema_arrow, columns)
        yield from file.iter_batches(ROWS_AT_ONCE * 16, columns=chosen)


def _of_arrow(path: Path, columns: Collection[str]) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of an Arrow file or stream, or of feather's first version."""
    import pyarrow as pa
    from pyarrow import feather, ipc

    mapped = pa.memory_map(str(path))
    start = mapped.read(6)
    mapped.seek(0)
    if start == b"ARROW1":
        table = ipc.open_file(mapped).read_all()
    elif start[:4] == b"FEA1":
        table = feather.read_table(path)
    else:
        table = ipc.open_stream(mapped).read_all()  # what `save_to_disk` writes
    yield from _of_table(path, table, columns)


def _of_table(path: Path, table: Untyped, columns: Collection[str]) -> "Iterator[pa.RecordBatch]":
    yield from table.select(_chosen(path, table.schema, columns)).to_batches()


def _chosen(path: Path, schema: Untyped, columns: Collection[str]) -> list[str]:
    """Return the names of the columns that are read."""
    names = _checked(path, schema.names)
    if columns == SCALARS:
        return [name for name in names if not _is_long(schema.field(name).type)]
    return [name for name in names if name in columns] if columns else names


def _is_long(kind: Untyped) -> bool:
    from pyarrow import types

    tests = ("list", "large_list", "fixed_size_list", "map", "binary", "large_binary")
    return any(getattr(types, f"is_{test}")(kind) for test in tests)


def _checked(path: Path, names: list[str]) -> list[str]:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{path} has two columns {twice!r}. Rename one of them.")
    return names
