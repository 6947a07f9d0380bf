"""What a model folder says of its model, in m2dr.json."""

from dataclasses import dataclass, field, replace
from typing import Literal, cast, get_args

from m2dr.errors import UserError, command, nearest
from m2dr.jsontext import LATER
from m2dr.records.cut import Cut
from m2dr.records.fit import FitRecord
from m2dr.records.variant import DocumentLayer, ExitHead

# How the states of a text's tokens become one vector; the last three as sentence-transformers
# names them: sum divided by the root of the length, and mean weighted by position from 1.
Pooling = Literal["cls", "mean", "last", "max", "mean_sqrt_len_tokens", "weightedmean"]
Similarity = Literal["dot", "cosine"]
Attention = Literal["causal", "bidirectional"]

FORMAT = 2  # raise it when today's reader would misread yesterday's folder
WEIGHTS_ALONE = 1  # the format whose fingerprint is the sha256 of the weights
PRETRAINED = "smae"  # the variant of a backbone that `m2dr pretrain` made


def modes_of(pooling: str) -> tuple[Pooling, ...]:
    """Return the parts of a pooling.

    >>> modes_of("cls+mean")
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
    """Everything that a query and a document must share to be comparable, and what was trained."""

    backbone: str  # id or folder that training began from
    variant: str  # "untrained" for a backbone as it comes
    layers: int  # transformer blocks of the whole encoder
    width: int  # coordinates of the whole embedding
    cuts: tuple[Cut, ...]  # trained; anything else is a guess
    documents: DocumentLayer
    pooling: str  # a Pooling, or several joined by "+", whose vectors stand one behind another
    similarity: Similarity  # cosine: a prefix is normalised after it is cut
    temperature: float  # divided the scores in training
    query_prefix: str = ""
    document_prefix: str = ""
    query_length: int = 64  # tokens, special ones included
    document_length: int = 256
    # What a shallow layer's vector passes before it is cut.
    exit_head: ExitHead = field(default="none", metadata=LATER)
    attention: Attention | None = field(default=None, metadata=LATER)  # None: the backbone's own
    # Of an exported cut: the fingerprint of the model whose first layers these are.
    exported_from: str = field(default="", metadata=LATER)
    fit: FitRecord | None = field(default=None, metadata=LATER)  # of fitted exits
    fingerprint: str = ""  # sha256 of all files that decide vectors: docs/decisions/0011
    format: int = field(default=FORMAT, metadata=LATER)

    def __post_init__(self) -> None:
        modes_of(self.pooling)

    @property
    def whole(self) -> Cut:
        """The cut that leaves nothing out."""
        return Cut(self.layers, self.width)

    @property
    def lowest_layer(self) -> int:
        """The first layer that gives vectors: 0, the table of tokens, of a fitted model, else 1."""
        return 0 if self.exit_head == "fitted" else 1

    @property
    def is_trained(self) -> bool:
        """Whether a training for retrieval ended with this model, not a step before or after it."""
        return not self.exported_from and self.variant not in ("untrained", PRETRAINED)

    @property
    def layers_trained(self) -> tuple[int, ...]:
        """Layers of the trained cuts, increasing."""
        return tuple(sorted({cut.layer for cut in self.cuts}))

    def check(self, cut: Cut, model: str = "") -> Cut:
        """Return `cut`, which this encoder has.

        Args:
            cut: what was asked for.
            model: folder or id of this model, for the command in the refusal; the backbone that
                its training began from when empty.

        Raises:
            UserError: it has fewer layers or dims, or no layer 0 as it is not fitted.
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
        """The same card for files of this sha256, in today's format."""
        return replace(self, fingerprint=fingerprint, format=FORMAT)
