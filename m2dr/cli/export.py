"""`m2dr encode`, `m2dr export`, `m2dr card`, `m2dr push` and `m2dr quickstart`."""

from dataclasses import asdict
from pathlib import Path

import click

from m2dr.cli.options import FOLDER, Whole, command, cut_option, json_option, takes
from m2dr.cli.serve import require_serve
from m2dr.cli.terminal import echo, echo_json
from m2dr.core.errors import UserError, counted
from m2dr.core.errors import command as shown_command
from m2dr.core.requests import CardRequest, EncodeRequest, ExportRequest, PushModelRequest


@command(
    examples=(
        "encode texts.txt --out vectors.npy",
        "encode queries.jsonl --query --layer 4 --dim 128 --out queries.npy",
    ),
)
@takes(EncodeRequest)
@cut_option("layer")
def encode(request: EncodeRequest) -> None:
    """Write the vectors of texts, for any other tool.

    FILE is a .txt file with a text per line, a .tsv file with an id and a text per line, a .jsonl
    file whose records have a text and perhaps a title and an id, such as corpus.jsonl and
    queries.jsonl of BEIR, or a corpus. Vectors of a model that compares by cosine have length one.
    """
    from m2dr.tasks.encoder import encode as verb

    report = verb(request)
    what = f"{counted(report.texts, 'texts', ',')}, {report.cut} of {report.model}"
    echo(f"{what}, {report.seconds:,.0f} s: {request.out}", beside=request.out)


@command(
    examples=(
        "export --layers 4 --out models/small",
        "export --layers 0 --dim 128 --out models/table",
    ),
)
@takes(ExportRequest)
def export(request: ExportRequest) -> None:
    """Write a cut as a smaller model that stands alone, or as a graph.

    The folder opens in transformers, sentence-transformers and m2dr, and gives the vectors of the
    cut. MODEL is a folder or id; the newest trained model in models/ by default.
    """
    from m2dr.tasks.publish import export_model

    report = export_model(request)
    for note in report.notes:
        echo(note, err=True)
    for line in report.lines:
        echo(line)


@command(
    examples=(
        "card models/pydocs-full-dim",
        "card models/pydocs-fitted --results results/scifact",
    ),
)
@takes(CardRequest)
def card(request: CardRequest) -> None:
    """Write a model's README.md with what was measured since.

    Text between its two comments, and metadata such as a license, are kept.
    """
    from m2dr.tasks.publish import write_card

    report = write_card(request)
    for note in report.notes:
        echo(f"Note: {note}", err=True)
    for line in report.lines():
        echo(line)


@command(
    examples=(
        "push models/pydocs-full-dim OWNER/NAME --dry-run",
        "push models/pydocs-full-dim OWNER/NAME --private",
    ),
)
@takes(PushModelRequest)
@json_option
def push(request: PushModelRequest, as_json: bool) -> None:
    """Upload a model to the Hugging Face hub.

    Given again, it goes on where it stopped. ID is OWNER/NAME. Only files of the model are
    sent: no checkpoints, logs or hidden files.
    """
    from m2dr.tasks.publish import push_model

    report = push_model(request)
    if as_json:
        echo_json({**asdict(report), "bytes": report.bytes})
        return
    for line in report.lines():
        echo(line)


@command(
    examples=(
        "quickstart",
        "quickstart --out demo --train",
    ),
)
@click.option("--out", type=FOLDER, default=Path(), help="Folder to work in; this one by default.")
@click.option("--train", "trains", is_flag=True, help="Train models too, and compare them.")
@click.option(
    "--steps", type=Whole(min=1), metavar="N", help="Optimiser steps of each training; 60."
)
@click.option(
    "--open",
    "opens",
    is_flag=True,
    help="Then serve the index, and open a page that compares cuts.",
)
def quickstart(out: Path, trains: bool, steps: int | None, opens: bool) -> None:
    """Fit, index, search and evaluate on the built-in corpus.

    It takes a few minutes.
    """
    if steps and not trains:
        raise UserError("--steps is of a training; give --train too.")
    if opens:
        require_serve()
    from m2dr.tasks.quickstart import PAGE_CUT, QUERIES, served
    from m2dr.tasks.quickstart import quickstart as verb

    report = verb(out, trains, steps, echo)
    if not opens:
        again = shown_command("quickstart", out=out if out != Path() else None, open=True)
        echo(f"To compare cuts on a page: {again}")
    else:
        from m2dr.serve.browser import serve_and_open

        serve_and_open(served(out, report, echo), QUERIES[0], PAGE_CUT, echo)
