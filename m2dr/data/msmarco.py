"""MS MARCO passage files, under the names they are published with."""

import re
from collections.abc import Iterator, Mapping, Set
from functools import partial
from itertools import chain
from pathlib import Path

from m2dr.core.errors import UserError
from m2dr.core.progress import progress
from m2dr.core.records import Document, Query
from m2dr.data.dataset import Corpus, Dataset, Negatives, Split, TableCorpus, first_negatives
from m2dr.data.qrels import judgement_files, read_queries, read_split
from m2dr.data.roles import GROUP, PLAIN, TRIPLE
from m2dr.data.tables import has_header, header_of, parsed, read_tsv, split_in, suffix_of, text_of
from m2dr.data.training_rows import TrainingRow, build_dataset, training_rows

# The archive that official files come in, collectionandqueries.tar.gz, may lie beside them.
_QUERIES = re.compile(r".*queries(?!.*\.tar\b).*\.(tsv|txt)(\.gz)?$")
_COLLECTIONS = ("collection.tsv", "collection.tsv.gz")


def recognises(name: str) -> bool:
    """Return whether the name is a folder with a collection.tsv."""
    return any((Path(name) / file).is_file() for file in _COLLECTIONS)


def open_msmarco(name: str) -> Dataset:
    """Open the folder.

    Documents stay on disk; splits come from the qrels files, and given negatives from the id
    triples, or from the ids of published groups (train.jsonl.gz) beside them. A file of text
    triples or groups is a data set of its own too, with the texts that it has: give its path.
    """
    folder = Path(name)
    files = sorted(folder.iterdir())
    corpus = TableCorpus(next(path for path in files if path.name in _COLLECTIONS), PLAIN)
    find = partial(_find_queries, [path for path in files if _QUERIES.match(path.name)])
    qrels, unread = judgement_files(folder)
    splits = {
        split: Split(
            partial(read_split, path, corpus, find), partial(_negatives, files, split, corpus)
        )
        for split, path in qrels.items()
    }
    return Dataset(folder.resolve().name, corpus, splits, unread=unread)


def recognises_triples(name: str) -> bool:
    """Return whether the name is a file of text triples, without a header: by name or content."""
    path = Path(name)
    if not path.is_file() or suffix_of(path) != ".tsv" or has_header(path, GROUP["positives"]):
        return False
    cells = header_of(path)  # ids, of a collection or of qidpidtriples, are one word each
    return _is(path, "triples.") or (len(cells) == 3 and all(" " in cell for cell in cells))


def open_triples(name: str) -> Dataset:
    """Read a file of text triples into memory; the corpus is the documents of the triples."""
    path = Path(name)

    def rows(scored: bool = False) -> Iterator[TrainingRow]:  # noqa: ARG001  # they have no scores
        return parsed(path, partial(_triple, split_in(path.name)), TRIPLE)

    return build_dataset(path.name.partition(".tsv")[0], rows)


def _is(path: Path, prefix: str) -> bool:
    return path.name.startswith(prefix) and suffix_of(path) == ".tsv"


def _triple(split: str, row: dict[str, str]) -> TrainingRow:
    query, *documents = (text_of(row[name], f"the {name}") for name in TRIPLE)
    positive, negative = (Document("", text) for text in documents)
    return TrainingRow(split, Query("", query), (positive,), (negative,))


def _find_queries(files: list[Path], wanted: Set[str]) -> Mapping[str, Query]:
    """Return the wanted queries by id, of the first files that hold them, in file order."""
    found: dict[str, Query] = {}
    for path in files:
        for query in read_queries(path, PLAIN):
            if query.id in wanted:
                found.setdefault(query.id, query)
        if found.keys() >= wanted:
            break
    return found


def _negatives(files: list[Path], split: str, corpus: Corpus) -> Negatives:
    # The triples of "train" also serve a split such as "train.judged", whose queries are fewer.
    own = [path for path in files if split.split(".")[0] == split_in(path.name)]
    triples = (
        (query, docid)
        for path in own
        if _is(path, "qidpidtriples.")
        for query, _, docid in _id_triples(path)
    )
    groups = (
        (row.query.id, document.id)
        for path in own
        if suffix_of(path) == ".jsonl"
        and GROUP.has(next(parsed(path, dict), {}), "query", "positives")
        for row in training_rows(path)
        for document in row.negatives
    )
    negatives = first_negatives(chain(triples, groups))
    for docid in dict.fromkeys(chain.from_iterable(negatives.values())):
        if docid not in corpus:
            raise UserError(f"A negative of {split} is {docid!r}, which the corpus lacks.")
    return negatives


def _id_triples(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield the rows of id triples, of which there are 397 million, and show how many are read."""
    lines = path.stat().st_size // (24 if path.suffix == ".tsv" else 8)  # bytes of a line, about
    with progress(f"Reading {path.name}", lines, "lines") as advance:
        for number, row in enumerate(read_tsv(path, TRIPLE), 1):
            yield row
            if number % 100_000 == 0:
                advance(100_000)
