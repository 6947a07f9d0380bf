"""The fields of documents in a parquet file beside a store: a row per row of the store.

A column has the first type that reads all its texts: whole numbers, numbers, true and
false, dates, dates with a zone, or texts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.core.files import atomic_path, sha256_of
from m2dr.core.records import Fields
from m2dr.index.filters import Filter, Value

FIELDS = "fields.parquet"
MOST = 1000  # fields of a collection; those that come later are left out
_AT_ONCE = 2**16  # rows
# Not read as numbers: codes with zeros in front, whole numbers that float64 rounds, and words.
_CODES, _ODD = r"^-?0\d", r"^-?\d{16,}$|(?i:nan|inf)"


def write_fields(path: Path, rows: Iterable[Fields]) -> str:
    """Write the fields of documents, in the order of the store; no file where none has any.

    Returns:
        Sha256 of the file; empty where nothing was written.

    Raises:
        UserError: the disk refuses.
    """
    import pyarrow as pa
    from pyarrow import parquet

    columns: dict[str, list[Any]] = {}  # chunks of texts
    count, left = 0, iter(rows)
    while batch := [dict(fields) for fields in islice(left, _AT_ONCE)]:
        for name in dict.fromkeys(name for fields in batch for name in fields):
            if name not in columns and len(columns) < MOST:
                columns[name] = [pa.nulls(count, pa.string())]
        for name, chunks in columns.items():
            chunks.append(pa.array([fields.get(name) for fields in batch], pa.string()))
        count += len(batch)
    if not columns:
        return ""
    table = pa.table({name: _typed(pa.chunked_array(chunks)) for name, chunks in columns.items()})
    with atomic_path(path) as temporary:
        parquet.write_table(table, temporary)
        return sha256_of(temporary)


def _typed(texts: Any) -> Any:
    """Return a column of texts as the first type that reads them all."""
    import pyarrow as pa
    from pyarrow import compute

    def any_like(pattern: str) -> bool:
        return bool(compute.any(compute.match_substring_regex(texts, pattern)).as_py())

    numbers = [] if any_like(_CODES) else [pa.int64()] + ([] if any_like(_ODD) else [pa.float64()])
    for kind in [*numbers, pa.bool_(), pa.timestamp("us"), pa.timestamp("us", "UTC")]:
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:
            continue
    return texts


def field_types(path: Path) -> dict[str, Any]:
    """Return the types of the fields of a file by name, as pyarrow has them; {} for no file."""
    from pyarrow import parquet

    if not path.exists():
        return {}
    schema = parquet.read_schema(path)
    return {field.name: field.type for field in schema}


def type_named(name: str) -> Any:
    """Return the type that pyarrow writes so, of those that a field can have."""
    import pyarrow as pa

    dates = (pa.timestamp("us"), pa.timestamp("us", "UTC"))
    kinds = (pa.int64(), pa.float64(), pa.bool_(), *dates, pa.string())
    return next(kind for kind in kinds if str(kind) == name)


def matching(path: Path, wanted: Filter) -> NDArray[np.int64]:
    """Return the rows of the documents that fit a filter, increasing.

    Raises:
        UserError: it names a field that there is not, or a value of another kind.
    """
    from pyarrow import dataset

    expression = wanted.expression(field_types(path))
    fits = dataset.dataset(path).to_table(columns={"fits": expression}).column("fits")
    return np.flatnonzero(fits.to_numpy())


def values(path: Path) -> Iterator[dict[str, Value | None]]:
    """Yield the fields of each document by name; dates as microseconds since 1970."""
    import pyarrow as pa
    from pyarrow import parquet

    for batch in parquet.ParquetFile(path).iter_batches(_AT_ONCE):
        table = pa.table(batch)
        for place, field in enumerate(table.schema):
            if pa.types.is_timestamp(field.type):
                table = table.set_column(place, field.name, table[place].cast(pa.int64()))
        yield from table.to_pylist()


def typed(fields: Fields, types: Mapping[str, Any]) -> dict[str, Value]:
    """Return the fields of a document by name, numbers and truths as such, and others as texts.

    >>> typed((("year", "1999"), ("day", "2024-01-31")), {"year": "int64"})
    {'year': 1999, 'day': '2024-01-31'}
    """
    readers: dict[str, Callable[[str], Value]]
    readers = {"int64": int, "double": float, "bool": lambda text: text.lower() == "true"}
    return {name: readers.get(str(types.get(name)), str)(text) for name, text in fields}
