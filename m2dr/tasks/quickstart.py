"""`m2dr quickstart`: fit, index, search and evaluate on the built-in corpus, step by step."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from m2dr.core.errors import command, counted
from m2dr.core.records import Cut
from m2dr.core.requests import (
    EvaluateRequest,
    IndexRequest,
    SearchRequest,
    ServeRequest,
    index_command,
)
from m2dr.core.trainings import read_fit_settings, read_train_settings
from m2dr.evaluate.grid import GRID, Grid
from m2dr.model.hub import CARD, RECORD
from m2dr.tasks.evaluate import EvaluateReport, evaluate, keep_record
from m2dr.tasks.fit import fit
from m2dr.tasks.index import index_corpus
from m2dr.tasks.run_folder import folder_of, resumed
from m2dr.tasks.search import Searcher
from m2dr.tasks.train import train

Say = Callable[[str], None]

CORPUS = "pydocs:stdlib"  # the standard library alone: minutes, not an hour, on two cores
BACKBONE = "minilm"
TEXTS = 1500  # of the fit
STEPS = 60  # of each training
WORDS = ("learning_rate=7e-5", "dropout=0.0", "evaluate_steps=0")
VARIANTS = ("plain", "full-dim")
MEASURES = ("nDCG@10",)
QUERIES = (
    "read a file line by line",
    "run several threads at the same time",
    "parse command line arguments",
)
SMALL = 128  # dims of the smaller index
PAGE_CUT = Cut(2, SMALL)  # which the page shows first


def quickstart(out: Path, trains: bool, steps: int | None, say: Say) -> EvaluateReport:
    """Fit, index, search and evaluate; what is already there is not made again.

    Args:
        out: holds models/, indexes/ and results/.
        trains: whether models are trained besides.
        steps: of each training.
        say: told each command, table and answer.
    """
    fitted = _fit(out, say)
    _index(out, fitted, say)
    _search(out, fitted, say)
    trained = [_train(out, variant, steps or STEPS, say) for variant in VARIANTS if trains]
    report = _evaluate(out, [fitted, *trained], say)
    say(f"\nThe table above as a figure: {report.figures[0]}")
    say(f"Tables, runs and JSON: {report.folder}")
    if not trains:
        train_on = command("train", variant=VARIANTS[0], corpus=CORPUS)
        say(f"\nTo train a model and have exits fitted at its end: {train_on}")
        compared = command("quickstart", train=True, out=out if out != Path() else None)
        say(f"To see it compared with others here: {compared}")
    return report


def served(out: Path, report: EvaluateReport, say: Say) -> ServeRequest:
    """Return what `m2dr quickstart --open` serves, and say the command that it stands for."""
    model = out / folder_of(CORPUS, "fitted", None)
    grid = report.folder / model.name / GRID
    shown = command(
        "serve", corpus=CORPUS, model=model, indexes=_elsewhere(out, "indexes"), grid=grid
    )
    say(f"\n$ {shown}")
    return ServeRequest(corpus=CORPUS, model=str(model), root=out / "indexes", grid=grid)


def _fit(out: Path, say: Say) -> Path:
    options = {"backbone": BACKBONE, "corpus": CORPUS, "texts": TEXTS}
    settings = read_fit_settings(None, (), options)
    folder = out / folder_of(CORPUS, "fitted", None)
    say(f"\n$ {command('fit', **options, out=folder)}")
    if (folder / CARD).exists():
        say(f"Not run: {folder} is already fitted. Remove it to fit again.")
        return folder
    report = fit(settings, folder)
    say(f"{counted(report.texts, 'texts', ',')} in {report.seconds:,.0f} s, no training")
    return folder


def _train(out: Path, variant: str, steps: int, say: Say) -> Path:
    options = {"variant": variant, "corpus": CORPUS, "steps": steps}
    settings = read_train_settings(None, WORDS, options)
    folder = out / folder_of(CORPUS, variant, None)
    say(f"\n$ {command('train', **options, set=WORDS, out=folder)}")
    if (folder / CARD).exists():
        say(f"Not run: {folder} is already trained. Remove it to train again.")
        return folder
    begun = (folder / RECORD).exists()
    if begun:
        settings = resumed(read_train_settings, folder, None, WORDS, options)
    report = train(settings, folder, resume=begun)
    say(f"loss {report.first_loss:.3f} -> {report.last_loss:.3f} in {report.seconds:,.0f} s")
    return folder


def _index(out: Path, model: Path, say: Say) -> None:
    asked = IndexRequest(CORPUS, str(model), dims=(SMALL, 384), root=out / "indexes")
    say(f"\n$ {index_command(asked)}")
    report = index_corpus(asked)
    say(
        f"{counted(report.documents, 'documents', ',')}, "
        f"{counted(len(report.folders), 'indexes')} in {report.seconds:,.0f} s"
    )


def _evaluate(out: Path, models: Sequence[Path], say: Say) -> EvaluateReport:
    names = (BACKBONE, *map(str, models))
    shown = command(
        "evaluate",
        "pydocs",
        corpus=CORPUS,
        model=names,
        measure=MEASURES,
        indexes=_elsewhere(out, "indexes"),
        out=_elsewhere(out, "results"),
    )
    say(f"\n$ {shown}")
    report = evaluate(
        EvaluateRequest(
            (CORPUS,), names, measures=MEASURES, root=out / "indexes", out=out / "results"
        )
    )
    keep_record(report)
    say(str(report))
    untrained, fitted, *_ = report.grids
    say(_meaning(untrained, fitted))
    return report


def _meaning(untrained: Grid, fitted: Grid) -> str:
    """Return what the table says, in points of nDCG@10."""
    measure = MEASURES[0]
    gain = fitted.difference(untrained, measure)
    below = sorted(cut for cut in gain if cut.layer < max(fitted.layers))
    full = max(fitted.cuts)
    kept = fitted.cells[Cut(0, full.dim)][measure] / fitted.cells[full][measure]
    return (
        f"{fitted.model} against the backbone as it comes: "
        f"{100 * fmean(gain[cut] for cut in below):+.1f} points over layers {below[0].layer} to "
        f"{below[-1].layer}, {100 * gain[full]:+.1f} at the full model {full}. A query that runs "
        f"no layer at all keeps {kept:.0%} of it."
    )


def _search(out: Path, model: Path, say: Say) -> None:
    """Search each query at layer 0 and through the full model."""
    asked = SearchRequest(CORPUS, str(model), dim=384, root=out / "indexes")
    none = Searcher(SearchRequest(CORPUS, str(model), 0, dim=384, root=out / "indexes"))
    for searcher in (none, full := Searcher(asked)):
        searcher.warm_up()
    for text in QUERIES:
        for searcher in (none, full):
            _answer(searcher, text, model, out, say)


def _elsewhere(out: Path, name: str) -> Path | None:
    """Return an option, or nothing where its value is the default folder."""
    return out / name if out != Path() else None


def _answer(searcher: Searcher, text: str, model: Path, out: Path, say: Say) -> None:
    cut: Cut = searcher.cut
    shown = command(
        "search",
        text,
        query_layer=cut.layer,
        dim=cut.dim,
        corpus=CORPUS,
        model=model,
        indexes=_elsewhere(out, "indexes"),
        k=3,
    )
    say(f"\n$ {shown}")
    answer = searcher.search(text, 3)
    for hit in answer.hits:
        say(f"{hit.rank}  {hit.score:.4f}  {hit.docid}")
    say(f"   encode {answer.encode_ms:.2f} ms, search {answer.search_ms:.1f} ms")
