"""What a person, not a developer, can fix."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """One sentence: what was asked, what was found, what to do. Shown without a traceback."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the known word most like `word`, or all of them when none is near.

    >>> nearest("ful-dim", ["plain", "full-dim"])
    'Did you mean full-dim?'
    >>> nearest("xyz", ["plain", "full-dim"])
    'Known: plain, full-dim.'
    """
    words = list(known)
    close = difflib.get_close_matches(word, words, n=1)
    return f"Did you mean {close[0]}?" if close else f"Known: {', '.join(words)}."
