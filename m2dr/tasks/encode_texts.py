"""Encode texts at several layers, as training, indexing and searching share it.

Shapes: L layers, N texts, H width, D dims of a cut.
"""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from m2dr.core.progress import say
from m2dr.core.records import Document, Side
from m2dr.data import pydocs
from m2dr.data.dataset import Dataset
from m2dr.data.loaders import open_dataset
from m2dr.data.tokens import Ragged, buckets
from m2dr.model.tokenizer import tokenize

if TYPE_CHECKING:
    from m2dr.model.graphs import BatchEncoder
    from m2dr.model.tokenizer import ModelTokenizer

# On a CPU any budget from 512 to 16,384 gives the same rate, and a small one takes less memory.
TOKENS_PER_BATCH = 2048
TOKENS_PER_BATCH_CUDA = 65536


def document_line(document: Document) -> str:
    """Return the line of a document in a corpus.jsonl; its fields are an object, as in BEIR."""
    table: dict[str, object] = {
        "_id": document.id, "title": document.title, "text": document.text
    }  # fmt: skip
    if document.fields:
        table["metadata"] = dict(document.fields)
    return json.dumps(table, ensure_ascii=False) + "\n"


def open_corpus(name: str) -> Dataset:
    """Open the dataset of a name; see `m2dr.data.loaders.LOADERS`."""
    if not pydocs.is_cached(name):
        say(f"Reading {name} from the docstrings of this Python, once; it takes up to a minute")
    return open_dataset(name)


def tokens_per_batch(device: str) -> int:
    """Return how many tokens, padding included, a batch has at most on a type of device."""
    return TOKENS_PER_BATCH_CUDA if device == "cuda" else TOKENS_PER_BATCH


def embed_tokens(
    encoder: "BatchEncoder",
    rows: Sequence[Sequence[int]] | Ragged,
    pad_id: int,
    layers: Sequence[int],
    advance: Callable[[int], None] = lambda _: None,
    budget: int | None = None,
) -> NDArray[np.float32]:
    """Return the vectors of token rows, [L, N, H], in the order of the rows.

    A batch holds rows of similar length. The longest come first: where memory does not suffice,
    the first batch fails.

    Args:
        encoder: of the layers.
        rows: token ids of N texts.
        pad_id: fills up short rows.
        layers: L of them.
        advance: receives the number of rows of each batch.
        budget: tokens of a batch, padding included; by default as many as suit the device.
    """
    rows = rows if isinstance(rows, Ragged) else Ragged.of(rows)
    budget = budget or tokens_per_batch(encoder.device.type)
    vectors = np.empty((len(layers), len(rows), encoder.card.width), dtype=np.float32)
    batches = buckets(rows.lengths, budget, longest_first=True)
    padded = (rows.pad(chosen, pad_id) for chosen in batches)
    for chosen, found in zip(batches, encoder.embed_many(padded, layers), strict=True):
        vectors[:, chosen] = found
        advance(len(chosen))
    return vectors


def embed_tokens_and_states(
    encoder: "BatchEncoder",
    rows: Ragged,
    pad_id: int,
    layers: Sequence[int],
    chosen: NDArray[np.int64],
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Embed token rows, and keep the states of some of them for a fit of exits, in one pass.

    Args:
        encoder: with all layers.
        rows: of N texts.
        pad_id: fills up short rows.
        layers: L of them, the last one included.
        chosen: numbers of n rows, increasing.
        advance: receives the number of rows of each batch.

    Returns:
        [L, N, H], and [n, (layers - 1) P + H] as `Encoder.states` gives it for the last layer.
    """
    budget = tokens_per_batch(encoder.device.type)
    width, states = encoder.card.width, (encoder.layers - 1) * encoder.pooled_width
    vectors = np.empty((len(layers), len(rows), width), dtype=np.float32)
    kept = np.empty((len(chosen), states + width), dtype=np.float32)
    batches = buckets(rows.lengths, budget, longest_first=True)
    padded = (rows.pad(batch, pad_id) for batch in batches)
    for batch, found in zip(batches, encoder.states_many(padded, layers), strict=True):
        by_layer = found[:, states:].reshape(len(batch), len(layers), width)
        vectors[:, batch] = by_layer.swapaxes(0, 1)
        mine = np.isin(batch, chosen)
        places = np.searchsorted(chosen, batch[mine])
        kept[places, :states] = found[mine, :states]
        kept[places, states:] = by_layer[mine, layers.index(encoder.layers)]
        advance(len(batch))
    return vectors, kept


def embed_texts(
    encoder: "BatchEncoder",
    tokenizer: "ModelTokenizer",
    texts: Sequence[str],
    side: Side,
    layers: Sequence[int],
    advance: Callable[[int], None] = lambda _: None,
) -> NDArray[np.float32]:
    """Return the vectors of texts, [L, N, H], in the order of the texts, not normalised."""
    rows = tokenize(encoder.card, tokenizer, texts, side)
    return embed_tokens(encoder, rows, tokenizer.pad_id, layers, advance)
