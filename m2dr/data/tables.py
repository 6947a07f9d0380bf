"""Rows of any file (JSONL, JSON, CSV, TSV, text, parquet, Arrow, folders, `hf:ID`) or in memory.

Every file is a stream of Arrow record batches. Columns of text files are strings, whatever they
look like: "007", "1e5" and "NA" stay what they are. JSONL is a column of lines, decoded by row.
"""

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import lru_cache, partial
from itertools import accumulate, chain, islice
from math import isfinite
from pathlib import Path
from tempfile import mkstemp
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from m2dr.core.errors import UserError
from m2dr.core.files import absolute_path
from m2dr.core.progress import say_once
from m2dr.core.records import as_utf8
from m2dr.data.notes import read_note
from m2dr.data.roles import DOCUMENT, OF_A_ROW, VECTOR, Roles, say_unread
from m2dr.data.text_files import (
    LINE,
    cells,
    content,
    decoded,
    first_line,
    lines,
    reading,
    text_column,
)

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
Parsed = TypeVar("Parsed")

HUB = "hf:"
ARROW = (".parquet", ".pq", ".arrow", ".feather")
TEXT = (".csv", ".tsv", ".jsonl", ".json")
_COMPRESSED = re.compile(r"\.(gz|zst)$")
_SPACE = re.compile(r"\s", re.ASCII)
_QUOTED = re.compile('"(?:[^"]|"")*"')
_IN_MEMORY = 2**26  # bytes of a file whose rows are held in memory, and not in a mapped copy
_ROWS_AT_ONCE = 1024  # that are converted to Python
# A split by the words of file and folder names, as the hub writes them.
SPLIT_WORDS = {"train": "train", "test": "test"} | dict.fromkeys(
    ("dev", "validation", "valid", "val"), "dev"
)
# A folder that holds one of these is no folder of tables of one kind.
_PARTS_OF_A_CORPUS = {"corpus", "collection", "queries", "qrels"}
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")  # as `datasets` numbers the files of a split
_CACHE = re.compile(r"cache-[0-9a-f]{16}\w*\.arrow")  # what `datasets` keeps of `map` and `filter`
_SAVED, _SAVED_SPLITS = "state.json", "dataset_dict.json"  # files of `save_to_disk`
_NO_ROWS = {_SAVED, _SAVED_SPLITS, "dataset_info.json"}
_NOTES = (".md", ".txt")
_RATED = re.compile("score|label|relevan", re.IGNORECASE)  # columns whose lists are no vectors
# Columns of which a dict of one row has a text each, and a dict of rows by id has none.
_OF_ONE = ("text", "query", "_id", "id", "docid")
_PAGES = {"README", "LICENSE", "LICENCE", "CHANGELOG", "CITATION"}


# Values of a row; each function raises ValueError, to which `parsed` adds the file and the row.


def text_of(value: object, what: str, empty: bool = False) -> str:
    """Return a text, which is blank only where that is allowed."""
    if not isinstance(value, str) or not (empty or value.strip()):
        raise ValueError(f"{what} is {value!r:.200}, not a text")
    return value


def id_of(value: object) -> str:
    """Return an id: a text without ASCII white space, at which run files split, or an integer."""
    if isinstance(value, str) and value and not _SPACE.search(value):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(value)
    raise ValueError(
        f"the id {value!r:.200} is empty, holds white space or is neither a text nor a whole number"
    )


def words_of(line: str) -> list[str]:
    """Return what ASCII white space separates: an id may hold a no-break space, as in trec_eval.

    A word in quotes is read without them, as a cell of a table is: DBpedia's ids are quoted.
    """
    words = [word.decode() for word in line.encode().split()]
    if '"' in line:
        words = [w[1:-1].replace('""', '"') if _QUOTED.fullmatch(w) else w for w in words]
    return words


def number_of(value: object, what: str) -> float:
    """Return a finite number, which may be written as a text, in digits of ASCII."""
    try:
        number = float(value)  # type: ignore[arg-type]  # TypeError is caught
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not isfinite(number) or (isinstance(value, str) and ("_" in value or not value.isascii())):
        raise ValueError(f"{what} is {value!r:.200}, not a finite number")
    return number


def parsed(
    path: Path, parse: Callable[[Row], Parsed], names: Sequence[str] = (), scalars: bool = False
) -> Iterator[Parsed]:
    """Yield what `parse` makes of each row; its errors get the name of the file and the row.

    Args:
        path: as `read_rows` takes it.
        parse: raises ValueError for a malformed row.
        names: of the columns of a .csv or .tsv without a header.
        scalars: whether columns of vectors and of bytes are left out.
    """
    for part in _parts(path):
        for batch, before in _numbered(part.batches(names)):
            yield from _parsed(part, _scalars(batch) if scalars else batch, before, parse)


def by_role(
    source: Path | Iterable[Row],
    roles: Roles,
    needed: Sequence[str],
    parse: Callable[[Row], Parsed],
    names: Sequence[str] = (),
) -> Iterator[Parsed]:
    """Yield what `parse` makes of the values of each row by role, as `parsed` does of rows.

    Every row has a value of the roles that are needed. At the end say which columns had no role.
    """
    unread: dict[str, None] = {}

    def renamed(row: Row) -> Parsed:
        values, rest = roles.of(row, *needed)
        unread.update(dict.fromkeys(rest))
        return parse(values)

    if isinstance(source, Path):
        yield from parsed(source, renamed, names)
    else:
        yield from (made(renamed, row, number) for number, row in enumerate(source))
    say_unread(source if isinstance(source, Path) else "Data in memory", unread)


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file, a folder or `hf:ID`, as values by column name.

    A folder's files are read by name; `split` is set in rows of a file of one split.

    Raises:
        UserError: a row cannot be read.
    """
    return parsed(path, lambda row: row)


def read_tsv(path: Path, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of a tab-separated file without a header."""
    for batch in _of_file(path, names):
        yield from zip(*(cells.to_pylist() for cells in batch.columns), strict=True)


def read_lines(path: Path, blank: bool = False) -> Iterator[str]:
    """Yield the lines of a text file; `blank` says whether empty ones are yielded too."""
    with reading(path):
        for batch in lines(path, blank):
            yield from batch.column(0).to_pylist()


def rows_of(data: object, parse: Callable[[Any], Row] | None = None) -> Iterator[Row]:
    """Yield the rows of data in memory.

    Args:
        data: texts, dicts, lists of a query, its answers and negatives, or objects with such
            attributes (documents of LangChain, LlamaIndex and Haystack, InputExample, records of
            ir_datasets), in a list or of a generator; a dict of id to one of these, or of columns;
            a frame or a series of pandas, a frame of polars, a table of Arrow, or a
            `datasets.Dataset`, also by split. A series is the list of its values.
        parse: makes a row of an item of a list; `row_of` by default.

    Raises:
        UserError: it is none of these.
    """
    return map(_whole, _rows_in(data, parse))


def _whole(value: Any) -> Any:
    """Return a value of Python: of arrays lists, and of texts no half of a surrogate pair."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, str):
        return as_utf8(value)
    if isinstance(value, list | tuple):
        return [_whole(each) for each in value]
    if isinstance(value, Mapping):
        return {_whole(name): _whole(each) for name, each in value.items()}
    return value


def _rows_in(data: object, parse: Callable[[Any], Row] | None) -> Iterator[Row]:
    source: Any = _of_pandas(data) if hasattr(data, "notna") else data
    if isinstance(source, Mapping):
        source = source.get("docstore/data", source)  # as LlamaIndex saves its documents
        if any(isinstance(source.get(name), str) for name in _OF_ONE):
            raise UserError("A dict of one row was given, where a list of them is needed.")
        source = _of_columns(source)
    elif hasattr(source, "with_format") and hasattr(source, "num_rows"):  # of datasets
        source = source.with_format("arrow")[:]
    elif not hasattr(source, "columns"):
        listed = getattr(source, "to_pylist", None) or getattr(source, "to_list", None)
        source = listed() if listed else source  # an array of Arrow, a series of polars
    if hasattr(source, "__arrow_c_stream__"):
        import pyarrow as pa

        part = _Part(Path("The table"), "", iter)
        for batch in pa.table(source).to_batches():
            yield from _rows(_scalars(batch, binary=True), part, 0)
    elif isinstance(source, Mapping):
        for name, value in source.items():
            if hasattr(value, "with_format") or hasattr(value, "columns"):
                yield from (row | {"split": split_name(str(name))} for row in rows_of(value))
            else:
                yield {"_id": name} | made(row_of, value, repr(name))
    elif isinstance(source, set | frozenset):
        raise UserError("A set was given, which has no order; a list of its items is needed.")
    elif isinstance(source, Iterable) and not isinstance(source, str | bytes):
        for number, item in enumerate(source):
            yield made(parse or row_of, item, number)
    else:
        raise UserError(f"A list, a dict or a table of rows is needed, not {source!r:.100}.")


def made(parse: Callable[[Any], Parsed], item: Any, name: object) -> Parsed:
    """Return what is made of a row; its ValueError gets the name of the row."""
    try:
        return parse(item)
    except ValueError as error:
        raise UserError(f"Row {name}: {error}.") from None


def _of_columns(source: Mapping[Any, Any]) -> Any:  # rows; what is no dict of columns as it is
    columns = {
        name: values.tolist() if hasattr(values, "tolist") else values
        for name, values in source.items()
    }
    if not (columns and all(isinstance(values, list) for values in columns.values())):
        return source
    lengths = {len(values): name for name, values in columns.items()}
    if len(lengths) > 1:
        (one, first), (other, second), *_ = lengths.items()
        raise UserError(f"Column {first!r} holds {one} values, and {second!r} {other}.")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _of_pandas(data: Any) -> Any:  # rows; of a series its values
    """Return what a frame or a series holds, None where NaN, NaT or NA is missing."""
    if not hasattr(data, "columns"):
        missing = data.isna().tolist()
        return [None if gone else value for value, gone in zip(data, missing, strict=True)]
    frame = data.set_axis([str(name) for name in data.columns], axis="columns")
    if not frame.columns.is_unique:
        raise UserError(f"The frame has two columns of one name: {', '.join(frame.columns)}.")
    for level, name in enumerate(frame.index.names):
        values = frame.index.get_level_values(level)
        if name is not None and str(name) not in frame.columns:
            frame = frame.assign(**{str(name): values})
        elif name is not None and list(values) != frame[str(name)].tolist():
            raise UserError(f"The frame has an index and another column of the name {name!r}.")
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def row_of(item: Any) -> Row:  # of any form
    """Return the row of a text, an object, or a list of a query, its answers and negatives.

    In a list the answers, and the negatives, are a text or a list of texts each.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(item, str):
        return {"text": item}
    if isinstance(item, list) and _is_numbers(item):
        return {"vector": item}
    texts = getattr(item, "texts", item)  # of InputExample
    if isinstance(texts, list | tuple) and not hasattr(texts, "_fields"):
        row = _of_texts(texts)
        # The label of an InputExample is 0 where none is given, which is no margin of a triple.
        label = getattr(item, "label", None)
        return row if label is None or not (label or len(texts) == 2) else row | {"label": label}
    if not isinstance(item, Mapping):
        item = _attributes(item)
    for wrapper in ("__data__", "kwargs"):  # as LlamaIndex and LangChain save documents
        if isinstance(item.get(wrapper), Mapping):
            item = item[wrapper]
    if "id_" in item:  # of LlamaIndex; other attributes say how it makes its own texts
        text = item.get("text") or item.get("text_resource")
        text = text.get("text") if isinstance(text, Mapping) else getattr(text, "text", text)
        item = {"_id": item["id_"], "text": text, "metadata": item.get("metadata")}
    # What is missing is NaN, or NaT, in records of pandas.
    odd = {key: value for key, value in item.items() if isinstance(value, float | date)}
    return {key: value for key, value in item.items() if key not in odd or value == value}


def _is_numbers(item: Any) -> bool:  # of a vector, or of a list of vectors
    first = item[0] if isinstance(item, list) and item else item
    return _is_numbers(first) if first is not item else type(item) in (int, float)


def _of_texts(item: Sequence[Any]) -> Row:
    lists = [[part] if isinstance(part, str) else part for part in item]
    if (
        len(item) < 2
        or not isinstance(item[0], str)
        or not all(isinstance(part, list | tuple) for part in lists)
        or not all(isinstance(text, str) for part in lists for text in part)
    ):
        raise ValueError(
            f"it is {item!r:.100}, which has no columns and is no query with answers and negatives"
        )
    negatives = {"negatives": list(chain.from_iterable(lists[2:]))} if item[2:] else {}
    return {"query": item[0], "positives": list(lists[1])} | negatives


def _attributes(item: Any) -> Row:
    """Return the fields of an object: of named tuples, slots and classes of msgspec too."""
    slots = [getattr(each, "__slots__", ()) for each in type(item).__mro__]
    names = chain.from_iterable([each] if isinstance(each, str) else each for each in slots)
    fields = getattr(item, "_fields", None) or getattr(item, "__struct_fields__", None) or names
    row = dict(item) if hasattr(item, "keys") else dict(getattr(item, "__dict__", {}))
    row |= {
        name: getattr(item, name)
        for name in fields
        if not name.startswith("__") and hasattr(item, name)
    }
    if not row:
        raise ValueError(f"it is {item!r:.100}, which has no columns")
    if hasattr(item, "default_text") and "text" not in row:  # of ir_datasets: title and all
        row = {name: row[name] for name in row if name != "title"} | {"text": item.default_text()}
    return row


def columns_of(path: Path) -> list[str]:
    """Return the names of the columns of the first row; none where there is no row."""
    return list(next(read_rows(path), ()))


def is_named(path: Path, *text: str) -> bool:
    """Return whether rows have column names by their format, or one of text with these suffixes."""
    return is_hub(path) or path.is_dir() or suffix_of(path) in (*ARROW, ".jsonl", ".json", *text)


def has_header(path: Path, known: Collection[str]) -> bool:
    """Return whether rows have column names: of a text file, one of `known` in the first line."""
    return is_named(path) or not set(known).isdisjoint(header_of(path))


def header_of(path: Path) -> list[str]:
    """Return the cells of the first line of a text file, in lower case."""
    return [cell.strip(' "').lower() for cell in first_line(path).split(_delimiter(path))]


def _delimiter(path: Path) -> str:
    """Return what separates cells: tabs, or in CSV what its first line has most of."""
    return max(",;\t", key=first_line(path).count) if suffix_of(path) == ".csv" else "\t"


# Names


def suffix_of(path: Path) -> str:
    """Return the suffix of a file name in lower case, before any .gz or .zst.

    >>> suffix_of(Path("stsb.train.tsv.gz"))
    '.tsv'
    """
    return Path(_COMPRESSED.sub("", path.name)).suffix.lower()


def is_hub(path: object) -> bool:
    """Return whether a name or path begins with hf:."""
    return str(path).startswith(HUB)


def is_table(path: Path) -> bool:
    """Return whether rows can be read from a path: a file by its suffix, a folder, or hf:ID.

    A data set with a corpus and queries apart is none.
    """
    if is_hub(path):
        return not hub_parts(str(path))
    if path.is_dir():
        return bool(_files(path) or _notes(path))
    return path.is_file() and suffix_of(path) in (*ARROW, *TEXT)


def name_of(path: Path) -> str:
    """Return the name of a table, fit to name a folder.

    >>> name_of(Path("data/nli.train.jsonl.gz")), name_of(Path("hf:mteb/scifact/corpus"))
    ('nli.train', 'mteb-scifact-corpus')
    """
    if is_hub(path):
        hub = HubName.of(str(path))
        base = Path(hub.id).expanduser().resolve().name if hub.is_folder else hub.id
        return "-".join(filter(None, (base, hub.config))).replace("/", "-")
    if path.is_dir():
        return absolute_path(path).name
    return _COMPRESSED.sub("", path.name).removesuffix(suffix_of(path))


def split_name(word: str) -> str:
    """Return a split's name: dev for validation, others in lower case without a shard's number.

    >>> split_name("Validation"), split_name("test-00000-of-00001")
    ('dev', 'test')
    """
    lowered = _SHARD.sub("", word.strip().lower())
    return SPLIT_WORDS.get(lowered, lowered)


def split_in(name: str, default: str = "train") -> str:
    """Return the split that the words of a file's name contain.

    >>> split_in("mined-dev.jsonl.gz"), split_in("triples.small.tsv")
    ('dev', 'train')
    """
    words = re.split(r"[^a-z0-9]+", name.lower())
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), default)


# Files


class _Part(NamedTuple):
    """Rows of one file, or of one split of a data set."""

    path: Path
    split: str  # that each row is given; empty for none
    batches: "Callable[[Sequence[str]], Iterable[pa.RecordBatch]]"  # of column names without header


def _parts(path: Path) -> Iterator[_Part]:
    if is_hub(path):
        named = bool(HubName.of(str(path)).split)
        for split, table in hub_tables(str(path)).items():
            where = path if named or not split else Path(f"{path}:{split}")
            yield _Part(where, split_name(split), partial(_of_table, table))
        return
    files = _files(path) if path.is_dir() else [(path, "")]
    if not files:
        yield _Part(path, "", partial(_of_notes, path))
    for file, split in files:
        yield _Part(file, split, partial(_of_file, file))


def _files(folder: Path) -> list[tuple[Path, str]]:
    """Return the files of tables in a folder and one level below, by name, each with its split."""
    entries = _seen(folder, folder.iterdir())
    below = _seen(folder, chain.from_iterable(e.iterdir() for e in entries if e.is_dir()))
    if any(path.name.partition(".")[0] in _PARTS_OF_A_CORPUS for path in (*entries, *below)):
        return []
    return [
        (file, split_in(str(file.relative_to(folder)), ""))
        for file in (*entries, *below)
        if file.is_file()
        and suffix_of(file) in (*ARROW, *TEXT)
        and not (_CACHE.fullmatch(file.name) or file.name in _NO_ROWS)
    ]


def _seen(folder: Path, paths: Iterable[Path]) -> list[Path]:
    """Return paths of a folder by name, without hidden files and what lies in hidden folders."""
    return [
        path
        for path in sorted(paths)
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def _notes(folder: Path) -> list[Path]:
    """Return the texts of a folder and all below; none where some file is a table."""
    seen = [each for each in _seen(folder, folder.rglob("*")) if each.is_file()]
    if any(suffix_of(each) in (*ARROW, *TEXT) for each in seen):
        return []
    return [each for each in seen if each.suffix.lower() in _NOTES]


def unread_files(path: Path) -> tuple[Path, ...]:
    """Return the files of a folder, and all below, that are no part of its rows.

    Pages about a data set, such as README.md, are none of them, nor are hidden files.
    """
    if not path.is_dir():
        return ()
    read = {file for file, _ in _files(path)} or set(_notes(path))
    return tuple(
        file
        for file in _seen(path, path.rglob("*"))
        if file.is_file()
        and file not in read
        and not (
            file.stem.upper() in _PAGES or file.name in _NO_ROWS or _CACHE.fullmatch(file.name)
        )
    )


def _of_notes(folder: Path, _: Sequence[str] = ()) -> "Iterator[pa.RecordBatch]":
    """Yield a row per note, as a line: its path below the folder is its id."""
    left = dict[str, str]()  # keys of front matter, each with a note that has it
    named = dict[str, Path]()
    for path in _notes(folder):
        text, markdown = content(path).replace("\r\n", "\n"), path.suffix.lower() == ".md"
        row, keys = read_note(text) if markdown else ({"text": text.strip()}, [])
        left = dict.fromkeys(keys, path.name) | left
        name = _SPACE.sub("_", path.relative_to(folder).as_posix())  # ids hold no white space
        if (other := named.setdefault(name, path)) is not path:
            raise UserError(f"{other} and {path} have one id, {name!r}; rename one of them.")
        yield _of_lines([{"_id": name} | row])
    if left:
        say_once(
            f"{folder}: in front matter, such as that of {next(iter(left.values()))}, m2dr does "
            f"not read the values of {', '.join(sorted(left))}, and leaves them in the text."
        )


def _of_file(path: Path, names: Sequence[str] = ()) -> "Iterator[pa.RecordBatch]":
    suffix = suffix_of(path)
    with reading(path):
        named = suffix in (".csv", ".tsv", ".txt") or (names and suffix not in (*ARROW, *TEXT))
        if named and not first_line(path).startswith("{"):
            header = names
            for batch in cells(path, names, _delimiter(path)):
                header = header or [name.strip().lower() for name in batch.schema.names]
                yield batch.rename_columns(header)
        elif suffix == ".json" and not _is_of_lines(path):
            yield from _of_json(path)
        elif suffix in ARROW[:2]:
            from pyarrow.parquet import ParquetFile

            # Mapped: a row group, which may be the whole file, is not read into memory at once.
            with ParquetFile(path, memory_map=True) as file:
                yield from file.iter_batches(_ROWS_AT_ONCE * 4)
        elif suffix in ARROW:
            yield from _of_arrow(path)
        else:
            yield from lines(path)


def _is_of_lines(path: Path) -> bool:
    """Return whether a .json file holds a row or an answer of an API per line, or alone.

    An object of rows by id has texts and objects, none under a name of a row's; one of columns
    has lists, of which those under the name of a vector hold texts.
    """
    try:
        row = decoded(first_line(path))
    except ValueError:
        return False
    if not isinstance(row, dict) or "docstore/data" in row:
        return False
    kinds = {type(value) for value in row.values()}
    names = {name.lower() for name in row if not _is_list_of_texts(row[name])}
    return (
        kinds not in ({str}, {dict}, {str, dict}, {list})
        or not names.isdisjoint(VECTOR["vector"] if kinds == {list} else OF_A_ROW)
        or len(list(islice(read_lines(path), 2))) > 1
    )


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _of_json(path: Path) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a JSON array, or of an object of rows by id or by column, as lines."""
    data = decoded(content(path))
    answer = isinstance(data, dict) and (  # of an API, over lines
        data.get("object") == "list"
        or (isinstance(data.get("embeddings"), list | dict) and _of_columns(data) is data)
    )
    yield _of_lines([data] if answer else rows_of(data))


def _of_lines(rows: Iterable[Row]) -> "pa.RecordBatch":
    import msgspec
    import pyarrow as pa

    return pa.record_batch([text_column([msgspec.json.encode(row) for row in rows])], [LINE])


def _of_arrow(path: Path) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of an Arrow file or stream, which `save_to_disk` writes, memory-mapped."""
    from pyarrow import ipc, memory_map

    mapped = memory_map(str(path))
    is_file = mapped.read(6) == b"ARROW1"
    mapped.seek(0)
    yield from (ipc.open_file if is_file else ipc.open_stream)(mapped).read_all().to_batches()


def _of_table(table: "pa.Table", _: Sequence[str] = ()) -> "Iterator[pa.RecordBatch]":
    yield from table.to_batches()


# Rows of batches


def _scalars(batch: "pa.RecordBatch", binary: bool = False) -> "pa.RecordBatch":
    """Return a batch without columns of vectors and bytes, which are neither texts nor fields."""
    kept = [
        number
        for number, field in enumerate(batch.schema)
        if _RATED.search(field.name) or not _is_long(field.type, binary)
    ]
    if len(kept) == batch.num_columns:
        return batch
    left = ", ".join(batch.schema.names[n] for n in range(batch.num_columns) if n not in kept)
    say_once(f"Left out are the columns {left}: vectors, bytes and maps are no fields.")
    return batch.select(kept)


def _is_long(kind: "pa.DataType", binary: bool) -> bool:
    from pyarrow import types

    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return bool(types.is_floating(kind.value_type)) or _is_long(kind.value_type, binary)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return not binary
    return bool(types.is_map(kind))


def _rows(batch: "pa.RecordBatch", part: _Part, before: int) -> Iterator[Row]:
    """Yield the rows of a batch, which `before` others of its part precede."""
    names = batch.schema.names
    if len(set(names)) < len(names):
        raise UserError(f"{part.path} has two columns of one name: {', '.join(names)}.")
    labels = _label_names(batch.schema)
    for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
        some = batch.slice(start, _ROWS_AT_ONCE)
        if names == [LINE]:
            rows = _decoded(some, part, before + start)
        else:
            cells = zip(*(column.to_pylist() for column in some.columns), strict=True)
            rows = (dict(zip(names, values, strict=True)) for values in cells)
        if not labels and not part.split:
            yield from rows
            continue
        for row in rows:
            for name, known in labels.items():
                if isinstance(row[name], int) and 0 <= row[name] < len(known):
                    row[name] = known[row[name]]
            if part.split:
                row.setdefault("split", part.split)
            yield row


def _decoded(batch: "pa.RecordBatch", part: _Part, before: int) -> Iterator[Row]:
    from msgspec import DecodeError

    for number, line in enumerate(batch.column(0).to_pylist(), before + 1):
        try:
            row = decoded(line)
        except DecodeError as error:
            raise UserError(f"{part.path}, row {number} is not JSON: {error}.") from None
        try:
            yield row_of(row)
        except ValueError as error:
            raise UserError(f"{part.path}, row {number}: {error}.") from None


def _label_names(schema: "pa.Schema") -> dict[str, list[str]]:
    """Return by column the names of the numbers of NLI labels, where `datasets` recorded them.

    Data sets number entailment, neutral and contradiction in any order. A column of two classes
    whose 1 is entailment holds scores already.
    """
    if not schema.metadata:
        return {}
    from msgspec import json

    record = json.decode(schema.metadata.get(b"huggingface", b"{}"))
    features = record.get("info", {}).get("features", {})
    return {
        column: feature["names"]
        for column, feature in features.items()
        if isinstance(feature, dict)
        and "entailment" in map(str.lower, feature.get("names") or ())
        and [name.lower() for name in feature["names"][1:]] != ["entailment"]
    }


def _numbered(batches: "Iterable[pa.RecordBatch]") -> "Iterator[tuple[pa.RecordBatch, int]]":
    """Yield batches, each with the number of rows before it."""
    before = 0
    for batch in batches:
        yield batch, before
        before += batch.num_rows


def _parsed(
    part: _Part, batch: "pa.RecordBatch", before: int, parse: Callable[[Row], Parsed]
) -> Iterator[Parsed]:
    for number, row in enumerate(_rows(batch, part, before), before + 1):
        try:
            value = parse(row)
        except ValueError as error:
            raise UserError(f"{part.path}, row {number}: {error}.") from None
        yield value


class StoredRows:
    """The rows of a table by number, from memory, or from a mapped file where they are many.

    A file of Arrow is mapped where it lies; of another a copy in that format, which has no name,
    lies in the folder of temporary files. So memory does not grow with the texts.
    """

    def __init__(self, path: Path, names: Sequence[str] = ()) -> None:
        self._batches = [
            (part, batch, before)
            for part in _parts(path)
            for batch, before in _numbered(_held(map(_scalars, part.batches(names)), part.path))
            if batch.num_rows
        ]
        self._ends = list(accumulate(batch.num_rows for _, batch, _ in self._batches))

    def __getitem__(self, row: int) -> Row:
        place = bisect_right(self._ends, row)
        part, batch, before = self._batches[place]
        row -= self._ends[place] - batch.num_rows
        return next(_rows(batch.slice(row, 1), part, before + row))

    def ids(self) -> Iterator[str]:
        """Yield the id of each row, a document."""
        for part, batch, before in self._batches:
            known = [name for name in DOCUMENT["id"] if name in batch.schema.names]
            ids: list[Any] = batch.column(known[0]).to_pylist() if known else [None]
            try:
                whole = " ".join(ids).split() == ids  # ids of text, none with white space
            except TypeError:
                whole = False
            if whole:
                yield from ids
            else:
                yield from _parsed(part, batch, before, _id)


def _id(row: Row) -> str:
    return id_of(DOCUMENT.of(row, "id")[0]["id"])


class DistinctLines:
    """The distinct texts of a file of lines by number, without blank ones, as in StoredRows.

    Texts are compared by 64-bit hash: one in 2 million million is lost at 8.8 M lines.
    """

    def __init__(self, path: Path) -> None:
        self._batches = list(_held(lines(path), path))
        self._ends = list(accumulate(batch.num_rows for batch in self._batches))
        texts = (text for batch in self._batches for text in batch.column(0).to_pylist())
        keys = np.fromiter((hash(text) if text.strip() else 0 for text in texts), np.int64)
        rows = np.sort(np.unique(keys, return_index=True)[1])
        self._rows = rows[keys[rows] != 0]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> str:
        row = int(self._rows[number])
        batch = self._batches[bisect_right(self._ends, row)]
        end = self._ends[bisect_right(self._ends, row)]
        line: str = batch.column(0)[row - end + batch.num_rows].as_py()
        return line


def _held(batches: "Iterable[pa.RecordBatch]", path: Path) -> "Iterable[pa.RecordBatch]":
    """Return batches that can be kept: mapped where the file is large."""
    if is_hub(path) or suffix_of(path) in ARROW[2:] or path.stat().st_size <= _IN_MEMORY:
        return batches
    from pyarrow import ipc, memory_map

    source = iter(batches)
    first = next(source, None)
    if first is None:
        return []
    handle, name = mkstemp(".arrow", "m2dr-")
    try:
        with os.fdopen(handle, "wb") as file, ipc.new_file(file, first.schema) as copy:
            for batch in chain([first], source):
                copy.write_batch(batch)
        mapped = ipc.open_file(memory_map(name))
    finally:
        Path(name).unlink()  # what is mapped stays until it is let go
    return [mapped.get_batch(number) for number in range(mapped.num_record_batches)]


class Ids:
    """The row of each id, in 16 bytes per row; 8.8 million of a dict would take more than 1 GB.

    Args:
        ids: of all rows, in order.
        id_at: returns the id of a row.
        where: the name of the table, for messages.

    Raises:
        UserError: two rows have one id.
    """

    def __init__(self, ids: Iterable[str], id_at: Callable[[int], str], where: object) -> None:
        self._id_at = id_at
        hashes = np.fromiter(map(hash, ids), dtype=np.int64)
        self._rows = np.argsort(hashes, kind="stable")
        self._keys = hashes[self._rows]
        for place in np.flatnonzero(self._keys[1:] == self._keys[:-1]):
            first, second = int(self._rows[place]), int(self._rows[place + 1])
            if id_at(first) == id_at(second):
                rows = f"rows {first + 1} and {second + 1}"
                raise UserError(f"{where}: {rows} have the same id {id_at(first)!r}.")

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, name: str) -> bool:
        """Compare 64-bit hashes: wrong for one absent id in 2 million million at 8.8 M rows."""
        place = int(np.searchsorted(self._keys, hash(name)))
        return place < len(self) and int(self._keys[place]) == hash(name)

    def row(self, name: str) -> int:
        """Return the row of an id; raise KeyError when there is none."""
        place = int(np.searchsorted(self._keys, hash(name)))
        same = int(np.searchsorted(self._keys[place : place + 9], hash(name), "right"))
        for row in self._rows[place : place + same].tolist():  # several: ids of the same hash
            if same == 1 or self._id_at(row) == name:
                return int(row)
        raise KeyError(name)


# The library datasets


class HubName(NamedTuple):
    """The parts of `hf:ID[/CONFIG][:SPLIT]`.

    Attributes:
        id: of the hub, or a folder.
        config: a subset; empty for the default one.
        split: may be a slice, such as train[:1000]; empty for all splits.
    """

    id: str
    config: str = ""
    split: str = ""

    @classmethod
    def of(cls, name: str) -> "HubName":
        """Parse a name; a folder may have configs where its README.md names them.

        >>> HubName.of("hf:sentence-transformers/all-nli/triplet:train[:9]")
        HubName(id='sentence-transformers/all-nli', config='triplet', split='train[:9]')
        """
        whole, _, split = name.removeprefix(HUB).partition(":")
        above, _, last = whole.rstrip("/").rpartition("/")
        page = Path(above, "README.md").expanduser()
        declared = rf"^\W*config_name:\s*['\"]?{re.escape(last)}['\"]?\s*$"
        if above and page.is_file() and re.search(declared, page.read_text("utf-8"), re.MULTILINE):
            return cls(above, last, split)
        if whole.startswith((".", "/", "~")) or Path(whole).is_dir():
            return cls(whole, "", split)
        owner, title, config = (*whole.split("/", 2), "", "")[:3]
        return cls("/".join(filter(None, (owner, title))), config.rstrip("/"), split)

    @property
    def is_folder(self) -> bool:
        """Whether the id is a folder."""
        return Path(self.id).expanduser().is_dir()


def hub_tables(name: str) -> "dict[str, pa.Table]":
    """Return the Arrow tables of `hf:NAME` by split, memory-mapped by the library datasets.

    Of a slice by row numbers, such as train[:1000], only these rows are fetched from the hub.

    Raises:
        OSError, ValueError: what the library says of an unknown name, config or split.
    """
    folder = Path(HubName.of(name).id).expanduser()
    stamps = [path.stat().st_mtime_ns for path in folder.rglob("*")] if folder.is_dir() else []
    return _loaded(name, max(stamps, default=0))


@lru_cache(maxsize=8)
def _loaded(name: str, stamp: int) -> "dict[str, pa.Table]":  # noqa: ARG001  # part of the key
    import datasets

    hub = HubName.of(name)
    source = str(Path(hub.id).expanduser()) if hub.is_folder else hub.id
    split, _, bounds = hub.split.partition("[")
    rows = re.fullmatch(r"(\d*):(\d+)\]", bounds)
    data: Any
    if any(Path(source, file).is_file() for file in (_SAVED, _SAVED_SPLITS)):
        data = datasets.load_from_disk(source)
        data = data if isinstance(data, dict) else {str(data.split or ""): data}
        if hub.split and hub.split not in data:
            raise UserError(f"{name} has no split {hub.split!r}, only {', '.join(data)}.")
        data = {hub.split: data[hub.split]} if hub.split else data
    elif rows and not hub.is_folder:
        start, end = int(rows[1] or 0), int(rows[2])
        stream = datasets.load_dataset(source, hub.config or None, split=split, streaming=True)
        some = list(stream.skip(start).take(end - start))
        data = {split: datasets.Dataset.from_list(some, features=stream.features)}
    else:
        data = datasets.load_dataset(source, hub.config or None, split=hub.split or None)
        data = data if isinstance(data, dict) else {split: data}
    # Through a format and not `.data`, which a selection or a shuffle leaves as it was.
    return {split: part.with_format("arrow")[:] for split, part in data.items()}


def hub_parts(name: str) -> dict[str, str]:
    """Return names of the parts of a data set with the configs `corpus` and `queries`.

    They are "corpus", "queries", and the splits of the judgements, whose config is `qrels` or
    `default`, as MTEB names them. Empty for any other data set.
    """
    hub = HubName.of(name)
    if hub.config or hub.split:
        return {}
    configs = _configs(str(Path(hub.id).expanduser()) if hub.is_folder else hub.id)
    if not {"corpus", "queries"} <= set(configs):
        return {}
    judged = next((config for config in ("qrels", "default") if config in configs), "")
    splits = {
        split: f"{name}/{judged}:{split}"
        for split in (hub_tables(f"{name}/{judged}") if judged else ())
    }
    return {"corpus": f"{name}/corpus", "queries": f"{name}/queries"} | splits


@lru_cache(maxsize=8)
def _configs(source: str) -> tuple[str, ...]:
    if any(Path(source, file).is_file() for file in (_SAVED, _SAVED_SPLITS)):
        return ()
    import datasets

    return tuple(datasets.get_dataset_config_names(source))
