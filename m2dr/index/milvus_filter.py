"""Filters as expressions of Milvus, and the fields that a collection holds for them."""

from collections.abc import Mapping, Sequence

from m2dr.index.field_files import FieldTable
from m2dr.index.filters import Condition, FieldTest, Junction, Value
from m2dr.index.manifest import Kind
from m2dr.index.store import Store

MOST = 50  # fields of a collection; Milvus takes 64, vector and ids included
LONGEST = 65_535  # bytes of a text in Milvus; fields with longer ones are left out
_OPPOSITES = {"in": "not in", "not in": "in", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def column(place: int) -> str:
    """Return the name of a field's column: names of fields are free, and those of Milvus are not.

    Args:
        place: of the field among those of the collection.
    """
    return f"field_{place}"


def pushed_fields(store: Store) -> tuple[tuple[str, Kind], ...]:
    """Return the fields of a store that a collection holds, each with its kind."""
    if store.manifest.fields is None:
        return ()
    table: FieldTable = store.fields
    texts = {name for name, kind in table.kinds.items() if kind == "text"}
    long = set[str]()
    for row in table.texts() if texts else ():
        long.update(name for name, text in row if name in texts and _bytes(text) > LONGEST)
    return tuple((name, kind) for name, kind in table.kinds.items() if name not in long)[:MOST]


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def entity(
    fields: Sequence[tuple[str, Kind]], values: Mapping[str, Value]
) -> dict[str, Value | None]:
    """Return what a document's row of a collection holds of its fields, by column."""
    return {column(place): values.get(name) for place, (name, _) in enumerate(fields)}


def expression(condition: Condition, fields: Sequence[tuple[str, Kind]]) -> str:
    """Return a bound condition as Milvus reads it.

    Negations stand at single tests alone, each with what a missing value means: the logic of
    servers knows a third truth value, and that of Milvus Lite does not.
    """
    columns = {name: column(place) for place, (name, _) in enumerate(fields)}
    return _written(condition, columns, positive=True)


def _written(condition: Condition, columns: Mapping[str, str], positive: bool) -> str:
    if isinstance(condition, FieldTest):
        return _of_test(condition, columns[condition.field], positive)
    if not isinstance(condition, Junction):
        raise TypeError("the condition is not bound to kinds of fields")
    if condition.word == "not":
        return _written(condition.parts[0], columns, not positive)
    word = condition.word if positive else {"and": "or", "or": "and"}[condition.word]
    parts = [_written(part, columns, positive) for part in condition.parts]
    return "(" + f" {word} ".join(parts) + ")"


def _of_test(test: FieldTest, name: str, positive: bool) -> str:
    sign = test.sign if positive else _OPPOSITES[test.sign]
    values = [_literal(value) for value in test.values]
    if sign not in ("in", "not in"):
        compared = f"{name} {sign} {values[0]}"
    elif values:
        equal, word = ("==", "or") if sign == "in" else ("!=", "and")
        compared = f" {word} ".join(f"{name} {equal} {value}" for value in values)
    else:
        compared = f"{name} is null" if sign == "in" else f"{name} is not null"
    if positive:
        return f"({name} is not null and ({compared}))"
    return f"({name} is null or ({compared}))"


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value.translate(_ESCAPES)}"'
    return repr(value)
