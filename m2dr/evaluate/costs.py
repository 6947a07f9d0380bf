"""Costs of cuts: multiply-adds and bytes by arithmetic, times as they were measured."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path

from m2dr.core.errors import UserError, counted, nearest
from m2dr.core.records import Cut
from m2dr.evaluate.grid import read_cells, write_cells

COSTS = "costs.json"
# Bits per value, by how an engine stores vectors.
BITS = {"f32": 32, "f16": 16, "bf16": 16, "int8": 8, "binary": 1}


@dataclass(frozen=True)
class Shape:
    """The sizes of an encoder that decide its multiply-adds; all of its layers are alike.

    Layer 0 runs no transformer layer: it sums rows of a token table, one per token.
    """

    width: int  # dims of a token's state
    inner: int  # dims between the two matrices of the feed-forward part
    query_width: int  # number of heads times dims of a head
    key_width: int  # the same for keys and values, of which a backbone may have fewer heads
    gated: bool  # whether the feed-forward part has a third matrix, for its gate
    relative: int = 0  # vectors of relative positions that each layer projects and multiplies
    # Layer -> multiply-adds of its exit head and other modules behind pooling.
    exits: Mapping[int, int] = field(default_factory=dict)
    # Layer -> multiply-adds per token of the token table that its exit adds.
    tables: Mapping[int, int] = field(default_factory=dict)

    def one_layer(self, tokens: int) -> int:
        """Return the multiply-adds of one layer for a text of `tokens` tokens.

        Every token attends to every other; masks save no multiply-adds. Norms, biases, softmax and
        positions are left out: they grow with the width, not with its square.
        """
        projections = tokens * self.width * 2 * (self.query_width + self.key_width)
        attention = 2 * tokens * tokens * self.query_width  # scores, then the weighted sum
        feed_forward = tokens * self.width * self.inner * (3 if self.gated else 2)
        relative = self.relative * self.query_width * (self.width + tokens)
        return projections + attention + feed_forward + relative

    def encode(self, layer: int, tokens: int) -> int:
        """Return the multiply-adds of a text of `tokens` tokens up to a layer's exit.

        Looking up word embeddings costs none.

        >>> shape = Shape(384, 1536, 384, 384, gated=False, tables={0: 384})
        >>> shape.encode(layer=6, tokens=12), shape.encode(layer=0, tokens=12)
        (128065536, 4608)
        """
        table = tokens * self.tables.get(layer, 0)
        return layer * self.one_layer(tokens) + table + self.exits.get(layer, 0)


def search_multiply_adds(documents: int, dim: int) -> int:
    """Return the multiply-adds of a full scan: one per document and dim."""
    return documents * dim


def bytes_per_document(dim: int, kept: str = "f32") -> int:
    """Return the bytes of a document's vector in an index, without its id.

    >>> bytes_per_document(128), bytes_per_document(128, "f16"), bytes_per_document(12, "binary")
    (512, 256, 2)
    """
    if kept not in BITS:
        raise UserError(f"No engine stores vectors as {kept!r}. {nearest(kept, BITS)}")
    return -(-dim * BITS[kept] // 8)


@dataclass(frozen=True)
class Cost:
    """The costs of one cut."""

    latency_p50_ms: float  # of one query (tokenise, encode, search), the median
    latency_p95_ms: float  # the 95th percentile
    documents_per_second: float  # encoding speed of the layer whose documents the cut searches
    bytes_per_document: int
    multiply_adds: int  # of one query, encoding and search; the mean over the measured queries
    parameters: int  # in memory to encode queries; at layer 0 those of its table and weights

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isfinite(value) or value <= 0:
                raise UserError(f"{name} is {value}, and a cost is a number above 0.")


@dataclass(frozen=True)
class Costs:
    """The costs of every cut of one model on one corpus and machine."""

    model: str  # folder or id, as m2dr was given it
    fingerprint: str
    corpus: str  # as m2dr was given it
    whole: Cut  # the full model: last layer, all dims
    documents_from: str  # layer whose documents all cuts search: "last" or its number; or "same"
    documents: int  # number that a query searches
    queries: int  # number that was timed
    query_tokens: float  # their mean length
    kept: str  # how the index stores vectors: a key of BITS
    machine: str  # processor, cores, device and dtype
    cells: Mapping[Cut, Cost]

    def __post_init__(self) -> None:
        if not self.cells or not (
            self.documents_from in ("last", "same") or self.documents_from.isdecimal()
        ):
            raise UserError("Costs hold one cut at least, and a layer of documents.")

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Every cut that was measured, smallest layer first."""
        return tuple(sorted(self.cells))

    @property
    def setup(self) -> str:
        """What was timed, on which machine."""
        return (
            f"One query at a time over {counted(self.documents, 'documents', ',')}, "
            f"{counted(self.queries, 'queries')} of {self.query_tokens:.1f} tokens; "
            f"{self.machine}; vectors stored as {self.kept}"
        )

    def document_layer(self, cut: Cut) -> int:
        """Return the layer whose documents the queries of a cut search."""
        if self.documents_from == "last":
            return self.whole.layer
        return cut.layer if self.documents_from == "same" else int(self.documents_from)


def write_costs(costs: Costs, folder: Path) -> None:
    """Write `costs.json`, atomically."""
    write_cells(folder / COSTS, costs)


def read_costs(folder: Path) -> Costs:
    """Read what `write_costs` wrote.

    Raises:
        UserError: there is no such file, or it is not one; with the file and what is wrong.
    """
    return read_cells(folder / COSTS, Costs)
