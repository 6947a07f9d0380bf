"""Whether an answer is right, as the evaluation of SQuAD defines it (Rajpurkar et al. 2016)."""

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_MARKS = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Lower case, without punctuation and articles, one space between words.

    >>> normalised("The  U.S.-based, and a Band")
    'usbased and band'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_MARKS)).split())


def exact_match(answer: str, right: Sequence[str]) -> float:
    """1 where the answer is one of the right ones, once normalised; else 0.

    >>> exact_match("the Beatles!", ["Beatles"])
    1.0
    """
    return float(any(normalised(answer) == normalised(one) for one in right))


def f1(answer: str, right: Sequence[str]) -> float:
    """Harmonic mean of the shares of words in common, of the right answer that fits best.

    >>> f1("New York City", ["New York"])
    0.8
    """
    return max(_f1(normalised(answer).split(), normalised(one).split()) for one in right)


def _f1(found: Sequence[str], wanted: Sequence[str]) -> float:
    common = sum((Counter(found) & Counter(wanted)).values())
    if not common:
        return 0.0  # SQuAD 1.1, and HotpotQA's own script: also where both are empty
    precision, recall = common / len(found), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def holds(text: str, right: Sequence[str]) -> bool:
    """Whether a text has the words of a right answer in a row.

    >>> holds("They moved to New York in 1971.", ["new york"]), holds("Yorkshire", ["York"])
    (True, False)
    """
    words = f" {normalised(text)} "
    wanted = [normalised(one) for one in right]
    return any(one and f" {one} " in words for one in wanted)


def can_be_held(right: Sequence[str]) -> bool:
    """Whether a text could hold the answer: not of questions that are answered by yes or no."""
    return any(normalised(one) not in ("", "yes", "no", "noanswer") for one in right)
