"""Training groups: a query, one document that answers it, documents that do not.

Shapes in this file: B groups of a batch with N documents, their B positives and all negatives.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import Literal, NamedTuple

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from m2dr.core.errors import UserError, counted, were
from m2dr.core.records import Document, Group, Query
from m2dr.data.dataset import Dataset

NegativeSource = Literal["given", "random", "none"]


class AnsweredQueries(NamedTuple):
    """Queries with the docids that answer them."""

    queries: list[Query]
    relevant: dict[str, list[str]]  # query id -> docids in file order, at least one
    absent: int  # relevant judgements left out, of documents that the corpus does not hold

    @property
    def note(self) -> str:
        """A sentence about the judgements left out; empty when there are none."""
        count = counted(self.absent, "relevant judgements")
        note = f"{count} left out, of documents that the corpus does not hold."
        return note if self.absent else ""


class Groups:
    """One group per query with a relevant document, drawn anew in each epoch.

    Each epoch uses another relevant document of a query until all were used: NFCorpus has 43 per
    training query, and one group for each would let a few queries dominate the training. Group `i`
    of epoch `e` depends on the seed, `e` and `i` alone, so resumed runs and parallel workers see
    the same data.

    Args:
        dataset: the texts.
        split: of the judgements to train on.
        negatives: number of negatives per group.
        source: "given" takes those of the data set and fills up with random ones; "none" takes
            none, whatever `negatives` says.
        seed: of all random choices.

    Raises:
        UserError: the split has nothing relevant, gives no negatives, or has too few documents.
    """

    def __init__(
        self, dataset: Dataset, split: str, negatives: int, source: NegativeSource, seed: int
    ) -> None:
        self._dataset = dataset
        self._wanted = 0 if source == "none" else negatives
        self._seed = seed
        self._epoch = 0
        self.answered = answered_queries(dataset, split)
        self._queries, self._relevant = self.answered.queries, self.answered.relevant
        self.known_positives = known_positives(self._queries, self._relevant)
        self._given = dataset.negatives(split) if source == "given" and self._wanted else {}
        if source == "given" and self._wanted and not self._given:
            raise UserError(
                f"{dataset.name} gives no negatives for {split!r}. Use random ones or mine some."
            )
        self._refuse_small_corpus()

    def __len__(self) -> int:
        return len(self._queries)

    def __getitem__(self, i: int) -> Group:
        query = self._queries[i]  # raises IndexError past the end, which ends a `for`
        i %= len(self)
        generator = default_rng([self._seed, self._epoch, i])
        return Group(query, self._positive(query, i), tuple(self._negatives(query, generator)))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0; to be called before the epoch's data workers start."""
        self._epoch = epoch

    def _positive(self, query: Query, i: int) -> Document:
        docids = self._relevant[query.id]
        turn, place = divmod(self._epoch, len(docids))
        # Negatives are drawn from another stream, whose seed has no fourth number.
        order = default_rng([self._seed, turn, i, len(docids)]).permutation(len(docids))
        return self._dataset.document(docids[int(order[place])])

    def _negatives(self, query: Query, generator: Generator) -> list[Document]:
        barred = self._barred(query)
        given = [docid for docid in self._given.get(query.id, ()) if docid not in barred]
        chosen = generator.permutation(len(given))[: self._wanted]
        found = [self._dataset.document(given[int(place)]) for place in chosen]
        taken = barred | {document.id for document in found}
        while len(found) < self._wanted:
            row = int(generator.integers(self._dataset.document_count))
            document = self._dataset.document_at(row)
            if document.id not in taken:
                found.append(document)
                taken.add(document.id)
        return found

    def _barred(self, query: Query) -> set[str]:
        """Return docids that are never a negative of the query."""
        own = {query.id} if self._dataset.drops_own_document else set()
        return own | self.known_positives[query.id]

    def _refuse_small_corpus(self) -> None:
        if not self._wanted:
            return
        most = max(len(self._barred(query)) for query in self._queries)
        left = self._dataset.document_count - most
        if left < self._wanted:
            raise UserError(
                f"{counted(self._wanted, 'negatives')} per query {were(self._wanted)} asked for; "
                f"{self._dataset.name} has {counted(self._dataset.document_count, 'documents')}, "
                f"of which a query leaves {left}. Ask for fewer."
            )


def answered_queries(dataset: Dataset, split: str) -> AnsweredQueries:
    """Return the queries of a split with a relevant document that the corpus holds.

    Raises:
        UserError: there is no such split, or nothing in it is relevant.
    """
    relevant, absent = relevant_documents(dataset, split)
    queries = [query for query in dataset.queries(split) if query.id in relevant]
    if not queries:
        raise UserError(f"{dataset.name}: no query of {split!r} has a relevant document.")
    return AnsweredQueries(queries, relevant, absent)


def relevant_documents(dataset: Dataset, split: str) -> tuple[dict[str, list[str]], int]:
    """Return relevant docids that the corpus holds by query id, and how many it does not hold."""
    relevant: dict[str, list[str]] = defaultdict(list)
    absent = 0
    for judgement in dataset.judgements(split):
        if judgement.relevance > 0:
            if dataset.holds(judgement.document_id):
                relevant[judgement.query_id].append(judgement.document_id)
            else:
                absent += 1
    return dict(relevant), absent


def known_positives(
    queries: Sequence[Query], relevant: Mapping[str, Sequence[str]]
) -> dict[str, frozenset[str]]:
    """Return relevant docids by query id; queries of the same text share theirs."""
    by_text: dict[str, set[str]] = defaultdict(set)
    for query in queries:
        by_text[query.text].update(relevant[query.id])
    return {query.id: frozenset(by_text[query.text]) for query in queries}


def documents_of(groups: Sequence[Group]) -> list[Document]:
    """Return the N documents of a batch: the B positives, then the negatives group by group."""
    positives = [group.positive for group in groups]
    return positives + [document for group in groups for document in group.negatives]


def false_negatives(
    groups: Sequence[Group], known: Mapping[str, frozenset[str]]
) -> NDArray[np.bool_]:
    """Return which documents of a batch must not count as negatives of which query.

    Those are its positive, the known positives of its text, the positives of other groups with the
    same query text, and any document of the batch with the same text as one of these. Leaving a
    document out of the softmax costs little; a relevant one among the negatives teaches the
    opposite of what it should.

    Args:
        groups: B of them.
        known: relevant docids by query id; see `Groups.known_positives`.

    Returns:
        [B, N], columns as in `documents_of`; False at column b of query b, its own positive.
    """
    documents = documents_of(groups)
    ids = _Codes([document.id for document in documents])
    contents = _Codes([document.content for document in documents])
    answers: dict[str, set[str]] = defaultdict(set)  # query text → docids
    for group in groups:
        answers[group.query.text] |= {group.positive.id, *known.get(group.query.id, ())}
    masks: dict[str, NDArray[np.bool_]] = {}
    for text, docids in answers.items():
        answering = np.flatnonzero(ids.among(docids & ids.numbers.keys()))
        masks[text] = contents.among({documents[column].content for column in answering})
    mask = np.zeros((len(groups), len(documents)), dtype=np.bool_)
    for row, group in enumerate(groups):
        mask[row] = masks[group.query.text]
    np.fill_diagonal(mask, val=False)
    return mask


class _Codes:
    """The strings of N columns as numbers, so that all columns are compared at once."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.numbers: dict[str, int] = {}
        codes = [self.numbers.setdefault(string, len(self.numbers)) for string in strings]
        self._codes = np.array(codes, dtype=np.int64)  # [N]

    def among(self, strings: Set[str]) -> NDArray[np.bool_]:
        """Return [N], whether the string of each column is one of these known strings."""
        return np.isin(self._codes, [self.numbers[string] for string in strings])
