"""Training rows that carry their own texts, gathered into a data set without repeated texts."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from m2dr.errors import UserError
from m2dr.records.texts import Document, Judgement, Query
from m2dr.text.collection import Asked, Dataset, Negatives, Split
from m2dr.text.corpora import MemoryCorpus
from m2dr.text.lines import Line

# Per query, as many given negatives are kept. A group draws some ten of them, and official files
# give up to a thousand: 400 million ids, which no memory holds.
NEGATIVES_KEPT = 64


class Row(NamedTuple):
    """One line of a training file; an id may be empty, and is then made from the text."""

    line: Line
    split: str
    query: Query
    positives: tuple[Document, ...]
    negatives: tuple[Document, ...] = ()


class NegativesKept:
    """Given negatives by query id, in file order, the first of each query only."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, None]] = defaultdict(dict)

    def wants(self, query_id: str) -> bool:
        """Whether the query may still have another."""
        return len(self._kept[query_id]) < NEGATIVES_KEPT

    def add(self, query_id: str, docid: str) -> None:
        """Keep one, unless the query has enough."""
        if self.wants(query_id):
            self._kept[query_id][docid] = None

    def mapping(self) -> Negatives:
        """Docids by query id, for queries that have any."""
        return {query: tuple(docids) for query, docids in self._kept.items() if docids}


class _Gathered:
    """What one split has so far."""

    def __init__(self) -> None:
        self.queries: dict[str, Query] = {}
        self.judgements: dict[tuple[str, str], Judgement] = {}
        self.negatives = NegativesKept()

    def asked(self) -> Asked:
        return list(self.queries.values()), list(self.judgements.values())


class Gathering:
    """Rows seen so far. The same title and text are one document, under the first id given."""

    def __init__(self) -> None:
        self.documents: dict[str, Document] = {}
        self._docids: dict[tuple[str, str], str] = {}  # (title, text) → docid
        self._queries: dict[str, Query] = {}
        self._query_ids: dict[str, str] = {}  # text → id, of queries given without one
        self._splits: dict[str, _Gathered] = {}

    def add(self, row: Row) -> None:
        """Take in one row.

        Raises:
            UserError: its ids stand for other texts already.
        """
        query = self._query(row.line, row.query)
        split = self._splits.setdefault(row.split, _Gathered())
        split.queries[query.id] = query
        for document in row.positives:
            docid = self._document(row.line, document)
            split.judgements[query.id, docid] = Judgement(query.id, docid, 1)
        for document in row.negatives:
            split.negatives.add(query.id, self._document(row.line, document))

    def dataset(self, name: str, order: Iterable[str] = ()) -> Dataset:
        """What was gathered; splits in this order first, then as they came.

        Raises:
            UserError: nothing was.
        """
        if not self.documents:
            raise UserError(f"{name} holds no document.")
        names = dict.fromkeys([split for split in order if split in self._splits])
        splits = {
            split: Split(self._splits[split].asked, self._splits[split].negatives.mapping)
            for split in {**names, **dict.fromkeys(self._splits)}
        }
        return Dataset(name, MemoryCorpus(self.documents.values()), splits)

    def _document(self, line: Line, document: Document) -> str:
        text = (document.title, document.text)
        known = self._docids.get(text)
        if known is not None:
            return known
        docid = document.id or f"d{len(self.documents)}"
        if docid in self.documents:
            raise line.error(f"document id {docid!r} stands for another text above.")
        self.documents[docid] = Document(docid, document.text, document.title)
        self._docids[text] = docid
        return docid

    def _query(self, line: Line, query: Query) -> Query:
        query_id = query.id or self._query_ids.setdefault(query.text, f"q{len(self._query_ids)}")
        known = self._queries.setdefault(query_id, Query(query_id, query.text))
        if known.text != query.text:
            raise line.error(f"query id {query_id!r} stands for another text above.")
        return known
