"""Training groups to the arrays of one step."""

from collections.abc import Mapping, Sequence

from m2dr.model.checkpoint import Tokenizer
from m2dr.records.card import ModelCard
from m2dr.records.texts import Group
from m2dr.text.groups import clashes, documents_of
from m2dr.text.tokens import pad, split_by_length
from m2dr.train.trainer import Batch, Part
from m2dr.verbs.encoding import Side, tokenize

PARTS = 4  # groups of like length that a side is encoded in: less padding, the same vectors


def make_batch(
    card: ModelCard,
    tokenizer: Tokenizer,
    groups: Sequence[Group],
    known: Mapping[str, frozenset[str]],
) -> Batch:
    """Tokens of the queries and documents of `groups`, and which pairs are no negatives.

    Args:
        card: prefixes and lengths.
        tokenizer: of the backbone.
        groups: the B groups of a step.
        known: query id to the docids judged relevant to it.
    """
    queries = [group.query.text for group in groups]
    documents = [document.content for document in documents_of(groups)]
    return Batch(
        _parts(card, tokenizer, queries, "query"),
        _parts(card, tokenizer, documents, "document"),
        clashes(groups, known),
    )


def _parts(card: ModelCard, tokenizer: Tokenizer, texts: Sequence[str], side: Side) -> list[Part]:
    rows = tokenize(card, tokenizer, texts, side)
    chosen = split_by_length([len(row) for row in rows], PARTS)
    return [(*pad([rows[i] for i in part], tokenizer.pad_id), part) for part in chosen]
