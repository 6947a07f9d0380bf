"""argv in, lines out. click lives here; whatever needs a test lives below."""

import os

import click

from m2dr import __version__
from m2dr.cli.evaluating import evaluate
from m2dr.cli.indexing import index
from m2dr.cli.interop import bm25, fuse
from m2dr.cli.making import export, quickstart
from m2dr.cli.mining import mine
from m2dr.cli.picking import compare, pick
from m2dr.cli.polite import Polite
from m2dr.cli.searching import search
from m2dr.cli.showing import figures, report
from m2dr.cli.training import fit, pretrain, train


@click.group(cls=Polite, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, expose_value=False, help="Show an error's traceback.")
def main() -> None:
    """Train one encoder, cut it to any layer and any dim, and search with what is left."""
    # Read when OpenMP loads: waiting threads that spin take the cores from those that work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    # Read at MKL's first product: else the last bit of a vector depends on the number of threads,
    # and so a store's checksums on how many workers wrote it. Costs nothing that can be measured.
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


for command in (
    train,
    fit,
    pretrain,
    index,
    search,
    evaluate,
    mine,
    export,
    quickstart,
    bm25,
    fuse,
    compare,
    pick,
    figures,
    report,
):
    main.add_command(command)
