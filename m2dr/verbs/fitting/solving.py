"""Exits for an encoder in memory: from the states of some texts, or of a corpus."""

# Shapes in this file: N texts, S shallow layers, P dims of a pooled state, W dims of the embedding.

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError
from m2dr.model.checkpoint import Tokenizer
from m2dr.model.encoder import Encoder
from m2dr.model.fitted import TokenFeatures, counted_anew, give_exits
from m2dr.model.modules import rotate
from m2dr.records.card import ModelCard
from m2dr.records.cut import Cut
from m2dr.records.fit import FitInputs, FitRecord, Rotation
from m2dr.settings import FitSettings
from m2dr.text.ragged import Ragged
from m2dr.train.fit import RIDGES, RIDGES_OF_SIGNS, Head, Moments, Sample, fit_head
from m2dr.train.rotation import STEPS, fit_rotation
from m2dr.verbs.fitting.reading import (
    as_sample,
    count_tokens,
    read_features,
    read_texts,
    rows_of,
    token_parts,
)
from m2dr.verbs.fitting.sums import WINDOW, Sums
from m2dr.verbs.fitting.texts import FitTexts
from m2dr.verbs.models import usual_dims
from m2dr.verbs.progress import progress

HELD_OUT = 1024  # texts to choose λ by, at most
ONE_OF = 8  # of so many texts one is held out at most
_AT_ONCE = 1024  # texts whose products are summed at a time


def fit_states(
    encoder: Encoder,
    tokenizer: Tokenizer,
    rows: Ragged,
    states: NDArray[np.float32],
    names: Sequence[str],
    identity: int,
    parts: tuple[Ragged, NDArray[np.float32]] | None = None,
) -> FitRecord:
    """Give an encoder exits that are fitted on some documents, in place of any that it has.

    The layers from 1 are fitted on the documents and on snippets of them, with λ by snippets that
    are held out; layer 0 reads no states, and is best fitted on the documents alone where those are
    the ones to be searched. The embedding is not rotated.

    Args:
        encoder: changed in place; with all layers.
        tokenizer: of the same model.
        rows: token ids of N texts.
        states: [N, S P + W], as `Encoder.states` gives them.
        names: of the corpora, for the record.
        identity: random signs per token.
        parts: token ids and states of the snippets.

    Raises:
        UserError: a state or an embedding is not finite.
    """
    features = _features(encoder, tokenizer, rows, identity)
    inputs, ridges = FitSettings.inputs, RIDGES_OF_SIGNS if identity else RIDGES
    try:
        moments, held_out = _sums(encoder, tokenizer, features, rows, states)
        heads, texts = [fit_head(moments, held_out, 0, inputs, ridges)], moments.count
        if parts is not None:
            short, held_out = _sums(encoder, tokenizer, features, *parts)
            short.merge(moments)
            moments = short
    except ValueError as error:
        raise _unfit(names, error) from error
    heads += [
        fit_head(moments, held_out, layer, inputs, ridges) for layer in range(1, encoder.blocks)
    ]
    give_exits(encoder, features, inputs, [(head.weight, head.bias) for head in heads])
    return record_of(heads, names, texts, moments.count - texts, "none", inputs, identity)


def _unfit(names: Sequence[str], error: ValueError) -> UserError:
    return UserError(
        f"Exits cannot be fitted on {', '.join(names)}: {error}. Look at the model's weights and "
        "dtype."
    )


def record_of(
    heads: Sequence[Head],
    names: Sequence[str],
    texts: int,
    snippets: int,
    rotation: Rotation,
    inputs: FitInputs,
    identity: int,
) -> FitRecord:
    """Return what is kept of a fit."""
    return FitRecord(
        corpora=tuple(names),
        texts=texts,
        snippets=snippets,
        rotation=rotation,
        inputs=inputs,
        identity=identity,
        ridges=tuple(head.ridge for head in heads),
        cosines=tuple(head.cosine for head in heads),
    )


def _sums(
    encoder: Encoder,
    tokenizer: Tokenizer,
    features: TokenFeatures,
    rows: Ragged,
    states: NDArray[np.float32],
) -> tuple[Moments, Sample]:
    """Return the moments of some texts, and those that are held out of them."""
    step = max(ONE_OF, len(rows) // HELD_OUT)
    held = np.arange(len(rows)) % step == step - 1

    def sample(chosen: NDArray[np.int64]) -> Sample:
        tokens = token_parts(encoder, features, rows.some(chosen), tokenizer.pad_id)
        return as_sample(states[chosen], tokens, encoder)

    moments, kept = Moments(encoder.blocks - 1), np.flatnonzero(~held)
    with progress("Fitting", len(kept), "texts") as advance:
        for chosen in np.array_split(kept, -(-len(kept) // _AT_ONCE)):
            moments.add(sample(chosen))
            advance(len(chosen))
    return moments, sample(np.flatnonzero(held))


def give_fit(
    encoder: Encoder,
    features: TokenFeatures,
    heads: Sequence[Head],
    embeddings: NDArray[np.float32],
    record: FitRecord,
    seed: int,
) -> FitRecord:
    """Rotate the embedding of an encoder as a record says, and give it these exits.

    Args:
        encoder: changed in place.
        features: of its tokens.
        heads: of layers 0 to L - 1, towards the embedding as it is.
        embeddings: [N, W] to fit the rotation on.
        record: of the fit.
        seed: of a learned rotation.

    Returns:
        The record.
    """
    width = encoder.card.width
    if record.rotation != "none":
        with progress("Rotating", STEPS, "steps") as advance:
            turned = fit_rotation(
                embeddings,
                record.rotation,
                encoder.card.similarity,
                usual_dims(width),
                seed,
                advance,
            )
        heads = [head.rotated(turned) for head in heads]
        encoder.behind = rotate(encoder.behind, encoder.pooled_width, turned)
    give_exits(encoder, features, record.inputs, [(head.weight, head.bias) for head in heads])
    return record


def fit_texts_now(
    encoder: Encoder, tokenizer: Tokenizer, texts: FitTexts, seed: int, rotation: Rotation
) -> FitRecord:
    """Run some thousand texts through an encoder in memory, and give it exits fitted on them.

    Raises:
        UserError: a state or an embedding is not finite.
    """
    encoder.fitted = None
    read = texts.read(0, len(texts))
    length = FitSettings.length
    rows = Ragged.of(rows_of(encoder.card, tokenizer, read, length))
    features = _features(encoder, tokenizer, rows, 0)
    sums, inputs = Sums(Moments(encoder.blocks - 1)), FitSettings.inputs
    with progress("Reading", len(texts), "texts") as advance:
        for window, first in enumerate(range(0, len(texts), WINDOW)):
            draw, part = np.random.default_rng([seed, window]), read[first : first + WINDOW]
            found = read_texts(encoder, tokenizer, features, part, length, draw, advance)
            try:
                sums.add(window, *found)
            except ValueError as error:
                raise _unfit(texts.names, error) from error
    heads = heads_of(sums, inputs)
    record = record_of(heads, texts.names, sums.texts, sums.snippets, rotation, inputs, 0)
    return give_fit(encoder, features, heads, sums.embeddings(), record, seed)


def heads_of(sums: Sums, inputs: FitInputs, ridge: float = 0.0) -> list[Head]:
    """Return the exits of layers 0 to L - 1, towards the embedding as it is.

    Args:
        sums: of all texts.
        inputs: what an exit reads.
        ridge: λ; 0: the best of several on the texts that are held out.
    """
    held_out, layers = sums.sample(), range(sums.moments.layers + 1)
    ridges = (ridge,) if ridge else RIDGES
    return [fit_head(sums.moments, held_out, layer, inputs, ridges) for layer in layers]


def fitted_cuts(card: ModelCard) -> tuple[Cut, ...]:
    """Return the cuts that a fit makes retrieve: every layer from 0 at every usual dim."""
    dims = usual_dims(card.width)
    return tuple(Cut(layer, dim) for layer in range(card.layers + 1) for dim in dims)


def _features(encoder: Encoder, tokenizer: Tokenizer, rows: Ragged, identity: int) -> TokenFeatures:
    """Features whose tokens alone need not be embedded where the model was fitted before."""
    counts = count_tokens(rows, len(encoder.words))
    if encoder.fitted is not None:
        return counted_anew(encoder.fitted.tokens, counts, identity)
    ids = len(tokenizer.ordinary_ids())
    with progress("Reading the vocabulary", ids, "tokens") as advance:
        return read_features(encoder, tokenizer, counts, identity, advance)
