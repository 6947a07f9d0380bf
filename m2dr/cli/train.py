"""`m2dr train`, `m2dr fit` and `m2dr pretrain`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from m2dr.cli.options import FILE, FOLDER, command, options, options_of, refuse_both
from m2dr.cli.terminal import echo
from m2dr.core.errors import command as command_line
from m2dr.core.errors import counted
from m2dr.core.trainings import (
    FitSettings,
    PretrainSettings,
    TrainSettings,
    read_fit_settings,
    read_pretrain_settings,
    read_train_settings,
)

_RESUME = click.option("--resume", is_flag=True, help="Go on with an interrupted run.")


def _run(kind: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the options that every run has; `kind` stands in the name of its folder."""
    return options(
        click.option("--out", type=FOLDER, help=f"Model folder; models/CORPUS-{kind} by default."),
        click.option("--config", type=FILE, help="TOML file of settings; see configs/."),
        click.option(
            "--set",
            "words",
            multiple=True,
            metavar="KEY=VALUE",
            help="Any setting of docs/settings.md. Repeatable.",
        ),
        click.option("--overwrite", is_flag=True, help="Begin again in a folder that is in use."),
    )


@command(
    examples=(
        "train --variant full-dim",
        "train --corpus pairs.jsonl --backbone bert-base-uncased --dims 64,256",
    ),
)
@options_of(
    TrainSettings, "variant", "corpus", "backbone", "revision", "layers", "dims", "batch_queries",
    "negatives", "learning_rate", "steps", "epochs", "seed", "device", "dtype", "report_to",
)  # fmt: skip
@_run("VARIANT")
@_RESUME
@click.option("--explain", "only_explain", is_flag=True, help="Print the terms; train nothing.")
def train(
    config: Path | None,
    words: tuple[str, ...],
    out: Path | None,
    resume: bool,
    overwrite: bool,
    only_explain: bool,
    **given: Any,  # settings that have an option of their own
) -> None:
    """Train an encoder so that every layer and prefix can retrieve."""
    given = _given(given)
    settings = read_train_settings(config, words, given)  # a misspelt key fails before torch loads
    if only_explain:
        _explain(settings)
        return
    from m2dr.tasks import run_folder
    from m2dr.tasks import train as verb

    folder = run_folder.folder_of(settings.corpus, settings.variant, out)
    refuse_both(resume, overwrite)
    if resume:
        settings = run_folder.resumed(read_train_settings, folder, config, words, given)
    if verb.separate_cuts(settings):
        many = verb.train_separately(settings, folder, resume, overwrite)
        _say_first(
            f"{counted(len(many.cuts), 'models')}, {len(many.trained)} of them trained now in "
            f"{many.seconds:,.0f} s: {many.folder}"
        )
        return
    report = verb.train(settings, folder, resume, overwrite)
    quality = report.quality
    dev = f", {report.measure} {quality:.4f} on dev" if quality is not None else ""
    _say_first(
        f"{counted(report.steps, 'steps')} in {report.seconds:,.0f} s, loss "
        f"{report.first_loss:.3f} -> "
        f"{report.last_loss:.3f}{dev}: {report.folder}"
    )


def _explain(settings: TrainSettings) -> None:
    from m2dr.tasks.recipe import explain
    from m2dr.tasks.train import of_cut, separate_cuts
    from m2dr.tasks.training_data import kind_of

    cuts = separate_cuts(settings)
    one = of_cut(settings, cuts[-1]) if cuts else settings
    echo(explain(one, kind_of(one)))
    if cuts:
        echo(f"{counted(len(cuts), 'models')}, one for each cut; this is the largest, {cuts[-1]}.")


@command(
    examples=(
        "fit --backbone minilm",
        "fit --backbone BAAI/bge-base-en-v1.5 --corpus texts.txt",
    ),
)
@options_of(
    FitSettings, "backbone", "revision", "corpus", "texts", "rotation", "inputs", "documents",
    "identity", "seed", "device", "dtype",
)  # fmt: skip
@_run("fitted")
def fit(
    config: Path | None,
    words: tuple[str, ...],
    out: Path | None,
    overwrite: bool,
    **given: Any,  # settings that have an option of their own
) -> None:
    """Make every layer and prefix retrieve by least squares.

    The encoder stays as it is, and nothing is trained: an exit is fitted to each layer.
    """
    given = _given(given)
    settings = read_fit_settings(config, words, given)
    from m2dr.tasks import fit as verb
    from m2dr.tasks import run_folder

    folder = run_folder.folder_of(settings.corpus, "fitted", out)
    report = verb.fit(settings, folder, overwrite)
    found = ", ".join("-" if cosine is None else f"{cosine:.3f}" for cosine in report.cosines)
    _say_first(
        f"{counted(report.texts, 'texts')} in {report.seconds:,.0f} s, cosines of layers 0 to "
        f"{report.card.layers - 1} with the full model on held-out texts: {found}; {report.folder}"
    )


@command(
    examples=(
        "pretrain --steps 200",
        "pretrain --backbone bert-base-uncased --corpus texts.txt --epochs 1",
    ),
)
@options_of(
    PretrainSettings, "corpus", "backbone", "revision", "batch_texts", "learning_rate", "steps",
    "epochs", "seed", "device", "dtype", "report_to",
)  # fmt: skip
@_run("smae")
@_RESUME
def pretrain(
    config: Path | None,
    words: tuple[str, ...],
    out: Path | None,
    resume: bool,
    overwrite: bool,
    **given: Any,  # settings that have an option of their own
) -> None:
    """Pre-train small cuts of a backbone on masked tokens (SMAE).

    What it writes is a start for m2dr train.
    """
    given = _given(given)
    settings = read_pretrain_settings(config, words, given)
    from m2dr.tasks import pretrain as verb
    from m2dr.tasks import run_folder

    folder = run_folder.folder_of(settings.corpus, "smae", out)
    refuse_both(resume, overwrite)
    if resume:
        settings = run_folder.resumed(read_pretrain_settings, folder, config, words, given)
    report = verb.pretrain(settings, folder, resume, overwrite)
    follow = command_line("train", backbone=report.folder, corpus=settings.corpus)
    _say_first(
        f"{counted(report.steps, 'steps')} in {report.seconds:,.0f} s, loss "
        f"{report.first_loss:.3f} -> {report.last_loss:.3f}: {report.folder}; train it with: "
        f"{follow}"
    )


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in (None, ())}


def _say_first(line: str) -> None:
    """Print a line once, whatever the number of processes."""
    from m2dr.core.progress import is_main_process

    if is_main_process():
        echo(line)
