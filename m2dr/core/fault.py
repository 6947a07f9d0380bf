"""A fault of an install, a model, an index or a corpus, and the command that mends it."""

import re
from dataclasses import dataclass
from typing import Literal

from m2dr.core.errors import UserError

Level = Literal["error", "warning"]
# The end of a message that names a command: "Build it with: m2dr index corpus".
_MEND = re.compile(r"(?:^|[.;,] )[^.;]*?: ((?:m2dr|pip|torchrun) .*)$")


@dataclass(frozen=True)
class Fault:
    """What is wrong, and its mend.

    Attributes:
        level: an error is refused, or gives wrong results; a warning costs time, memory or quality.
        about: what has the fault: a folder, a package or a variable of the environment.
        problem: a sentence.
        mend: a complete command.
    """

    level: Level
    about: str
    problem: str
    mend: str


def fault_of(error: UserError, about: object, mend: str = "") -> Fault:
    """Return the fault that a refusal tells of.

    Args:
        error: whose message ends in a command, or not.
        about: what has the fault.
        mend: the command where the message has none.

    >>> fault_of(UserError("x is half-written. Go on with: m2dr search --dim 8"), "x")
    Fault(level='error', about='x', problem='x is half-written.', mend='m2dr search --dim 8')
    """
    text = str(error)
    found = _MEND.search(text)
    if found is None:
        return Fault("error", str(about), f"{text.rstrip('.')}.", mend)
    return Fault("error", str(about), f"{text[: found.start()].rstrip('.')}.", found[1])


def worst_first(faults: list[Fault]) -> list[Fault]:
    """Return faults with the errors first, each once, otherwise in the order they were found."""
    return sorted(dict.fromkeys(faults), key=lambda fault: fault.level != "error")
