"""All commands: those that are a request and its task, and those of settings."""

from pathlib import Path

import click

from m2dr.cli.main import CommandGroup, group, main
from m2dr.cli.options import from_options, settings_command, settings_of
from m2dr.core.commands import COMMANDS
from m2dr.core.records import PRETRAINED
from m2dr.core.report import Report
from m2dr.core.settings import FitSettings, PretrainSettings, TrainSettings

_GROUPS: dict[str, CommandGroup] = {
    "": main,
    "index": group("index", "Encode documents once, and cut indexes from them."),
    "evaluate": group("evaluate", "Measure every cut of a model: tables, runs and figures."),
    "data": group("data", "Look at data before it is used."),
}
for _words, _row in COMMANDS.items():
    _first, _, _last = _words.rpartition(" ")
    _GROUPS[_first].task(_last)(from_options(_row.request, _row))


@main.task(cls=settings_command(TrainSettings))
@settings_of(
    TrainSettings, "VARIANT", "variant", "corpus", "backbone", "revision", "layers", "dims",
    "batch_size", "negatives", "learning_rate", "steps", "epochs", "seed", "device", "dtype",
    "report_to",
)  # fmt: skip
@click.option("--explain", "only_explain", is_flag=True, help="Print the terms; train nothing.")
def train(
    settings: TrainSettings, folder: Path, resume: bool, overwrite: bool, only_explain: bool
) -> Report:
    """Train an encoder so that every layer and prefix can retrieve.

    Examples:
        m2dr train --variant full-dim
        m2dr train --corpus pairs.jsonl --backbone bert-base-uncased --dims 64,256
    """
    from m2dr.tasks.training import train as task

    if only_explain:
        return task.explain_all(settings)
    run = task.train_separately if task.separate_cuts(settings) else task.train
    return run(settings, folder, resume, overwrite)


@main.task(cls=settings_command(FitSettings))
@settings_of(
    FitSettings, "fitted", "backbone", "revision", "corpus", "texts", "rotation",
    "language", "queries", "query_weight", "seed", "device", "dtype", resumes=False,
)  # fmt: skip
def fit(settings: FitSettings, folder: Path, overwrite: bool) -> Report:
    """Make every layer and prefix retrieve by least squares.

    The encoder stays as it is, and nothing is trained: an exit is fitted to each layer.

    Examples:
        m2dr fit --backbone minilm
        m2dr fit --backbone BAAI/bge-base-en-v1.5 --corpus texts.txt
    """
    from m2dr.tasks.training.fit import fit as task

    return task(settings, folder, overwrite)


@main.task(cls=settings_command(PretrainSettings))
@settings_of(
    PretrainSettings, PRETRAINED, "corpus", "backbone", "revision", "batch_size", "learning_rate",
    "steps", "epochs", "seed", "device", "dtype", "report_to",
)  # fmt: skip
def pretrain(settings: PretrainSettings, folder: Path, resume: bool, overwrite: bool) -> Report:
    """Pre-train small cuts of a backbone on masked tokens (SMAE).

    What it writes is a start for m2dr train.

    Examples:
        m2dr pretrain --steps 200
        m2dr pretrain --backbone bert-base-uncased --corpus texts.txt --epochs 1
    """
    from m2dr.tasks.training.pretrain import pretrain as task

    return task(settings, folder, resume, overwrite)
