"""Training groups: a query, one document that answers it, documents that do not."""

# Shapes in this file: B groups of a batch, N = B + all their negatives documents.

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import Literal, NamedTuple

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from m2dr.errors import UserError, counted, were
from m2dr.records.texts import Document, Group, Query
from m2dr.text.collection import Dataset

Source = Literal["given", "random", "none"]


class Answered(NamedTuple):
    """Queries with the documents that answer them."""

    queries: list[Query]
    relevant: dict[str, list[str]]  # query id -> docids in file order, at least one
    absent: int  # relevant judgements of documents that the corpus does not hold, left out

    @property
    def note(self) -> str:
        """A sentence about what was left out; empty when nothing was."""
        return (
            f"{counted(self.absent, 'relevant judgements')} of documents that the corpus does not "
            "hold left out."
            if self.absent
            else ""
        )


class Groups:
    """One group per query with a relevant document, another one in each epoch.

    An epoch draws one relevant document per query, and goes through all of them before one comes
    again: NFCorpus has 43 per training query, and one group for each would make a few long-listed
    queries most of the training. Group `i` of epoch `e` depends on the seed, `e` and `i` alone, so
    a run that is resumed, or read by many workers, sees the same data.

    Args:
        dataset: where the texts are.
        split: whose judgements train.
        negatives: documents that do not answer, per group.
        source: "given" takes those of the data set and fills up with random ones; "none" takes
            none, whatever `negatives` says.
        seed: of every draw.

    Raises:
        UserError: the split has nothing relevant, gives no negatives, or has too few documents.
    """

    def __init__(
        self, dataset: Dataset, split: str, negatives: int, source: Source, seed: int
    ) -> None:
        self._dataset = dataset
        self._wanted = 0 if source == "none" else negatives
        self._seed = seed
        self._epoch = 0
        self.answered = answered(dataset, split)
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
        """Draw anew; epochs count from 0.

        To be called before an epoch's data workers start: one that lives on keeps the old epoch.
        """
        self._epoch = epoch

    def _positive(self, query: Query, i: int) -> Document:
        docids = self._relevant[query.id]
        turn, place = divmod(self._epoch, len(docids))
        # Another stream than that of the negatives, whose seed has no fourth number.
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
        """Documents that are never a negative of the query."""
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


def answered(dataset: Dataset, split: str) -> Answered:
    """Return the queries of a split with a relevant document that the corpus holds.

    Raises:
        UserError: there is no such split, or nothing in it is relevant.
    """
    relevant: dict[str, list[str]] = defaultdict(list)
    absent = 0
    for judgement in dataset.judgements(split):
        if judgement.relevance > 0:
            if dataset.holds(judgement.document_id):
                relevant[judgement.query_id].append(judgement.document_id)
            else:
                absent += 1
    queries = [query for query in dataset.queries(split) if query.id in relevant]
    if not queries:
        raise UserError(f"{dataset.name}: no query of {split!r} has a relevant document.")
    return Answered(queries, dict(relevant), absent)


def known_positives(
    queries: Sequence[Query], relevant: Mapping[str, Sequence[str]]
) -> dict[str, frozenset[str]]:
    """By query id; queries of the same text share theirs, since what answers one answers all."""
    by_text: dict[str, set[str]] = defaultdict(set)
    for query in queries:
        by_text[query.text].update(relevant[query.id])
    return {query.id: frozenset(by_text[query.text]) for query in queries}


def documents_of(groups: Sequence[Group]) -> list[Document]:
    """The N documents of a batch: the B positives, then the negatives group by group."""
    positives = [group.positive for group in groups]
    return positives + [document for group in groups for document in group.negatives]


def clashes(groups: Sequence[Group], known: Mapping[str, frozenset[str]]) -> NDArray[np.bool_]:
    """Which documents of a batch must not count as negatives of which query.

    Those are the documents that answer the query, by what is known: its positive, the known
    positives of its text, the positives of other groups with the same query text, and any
    document of the batch that reads the same as one of these. What is left out of the softmax
    costs little; what answers and is pushed away teaches the opposite.

    Args:
        groups: B of them.
        known: docids that answer, by query id; see `Groups.known_positives`.

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
    """Strings of N columns as numbers, so that columns are compared at once."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.numbers: dict[str, int] = {}
        codes = [self.numbers.setdefault(string, len(self.numbers)) for string in strings]
        self._codes = np.array(codes, dtype=np.int64)  # [N]

    def among(self, strings: Set[str]) -> NDArray[np.bool_]:
        """[N]: whether the string of each column is one of these, all of them known."""
        return np.isin(self._codes, [self.numbers[string] for string in strings])
