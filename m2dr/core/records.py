"""Plain records: cuts, texts, rankings and runs, model cards and exported cuts."""

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import isnan
from typing import Any, Literal, cast, get_args

import msgspec

from m2dr.core.errors import UserError, nearest
from m2dr.core.variants import DocumentLayer, ExitHead

F32 = "f32"  # the code of vectors as a flat index has them


class Cut(msgspec.Struct, frozen=True, order=True, omit_defaults=True, repr_omit_defaults=True):
    """The first `layer` transformer layers and the first `dim` dims of the embedding.

    `layer` counts transformer layers: 12 is all of BERT-base. Layer 0 runs none of them; it is the
    words alone, of a fitted model. The two numbers mean the same in every option, manifest
    and file name. In grids and costs a cut also has the code of the documents, as `m2dr evaluate
    retrieval --codes` names it.

    >>> str(Cut(layer=4, dim=128)), str(Cut(layer=0, dim=64, code="int8"))
    ('L4D128', 'L0D64-int8')
    """

    layer: int
    dim: int
    code: str = F32

    def __post_init__(self) -> None:
        if self.layer < 0 or self.dim < 1:
            raise UserError(f"A cut has a layer from 0 and a dim from 1, not {self}.")

    def __str__(self) -> str:
        return f"L{self.layer}D{self.dim}" + f"-{self.code}" * (self.code != F32)

    @classmethod
    def parse(cls, word: str) -> "Cut":
        """Return the cut that a word such as L4D128 names.

        >>> Cut.parse("L4D128"), Cut.parse("L0D64")
        (Cut(layer=4, dim=128), Cut(layer=0, dim=64))
        """
        found = re.fullmatch(r"L(\d+)D(\d+)", word)
        if not found:
            raise UserError(f"{word!r} is no cut; layer 4 and dim 128 are written L4D128.")
        return cls(int(found[1]), int(found[2]))

    @classmethod
    def parse_coded(cls, word: str) -> "Cut":
        """Return the cut that a word such as L4D128 or L4D128-int8 names."""
        name, _, code = word.partition("-")
        cut = cls.parse(name)
        return cls(cut.layer, cut.dim, code or F32)


def is_ready(cut: Cut, cuts: Iterable[Cut]) -> bool:
    """Return whether a dim lies between the smallest and largest trained dim of its layer.

    >>> is_ready(Cut(4, 100), [Cut(4, 64), Cut(4, 128)]), is_ready(Cut(4, 32), [Cut(4, 64)])
    (True, False)
    """
    dims = [ready.dim for ready in cuts if ready.layer == cut.layer]
    return bool(dims) and min(dims) <= cut.dim <= max(dims)


def default_dims(width: int) -> tuple[int, ...]:
    """Return the powers of two from 8 to below the full width, and the full width.

    >>> default_dims(384)
    (8, 16, 32, 64, 128, 256, 384)
    """
    powers = [2**n for n in range(3, width.bit_length()) if 2**n < width]
    return (*powers, width)


Side = Literal["query", "document"]  # decides the prefix and the length of a text
Value = str | int | float | bool | list[Any]  # of a field, of the type that its file gives it
Fields = tuple[tuple[str, Value], ...]  # names and values; each name once


def as_utf8(text: str) -> str:
    """Return a text with U+FFFD for each half of a surrogate pair, which UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@dataclass(frozen=True, slots=True)
class Query:
    """A query with its id."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Document:
    """A text that can be retrieved.

    >>> Document("d1", "Returns a list.", title="os.listdir").content
    'os.listdir Returns a list.'
    """

    id: str
    text: str
    title: str = ""
    fields: Fields = field(default=(), compare=False)  # its own, by which a search may filter

    @property
    def content(self) -> str:
        """The text to encode: title and text joined by a space, as in BEIR."""
        return f"{self.title} {self.text}".strip()


@dataclass(frozen=True, slots=True)
class Judgement:
    """The relevance of a document to a query; above 0 is relevant."""

    query_id: str
    document_id: str
    relevance: float  # a whole number, or the gain of nDCG


@dataclass(frozen=True, slots=True)
class Group:
    """One training example: a query, a document that answers it, and documents that do not."""

    query: Query
    positive: Document
    negatives: tuple[Document, ...] = ()
    scores: tuple[float, ...] = ()  # of a teacher, for the positive and the negatives; may be empty


@dataclass(frozen=True, slots=True)
class SentencePair:
    """Two sentences and their similarity, from 0 (unrelated) to 1 (same meaning)."""

    first: str
    second: str
    score: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """The documents of one query from best to worst, with their scores (float32 values)."""

    docids: tuple[str, ...]
    scores: tuple[float, ...]
    # Of a hybrid, by the vectors, None beyond the end of their ranking, and by BM25.
    parts: tuple[tuple[float | None, float], ...] = ()
    # Of a hybrid: the factors of both, and what is added where there is a score by vectors.
    scale: tuple[float, float, float] = (1.0, 0.0, 0.0)

    @classmethod
    def of(
        cls,
        docids: Sequence[str],
        scores: Iterable[float],
        k: int | None = None,
        drop: str | None = None,
    ) -> "Ranking":
        """Rank by score descending, then docid descending, as trec_eval reads a run.

        Scores are compared as float32: two that differ by less are a tie in every engine.

        Args:
            docids: in any order, without repeats.
            scores: one per docid.
            k: number of documents to keep; all when None.
            drop: a docid to leave out, such as the query's own document.

        Raises:
            UserError: a docid is repeated, or a score is not a number.

        >>> Ranking.of(["a", "c", "b"], [1.0, 1.0, 2.0]).docids
        ('b', 'c', 'a')
        """
        if len(set(docids)) != len(docids):
            repeated = next(docid for docid in docids if docids.count(docid) > 1)
            raise UserError(f"Document {repeated!r} comes twice in one ranking.")
        single = array("f", scores)
        if any(map(isnan, single)):
            raise UserError("A score is not a number, so documents cannot be ranked by it.")
        pairs = sorted(zip(single, docids, strict=True), reverse=True)
        kept = [pair for pair in pairs if pair[1] != drop][:k]
        return cls(tuple(docid for _, docid in kept), tuple(score for score, _ in kept))

    def down_to(self, score: float) -> "Ranking":
        """Return the documents that have at least this score, compared as float32."""
        (least,) = array("f", [score])
        n = sum(each >= least for each in self.scores)
        return replace(self, docids=self.docids[:n], scores=self.scores[:n], parts=self.parts[:n])


@dataclass(frozen=True)
class Run:
    """The ranking of each query, by id; empty for a query that found nothing."""

    rankings: Mapping[str, Ranking]

    def __len__(self) -> int:
        return len(self.rankings)


Rotation = Literal["pca", "learned", "none"]


@dataclass(frozen=True)
class FitRecord:
    """What exits were fitted on, and how close they come to the embeddings of the full model."""

    corpora: tuple[str, ...]
    texts: int
    spans: int  # a few words of each of some texts that were also read, as queries
    rotation: Rotation
    words: int  # of layer 0
    language: str  # of their stems
    ridges: tuple[float, ...]  # λ of layers 1 to L - 1
    cosines: tuple[float | None, ...]  # of the same layers, on held-out texts; None without these
    span_weight: float = 0.0  # of all spans together in layer 0, where the texts together have 1
    queries: int = 0  # of a log
    query_weight: float = 0.0  # of these together in layer 0
    log: str = ""  # digest of these queries


Dtype = Literal["f16", "f32", "int8"]  # of the vectors of a store


@dataclass(frozen=True)
class Asked:
    """What an index was asked to be; later commands go by it unless they are told otherwise."""

    language: str = ""  # of words and BM25; by default that of the texts
    queries: tuple[str, ...] = ()  # distinct ones of a log
    query_weight: float | None = None  # of all of these in the words; None is the default
    store: Dtype | None = None  # number format of vectors; by default as the model's card says
    exits: bool = True  # whether exits are fitted once there are documents enough
    query_length: int | None = None  # tokens; by default as the model
    document_length: int | None = None
    columns: tuple[tuple[str, str], ...] = ()  # of the corpus: m2dr's name, and that of the column
    passages: tuple[int, int] | None = None  # words of each, and of its overlap with the one before


# How the token states of a text become one vector. The last three are named as in
# sentence-transformers: maximum, sum divided by √length, mean weighted by position from 1.
Pooling = Literal["cls", "mean", "last", "max", "mean_sqrt_len_tokens", "weightedmean"]
Similarity = Literal["dot", "cosine"]
Attention = Literal["causal", "bidirectional"]

PRETRAINED = "smae"  # the variant of a backbone that `m2dr pretrain` made
WHOLE = 2**20  # tokens of a text that is never cut
GIVEN = "given"  # the variant of vectors that somebody else made, of which there is no model
CARD_FILE = "card.json"  # of such vectors, beside their stores
DIGITS = 12  # of the fingerprint, in folder names and in messages


def pooling_modes(pooling: str) -> tuple[Pooling, ...]:
    """Return the parts of a pooling.

    >>> pooling_modes("cls+mean")
    ('cls', 'mean')

    Raises:
        UserError: a part is no pooling.
    """
    known = get_args(Pooling)
    for mode in str(pooling).split("+"):
        if mode not in known:
            raise UserError(f"{mode!r} is no pooling. {nearest(mode, known)}")
    return cast(tuple[Pooling, ...], tuple(pooling.split("+")))


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How texts become vectors: queries can search documents where two of these are equal."""

    fingerprint: str = ""  # sha256 of all files that affect vectors: docs/decisions/0011
    pooling: str  # a Pooling, or several joined by "+", whose vectors are concatenated
    similarity: Similarity  # cosine: a prefix is normalised after it is cut
    query_prefix: str = ""
    document_prefix: str = ""
    query_length: int = 64  # tokens, special ones included
    document_length: int = 256
    documents: DocumentLayer  # the layer that encodes documents for a shallow query

    @property
    def encoding(self) -> "Encoding":
        """These fields alone, of a card or a label."""
        return Encoding(**{each.name: getattr(self, each.name) for each in fields(Encoding)})

    def digest(self, dtype: str = "") -> str:
        """Return the sha256 of what the vectors of a text depend on, in hex.

        Args:
            dtype: number format of the encoder, where it counts too.
        """
        from m2dr.core.files import json_sha256  # hashlib and more, which --help does without

        table = asdict(self.encoding)
        del table["documents"]  # no vector depends on it
        return json_sha256([table, dtype])

    def differences(self, other: "Encoding") -> dict[str, tuple[Any, Any]]:
        """Return the fields that make vectors incomparable, with both values."""
        mine, theirs = asdict(self.encoding), asdict(other.encoding)
        pairs = {name: (mine[name], theirs[name]) for name in sorted(mine)}
        return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


@dataclass(frozen=True, kw_only=True)
class Label(Encoding):
    """What stores and indexes record of their vectors."""

    cuts: tuple[Cut, ...] = ()  # that were trained
    model: str = ""  # where the model was found: a hint for people, never compared
    source: str = ""  # the corpus as it was given to m2dr, the same kind of hint

    def accept(self, queries: "Label", corpus: str) -> None:
        """Refuse queries that were not encoded as the documents of `corpus` were.

        Raises:
            UserError: another model, or the same one with other prefixes, pooling, lengths or
                similarity.
        """
        if queries.fingerprint != self.fingerprint:
            names = f"{self._name()}, and the queries by {queries._name()}"
            raise UserError(f"The documents of {corpus} were encoded by model {names}.")
        if different := self.differences(queries):
            words = ", ".join(f"{name} {a!r} against {b!r}" for name, (a, b) in different.items())
            raise UserError(f"The documents of {corpus} and the queries differ in {words}.")

    def warnings(self, query: Cut, documents: Cut) -> list[str]:
        """Return sentences that say why rankings may be worse than the model allows.

        Args:
            query: the cut of the queries.
            documents: the cut of the documents.
        """
        sentences = [
            f"Cut {cut} was not trained: expect worse or near random rankings."
            for cut in dict.fromkeys((query, documents))
            if not is_ready(cut, self.cuts)
        ]
        if query.layer != documents.layer and self.documents == "same":
            sentences.append(
                f"Queries of layer {query.layer} search documents of layer {documents.layer}, but "
                f"this model trained each layer against documents of its own: the two spaces are "
                f"not aligned, so expect much worse or near random rankings. Index layer "
                f"{query.layer}."
            )
        last = max((cut.layer for cut in self.cuts), default=documents.layer)
        if self.documents == "last" and documents.layer != last:
            sentences.append(
                f"Documents come from layer {documents.layer}, but this model trained queries "
                f"against documents of layer {last}: expect much worse rankings. Index that "
                "layer."
            )
        return sentences

    def _name(self) -> str:
        short = self.fingerprint[:DIGITS]
        return f"{short} ({self.model})" if self.model else short


@dataclass(frozen=True)
class ModelCard(Encoding):
    """How a model encodes queries and documents, and how it was trained."""

    backbone: str  # id or folder that training began from
    variant: str  # "untrained" for a backbone without training
    layers: int  # of the full encoder
    width: int  # dims of the full embedding
    cuts: tuple[Cut, ...]  # the trained ones
    temperature: float  # the divisor of the scores in training
    # The head of an intermediate layer, applied before the vector is cut.
    exit_head: ExitHead = "none"
    attention: Attention | None = None  # None: the backbone's own
    # Of an exported cut: the fingerprint of the model that it was cut from.
    exported_from: str = ""
    fit: FitRecord | None = None  # of fitted exits
    negatives: str = ""  # of the training, in words
    kept: str = ""  # of the steps of the training: which one's weights, and its score on dev
    # Exits of shallow queries where none are asked for; empty: those of the index at layers that
    # were not trained.
    exits: Literal["", "model"] = ""
    # Commit of a backbone that was fetched from the hub; empty for any other.
    revision: str = ""
    rotation: str = ""  # of vectors without a model: sha256 of the file of their rotation, if any

    def __post_init__(self) -> None:
        pooling_modes(self.pooling)

    @property
    def full(self) -> Cut:
        """The cut of the full model."""
        return Cut(self.layers, self.width)

    @property
    def lowest_layer(self) -> int:
        """The first layer with vectors: 0, words alone, of a fitted model, else 1."""
        return 0 if self.exit_head == "fitted" else 1

    @property
    def is_trained(self) -> bool:
        """Whether this model is the result of a retrieval training, and not an exported cut."""
        return not self.exported_from and self.variant not in ("untrained", PRETRAINED, GIVEN)

    @property
    def query_layer(self) -> int:
        """The most layers that queries can run through; none where there is no model to run."""
        return 0 if self.variant == GIVEN else self.layers

    @property
    def served_dims(self) -> tuple[int, ...]:
        """Trained dims of the last layer, increasing; none where only the full width is trained."""
        dims = sorted({cut.dim for cut in self.cuts if cut.layer == self.layers})
        return tuple(dims) if dims and dims[0] < self.width else ()

    @property
    def layers_trained(self) -> tuple[int, ...]:
        """Layers of the trained cuts, increasing."""
        return tuple(sorted({cut.layer for cut in self.cuts}))

    def check(self, cut: Cut) -> Cut:
        """Return `cut` when this encoder has it.

        Args:
            cut: to check.

        Raises:
            UserError: the encoder has fewer layers or dims, or no layer 0 without a fit.
        """
        if cut.layer < self.lowest_layer:
            raise UserError(f"Layer {cut.layer} was asked for, and only a fitted model has it.")
        if cut.layer > self.layers:
            raise UserError(f"Layer {cut.layer} was asked for; this encoder has {self.layers}.")
        if cut.dim > self.width:
            raise UserError(f"Dim {cut.dim} was asked for; this encoder has {self.width}.")
        return cut


EXITS_FILE = "exits.json"


@dataclass(frozen=True)
class BridgeRecord:
    """What short texts of held-out documents find over a bridge, beside words alone.

    Overlaps are shares of the ten best by the query model's own vectors that are found.
    """

    model: str  # of the queries
    spans: int
    documents: int
    overlap: float
    words_overlap: float


@dataclass(frozen=True)
class IndexExits:
    """The record of the exits of an index; an older one lacks fields and matches no documents."""

    corpus: str
    fingerprint: str  # of the model
    texts: str  # of the store of the last layer: the digest of what the words were fitted to
    fit: FitRecord
    encoding: str = ""  # digest of the settings of encoding
    dtype: str = ""  # of the encoder whose states were read
    files: tuple[tuple[str, str], ...] = ()  # name and sha256 of each
    exits_texts: str = ""  # as `texts`, of what the exits of layers from 1 were fitted to
    bridge: BridgeRecord | None = None

    @property
    def layer(self) -> int:
        """The last one, whose documents they were fitted to."""
        return len(self.fit.ridges) + 1


EXPORTED_FILE = "export.json"


@dataclass(frozen=True)
class MeasuredCut:
    """A measure of a cut on one corpus, beside that of the full model."""

    corpus: str
    split: str
    queries: int
    measure: str
    value: float
    full: float | None  # None: not measured


@dataclass(frozen=True)
class CutCosts:
    """What a cut costs; the times are None where they were not measured."""

    multiply_adds: int | None  # of a query, encoding and search
    parameters: int  # in memory to encode queries
    bytes_per_document: int
    latency_p50_ms: float | None = None
    setup: str = ""  # what was timed, on which machine


@dataclass(frozen=True)
class ExportRecord:
    """What is written beside an exported cut, and what its README is made of."""

    cut: Cut
    full: Cut  # of the model that it was cut from
    model: str  # name of that model
    fingerprint: str  # of that model
    query_only: bool  # whether its documents are those of the full model
    written_as: str  # folder, onnx or openvino
    measured: tuple[MeasuredCut, ...] = ()
    costs: CutCosts | None = None
    full_costs: CutCosts | None = None
    lowest_cosine: float | None = None  # of a graph, to torch
