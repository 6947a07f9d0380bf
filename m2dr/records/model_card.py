"""The model card, m2dr.json of a model folder, and the records of fitted exits."""

from dataclasses import dataclass, field, replace
from typing import Literal, cast, get_args

from m2dr.errors import UserError, command, nearest
from m2dr.jsontext import LATER
from m2dr.records.cut import Cut
from m2dr.records.variant import DocumentLayer

Rotation = Literal["pca", "learned", "none"]
FitInputs = Literal["tokens+layer", "layer", "all-layers"]
TOKENS = 0  # among the inputs of an exit: the token features of the text


def inputs_of(layer: int, inputs: FitInputs) -> tuple[int, ...]:
    """Return the inputs of a layer's exit: numbers of layers, then TOKENS.

    >>> inputs_of(2, "tokens+layer"), inputs_of(2, "all-layers"), inputs_of(0, "layer")
    ((2, 0), (1, 2, 0), (0,))
    """
    if layer == 0:
        return (TOKENS,)
    if inputs == "all-layers":
        return (*range(1, layer + 1), TOKENS)
    return (layer, TOKENS) if inputs == "tokens+layer" else (layer,)


@dataclass(frozen=True)
class FitRecord:
    """What exits were fitted on, and how close they come to the embeddings of the full model."""

    corpora: tuple[str, ...]
    texts: int
    snippets: int  # parts of these texts that were also read, as queries
    rotation: Rotation
    inputs: FitInputs
    identity: int  # random features per token
    ridges: tuple[float, ...]  # λ of layers 0 to L - 1
    cosines: tuple[float | None, ...]  # of the same layers, on held-out texts; None without these


# How the token states of a text become one vector. The last three are named as in
# sentence-transformers: maximum, sum divided by √length, mean weighted by position from 1.
Pooling = Literal["cls", "mean", "last", "max", "mean_sqrt_len_tokens", "weightedmean"]
Similarity = Literal["dot", "cosine"]
# What a model ends in: "table" is a fitted exit of the last layer, folded into a table of tokens.
ModelExit = Literal["none", "linear", "fitted", "table"]
Attention = Literal["causal", "bidirectional"]

FORMAT = 2  # raise it when the new reader would misread older folders
WEIGHTS_ALONE = 1  # the format whose fingerprint is the sha256 of the weights
PRETRAINED = "smae"  # the variant of a backbone that `m2dr pretrain` made


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


@dataclass(frozen=True)
class ModelCard:
    """How a model encodes queries and documents, and how it was trained."""

    backbone: str  # id or folder that training began from
    variant: str  # "untrained" for a backbone without training
    layers: int  # of the full encoder
    width: int  # dims of the full embedding
    cuts: tuple[Cut, ...]  # the trained ones
    documents: DocumentLayer
    pooling: str  # a Pooling, or several joined by "+", whose vectors are concatenated
    similarity: Similarity  # cosine: a prefix is normalised after it is cut
    temperature: float  # the divisor of the scores in training
    query_prefix: str = ""
    document_prefix: str = ""
    query_length: int = 64  # tokens, special ones included
    document_length: int = 256
    # The head of an intermediate layer, applied before the vector is cut.
    exit_head: ModelExit = field(default="none", metadata=LATER)
    attention: Attention | None = field(default=None, metadata=LATER)  # None: the backbone's own
    # Of an exported cut: the fingerprint of the model that it was cut from.
    exported_from: str = field(default="", metadata=LATER)
    fit: FitRecord | None = field(default=None, metadata=LATER)  # of fitted exits
    # Commit of a backbone that was fetched from the hub; empty for any other.
    revision: str = field(default="", metadata=LATER)
    fingerprint: str = ""  # sha256 of all files that affect vectors: docs/decisions/0011
    format: int = field(default=FORMAT, metadata=LATER)

    def __post_init__(self) -> None:
        pooling_modes(self.pooling)

    @property
    def full(self) -> Cut:
        """The cut of the full model."""
        return Cut(self.layers, self.width)

    @property
    def lowest_layer(self) -> int:
        """The first layer with vectors: 0, the static token table, of a fitted model, else 1."""
        return 0 if self.exit_head == "fitted" else 1

    @property
    def is_trained(self) -> bool:
        """Whether this model is the result of a retrieval training, and not an exported cut."""
        return not self.exported_from and self.variant not in ("untrained", PRETRAINED)

    @property
    def served_dims(self) -> tuple[int, ...]:
        """Trained dims of the last layer, increasing; none where only the full width is trained."""
        dims = sorted({cut.dim for cut in self.cuts if cut.layer == self.layers})
        return tuple(dims) if dims and dims[0] < self.width else ()

    @property
    def layers_trained(self) -> tuple[int, ...]:
        """Layers of the trained cuts, increasing."""
        return tuple(sorted({cut.layer for cut in self.cuts}))

    def check(self, cut: Cut, model: str = "") -> Cut:
        """Return `cut` when this encoder has it.

        Args:
            cut: to check.
            model: folder or id of this model, for the command in the message; the backbone when
                empty.

        Raises:
            UserError: the encoder has fewer layers or dims, or no layer 0 as it is not fitted.
        """
        if cut.layer < self.lowest_layer:
            raise UserError(
                f"Layer {cut.layer} was asked for, and only a fitted model has it. Fit this one "
                f"with: {command('fit', backbone=model or self.backbone)}"
            )
        if cut.layer > self.layers:
            raise UserError(f"Layer {cut.layer} was asked for; this encoder has {self.layers}.")
        if cut.dim > self.width:
            raise UserError(
                f"Dim {cut.dim} was asked for; an embedding of this encoder has {self.width}."
            )
        return cut

    def with_fingerprint(self, fingerprint: str) -> "ModelCard":
        """Return the card with this fingerprint and the current format."""
        return replace(self, fingerprint=fingerprint, format=FORMAT)


EXITS_FILE = "exits.json"


@dataclass(frozen=True)
class IndexExits:
    """The record of the exits of an index; an older one lacks fields and matches no documents."""

    corpus: str
    fingerprint: str  # of the model
    texts: str  # of the store of the last layer: the digest of what was encoded
    fit: FitRecord
    encoding: str = field(default="", metadata=LATER)  # digest of the settings of encoding
    dtype: str = field(default="", metadata=LATER)  # of the encoder whose states were read
    # Name and sha256 of each file.
    files: tuple[tuple[str, str], ...] = field(default=(), metadata=LATER)
    # The command that fits them, without the folder of the indexes; for messages, never compared.
    again: str = field(default="", metadata=LATER)
