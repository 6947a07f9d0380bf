"""The command line: reads arguments, calls `m2dr.commands` and prints; click is used here alone."""

import os
from collections.abc import Iterator, Mapping
from importlib import import_module

import click

from m2dr import __version__
from m2dr.cli.terminal import MainGroup

# By command, the module that holds it.
MODULES = {
    "train": "train",
    "fit": "train",
    "pretrain": "train",
    "index": "index",
    "encode": "export",
    "search": "search",
    "serve": "serve",
    "mine": "search",
    "bm25": "search",
    "fuse": "search",
    "evaluate": "evaluate",
    "data": "data",
    "compare": "compare",
    "pick": "compare",
    "figures": "figures",
    "export": "export",
    "card": "export",
    "push": "export",
    "quickstart": "export",
}


class _Commands(Mapping[str, click.Command]):
    """Commands by name, each imported when it is first asked for."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = dict(modules)

    def __getitem__(self, name: str) -> click.Command:
        found: click.Command = getattr(import_module(f"m2dr.cli.{self._modules[name]}"), name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


@click.group(
    cls=MainGroup,
    commands=_Commands(MODULES),
    context_settings={"help_option_names": ["-h", "--help"]},
)
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
