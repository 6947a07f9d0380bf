"""The request of each command: its help, its options and their help.

Neither torch nor numpy is imported here: `--help` is made from these classes.
"""

from dataclasses import KW_ONLY, dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Any, Literal, TypeVar

from m2dr.core.errors import UserError
from m2dr.core.option import (
    REQUIRED,
    count,
    measure_floor,
    milliseconds,
    option,
    option_of,
    search_param,
    share,
    size,
)
from m2dr.core.records import F32, Cut, Dtype, Similarity

Backend = Literal["local", "ray"]
DocumentRuntime = Literal["auto", "torch", "openvino"]
Retriever = Literal["model", "bm25"]
Exits = Literal["", "index", "model"]  # of queries
Request = TypeVar("Request")

INDEXES = Path("indexes")
HYBRID = 0.4  # weight of BM25 beside vectors: benchmarks/hybrid_weights_202611.md
QUERY_MIX = 0.5  # weight of words in the vector of a query: docs/decisions/0024-mix-and-feedback.md
SHARD_ROWS = 4096  # of a store, in every shard but the last; 3 MB of f16 at width 384
PYDOCS = "pydocs"
NEWEST = "Folder or id. Default: the newest trained model in models/, else minilm."
OF_INDEX = "Folder or id. Default: the model of the newest index of the corpus."
DIMS = ("--dim", "--dims")
LAYERS = ("--layer", "--layers")


def corpus_option() -> Any:  # a field
    """Return the field of a corpus."""
    return option(
        PYDOCS,
        "Corpus: pydocs, a folder in BEIR or MS MARCO layout, a JSONL, parquet, Arrow or CSV file, "
        "irds:ID or hf:ID.",
    )


def root_option() -> Any:  # a field
    """Return the field of the folder of indexes."""
    return option(INDEXES, "Folder of the indexes.", "--indexes")


def length_option(side: str, of: str = "index, else as the model") -> Any:  # a field
    """Return the field of the length of queries or documents."""
    return option(None, f"Maximum tokens of a {side}. Default: as the {of}.", least=1)


def query_model_option() -> Any:  # a field
    """Return the field of the model whose queries search vectors of another."""
    return option(
        "",
        "Encode queries with this model; m2dr index fit --query-model must have fitted it to the "
        "index.",
    )


def document_runtime_option() -> Any:  # a field
    """Return the field of what multiplies where documents are encoded."""
    return option(
        "auto",
        "Runtime of the documents: torch, openvino or auto (openvino for 10,000 documents or more "
        "on a CPU, if it is installed).",
    )


def cut_option(layer: str) -> Any:  # a field
    """Return the field of a layer and a dim at once; `at_cut` reads it."""
    told = f"Layer and dim in one word, such as L4D128, in place of --{layer} and --dim."
    return option(None, told, read=Cut.parse, metavar="L4D128")


def at_cut(request: Request, layer: str) -> Request:
    """Return a request whose `cut` is in the fields for its layer and its dim.

    Raises:
        UserError: the cut was given, and one of them too.
    """
    asked: Any = request
    if asked.cut is None:
        return request
    if (getattr(asked, layer), asked.dim) != (None, None):
        described = {each.name: option_of(each) for each in fields(asked)}[layer]
        flag = (described and described.name) or layer
        raise UserError(f"--cut {asked.cut} names layer and dim; leave --{flag} and --dim out.")
    parts: Any = {layer: asked.cut.layer, "dim": asked.cut.dim, "cut": None}
    return replace(asked, **parts)  # type: ignore[no-any-return]  # of the same class


def refuse_both(resume: bool, overwrite: bool) -> None:
    """Raise UserError when both were given."""
    if resume and overwrite:
        raise UserError("--resume goes on and --overwrite begins again; give one of them.")


def refuse_weight_alone(queries: object, weight: float | None) -> None:
    """Raise UserError when a weight of a log was given without one."""
    if queries is None and weight is not None:
        raise UserError(f"--query-weight {weight:g} was given without --queries.")


def of_queries(dtype: str) -> str:
    """Return the number format of queries beside documents of one: int8 is of documents alone."""
    return "auto" if dtype == "int8" else dtype


@dataclass(frozen=True, repr=False, kw_only=True)
class _OnDevice:
    device: str = option("auto", "auto, cpu, cuda or cuda:N.")
    dtype: str = option("auto", "auto, fp32 or bf16.")


@dataclass(frozen=True, repr=False, kw_only=True)
class _EncodesDocuments(_OnDevice):
    dtype: str = option(
        "auto",
        "Number format: auto, fp32 or bf16; int8 for documents on a CPU, calibrated on a sample.",
    )


@dataclass(frozen=True, repr=False, kw_only=True)
class _OfIndexes(_OnDevice):
    root: Path = root_option()


def language_option() -> Any:  # a field
    """Return the field of the language of words."""
    help_of = "Snowball language for stemming, or none. Default: detected from the texts."
    return option("", help_of)


@dataclass(frozen=True, repr=False, kw_only=True)
class QueryLog:
    """A query log without judgements, for the fit of words and exits."""

    queries: Path | None = option(
        None,
        "Query log (unlabelled) to fit words and exits with: topics, or a .txt file, one query per "
        "line.",
        is_file=True,
    )
    query_weight: float | None = option(
        None,
        "Weight of --queries in the fit of words; documents have weight 1. Default: 0.2.",
    )


@dataclass(frozen=True, repr=False, kw_only=True)
class GivenLog(QueryLog):
    """A query log, with its vectors if the index has no model to encode it."""

    query_vectors: Path | None = option(
        None,
        "Vectors of --queries by the documents' model; needed if m2dr lacks that model.",
        read=Path,
    )


@dataclass(frozen=True, repr=False, kw_only=True)
class Blend:
    """Weights of BM25 (hybrid) and of word vectors (query_mix); 0 switches a part off."""

    hybrid: float = option(
        0.0, f"Add BM25 with this weight ({HYBRID} if no number follows).", most=1, bare=HYBRID
    )
    query_mix: float = option(
        0.0,
        f"Add the query's word vector with this weight ({QUERY_MIX} if no number follows). No "
        "effect on layers whose exit already uses words.",
        most=1,
        bare=QUERY_MIX,
    )

    @property
    def weights(self) -> dict[str, float]:
        """The weights alone, by name."""
        return {each.name: getattr(self, each.name) for each in fields(Blend)}

    @property
    def notes(self) -> tuple[str, ...]:
        """One phrase per part that is on."""
        notes = {
            f"BM25 of weight {self.hybrid:g} beside the vectors": self.hybrid,
            f"words of weight {self.query_mix:g} in the queries": self.query_mix,
        }
        return tuple(note for note, weight in notes.items() if weight)

    def named(self, name: str) -> str:
        """Return the name of results with these weights.

        >>> Blend(hybrid=0.4, query_mix=0.5).named("mine")
        'mine.hybrid-0.4.query-mix-0.5'
        """
        given = {key.replace("_", "-"): weight for key, weight in self.weights.items() if weight}
        return name + "".join(f".{key}-{weight:g}" for key, weight in given.items())


@dataclass(frozen=True, repr=False, kw_only=True)
class QueryOptions(Blend):
    """How queries become vectors, and weights of BM25 and words; `tasks.query` reads it."""

    exits: Exits = option(
        "",
        "Exits for layers below the last: index (default for untrained layers) or model.",
    )
    query_model: str = query_model_option()
    query_vectors: Path | None = None
    query_length: int | None = length_option("query")
    document_length: int | None = length_option("document")

    @property
    def query_options(self) -> dict[str, Any]:
        """These fields alone, by name."""
        return {each.name: getattr(self, each.name) for each in fields(QueryOptions)}


@dataclass(frozen=True, repr=False, kw_only=True)
class Shown:
    """Which of the documents that were found are hits."""

    min_score: float | None = option(None, "Minimum score of a hit.", least=-inf)


@dataclass(frozen=True, repr=False, kw_only=True)
class Ask(Blend, Shown):
    """What each search of an open index may ask.

    The command line, `Index.search` and `POST /search` take these fields, and no others.
    """

    layer: int | None = option(
        None, "Layer of the query; 0: words alone. Default: the last.", "--query-layer"
    )
    document_layer: int | None = option(
        None, "Layer of the documents. Default: the one the model was trained to search."
    )
    dim: int | None = option(None, "Dims. Default: the most that are built.", *DIMS, least=1)
    k: int | None = option(
        None, "Documents per query; of a run 1000 is usual.", "--top-k", "-k", default="10", least=1
    )
    filter: str = option(
        "", "Search only documents that match a filter, such as: year >= 2020 and lang in (en, de)."
    )
    explain: bool = option(False, "Give each hit the share of each query word in its score.")


@dataclass(frozen=True, repr=False)
class CheckRequest:
    """Count the rows of a corpus, report its problems, and show its first rows.

    m2dr reads all of it. NAME is what --corpus of other commands takes. A group is a query with a
    relevant document, as training draws it.

    Examples:
        m2dr data check pydocs
        m2dr data check pairs.jsonl --strict --json
    """

    corpus: str = option(REQUIRED, "Corpus, as for other commands.", is_argument=True)
    strict: bool = option(False, "End with exit code 1 if there is a problem.")


@dataclass(frozen=True, repr=False)
class IndexRequest(QueryLog, _EncodesDocuments, _OfIndexes):
    """Encode a corpus: a store per layer and an index per dim.

    m2dr writes them to indexes/CORPUS/MODEL/layer-NN/dim-K. If the corpus has changed, it encodes
    only new texts, at all stored layers.

    Examples:
        m2dr index corpus docs.jsonl --dim 128
        m2dr index corpus --corpus scifact --dims 128,384 --engine hnsw
    """

    corpus: str = corpus_option()
    model: str = option("", NEWEST)
    dims: tuple[int, ...] = option((), "Dims to index. Default: the full width.", *DIMS, least=1)
    layers: tuple[int, ...] = option(
        (), "Layers to encode. Default: every layer the model was trained to search.", *LAYERS
    )
    engines: tuple[str, ...] = option(
        (), "Engine to build: flat (default), hnsw, ivf, int8, …", "--engine"
    )
    factory: str = option("", "FAISS factory string of one more engine.")
    graph_threads: int = option(
        1, "Threads to build hnsw; 0: all. With more than one the bytes may differ each time."
    )
    runtime: DocumentRuntime = document_runtime_option()
    resume: bool = option(False, "Go on after an interruption (default).")
    overwrite: bool = option(False, "Encode again from the first document.")
    shard_rows: int | None = option(
        None,
        "Documents per file of vectors; an interruption loses at most one file.",
        default=f"as begun, else {SHARD_ROWS}",
        least=1,
    )
    store: Dtype | None = option(
        None,
        "Number format. Default: that of the existing store, else f16 (f32 if the model's card "
        "says exits = model).",
    )
    exits: bool | None = option(
        None,
        "Fit exits on the documents, so that queries of any layer can search the index.",
        default="as before, else exits",
    )
    language: str = language_option()
    query_length: int | None = length_option("query")
    document_length: int | None = length_option("document")
    workers: int = option(
        1,
        "Processes to encode in, each with a gpu or a share of the cores; with Ray: tasks.",
        least=1,
    )
    backend: Backend = option(
        "local",
        "Where workers run: local, or ray (the cluster at $RAY_ADDRESS, else a local one).",
    )


@dataclass(frozen=True, repr=False)
class FitIndexRequest(GivenLog, _OfIndexes):
    """Fit words and exits to the documents of an index, or a bridge for another query model.

    Afterwards queries of any layer, and of --query-model, can search the index.

    Examples:
        m2dr index fit
        m2dr index fit --corpus scifact --model minilm
        m2dr index fit --overwrite --queries log.txt --query-weight 0.4
    """

    corpus: str = corpus_option()
    model: str = option("", OF_INDEX)
    overwrite: bool = option(False, "Fit again if the index has exits.")
    language: str = language_option()
    query_model: str = query_model_option()


@dataclass(frozen=True, repr=False)
class ListRequest:
    """List stores and indexes, complete or not.

    Examples:
        m2dr index list
        m2dr index list --indexes /data/indexes --json
    """

    root: Path = root_option()


@dataclass(frozen=True, repr=False)
class ImportRequest(GivenLog, _OfIndexes):
    """Make a store and indexes from vectors of another tool.

    With --model they are that model's, and m2dr refuses queries of any other. Without it m2dr fits
    words of the documents to them, and queries run no layer. It reads no pickles. m2dr index corpus
    with another --dim indexes one more prefix.

    Examples:
        m2dr index import v.npy --ids v.txt --corpus scifact --model minilm
        m2dr index import answers.jsonl --corpus texts.jsonl
        m2dr index import v.npy --corpus c.csv --queries q.txt --query-vectors q.npy
    """

    vectors: Path = option(
        REQUIRED,
        "Document vectors, by id or in the order of the corpus: .npy, .npz, JSONL as APIs answer, "
        "parquet, hf:ID, or a Pyserini folder with `index` and `docid`.",
        read=Path,
        is_argument=True,
    )
    corpus: str = option(PYDOCS, "Corpus of the vectors, as for m2dr index corpus.")
    model: str = option(
        "",
        "Folder or id of the model that made the vectors. Default: none; words of the documents "
        "encode queries.",
    )
    name: str = option("", "Name of vectors without a model. Default: as before, else a digest.")
    similarity: Similarity | None = option(
        None,
        "Similarity of vectors without a model.",
        default="as these vectors were imported before, else cosine",
    )
    rotate: Literal["auto", "yes", "no"] = option(
        "auto",
        "Rotate vectors without a model to their principal axes, for better prefixes; auto: as "
        "before, else if prefixes are far better then.",
    )
    ids: Path | None = option(None, "Docids of the vectors, one per line.", is_file=True)
    layer: int | None = option(None, "Layer that made the vectors. Default: the last.")
    dims: tuple[int, ...] = option(
        (), "Dims to index. Default: the width of the vectors.", *DIMS, least=1
    )
    sample: int = option(
        16,
        "Documents to encode again, to check --model and --layer. 0: no check; --corpus is then "
        "only a name.",
    )
    engine: str = option("flat", "Engine to build.")
    store: Literal["f16", "f32"] | None = option(
        None, "Number format of the stored vectors.", default="that of the index, else f16"
    )
    overwrite: bool = option(False, "Replace an existing store.")
    _: KW_ONLY
    document_length: int | None = option(
        None,
        "Tokens of a text that the vectors are of. Default: all of them; with --model as it has.",
        least=1,
    )
    dtype: str = option("auto", "Number format of the sample: auto, fp32 or bf16; auto is fp32.")


@dataclass(frozen=True, repr=False)
class PushRequest:
    """Write indexes to Milvus, a collection per layer and dim.

    Given again, it goes on where it stopped. A collection is labelled with corpus, model, layer
    and dim, and other vectors are refused. Search it with m2dr search --index milvus:URI.

    Examples:
        m2dr index push --uri http://localhost:19530
        m2dr index push --uri milvus.db --corpus scifact --dims 128
    """

    uri: str = option(REQUIRED, "http://HOST:19530, or FILE.db for Milvus Lite.")
    token: str = option("", "user:password or a key. Default: $MILVUS_TOKEN.")
    corpus: str = corpus_option()
    model: str = option("", OF_INDEX)
    layers: tuple[int, ...] = option((), "Layers to write. Default: all stored ones.", *LAYERS)
    dims: tuple[int, ...] = option(
        (), "Dims to write. Default: all that are built, else the full width.", *DIMS, least=1
    )
    engine: str = option("flat", "flat, hnsw or ivf.")
    root: Path = root_option()
    overwrite: bool = option(False, "Replace collections of the same name.")


@dataclass(frozen=True, repr=False)
class VerifyRequest(_OfIndexes):
    """Check all files of stores and indexes against their checksums.

    m2dr encodes a sample of the documents again. FOLDERS are stores, or folders above them. It
    ends with exit code 2 if anything is wrong.

    Examples:
        m2dr index verify
        m2dr index verify indexes/scifact --sample 100
    """

    folders: tuple[Path, ...] = option(
        (), "Stores, or folders above them. Default: all of --indexes.", is_argument=True
    )
    corpus: str = option("", "Corpus of the documents. Default: the one that the store names.")
    model: str = option("", "Their encoder. Default: the one that the store names.")
    sample: int = option(32, "Documents of each store to encode again and compare; 0: none.")


@dataclass(frozen=True, repr=False)
class SearchRequest(_OfIndexes, QueryOptions, Ask):
    """The request of `m2dr search`, without its queries."""

    corpus: str = corpus_option()
    model: str = option("", OF_INDEX)
    engine: str = option("", "Engine that was built, or exact, which scans the store.")
    funnel: str = option("", "Shortlists by growing prefixes: 32:1000,128:100,384.")
    index: str = option("", "milvus:URI, or the folder of an index or a store, or one above.")
    runtime: str = option("torch", "Runtime of the queries: torch, onnx or openvino.")
    search_params: tuple[tuple[str, int], ...] = option(
        (),
        "Setting of the engine, such as nprobe=32.",
        "--search-param",
        read=search_param,
        metavar="NAME=NUMBER",
    )
    _: KW_ONLY
    query_vectors: Path | None = option(
        None,
        "Query vectors from the model that made the documents' vectors, by the ids of --topics or "
        "in order; nothing is encoded.",
        read=Path,
    )
    query_length: int | None = option(
        None, "Maximum tokens of a query. Default: as the index, which refuses others."
    )
    document_length: int | None = option(None, "Maximum tokens of a document, likewise.")


@dataclass(frozen=True, repr=False)
class QueriesRequest(SearchRequest):
    """Search an index with a query, or with all queries of a file.

    Examples:
        m2dr search "read a file line by line"
        m2dr search --query-layer 4 --dim 128 --topics queries.tsv --run run.trec
    """

    text: str = option("", "Query.", is_argument=True)
    cut: Cut | None = cut_option("query-layer")
    topics: Path | None = option(None, "Queries: id<tab>text lines, or JSONL.", is_file=True)
    run_file: Path | None = option(None, "TREC run to write, of --topics.", "--run", is_file=True)


@dataclass(frozen=True, repr=False)
class EncodeRequest(_EncodesDocuments):
    """Write the vectors of texts, for any other tool.

    FILE is a .txt file with a text per line, a .tsv file with an id and a text per line, a .jsonl
    file of records with a text, a title and an id (the last two are optional), or a corpus.
    Vectors of a model that compares by cosine have length one.

    Examples:
        m2dr encode texts.txt --out vectors.npy
        m2dr encode queries.jsonl --query --layer 4 --dim 128 --out queries.npy
    """

    file: str = option(
        REQUIRED,
        "Texts: a .txt file of lines, .tsv of ids and texts, .jsonl with text, title and id, or a "
        "corpus.",
        is_argument=True,
    )
    out: Path = option(REQUIRED, "Array of vectors to write (.npy).", is_file=True)
    ids: Path | None = option(None, "File of ids to write, one per line.", is_file=True)
    model: str = option("", NEWEST)
    layer: int | None = option(None, "Layer; 0: words alone. Default: the last.", *LAYERS)
    dim: int | None = option(None, "Dims to keep. Default: all.", *DIMS, least=1)
    query: bool = option(False, "Encode queries, with their own prompt and length, not documents.")
    precision: Literal["float32", "float16"] = option("float32", "Number format of the vectors.")
    tokens_per_batch: int | None = option(
        None, "Maximum tokens of a batch, with padding. Default: as suits the device.", least=1
    )
    runtime: str = option("torch", "Runtime: torch, onnx or openvino.")
    cut: Cut | None = cut_option("layer")


@dataclass(frozen=True, repr=False)
class MineRequest(_OfIndexes):
    """Find hard negatives to train with: documents that rank high and are not judged relevant.

    Examples:
        m2dr mine --out groups.jsonl
        m2dr mine --retriever bm25 --corpus scifact --out groups.jsonl
    """

    out: Path = option(REQUIRED, "JSONL file of training groups to write.", is_file=True)
    corpus: str = corpus_option()
    split: str = option("train", "Split whose queries are mined.")
    retriever: Retriever = option(
        "model", "Ranker: a model with its index, or bm25, which needs no index."
    )
    model: str = option("", OF_INDEX)
    query_layer: int | None = option(
        None, "Layer of the queries; 0: words alone. Default: the last."
    )
    dim: int | None = option(None, "Dims. Default: the most that are built.", *DIMS, least=1)
    depth: int = option(
        100, "Candidates per query: the best documents without its positives.", least=1
    )
    negatives: int = option(
        16, "Negatives per query, the hardest first; m2dr train reads at most 64.", least=1
    )
    skip: int = option(0, "Best unjudged candidates to skip; some may be relevant.")
    margin: float = option(
        0.95, "Maximum score of a negative, as a share of the positive's; 0: any.", most=1
    )
    queries: int = option(0, "Queries to mine, from the first on.", default="all", least=1)
    overwrite: bool = option(False, "Replace the file.")


@dataclass(frozen=True, repr=False)
class Bm25Request:
    """Rank by BM25: a lexical TREC run to fuse with, or a baseline.

    Examples:
        m2dr bm25 --split test --run bm25.trec
        m2dr bm25 --corpus scifact --topics queries.tsv --run bm25.trec
    """

    run_file: Path = option(REQUIRED, "TREC run to write.", "--run", is_file=True)
    corpus: str = corpus_option()
    topics: Path | None = option(None, "Queries: id<tab>text lines, or JSONL.", is_file=True)
    split: str = option("", "Split of the judged queries, in place of --topics.")
    top_k: int = option(1000, "Documents per query.", "--top-k", "-k", least=1)
    language: str = language_option()


@dataclass(frozen=True, repr=False)
class FuseRequest:
    """Fuse TREC runs, of m2dr or of any other tool, by reciprocal ranks.

    Examples:
        m2dr fuse bm25.trec dense.trec --out fused.trec
        m2dr fuse a.trec b.trec c.trec.gz --top-k 100 --out top.trec
    """

    runs: tuple[Path, ...] = option(REQUIRED, "TREC runs to fuse.", is_argument=True, is_file=True)
    out: Path = option(REQUIRED, "TREC run to write.", is_file=True)
    top_k: int = option(1000, "Documents per query.", "--top-k", "-k", least=1)
    rrf_k: float = option(60.0, "Constant added to each rank.")


Runs = Literal["whole", "all", "none"]

RESULTS = Path("results")  # where `m2dr evaluate` writes
MODELS = Path("models")  # where `m2dr train` writes
ALPHA = 0.05


def _models() -> Any:  # a field
    help_of = "Folder or id. Default: the newest trained model in models/, else minilm."
    return option((), help_of, "--model", "--models")


def _layers() -> Any:  # a field
    return option((), "Layers to measure. Default: all.", *reversed(LAYERS))


def _dims() -> Any:  # a field
    help_of = "Dims to measure. Default: powers of two from 8, and the full width."
    return option((), help_of, *reversed(DIMS), least=1)


def _out() -> Any:  # a field
    return option(RESULTS, "Folder of tables, runs and figures.")


def _measures(default: str, *choices: str) -> Any:  # a field
    help_of = "Measures to print and draw; files hold all."
    return option((default,), help_of, "--measure", choices=choices)


def _split() -> Any:  # a field
    return option("", "Split to read, of files with several splits.")


@dataclass(frozen=True, repr=False)
class EvaluateRequest(_EncodesDocuments, _OfIndexes, QueryOptions):
    """Evaluate retrieval on a corpus: every cut of a model.

    Examples:
        m2dr evaluate retrieval --corpus scifact --layers 2,4,6 --dims 64,384
        m2dr evaluate retrieval --corpus irds:beir/nfcorpus/test --costs --json
    """

    corpora: tuple[str, ...] = option(
        (),
        "Corpus: pydocs, a folder in BEIR or MS MARCO layout, irds:ID or hf:ID. With several the "
        "mean comes last.",
        "--corpus",
    )
    models: tuple[str, ...] = _models()
    split: str = option("", "Split of the queries.", default="test, and dev of msmarco in BEIR")
    suite: str = option("", "beir13: the public datasets of BEIR that are on this machine.")
    layers: tuple[int, ...] = _layers()
    dims: tuple[int, ...] = _dims()
    codes: tuple[str, ...] = option(
        (F32,),
        "Codes of the documents: f32, f16, int8 and others of the engines. With + at the end m2dr "
        "rescores the best 100 by the stored vectors.",
        "--codes",
        "--code",
    )
    documents: str = option("trained", "Layer of the documents: trained, same, last, or a number.")
    measures: tuple[str, ...] = option(
        (), "Measures in the notation of ir_measures. Default: those of the data.", "--measure"
    )
    runs: Runs = option(
        "whole", "TREC runs to write: of the full model (whole), of all cuts, or none."
    )
    costs: bool = option(False, "Measure latency, bytes and encoding speed of cuts.")
    overwrite: bool = option(False, "Measure all cuts again.")
    out: Path = _out()
    runtime: DocumentRuntime = document_runtime_option()
    _: KW_ONLY
    command: str = ""  # of the shell that asked, which results keep
    query_vectors: Path | None = option(
        None,
        "Query vectors from the model that made the documents' vectors, by id or in order: the "
        "last layer of the grid.",
        read=Path,
    )


@dataclass(frozen=True, repr=False)
class TaskRequest(_OnDevice):
    """The options of every sentence task."""

    tasks: tuple[str, ...] = option(REQUIRED, "File or folder of a task.", "--task")
    models: tuple[str, ...] = _models()
    layers: tuple[int, ...] = _layers()
    dims: tuple[int, ...] = _dims()
    measures: tuple[str, ...] = ()  # each kind of task has its own
    out: Path = _out()


@dataclass(frozen=True, repr=False)
class StsRequest(TaskRequest):
    """Sentence similarity: correlation of cosines with human scores.

    Examples:
        m2dr evaluate sts --task stsb-test
        m2dr evaluate sts --task sick-test --layers 2,4,6 --measure Pearson
    """

    tasks: tuple[str, ...] = option(
        REQUIRED,
        "File of scored sentence pairs, or NAME of data/sts/NAME.tsv; commas join files to a task.",
        "--task",
    )
    measures: tuple[str, ...] = _measures("Spearman", "Spearman", "Pearson")
    split: str = _split()


@dataclass(frozen=True, repr=False)
class PairsRequest(TaskRequest):
    """Pair classification: average precision, accuracy and F1, at the best threshold.

    Examples:
        m2dr evaluate pairs --task pairs.tsv
        m2dr evaluate pairs --task pairs.tsv --layers 2,4,6 --measure cosine-F1
    """

    tasks: tuple[str, ...] = option(
        REQUIRED,
        "File of sentence pairs labelled 1 or 0, or NAME in data/pair-classification; commas join "
        "files to a task.",
        "--task",
    )
    measures: tuple[str, ...] = _measures(
        "cosine-AP",
        *(f"{by}-{what}" for by in ("cosine", "dot") for what in ("AP", "Accuracy", "F1")),
    )
    split: str = _split()  # of a folder: the file, test where none is named


@dataclass(frozen=True, repr=False)
class ClassificationRequest(TaskRequest):
    """Text classification: accuracy and macro F1 of logistic regressions on frozen vectors.

    Examples:
        m2dr evaluate classification --task banking77
        m2dr evaluate classification --task data/mine --protocol full --measure F1
    """

    tasks: tuple[str, ...] = option(
        REQUIRED,
        "Folder of train.csv and test.csv, or NAME of data/classification/NAME.",
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
    iterations: int = option(100, "Maximum iterations of a fit.", least=1)
    raw: bool = option(False, "Classify prefixes without normalising them to length one.")
    seed: int = option(42, "Seed of the drawn training texts.", most=2**32 - 1)


@dataclass(frozen=True, repr=False)
class MtebRequest(_OnDevice):
    """Any task of MTEB, at any cuts; MTEB downloads its data.

    Examples:
        m2dr evaluate mteb --task STS12
        m2dr evaluate mteb --task NFCorpus --layers 2,4,6 --dims 64,384
    """

    tasks: tuple[str, ...] = option(REQUIRED, "Name of a task in MTEB.", "--task")
    model: str = option("", NEWEST)
    layers: tuple[int, ...] = option(
        (),
        "Layers to run; 0: words alone. Default: the full model.",
        *reversed(LAYERS),
    )
    dims: tuple[int, ...] = option(
        (), "Dims to keep. Default: the full width.", *reversed(DIMS), least=1
    )
    out: Path = _out()


@dataclass(frozen=True, repr=False)
class CompareRequest:
    """Test which cuts differ significantly from a baseline, by a paired test of each.

    FOLDER holds the results of one model, such as results/pydocs/test/pydocs-full-dim.

    Examples:
        m2dr compare results/pydocs/test/pydocs-fitted --against bm25.trec
        m2dr compare results/scifact/test/a --against results/scifact/test/b@L6D384
    """

    folder: Path = option(
        REQUIRED, "Results of a model: results/CORPUS/SPLIT/MODEL.", is_argument=True
    )
    against: tuple[str, ...] = option(
        REQUIRED, "Baseline: a folder of results, one cut of it as FOLDER@L6D384, or a TREC run."
    )
    measures: tuple[str, ...] = option(
        (), "Measures to compare. Default: nDCG@10, else the first.", "--measure"
    )
    alpha: float = option(ALPHA, "Significance level.")
    qrels: Path | None = option(
        None, "Judgements for a run. Default: those in the results.", is_file=True
    )
    out: Path | None = option(None, "Folder of the JSON and CSV. Default: FOLDER.")


@dataclass(frozen=True, repr=False)
class PickRequest(Blend):
    """Name the best cut within a budget, and the Pareto frontier.

    FOLDER holds the results of one model, such as results/pydocs/test/pydocs-full-dim. With a
    limit on latency, bytes or multiply-adds m2dr names the best cut within it; with a minimum
    quality alone, the cheapest cut that reaches it, by all three costs alike. Ties go to the
    cheaper cut. m2dr evaluate retrieval --costs measures the costs.

    Examples:
        m2dr pick results/pydocs/test/pydocs-fitted --latency 5ms
        m2dr pick results/scifact/test/minilm --quality 97% --json
    """

    folder: Path = option(
        REQUIRED, "Results of a model: results/CORPUS/SPLIT/MODEL.", is_argument=True
    )
    latency_ms: float | None = option(
        None, "Maximum latency of a query, such as 5ms.", "--latency", read=milliseconds
    )
    percentile: Literal[50, 95] = option(50, "Percentile of the queries' latencies.")
    bytes_per_document: float | None = option(
        None,
        "Maximum size in the index, such as 256 or 1KB.",
        "--bytes-per-document",
        "--bytes",
        read=size,
    )
    multiply_adds: float | None = option(
        None, "Maximum multiply-adds of a query, such as 85M.", read=count
    )
    quality: float | None = option(
        None, "Minimum quality, as a share of the full model's: 0.97 or 97%.", read=share
    )
    at_least: tuple[str, float] | None = option(
        None, "Minimum of a measure, such as nDCG@10=.3, in place of --quality.", read=measure_floor
    )
    measure: str = option(
        "", "Measure of quality. Default: that of --at-least, else nDCG@10, else the first."
    )


@dataclass(frozen=True, repr=False)
class FiguresRequest:
    """Draw the papers' figures from folders of results.

    RESULTS are folders that m2dr evaluate wrote: of one model, of several on one corpus, or results
    itself (default).

    Examples:
        m2dr figures
        m2dr figures results/pydocs --format svg
    """

    results: tuple[Path, ...] = option(
        (RESULTS,), "Folders of results: of a model, of several, or all of them.", is_argument=True
    )
    out: Path = option(Path("figures"), "Folder of the figures.")
    measures: tuple[str, ...] = option((), "Measures to draw. Default: the first.", "--measure")
    formats: tuple[Literal["png", "svg", "pdf", "tex"], ...] = option(
        ("png",), "File format; tex: a table per measure, for LaTeX's booktabs.", "--format"
    )
    separate: Path | None = option(
        None, "Results of models trained for one cut each; the figure shows the gap to them."
    )


@dataclass(frozen=True, repr=False)
class ExportRequest:
    """Write a cut as a smaller model that stands alone, or as a graph.

    The folder opens in m2dr and sentence-transformers, and gives the vectors of the cut. If the cut
    has a fitted exit, which reads words, sentence-transformers needs m2dr too.

    Examples:
        m2dr export --layers 4 --out models/small
        m2dr export --layers 0 --dim 128 --out models/table
    """

    out: Path = option(REQUIRED, "Folder of the smaller model.")
    model: str = option("", NEWEST)
    cut: Cut | None = option(
        None,
        "Cut to export, such as L4D128; layer 0: words alone.",
        read=Cut.parse,
        metavar="L4D128",
    )
    format: Literal["", "onnx", "openvino"] = option(
        "",
        "onnx or openvino: a graph. Default: a folder for m2dr and sentence-transformers; of layer "
        "0 a table of words.",
    )
    force: bool = option(False, "Export a cut that was neither fitted nor trained.")
    exits: Path | None = option(
        None, "Folder exits of an index, in place of the model's own exits."
    )
    results: tuple[Path, ...] = option(
        (), "Folder of results for the model card. Default: results.", "--results"
    )
    layers: int | None = option(None, "Layers to keep, with all dims unless --dim is given.")
    dim: int | None = option(None, "Dims to keep, beside --layers.", *DIMS, least=1)
    pooling: str = option(
        "",
        "Pooling of a folder that names none; exports it whole: cls, mean, last, …, several joined "
        "by +, or cls_avg (the mean of cls and mean).",
    )
    similarity: Similarity | None = option(None, "Similarity of such a folder: cosine or dot.")
    query_length: int | None = length_option("query", "model")
    document_length: int | None = length_option("document", "model")


def _own_model() -> Any:  # a field
    return option(REQUIRED, "Folder of a model that m2dr wrote.", is_argument=True)


@dataclass(frozen=True, repr=False)
class CardRequest:
    """Write a model's README.md again, with its latest results.

    m2dr keeps the text between its two comments, and metadata such as a license.

    Examples:
        m2dr card models/pydocs-full-dim
        m2dr card models/pydocs-fitted --results results/scifact
    """

    model: Path = _own_model()
    results: tuple[Path, ...] = option(
        (), "Folder of results, of one model or of several. Default: results.", "--results"
    )


@dataclass(frozen=True, repr=False)
class PushModelRequest:
    """Upload a model to the Hugging Face hub.

    Run again, it goes on where it stopped. ID is OWNER/NAME. It uploads files of the model alone:
    no checkpoints, logs or hidden files.

    Examples:
        m2dr push models/pydocs-full-dim OWNER/NAME --dry-run
        m2dr push models/pydocs-full-dim OWNER/NAME --private
    """

    model: Path = _own_model()
    id: str = option(REQUIRED, "Name of the model on the hub: OWNER/NAME.", is_argument=True)
    private: bool = option(False, "Make a new model private.")
    revision: str = option("", "Branch to write to, made if it is missing. Default: main.")
    message: str = option("", "Message of the commit.")
    token: str = option("", "Token of the hub. Default: $HF_TOKEN, or that of hf auth login.")
    dry_run: bool = option(False, "List the files and their sizes, without network.")


LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, repr=False)
class ServeRequest(_OfIndexes, QueryOptions, Shown):
    """Serve indexes over HTTP: search, embeddings and a page.

    Examples:
        m2dr serve --index indexes/pydocs --port 8080
        m2dr serve --corpus pydocs --model models/fitted --token-env M2DR_TOKEN
    """

    indexes: tuple[str, ...] = option(
        (),
        "Folder of an index: of all layers, of one layer, or of one dim. Default: the index of "
        "--corpus by --model.",
        "--index",
    )
    corpus: str = option(PYDOCS, "Corpus of the index; with --index, where its texts are now.")
    model: str = option(
        "", "Folder or id. Default: the one that the index names, else the newest in models/."
    )
    grid: Path | None = option(
        None,
        "grid.json of m2dr evaluate for the page. Default: the one of the model in results/.",
        is_file=True,
    )
    host: str = option("127.0.0.1", "Address to listen at; 0.0.0.0 for every network.")
    allow_hosts: tuple[str, ...] = option(
        (), "Further host name to accept, such as that of a reverse proxy.", "--allow-host"
    )
    port: int = option(8080, "Port to listen at; 0: any free one.", most=65535)
    token_env: str = option("", "Environment variable with the token of requests.", metavar="NAME")
    engine: str = option("", "Engine that was built, or exact. Default: flat.")
    runtime: str = option("torch", "Runtime: torch, onnx or openvino.")
    batch_size: int = option(64, "Maximum texts of a batch; 1: no batches.", least=1)
    batch_wait: float = option(
        2.0, "Milliseconds to wait for a batch to fill while there are many requests."
    )
    queue: int = option(2048, "Maximum texts that wait; further requests get 429.", least=1)
    max_body: int = option(2**23, "Maximum bytes of a request.", least=64)
    timeout: float = option(30.0, "Seconds after which a request gets 504.")
