"""A data set as the rest of m2dr sees it, whatever its files look like."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from m2dr.errors import UserError, nearest
from m2dr.records.texts import Document, Judgement, Query
from m2dr.text.corpora import Corpus
from m2dr.text.lines import Line

Asked = tuple[list[Query], list[Judgement]]  # the judged queries in file order, the judgements
Negatives = Mapping[str, tuple[str, ...]]  # query id → docids given as not relevant

# The queries of ArguAna and Quora are themselves documents of the corpus, under the same ids; BEIR
# leaves those out of the ranking. Elsewhere an equal id is chance, and dropping would lose answers.
_DROP_OWN_DOCUMENT = {"arguana", "quora"}


class Score(NamedTuple):
    """How well a document answers a query, by a teacher such as a cross-encoder."""

    line: Line  # where it stands
    query_id: str
    docid: str
    value: float
    # The docid of the positive that this score is relative to, as a margin is; empty where scores
    # of one query compare with each other.
    origin: str = ""


@dataclass(frozen=True)
class Split:
    """How to read what is asked of a corpus; nothing is read before it is wanted."""

    read: Callable[[], Asked]
    negatives: Callable[[], Negatives] = dict
    scores: Callable[[], Iterable[Score]] = tuple


class Dataset:
    """A corpus, and per split the queries and what is known of their answers.

    Args:
        name: short, fit to name a folder.
        corpus: where the documents are.
        splits: those with judgements, by name.
        aliases: other names of a split.
    """

    def __init__(
        self,
        name: str,
        corpus: Corpus,
        splits: Mapping[str, Split],
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._corpus = corpus
        self._splits = splits
        self._aliases = aliases or {}
        self._asked: dict[str, Asked] = {}
        self._negatives: dict[str, Negatives] = {}

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have judgements."""
        return tuple(self._splits)

    @property
    def drops_own_document(self) -> bool:
        """Whether the document with the query's own id is left out of its ranking."""
        return not _DROP_OWN_DOCUMENT.isdisjoint(self.name.lower().split("-"))

    @property
    def document_count(self) -> int:
        """Number of documents; the first use checks all of them."""
        return len(self._corpus)

    def documents(self) -> Iterator[Document]:
        """All documents in file order, one at a time."""
        return iter(self._corpus)

    def document_ids(self) -> Iterator[str]:
        """All docids in file order."""
        return (document.id for document in self._corpus)

    def document_at(self, row: int) -> Document:
        """The document at this place of the file order, from 0."""
        return self._corpus.at(row)

    def holds(self, docid: str) -> bool:
        """Return whether there is a document of this id."""
        return docid in self._corpus

    def document(self, docid: str) -> Document:
        """The document of this id."""
        try:
            return self._corpus.find(docid)
        except KeyError:
            raise UserError(f"{self.name} holds no document {docid!r}.") from None

    def queries(self, split: str) -> list[Query]:
        """Return the queries that the split judges, in file order; one without a text is absent."""
        return self._ask(split)[0]

    def judgements(self, split: str) -> list[Judgement]:
        """Return the judgements of the split, also of documents that the corpus does not hold."""
        return self._ask(split)[1]

    def negatives(self, split: str) -> Negatives:
        """Documents given as not relevant, by query id; empty when the data gives none."""
        name = self._known(split)
        if name not in self._negatives:
            self._negatives[name] = self._splits[name].negatives()
        return self._negatives[name]

    def scores(self, split: str) -> Iterable[Score]:
        """Yield the scores that a teacher gave, in file order; none when the data gives none."""
        return self._splits[self._known(split)].scores()

    def _ask(self, split: str) -> Asked:
        name = self._known(split)
        if name not in self._asked:
            self._asked[name] = self._splits[name].read()
        return self._asked[name]

    def _known(self, split: str) -> str:
        name = self._aliases.get(split, split)
        if name in self._splits:
            return name
        if not self._splits:
            raise UserError(f"{self.name} has no judged queries, so no split {split!r}.")
        raise UserError(f"{self.name} has no split {split!r}. {nearest(split, self._splits)}")
