"""The description of a setting, kept with its field, and values that have a unit."""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field
from math import inf, isfinite
from typing import Any

REQUIRED: Any = MISSING  # the default of a field that must be given
_NUMBER = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-zµ%]*)")


@dataclass(frozen=True)
class Option:
    """Help, spelling and range of a field on the command line.

    Type, default and choices are those of the field itself.

    Attributes:
        help: one sentence, the default last if it is computed.
        flags: spellings; messages print the first. Default: --FIELD-NAME.
        choices: of a text that only some commands restrict; a Literal type needs none.
        metavar: the value's name in `--help`.
        default: text for `--help` if the default is empty.
        least: minimum of a number, and of each in a list.
        most: maximum.
        above: exclusive minimum.
        below: exclusive maximum.
        read: function from the typed word to the value.
        bare: value of `--name` without a number, and of True in Python.
        is_file: whether a path is that of a file, not of a folder.
        is_argument: whether the value stands without a name.
    """

    help: str = ""
    flags: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    metavar: str = ""
    default: str = ""
    least: float = 0
    most: float | None = None
    above: float | None = None
    below: float | None = None
    read: Callable[[str], object] | None = None
    bare: float | None = None
    is_file: bool = False
    is_argument: bool = False

    @property
    def name(self) -> str:
        """The spelling that messages print, without dashes; "" for the field's name."""
        return self.flags[0].lstrip("-") if self.flags else ""

    @property
    def range(self) -> str:
        """The range in words.

        >>> Option(most=1).range, Option(above=0, below=1).range
        ('from 0 to 1', 'above 0 and below 1')
        """
        low = f"from {self.least:g}" if self.above is None else f"above {self.above:g}"
        high = f" to {self.most:g}" if self.most is not None else ""
        return low + (high or (f" and below {self.below:g}" if self.below is not None else ""))

    def takes(self, number: float) -> bool:
        """Return whether a number is finite and in the range."""
        low = self.least <= number if self.above is None else self.above < number
        high = self.most is None or number <= self.most
        return low and high and isfinite(number) and (self.below is None or number < self.below)


def option(
    value: Any, help: str, *flags: str, **rest: Any
) -> Any:  # of any type, as dataclasses.field
    """Return a dataclass field with this default that is described as an `Option`."""
    return field(default=value, metadata={"option": Option(help, flags, **rest)})


def option_of(described: Field[Any]) -> Option | None:
    """Return the description of a field; None for one that no command asks for."""
    found: Option | None = described.metadata.get("option")
    return found


# Values that have a unit or are written as name=value. Each function raises ValueError, whose text
# says how the value is written.


def _amount(
    what: str, units: Mapping[str, float], example: str, most: float = inf
) -> Callable[[str], float]:
    def read(word: str) -> float:
        match = _NUMBER.fullmatch(word.strip().lower())
        number = float(match[1]) * units.get(match[2], 0) if match else 0.0
        if not 0 < number <= most or not isfinite(number):
            raise ValueError(f"{word!r} is no {what} above 0; write it as {example}.")
        return number

    return read


milliseconds = _amount("time", {"": 1, "ms": 1, "s": 1000, "us": 0.001, "µs": 0.001}, "5ms or 0.1s")
size = _amount("size", {"": 1, "b": 1, "kb": 1e3, "kib": 2**10}, "256, 1KB or 1KiB")
count = _amount("number", {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}, "85000000 or 85M")
share = _amount("share", {"": 1, "%": 0.01}, "0.97 or 97%", most=1)


def measure_floor(word: str) -> tuple[str, float]:
    """Read a measure and its least value.

    >>> measure_floor("nDCG@10=.3")
    ('nDCG@10', 0.3)
    """
    match = re.fullmatch(r"(.*\S)\s*=\s*([-+.e\d]+)", word)
    if not match:
        raise ValueError(f"{word!r} is no measure and value, such as nDCG@10=.3.")
    return match[1], float(match[2])


def search_param(word: str) -> tuple[str, int]:
    """Read a setting of an engine.

    >>> search_param("nprobe=32")
    ('nprobe', 32)
    """
    match = re.fullmatch(r"\s*(\S+)\s*=\s*([0-9]+)\s*", word)
    if not match:
        raise ValueError(f"{word!r} is no name=number, such as nprobe=32.")
    return match[1], int(match[2])
