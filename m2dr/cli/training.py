"""`m2dr train` and `m2dr pretrain`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from m2dr.cli.options import FILE, FOLDER, Whole, options, refuse_both, whole_numbers
from m2dr.cli.polite import echo
from m2dr.errors import command, counted
from m2dr.records.variant import VARIANTS

if TYPE_CHECKING:
    from m2dr.settings import TrainSettings

RUN = options(
    click.option("--backbone", help="Hugging Face id or folder; minilm is built in."),
    click.option("--steps", type=Whole(min=1), help="Optimiser steps."),
    click.option("--seed", type=Whole(min=0), help="Same seed, same model."),
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


@click.command()
@click.option("--variant", metavar="NAME", help=f"The recipe: {', '.join(VARIANTS)}.")
@click.option("--corpus", help="What to train on; as for `m2dr index corpus`.")
@click.option("--layers", callback=whole_numbers(1), help="Shallow layers to train, as 1,2,4.")
@click.option("--dims", callback=whole_numbers(1), help="Prefixes to train, as 32,128.")
@click.option("--batch-queries", type=Whole(min=1), help="Queries per step.")
@click.option("--negatives", type=Whole(min=0), help="Negatives per query.")
@click.option("--out", type=FOLDER, help="Model folder; models/CORPUS-VARIANT by default.")
@click.option("--explain", "only_explain", is_flag=True, help="Print the terms; train nothing.")
@RUN
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
    from m2dr.verbs import workplace
    from m2dr.verbs.training import separate

    if only_try:
        from m2dr.verbs.training.dryrun import describe, dry_run

        echo(describe(dry_run(separate.largest(settings))))
        _say_how_many(settings)
        return
    from m2dr.verbs.training import train as verb

    folder = workplace.folder_of(settings.corpus, settings.variant, out)
    refuse_both(resume, overwrite)
    if resume:
        settings = workplace.resumed(read_train_settings, folder, config, words, given)
    if separate.asks_for_many(settings):
        many = separate.train_separately(settings, folder, resume, overwrite)
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


@click.command()
@click.option("--backbone", help="Hugging Face id or folder, of a trained model too; minilm.")
@click.option(
    "--corpus", help="What to read, as for train; .txt files too, and several joined by commas."
)
@click.option("--texts", type=Whole(min=1), help="How many; by default until more are no help.")
@click.option("--rotation", help="Of the embedding, for its prefixes: learned, pca or none.")
@click.option("--inputs", help="What an exit reads: tokens+layer, layer or all-layers.")
@click.option("--documents", help="What a shallow query searches: last or same.")
@click.option("--identity", type=Whole(min=0), help="Random signs that tell tokens apart.")
@click.option("--out", type=FOLDER, help="Model folder; models/CORPUS-fitted by default.")
@click.option("--seed", type=Whole(min=0), help="Same seed, same model.")
@click.option("--device", help="auto, cpu, cuda or cuda:N.")
@click.option("--dtype", help="auto, fp32 or bf16.")
@click.option("--config", type=FILE, help="A TOML file of settings; see configs/.")
@click.option("--set", "words", multiple=True, metavar="KEY=VALUE", help="Any setting; repeatable.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted one.")
@click.option("--overwrite", is_flag=True, help="Begin again in a folder that is in use.")
def fit(
    config: Path | None,
    words: tuple[str, ...],
    out: Path | None,
    resume: bool,
    overwrite: bool,
    **options: Any,  # noqa: ANN401  # settings that have an option of their own
) -> None:
    """Make every layer and prefix of an encoder retrieve, without training (least squares)."""
    from m2dr.settings import read_fit_settings

    given = {key: value for key, value in options.items() if value is not None}
    settings = read_fit_settings(config, words, given)
    from m2dr.verbs import workplace
    from m2dr.verbs.fitting import fit as verb

    folder = workplace.folder_of(settings.corpus, "fitted", out)
    refuse_both(resume, overwrite)
    if resume:
        settings = workplace.resumed(read_fit_settings, folder, config, words, given)
    report = verb.fit(settings, folder, resume, overwrite)
    found = ", ".join("-" if cosine is None else f"{cosine:.3f}" for cosine in report.cosines)
    _say_first(
        f"{counted(report.texts, 'texts')} in {report.seconds:,.0f} s, cosines of layers 0 to "
        f"{report.card.layers - 1} with the full model on held-out texts: {found}; {report.folder}"
    )


def _explain(settings: "TrainSettings") -> None:
    from m2dr.verbs.training.explain import explain
    from m2dr.verbs.training.material import kind_of
    from m2dr.verbs.training.recipe import recipe_of
    from m2dr.verbs.training.separate import largest

    one = largest(settings)
    echo(explain(recipe_of(one, kind_of(one))))
    _say_how_many(settings)


def _say_how_many(settings: "TrainSettings") -> None:
    from m2dr.verbs.training.separate import asks_for_many, cuts_asked

    if asks_for_many(settings):
        cuts = cuts_asked(settings)
        echo(f"{counted(len(cuts), 'models')}, one for each cut; this is the largest, {cuts[-1]}.")


def _say_first(line: str) -> None:
    from m2dr.verbs.progress import is_first

    if is_first():
        echo(line)


@click.command()
@click.option("--corpus", help="What to read: as for train, or a .txt file of a text per line.")
@click.option("--batch-texts", type=Whole(min=1), help="Texts per step.")
@click.option("--out", type=FOLDER, help="Folder of the backbone; models/CORPUS-smae by default.")
@RUN
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
    from m2dr.verbs import workplace
    from m2dr.verbs.training import pretrain as verb

    if only_try:
        from m2dr.verbs.training.dryrun import describe

        echo(describe(verb.dry_run(settings)))
        return
    folder = workplace.folder_of(settings.corpus, "smae", out)
    refuse_both(resume, overwrite)
    if resume:
        settings = workplace.resumed(read_pretrain_settings, folder, config, words, given)
    report = verb.pretrain(settings, folder, resume, overwrite)
    follow = command("train", backbone=report.folder, corpus=settings.corpus)
    _say_first(
        f"{counted(report.steps, 'steps')} in {report.seconds:,.0f} s, loss "
        f"{report.first_loss:.3f} -> {report.last_loss:.3f}: {report.folder}; train it with: "
        f"{follow}"
    )
