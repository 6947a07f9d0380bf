"""`m2dr export` and `m2dr quickstart`."""

from pathlib import Path

import click

from m2dr.cli.options import FOLDER, MODEL, Whole
from m2dr.cli.polite import echo
from m2dr.errors import UserError, counted


@click.command()
@MODEL
@click.option(
    "--layer",
    type=Whole(min=0),
    required=True,
    help="Layers to keep; 0 is the table of tokens of a fitted model, for other tools.",
)
@click.option("--out", type=FOLDER, required=True, help="The smaller model's folder.")
@click.option(
    "--format",
    "format_name",
    default="",
    help="Of layer 0: sentence-transformers, which is the default, or model2vec.",
)
@click.option(
    "--dim", type=Whole(min=1), default=None, help="Of layer 0: dims to keep; all by default."
)
@click.option(
    "--exits",
    type=FOLDER,
    default=None,
    help="Of layer 0: the folder of exits that an index has, in place of the model's own.",
)
@click.option("--dtype", default="", help="Of layer 0: fp32, which is the default, fp16 or int8.")
def export(
    model: str,
    layer: int,
    out: Path,
    format_name: str,
    dim: int | None,
    dtype: str,
    exits: Path | None,
) -> None:
    """Write the first layers of a model as a model of their own."""
    from m2dr.verbs import export as verb

    verb.refuse_of_table(layer, format=format_name, dim=dim, dtype=dtype, exits=exits)
    if layer == 0:
        table = verb.export_table(model, out, format_name, dim, dtype, exits)
        numbers = f"{counted(table.tokens, 'tokens', ',')}, {counted(table.dim, 'dims')}"
        echo(f"Layer 0 for {table.format}: {numbers}, {table.dtype}; {out}")
        for note in table.notes:
            echo(note, err=True)
        return
    card = verb.export(model, layer, out)
    cuts = ", ".join(map(str, card.cuts)) or "none"
    echo(f"{counted(card.layers, 'layers')}, cuts trained: {cuts}; {out}")


@click.command()
@click.option("--out", type=FOLDER, default=Path(), help="Folder to work in; this one by default.")
@click.option("--train", "trains", is_flag=True, help="Train models too, and compare them.")
@click.option("--steps", type=Whole(min=1), default=None, help="Of each training.")
def quickstart(out: Path, trains: bool, steps: int | None) -> None:
    """Fit, index, search and evaluate on the built-in corpus, in a few minutes."""
    if steps and not trains:
        raise UserError("--steps is of a training; give --train too.")
    from m2dr.verbs.quickstart import quickstart as verb

    verb(out, trains, steps, echo)
