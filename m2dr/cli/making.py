"""`m2dr export` and `m2dr quickstart`."""

from pathlib import Path

import click

from m2dr.cli.options import FOLDER, MODEL, Whole
from m2dr.cli.polite import echo
from m2dr.errors import counted


@click.command()
@MODEL
@click.option("--layer", type=Whole(min=1), required=True, help="Blocks to keep.")
@click.option("--out", type=FOLDER, required=True, help="The smaller model's folder.")
def export(model: str, layer: int, out: Path) -> None:
    """Write the first blocks of a model as a model of their own."""
    from m2dr.verbs.export import export as verb

    card = verb(model, layer, out)
    cuts = ", ".join(map(str, card.cuts)) or "none"
    echo(f"{counted(card.layers, 'layers')}, cuts trained: {cuts}; {out}")


@click.command()
@click.option("--out", type=FOLDER, default=Path(), help="Folder to work in; this one by default.")
@click.option("--steps", type=Whole(min=1), default=None, help="Of each training.")
def quickstart(out: Path, steps: int | None) -> None:
    """Train, index, search and evaluate on the built-in corpus, in a few minutes."""
    from m2dr.verbs.quickstart import quickstart as verb

    verb(out, steps, echo)
