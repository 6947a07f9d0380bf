"""Requests of `m2dr evaluate`, `compare`, `pick`, `figures` and `report`.

Neither torch nor numpy is imported here: `--help` is made from these classes.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from m2dr.records.option import REQUIRED, option
from m2dr.settings.index_requests import (
    DIMS,
    LAYERS,
    NEWEST,
    PYDOCS,
    DocumentRuntime,
    device_option,
    document_runtime_option,
    dtype_option,
    root_option,
)
from m2dr.settings.reading import count, measure_floor, milliseconds, share, size

Runs = Literal["whole", "all", "none"]

RESULTS = Path("results")  # where `m2dr evaluate` writes
MODELS = Path("models")  # where `m2dr train` writes
ALPHA = 0.05


def _models() -> Any:  # noqa: ANN401  # a field
    help_of = "Folder or id of a model; the newest trained one in models/ by default."
    return option((), help_of, "--model", "--models")


def _layers() -> Any:  # noqa: ANN401  # a field
    return option((), "Layers to measure; all by default.", *reversed(LAYERS))


def _dims() -> Any:  # noqa: ANN401  # a field
    help_of = "Dims to measure; by default powers of two from 8, and the full width."
    return option((), help_of, *reversed(DIMS), least=1)


def _out() -> Any:  # noqa: ANN401  # a field
    return option(RESULTS, "Folder of tables, runs and figures.")


def _measures(default: str, *choices: str) -> Any:  # noqa: ANN401  # a field
    help_of = "Measures to print and draw; files hold all."
    return option((default,), help_of, "--measure", choices=choices)


def _split() -> Any:  # noqa: ANN401  # a field
    return option("", "Rows to read, of files that hold several splits.")


@dataclass(frozen=True)
class EvaluateRequest:
    """What `m2dr evaluate` is asked of retrieval."""

    corpora: tuple[str, ...] = option(
        (),
        "pydocs, a folder in BEIR or MS MARCO layout, irds:ID or hf:ID; of several the mean comes "
        "last.",
        "--corpus",
    )
    models: tuple[str, ...] = _models()
    split: str = option("", "Split of the queries.", default="test, and dev of msmarco in BEIR")
    suite: str = option("", "beir13: those of its 13 public datasets that are on this machine.")
    layers: tuple[int, ...] = _layers()
    dims: tuple[int, ...] = _dims()
    documents: str = option(
        "trained",
        "Layer whose documents are searched: trained, same, last, cross (each of them), or a "
        "number.",
    )
    exits: Literal["model", "index"] = option(
        "model", "Exits of the queries: the model's own, or some fitted on the documents searched."
    )
    measures: tuple[str, ...] = option(
        (), "Measures as ir_measures writes them; the default measures of the data.", "--measure"
    )
    runs: Runs = option(
        "whole", "TREC runs to write: those of the full model (whole), of all cuts, or none."
    )
    overwrite: bool = option(
        False, "Measure again what was measured before.", "--overwrite", old=("--again",)
    )
    root: Path = root_option()
    out: Path = _out()
    device: str = device_option()
    dtype: str = dtype_option()
    runtime: DocumentRuntime = document_runtime_option()


@dataclass(frozen=True)
class TaskRequest:
    """What every command for a sentence task is asked."""

    tasks: tuple[str, ...] = option(REQUIRED, "File or folder of a task.", "--task")
    models: tuple[str, ...] = _models()
    layers: tuple[int, ...] = _layers()
    dims: tuple[int, ...] = _dims()
    measures: tuple[str, ...] = ()  # each kind of task has its own
    out: Path = _out()
    device: str = device_option()
    dtype: str = dtype_option()


@dataclass(frozen=True)
class StsRequest(TaskRequest):
    """What `m2dr evaluate sts` is asked."""

    tasks: tuple[str, ...] = option(
        REQUIRED,
        "File of scored sentence pairs, or NAME for data/sts/NAME.tsv; commas join files to one "
        "task.",
        "--task",
    )
    measures: tuple[str, ...] = _measures("Spearman", "Spearman", "Pearson")
    split: str = _split()


@dataclass(frozen=True)
class PairsRequest(TaskRequest):
    """What `m2dr evaluate pairs` is asked."""

    tasks: tuple[str, ...] = option(
        REQUIRED,
        "File of sentence pairs labelled 1 or 0, or NAME in data/pair-classification; commas join "
        "files to one task.",
        "--task",
    )
    measures: tuple[str, ...] = _measures(
        "cosine-AP",
        *(f"{by}-{what}" for by in ("cosine", "dot") for what in ("AP", "Accuracy", "F1")),
    )
    split: str = _split()  # of a folder: the file, test where none is named


@dataclass(frozen=True)
class ClassificationRequest(TaskRequest):
    """What `m2dr evaluate classification` is asked."""

    tasks: tuple[str, ...] = option(
        REQUIRED,
        "Folder of train.csv and test.csv, or NAME for data/classification/NAME.",
        "--task",
    )
    measures: tuple[str, ...] = _measures("Accuracy", "Accuracy", "F1")
    split: str = option("test", "Split of the texts to classify.")
    protocol: Literal["mteb", "full"] = option(
        "mteb",
        "Fit several classifiers on a few texts per label each (mteb), or one on all texts (full).",
    )
    samples: int = option(8, "Training texts per label, with --protocol mteb.", least=1)
    experiments: int = option(10, "Classifiers to fit, with --protocol mteb.", least=1)
    iterations: int = option(100, "Iterations of a fit, at most.", least=1)
    seed: int = option(42, "Seed of the drawn training texts.", most=2**32 - 1)


@dataclass(frozen=True)
class MtebRequest:
    """What `m2dr evaluate mteb` is asked."""

    tasks: tuple[str, ...] = option(REQUIRED, "Name of a task in MTEB.", "--task")
    model: str = option("", NEWEST)
    layers: tuple[int, ...] = option(
        (),
        "Layers to run, 0 for a fitted model's table; all of the model together by default.",
        *reversed(LAYERS),
    )
    dims: tuple[int, ...] = option(
        (), "Dims to keep; all together by default.", *reversed(DIMS), least=1
    )
    instruction: str = option(
        "",
        "What stands before queries, with {instruction} for what MTEB says of the task; the "
        "prompts of the model by default.",
    )
    out: Path = _out()
    device: str = device_option()
    dtype: str = dtype_option()


@dataclass(frozen=True)
class CostsRequest:
    """Whose costs are measured, and how thoroughly."""

    model: str
    corpus: str  # its documents are searched
    split: str = "test"  # its queries are timed
    layers: tuple[int, ...] = ()  # empty: all
    dims: tuple[int, ...] = ()  # empty: powers of two from 8, and the full width
    pairing: str = "trained"  # layer whose documents are searched, or "same" or "last"
    exits: Literal["model", "index"] = "model"  # of the queries
    queries: int = 50  # evenly spread over the split
    documents: int = 64  # encoded to time encoding, evenly spread over the corpus
    rounds: int = 3  # of each measurement; the median counts
    root: Path = Path("indexes")
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True)
class CompareRequest:
    """What `m2dr compare` is asked."""

    folder: Path = option(
        REQUIRED, "Results of one model, as results/CORPUS/SPLIT/MODEL.", is_argument=True
    )
    against: tuple[str, ...] = option(
        REQUIRED, "Baseline: a folder of results, one cut of it as FOLDER@L6D384, or a TREC run."
    )
    measures: tuple[str, ...] = option(
        (), "Measures to compare; nDCG@10 by default, or else the first measure.", "--measure"
    )
    alpha: float = option(ALPHA, "Significance level.")
    qrels: Path | None = option(
        None, "Judgements for a run; those kept with the results by default.", is_file=True
    )
    out: Path | None = option(None, "Folder of the JSON and CSV; FOLDER by default.")


@dataclass(frozen=True)
class PickRequest:
    """What `m2dr pick` is asked."""

    folder: Path = option(
        REQUIRED, "Results of one model, as results/CORPUS/SPLIT/MODEL.", is_argument=True
    )
    latency_ms: float | None = option(
        None, "Largest latency of a query, as 5ms.", "--latency", read=milliseconds
    )
    percentile: Literal[50, 95] = option(50, "Percentile of the queries' latencies.")
    bytes_per_document: float | None = option(
        None, "Largest size in the index, as 256 or 1KB.", read=size
    )
    multiply_adds: float | None = option(None, "Most multiply-adds of a query, as 85M.", read=count)
    quality: float | None = option(
        None, "Least quality, as a share of the full model's: 0.97 or 97%.", read=share
    )
    at_least: tuple[str, float] | None = option(
        None, "Least value of a measure, as nDCG@10=.3, in place of --quality.", read=measure_floor
    )
    measure: str = option(
        "", "Measure of quality; that of --at-least by default, or else nDCG@10 or the first one."
    )
    measure_costs: bool = option(False, "Measure the costs again, although they are known.")
    model: str = option("", "Model whose costs are measured; models/NAME of FOLDER by default.")
    corpus: str = option("", "Corpus to measure costs on; that of FOLDER by default.")
    root: Path = root_option()
    device: str = device_option()
    dtype: str = dtype_option()


@dataclass(frozen=True)
class OverlapRequest:
    """Models whose prefixes are compared with their full vectors, and the texts to do it on."""

    models: tuple[str, ...] = option(
        (), "Model whose prefixes are drawn over its full vectors.", "--overlap"
    )
    corpus: str = option(PYDOCS, "Corpus whose documents --overlap encodes.")
    dims: tuple[int, ...] = option(
        (),
        "Dims of --overlap; by default the power of two within a third of the width.",
        "--overlap-dims",
        "--overlap-dim",
        least=1,
    )
    layer: int | None = option(None, "Layer of --overlap; the last by default.", "--overlap-layer")
    texts: int = 400
    method: Literal["pca", "tsne"] = option(
        "pca",
        "Projection of --overlap to the plane; tsne needs the extra `tasks`.",
        "--overlap-method",
        old=("--overlap-by",),
    )
    device: str = device_option()
    dtype: str = dtype_option()


@dataclass(frozen=True)
class FiguresRequest:
    """What `m2dr figures` is asked."""

    results: tuple[Path, ...] = option(
        (RESULTS,), "Folders of results: of a model, of several, or all of them.", is_argument=True
    )
    out: Path = option(Path("figures"), "Folder of the figures.")
    measures: tuple[str, ...] = option(
        (), "Measures to draw; by default the first that was measured.", "--measure"
    )
    formats: tuple[Literal["png", "svg"], ...] = option(("png",), "File format.", "--format")
    theme: Literal["light", "dark"] = option("light", "Theme of the figures.", old=("--look",))
    separate: Path | None = option(
        None, "Results of models trained for one cut each, to draw the gap to them."
    )
    published: tuple[str, ...] = option(
        (),
        "Published scores to draw too: msmarco, beir13, starbucks-msmarco or starbucks-sts; some "
        "recipes of one as msmarco:FULL-DIM,BERT.",
    )
    overlap: OverlapRequest = field(default_factory=OverlapRequest)


@dataclass(frozen=True)
class ReportRequest:
    """What `m2dr report` is asked."""

    figures: FiguresRequest = field(default_factory=FiguresRequest)  # its folder is not used
    out: Path = option(Path("report.html"), "The page.", is_file=True)
    title: str = option("", "Title of the page; the names of the corpora by default.")
    models: Path = option(MODELS, "Folder of the models, whose settings the page shows.")
