"""The table of loaders, and `open_dataset`, which opens a data set by name."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from m2dr.core.errors import UserError, counted, suggestion
from m2dr.core.progress import say_once
from m2dr.core.records import Document
from m2dr.data import beir, irds, msmarco, pydocs, tables
from m2dr.data.dataset import Dataset, TableCorpus
from m2dr.data.roles import DOCUMENT, GROUP, PLAIN, QUERY
from m2dr.data.text_files import first_line
from m2dr.data.training_rows import open_rows

_COLUMNS = (*DOCUMENT["id"], *DOCUMENT["text"], *GROUP["query"], *GROUP["positives"])
ReadDocuments = Callable[[], Iterator[Document]]  # a new iterator at each call


def _open_hub(name: str) -> Dataset:
    """Open a data set of the library datasets: a corpus with queries and judgements, or rows."""
    parts = {part: Path(where) for part, where in tables.hub_parts(name).items()}
    if not parts:
        return _open_table(name)
    corpus, queries = parts.pop("corpus"), parts.pop("queries")
    qrels = {tables.split_name(split): where for split, where in parts.items()}
    return beir.open_parts(tables.name_of(Path(name)), corpus, queries, qrels)


def _open_table(name: str) -> Dataset:
    """Open a table: pairs or groups, or documents without queries."""
    path = Path(name)
    left = tables.unread_files(path)
    if not tables.has_header(path, _COLUMNS):
        first = tables.header_of(path)
        if tables.suffix_of(path) == ".tsv" and len(first) == 2:
            return Dataset(tables.name_of(path), TableCorpus(path, PLAIN), {})
        raise UserError(
            f"{path}: the first line, {' | '.join(first)!r:.200}, has no column that m2dr knows, "
            "such as text, or query and positive; --columns names others."
        )
    columns = tables.columns_of(path)
    if not columns and path.is_file() and tables.suffix_of(path) in (".csv", ".tsv"):
        raise UserError(f"{name} holds no row below its header, {first_line(path)!r:.200}.")
    query, answer = GROUP.has(columns, "query"), GROUP.has(columns, "positives")
    if columns and (DOCUMENT.has(columns, "text") if query != answer else not query):
        return Dataset(tables.name_of(path), TableCorpus(path), {}, unread=left)
    dataset = open_rows(name)
    dataset.unread = left
    return dataset


@dataclass(frozen=True)
class Loader:
    """One layout of data sets. A new one is a row of LOADERS."""

    summary: str  # what a name of this layout looks like
    recognises: Callable[[str], bool]
    open: Callable[[str], Dataset]


# Tried in this order: a BEIR folder holds .jsonl files too, and is no training data.
LOADERS = (
    Loader("pydocs or pydocs:stdlib", pydocs.recognises, pydocs.open_pydocs),
    Loader("irds:ID of ir_datasets", irds.recognises, irds.open_irds),
    Loader("hf:ID[/CONFIG][:SPLIT] of datasets", tables.is_hub, _open_hub),
    Loader("a triples.*.tsv file", msmarco.recognises_triples, msmarco.open_triples),
    Loader("a folder of BEIR's files, or its name", beir.recognises, beir.open_beir),
    Loader("a folder of MS MARCO's files", msmarco.recognises, msmarco.open_msmarco),
    Loader(
        "a .jsonl, .json, .csv, .tsv, .parquet or .arrow file or a folder of them, with pairs, "
        "groups or documents; or a folder of .md and .txt files",
        lambda name: tables.is_table(Path(name)),
        _open_table,
    ),
)


def open_dataset(name: str) -> Dataset:
    """Open the data set that a name or path means.

    Raises:
        UserError: no loader recognises it.
    """
    for loader in LOADERS:
        if loader.recognises(name):
            dataset = loader.open(name)
            if dataset.unread:
                say_once(unread(dataset.name, dataset.unread))
            return dataset
    path = Path(name)
    parts = [folder for folder in beir.parts_of(name).values() if folder]
    if parts:
        raise UserError(f"{name} is several data sets; give one of them, such as {parts[0]}.")
    known = [*pydocs.NAMES, *(str(path.parent / near.name) for near in path.parent.glob("*"))]
    known += [folder.name for data in beir.data_folders() for folder in data.glob("*")]
    if path.exists():
        raise UserError(f"{name} is none of: {'; '.join(loader.summary for loader in LOADERS)}.")
    raise UserError(f"There is no data set {name!r}. {suggestion(name, known)}".rstrip())


def unread(name: str, files: Sequence[Path]) -> str:
    """Return a sentence about the files of a data set that m2dr does not read."""
    names = ", ".join(map(str, files[:5])) + ", …" * (len(files) > 5)
    return f"{name}: m2dr does not read {counted(len(files), 'files', ',')} there: {names}."


def open_texts(name: str, queries: bool = False) -> ReadDocuments:
    """Return a function that reads the texts of a name, in order, each with an id.

    Of a `.txt` file each line is a text, blank ones too, and its id is its number from 0. A file
    of cells holds an id, a tab and a text per line, or columns that its first line names; any other
    file rows with a text, and perhaps a title and an id. Another name is that of a corpus.

    Args:
        name: of a file or a corpus.
        queries: whether queries are meant: under `query` in a row, and not those of a corpus.

    Raises:
        UserError: there is no such file or corpus, or a corpus is named where queries are meant;
            from the iterator, a row is malformed.
    """
    path = Path(name)
    roles = QUERY if queries else DOCUMENT
    if tables.suffix_of(path) == ".txt":
        return lambda: (
            Document(str(row), line) for row, line in enumerate(tables.read_lines(path, blank=True))
        )
    if path.is_file() and tables.is_table(path):
        names = () if tables.has_header(path, roles["text"]) else PLAIN

        def read() -> Iterator[Document]:
            text = partial(_text, map(str, count()))
            return tables.by_role(path, roles, ("text",), text, names)

        return read
    dataset = open_dataset(name)
    if queries:
        raise UserError(f"{name} is a corpus, and queries were asked for; give a file of them.")
    return dataset.documents


def _text(numbers: Iterator[str], values: tables.Row) -> Document:
    return Document(
        tables.id_of(values.get("id", next(numbers))),
        tables.text_of(values["text"], "the text", empty=True),
        tables.text_of(values.get("title") or "", "the title", empty=True),
    )
