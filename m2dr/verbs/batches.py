"""Training groups to the arrays of one step."""

from collections.abc import Mapping, Sequence

from m2dr.model.checkpoint import Tokenizer
from m2dr.records.card import ModelCard
from m2dr.records.texts import Group
from m2dr.text.groups import clashes, documents_of
from m2dr.text.tokens import pad, split_by_length
from m2dr.train.trainer import Batch, Part
from m2dr.verbs.encoding import tokenize

# Texts are encoded in so many groups of like length: the first saves half of the tokens as padding,
# and each costs one more pass over the gradient of the word embeddings.
PARTS = 4


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
    rows = tokenize(card, tokenizer, queries, "query")
    rows += tokenize(card, tokenizer, documents, "document")
    parts = split_by_length([len(row) for row in rows], PARTS)
    texts: list[Part] = [(*pad([rows[i] for i in part], tokenizer.pad_id), part) for part in parts]
    return Batch(texts, len(queries), clashes(groups, known))
