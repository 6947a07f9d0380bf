"""Queries, documents, judgements, training groups and sentence pairs."""

from dataclasses import dataclass, field
from typing import Literal

Side = Literal["query", "document"]  # decides the prefix and the length of a text
Fields = tuple[tuple[str, str], ...]  # names and values, as texts; each name once


@dataclass(frozen=True, slots=True)
class Query:
    """A query with its id."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Document:
    """A text that can be retrieved.

    >>> Document("d1", "Returns a list.", title="os.listdir").content
    'os.listdir Returns a list.'
    """

    id: str
    text: str
    title: str = ""
    fields: Fields = field(default=(), compare=False)  # its own, by which a search may filter

    @property
    def content(self) -> str:
        """The text to encode: title and text joined by a space, as in BEIR."""
        return f"{self.title} {self.text}".strip()


@dataclass(frozen=True, slots=True)
class Judgement:
    """The relevance of a document to a query; above 0 is relevant."""

    query_id: str
    document_id: str
    relevance: int


@dataclass(frozen=True, slots=True)
class Group:
    """One training example: a query, a document that answers it, and documents that do not."""

    query: Query
    positive: Document
    negatives: tuple[Document, ...] = ()
    scores: tuple[float, ...] = ()  # of a teacher, for the positive and the negatives; may be empty


@dataclass(frozen=True, slots=True)
class SentencePair:
    """Two sentences and their similarity, from 0 (unrelated) to 1 (same meaning)."""

    first: str
    second: str
    score: float
