"""The table of loaders, and `open_dataset`, which opens a data set by name."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from m2dr.core.errors import UserError, suggestion
from m2dr.core.files import refuse_pipe
from m2dr.data import beir, huggingface, irds, msmarco, pairs, pydocs
from m2dr.data.dataset import Dataset, open_corpus_file
from m2dr.data.tables import is_place, name_of, read_records, split_name


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
        "hf:ID, hf:ID/CONFIG or hf:ID:SPLIT, from the hub or a folder through the library datasets",
        huggingface.recognises,
        lambda name: open_hub(name),
    ),
    Loader(
        "a .jsonl or .jsonl.gz file of pairs, of training groups or of documents",
        pairs.recognises,
        lambda name: open_records(name),
    ),
    Loader(
        "a triples.*.tsv file of query, positive and negative texts",
        msmarco.recognises_triples,
        msmarco.open_triples,
    ),
    Loader(
        "a folder with corpus.jsonl (or .parquet, …) as BEIR has it, or its bare name under "
        "$M2DR_DATA/beir, ./data or ./datasets",
        beir.recognises,
        beir.open_beir,
    ),
    Loader(
        f"a folder of MS MARCO files ({', '.join(msmarco.LOOKED_FOR)})",
        msmarco.recognises,
        msmarco.open_msmarco,
    ),
    Loader(
        "a .parquet, .arrow, .feather, .csv or .tsv file, or a folder of them, whose columns are "
        "those of pairs, of training groups or of documents",
        lambda name: is_place(Path(name)),
        lambda name: open_records(name),
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


def open_hub(name: str) -> Dataset:
    """Open a data set of the library datasets: a corpus with queries and judgements, or rows."""
    parts = {part: Path(where) for part, where in huggingface.retrieval_parts(name).items()}
    if not parts:
        return open_records(name)
    corpus, queries = parts.pop("corpus"), parts.pop("queries")
    qrels = {split_name(part.removeprefix("qrels/")): where for part, where in parts.items()}
    return beir.open_parts(huggingface.short_name(name), corpus, queries, qrels)


def open_records(name: str) -> Dataset:
    """Open a place of rows: pairs or groups, or documents without queries.

    Raises:
        UserError: there is no row, or its columns are of none of these.
    """
    path = Path(name)
    first = next(read_records(path), None)
    row = first.json() if first and first.text[:1] != "[" else {}
    if not pairs.answers(row) and beir.is_document(row):
        return Dataset(name_of(path), open_corpus_file(path, beir.document_of), {})
    return pairs.open_rows(name)


def _found_instead(name: str) -> str:
    """Return a sentence about what was found under the name."""
    path = Path(name)
    parts = [folder for folder in beir.parts_of(name).values() if folder]
    if parts:
        return f"{name} is several data sets; give one of them, such as {parts[0]}."
    if path.is_dir():
        looked_for = ", ".join(("corpus.jsonl", *msmarco.LOOKED_FOR, "*.parquet, *.arrow, *.csv"))
        return f"The folder {name} holds none of the files looked for: {looked_for}."
    refuse_pipe(path)
    if path.exists() and not path.stat().st_size:
        return f"The file {name} is empty."
    if path.suffix == ".json" and path.exists():
        return (
            f"The file {name} is JSON. Write one record per line, as {path.with_suffix('.jsonl')}."
        )
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
