"""Files of judgements (qrels), with three columns as in BEIR or four as in TREC, and of queries."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from pathlib import Path

from m2dr.core.errors import UserError
from m2dr.core.records import Judgement, Query
from m2dr.data import tables
from m2dr.data.dataset import Corpus, JudgedQueries
from m2dr.data.roles import JUDGEMENT, PLAIN, QUERY

JUDGED = ("query", "document", "relevance")  # roles
_ITERATION = ("0", "Q0")
_QRELS = re.compile(r"[._-]?qrels?(?![a-z])[._-]?", re.IGNORECASE)
_JUDGEMENTS = re.compile("judge?ment|relevance", re.IGNORECASE)
_SUFFIXES = (*tables.TEXT, *tables.ARROW, ".txt", ".trec", ".qrels", ".qrel")

FindQueries = Callable[[Set[str]], Mapping[str, Query]]  # wanted ids → those found, in file order


def read_judgements(path: Path) -> Iterator[Judgement]:
    """Yield the judgements of a file, or of a table whose columns have the roles of JUDGEMENT.

    Lines of text are split at white space. A first line that names the columns is read by these
    names. Else a line is `query document relevance`, as in BEIR, or it has four columns: `query 0
    document relevance`, as in TREC, or `query document relevance iteration`, as ir_datasets exports
    them. The iteration, 0 or Q0 in all lines, tells the two apart, or else the number of documents.

    Raises:
        UserError: a line is malformed, or nothing tells what the four columns are.
    """
    if tables.is_named(path, ".csv"):
        yield from tables.by_role(path, JUDGEMENT, JUDGED, judgement_of)
        return
    rows = _rows(path)
    number, cells = next(rows, (0, []))
    if header := _header(path, number, cells):
        count, places = len(cells), header
    else:
        count, places = len(cells), _places(path, len(cells))
        rows = chain([(number, cells)] if cells else (), rows)
    for number, cells in rows:
        try:
            if len(cells) != count:
                raise ValueError(f"{len(cells)} columns, where the first has {count}")
            yield judgement_of({role: cells[n] for role, n in zip(JUDGED, places, strict=True)})
        except ValueError as error:
            raise UserError(f"{path}, row {number}: {error}.") from None


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(tables.read_lines(path), 1):
        cells = tables.words_of(line)
        if cells and not line.startswith("#"):
            yield number, cells


def _header(path: Path, number: int, cells: list[str]) -> Sequence[int]:
    """Return the places of query, document and relevance in a line of names; empty if it is none.

    Raises:
        UserError: it names one of the three, and not the others.
    """
    named = [cell.lower() for cell in cells]
    if not any(JUDGEMENT.has(named, role) for role in JUDGED) or any(map(_is_number, cells[2:])):
        return ()
    try:
        places, _ = JUDGEMENT.of({name: place for place, name in enumerate(named)}, *JUDGED)
        return [places[role] for role in JUDGED]
    except ValueError as error:
        raise UserError(f"{path}, row {number}: {error}.") from None


def _places(path: Path, count: int) -> Sequence[int]:
    """Return the places of query, document and relevance in lines without a header.

    Raises:
        UserError: they have another number of columns, or four whose order nothing tells.
    """
    if count in (0, 3):
        return range(3)
    if count != 4:
        raise UserError(f"{path}: {count} columns, where a judgement has 3 or 4.")
    trec = exported = numbers = True
    second, third = set[str](), set[str]()
    for _, cells in _rows(path):
        if len(cells) == count:
            trec, exported = trec and cells[1] in _ITERATION, exported and cells[3] in _ITERATION
            numbers = numbers and _is_number(cells[2])
            second.add(cells[1])
            third.add(cells[2])
    if trec or not numbers or (not exported and len(second) < len(third)):
        return (0, 2, 3)
    if exported or len(second) > len(third):
        return (0, 1, 2)
    raise UserError(
        f"{path} has four unnamed columns, and the second or the third may hold documents; add a "
        "header such as `query-id iteration corpus-id score`."
    )


def _is_number(text: str) -> bool:
    try:
        return tables.number_of(text, "") is not None
    except ValueError:
        return False


def judgement_of(values: tables.Row) -> Judgement:
    """Return the judgement of the values of JUDGED."""
    query, document = tables.id_of(values["query"]), tables.id_of(values["document"])
    level = tables.number_of(values["relevance"], "the relevance")
    return Judgement(query, document, int(level) if level.is_integer() else level)


def judgement_files(folder: Path) -> tuple[dict[str, Path], list[Path]]:
    """Return the files of judgements in a folder and in its folder `qrels`, and those not read.

    Returns:
        By split, the table or text file that lies in `qrels` or is called so; and others that lie
        there or are called so, or judgements: of another format, or of a split that one has.
    """
    inside = sorted((folder / "qrels").glob("*"))
    beside = sorted(path for path in folder.glob("*") if path.is_file())
    unread = [path for path in beside if _JUDGEMENTS.search(path.name)]
    files: dict[str, Path] = {}
    for path in (*inside, *(path for path in beside if _QRELS.search(path.name))):
        split = qrels_split(path)
        if split and split not in files and (path.is_file() or tables.is_table(path)):
            files[split] = path
        elif not path.name.startswith((".", "README")):
            unread.append(path)
    return files, unread


def qrels_split(path: Path) -> str:
    """Return the split that a file of judgements is called after; empty for another format.

    >>> qrels_split(Path("qrels.dev.small.tsv")), qrels_split(Path("2019qrels-pass.txt"))
    ('dev.small', '2019-pass')
    >>> qrels_split(Path("qrels.tsv")), qrels_split(Path("qrels/validation.txt"))
    ('test', 'dev')
    """
    if path.suffix and not path.is_dir() and tables.suffix_of(path) not in _SUFFIXES:
        return ""
    return tables.split_name("-".join(filter(None, _QRELS.split(tables.name_of(path))))) or "test"


def read_split(path: Path, corpus: Corpus, find_queries: FindQueries) -> JudgedQueries:
    """Return the judged queries that have a text, and all judgements of a file.

    Published sets judge documents and queries that their files lack (ArguAna five documents).
    These judgements are kept, as in trec_eval: such a document is relevant and never found.

    Raises:
        UserError: two judgements of one pair differ, there is none, or no judged query or no
            judged document is in the files, which then belong to another data set.
    """
    judgements: dict[tuple[str, str], Judgement] = {}
    for judgement in read_judgements(path):
        pair = (judgement.query_id, judgement.document_id)
        earlier = judgements.setdefault(pair, judgement)
        if earlier != judgement:
            levels = f"{earlier.relevance} and {judgement.relevance}"
            raise UserError(f"{path} judges {pair} twice: {levels}.")
    queries = find_queries({judgement.query_id for judgement in judgements.values()})
    if not queries or not any(docid in corpus for _, docid in judgements):
        what = "documents" if queries else "queries"
        first = next(iter(judgements), "missing")
        raise UserError(f"{path} judges no {what} of this data set; its first pair is {first}.")
    return list(queries.values()), list(judgements.values())


def find_queries(path: Path, wanted: Set[str]) -> dict[str, Query]:
    """Return the wanted queries of a table by id, in file order; two of one id are refused."""
    return _by_id(path, (query for query in read_queries(path) if query.id in wanted))


def read_topics(path: Path) -> list[Query]:
    """Return the queries of a table, in its order; without a header a line is `id<tab>text`.

    Raises:
        UserError: there is no query, one has no text, or two have one id.
    """
    named = tables.has_header(path, (*QUERY["id"], QUERY["text"][0]))
    queries = _by_id(path, read_queries(path, () if named else PLAIN, empty=False))
    if not queries:
        raise UserError(f"{path} holds no queries.")
    return list(queries.values())


def _by_id(path: Path, queries: Iterable[Query]) -> dict[str, Query]:
    found: dict[str, Query] = {}
    for query in queries:
        if found.setdefault(query.id, query) is not query:
            raise UserError(f"{path} holds two queries of the id {query.id!r}.")
    return found


def read_queries(path: Path, names: Sequence[str] = (), empty: bool = True) -> Iterator[Query]:
    """Yield the queries of a table, each with an id and a text, which may be empty."""

    def query(values: tables.Row) -> Query:
        text = tables.text_of(values["text"], "the text", empty)
        return Query(tables.id_of(values["id"]), text)

    return tables.by_role(path, QUERY, ("id", "text"), query, names)
