"""The record of an exported cut: what it was cut from, what it scores and what it costs."""

from dataclasses import dataclass, field

from m2dr.jsontext import LATER
from m2dr.records.cut import Cut

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
class QuantizedCheck:
    """How near the vectors of int8 weights are to those of fp32 weights, on a sample."""

    corpus: str
    queries: int
    documents: int
    cosine: float  # the mean over texts
    lowest: float
    measure: str
    value: float
    fp32: float

    @property
    def loss(self) -> float:
        """What int8 takes from the measure."""
        return self.fp32 - self.value


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
    lowest_cosine: float | None = field(default=None, metadata=LATER)  # of a graph, to torch
    int8: QuantizedCheck | None = field(default=None, metadata=LATER)
