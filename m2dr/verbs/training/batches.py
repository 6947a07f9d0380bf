"""Training examples to the arrays of one step."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import numpy as np

from m2dr.model.checkpoint import Tokenizer
from m2dr.records.card import ModelCard
from m2dr.records.texts import Document, Group, Pair, Query
from m2dr.text.groups import clashes, documents_of
from m2dr.text.tokens import buckets, pad, split_by_length
from m2dr.train.base import ALIKE
from m2dr.train.gather import everyones
from m2dr.train.learner import Batch, Part
from m2dr.verbs.encoding import tokenize

# Texts are encoded in so many groups of like length: the first saves half of the tokens as padding,
# and each costs one more pass over the gradient of the word embeddings.
PARTS = 4


def make_batch(
    card: ModelCard,
    tokenizer: Tokenizer,
    groups: Sequence[Group],
    known: Mapping[str, frozenset[str]],
    tokens_at_once: int = 0,
) -> Batch:
    """Tokens of the queries and documents of `groups`, and what is known of their pairs.

    Args:
        card: prefixes and lengths.
        tokenizer: of the backbone.
        groups: the B groups of this process.
        known: query id to the docids judged relevant to it.
        tokens_at_once: of a part, with padding; 0: four parts, whatever their size.
    """
    rows = tokenize(card, tokenizer, [group.query.text for group in groups], "query")
    documents = [document.content for document in documents_of(groups)]
    rows += tokenize(card, tokenizer, documents, "document")
    texts = _parts(rows, tokenizer.pad_id, tokens_at_once)
    everyone = [group for share in everyones([_brief(g) for g in groups]) for group in share]
    scores = [group.scores for group in everyone]
    teacher = np.array(scores, dtype=np.float32) if scores[0] else None
    return Batch(texts, len(groups), clashes(everyone, known), teacher=teacher)


def make_pair_batch(
    card: ModelCard, tokenizer: Tokenizer, pairs: Sequence[Pair], tokens_at_once: int = 0
) -> Batch:
    """Tokens of both sentences of `pairs`, their scores, and which of them are no negatives.

    A sentence that is alike to the first of a pair, or reads like it, is no negative of it.
    Args as `make_batch`; both sentences are encoded as documents are.
    """
    rows = tokenize(card, tokenizer, [pair.first for pair in pairs], "document")
    rows += tokenize(card, tokenizer, [pair.second for pair in pairs], "document")
    texts = _parts(rows, tokenizer.pad_id, tokens_at_once)
    brief = [Pair(_digest(p.first), _digest(p.second), p.score) for p in pairs]
    everyone = [pair for share in everyones(brief) for pair in share]
    alike: dict[str, set[str]] = defaultdict(set)  # sentence → those alike to it, itself one
    for pair in everyone:
        if pair.score >= ALIKE:
            alike[pair.first] |= {pair.first, pair.second}
            alike[pair.second] |= {pair.first, pair.second}
    groups = []
    for place, pair in enumerate(everyone):
        # A pair that is not alike says nothing of what answers its first sentence.
        name = pair.first if pair.score >= ALIKE else f"{pair.first} {place}"
        groups.append(Group(Query(name, name), Document(pair.second, pair.second)))
    known = {name: frozenset(others) for name, others in alike.items()}
    labels = np.array([pair.score for pair in everyone], dtype=np.float32)
    return Batch(texts, len(pairs), clashes(groups, known), labels)


def _parts(rows: Sequence[list[int]], pad_id: int, tokens_at_once: int) -> list[Part]:
    lengths = [len(row) for row in rows]
    if tokens_at_once:
        parts = buckets(lengths, tokens_at_once, longest_first=True)
    else:
        parts = split_by_length(lengths, PARTS)
    return [(*pad([rows[i] for i in part], pad_id), part) for part in parts]


def _brief(group: Group) -> Group:
    """The same ids, and digests for texts: enough to tell which are equal, and cheap to send."""
    return Group(
        Query(group.query.id, _digest(group.query.text)),
        Document(group.positive.id, _digest(group.positive.content)),
        tuple(Document(document.id, _digest(document.content)) for document in group.negatives),
        group.scores,
    )


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=12).hexdigest()
