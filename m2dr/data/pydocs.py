"""The built-in data set, made from the docstrings of the Python on this machine.

The first paragraph of a docstring is a query, and the rest is the document that answers it.
"""

import ast
import json
import re
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from itertools import chain
from pathlib import Path

from m2dr.core.errors import UserError, nearest
from m2dr.core.files import cache_folder, json_sha256, write_text
from m2dr.core.records import Document, Judgement, Query
from m2dr.data.dataset import Dataset, JudgedQueries, MemoryCorpus, Split, split_of

NAMES = ("pydocs", "pydocs:stdlib")
_FOLDER_NAME = "pydocs-stdlib"  # of stores and results
MODULE_SHARES = {"train": 0.8, "dev": 0.1, "test": 0.1}  # of the modules
# Shorter queries are headings and remnants of signatures; longer ones are essays in one paragraph.
QUERY_WORDS = range(3, 61)
DOCUMENT_WORDS = 8  # at least
DOCUMENT_CHARACTERS = 2000  # at most; longer texts are cut at a word
_SPLIT_SEED = "pydocs-1"  # another seed gives another split, and makes trained models incomparable
_FORMAT = 1  # raise it when other docstrings are kept, so that caches are read again
_FILE_BYTES = 1_000_000  # larger sources are tables
_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
_BLANK = re.compile(r"\n[ \t]*\n")
_BODIES = ("body", "orelse", "finalbody", "handlers")


@dataclass(frozen=True, slots=True)
class Entry:
    """The query (first paragraph) and the document (the rest) of one docstring."""

    name: str  # qualified, such as os.path.join
    module: str
    query: str
    text: str


def recognises(name: str) -> bool:
    """Return whether the name is pydocs, with a part after a colon or not, or as stores have it."""
    return name.partition(":")[0] == "pydocs" or name == _FOLDER_NAME


def open_pydocs(name: str) -> Dataset:
    """Open the data set; it is split by module, so that no module has entries in two splits."""
    name = NAMES[1] if name == _FOLDER_NAME else name
    if name not in NAMES:
        raise UserError(f"There is no corpus {name!r}. {nearest(name, NAMES)}")
    found = read_entries(name)
    by_split: dict[str, list[Entry]] = {split: [] for split in MODULE_SHARES}
    for entry in found:
        by_split[split_of(entry.module, MODULE_SHARES, _SPLIT_SEED)].append(entry)
    return Dataset(
        name.replace(":", "-"),
        MemoryCorpus(Document(entry.name, entry.text, title=entry.name) for entry in found),
        {
            split: Split(partial(_judged_queries, chosen))
            for split, chosen in by_split.items()
            if chosen
        },
    )


def read_entries(name: str) -> list[Entry]:
    """Return all entries, sorted by name: from the cache, or by parsing every source.

    Parsing takes about half a minute for `pydocs` and two seconds for `pydocs:stdlib`.
    """
    path = _cache_of(name)
    if path.exists():
        return [Entry(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]
    sources = _sources([] if name == NAMES[1] else requirements("m2dr"))
    found = distinct_entries(
        entry for module, file in sources for entry in entries(file.read_bytes(), module)
    )
    with suppress(UserError, OSError):  # without a cache where none can be written
        write_text(path, "".join(json.dumps(asdict(entry)) + "\n" for entry in found))
    return found


def is_cached(name: str) -> bool:
    """Return whether opening this name needs no parsing."""
    return name not in NAMES or _cache_of(name).exists()


def entries(source: bytes, module: str) -> Iterator[Entry]:
    """Yield the entries of a module's public names, in file order; none if it is not Python.

    A docstring of one paragraph has no document, so it makes no entry.

    >>> list(entries(b"'Only a summary, nothing more.'", "short"))
    []
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other people's escapes and comparisons
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return  # a template, Python 2, or a stress test of parsers
    for name, docstring in chain(_own(tree, module), _nested(tree, module)):
        parts = _BLANK.split(docstring, maxsplit=1)
        query, text = " ".join(parts[0].split()), parts[-1].strip()
        words = len(text.split())
        if len(parts) == 2 and len(query.split()) in QUERY_WORDS and words >= DOCUMENT_WORDS:
            if len(text) > DOCUMENT_CHARACTERS:
                text = text[:DOCUMENT_CHARACTERS].rsplit(maxsplit=1)[0]
            yield Entry(name, module, query, text)


def distinct_entries(found: Iterable[Entry]) -> list[Entry]:
    """Return the distinct entries, sorted by name.

    Of entries with one name (a property and its setter) or one text (an inherited docstring) the
    first is kept. A query that several entries share has no single answer: none of them is kept.
    """
    by_name: dict[str, Entry] = {}
    texts: set[str] = set()
    for entry in found:
        if entry.name not in by_name and entry.text not in texts:
            by_name[entry.name] = entry
            texts.add(entry.text)
    uses = Counter(entry.query for entry in by_name.values())
    return [by_name[name] for name in sorted(by_name) if uses[by_name[name].query] == 1]


def is_private(name: str) -> bool:
    """Return whether a name begins with an underscore and is no special method.

    >>> is_private("_helper"), is_private("__init__"), is_private("join")
    (True, False, False)
    """
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def _own(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str
) -> Iterator[tuple[str, str]]:
    docstring = ast.get_docstring(node)
    if docstring and docstring.encode(errors="ignore").decode() == docstring:  # no half surrogates
        yield name, docstring


def _nested(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the docstrings of public classes and functions, also inside `if`, not in functions."""
    for child in (child for field in _BODIES for child in getattr(node, field, ())):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}.{child.name}"
            if not is_private(child.name):
                yield from _own(child, name)
                yield from _nested(child, name) if isinstance(child, ast.ClassDef) else ()
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from _nested(child, prefix)


def _cache_of(name: str) -> Path:
    """Return the cache file, whose name changes with the versions of Python and the packages."""
    packages = [] if name == "pydocs:stdlib" else requirements("m2dr")
    versions = [(package.name, package.version) for package in packages]
    digest = json_sha256([_FORMAT, sys.version, versions])[:16]
    return cache_folder() / f"{name.replace(':', '-')}-{digest}.jsonl"


def requirements(package: str) -> list[Distribution]:
    """Return the installed direct requirements of a package, without extras, sorted by name."""
    needs = distribution(package).requires or []
    names = {re.split(r"[^\w.-]", need, maxsplit=1)[0] for need in needs if "extra ==" not in need}
    found: dict[str, Distribution] = {}
    for name in names:
        with suppress(PackageNotFoundError):  # needed on another system only
            found[name] = distribution(name)
    return [found[name] for name in sorted(found)]


def _judged_queries(chosen: list[Entry]) -> JudgedQueries:
    # A query's id differs from its document's: some tools drop a document with the query's id.
    queries = [Query(f"query:{entry.name}", entry.query) for entry in chosen]
    return queries, [Judgement(f"query:{entry.name}", entry.name, 1) for entry in chosen]


def _sources(packages: list[Distribution]) -> Iterator[tuple[str, Path]]:
    """Yield modules and files: the standard library first, then each package, by module."""
    root = Path(sysconfig.get_paths()["stdlib"])
    library = _modules((path.relative_to(root), path) for path in root.rglob("*.py"))
    yield from (found for found in library if found[0].partition(".")[0] in sys.stdlib_module_names)
    for package in packages:
        files = (file for file in package.files or [] if file.suffix == ".py")
        yield from _modules((Path(file), Path(str(package.locate_file(file)))) for file in files)


def _modules(files: Iterable[tuple[Path, Path]]) -> list[tuple[str, Path]]:
    """Return files with the modules that they are, without tests and files in private folders.

    A private file in a public folder is kept: libraries define public functions in some.
    """
    modules = []
    for relative, path in files:
        *folders, last = relative.with_suffix("").parts
        parts = [*folders, last]
        if (
            all(part.isidentifier() for part in parts)
            and _SKIPPED.isdisjoint(parts)
            and not any(map(is_private, folders))
            and path.is_file()
            and path.stat().st_size <= _FILE_BYTES
        ):
            modules.append((".".join(folders if last == "__init__" else parts), path))
    return sorted(modules)
