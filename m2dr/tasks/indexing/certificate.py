"""What a bridge is worth, measured on short texts of documents that it was not fitted on.

Shapes: Q short texts, N documents, W dims of the stored vectors, V dims of the query model's.
"""

from collections.abc import Sequence

import numpy as np

from m2dr.core.analyzer import cut_words, word_places
from m2dr.core.arrays import Float32, Int64
from m2dr.core.records import BridgeRecord
from m2dr.model.words import WordTable
from m2dr.tasks.encoder import Encoder as QueryModel
from m2dr.tasks.models import names_of

MOST_SPANS = 300  # short texts
OVERLAP_DEPTH = 10  # documents of a ranking that are compared
_WORDS = range(3, 13)  # of a span, in turn, as queries have


def measure_bridge(
    model: QueryModel, words: WordTable, texts: Sequence[str], ours: Float32, theirs: Float32
) -> BridgeRecord:
    """Search short texts over a bridge, by words alone and by the query model's own vectors.

    Args:
        model: of the queries.
        words: with the bridge from it.
        texts: of the Q documents that short texts are taken from, one of each.
        ours: stored vectors of N documents [N, W], of length one where cosine compares them.
        theirs: vectors of the same documents by the query model [N, V].
    """
    spans = [span_of(text, number) for number, text in enumerate(texts, 1)]
    asked = model.encode_queries(spans, show_progress_bar=False)
    over, alone = words.bridged(asked, spans), words.embed(spans)
    best = _best_ten(model.similarity(asked, theirs), asked)
    return BridgeRecord(
        model=names_of([model.name])[0],
        spans=len(spans),
        documents=len(ours),
        overlap=_overlap(_best_ten(over @ ours.T, over), best),
        words_overlap=_overlap(_best_ten(alone @ ours.T, alone), best),
    )


def bridge_told(record: BridgeRecord) -> str:
    """Return a sentence on the quality of a bridge beside words alone."""
    advice = "; words alone find more: search without --query-model"
    return (
        f"Bridge from {record.model}, {record.spans} short texts of held-out documents among "
        f"{record.documents:,}: {record.overlap:.0%} of the ten best by {record.model}'s own "
        f"vectors (words alone {record.words_overlap:.0%})"
        f"{advice * (record.overlap < record.words_overlap)}."
    )


def span_of(text: str, number: int) -> str:
    """Return some words of a text one after the other; how many, and which, goes by its number."""
    words, count = word_places(text), _WORDS[number % len(_WORDS)]
    start = number * 7919 % max(len(words) - count + 1, 1)
    return cut_words(text, words[start:][:count]) or "-"


def _best_ten(scores: Float32, queries: Float32) -> Int64:
    """Return the rows of the best documents, best first, [Q, 10]; -1 where a query is zeros."""
    best: Int64 = np.argsort(-scores, axis=1, kind="stable")[:, :OVERLAP_DEPTH]
    best[~queries.any(axis=1)] = -1
    return best


def _overlap(found: Int64, wanted: Int64) -> float:
    """Return the mean share of the wanted documents that were found."""
    pairs = zip(found.tolist(), wanted.tolist(), strict=True)
    return round(float(np.mean([len({*a} & {*b}) / len(b) for a, b in pairs])), 4)
