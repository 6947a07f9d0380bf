"""Texts and what is known of them."""

from dataclasses import dataclass
from typing import Literal

Side = Literal["query", "document"]  # which of the two a text is: its prefix and length differ


@dataclass(frozen=True, slots=True)
class Query:
    """A text that asks."""

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

    @property
    def content(self) -> str:
        """What the encoder reads: title and text joined by a space, as BEIR does."""
        return f"{self.title} {self.text}".strip()


@dataclass(frozen=True, slots=True)
class Judgement:
    """How relevant a document is to a query; above 0 is relevant."""

    query_id: str
    document_id: str
    relevance: int


@dataclass(frozen=True, slots=True)
class Group:
    """One training example: a query, a document that answers it, and documents that do not."""

    query: Query
    positive: Document
    negatives: tuple[Document, ...] = ()
    scores: tuple[float, ...] = ()  # a teacher's, of the positive and the negatives; or none


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sentences and how alike they are: from 0, unrelated, to 1, the same."""

    first: str
    second: str
    score: float
