"""Training rows that carry their own texts, gathered into a data set without repeated texts."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from m2dr.errors import UserError
from m2dr.records.texts import Document, Judgement, Query
from m2dr.text.collection import Asked, Dataset, Negatives, Score, Split
from m2dr.text.corpora import MemoryCorpus

# Per query, as many given negatives are kept. A group draws some ten of them, and official files
# give up to a thousand: 400 million ids, which no memory holds.
NEGATIVES_KEPT = 64


class Row(NamedTuple):
    """One line of a training file; an id may be empty, and is then made from the text."""

    split: str
    query: Query
    positives: tuple[Document, ...]
    negatives: tuple[Document, ...] = ()


class Ids(NamedTuple):
    """Under which ids a row was gathered."""

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]


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


class _Names:
    """Ids by what they name: the wanted one, or with a number where that names another thing."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._ids: dict[tuple[str, str], str] = {}
        self._taken: set[str] = set()
        self._uses: Counter[str] = Counter()

    def of(self, thing: tuple[str, str], wanted: str) -> str:
        """The id of a thing, by the first name that it was wanted under; made up when empty."""
        if thing not in self._ids:
            name = candidate = wanted or f"{self._prefix}{len(self._ids)}"
            while candidate in self._taken:
                self._uses[name] += 1
                candidate = f"{name}~{self._uses[name] + 1}"
            self._taken.add(candidate)
            self._ids[thing] = candidate
        return self._ids[thing]


class Gathering:
    """Rows seen so far. The same title and text are one document, under the first id given.

    In such files an id is a label that nothing else refers to, and published ones reuse it for
    other texts (MedQuAD does, in one row of four): the later text is told apart as `id~2`.
    """

    def __init__(self) -> None:
        self.documents: dict[str, Document] = {}
        self._docids = _Names("d")
        self._query_ids = _Names("q")
        self._splits: dict[str, _Gathered] = {}

    def add(self, row: Row) -> Ids:
        """Take in one row; the same rows in the same order have the same ids."""
        query_id = self._query_ids.of((row.query.id, row.query.text), row.query.id)
        split = self._splits.setdefault(row.split, _Gathered())
        split.queries[query_id] = Query(query_id, row.query.text)
        positives = tuple(map(self._keep, row.positives))
        negatives = tuple(map(self._keep, row.negatives))
        for docid in positives:
            split.judgements[query_id, docid] = Judgement(query_id, docid, 1)
        for docid in negatives:
            split.negatives.add(query_id, docid)
        return Ids(query_id, positives, negatives)

    def dataset(
        self,
        name: str,
        order: Iterable[str] = (),
        scores: Callable[[str], Iterable[Score]] = lambda _: (),
    ) -> Dataset:
        """Return what was gathered; splits in this order first, then as they came.

        Args:
            name: of the data set.
            order: splits that come first.
            scores: yields what a teacher said of the rows of a split.

        Raises:
            UserError: nothing was gathered.
        """
        if not self.documents:
            raise UserError(f"{name} holds no document.")
        first = [split for split in order if split in self._splits]
        splits = {
            split: Split(
                self._splits[split].asked,
                self._splits[split].negatives.mapping,
                partial(scores, split),
            )
            for split in dict.fromkeys([*first, *self._splits])
        }
        return Dataset(name, MemoryCorpus(self.documents.values()), splits)

    def _keep(self, document: Document) -> str:
        docid = self._docids.of((document.title, document.text), document.id)
        self.documents.setdefault(docid, Document(docid, document.text, document.title))
        return docid
