"""All commands: each reads its options into a request, calls one task and prints its report."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from m2dr.cli.main import MISTAKE, STOPPED, echo, echo_all, echo_json, group, main, warn
from m2dr.cli.options import (
    FILE,
    cut_option,
    json_option,
    refuse_both,
    settings_command,
    settings_of,
    takes,
)
from m2dr.core import requests
from m2dr.core.errors import UserError, counted, require
from m2dr.core.progress import is_main_process
from m2dr.core.records import PRETRAINED
from m2dr.core.requests import PYDOCS
from m2dr.core.settings import FitSettings, PretrainSettings, TrainSettings

if TYPE_CHECKING:
    from m2dr.tasks.evaluating.evaluate import EvaluateReport
    from m2dr.tasks.evaluating.sentence_tasks import TaskReport


# Training


@main.task(
    "train --variant full-dim",
    "train --corpus pairs.jsonl --backbone bert-base-uncased --dims 64,256",
    cls=settings_command(TrainSettings),
)
@settings_of(
    TrainSettings, "VARIANT", "variant", "corpus", "backbone", "revision", "layers", "dims",
    "batch_size", "negatives", "learning_rate", "steps", "epochs", "seed", "device", "dtype",
    "report_to",
)  # fmt: skip
@click.option("--explain", "only_explain", is_flag=True, help="Print the terms; train nothing.")
def train(
    settings: TrainSettings, folder: Path, resume: bool, overwrite: bool, only_explain: bool
) -> None:
    """Train an encoder so that every layer and prefix can retrieve."""
    if only_explain:
        from m2dr.tasks.training.recipe import explain
        from m2dr.tasks.training.train import of_cut, separate_cuts
        from m2dr.tasks.training.training_data import kind_of

        cuts = separate_cuts(settings)
        one = of_cut(settings, cuts[-1]) if cuts else settings
        echo(explain(one, kind_of(one)))
        if cuts:
            count = counted(len(cuts), "models")
            echo(f"{count}, one for each cut; this is the largest, {cuts[-1]}.")
        return
    from m2dr.tasks.training import train as task

    if task.separate_cuts(settings):
        many = task.train_separately(settings, folder, resume, overwrite)
        _say_first(
            f"{counted(len(many.cuts), 'models')}, {len(many.trained)} of them trained now in "
            f"{many.seconds:,.0f} s: {many.folder}"
        )
        return
    report = task.train(settings, folder, resume, overwrite)
    dev = f", {report.measure} {report.quality:.4f} on dev" if report.quality is not None else ""
    _say_first(
        f"{counted(report.steps, 'steps')} in {report.seconds:,.0f} s, loss "
        f"{report.first_loss:.3f} -> {report.last_loss:.3f}{dev}: {report.folder}"
    )


@main.task(
    "fit --backbone minilm",
    "fit --backbone BAAI/bge-base-en-v1.5 --corpus texts.txt",
    cls=settings_command(FitSettings),
)
@settings_of(
    FitSettings, "fitted", "backbone", "revision", "corpus", "texts", "rotation",
    "language", "seed", "device", "dtype", resumes=False,
)  # fmt: skip
def fit(settings: FitSettings, folder: Path, overwrite: bool) -> None:
    """Make every layer and prefix retrieve by least squares.

    The encoder stays as it is, and nothing is trained: an exit is fitted to each layer.
    """
    from m2dr.tasks.training import fit as task

    report = task.fit(settings, folder, overwrite)
    cosines = ", ".join("-" if cosine is None else f"{cosine:.3f}" for cosine in report.cosines)
    _say_first(
        f"{counted(report.texts, 'texts')} in {report.seconds:,.0f} s, cosines of layers 1 to "
        f"{report.card.layers - 1} with the full model on held-out texts: {cosines}; "
        f"{report.folder}"
    )


@main.task(
    "pretrain --steps 200",
    "pretrain --backbone bert-base-uncased --corpus texts.txt --epochs 1",
    cls=settings_command(PretrainSettings),
)
@settings_of(
    PretrainSettings, PRETRAINED, "corpus", "backbone", "revision", "batch_size", "learning_rate",
    "steps", "epochs", "seed", "device", "dtype", "report_to",
)  # fmt: skip
def pretrain(settings: PretrainSettings, folder: Path, resume: bool, overwrite: bool) -> None:
    """Pre-train small cuts of a backbone on masked tokens (SMAE).

    What it writes is a start for m2dr train.
    """
    from m2dr.tasks.training import pretrain as task

    report = task.pretrain(settings, folder, resume, overwrite)
    _say_first(
        f"{counted(report.steps, 'steps')} in {report.seconds:,.0f} s, loss "
        f"{report.first_loss:.3f} -> {report.last_loss:.3f}: {report.folder}; train it with: "
        f"m2dr train --backbone {report.folder}"
    )


def _say_first(line: str) -> None:
    """Print a line once, whatever the number of processes."""
    if is_main_process():
        echo(line)


# Indexes

index = group("index", "Encode documents once, and cut indexes from them.")


@index.task(
    "index corpus docs.jsonl --dim 128",
    "index corpus --corpus scifact --dims 128,384 --engine hnsw",
)
@takes(requests.IndexRequest)
@click.option("--resume", is_flag=True, help="Go on after an interruption; the default.")
def corpus(request: requests.IndexRequest, resume: bool) -> None:
    """Encode a corpus: a store per layer and an index per dim.

    They are written to indexes/CORPUS/MODEL/layer-NN/dim-K. Where the corpus has changed since,
    only texts that are new are encoded, at all layers that are there.
    """
    refuse_both(resume, request.overwrite)
    from m2dr.tasks.indexing.index import index_corpus

    report = index_corpus(request)
    echo_all(report.folders)
    warn(report.notes)
    echo(
        f"{counted(report.documents, 'documents', ',')}, "
        f"{counted(len(report.folders), 'indexes')}, "
        f"{report.bytes / 1e6:,.1f} MB, {report.seconds:,.0f} s"
    )


@index.task("index fit", "index fit --corpus scifact --model minilm", name="fit")
@takes(requests.FitIndexRequest)
def index_fit(request: requests.FitIndexRequest) -> None:
    """Fit words and exits on the documents of an index that has none, or a bridge to it.

    Queries of any layer search it then, layer 0 runs none; over the bridge come those of another
    model.
    """
    from m2dr.tasks.indexing.fit_index import fit_index

    folder, record = fit_index(request)
    echo(f"{counted(record.fit.texts, 'documents')}: {folder}")


@index.task("index list", "index list --indexes /data/indexes --json", name="list")
@takes(requests.ListRequest)
@json_option
def index_list(request: requests.ListRequest, as_json: bool) -> None:
    """List what is encoded and built, and what is half-written."""
    from m2dr.evaluation.grid import aligned
    from m2dr.index.store import list_stores

    stores = list_stores(request.root)
    if as_json:
        echo_json([asdict(store) for store in stores])
        return
    if not stores:
        echo(f"{request.root}/ holds no store.")
        return
    names = ("corpus", "model", "fingerprint", "layer", "documents", "dtype", "MB")
    rows = [(*names, "dims and engines", "")]
    rows += [
        (
            store.corpus, store.model or "-", store.fingerprint, str(store.layer),
            f"{store.documents:,}", store.dtype,
            f"{store.bytes / 1e6:,.1f}", ", ".join(store.indexes) or "-",
            "" if store.finished else "half-written",
        )
        for store in stores
        if not store.problem
    ]  # fmt: skip
    echo_all(aligned(rows, left=range(len(rows[0]))))
    echo_all([store.problem for store in stores if store.problem])


@index.task("index verify", "index verify indexes/scifact --sample 100")
@takes(requests.VerifyRequest, argument=False)
@json_option
def verify(request: requests.VerifyRequest, as_json: bool) -> None:
    """Check all files of stores and indexes against their checksums.

    A sample of the documents is encoded again. FOLDERS are stores, or folders above them; all
    of --indexes by default. Ends with exit code 2 if anything is wrong.
    """
    from m2dr.tasks.indexing.verify import verify as task

    verdicts = task(request)
    if as_json:
        echo_json([{**asdict(verdict), "is_well": verdict.is_well} for verdict in verdicts])
    for verdict in () if as_json else verdicts:
        again = f", {counted(verdict.compared, 'documents')} encoded again" * bool(verdict.compared)
        echo(f"{verdict.folder}: {'ok' if verdict.is_well else 'WRONG'}{again}")
        echo_all([f"  {sentence}" for sentence in (*verdict.problems, *verdict.notes)])
    if not all(verdict.is_well for verdict in verdicts):
        raise SystemExit(MISTAKE)


@index.task(
    "index import v.npy --ids v.txt --corpus scifact --model minilm",
    "index import answers.jsonl --corpus texts.jsonl",
    name="import",
)
@takes(requests.ImportRequest, argument=False, corpus={"value": PYDOCS})
def index_import(request: requests.ImportRequest) -> None:
    """Take vectors of another tool as a store and its indexes.

    With --model they are that model's, and queries of any other are refused. Without it they need
    no model: words of the documents are fitted to them, and queries run no layer. Pickles are not
    read. m2dr index corpus with another --dim indexes one more prefix.
    """
    from m2dr.tasks.indexing.importing import import_vectors

    report = import_vectors(request)
    echo_all(report.indexes)
    sampled = f"{report.sampled} encoded again" if report.sampled else "none encoded again"
    echo(
        f"{counted(report.documents, 'documents', ',')} of width {report.width}, {sampled}, "
        f"{report.seconds:,.0f} s: {report.store}"
    )


@index.task(
    "index push --uri http://localhost:19530",
    "index push --uri milvus.db --corpus scifact --dims 128",
    name="push",
)
@takes(requests.PushRequest)
def index_push(request: requests.PushRequest) -> None:
    """Write indexes to Milvus, a collection per layer and dim.

    Given again, it goes on where it stopped. A collection is labelled with corpus, model, layer
    and dim, and other vectors are refused. Search it with m2dr search --index milvus:URI.
    """
    from m2dr.tasks.indexing.index import push_indexes

    report = push_indexes(request)
    for sent in report.collections:
        echo(
            f"{sent.name}: {counted(sent.documents, 'documents', ',')}, {sent.written:,} of them "
            f"written now ({sent.bytes / 1e6:,.1f} MB)"
        )
    echo(f"{counted(len(report.collections), 'collections')}, {report.seconds:,.0f} s")


# Search


@main.task(
    'search "read a file line by line"',
    "search --query-layer 4 --dim 128 --topics queries.tsv --run run.trec",
)
@click.argument("text", required=False)
@takes(requests.SearchRequest, argument=False)
@cut_option("query_layer")
@click.option(
    "--top-k",
    "-k",
    type=click.IntRange(min=1),
    show_default="10",
    metavar="N",
    help="Documents per query; 1000 is usual with --run.",
)
@click.option("--topics", type=FILE, help="Queries: id<tab>text lines, or JSONL.")
@click.option("--run", "run_file", type=FILE, help="TREC run to write, of --topics.")
@json_option
def search(
    request: requests.SearchRequest,
    text: str | None,
    top_k: int | None,
    topics: Path | None,
    run_file: Path | None,
    as_json: bool,
) -> None:
    """Search an index with a query, or with all queries of a file."""
    if (topics is None) != (run_file is None):
        raise UserError("--topics names the queries and --run the file for the run; give both.")
    if text is not None and topics is not None:
        raise UserError("A query was given and --topics too; give one of them.")
    if topics is None and not (text or "").strip():
        raise UserError('Nothing to search for: give a query, such as: m2dr search "read a file"')
    from m2dr.core.files import refuse_same_file
    from m2dr.data.qrels import read_topics
    from m2dr.evaluation.runs import write_run
    from m2dr.tasks.searching import search as task

    refuse_same_file("--run", run_file, {"--topics": topics, "--corpus": request.corpus})
    queries = read_topics(topics) if topics else None  # before anything is loaded
    searcher = task.Searcher(request)
    echo(searcher.describe, err=True)
    warn(searcher.warnings, "Warning")
    if queries is not None and run_file:
        run = searcher.run(queries, task.DEPTH if top_k is None else top_k)
        write_run(run, run_file)
        echo(f"{counted(len(run), 'queries')}: {run_file}", beside=run_file)
        return
    searcher.search("warm up", k=1)  # so that libraries are loaded before the query that counts
    answer = searcher.search(text or "", top_k)
    if as_json:
        echo_json(task.record_of(searcher, text or "", answer))
        return
    without_text = ""
    for hit in answer.hits:
        line = f"{hit.rank:>3}  {hit.score:>8.4f}  {hit.docid}"
        if hit.bm25_score is not None:
            by_vectors = "–" if hit.vector_score is None else f"{hit.vector_score:.4f}"
            line += f"  (vectors {by_vectors}, BM25 {hit.bm25_score:.2f})"
        try:
            snippet = " ".join(hit.text.split())
        except UserError as error:
            without_text = str(error)
            echo(line)
            continue
        echo(f"{line}\n     {snippet if len(snippet) <= 100 else snippet[:99] + '…'}")
    if not answer.hits:
        known = searcher.vectors([text or ""]).any()
        reason = "none fits the filter" if known else "no word of the query is known at layer 0"
        echo(f"No document was found: {reason}.", err=True)
    if without_text:
        warn([without_text], "Warning")
    echo(
        f"tokenise {answer.tokenise_ms:.2f} ms, encode {answer.encode_ms:.2f} ms, "
        f"search {answer.search_ms:.2f} ms",
        err=True,
    )


@main.task("mine --out groups.jsonl", "mine --retriever bm25 --corpus scifact --out groups.jsonl")
@takes(requests.MineRequest)
def mine(request: requests.MineRequest) -> None:
    """Find hard negatives to train with.

    These are documents that rank high and are not known to answer.
    """
    from m2dr.tasks.training.mine import mine as task

    report = task(request)
    echo(report.line, beside=report.out)


@main.task(
    "bm25 --split test --run bm25.trec",
    "bm25 --corpus scifact --topics queries.tsv --run bm25.trec",
)
@takes(requests.Bm25Request)
def bm25(request: requests.Bm25Request) -> None:
    """Rank by BM25: a lexical TREC run to fuse with, or a baseline."""
    from m2dr.tasks.searching.runs import bm25 as task

    report = task(request)
    echo(
        f"{counted(report.queries, 'queries', ',')} over "
        f"{counted(report.documents, 'documents', ',')}, "
        f"{report.seconds:,.0f} s: {report.run_file}",
        beside=report.run_file,
    )


@main.task(
    "fuse bm25.trec dense.trec --out fused.trec",
    "fuse a.trec b.trec c.trec.gz --top-k 100 --out top.trec",
)
@takes(requests.FuseRequest)
def fuse(request: requests.FuseRequest) -> None:
    """Fuse TREC runs, of m2dr or of any other tool, by reciprocal ranks."""
    from m2dr.tasks.searching.runs import fuse as task

    report = task(request)
    echo(
        f"{counted(report.queries, 'queries', ',')}, {counted(report.documents, 'lines', ',')}: "
        f"{report.out}",
        beside=report.out,
    )


@main.task(
    "serve --index indexes/pydocs --port 8080",
    "serve --corpus pydocs --model models/fitted --token-env M2DR_TOKEN",
)
@takes(requests.ServeRequest)
def serve(request: requests.ServeRequest) -> None:
    """Serve indexes over HTTP: search, embeddings and a page."""
    for name in ("fastapi", "uvicorn", "prometheus_client"):
        require(name, name, "serve")
    from m2dr.serve.app import serve as task

    task(request, lambda line: echo(line, err=True))


# Evaluation

evaluate = group("evaluate", "Measure every cut of a model: tables, runs and figures.")


@evaluate.task(
    "evaluate retrieval --corpus scifact --layers 2,4,6 --dims 64,384",
    "evaluate retrieval --corpus irds:beir/nfcorpus/test --costs --json",
)
@takes(requests.EvaluateRequest)
@json_option
def retrieval(request: requests.EvaluateRequest, as_json: bool) -> None:
    """Evaluate retrieval on any corpus.

    It may be in BEIR or MS MARCO layout, pydocs, irds:ID or hf:ID.
    """
    from m2dr.tasks.evaluating.evaluate import evaluate as task

    _show_task(task(request), as_json)


@evaluate.task(
    "evaluate sts --task stsb-test",
    "evaluate sts --task sick-test --layers 2,4,6 --measure Pearson",
)
@takes(requests.StsRequest)
@json_option
def sts(request: requests.StsRequest, as_json: bool) -> None:
    """Sentence similarity: correlations with what people said.

    The cosines of pairs are compared with their scores.
    """
    from m2dr.tasks.evaluating.sentence_tasks import evaluate_sts

    _show_task(evaluate_sts(request), as_json)


@evaluate.task(
    "evaluate classification --task banking77",
    "evaluate classification --task data/mine --protocol full --measure F1",
)
@takes(requests.ClassificationRequest)
@json_option
def classification(request: requests.ClassificationRequest, as_json: bool) -> None:
    """Text classification: accuracy and macro F1.

    A logistic regression is fitted on frozen vectors.
    """
    from m2dr.tasks.evaluating.sentence_tasks import evaluate_classification

    _show_task(evaluate_classification(request), as_json)


@evaluate.task(
    "evaluate pairs --task pairs.tsv",
    "evaluate pairs --task pairs.tsv --layers 2,4,6 --measure cosine-F1",
)
@takes(requests.PairsRequest)
@json_option
def pairs(request: requests.PairsRequest, as_json: bool) -> None:
    """Pair classification: average precision, accuracy and F1.

    Accuracy and F1 are those at the best threshold.
    """
    from m2dr.tasks.evaluating.sentence_tasks import evaluate_pairs

    _show_task(evaluate_pairs(request), as_json)


def _show_task(report: "EvaluateReport | TaskReport", as_json: bool) -> None:
    _show(report, as_json)
    if not as_json:
        echo(f"{report.seconds:,.0f} s; tables and runs in {report.folder}")
        echo_all(report.figures)


def _show(report: Any, as_json: bool) -> None:  # a report that prints itself and has a record
    echo_json(report.record()) if as_json else echo(str(report))


@evaluate.task(
    "evaluate mteb --task STS12", "evaluate mteb --task NFCorpus --layers 2,4,6 --dims 64,384"
)
@takes(requests.MtebRequest)
@json_option
def mteb(request: requests.MtebRequest, as_json: bool) -> None:
    """Any task of MTEB, at any cuts.

    The Massive Text Embedding Benchmark fetches its data.
    """
    from m2dr.integrations.mteb import evaluate_mteb

    _show(evaluate_mteb(request), as_json)


@main.task(
    "compare results/pydocs/test/pydocs-fitted --against bm25.trec",
    "compare results/scifact/test/a --against results/scifact/test/b@L6D384",
)
@takes(requests.CompareRequest)
@json_option
def compare(request: requests.CompareRequest, as_json: bool) -> None:
    """Test which cuts differ significantly from a baseline.

    Each cell of a grid is compared by a paired test. FOLDER holds the results of one model, as
    results/pydocs/test/pydocs-full-dim.
    """
    from m2dr.tasks.evaluating.compare import compare_folders

    report = compare_folders(request)
    _show(report, as_json)
    echo_all(() if as_json else report.files)


@main.task(
    "pick results/pydocs/test/pydocs-fitted --latency 5ms",
    "pick results/scifact/test/minilm --quality 97% --json",
)
@takes(requests.PickRequest)
@json_option
def pick(request: requests.PickRequest, as_json: bool) -> None:
    """Name the best cut within a budget, and the Pareto frontier.

    FOLDER holds the results of one model, as results/pydocs/test/pydocs-full-dim. With a limit on
    latency, bytes or multiply-adds the best of the cuts that fit is named; with a least quality
    alone, the cheapest that reaches it, by all three costs alike. Ties go to the cheaper. Costs
    are measured by m2dr evaluate retrieval --costs.
    """
    from m2dr.tasks.evaluating.pick import pick_cut

    _show(pick_cut(request), as_json)


@main.task("figures", "figures results/pydocs --format svg")
@takes(requests.FiguresRequest)
def figures(request: requests.FiguresRequest) -> None:
    """Draw the papers' figures from folders of results.

    RESULTS are folders that m2dr evaluate wrote: of one model, of several on one corpus, or
    results itself, which is the default.
    """
    from m2dr.tasks.evaluating.figures import draw_figures

    echo_all(draw_figures(request))


# Models and data


@main.task(
    "encode texts.txt --out vectors.npy",
    "encode queries.jsonl --query --layer 4 --dim 128 --out queries.npy",
)
@takes(requests.EncodeRequest)
@cut_option("layer")
def encode(request: requests.EncodeRequest) -> None:
    """Write the vectors of texts, for any other tool.

    FILE is a .txt file with a text per line, a .tsv file with an id and a text per line, a .jsonl
    file whose records have a text and perhaps a title and an id, such as corpus.jsonl and
    queries.jsonl of BEIR, or a corpus. Vectors of a model that compares by cosine have length one.
    """
    from m2dr.tasks.encode import encode as task

    report = task(request)
    what = f"{counted(report.texts, 'texts', ',')}, {report.cut} of {report.model}"
    echo(f"{what}, {report.seconds:,.0f} s: {request.out}", beside=request.out)


@main.task("export --layers 4 --out models/small", "export --layers 0 --dim 128 --out models/table")
@takes(requests.ExportRequest)
def export(request: requests.ExportRequest) -> None:
    """Write a cut as a smaller model that stands alone, or as a graph.

    The folder opens in transformers, sentence-transformers and m2dr, and gives the vectors of the
    cut.
    """
    from m2dr.tasks.publish import export_model

    echo_all(export_model(request))


@main.task("card models/pydocs-full-dim", "card models/pydocs-fitted --results results/scifact")
@takes(requests.CardRequest)
def card(request: requests.CardRequest) -> None:
    """Write a model's README.md with what was measured since.

    Text between its two comments, and metadata such as a license, are kept.
    """
    from m2dr.tasks.publish import write_card

    echo_all(write_card(request).lines())


@main.task(
    "push models/pydocs-full-dim OWNER/NAME --dry-run",
    "push models/pydocs-full-dim OWNER/NAME --private",
)
@takes(requests.PushModelRequest)
@json_option
def push(request: requests.PushModelRequest, as_json: bool) -> None:
    """Upload a model to the Hugging Face hub.

    Given again, it goes on where it stopped. ID is OWNER/NAME. Only files of the model are
    sent: no checkpoints, logs or hidden files.
    """
    from m2dr.tasks.publish import push_model

    report = push_model(request)
    if as_json:
        echo_json({**asdict(report), "bytes": report.bytes})
    else:
        echo_all(report.lines())


data = group("data", "Look at data before it is used.")


@data.task("data check pydocs", "data check pairs.jsonl --strict --json")
@takes(requests.CheckRequest)
@json_option
def check(request: requests.CheckRequest, as_json: bool) -> None:
    """Count what a corpus holds and what is wrong with it, and show its first rows.

    It is read whole. NAME is what --corpus of other commands takes. A group is a query with a
    relevant document, as a training draws it.
    """
    from m2dr.tasks.data import check_data

    report = check_data(request)
    echo_json(asdict(report)) if as_json else echo(str(report))
    if request.strict and report.problems:
        raise SystemExit(STOPPED)
