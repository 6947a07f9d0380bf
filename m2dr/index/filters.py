"""Filters over the fields of documents: `year >= 2020 and (lang == "en" or lang == "de")`.

A filter is read by Python's own grammar: comparisons by ==, !=, <, <=, >, >=, in and not in, joined
by and, or and not. One = is read as ==, and a bare word where a value belongs as a text. A document
that lacks a field fulfils no comparison with it.
"""

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import and_, or_
from pathlib import Path
from typing import Any

import numpy as np

from m2dr.core.arrays import Int64
from m2dr.core.errors import UserError, suggestion
from m2dr.core.files import atomic_path, sha256_of
from m2dr.core.records import Fields

FILTER_EXAMPLE = 'year >= 2020 and lang in ("en", "de")'
Value = str | int | float | bool
Compare = Callable[[str, str, Sequence[Any]], Any]  # of a field, a sign, and values
Join = Callable[[str, Sequence[Any]], Any]  # of and, or, not, and conditions

_EQUAL = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|(?<![=!<>])=(?!=)""")
_SIGNS: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
_HOLDS = {"int64": "whole numbers", "double": "numbers", "bool": "true or false"}


@dataclass(frozen=True)
class Filter:
    """A filter that was parsed, and is not yet compared with the fields that there are."""

    text: str
    _source: str  # the same as an expression of Python
    _tree: ast.expr

    @classmethod
    def parse(cls, text: str) -> "Filter":
        """Read a filter.

        Raises:
            UserError: it is not written as a filter is.
        """
        source = f"({_EQUAL.sub(lambda sign: '==' if sign[0] == '=' else sign[0], text)}\n)"
        try:
            made = cls(text, source, ast.parse(source, mode="eval").body)
            _translated(made._tree, source, lambda *_: None, lambda *_: None)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise UserError(f"{text[:200]!r} is no filter, such as {FILTER_EXAMPLE}") from None
        return made

    def expression(self, types: Mapping[str, Any]) -> Any:
        """Return a pyarrow expression that is true of the documents that fit.

        Args:
            types: of the fields, by name, as pyarrow has them.

        Raises:
            UserError: there is no such field, or a value is of another kind.
        """
        import pyarrow as pa
        from pyarrow import compute

        def compare(name: str, sign: str, scalars: Sequence[Any]) -> Any:
            field = compute.field(name)
            if sign in ("in", "==", "!="):
                same = field.isin(pa.array([scalar.as_py() for scalar in scalars], types[name]))
                return ~same & field.is_valid() if sign == "!=" else same
            order = {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
            compared = getattr(compute, order[sign])(field, compute.scalar(scalars[0]))
            return compute.coalesce(compared, compute.scalar(False))

        def join(word: str, parts: Sequence[Any]) -> Any:
            return ~parts[0] if word == "not" else reduce(and_ if word == "and" else or_, parts)

        return self.translated(types, compare, join)

    def translated(self, types: Mapping[str, Any], compare: Compare, join: Join) -> Any:
        """Return what two functions make of the filter, as `expression` does for pyarrow.

        Args:
            types: as `expression` takes them.
            compare: called with a field, a sign of ==, !=, <, <=, >, >= or in, and scalars of
                pyarrow: one, or those of in.
            join: called with and, or, or not, and what was made of the parts.

        Raises:
            UserError: as `expression` raises.
        """

        def bound(name: str, sign: str, texts: Sequence[str]) -> Any:
            return compare(name, sign, _bound(name, sign, texts, types))

        return _translated(self._tree, self._source, bound, join)


def _translated(node: ast.expr, source: str, compare: Compare, join: Join) -> Any:
    """Return what `compare` and `join` make of a syntax tree.

    Raises:
        ValueError: it is no filter.
    """
    match node:
        case ast.BoolOp(op, parts):
            word = "and" if isinstance(op, ast.And) else "or"
            return join(word, [_translated(part, source, compare, join) for part in parts])
        case ast.UnaryOp(ast.Not(), part):
            return join("not", [_translated(part, source, compare, join)])
        case ast.Compare(left, [op], [right]) if type(op) in _SIGNS:
            sign = _SIGNS[type(op)]
            several = "in" in sign and isinstance(right, ast.Tuple | ast.List | ast.Set)
            values = right.elts if several else [right]  # type: ignore[attr-defined]  # of these
            name, texts = _text(left, source), [_text(value, source) for value in values]
            if sign == "not in":
                return join("not", [compare(name, "in", texts)])
            return compare(name, sign, texts)
    raise ValueError("no comparison")


def _text(node: ast.expr, source: str) -> str:
    """Return a quoted text, or else a name or a number as it is written."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    number = node.operand if isinstance(node, ast.UnaryOp) else node
    if not isinstance(number, ast.Constant | ast.Name | ast.Attribute):
        raise ValueError("no value")
    return (ast.get_source_segment(source, node) or "").replace(" ", "")


def _bound(name: str, sign: str, texts: Sequence[str], types: Mapping[str, Any]) -> list[Any]:
    """Return the values that a field is compared with, as pyarrow's scalars of its type."""
    import pyarrow as pa

    if name not in types:
        known = f"{suggestion(name, types)} There are: {', '.join(types)}."
        raise UserError(f"The documents have no field {name!r} to filter by. {known}")
    kind = types[name]
    if kind == pa.bool_() and sign[0] in "<>":
        raise UserError(f"The field {name!r} is true or false, which {sign} cannot order.")
    ways = [[kind]]
    if pa.types.is_timestamp(kind):  # dates without a zone are UTC
        ways.append([pa.timestamp("us"), kind] if kind.tz else [pa.timestamp("us", "UTC"), kind])
    scalars = []
    for text in texts:
        for way in ways:
            scalar = pa.scalar(text)
            try:
                for step in way:
                    scalar = scalar.cast(step)
            except (pa.ArrowInvalid, ValueError):
                continue
            scalars.append(scalar)
            break
        else:
            holds = _HOLDS.get(str(kind), "dates")
            raise UserError(f"{name!r} holds {holds}, and the filter has {text[:200]!r}.")
    return scalars


FIELDS = "fields.parquet"
MOST_FIELDS = 1000  # of a corpus; those that come later are left out
_ROWS_AT_ONCE = 2**16  # rows of fields that are read or written at once
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
    while batch := [dict(fields) for fields in islice(left, _ROWS_AT_ONCE)]:
        for name in dict.fromkeys(name for fields in batch for name in fields):
            if name not in columns and len(columns) < MOST_FIELDS:
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

    refused = ["int64", "double"] if any_like(_CODES) else ["double"] if any_like(_ODD) else []
    for name, kind in field_kinds().items():
        if name not in refused:
            with suppress(pa.ArrowInvalid):
                return texts.cast(kind)
    return texts


def field_kinds() -> dict[str, Any]:
    """Return the types that a field can have as pyarrow has them, by the names that it writes."""
    import pyarrow as pa

    dates = (pa.timestamp("us"), pa.timestamp("us", "UTC"))
    return {str(kind): kind for kind in (pa.int64(), pa.float64(), pa.bool_(), *dates, pa.string())}


def field_types(path: Path) -> dict[str, Any]:
    """Return the types of the fields of a file by name, as pyarrow has them; {} for no file."""
    from pyarrow import parquet

    if not path.exists():
        return {}
    schema = parquet.read_schema(path)
    return {field.name: field.type for field in schema}


def matching(path: Path, wanted: Filter) -> Int64:
    """Return the rows of the documents that fit a filter, increasing.

    Raises:
        UserError: it names a field that there is not, or a value of another kind.
    """
    from pyarrow import dataset

    expression = wanted.expression(field_types(path))
    fits = dataset.dataset(path).to_table(columns={"fits": expression}).column("fits")
    return np.flatnonzero(fits.to_numpy())


def typed(fields: Fields, types: Mapping[str, Any]) -> dict[str, Value]:
    """Return the fields of a document by name, numbers and truths as such, and others as texts.

    >>> typed((("year", "1999"), ("day", "2024-01-31")), {"year": "int64"})
    {'year': 1999, 'day': '2024-01-31'}
    """
    readers: dict[str, Callable[[str], Value]]
    readers = {"int64": int, "double": float, "bool": lambda text: text.lower() == "true"}
    return {name: readers.get(str(types.get(name)), str)(text) for name, text in fields}
