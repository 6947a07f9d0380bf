"""Filters over the fields of documents: `year >= 2020 and (lang = en or lang = de)`."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from math import inf, isfinite
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, counted, suggestion
from m2dr.core.records import Fields
from m2dr.index.manifest import Kind

Value = str | int | float | bool
Bools = NDArray[np.bool_]

EXAMPLE = "year >= 2020 and lang in (en, de)"
_DEEPEST = 50  # parentheses and negations inside each other
_SHOWN = 20  # fields that a message names
_FEW = 0.1  # of the values of a field: so many odd ones are told of
_LETTERS = 200  # of a name or a value that a message shows
_TOKEN = re.compile(
    r"""(?P<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*")|(?P<sign>!=|<=|>=|==?|[<>(),])"""
    r"""|(?P<word>[^\s()<>=!,'"]+)|(?P<wrong>\S)"""
)
_WORDS = ("and", "or", "not", "in")
_ORDERS = ("<", "<=", ">", ">=")
_LONGEST = 2**63
_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,18})", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,99})(?:\.\d+)?(?:[eE][+-]?\d{1,3})?", re.ASCII)
_ASKED = re.compile(
    r"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,3})?", re.ASCII
)
_DATE = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:?\d\d)?)?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# What a filter says


@dataclass(frozen=True)
class FieldComparison:
    """A field compared with a value, or with several for `in`."""

    field: str
    sign: str  # =, !=, <, <=, >, >= or in
    values: tuple[str, ...]


@dataclass(frozen=True)
class FieldTest:
    """A comparison whose values are of the kind of the field.

    A document without the field fulfils none.
    """

    field: str
    kind: Kind
    sign: Literal["in", "not in", "<", "<=", ">", ">="]
    values: tuple[Value, ...]  # one, except for the first two signs


@dataclass(frozen=True)
class Junction:
    """Conditions joined by `and`, by `or`, or a single one behind `not`."""

    word: Literal["and", "or", "not"]
    parts: "tuple[FieldComparison | FieldTest | Junction, ...]"


Condition = FieldComparison | FieldTest | Junction


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
        return cls(text, _Parser(text).condition())

    def bound(self, kinds: Mapping[str, Kind], corpus: str) -> Condition:
        """Return the condition with values of the kinds of the fields, in `FieldTest`s.

        Args:
            kinds: of the fields that documents have, by name.
            corpus: whose documents, in messages.

        Raises:
            UserError: there is no such field, or a value is of another kind.
        """
        return _bound(self.condition, kinds, corpus)


def holds(condition: Condition, test: Callable[[FieldTest], Bools]) -> Bools:
    """Return which documents [n] fulfil a bound condition.

    Args:
        condition: as `Filter.bound` returns it.
        test: returns which documents fulfil a single comparison.
    """
    if isinstance(condition, FieldTest):
        return test(condition)
    if not isinstance(condition, Junction):
        raise TypeError("the condition is not bound to kinds of fields")
    found = [holds(part, test) for part in condition.parts]
    if condition.word == "not":
        return ~found[0]
    join = np.logical_and if condition.word == "and" else np.logical_or
    return np.asarray(join.reduce(found), np.bool_)


def fields_of(condition: Condition) -> Iterator[str]:
    """Yield the names of the fields that a condition compares."""
    if isinstance(condition, Junction):
        for part in condition.parts:
            yield from fields_of(part)
    else:
        yield condition.field


# Reading


class _Token(NamedTuple):
    kind: str  # quoted, sign or word; "end" behind the last one
    text: str

    @property
    def shown(self) -> str:
        return "its end" if self.kind == "end" else repr(self.text[:_LETTERS])

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words


class _Parser:
    """Recursive descent: or, and, not, comparison."""

    def __init__(self, text: str) -> None:
        self._text = text.encode(errors="backslashreplace").decode()  # in messages
        if self._text != text:
            raise self._error("holds half a surrogate pair, which is not text")
        self._tokens = [_Token(str(one.lastgroup), one[0]) for one in _TOKEN.finditer(text)]
        self._at = self._depth = 0
        if wrong := next((one for one in self._tokens if one.kind == "wrong"), None):
            what = "a quote that is not closed" if wrong.text in "'\"" else repr(wrong.text)
            raise self._error(f"holds {what}")
        if not self._tokens:
            raise self._error("is empty")

    def condition(self) -> Condition:
        """Read the whole filter."""
        found = self._joined("or")
        if self._next.kind != "end":
            raise self._expected("'and', 'or' or its end")
        return found

    @property
    def _next(self) -> _Token:
        end = _Token("end", "")
        return self._tokens[self._at] if self._at < len(self._tokens) else end

    def _take(self) -> _Token:
        found = self._next
        self._at += 1
        return found

    def _joined(self, word: Literal["and", "or"]) -> Condition:
        read = self._negated if word == "and" else lambda: self._joined("and")
        parts = [read()]
        while self._next.is_word(word):
            self._take()
            parts.append(read())
        return Junction(word, tuple(parts)) if parts[1:] else parts[0]

    def _negated(self) -> Condition:
        nested = self._next.is_word("not") or self._next == ("sign", "(")
        if not nested:
            return self._comparison()
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error(f"is nested more than {_DEEPEST} deep")
        if self._take().is_word("not"):
            found: Condition = Junction("not", (self._negated(),))
        else:
            found = self._joined("or")
            self._expect(")")
        self._depth -= 1
        return found

    def _comparison(self) -> Condition:
        name = self._name("the name of a field")
        sign = self._take()
        if sign.is_word("not") and self._next.is_word("in"):
            self._take()
            return Junction("not", (FieldComparison(name, "in", self._list()),))
        if sign.is_word("in"):
            return FieldComparison(name, "in", self._list())
        if sign.kind != "sign" or sign.text in "(),":
            self._at -= 1
            raise self._expected(f"=, !=, <, <=, >, >= or in after {name!r}")
        value = self._name(f"a value after {name} {sign.text}")
        return FieldComparison(name, "=" if sign.text == "==" else sign.text, (value,))

    def _list(self) -> tuple[str, ...]:
        self._expect("(")
        values = [self._name("a value")]
        while self._next == ("sign", ","):
            self._take()
            values.append(self._name("a value"))
        self._expect(")")
        return tuple(values)

    def _name(self, what: str) -> str:
        """Return the name of a field or a value: a bare word, or quoted."""
        found = self._next
        if found.kind not in ("word", "quoted") or found.is_word(*_WORDS):
            raise self._expected(what)
        self._take()
        if found.kind == "word":
            return found.text
        mark = found.text[0]
        return found.text[1:-1].replace(2 * mark, mark)

    def _expect(self, sign: str) -> None:
        if self._next != ("sign", sign):
            raise self._expected(repr(sign))
        self._take()

    def _expected(self, what: str) -> UserError:
        return self._error(f"has {self._next.shown} where {what} belongs")

    def _error(self, problem: str) -> UserError:
        return UserError(
            f"The filter {self._text[:200]!r} {problem}. A filter is written like: {EXAMPLE}; "
            "values with spaces stand in quotes."
        )


# Kinds of values


def _whole(text: str) -> int | None:
    """Return a whole number of 64 bits, without leading zeros as codes have them."""
    found = int(text) if _WHOLE.fullmatch(text) else None
    return found if found is not None and -_LONGEST <= found < _LONGEST else None


def _number(text: str) -> float | None:
    """Return a number of 64 bits; none for a whole number that it would round, such as an id."""
    if not _NUMBER.fullmatch(text):
        return None
    found = float(text)
    rounded = text.lstrip("-").isdigit() and isfinite(found) and int(text) != int(found)
    return found if isfinite(found) and not rounded else None


def _moment(text: str) -> int | None:
    """Return microseconds since 1970 of a date, or a date and a time; UTC where none is named."""
    if not _DATE.fullmatch(text):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    aware = found if found.tzinfo else found.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def _truth(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


READERS: Mapping[Kind, Callable[[str], Value | None]] = {
    "integer": _whole,
    "number": _number,
    "date": _moment,
    "boolean": _truth,
    "text": str,
}
_ASKED_FOR = {
    "integer": "whole numbers",
    "number": "numbers",
    "date": "dates such as 2024-01-31 or 2024-01-31T12:00:00Z",
    "boolean": "true or false",
}


def typed(fields: Fields, kinds: Mapping[str, Kind]) -> dict[str, Value]:
    """Return the fields of a document by name, numbers and truths as such, and others as texts.

    >>> typed((("year", "1999"), ("day", "2024-01-31")), {"year": "integer", "day": "date"})
    {'year': 1999, 'day': '2024-01-31'}
    """
    found: dict[str, Value] = {}
    for name, text in fields:
        kind = kinds.get(name, "text")
        value = None if kind == "date" else READERS[kind](text)
        found[name] = text if value is None or value in (inf, -inf) else value
    return found


class KindGuess:
    """The kind of a field: the first of READERS that can read each of its texts."""

    def __init__(self) -> None:
        self._possible = list(READERS)
        self._texts = self._read = 0  # how many there are, and how many the kind before text reads
        self._before: Kind | None = None
        self._odd = ""  # the first text that it does not read

    def add(self, text: str) -> None:
        """Take another text into account."""
        self._texts += 1
        if len(self._possible) > 1:
            possible = [kind for kind in self._possible if READERS[kind](text) is not None]
            if len(possible) == 1 and self._texts > 1:
                self._before, self._read, self._odd = self._possible[0], self._texts - 1, text
            self._possible = possible
        elif self._before and READERS[self._before](text) is not None:
            self._read += 1

    def doubt(self, field: str) -> str:
        """Return a sentence where few texts keep a field from having another kind; else nothing."""
        if not self._before or self._texts - self._read > _FEW * self._texts:
            return ""
        kind = _ASKED_FOR[self._before].partition(" such as")[0]
        return (
            f"The field {field!r} is compared as text: {self._read:,} of its {self._texts:,} "
            f"values are {kind}, and {self._odd[:_LETTERS]!r} is not."
        )

    @property
    def kind(self) -> Kind:
        """The kind that reads all of them."""
        return self._possible[0]


def common_kind(kinds: Collection[Kind]) -> Kind:
    """Return the kind of a field that has several kinds in different files.

    >>> common_kind(["integer", "number"]), common_kind(["integer", "date"])
    ('number', 'text')
    """
    if len(set(kinds)) == 1:
        return next(iter(kinds))
    return "number" if set(kinds) == {"integer", "number"} else "text"


# Binding


def _bound(condition: Condition, kinds: Mapping[str, Kind], corpus: str) -> Condition:
    if isinstance(condition, Junction):
        parts = tuple(_bound(part, kinds, corpus) for part in condition.parts)
        return Junction(condition.word, parts)
    if condition.field not in kinds:
        raise _no_field(condition.field, kinds, corpus)
    if isinstance(condition, FieldTest):
        return condition
    kind, values, sign = kinds[condition.field], condition.values, condition.sign
    if kind == "integer":
        return _of_whole_numbers(condition)
    if kind == "boolean" and sign in _ORDERS:
        raise UserError(
            f"The field {condition.field!r} of {corpus} is true or false, which {sign} cannot "
            "compare. Compare it by = or !=."
        )
    found = tuple(_value(condition.field, kind, value) for value in values)
    return _test(condition.field, kind, sign, found)


def _test(field: str, kind: Kind, sign: str, values: tuple[Value, ...]) -> FieldTest:
    if sign in ("=", "in"):
        return FieldTest(field, kind, "in", values)
    if sign == "!=":
        return FieldTest(field, kind, "not in", values)
    return FieldTest(field, kind, sign, values)  # type: ignore[arg-type]  # one of _ORDERS


def _value(field: str, kind: Kind, text: str) -> Value:
    """Return a value that was asked for, of the kind of its field."""
    found = float(_decimal(field, kind, text)) if kind == "number" else READERS[kind](text)
    if found is None or (isinstance(found, float) and not isfinite(found)):
        raise _of_another_kind(field, kind, text)
    return found


def _decimal(field: str, kind: Kind, text: str) -> Decimal:
    if not _ASKED.fullmatch(text):
        raise _of_another_kind(field, kind, text)
    return Decimal(text)


def _of_another_kind(field: str, kind: Kind, text: str) -> UserError:
    return UserError(
        f"The filter compares {field!r} with {text[:_LETTERS]!r}, and that field holds "
        f"{_ASKED_FOR.get(kind, kind)}. Give such a value."
    )


def _of_whole_numbers(asked: FieldComparison) -> FieldTest:
    """Return the test of a field of whole numbers, with any number: exact at every size."""
    field, sign = asked.field, asked.sign
    values = [_decimal(field, "integer", text) for text in asked.values]
    if sign not in _ORDERS:
        whole = (int(one) for one in values if abs(one) <= _LONGEST and one == one.to_integral())
        kept = tuple(one for one in whole if -_LONGEST <= one < _LONGEST)
        return _test(field, "integer", sign, kept)
    (value,) = values
    rounding = ROUND_CEILING if sign in ("<", ">=") else ROUND_FLOOR
    within = min(max(value, Decimal(-_LONGEST - 1)), Decimal(_LONGEST))
    bound = int(within.to_integral_value(rounding))
    if -_LONGEST <= bound < _LONGEST:
        return _test(field, "integer", sign, (bound,))
    everything = (bound >= _LONGEST) == (sign in ("<", "<="))
    return FieldTest(field, "integer", "not in" if everything else "in", ())


def _no_field(name: str, kinds: Collection[str], corpus: str) -> UserError:
    asked = f"The filter asks for the field {name[:_LETTERS]!r}, and"
    if not kinds:
        return UserError(
            f"{asked} the documents of {corpus} have no fields besides id, title and text. Search "
            "without a filter, or give them fields and encode them again."
        )
    names = sorted(kinds)
    more = len(names) - _SHOWN
    shown = ", ".join(names[:_SHOWN]) + (f" and {counted(more, 'others', ',')}" if more > 0 else "")
    hint = suggestion(name[:_LETTERS], names)
    return UserError(
        f"{asked} the documents of {corpus} have none of that name. {hint} "
        f"Their fields are: {shown}.".replace("  ", " ")
    )
