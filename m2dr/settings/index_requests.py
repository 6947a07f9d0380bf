"""Requests of `m2dr index`, `encode`, `search`, `mine`, `bm25`, `fuse` and `data`.

Neither torch nor numpy is imported here: `--help` is made from these classes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from m2dr.index.manifest import Dtype
from m2dr.records.option import REQUIRED, command_of, option
from m2dr.settings.reading import search_param

Backend = Literal["local", "ray"]
DocumentRuntime = Literal["auto", "torch", "openvino"]
Retriever = Literal["model", "bm25"]

INDEXES = Path("indexes")
PYDOCS = "pydocs"
NEWEST = "Folder or id; the newest trained one in models/ by default."
DIMS = ("--dim", "--dims")
LAYERS = ("--layer", "--layers")


def corpus_option() -> Any:  # noqa: ANN401  # a field
    """Return the field of a corpus."""
    return option(
        PYDOCS,
        "pydocs, a folder in BEIR or MS MARCO layout, a JSONL, parquet, Arrow or CSV file, irds:ID "
        "or hf:ID.",
    )


def root_option() -> Any:  # noqa: ANN401  # a field
    """Return the field of the folder of indexes."""
    return option(INDEXES, "Folder of the indexes.", "--indexes")


def device_option() -> Any:  # noqa: ANN401  # a field
    """Return the field of a device."""
    return option("auto", "auto, cpu, cuda or cuda:N.")


def dtype_option(help: str = "auto, fp32 or bf16.") -> Any:  # noqa: A002, ANN401  # a field
    """Return the field of the arithmetic of an encoder."""
    return option("auto", help)


def document_runtime_option() -> Any:  # noqa: ANN401  # a field
    """Return the field of what multiplies where documents are encoded."""
    return option(
        "auto",
        "What encodes documents on a CPU: torch, openvino, or auto for the faster one here, from "
        "10,000 documents on.",
    )


def graph_threads_option() -> Any:  # noqa: ANN401  # a field
    """Return the field of the threads that build a graph."""
    return option(
        1, "Threads that build hnsw; 0 for all. More than one may build other bytes each time."
    )


def workers_option() -> Any:  # noqa: ANN401  # a field
    """Return the field of the processes that encode."""
    return option(
        1, "Processes that encode, each on a gpu or a share of the cores; with Ray, tasks.", least=1
    )


@dataclass(frozen=True)
class CheckRequest:
    """What `m2dr data check` is asked."""

    name: str = option(REQUIRED, "A corpus, as --corpus of other commands.", is_argument=True)
    strict: bool = option(False, "End with exit code 1 if anything is wrong.")


@dataclass(frozen=True)
class IndexRequest:
    """What `m2dr index corpus` is asked."""

    corpus: str = corpus_option()
    model: str = option("", NEWEST)
    dims: tuple[int, ...] = option((), "Dims to index; the full width by default.", *DIMS, least=1)
    layers: tuple[int, ...] = option(
        (), "Layers to encode; by default every layer the model was trained to search.", *LAYERS
    )
    engines: tuple[str, ...] = option(
        (), "Engine to build: flat, which is the default, hnsw, ivf, int8, …", "--engine"
    )
    factory: str = option("", "Factory string of FAISS, built as one more engine.")
    graph_threads: int = graph_threads_option()
    root: Path = root_option()
    device: str = device_option()
    dtype: str = dtype_option()
    runtime: DocumentRuntime = document_runtime_option()
    overwrite: bool = option(False, "Encode again from the first document.")
    shard_rows: int = option(
        4096, "Documents per file of vectors; an interruption loses one file at most.", least=1
    )
    store: Dtype = option("f16", "Number format of the stored vectors.")
    exits: bool = option(
        True, "Fit exits on the documents, so that queries of any layer can search the last one."
    )
    workers: int = workers_option()
    backend: Backend = option(
        "local",
        "Where the workers run: on this machine, or on Ray: the cluster at $RAY_ADDRESS, or a "
        "local one.",
        old=("--on",),
        old_values={"here": "local"},
    )


def index_command(request: IndexRequest) -> str:
    """Return the command that makes a request, with its corpus and model."""
    return command_of(("index", "corpus"), request, always=("corpus", "model"))


@dataclass(frozen=True)
class FitIndexRequest:
    """What `m2dr index fit` is asked."""

    corpus: str = corpus_option()
    model: str = option("", NEWEST)
    root: Path = root_option()
    device: str = device_option()
    dtype: str = dtype_option()
    overwrite: bool = option(False, "Replace the exits of the index.")


@dataclass(frozen=True)
class AddRequest:
    """What `m2dr index add` is asked."""

    documents: str = option(
        REQUIRED,
        "Documents to add: a corpus as --corpus takes it, or a JSONL file with _id, title and text "
        "on each line.",
        is_argument=True,
    )
    corpus: str = corpus_option()
    model: str = option("", NEWEST)
    replace: bool = option(False, "Replace documents of the same ids.")
    root: Path = root_option()
    device: str = device_option()
    dtype: str = dtype_option()
    workers: int = workers_option()
    backend: Backend = option(
        "local", "Where the workers run: on this machine, or on Ray, as for m2dr index corpus."
    )
    graph_threads: int = graph_threads_option()


@dataclass(frozen=True)
class DeleteRequest:
    """What `m2dr index delete` is asked."""

    docids: tuple[str, ...] = option((), "Ids of documents to delete.", is_argument=True)
    file: Path | None = option(None, "File of docids, one per line.", is_file=True)
    corpus: str = corpus_option()
    model: str = option("", NEWEST)
    root: Path = root_option()


@dataclass(frozen=True)
class CompactRequest:
    """What `m2dr index compact` is asked."""

    corpus: str = corpus_option()
    model: str = option("", NEWEST)
    root: Path = root_option()
    graph_threads: int = graph_threads_option()


@dataclass(frozen=True)
class ImportRequest:
    """What `m2dr index import` is asked."""

    corpus: str = option(REQUIRED, "Corpus of the vectors, as for m2dr index corpus.")
    model: str = option(REQUIRED, "Folder or id of the model that made the vectors.")
    vectors: Path | None = option(
        None, "X.npy: floats of shape [documents, width]; needs --ids.", is_file=True
    )
    ids: Path | None = option(None, "Docids of the rows of --vectors, one per line.", is_file=True)
    pyserini: Path | None = option(
        None, "Folder with `index` and `docid`, in place of --vectors and --ids."
    )
    layer: int | None = option(None, "Transformer layers that made the vectors; all by default.")
    dims: tuple[int, ...] = option(
        (), "Dims to index; the width of the vectors by default.", *DIMS, least=1
    )
    sample: int = option(
        16,
        "Documents that are encoded again to check --model and --layer. 0: no check, and --corpus "
        "is a mere name.",
    )
    engine: str = option("flat", "Engine to build.")
    root: Path = root_option()
    store: Literal["f16", "f32"] = option("f16", "Number format of the stored vectors.")
    overwrite: bool = option(False, "Replace an existing store.")
    device: str = device_option()
    dtype: str = dtype_option("auto, fp32 or bf16, of the sample; auto is fp32.")


@dataclass(frozen=True)
class PushRequest:
    """What `m2dr index push` is asked."""

    uri: str = option(REQUIRED, "http://HOST:19530, or FILE.db for Milvus Lite.")
    token: str = option("", "user:password or a key; $MILVUS_TOKEN by default.")
    corpus: str = corpus_option()
    model: str = option("", NEWEST)
    layers: tuple[int, ...] = option((), "Layers to write; all stored ones by default.", *LAYERS)
    dims: tuple[int, ...] = option(
        (), "Dims to write; by default all that are built, or else the full width.", *DIMS, least=1
    )
    engine: str = option("flat", "flat, hnsw or ivf.")
    root: Path = root_option()
    overwrite: bool = option(False, "Replace collections of the same name.")


@dataclass(frozen=True)
class VerifyRequest:
    """What `m2dr index verify` is asked."""

    folders: tuple[Path, ...] = option(
        (), "Stores, or folders above them; all of --indexes by default.", is_argument=True
    )
    root: Path = root_option()
    corpus: str = option("", "The documents; by default the corpus that the store names.")
    model: str = option("", "Their encoder; by default the model that the store names.")
    sample: int = option(
        32, "Documents of each store that are encoded again and compared; 0 for none."
    )
    device: str = device_option()
    dtype: str = dtype_option()


@dataclass(frozen=True)
class SearchRequest:
    """What `m2dr search` is asked, without the queries."""

    corpus: str = corpus_option()
    model: str = option("", NEWEST)
    query_layer: int | None = option(
        None,
        "Layers that the query runs through; all by default, 0 for a fitted model's table.",
    )
    document_layer: int | None = option(
        None,
        "Layer of the documents; by default the one the model was trained to search.",
        old=("--layer", "--layers"),
    )
    dim: int | None = option(None, "Dims; by default the most that are built.", *DIMS, least=1)
    root: Path = root_option()
    device: str = device_option()
    dtype: str = dtype_option()
    engine: str = option("", "An engine that was built, or exact, which scans the store.")
    funnel: str = option("", "Shortlists by growing prefixes: 32:1000,128:100,384.")
    index: str = option("", "milvus:URI, or the folder of an index or a store.")
    runtime: str = option(
        "torch", "What encodes queries: torch, onnx, openvino, or auto for the fastest here."
    )
    search_params: tuple[tuple[str, int], ...] = option(
        (),
        "Setting of the engine, as nprobe=32.",
        "--search-param",
        old=("--set",),
        read=search_param,
        metavar="NAME=NUMBER",
    )
    filter: str = option(
        "",
        "Only documents whose own fields fit, such as: year >= 2020 and lang in (en, de).",
    )
    exits: Literal["", "index", "model"] = option(
        "",
        "Exits of shallow queries: fitted on the documents of the index, which is the default at "
        "layers that were not trained, or the model's own.",
    )


@dataclass(frozen=True)
class EncodeRequest:
    """What `m2dr encode` is asked."""

    file: str = option(
        REQUIRED,
        "Texts: a .txt file of lines, .tsv of ids and texts, .jsonl with text, title and id, or a "
        "corpus.",
        is_argument=True,
    )
    out: Path = option(
        REQUIRED, "Vectors to write: an array (.npy), or a table with ids (.parquet).", is_file=True
    )
    ids: Path | None = option(None, "File of the ids to write too, one per line.", is_file=True)
    model: str = option("", NEWEST)
    layer: int | None = option(
        None, "Layers to run; all by default, 0 for a fitted model's table.", *LAYERS
    )
    dim: int | None = option(None, "Dims to keep; all by default.", *DIMS, least=1)
    query: bool = option(
        False, "Encode queries, which have a prompt and a length of their own, not documents."
    )
    precision: Literal["float32", "float16"] = option("float32", "Number format of the vectors.")
    tokens_per_batch: int | None = option(
        None, "Tokens of a batch, padding included; by default as many as suit the device.", least=1
    )
    runtime: str = option("torch", "What encodes: torch, onnx, openvino, or auto for the fastest.")
    device: str = device_option()
    dtype: str = dtype_option()


@dataclass(frozen=True)
class MineRequest:
    """What `m2dr mine` is asked."""

    out: Path = option(REQUIRED, "JSONL file of training groups to write.", is_file=True)
    corpus: str = corpus_option()
    split: str = option("train", "Split whose queries are mined.")
    retriever: Retriever = option(
        "model", "What ranks: a model by its own index, or BM25, which needs none.", old=("--with",)
    )
    model: str = option("", NEWEST)
    query_layer: int | None = option(
        None,
        "Layers that the queries run through; all by default, 0 for a fitted model's table.",
        old=("--layer", "--layers"),
    )
    dim: int | None = option(None, "Dims; by default the most that are built.", *DIMS, least=1)
    depth: int = option(100, "Best documents of a query that are candidates.", least=1)
    negatives: int = option(
        16, "Negatives kept per query, the hardest first; m2dr train reads 64 at most.", least=1
    )
    skip: int = option(0, "Best unjudged candidates to pass over, as some of them may answer.")
    margin: float = option(
        0.95, "Largest score of a negative, as a share of the answer's; 0 for any."
    )
    queries: int = option(0, "Queries to mine, the first of the split.", default="all", least=1)
    root: Path = root_option()
    overwrite: bool = option(False, "Replace the file.")
    device: str = device_option()
    dtype: str = dtype_option()


@dataclass(frozen=True)
class Bm25Request:
    """What `m2dr bm25` is asked."""

    run_file: Path = option(REQUIRED, "TREC run to write.", "--run", is_file=True)
    corpus: str = corpus_option()
    topics: Path | None = option(None, "Queries: id<tab>text lines, or JSONL.", is_file=True)
    split: str = option("", "Split whose judged queries are ranked, in place of --topics.")
    top_k: int = option(1000, "Documents per query.", "--top-k", "-k", old=("--k",), least=1)


@dataclass(frozen=True)
class FuseRequest:
    """What `m2dr fuse` is asked."""

    runs: tuple[Path, ...] = option(REQUIRED, "TREC runs to fuse.", is_argument=True, is_file=True)
    out: Path = option(REQUIRED, "TREC run to write.", is_file=True)
    method: Literal["rrf", "interpolate"] = option(
        "rrf",
        "rrf: reciprocal ranks; interpolate: weighted scores, those of each run on one scale.",
        old=("--how",),
    )
    weights: tuple[float, ...] = option((), "Weights of the runs, as .7,.3; all alike by default.")
    top_k: int = option(1000, "Documents kept per query.", "--top-k", "-k", old=("--k",), least=1)
    rrf_k: float | None = option(None, "Constant that is added to a rank; 60 by default.")
    scale: str | None = option(None, "Scaling of scores: min-max (the default), z or none.")
