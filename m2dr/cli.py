"""argv in, lines out. click lives here; whatever needs a test lives below."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from m2dr import __version__
from m2dr.errors import Interrupted, UserError, nearest, refusal_of
from m2dr.records.variant import VARIANTS

if TYPE_CHECKING:
    from m2dr.settings import TrainSettings
    from m2dr.verbs.search import Answer, Searcher

Command = TypeVar("Command", bound=Callable[..., Any])
FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
MISTAKE, STOPPED = 2, 1  # exit codes


class Polite(click.Group):
    """Shows what a person can fix as a sentence; every other error keeps its traceback."""

    def main(self, args: Sequence[str] | None = None, **kwargs: Any) -> Any:  # type: ignore[override]  # noqa: ANN401  # click's overloads
        """Run; `--debug` may stand anywhere."""
        words = list(sys.argv[1:] if args is None else args)
        debug = "--debug" in words
        try:
            return super().main([word for word in words if word != "--debug"], **kwargs)
        except Exception as error:
            sentence = str(error) if isinstance(error, UserError) else refusal_of(error)
            if debug or not sentence:
                raise
            _stop(f"Error: {sentence}", STOPPED if isinstance(error, Interrupted) else MISTAKE)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command when there is none of that name."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"There is no command {args[0]!r}. {nearest(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


def _stop(sentence: str, code: int) -> NoReturn:
    click.echo(sentence, err=True)
    sys.exit(code)


def _whole_numbers(
    _: click.Context, __: click.Parameter, value: str | Sequence[str] | None
) -> tuple[int, ...]:
    """`2,4,6`, or an option given several times, as numbers from 1."""
    words = value.split(",") if isinstance(value, str) else (value or ())
    words = [word.strip() for part in words for word in str(part).split(",")]
    bad = [word for word in words if not word.isdecimal() or int(word) < 1]
    if bad:
        raise click.BadParameter(f"{bad[0]!r} is not a whole number from 1.")
    return tuple(sorted({int(word) for word in words}))


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, in the order of the help."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_MACHINE = _options(
    click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N."),
    click.option("--dtype", default="auto", help="auto, fp32 or bf16."),
)
_MODEL = click.option("--model", default="", help="Folder or id; the newest of models/ by default.")
_CORPUS = click.option(
    "--corpus",
    default="pydocs",
    show_default=True,
    help="pydocs, a folder in BEIR or MS MARCO layout, a JSONL file of pairs, or irds:ID.",
)
_ROOT = click.option(
    "--indexes",
    "root",
    type=FOLDER,
    default=Path("indexes"),
    show_default=True,
    help="Where indexes lie.",
)


_RUN = _options(
    click.option("--backbone", help="Hugging Face id or folder; minilm is built in."),
    click.option("--steps", type=click.IntRange(min=1), help="Optimiser steps."),
    click.option("--seed", type=click.IntRange(min=0), help="Same seed, same model."),
    click.option("--device", help="auto, cpu, cuda or cuda:N."),
    click.option("--dtype", help="auto, fp32 or bf16."),
    click.option("--config", type=FILE, help="A TOML file of settings; see configs/."),
    click.option(
        "--set", "words", multiple=True, metavar="KEY=VALUE", help="Any setting; repeatable."
    ),
    click.option("--resume", is_flag=True, help="Go on with an interrupted one."),
    click.option("--overwrite", is_flag=True, help="Begin again in a folder that is in use."),
    click.option(
        "--dry-run", "only_try", is_flag=True, help="Try a few steps, and forecast the rest."
    ),
)


@click.group(cls=Polite, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, expose_value=False, help="Show an error's traceback.")
def main() -> None:
    """Train one encoder, cut it to any layer and any dim, and search with what is left."""
    # Read when OpenMP loads: waiting threads that spin take the cores from those that work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


@main.command()
@click.option("--variant", metavar="NAME", help=f"The recipe: {', '.join(VARIANTS)}.")
@click.option("--corpus", help="What to train on; as for `m2dr index corpus`.")
@click.option("--layers", callback=_whole_numbers, help="Shallow layers to train, as 1,2,4.")
@click.option("--dims", callback=_whole_numbers, help="Prefixes to train, as 32,128.")
@click.option("--batch-queries", type=click.IntRange(min=1), help="Queries per step.")
@click.option("--negatives", type=click.IntRange(min=0), help="Negatives per query.")
@click.option("--out", type=FOLDER, help="Model folder; models/CORPUS-VARIANT by default.")
@click.option("--explain", "only_explain", is_flag=True, help="Print the terms; train nothing.")
@_RUN
def train(
    config: Path | None,
    words: tuple[str, ...],
    out: Path | None,
    resume: bool,
    overwrite: bool,
    only_explain: bool,
    only_try: bool,
    **options: Any,  # noqa: ANN401  # settings that have an option of their own
) -> None:
    """Train one encoder whose every layer and every prefix can retrieve."""
    from m2dr.settings import read_train_settings

    given = {key: value for key, value in options.items() if value not in (None, ())}
    settings = read_train_settings(config, words, given)  # a misspelt key fails before torch loads
    if only_explain:
        _explain(settings)
        return
    from m2dr.verbs import separate, workplace

    if only_try:
        from m2dr.verbs.dryrun import describe, dry_run

        click.echo(describe(dry_run(separate.largest(settings))))
        _say_how_many(settings)
        return
    from m2dr.verbs import train as verb

    folder = workplace.folder_of(settings.corpus, settings.variant, out)
    _refuse_both(resume, overwrite)
    if resume:
        settings = workplace.resumed(read_train_settings, folder, config, words, given)
    if separate.asks_for_many(settings):
        many = separate.train_separately(settings, folder, resume, overwrite)
        _say_first(
            f"{len(many.cuts)} models, {len(many.trained)} of them trained now in "
            f"{many.seconds:,.0f} s: {many.folder}"
        )
        return
    report = verb.train(settings, folder, resume, overwrite)
    quality = report.quality
    dev = f", {report.measure} {quality:.4f} on dev" if quality is not None else ""
    _say_first(
        f"{report.steps} steps in {report.seconds:,.0f} s, loss {report.first_loss:.3f} -> "
        f"{report.last_loss:.3f}{dev}: {report.folder}"
    )


def _explain(settings: "TrainSettings") -> None:
    from m2dr.verbs.explain import explain
    from m2dr.verbs.material import kind_of
    from m2dr.verbs.recipe import recipe_of
    from m2dr.verbs.separate import largest

    one = largest(settings)
    click.echo(explain(recipe_of(one, kind_of(one))))
    _say_how_many(settings)


def _say_how_many(settings: "TrainSettings") -> None:
    from m2dr.verbs.separate import asks_for_many, cuts_asked

    if asks_for_many(settings):
        cuts = cuts_asked(settings)
        click.echo(f"{len(cuts)} models, one for each cut; this is the largest, {cuts[-1]}.")


def _say_first(line: str) -> None:
    from m2dr.verbs.progress import is_first

    if is_first():
        click.echo(line)


@main.command()
@click.option("--corpus", help="What to read: as for train, or a .txt file of a text per line.")
@click.option("--batch-texts", type=click.IntRange(min=1), help="Texts per step.")
@click.option("--out", type=FOLDER, help="Folder of the backbone; models/CORPUS-smae by default.")
@_RUN
def pretrain(
    config: Path | None,
    words: tuple[str, ...],
    out: Path | None,
    resume: bool,
    overwrite: bool,
    only_try: bool,
    **options: Any,  # noqa: ANN401  # settings that have an option of their own
) -> None:
    """Make a backbone whose small cuts know words, as a start for m2dr train (SMAE)."""
    from m2dr.settings import read_pretrain_settings

    given = {key: value for key, value in options.items() if value is not None}
    settings = read_pretrain_settings(config, words, given)
    from m2dr.verbs import pretrain as verb
    from m2dr.verbs import workplace

    if only_try:
        from m2dr.verbs.dryrun import describe

        click.echo(describe(verb.dry_run(settings)))
        return
    folder = workplace.folder_of(settings.corpus, "smae", out)
    _refuse_both(resume, overwrite)
    if resume:
        settings = workplace.resumed(read_pretrain_settings, folder, config, words, given)
    report = verb.pretrain(settings, folder, resume, overwrite)
    _say_first(
        f"{report.steps} steps in {report.seconds:,.0f} s, loss {report.first_loss:.3f} -> "
        f"{report.last_loss:.3f}: {report.folder}; train it with: m2dr train --backbone "
        f"{report.folder}"
    )


def _refuse_both(resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise UserError("--resume goes on and --overwrite begins again; give one of them.")


@main.group()
def index() -> None:
    """Encode documents once, and cut indexes from them."""


@index.command()
@_CORPUS
@_MODEL
@click.option("--dim", "dims", multiple=True, callback=_whole_numbers, help="Repeatable.")
@click.option(
    "--layer",
    "layers",
    multiple=True,
    callback=_whole_numbers,
    help="Repeatable; every layer the model was trained to search, by default.",
)
@click.option("--engine", default="flat", show_default=True, help="How to search.")
@click.option(
    "--shard-rows",
    type=click.IntRange(min=1),
    default=4096,
    show_default=True,
    help="Documents per file of vectors: what an interruption can cost.",
)
@click.option(
    "--store",
    type=click.Choice(["f16", "f32"]),
    default="f16",
    show_default=True,
    help="How vectors are kept.",
)
@_ROOT
@click.option("--resume", is_flag=True, help="Go on after an interruption; the default.")
@click.option("--overwrite", is_flag=True, help="Encode again from the first document.")
@_MACHINE
def corpus(resume: bool, **request: Any) -> None:  # noqa: ANN401  # fields of IndexRequest
    """Write a store per layer and an index per dim: indexes/CORPUS/MODEL/layer-NN/dim-K."""
    from m2dr.verbs.index import IndexRequest, index_corpus

    _refuse_both(resume, request["overwrite"])
    report = index_corpus(IndexRequest(**request))
    for folder in report.folders:
        click.echo(str(folder))
    click.echo(
        f"{report.documents:,} documents, {len(report.folders)} indexes, "
        f"{report.bytes / 1e6:,.1f} MB, {report.seconds:,.0f} s"
    )


@main.command()
@click.argument("text", required=False)
@_CORPUS
@_MODEL
@click.option(
    "--query-layer",
    type=click.IntRange(min=1),
    default=None,
    help="Blocks that the query runs through; all by default.",
)
@click.option(
    "--layer",
    type=click.IntRange(min=1),
    default=None,
    help="Layer of the documents; what the model was trained for, by default.",
)
@click.option(
    "--dim", type=click.IntRange(min=1), default=None, help="The longest that is built, by default."
)
@click.option(
    "-k",
    "k",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Documents per query; 1000 is usual with --run.",
)
@click.option("--topics", type=FILE, help="Queries: id<tab>text lines, or JSONL.")
@click.option("--run", "run_file", type=FILE, help="Where the TREC run of --topics goes.")
@_ROOT
@_MACHINE
def search(
    text: str | None,
    k: int,
    topics: Path | None,
    run_file: Path | None,
    **request: Any,  # noqa: ANN401  # fields of SearchRequest
) -> None:
    """Search an index with a query; without one, ask for queries on a terminal."""
    if (topics is None) != (run_file is None):
        raise UserError("--topics names the queries and --run the file for the run; give both.")
    if text is not None and topics is not None:
        raise UserError("A query was given and --topics too; give one of them.")
    if text is None and topics is None and not sys.stdin.isatty():
        raise UserError('Nothing to search for: give a query, as in m2dr search "read a file".')
    from m2dr.verbs import search as verb

    asked = {key: value for key, value in request.items() if value is not None}
    searcher = verb.Searcher(verb.SearchRequest(**asked))
    click.echo(searcher.describe, err=True)
    for warning in searcher.warnings:
        click.echo(f"Warning: {warning}", err=True)
    if topics and run_file:
        run = verb.search_topics(searcher, topics, run_file, k)
        click.echo(f"{len(run)} queries: {run_file}")
        return
    searcher.warm_up()
    if text is not None:
        _show(searcher.search(text, k))
    else:
        _prompt(searcher, k)


def _prompt(searcher: "Searcher", k: int) -> None:
    """Queries from the terminal until an empty line or the end of input."""
    while True:
        try:
            text = click.prompt("Query (empty to stop)", default="", show_default=False)
        except click.Abort:
            return
        if not text.strip():
            return
        _show(searcher.search(text, k))


def _show(answer: "Answer") -> None:
    for hit in answer.hits:
        snippet = " ".join(hit.snippet.split())
        short = snippet if len(snippet) <= 100 else snippet[:99] + "…"
        click.echo(f"{hit.rank:>3}  {hit.score:>8.4f}  {hit.docid}\n     {short}")
    click.echo(
        f"tokenise {answer.tokenise_ms:.2f} ms, encode {answer.encode_ms:.2f} ms, "
        f"search {answer.search_ms:.2f} ms",
        err=True,
    )


@main.group()
def evaluate() -> None:
    """Measure every cut of a model: table, CSV, JSON, runs and figure."""


_CUTS = _options(
    click.option(
        "--model",
        "models",
        multiple=True,
        help="Repeatable, to compare; the newest of models/ by default.",
    ),
    click.option("--layers", callback=_whole_numbers, help="As 2,4,6; all by default."),
    click.option(
        "--dims",
        callback=_whole_numbers,
        help="As 32,128; by default powers of two from 8, and the full width.",
    ),
)
_OUT = click.option(
    "--out",
    type=FOLDER,
    default=Path("results"),
    show_default=True,
    help="Where tables, runs and figures go.",
)
_EVALUATE = _options(
    _CUTS,
    click.option(
        "--measure",
        "measures",
        multiple=True,
        help="As ir_measures writes them; repeatable. nDCG@10 RR@10 R@100 R@1000.",
    ),
    click.option(
        "--runs",
        type=click.Choice(["whole", "all", "none"]),
        default="whole",
        show_default=True,
        help="Whose TREC runs are written: the largest cut's, all.",
    ),
    _ROOT,
    _OUT,
    _MACHINE,
)


@evaluate.command()
@click.option("--corpus", required=True, help="A folder in BEIR layout, or the name of one.")
@click.option("--split", default="test", show_default=True)
@_EVALUATE
def beir(**request: Any) -> None:  # noqa: ANN401  # fields of EvaluateRequest
    """A BEIR dataset, or any corpus in its layout."""
    _evaluate(**request)


@evaluate.command()
@click.option("--corpus", required=True, help="A folder of MS MARCO files, or in BEIR layout.")
@click.option("--split", default="dev.small", show_default=True, help="As in qrels.SPLIT.tsv.")
@_EVALUATE
def msmarco(**request: Any) -> None:  # noqa: ANN401  # fields of EvaluateRequest
    """MS MARCO passages: collection.tsv, queries.*.tsv and qrels.*.tsv."""
    _evaluate(**request)


@evaluate.command()
@click.option("--corpus", default="pydocs", show_default=True, help="pydocs or pydocs:stdlib.")
@click.option("--split", default="test", show_default=True)
@_EVALUATE
def pydocs(**request: Any) -> None:  # noqa: ANN401  # fields of EvaluateRequest
    """The built-in corpus: the docstrings of this machine's Python."""
    _evaluate(**request)


@evaluate.command()
@click.option(
    "--task",
    "tasks",
    multiple=True,
    required=True,
    help="A file of scored sentence pairs, or NAME for data/sts/NAME.tsv; repeatable.",
)
@_CUTS
@click.option(
    "--measure",
    "measures",
    type=click.Choice(["Spearman", "Pearson"], case_sensitive=False),
    multiple=True,
    help="What is printed and drawn, Spearman by default; files hold both. Repeatable.",
)
@_OUT
@_MACHINE
def sts(**request: Any) -> None:  # noqa: ANN401  # fields of StsRequest
    """Sentence similarity: how far cosines agree with what people said of pairs."""
    from m2dr.verbs.sts import StsRequest, evaluate_sts, tables

    asked = StsRequest(**{key: value for key, value in request.items() if value != ()})
    report = evaluate_sts(asked)
    click.echo(tables(report, asked.measures))
    click.echo(f"{report.seconds:,.0f} s; tables in {asked.out}")
    for figure in report.figures:
        click.echo(str(figure))


def _evaluate(**fields: Any) -> None:  # noqa: ANN401  # fields of EvaluateRequest
    from m2dr.verbs.evaluate import EvaluateRequest, tables
    from m2dr.verbs.evaluate import evaluate as verb

    given = {key: value for key, value in fields.items() if value not in ((), None)}
    report = verb(EvaluateRequest(**given))
    click.echo(tables(report.grids))
    click.echo(f"{report.seconds:,.0f} s; tables and runs in {report.folder}")
    for figure in report.figures:
        click.echo(str(figure))


@main.command()
@_CORPUS
@click.option("--split", default="train", show_default=True, help="Whose queries.")
@_MODEL
@click.option(
    "--with",
    "by",
    type=click.Choice(["model", "bm25"]),
    default="model",
    show_default=True,
    help="Who ranks: a model by its own index, or BM25, which needs none.",
)
@click.option(
    "--layer",
    type=click.IntRange(min=1),
    default=None,
    help="Blocks that the queries run through; all by default.",
)
@click.option(
    "--dim", type=click.IntRange(min=1), default=None, help="The longest that is built, by default."
)
@click.option(
    "--depth",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="How many of the best documents are looked at.",
)
@click.option(
    "--negatives",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Kept per query, the hardest first; m2dr train reads 64 at most.",
)
@click.option(
    "--skip",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="So many of the best are passed over: nobody judged them, and they may answer.",
)
@click.option(
    "--margin",
    type=float,
    default=0.95,
    show_default=True,
    help="Share of the answer's score that a negative may have; 0 for any.",
)
@click.option("--queries", type=click.IntRange(min=1), default=None, help="The first so many.")
@click.option("--out", type=FILE, required=True, help="JSONL file of training groups.")
@_ROOT
@click.option("--overwrite", is_flag=True, help="Replace the file.")
@_MACHINE
def mine(**request: Any) -> None:  # noqa: ANN401  # fields of MineRequest
    """Find hard negatives: documents that rank high and are not known to answer."""
    from m2dr.verbs.mine import MineRequest
    from m2dr.verbs.mine import mine as verb

    given = {key: value for key, value in request.items() if value is not None}
    click.echo(verb(MineRequest(**given)).line)


@main.command()
@_MODEL
@click.option("--layer", type=click.IntRange(min=1), required=True, help="Blocks to keep.")
@click.option("--out", type=FOLDER, required=True, help="The smaller model's folder.")
def export(model: str, layer: int, out: Path) -> None:
    """Write the first blocks of a model as a model of their own."""
    from m2dr.verbs.export import export as verb

    card = verb(model, layer, out)
    cuts = ", ".join(map(str, card.cuts)) or "none"
    click.echo(f"{card.layers} layers, cuts trained: {cuts}; {out}")


@main.command()
@click.option("--out", type=FOLDER, default=Path(), help="Folder to work in; this one by default.")
@click.option("--steps", type=click.IntRange(min=1), default=None, help="Of each training.")
def quickstart(out: Path, steps: int | None) -> None:
    """Train, index, search and evaluate on the built-in corpus, in a few minutes."""
    from m2dr.verbs.quickstart import quickstart as verb

    verb(out, steps, click.echo)
