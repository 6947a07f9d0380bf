"""The Python interface: what `import m2dr` gives."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from inspect import cleandoc
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m2dr.core.commands import COMMANDS
from m2dr.core.errors import Interrupted, UserError, counted, missing_told, require
from m2dr.core.option import Option, option_of
from m2dr.core.records import F32, PRETRAINED
from m2dr.core.requests import EvaluateRequest, PickRequest
from m2dr.core.settings import FitSettings, PretrainSettings, TrainSettings, request_of, show_fields
from m2dr.data.memory import Columns, name_of_data
from m2dr.evaluation.grid import Grid, by_code, html_table, table_of, text_tables
from m2dr.tasks.encoder import Encoder
from m2dr.tasks.models import device_name, dtype_name
from m2dr.tasks.searching.index_api import Index

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from transformers import TrainerCallback

    from m2dr.tasks.evaluating.pick import Choice
    from m2dr.tasks.training.train import TrainReport

__all__ = ["Encoder", "EvaluatedGrid", "Index", "Interrupted", "UserError", "evaluate", "fit",
           "open_index", "train"]  # fmt: skip

open_index = Index.open
NameOrPath = str | PathLike[str]


def __getattr__(name: str) -> Any:
    """Return the function of a command that has no other name in Python."""
    command = COMMANDS.get(name.replace("_", " "))
    if command is None:
        raise AttributeError(f"module 'm2dr.api' has no attribute {name!r}")

    own = {each.name for each in fields(command.request)}
    places = [
        each.name
        for each in fields(command.request)
        if each.default is MISSING or (option_of(each) or Option()).is_argument
    ]

    @show_fields(command.request)
    @missing_told()
    def run(*arguments: Any, **options: Any) -> Any:  # the report of the task
        if len(arguments) > len(places):
            raise UserError(f"{name} takes {counted(len(places), 'values')} without a name.")
        options |= dict(zip(places, arguments, strict=False))
        if "corpus" in own:  # as `train` takes it
            # Queries without judgements may be something else, such as a log or a number.
            is_own = "queries" in own and options.get("qrels") is None
            names = ("columns",) if is_own else ("columns", "queries", "qrels")
            about = {name: options.pop(name, None) for name in names}
            split = options.get("split") or "train"
            options["corpus"] = _corpus(options.get("corpus"), split, **about)
        return command(request_of(command.request, options))

    run.__name__ = run.__qualname__ = name
    # Not that of the task, whose import may take seconds and need what is not installed.
    told = cleandoc(command.request.__doc__ or "").partition("\n\nExamples:")[0]
    run.__doc__ = (
        f"{told}\n\nArguments are the options of the command. A corpus may be data in memory, "
        "beside `queries`, `qrels` and `columns`, as `train` takes them.\n\nRaises:\n"
        "    UserError: anything that a person can mend."
    )
    return run


@show_fields(TrainSettings)
@missing_told()
def train(
    corpus: object = None,
    *,
    out: NameOrPath | None = None,
    config: NameOrPath | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: "Sequence[TrainerCallback]" = (),
    queries: object = None,
    qrels: object = None,
    columns: Columns | None = None,
    **settings: Any,  # each of a type of its own, checked
) -> "TrainReport":
    """Train one encoder whose every layer and every prefix can retrieve, as `m2dr train` does.

        model = m2dr.train("pydocs", variant="full-dim", dims=[32, 128], steps=500).model

    Args:
        corpus: a name, as `m2dr index corpus` takes it; or rows to train on, or documents beside
            `queries` and `qrels`: lists, dicts, frames and data sets, as docs/data.md says.
        out: folder of the model; models/CORPUS-VARIANT by default.
        config: TOML file of settings, or the name of a built-in one; keywords overrule it.
        resume: whether to go on with a training that was interrupted.
        overwrite: whether to begin again in a folder that is in use.
        callbacks: of transformers' Trainer, such as EarlyStoppingCallback, whose score is the mean
            quality of the trained cuts on dev.
        queries: about the documents of `corpus`, in memory or a file.
        qrels: judgements of the split to train on, {query id: {docid: relevance}}, rows or a file.
        columns: names of columns that are not m2dr's, such as {"text": "Body"}.
        settings: those of `m2dr train --help`, such as variant, backbone, steps or dims.
            `loss` may also be a function of logits [..., B, N], the scores over the temperature,
            whose column b is the positive of query b, and of excluded documents [B, N] that
            returns [...]. Its name is kept, and resuming asks for it.

    Returns:
        What `m2dr train` prints, with `model`, the trained encoder, `history`, the lines of its
        log, `best_step`, whose weights were kept, `quality` on dev, `start` and `folder`.

    Raises:
        UserError: a setting is unknown or wrong, or anything else that a person can mend.
        Interrupted: Ctrl-C; what was trained until the last checkpoint is in the folder.
    """
    from m2dr.tasks.training import train as task
    from m2dr.tasks.training.run_folder import read_training

    split = settings.get("split", "train")
    settings["corpus"] = _corpus(corpus, split, columns=columns, queries=queries, qrels=qrels)
    loss = settings.pop("loss") if callable(settings.get("loss")) else None
    request, folder = read_training(TrainSettings, "", config, (), settings, out, resume, overwrite)
    if task.separate_cuts(request):
        raise UserError(f"variant = {request.variant} trains a model for each cut; name one cut.")
    return task.train(request, folder, resume, overwrite, callbacks, loss)


@show_fields(FitSettings)
@missing_told()
def fit(
    corpus: object = None,
    *,
    out: NameOrPath | None = None,
    config: NameOrPath | None = None,
    overwrite: bool = False,
    columns: Columns | None = None,
    **settings: Any,  # each of a type of its own, checked
) -> Encoder:
    """Make every layer and prefix of an encoder retrieve, without training, as `m2dr fit` does.

        model = m2dr.fit("pydocs", backbone="minilm")
        model.cut(0).encode_queries("read a file line by line")

    Args:
        corpus: as `train` takes it.
        out: folder of the model; models/CORPUS-fitted by default.
        config: TOML file of settings, or the name of a built-in one; keywords overrule it.
        overwrite: whether to begin again in a folder that is in use.
        columns: as `train` takes them.
        settings: those of `m2dr fit --help`, such as backbone, texts or rotation.

    Returns:
        The fitted model, all layers and dims.

    Raises:
        UserError: a setting is unknown or wrong, or anything else that a person can mend.
    """
    from m2dr.tasks.training import fit as task
    from m2dr.tasks.training.run_folder import read_training

    settings["corpus"] = _corpus(corpus, columns=columns)
    request, folder = read_training(FitSettings, task.FITTED, config, (), settings, out)
    report = task.fit(request, folder, overwrite)
    return Encoder(report.folder, device=request.device, dtype=request.dtype)


@show_fields(PretrainSettings)
@missing_told()
def pretrain(
    corpus: object = None,
    *,
    out: NameOrPath | None = None,
    config: NameOrPath | None = None,
    resume: bool = False,
    overwrite: bool = False,
    **settings: Any,  # each of a type of its own, checked
) -> Encoder:
    """Pre-train a backbone without labels, as `m2dr pretrain` does; arguments as of `train`.

    Raises:
        UserError: a setting is unknown or wrong, or anything else that a person can mend.
    """
    from m2dr.tasks.training.pretrain import pretrain as task
    from m2dr.tasks.training.run_folder import read_training

    settings["corpus"] = _corpus(corpus)
    request, folder = read_training(
        PretrainSettings, PRETRAINED, config, (), settings, out, resume, overwrite
    )
    report = task(request, folder, resume, overwrite)
    return Encoder(report.folder)


def _corpus(data: object, split: str = "train", **about: Any) -> str | None:
    if data is not None:
        return name_of_data(data, split=split, **about)
    if given := [name for name, part in about.items() if part is not None]:
        raise UserError(f"{' and '.join(given)} were given, and no corpus that they are of.")
    return None


@show_fields(EvaluateRequest, "corpora", "models", "root")
@missing_told()
def evaluate(
    model: Encoder | NameOrPath,
    corpus: object,
    *,
    queries: object = None,
    qrels: object = None,
    columns: Columns | None = None,
    folder: NameOrPath | None = None,
    device: object = None,
    dtype: object = None,
    **options: Any,
) -> "EvaluatedGrid":
    """Measure every cut of a model on a corpus, as `m2dr evaluate retrieval` does.

    Documents are encoded once into the stores of `folder`; what was measured before is not
    measured again.

    Args:
        model: an encoder, or the folder or id of a model.
        corpus: pydocs, a folder in BEIR or MS MARCO layout or its bare name, or irds:ID; or
            documents, as `train` takes them, with `queries` and `qrels`.
        queries: as `train` takes them.
        qrels: as `train` takes them.
        columns: as `train` takes them.
        folder: of the indexes.
        device: auto, cpu, cuda or cuda:N; that of the encoder by default.
        dtype: auto, fp32, bf16 or int8, of documents alone; that of the encoder by default.
        options: other fields of `EvaluateRequest`: split, layers, dims, measures, documents, exits,
            costs, out, overwrite and others.

    Raises:
        UserError: a corpus, split, model, measure or cut is not there.
    """
    from m2dr.tasks.evaluating.evaluate import evaluate as task

    encoder = model if isinstance(model, Encoder) else None
    own = encoder.options if encoder else {}
    options["documents"] = str(options.get("documents", "trained"))  # also the number of a layer
    given = {
        "corpora": [name_of_data(corpus, columns, queries, qrels, options.get("split") or "test")],
        "models": [encoder.name if encoder else fspath(model)],  # type: ignore[arg-type]  # a name
        "device": device_name(device or own.get("device")),
        "dtype": dtype_name(dtype or own.get("dtype")),
        "root": folder,
        "query_length": own.get("query_length"),
        "document_length": own.get("document_length"),
    }
    request = request_of(EvaluateRequest, given | options)
    report = task(request)
    if report.means:  # of a corpus that consists of several
        grid = report.means[0]
        home = Path(request.out) / grid.corpus.replace(" ", "-")
    else:
        grid, home = report.grids[0], report.folder
    values = {field.name: getattr(grid, field.name) for field in fields(Grid)}
    return EvaluatedGrid(**values, folder=home / grid.model)


@dataclass(frozen=True, repr=False)
class EvaluatedGrid(Grid):
    """The measures of one model, cut by cut, and the folder with its files.

    Cells are `grid.cells[m2dr.core.records.Cut(4, 128)]["nDCG@10"]`; `str(grid)` is the table that
    `m2dr evaluate` prints.
    """

    folder: Path = Path()  # with grid.json, grid.csv and runs

    def __fspath__(self) -> str:
        """Return the folder, so that `m2dr.compare(grid, other)` and `m2dr.pick(grid)` work."""
        return str(self.folder)

    def __str__(self) -> str:
        return text_tables([self])

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a row per cut: layer, dim, code where there are several, and the measures."""
        require("pandas")
        import pandas

        coded = self.codes != (F32,)
        return pandas.DataFrame(
            [
                {"layer": c.layer, "dim": c.dim, **({"code": c.code} if coded else {}), **values}
                for c, values in sorted(self.cells.items())
            ]
        )

    def _repr_html_(self) -> str:
        """Return the tables as a notebook shows them."""
        tables = (table_of(by_code([self]), measure) for measure in self.measures)
        return "".join(html_table(title, rows) for title, rows in tables)

    def plot(self, path: NameOrPath | None = None, measure: str = "") -> "Figure":
        """Draw a measure, the first by default, over the dims, a line per layer.

        Args:
            path: of a .png, .svg or .pdf that the figure is also written to.
            measure: to draw.

        Returns:
            The figure, which a notebook shows.

        Raises:
            UserError: the grid does not hold the measure, or the file cannot be written.
        """
        from m2dr.evaluation.figures import draw_quality_over_dims, save_figure

        figure = draw_quality_over_dims([self], measure or self.measures[0])
        if path is not None:
            save_figure(figure, Path(path))
        return figure

    def pick(self, **limits: Any) -> "Choice":
        """Return the best cut within a budget, as `m2dr pick` does; `choice.chosen.cut` is the cut.

        Costs are measured by `evaluate(..., costs=True)`.

        Args:
            limits: fields of `PickRequest`: latency_ms, bytes_per_document, multiply_adds, quality
                as a share of the full model's, at_least as ("nDCG@10", .3), measure, percentile.

        Raises:
            UserError: no cut fits, with the nearest ones and what they lack.
        """
        from m2dr.tasks.evaluating.pick import pick_cut

        return pick_cut(request_of(PickRequest, {"folder": self.folder} | limits, "pick"))
