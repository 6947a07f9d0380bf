"""`m2dr evaluate sts`: how well every cut of a model tells which sentences are alike."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from m2dr.errors import UserError, nearest
from m2dr.evaluate.figures import quality_over_dims
from m2dr.evaluate.grid import Grid, average
from m2dr.evaluate.report import text_comparison, text_table, write_csv, write_json
from m2dr.evaluate.sentences import correlations, distinct, gold_scores
from m2dr.model import checkpoint
from m2dr.model.checkpoint import Tokenizer
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.model.encoder import Encoder
from m2dr.records.card import ModelCard
from m2dr.records.cut import Cut
from m2dr.text.sentences import Sentences, open_sentences
from m2dr.verbs.encoding import embed_texts
from m2dr.verbs.evaluate import RESULTS
from m2dr.verbs.models import cuts_of, names_of, newest_model, usual_dims
from m2dr.verbs.progress import progress


@dataclass(frozen=True)
class StsRequest:
    """What `m2dr evaluate sts` was asked."""

    tasks: tuple[str, ...]  # files of scored pairs, or names of such where data usually lies
    models: tuple[str, ...] = ()  # empty: the newest trained one
    layers: tuple[int, ...] = ()  # empty: all
    dims: tuple[int, ...] = ()  # empty: powers of two from 8, and the full width
    measures: tuple[str, ...] = ("Spearman",)  # printed and drawn; files hold both correlations
    out: Path = RESULTS
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True)
class StsReport:
    """What was found, and where it lies."""

    tasks: tuple[tuple[Grid, ...], ...]  # of each task a grid per model; of several the mean last
    figures: tuple[Path, ...]
    seconds: float


def evaluate_sts(request: StsRequest) -> StsReport:
    """Measure every asked cut of every asked model on every task; write tables and figures.

    Likeness is the cosine, whatever the model searches with, and a correlation is over all pairs
    of a file together. The two sentences of a pair play the same part, so both are encoded as
    documents are: with the model's document prefix and length.

    Raises:
        UserError: a task is unknown or has no scores, or an encoder lacks a cut; before any weight
            is loaded.
    """
    begun = time.monotonic()
    tasks = _open_tasks(request.tasks)
    models = request.models or (newest_model(),)
    names = names_of(models)
    cuts = [_cuts(request, checkpoint.read_card(model)) for model in models]
    by_model = [
        list(_grids(request, tasks, model, name, wanted))
        for model, name, wanted in zip(models, names, cuts, strict=True)
    ]
    by_task = tuple(zip(*by_model, strict=True))
    figures = tuple(path for grids in by_task for path in _figures(request, grids))
    return StsReport(by_task, figures, time.monotonic() - begun)


def tables(report: StsReport, measures: Sequence[str]) -> str:
    """Each task as a table per measure; several models stand under each other at each layer."""
    return "\n\n".join(
        text_table(grids[0], measure) if len(grids) == 1 else text_comparison(grids, measure)
        for grids in report.tasks
        for measure in measures
    )


def find_task(name: str) -> Path:
    """The file that the name of a task means: a path, or NAME.tsv where data usually lies.

    Raises:
        UserError: there is none; with the nearest name that there is.
    """
    folders = [place / "sts" for place in _places()]
    for path in (Path(name), *(folder / f"{name}.tsv" for folder in folders)):
        if path.is_file():
            return path
    beside = Path(name).parent
    known = {path.stem for folder in folders for path in folder.glob("*.tsv")}
    known |= {str(beside / path.name) for path in beside.glob("*") if path.is_file()}
    hint = nearest(name, sorted(known))
    raise UserError(
        f"There is no task {name!r}. {f'{hint} ' if hint.startswith('Did') else ''}A task is a "
        f"file of scored sentence pairs, or the name of NAME.tsv in "
        f"{', '.join(map(str, folders))}; $M2DR_DATA names another folder that holds sts/."
    )


def _places() -> tuple[Path, ...]:
    given = os.environ.get("M2DR_DATA")
    return (*((Path(given),) if given else ()), Path("data"), Path("datasets"))


def _open_tasks(names: Sequence[str]) -> list[Sentences]:
    """Every task, checked: nothing is encoded for a list of which the last is wrong."""
    paths: dict[str, Path] = {}
    tasks = []
    for name in names:
        path = find_task(name)
        tasks.append(_open_task(path))
        first = paths.setdefault(tasks[-1].name, path)
        if len(paths) < len(tasks):
            raise UserError(
                f"The tasks {first} and {path} are both called {tasks[-1].name}, and their results "
                f"would lie in one folder; give each once, or rename a file."
            )
    return tasks


def _open_task(path: Path) -> Sentences:
    task = open_sentences(str(path))
    if not task.scored:
        raise UserError(
            f"{path} has no scores to agree with; give a file that says of each pair of sentences "
            f"how alike they are."
        )
    if task.skipped:
        # The reader serves training: of a file of several splits it keeps the training pairs.
        raise UserError(
            f"{task.skipped} rows of {path} have no score or are of another split than train; copy "
            f"the rows to be measured to a file of their own, without a column for the split."
        )
    gold_scores(task.pairs, str(path))
    return task


def _cuts(request: StsRequest, card: ModelCard) -> tuple[Cut, ...]:
    layers = request.layers or tuple(range(1, card.layers + 1))
    return cuts_of(card, layers, request.dims or usual_dims(card.width))


def _grids(
    request: StsRequest, tasks: Sequence[Sentences], model: str, name: str, cuts: Sequence[Cut]
) -> Iterator[Grid]:
    """One model on each task, and the mean of several; each is written as soon as it is known."""
    device = choose_device(request.device)
    encoder, tokenizer = checkpoint.load(
        model, max(cuts).layer, device, choose_dtype(request.dtype, device)
    )
    notes = _notes(encoder.card, cuts)
    grids = []
    for task in tasks:
        cells = _cells(encoder, tokenizer, task, cuts)
        grids.append(Grid(name, task.name, "", len(task.pairs), cells, notes, unit="pairs"))
        yield _written(grids[-1], request.out)
    if len(grids) > 1:
        yield _written(average(grids), request.out)


def _written(grid: Grid, out: Path) -> Grid:
    folder = out / grid.corpus / grid.model
    write_json(grid, folder / "grid.json")
    write_csv([grid], folder / "grid.csv")
    return grid


def _cells(
    encoder: Encoder, tokenizer: Tokenizer, task: Sentences, cuts: Sequence[Cut]
) -> dict[Cut, dict[str, float]]:
    """Every distinct sentence is encoded once, at all layers in one pass, and compared at each dim.

    `cuts` is every one of some layers with every one of some dims.
    """
    layers, dims = sorted({cut.layer for cut in cuts}), sorted({cut.dim for cut in cuts})
    texts, first, second = distinct(task.pairs)
    gold = gold_scores(task.pairs, task.name)
    with progress(f"Encoding {task.name}", len(texts), "sentences") as advance:
        vectors = embed_texts(encoder, tokenizer, texts, "document", layers, advance)  # [L, N, H]
    return {
        Cut(layer, dim): values
        for layer, of_layer in zip(layers, vectors, strict=True)
        for dim, values in correlations(of_layer, first, second, gold, dims).items()
    }


def _notes(card: ModelCard, cuts: Sequence[Cut]) -> tuple[str, ...]:
    """What a reader must know of the model: which of these cuts nobody trained."""
    trained = [str(cut) for cut in cuts if cut in card.cuts]
    untrained = [str(cut) for cut in cuts if cut not in card.cuts]
    found = []
    if untrained and not trained:
        found.append("none of these cuts was trained: expect worse than the model can do")
    elif len(trained) < len(untrained):
        found.append(f"only these cuts were trained: {', '.join(trained)}")
    elif untrained:
        found.append(f"not trained: {', '.join(untrained)}")
    if card.documents == "last" and min(cuts).layer < card.layers:
        found.append(
            f"both sentences come from one layer, though documents were trained at layer "
            f"{card.layers} alone"
        )
    return tuple(found)


def _figures(request: StsRequest, grids: Sequence[Grid]) -> Iterator[Path]:
    """One figure per measure of what the models are worth on one task."""
    models = "-".join(grid.model for grid in grids)
    for measure in request.measures:
        path = request.out / grids[0].corpus / f"{models}_{measure}.png"
        quality_over_dims(grids, measure, path)
        yield path
