"""The scores of texts and documents that have nothing to do with each other, kept with the exits.

Shapes: Q spans, N documents, W dims of the embedding.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np

from m2dr.core.analyzer import cut_words, word_places
from m2dr.core.arrays import Float32, Floats
from m2dr.core.files import lock_folder, write_record
from m2dr.core.option import PERCENTILES
from m2dr.core.records import EXITS_FILE, IndexExits, UnrelatedScores, default_dims
from m2dr.core.requests import QueryOptions
from m2dr.data.dataset import Dataset
from m2dr.index.store import Store
from m2dr.index.vectors import answerable, prefixes
from m2dr.maps.files import Maps, sampled_rows
from m2dr.model.checkpoint import Model
from m2dr.tasks.corpus import texts_of
from m2dr.tasks.query import encode_layers, plan_layers

SPANS, DOCUMENTS = 500, 2000  # of an index, evenly spread
_WORDS = range(3, 13)  # of a span, in turn, as queries have
_DIGITS = 5


def measure_unrelated(
    model: Model, dataset: Dataset, store: Store, maps: Maps, device: str, dtype: str
) -> IndexExits:
    """Add to the record of an index's exits what short texts score against documents not theirs.

    Spans of sampled documents are encoded as queries of every layer that searches documents of the
    last one; where no model makes queries of that, documents stand for them.

    Args:
        model: of the documents, with the lengths of texts of the store.
        dataset: the documents.
        store: of the last layer.
        maps: of the index.
        device: as `choose_device` takes it.
        dtype: as `choose_dtype` takes it.
    """
    folder, card = maps.folder, model.card
    own, rows = sampled_rows(store.documents, SPANS), sampled_rows(store.documents, DOCUMENTS)
    spans = [span_of(text, n) for n, text in enumerate(texts_of(dataset, own))]
    plans = plan_layers(QueryOptions(), model, maps.index).values()
    meeting = [plan for plan in plans if plan.document_layer == card.layers]
    encoded: Iterator[tuple[int, Floats]] = encode_layers(meeting, spans, (), device, dtype)
    if not card.query_layer:
        encoded = chain(encoded, [(card.layers, store.rows(own))])
    documents, others = store.rows(rows), own[:, None] != rows
    measured = []
    for layer, queries in encoded:
        for dim in default_dims(card.width):
            left, right = (prefixes(each, dim, card.similarity) for each in (queries, documents))
            scores: Float32 = (left @ right.T)[others & answerable(queries, dim)[:, None]]
            if scores.size:
                quantiles = np.percentile(scores, PERCENTILES).round(_DIGITS).tolist()
                measured.append(UnrelatedScores(layer, dim, tuple(quantiles)))
    with lock_folder(folder):
        record = replace(maps.record, unrelated=tuple(sorted(measured, key=_cut)))
        write_record(folder / EXITS_FILE, record)
    return record


def _cut(row: UnrelatedScores) -> tuple[int, int]:
    return row.layer, row.dim


def span_of(text: str, number: int) -> str:
    """Return some words of a text one after the other; how many, and which, goes by its number."""
    words, count = word_places(text), _WORDS[number % len(_WORDS)]
    start = number * 7919 % max(len(words) - count + 1, 1)
    return cut_words(text, words[start:][:count]) or "-"
