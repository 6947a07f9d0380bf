"""Queries to begin with, taken from the documents."""

import re

from m2dr.core.errors import UserError
from m2dr.core.records import Document
from m2dr.data.dataset import Dataset

EXAMPLES = 4
_LOOKED_AT = 64  # documents, spread over the corpus
_FEWEST, _MOST = 3, 12  # words of an example
_MOST_CHARACTERS = 64  # of an example, so that it fits on a line of a phone or two
_PHRASE = re.compile(r"\w[\w ,'’:-]*[.?]?")  # no formula, no code
_SENTENCE_END = re.compile(r"(?<=[.!?])\s")


def examples(dataset: Dataset, documents: int) -> list[str]:
    """Return a few queries that documents answer: titles, or else first sentences.

    Titles of one word, such as names of functions, are passed over.

    Args:
        dataset: what is searched.
        documents: their number.
    """
    found: dict[str, None] = {}
    for place in range(min(_LOOKED_AT, documents)):
        try:
            document = dataset.document_at(place * documents // min(_LOOKED_AT, documents))
        except (UserError, IndexError):
            continue  # without it the page has other examples
        found.update(dict.fromkeys(filter(None, [example_of(document)])))
        if len(found) == EXAMPLES:
            break
    return list(found)


def example_of(document: Document) -> str:
    """Return the title of a document or its first sentence; empty where neither is a short phrase.

    >>> example_of(Document("1", "Line ends are kept. More follows.", "io.readline"))
    'Line ends are kept'
    """
    first = _SENTENCE_END.split(document.text.strip(), maxsplit=1)[0]
    for text in (document.title, first):
        words = text.split()
        phrase = " ".join(words)
        short = _FEWEST <= len(words) <= _MOST and len(phrase) <= _MOST_CHARACTERS
        if short and _PHRASE.fullmatch(phrase):
            return phrase.rstrip(".")
    return ""
