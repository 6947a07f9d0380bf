"""Filters over the fields of documents: `year >= 2020 and (lang == "en" or lang == "de")`.

A filter is read by Python's own grammar: comparisons by ==, !=, <, <=, >, >=, in and not in, joined
by and, or and not. One = is read as ==, and a bare word where a value belongs as a text. A document
that lacks a field fulfils no comparison with it.
"""

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from m2dr.core.errors import UserError, suggestion

EXAMPLE = 'year >= 2020 and lang in ("en", "de")'
Value = str | int | float | bool

_EQUAL = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|(?<![=!<>])=(?!=)""")
_SIGNS: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
_HOLDS = {"int64": "whole numbers", "double": "numbers", "bool": "true or false"}


@dataclass(frozen=True)
class Comparison:
    """A field compared with a value, or with several for `in`."""

    field: str
    sign: str  # ==, !=, <, <=, >, >= or in
    values: tuple[str, ...]


@dataclass(frozen=True)
class Junction:
    """Conditions joined by `and` or by `or`, or a single one behind `not`."""

    word: str
    parts: "tuple[Comparison | Junction, ...]"


Condition = Comparison | Junction


@dataclass(frozen=True)
class Filter:
    """A filter that was parsed, and is not yet compared with the fields that there are."""

    text: str
    condition: Condition

    @classmethod
    def parse(cls, text: str) -> "Filter":
        """Read a filter.

        Raises:
            UserError: it is not written as a filter is.
        """
        source = f"({_EQUAL.sub(lambda sign: '==' if sign[0] == '=' else sign[0], text)}\n)"
        try:
            return cls(text, _condition(ast.parse(source, mode="eval").body, source))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise UserError(
                f"The filter {text[:200]!r} cannot be read; a filter is written like: {EXAMPLE}"
            ) from None

    def expression(self, types: Mapping[str, Any]) -> Any:
        """Return a pyarrow expression that is true of the documents that fit.

        Args:
            types: of the fields, by name, as pyarrow has them.

        Raises:
            UserError: there is no such field, or a value is of another kind.
        """
        return _arrow(self.condition, types)

    def milvus(self, types: Mapping[str, Any], columns: Mapping[str, str]) -> str:
        """Return the filter as an expression of Milvus.

        Args:
            types: as `expression` takes them.
            columns: names of the columns in Milvus, by field.

        Raises:
            UserError: as `expression` raises.
        """
        return _milvus(self.condition, types, columns)


def _condition(node: ast.expr, source: str) -> Condition:
    """Read a syntax tree.

    Raises:
        ValueError: it is no filter.
    """
    match node:
        case ast.BoolOp(op, parts):
            word = "and" if isinstance(op, ast.And) else "or"
            return Junction(word, tuple(_condition(part, source) for part in parts))
        case ast.UnaryOp(ast.Not(), part):
            return Junction("not", (_condition(part, source),))
        case ast.Compare(left, [op], [right]) if type(op) in _SIGNS:
            sign = _SIGNS[type(op)]
            several = "in" in sign and isinstance(right, ast.Tuple | ast.List | ast.Set)
            values = right.elts if several else [right]  # type: ignore[attr-defined]  # of these
            texts = tuple(_text(value, source) for value in values)
            if sign == "not in":
                return Junction("not", (Comparison(_text(left, source), "in", texts),))
            return Comparison(_text(left, source), sign, texts)
    raise ValueError("no comparison")


def _text(node: ast.expr, source: str) -> str:
    """Return a quoted text, or else a name or a number as it is written."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    number = node.operand if isinstance(node, ast.UnaryOp) else node
    if not isinstance(number, ast.Constant | ast.Name | ast.Attribute):
        raise ValueError("no value")
    return (ast.get_source_segment(source, node) or "").replace(" ", "")


def _bound(one: Comparison, types: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """Return the type of a field, and the values that it is compared with as pyarrow's scalars."""
    import pyarrow as pa

    if one.field not in types:
        known = f" {suggestion(one.field, types)} Their fields are: {', '.join(types)}."
        raise UserError(
            f"The filter asks for the field {one.field!r}, and the documents have none of that "
            f"name.{known}"
        )
    kind = types[one.field]
    if kind == pa.bool_() and one.sign[0] in "<>":
        raise UserError(f"The field {one.field!r} is true or false, which {one.sign} cannot order.")
    ways = [[kind]]
    if pa.types.is_timestamp(kind):  # dates without a zone are UTC
        ways.append([pa.timestamp("us"), kind] if kind.tz else [pa.timestamp("us", "UTC"), kind])
    scalars = []
    for text in one.values:
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
            raise UserError(
                f"The filter compares {one.field!r} with {text[:200]!r}, and that field holds "
                f"{_HOLDS.get(str(kind), 'dates')}."
            )
    return kind, scalars


def _arrow(condition: Condition, types: Mapping[str, Any]) -> Any:
    import pyarrow as pa
    from pyarrow import compute

    if isinstance(condition, Junction):
        first, *others = (_arrow(part, types) for part in condition.parts)
        for other in others:
            first = first & other if condition.word == "and" else first | other
        return ~first if condition.word == "not" else first
    kind, scalars = _bound(condition, types)
    field = compute.field(condition.field)
    if condition.sign in ("in", "==", "!="):
        same = field.isin(pa.array([scalar.as_py() for scalar in scalars], kind))
        return ~same & field.is_valid() if condition.sign == "!=" else same
    order = {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
    compared = getattr(compute, order[condition.sign])(field, compute.scalar(scalars[0]))
    return compute.coalesce(compared, compute.scalar(False))


def _milvus(condition: Condition, types: Mapping[str, Any], columns: Mapping[str, str]) -> str:
    if isinstance(condition, Junction):
        parts = [_milvus(part, types, columns) for part in condition.parts]
        if condition.word == "not":
            return f"(not {parts[0]})"
        return "(" + f" {condition.word} ".join(parts) + ")"
    _, scalars = _bound(condition, types)
    sign = "==" if condition.sign == "in" else condition.sign
    name = columns[condition.field]
    parts = [f"{name} {sign} {_literal(scalar)}" for scalar in scalars]
    return f"({name} is not null and ({' or '.join(parts)}))"


def _literal(scalar: Any) -> str:
    import pyarrow as pa

    if pa.types.is_timestamp(scalar.type):
        return str(scalar.value)
    return json.dumps(scalar.as_py(), ensure_ascii=False)
