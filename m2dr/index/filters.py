"""Filters over the fields of documents: `year >= 2020 and (lang == "en" or lang == "de")`.

A filter is read by Python's own grammar: comparisons by ==, !=, <, <=, >, >=, in and not in, joined
by and, or and not. One = is read as ==, and a bare word where a value belongs as a text. A document
that lacks a field fulfils no comparison with it but == None, which is also written `is null`.

Texts are kept as they are. Where all those of a field are numbers, each written as its number is,
these stand in a second column, by which <, <=, >, >= and bare values compare; so do truths.
A list is kept as the texts of its values. It fulfils == and in where one of them does, != and
not in where none is equal.
"""

import ast
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import islice
from operator import and_, or_
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from m2dr.core.arrays import Int64
from m2dr.core.errors import UserError, suggestion
from m2dr.core.files import atomic_path, sha256_of
from m2dr.core.records import Fields, Value

FILTER_EXAMPLE = 'year >= 2020 and lang in ("en", "de")'
Compare = Callable[[str, str, Sequence[Any]], Any]  # of a column, a sign, and values
Join = Callable[[str, Sequence[Any]], Any]  # of and, or, not, and conditions

# A text in quotes; a sign or a word that Python writes otherwise than SQL.
_OF_SQL = re.compile(
    r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|(?<![=!<>])=(?!=)|\b(?:AND|OR|NOT|IN|IS)\b"""
)
_SIGNS: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not",
}  # fmt: skip
_NONE = ("None", "null")  # unquoted: the document lacks the field
_HOLDS = {"int64": "whole numbers", "double": "numbers", "bool": "true or false"}
_BETWEEN = "\x1f"  # texts of a list that are searched as one
_READ = "\x1fread"  # behind the name of a field: the column of what its texts are read as


class _Written(NamedTuple):
    """A value in a filter."""

    text: str
    is_quoted: bool
    is_number: bool = False


def _of_python(found: re.Match[str]) -> str:
    word = found[0]
    return "==" if word == "=" else word if word[0] in "'\"" else word.lower()


@dataclass(frozen=True)
class Filter:
    """A filter that was parsed, and is not yet compared with the fields that there are."""

    text: str
    _source: list[bytes]  # the lines of the same as an expression of Python
    _tree: ast.expr

    @classmethod
    def parse(cls, text: str) -> "Filter":
        """Read a filter.

        Raises:
            UserError: it is not written as a filter is.
        """
        source = f"({_OF_SQL.sub(_of_python, text)}\n)"
        try:
            tree = ast.parse(source, mode="eval").body
            made = cls(text, source.encode().splitlines(), tree)
            _translated(tree, made._source, lambda *_: None, lambda *_: None)
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
            if sign == "is":
                return field.is_null()
            if sign in ("in", "==", "!="):
                values = [scalar.as_py() for scalar in scalars]
                if pa.types.is_list(types[name]):
                    same = _halved(or_, [_has(field, value) for value in values])
                else:
                    same = field.isin(pa.array(values, types[name]))
                return ~same & field.is_valid() if sign == "!=" else same
            order = {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
            compared = getattr(compute, order[sign])(field, compute.scalar(scalars[0]))
            return compute.coalesce(compared, compute.scalar(False))

        def join(word: str, parts: Sequence[Any]) -> Any:
            return ~parts[0] if word == "not" else _halved(and_ if word == "and" else or_, parts)

        return self.translated(types, compare, join)

    def translated(self, types: Mapping[str, Any], compare: Compare, join: Join) -> Any:
        """Return what two functions make of the filter, as `expression` does for pyarrow.

        Args:
            types: as `expression` takes them.
            compare: called with a name of `types`, a sign of ==, !=, <, <=, >, >= or in, and
                scalars of pyarrow: one, those of in, or none that a value can be equal to; or with
                the sign is and no scalar, which a document without the field fulfils.
            join: called with and, or, or not, and what was made of the parts.

        Raises:
            UserError: as `expression` raises.
        """

        def bound(name: str, sign: str, values: Sequence[_Written]) -> Any:
            column = _column(name, sign, values, types)
            return compare(column, sign, _scalars(name, sign, values, types[column]))

        return _translated(self._tree, self._source, bound, join)


def _halved(join: Callable[[Any, Any], Any], parts: Sequence[Any]) -> Any:
    """Join parts in pairs: thousands of them, one in the other, are more than a stack holds."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_halved(join, parts[:middle]), _halved(join, parts[middle:]))


def _has(lists: Any, value: str) -> Any:
    """Return an expression of pyarrow: whether a list of texts has one that is equal."""
    from pyarrow import compute

    ends, between = compute.scalar(""), compute.scalar(_BETWEEN)
    joined = compute.binary_join_element_wise(
        ends, compute.binary_join(lists, _BETWEEN), ends, between
    )
    wanted = f"{_BETWEEN}{value.replace(_BETWEEN, ' ')}{_BETWEEN}"
    return compute.coalesce(compute.match_substring(joined, wanted), compute.scalar(False))


def _translated(
    node: ast.expr,
    source: list[bytes],
    compare: Callable[[str, str, Sequence[_Written]], Any],
    join: Join,
) -> Any:
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
            nodes = right.elts if several else [right]  # type: ignore[attr-defined]  # of these
            name, values = _value(left, source).text, [_value(value, source) for value in nodes]
            lacks = compare(name, "is", ())
            if any(not value.is_quoted and value.text in _NONE for value in values):
                if len(values) > 1 or sign not in ("==", "!=", "is", "is not"):
                    raise UserError(f"None was compared by {sign}; == and != take it, alone.")
                return lacks if sign in ("==", "is") else join("not", [lacks])
            if sign == "not in":
                return join("not", [join("or", [lacks, compare(name, "in", values)])])
            if sign[:2] != "is":
                return compare(name, sign, values)
    raise ValueError("no comparison")


def _value(node: ast.expr, source: list[bytes]) -> _Written:
    """Return a quoted text, or else a name or a number as it is written."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _Written(node.value, is_quoted=True)
    number = node.operand if isinstance(node, ast.UnaryOp) else node
    if not isinstance(number, ast.Constant | ast.Name | ast.Attribute):
        raise ValueError("no value")
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    lines = source[first : last + 1]
    lines[-1] = lines[-1][: node.end_col_offset]
    lines[0] = lines[0][node.col_offset :]
    text = b"".join(lines).decode().replace(" ", "")
    is_number = isinstance(number, ast.Constant) and not isinstance(number.value, bool)
    return _Written(text, is_quoted=False, is_number=is_number)


def _column(name: str, sign: str, values: Sequence[_Written], types: Mapping[str, Any]) -> str:
    """Return the column of a field that values are compared with."""
    import pyarrow as pa

    if name not in types or name.endswith(_READ):
        names = field_names(types)
        known = f"{suggestion(name, names)} There are: {', '.join(names)}.".lstrip()
        raise UserError(f"The documents have no field {name!r} to filter by. {known}")
    ordered, bare = sign[0] in "<>", not any(value.is_quoted for value in values)
    if name + _READ in types and (ordered or bare):
        name += _READ
    elif ordered and values[0].is_number and types[name] == pa.string():
        what = f"{name!r} holds texts that are not all plain numbers"
        raise UserError(f"{what}; {sign} {values[0].text} cannot order them, and a text can.")
    if ordered and (types[name] == pa.bool_() or pa.types.is_list(types[name])):
        field = name.removesuffix(_READ)
        what = "is true or false" if types[name] == pa.bool_() else "holds lists"
        raise UserError(f"The field {field!r} {what}, which {sign} cannot order.")
    return name


def _scalars(name: str, sign: str, values: Sequence[_Written], kind: Any) -> list[Any]:
    """Return the values that a field is compared with, as pyarrow's scalars of its type."""
    import pyarrow as pa

    if kind == pa.int64():
        values = [whole for value in values if (whole := _whole(value, sign))]

    kind = kind.value_type if pa.types.is_list(kind) else kind
    ways = [[kind]]
    if pa.types.is_timestamp(kind):  # dates without a zone are UTC
        ways.append([pa.timestamp("us"), kind] if kind.tz else [pa.timestamp("us", "UTC"), kind])
    scalars = []
    for value in values:
        for way in ways:
            scalar = pa.scalar(value.text)
            try:
                for step in way:
                    scalar = scalar.cast(step)
            except (pa.ArrowInvalid, ValueError):
                continue
            scalars.append(scalar)
            break
        else:
            holds = _HOLDS.get(str(kind), "dates")
            raise UserError(f"{name!r} holds {holds}, and the filter has {value.text[:200]!r}.")
    return scalars


def _whole(value: _Written, sign: str) -> _Written | None:
    """Return the whole number that compares as a decimal does; None where none is equal to it."""
    try:
        number = Decimal(value.text)
        if not -(2**63) < number < 2**63:
            return value
    except InvalidOperation:  # no number
        return value
    if number % 1 and sign[0] not in "<>":
        return None
    return value._replace(text=str((math.ceil if sign in ("<", ">=") else math.floor)(number)))


FIELDS = "fields.parquet"
MOST_FIELDS = 1000  # of a corpus; those that come later are left out
_ROWS_AT_ONCE = 2**16  # rows of fields that are read or written at once
_DAY = r"^\d{4}-\d\d-\d\d"
_PLAIN = r"^-?(?:0|[1-9]\d*)(?:\.\d+)?$"  # numbers; zeros in front or a sign + are of codes
_LONG = r"^-?\d{16,}$"  # whole numbers that float64 may round
_TRUTHS = ({"true", "false"}, {"True", "False"}, {"TRUE", "FALSE"})


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
    types: dict[str, set[type]] = {}
    count, left = 0, iter(rows)
    while batch := [dict(fields) for fields in islice(left, _ROWS_AT_ONCE)]:
        for fields in batch:
            for name, value in fields.items():
                if isinstance(value, list) and not _texts_of(value):
                    continue  # of objects alone
                if name not in columns and len(columns) < MOST_FIELDS:
                    columns[name], types[name] = [pa.nulls(count, pa.string())], set()
                if name in types:
                    types[name].add(type(value))
        for name, chunks in columns.items():
            if list in types[name]:
                values = [_texts_of(fields.get(name)) for fields in batch]
                chunks.append(pa.array(values, pa.list_(pa.string())))
            else:
                texts = [_written(fields.get(name)) for fields in batch]
                chunks.append(pa.array(texts, pa.string()))
        count += len(batch)
    if not columns:
        return ""
    made: dict[str, Any] = {}
    for name, chunks in columns.items():
        if list in types[name]:
            made[name] = pa.chunked_array([_as_lists(chunk) for chunk in chunks])
            continue
        made[name] = _typed(pa.chunked_array(chunks), types[name])
        if made[name].type == pa.string() and (read := _read_as(made[name])) is not None:
            made[name + _READ] = read
    with atomic_path(path) as temporary:
        parquet.write_table(pa.table(made), temporary)
        return sha256_of(temporary)


def _written(value: Value | None) -> str | None:  # None for a list, here of objects
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return None
    return value if isinstance(value, str | None) else repr(value)


def _texts_of(value: Value | None) -> list[str] | None:
    """Return the values of a list, or the only one, as texts; None where there is none."""
    values = value if isinstance(value, list) else [value]
    texts = [_written(each) for each in values if not isinstance(each, list | dict)]
    return [text.replace(_BETWEEN, " ") for text in texts if text is not None] or None


def _as_lists(texts: Any) -> Any:  # a column
    import pyarrow as pa

    lists = pa.list_(pa.string())
    return texts if texts.type == lists else pa.array(map(_texts_of, texts.to_pylist()), lists)


def _typed(texts: Any, types: set[type]) -> Any:
    """Return a column as numbers, truths or dates if all its values are; else as texts."""
    import pyarrow as pa

    kinds: list[Any] = []
    if types == {bool}:
        kinds = [pa.bool_()]
    elif types <= {int, float}:
        kinds = [pa.int64()] * (types == {int}) + [pa.float64()] * (not _some(texts, _LONG))
    elif types == {str} and _all(texts, _DAY):
        kinds = [pa.timestamp("us"), pa.timestamp("us", "UTC")]
    for kind in kinds:
        with suppress(pa.ArrowInvalid):
            return texts.cast(kind)
    return texts


def _read_as(texts: Any) -> Any:  # a column; None where texts are no more than that
    """Return the numbers of texts that are all written as numbers are, or their truths.

    "1.10" is none, as "1.1" is another text.
    """
    import pyarrow as pa

    if set(texts.unique().to_pylist()[:4]) - {None} in _TRUTHS:
        return texts.cast(pa.bool_())
    if not _all(texts, _PLAIN):
        return None
    with suppress(pa.ArrowInvalid):
        return texts.cast(pa.int64())
    numbers = texts.cast(pa.float64())
    pairs = zip(texts.to_pylist(), numbers.to_pylist(), strict=True)
    same = all(text is None or repr(number) in (text, f"{text}.0") for text, number in pairs)
    return numbers if same else None


def _some(texts: Any, pattern: str) -> bool:
    from pyarrow import compute

    return bool(compute.any(compute.match_substring_regex(texts, pattern)).as_py())


def _all(texts: Any, pattern: str) -> bool:
    from pyarrow import compute

    return bool(compute.all(compute.match_substring_regex(texts, pattern)).as_py())


def field_kinds() -> dict[str, Any]:
    """Return the types that a field can have as pyarrow has them, by the names that it writes."""
    import pyarrow as pa

    dates = (pa.timestamp("us"), pa.timestamp("us", "UTC"))
    return {str(kind): kind for kind in (pa.int64(), pa.float64(), pa.bool_(), *dates, pa.string())}


def field_names(types: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields whose types `field_types` gives."""
    return [name for name in types if not name.endswith(_READ)]


def field_types(path: Path) -> dict[str, Any]:
    """Return the types of the columns of a file by name, as pyarrow has them; {} for no file."""
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
