"""The table of loaders: a name becomes a data set."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from m2dr.errors import UserError, nearest
from m2dr.io import refuse_pipe
from m2dr.text import beir, irds, msmarco, pairs, pydocs, triples
from m2dr.text.collection import Dataset


@dataclass(frozen=True)
class Loader:
    """One thing that a name may be. A new one is a row of LOADERS."""

    name: str
    summary: str
    recognises: Callable[[str], bool]
    open: Callable[[str], Dataset]


# Tried in this order: a folder of BEIR holds .jsonl files too, and must not pass for training data.
LOADERS = (
    Loader(
        "pydocs",
        "pydocs or pydocs:stdlib, the docstrings of this machine's Python",
        pydocs.recognises,
        pydocs.open_pydocs,
    ),
    Loader("irds", "irds:ID, from the catalogue of ir_datasets", irds.recognises, irds.open_irds),
    Loader(
        "jsonl",
        "a .jsonl or .jsonl.gz file of pairs or of training groups",
        pairs.recognises,
        pairs.open_jsonl,
    ),
    Loader(
        "table",
        "a .csv or .tsv file whose header names a query, a positive and any negatives",
        pairs.recognises_table,
        pairs.open_table,
    ),
    Loader(
        "triples",
        "a triples.*.tsv file of query, positive and negative texts",
        triples.recognises,
        triples.open_triples,
    ),
    Loader(
        "beir",
        "a folder with corpus.jsonl as BEIR has it, or its bare name under $M2DR_DATA/beir, "
        "./data or ./datasets",
        beir.recognises,
        beir.open_beir,
    ),
    Loader(
        "msmarco",
        f"a folder of MS MARCO files ({', '.join(msmarco.LOOKED_FOR)})",
        msmarco.recognises,
        msmarco.open_msmarco,
    ),
)


def open_dataset(name: str) -> Dataset:
    """Open what the name means.

    Raises:
        UserError: it means nothing here; the sentence lists what a name may be.
    """
    for loader in LOADERS:
        if loader.recognises(name):
            return loader.open(name)
    forms = "; ".join(loader.summary for loader in LOADERS)
    raise UserError(f"{_found_instead(name)} A data set is {forms}.")


def _found_instead(name: str) -> str:
    """What stands where the name points."""
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
    hint = nearest(name, _neighbours(path))
    return f"There is no data set {name!r}. {hint if hint.startswith('Did') else ''}".rstrip()


def _neighbours(path: Path) -> Iterable[str]:
    """Names that could have been meant."""
    yield from pydocs.NAMES
    for place in beir.places():
        yield from (folder.name for folder in place.glob("*") if beir.recognises(str(folder)))
    if path.parent.is_dir():
        yield from (str(path.parent / found.name) for found in path.parent.iterdir())
