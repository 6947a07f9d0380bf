"""`m2dr quickstart`: the whole path on the built-in corpus, each step with its own command."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from m2dr.errors import command, counted
from m2dr.evaluate.grid import Grid
from m2dr.model.places import RECORD
from m2dr.records.cut import Cut
from m2dr.settings import read_train_settings
from m2dr.verbs.evaluating.evaluate import EvaluateReport, EvaluateRequest, evaluate, tables
from m2dr.verbs.indexing.index import IndexRequest, index_command, index_corpus
from m2dr.verbs.searching.search import Searcher, SearchRequest
from m2dr.verbs.training.train import train
from m2dr.verbs.workplace import folder_of, resumed

Say = Callable[[str], None]

CORPUS = "pydocs:stdlib"  # the standard library alone: minutes, not an hour, on two cores
BACKBONE = "minilm"
STEPS = 60
WORDS = ("learning_rate=7e-5", "dropout=0.0", "evaluate_steps=0")
VARIANTS = ("full-dim", "plain")
MEASURES = ("nDCG@10",)
QUERIES = (
    "read a file line by line",
    "run several threads at the same time",
    "parse command line arguments",
)
SHALLOW, SMALL = 2, 128  # the second cut that answers the example queries


def quickstart(out: Path, steps: int | None, say: Say) -> EvaluateReport:
    """Train, index, search and evaluate; what is already there is not made again.

    Args:
        out: holds models/, indexes/ and results/.
        steps: of each training.
        say: told each command, table and answer.
    """
    models = [_train(out, variant, steps or STEPS, say) for variant in VARIANTS]
    _index(out, models[0], say)
    report = _evaluate(out, models, say)
    _search(out, models[0], say)
    say(f"\nThe table above as a figure: {report.figures[0]}")
    say(f"Tables, runs and JSON: {report.folder}")
    return report


def _train(out: Path, variant: str, steps: int, say: Say) -> Path:
    options = {"variant": variant, "corpus": CORPUS, "steps": steps}
    settings = read_train_settings(None, WORDS, options)
    folder = out / folder_of(CORPUS, variant, None)
    say(f"\n$ {command('train', **options, set=WORDS, out=folder)}")
    if (folder / "m2dr.json").exists():
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
    names = (BACKBONE, *map(str, reversed(models)))
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
    say(tables(report.grids))
    untrained, plain, elastic = report.grids
    say(_meaning(untrained, plain, elastic))
    return report


def _meaning(untrained: Grid, plain: Grid, elastic: Grid) -> str:
    """What the table says, in points of nDCG@10."""
    measure = MEASURES[0]
    shallow = [cut for cut in elastic.cuts if cut.layer <= max(elastic.layers) // 2]
    gain = elastic.difference(untrained, measure)
    whole = max(elastic.cuts)
    price = plain.cells[whole][measure] - elastic.cells[whole][measure]
    return (
        f"{elastic.model} against the backbone as it comes, cut the same way: "
        f"{100 * fmean(gain[cut] for cut in shallow):+.1f} points over layers 1 to "
        f"{max(cut.layer for cut in shallow)}, {100 * gain[whole]:+.1f} at the whole encoder "
        f"{whole}. Elasticity costs {100 * price:+.1f} there against {plain.model}."
    )


def _search(out: Path, model: Path, say: Say) -> None:
    whole = Searcher(SearchRequest(CORPUS, str(model), dim=384, root=out / "indexes"))
    small = Searcher(
        SearchRequest(CORPUS, str(model), query_layer=SHALLOW, dim=SMALL, root=out / "indexes")
    )
    for searcher in (whole, small):
        searcher.warm_up()
    for text in QUERIES:
        for searcher in (whole, small):
            _answer(searcher, text, model, out, say)


def _elsewhere(out: Path, name: str) -> Path | None:
    """What an option has to say that is usual where nobody works elsewhere."""
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
    say(f"   encode {answer.encode_ms:.1f} ms, search {answer.search_ms:.1f} ms")
