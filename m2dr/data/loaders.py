"""The table of loaders, and `open_dataset`, which opens a data set by name."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from m2dr.data import beir, irds, msmarco, pairs, pydocs
from m2dr.data.dataset import Dataset
from m2dr.errors import UserError, suggestion
from m2dr.io import refuse_pipe


@dataclass(frozen=True)
class Loader:
    """One layout of data sets. A new one is a row of LOADERS."""

    summary: str  # what a name of this layout looks like
    recognises: Callable[[str], bool]
    open: Callable[[str], Dataset]


# Tried in this order: a BEIR folder holds .jsonl files too, and is no training data.
LOADERS = (
    Loader(
        "pydocs or pydocs:stdlib, the docstrings of this machine's Python",
        pydocs.recognises,
        pydocs.open_pydocs,
    ),
    Loader("irds:ID, from the catalogue of ir_datasets", irds.recognises, irds.open_irds),
    Loader(
        "a .jsonl or .jsonl.gz file of pairs or of training groups",
        pairs.recognises,
        pairs.open_jsonl,
    ),
    Loader(
        "a .csv or .tsv file whose header names a query, a positive and any negatives",
        pairs.recognises_table,
        pairs.open_table,
    ),
    Loader(
        "a triples.*.tsv file of query, positive and negative texts",
        msmarco.recognises_triples,
        msmarco.open_triples,
    ),
    Loader(
        "a folder with corpus.jsonl as BEIR has it, or its bare name under $M2DR_DATA/beir, "
        "./data or ./datasets",
        beir.recognises,
        beir.open_beir,
    ),
    Loader(
        f"a folder of MS MARCO files ({', '.join(msmarco.LOOKED_FOR)})",
        msmarco.recognises,
        msmarco.open_msmarco,
    ),
)


def open_dataset(name: str) -> Dataset:
    """Open the data set that a name or path means.

    Raises:
        UserError: no loader recognises it; the message lists what a name may be.
    """
    for loader in LOADERS:
        if loader.recognises(name):
            return loader.open(name)
    forms = "; ".join(loader.summary for loader in LOADERS)
    raise UserError(f"{_found_instead(name)} A data set is {forms}.")


def _found_instead(name: str) -> str:
    """Return a sentence about what was found under the name."""
    path = Path(name)
    parts = [folder for folder in beir.parts_of(name).values() if folder]
    if parts:
        return f"{name} is several data sets; give one of them, such as {parts[0]}."
    if path.is_dir():
        looked_for = ", ".join(("corpus.jsonl", *msmarco.LOOKED_FOR))
        return f"The folder {name} holds none of the files looked for: {looked_for}."
    refuse_pipe(path)
    if path.exists():
        return f"The file {name} is not of a kind that m2dr reads."
    return f"There is no data set {name!r}. {suggestion(name, _neighbours(path))}".rstrip()


def _neighbours(path: Path) -> Iterable[str]:
    """Yield the names of data sets nearby, for a hint."""
    yield from pydocs.NAMES
    for data in beir.data_folders():
        yield from (folder.name for folder in data.glob("*") if beir.recognises(str(folder)))
    if path.parent.is_dir():
        yield from (str(path.parent / found.name) for found in path.parent.iterdir())
