"""Sums of a fit over texts, and the exits solved from them."""

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.core.files import read_json, write_bytes, write_text
from m2dr.core.progress import progress
from m2dr.core.records import FitInputs, FitRecord, Rotation
from m2dr.core.trainings import FitSettings
from m2dr.data.tokens import Ragged
from m2dr.model.encoder import Encoder
from m2dr.model.exits import give_exits
from m2dr.model.modules import rotate
from m2dr.model.token_features import TokenFeatures, WordFeatures, with_counts
from m2dr.model.tokenizer import ModelTokenizer
from m2dr.tasks.encoder import default_dims
from m2dr.tasks.fit_texts import (
    FitTexts,
    as_sample,
    count_tokens,
    read_features,
    read_texts,
    rows_of,
    token_parts,
)
from m2dr.tasks.fit_words import word_features
from m2dr.train.linear_fit import (
    RIDGES,
    RIDGES_OF_SIGNS,
    STEPS,
    FittedHead,
    Moments,
    Sample,
    fit_head,
    fit_rotation,
)

# Shapes in this file:
#   S shallow layers, N texts, P dims of a pooled state, F features of the tokens, W dims of the
#   embedding.

WINDOW = 1024  # texts that are read and added to the sums at a time
HELD_OUT = 1024  # texts to choose λ by, at most; never part of the moments
ONE_OF = 8  # of so many texts one is held out, until there are enough
VECTORS = 8192  # embeddings that the rotation is fitted on, at most
_AT_ONCE = 1024  # texts whose products are summed at a time
ONE_SNIPPET_OF = 4  # of so many documents of the fit a few words are read as a query
SNIPPETS = 4096  # at most
SHARE = 0.3  # of a document, that a snippet counts at layer 0

Arrays = dict[str, NDArray[Any]]


@dataclass
class Sums:
    """Moments over windows of texts, of one or several processes.

    Attributes:
        moments: of all texts and snippets but those held out.
        snippets: how many of what the moments are of are parts of other texts.
        windows: numbers of the windows that are in.
        held_out: by window, texts that are held out.
        vectors: by window, embeddings [N, W].
    """

    moments: Moments
    snippets: int = 0
    windows: list[int] = field(default_factory=list)
    held_out: dict[int, Sample] = field(default_factory=dict)
    vectors: dict[int, NDArray[np.float32]] = field(default_factory=dict)

    def add(self, window: int, sample: Sample, of: NDArray[np.int64]) -> None:
        """Add a window of texts, in their order, and snippets of them, held out as their texts are.

        Args:
            window: its number.
            sample: the texts, then the snippets.
            of: the place of the text that each snippet is of.

        Raises:
            ValueError: a value is not finite.
        """
        first, texts = window * WINDOW, len(sample) - len(of)
        places = np.arange(first, first + texts)
        held = (places % ONE_OF == ONE_OF - 1) & (places < HELD_OUT * ONE_OF)
        held = np.concatenate([held, held[of]])
        self.moments.add(_rows(sample, ~held))
        self.snippets += int((~held[texts:]).sum())
        if held.any():
            self.held_out[window] = _rows(sample, held)
        if first < VECTORS:
            self.vectors[window] = sample.targets[: min(VECTORS - first, texts)]
        self.windows.append(window)

    def merge(self, other: "Sums") -> None:
        """Add the sums of another process."""
        self.moments.merge(other.moments)
        self.snippets += other.snippets
        self.windows += other.windows
        self.held_out |= other.held_out
        self.vectors |= other.vectors

    @property
    def texts(self) -> int:
        """Number of texts in the moments."""
        return self.moments.count - self.snippets

    def sample(self) -> Sample:
        """Return the texts that are held out, in the order of their windows; there may be none."""
        kept = [self.held_out[window] for window in sorted(self.held_out)]
        if not kept:
            width, features = self.moments.targets(0).shape[1], len(self.moments.targets(0)) - 1
            empty = np.empty((self.moments.layers, 0, 0), np.float32)
            return Sample(
                empty, np.empty((0, features), np.float32), np.empty((0, width), np.float32)
            )
        return sum(kept[1:], kept[0])

    def embeddings(self) -> NDArray[np.float32]:
        """Return the embeddings that are kept, in the order of their windows, [N, W]."""
        return np.concatenate([self.vectors[window] for window in sorted(self.vectors)])

    def write(self, path: Path) -> None:
        """Write everything to a file, whole or not at all."""
        arrays: Arrays = {f"moments/{name}": found for name, found in self.moments.arrays().items()}
        arrays["windows"] = np.array(self.windows, np.int64)
        arrays["snippets"] = np.array(self.snippets, np.int64)
        for window, sample in self.held_out.items():
            for name in ("states", "tokens", "targets"):
                arrays[f"{name}/{window}"] = getattr(sample, name)
        arrays |= {f"vectors/{window}": found for window, found in self.vectors.items()}
        data = io.BytesIO()
        np.savez(data, allow_pickle=False, **arrays)
        write_bytes(path, data.getbuffer())

    @classmethod
    def read(cls, path: Path, layers: int, wide: bool) -> "Sums":
        """Read what `write` wrote.

        Args:
            path: the file.
            layers: as of the moments.
            wide: the same.

        Raises:
            UserError: the file is damaged.
        """
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
                arrays = dict(file)
            return cls._of(arrays, layers, wide)
        except (ValueError, KeyError, EOFError, BadZipFile) as error:
            raise UserError(f"{path} cannot be read: {error}.") from error

    @classmethod
    def _of(cls, arrays: Arrays, layers: int, wide: bool) -> "Sums":
        def under(name: str) -> Iterable[tuple[str, NDArray[Any]]]:
            prefix = f"{name}/"
            return ((k.removeprefix(prefix), v) for k, v in arrays.items() if k.startswith(prefix))

        held = {
            int(window): Sample(states, arrays[f"tokens/{window}"], arrays[f"targets/{window}"])
            for window, states in under("states")
        }
        vectors = {int(window): found for window, found in under("vectors")}
        windows = [int(window) for window in arrays["windows"]]
        moments = Moments.of(dict(under("moments")), layers, wide)
        return cls(moments, int(arrays["snippets"]), windows, held, vectors)


@dataclass(frozen=True)
class Rounds:
    """The inputs of a fit, and the decision after each of its rounds.

    Attributes:
        of: by name, what must stay the same until the end, such as a digest of the texts.
        judged: after how many rounds it was decided whether more texts are needed.
        cosine: held out, after the last of them; None before.
        enough: whether no more are needed.
    """

    of: dict[str, str]
    judged: int = 0
    cosine: float | None = None
    enough: bool = False

    def text(self) -> str:
        """Return the rounds as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> "Rounds":
        """Parse what `text` returned in another process, which is trusted."""
        return cls(**json.loads(text))

    def write(self, path: Path) -> None:
        """Write the rounds to a file, whole or not at all."""
        write_text(path, self.text() + "\n")

    @classmethod
    def read(cls, path: Path) -> "Rounds":
        """Read what `write` wrote.

        Args:
            path: the file.

        Raises:
            UserError: the file is damaged.
        """
        found: Rounds = read_json(path, Rounds)
        return found


def _rows(sample: Sample, chosen: NDArray[np.bool_]) -> Sample:
    return Sample(sample.states[:, chosen], sample.tokens[chosen], sample.targets[chosen])


@dataclass(frozen=True)
class Snippets:
    """The first words of some documents, run through the encoder as queries.

    Attributes:
        rows: token ids of n snippets.
        states: [n, S P + W].
        places: [n], of their documents among those of the fit.
        held: [n] bool, those of documents that are held out.
    """

    rows: Ragged
    states: NDArray[np.float32]
    places: NDArray[np.int64]
    held: NDArray[np.bool_]


def held_out(count: int) -> NDArray[np.bool_]:
    """Return which of `count` texts λ is chosen by, evenly spread: [count].

    >>> held_out(16).nonzero()[0].tolist()
    [7, 15]
    """
    step = max(ONE_OF, -(-count // HELD_OUT))
    held: NDArray[np.bool_] = np.arange(count) % step == step - 1
    return held


def snippet_places(held: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the documents that snippets are read of, increasing and evenly spread.

    One snippet of `ONE_OF` is of a document that is held out, and is held out with it.

    Args:
        held: [N], as `held_out` gives it.
    """
    count = min(len(held) // ONE_SNIPPET_OF, SNIPPETS)
    found = []
    for part, share in ((held, count // ONE_OF), (~held, count - count // ONE_OF)):
        places = np.flatnonzero(part)
        found.append(places[np.arange(share) * len(places) // max(share, 1)])
    return np.sort(np.concatenate(found))


def fit_states(
    encoder: Encoder,
    tokenizer: ModelTokenizer,
    rows: Ragged,
    states: NDArray[np.float32],
    names: Sequence[str],
    identity: int,
    parts: Snippets | None = None,
    whole_words: bool = False,
) -> FitRecord:
    """Replace the exits of an encoder by exits fitted on some documents.

    All are fitted on the documents and on snippets of them. The layers from 1 have the λ that is
    best on snippets that are held out. Layer 0 reads no states, which are what distinguishes a
    short text most: a snippet counts SHARE of a document there, and λ is chosen by documents. The
    embedding is not rotated. Measured: docs/decisions/0014-what-a-fit-reads.md.

    Args:
        encoder: changed in place; with all layers.
        tokenizer: of the same model.
        rows: token ids of N texts.
        states: [N, S P + W], as `Encoder.states` gives them.
        names: of the corpora, for the record.
        identity: random signs per token.
        parts: the snippets; some of them are held out, and others are not.
        whole_words: whether layer 0 knows whole words of the documents.

    Raises:
        UserError: a state or an embedding is not finite.
    """
    features = _features(encoder, tokenizer, rows, identity, again=whole_words)
    inputs, ridges = FitSettings.inputs, RIDGES_OF_SIGNS if identity else RIDGES
    try:
        held = held_out(len(rows))
        shallow = encoder.layers - 1
        moments, judges = _sums(encoder, tokenizer, features, rows, states, held, shallow)
        texts, of_table, of_held = moments.count, moments.of_tokens(), judges
        whole = word_features(encoder, tokenizer, features, rows) if whole_words else None
        if whole is not None:
            read_words, longer, with_words = whole
            of_table, of_held = _sums(encoder, tokenizer, read_words, longer, states, held, 0)
        if parts is not None:
            read = (parts.states, parts.held)
            short, judges = _sums(encoder, tokenizer, features, parts.rows, *read, shallow)
            of_parts = short.of_tokens()
            if whole is not None:
                words = with_words(parts.rows)
                of_parts, _ = _sums(encoder, tokenizer, read_words, words, *read, 0)
            of_table.merge(of_parts, SHARE)
            short.merge(moments)
            moments = short
        heads, above = [fit_head(of_table, of_held, 0, inputs, ridges)], range(1, encoder.layers)
        heads += [fit_head(moments, judges, layer, inputs, ridges) for layer in above]
    except ValueError as error:
        raise _unfit(names, error) from error
    weights = [(head.weight, head.bias) for head in heads]
    give_exits(encoder, features, inputs, weights, None if whole is None else whole[0])
    return record_of(heads, names, texts, moments.count - texts, "none", inputs, identity)


def _unfit(names: Sequence[str], error: ValueError) -> UserError:
    return UserError(
        f"Exits cannot be fitted on {', '.join(names)}: {error}. Look at the model's weights and "
        "dtype."
    )


def record_of(
    heads: Sequence[FittedHead],
    names: Sequence[str],
    texts: int,
    snippets: int,
    rotation: Rotation,
    inputs: FitInputs,
    identity: int,
) -> FitRecord:
    """Return the record of a fit."""
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
    tokenizer: ModelTokenizer,
    features: TokenFeatures | WordFeatures,
    rows: Ragged,
    states: NDArray[np.float32],
    held: NDArray[np.bool_],
    layers: int,
) -> tuple[Moments, Sample]:
    """Return the moments of some texts at `layers` shallow layers, and the sample held out."""

    def sample(chosen: NDArray[np.int64]) -> Sample:
        tokens = token_parts(encoder, features, rows.some(chosen), tokenizer.pad_id)
        found = as_sample(states[chosen], tokens, encoder)
        return replace(found, states=found.states[:layers])

    moments, kept = Moments(layers), np.flatnonzero(~held)
    with progress("Fitting", len(kept), "texts") as advance:
        for chosen in np.array_split(kept, -(-len(kept) // _AT_ONCE)):
            moments.add(sample(chosen))
            advance(len(chosen))
    return moments, sample(np.flatnonzero(held))


def give_fit(
    encoder: Encoder,
    features: TokenFeatures,
    heads: Sequence[FittedHead],
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
                default_dims(width),
                seed,
                advance,
            )
        heads = [head.rotated(turned) for head in heads]
        encoder.behind = rotate(encoder.behind, encoder.pooled_width, turned)
    give_exits(encoder, features, record.inputs, [(head.weight, head.bias) for head in heads])
    return record


def fit_texts_now(
    encoder: Encoder,
    tokenizer: ModelTokenizer,
    texts: FitTexts,
    seed: int,
    rotation: Rotation,
    features: TokenFeatures | None = None,
) -> FitRecord:
    """Run texts through an encoder in memory, and give it exits fitted on them.

    Args:
        encoder: changed in place.
        tokenizer: of the same model.
        texts: to fit on.
        seed: of snippets and a learned rotation.
        rotation: of the embedding.
        features: of tokens; read and counted on these texts by default.

    Raises:
        UserError: a state or an embedding is not finite.
    """
    encoder.fitted = None
    read = texts.read(0, len(texts))
    length = FitSettings.length
    if features is None:
        rows = Ragged.of(rows_of(encoder.card, tokenizer, read, length))
        features = _features(encoder, tokenizer, rows, 0)
    sums, inputs = Sums(Moments(encoder.layers - 1)), FitSettings.inputs
    with progress("Reading", len(texts), "texts") as advance:
        for window, first in enumerate(range(0, len(texts), WINDOW)):
            draw, part = np.random.default_rng([seed, window]), read[first : first + WINDOW]
            found = read_texts(encoder, tokenizer, features, part, length, draw, advance)
            try:
                sums.add(window, *found)
            except ValueError as error:
                raise _unfit(texts.names, error) from error
    try:
        heads = heads_of(sums, inputs)
    except ValueError as error:
        raise _unfit(texts.names, error) from error
    record = record_of(heads, texts.names, sums.texts, sums.snippets, rotation, inputs, 0)
    return give_fit(encoder, features, heads, sums.embeddings(), record, seed)


def heads_of(sums: Sums, inputs: FitInputs, ridge: float = 0.0) -> list[FittedHead]:
    """Return the exits of layers 0 to L - 1 towards the embedding.

    Args:
        sums: of all texts.
        inputs: what an exit reads.
        ridge: λ; 0: the best of several on the texts that are held out.
    """
    held_out, layers = sums.sample(), range(sums.moments.layers + 1)
    ridges = (ridge,) if ridge else RIDGES
    return [fit_head(sums.moments, held_out, layer, inputs, ridges) for layer in layers]


def _features(
    encoder: Encoder,
    tokenizer: ModelTokenizer,
    rows: Ragged,
    identity: int,
    again: bool = False,
) -> TokenFeatures:
    """Return token features, reusing those of a model that was fitted before.

    A fit embeds tokens before it rotates the embedding. Words of a corpus, which are embedded after
    it, go with tokens that are embedded `again`.
    """
    counts = count_tokens(rows, len(encoder.words))
    if encoder.fitted is not None and not again:
        return with_counts(encoder.fitted.tokens, counts, identity)
    ids = len(tokenizer.ordinary_ids())
    with progress("Reading the vocabulary", ids, "tokens") as advance:
        return read_features(encoder, tokenizer, counts, identity, advance)
