"""What a model folder says of its model, in m2dr.json."""

from dataclasses import dataclass, field, replace
from typing import Literal, cast, get_args

from m2dr.errors import UserError, nearest
from m2dr.records.cut import Cut
from m2dr.records.variant import DocumentLayer, ExitHead

# How the states of a text's tokens become one vector; the last three as sentence-transformers
# names them: sum divided by the root of the length, and mean weighted by position from 1.
Pooling = Literal["cls", "mean", "last", "max", "mean_sqrt_len_tokens", "weightedmean"]
Similarity = Literal["dot", "cosine"]
Attention = Literal["causal", "bidirectional"]

FORMAT = 1  # raise it when today's reader would misread yesterday's folder


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
    exit_head: ExitHead = "none"  # what a shallow layer's vector passes before it is cut
    attention: Attention | None = None  # None: the backbone's own way
    fingerprint: str = ""  # sha256 of the weights
    format: int = field(default=FORMAT)

    def __post_init__(self) -> None:
        modes_of(self.pooling)

    @property
    def whole(self) -> Cut:
        """The cut that leaves nothing out."""
        return Cut(self.layers, self.width)

    @property
    def layers_trained(self) -> tuple[int, ...]:
        """Layers of the trained cuts, increasing."""
        return tuple(sorted({cut.layer for cut in self.cuts}))

    def check(self, cut: Cut) -> Cut:
        """Return `cut`, refusing one that this encoder does not have."""
        if cut.layer > self.layers:
            raise UserError(f"Layer {cut.layer} was asked for; this encoder has {self.layers}.")
        if cut.dim > self.width:
            raise UserError(
                f"Dim {cut.dim} was asked for; an embedding of this encoder has {self.width}."
            )
        return cut

    def with_fingerprint(self, fingerprint: str) -> "ModelCard":
        """The same card for weights of this sha256."""
        return replace(self, fingerprint=fingerprint)
