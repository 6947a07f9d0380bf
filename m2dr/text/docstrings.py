"""A Python source file becomes questions and answers, without running it."""

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# Chosen by looking at what they drop: below, headings and remnants of signatures; above, whole
# essays in one paragraph.
QUERY_WORDS = range(3, 61)
DOCUMENT_WORDS = 8  # at least
DOCUMENT_CHARACTERS = 2000  # at most; beyond is cut at a word, as encoders would cut it anyway

_BLANK = re.compile(r"\n[ \t]*\n")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_BODIES = ("body", "orelse", "finalbody", "handlers")


@dataclass(frozen=True, slots=True)
class Entry:
    """What one docstring asks (its first paragraph) and answers (the rest)."""

    name: str  # qualified, such as os.path.join
    module: str
    query: str
    text: str


def entries(source: bytes, module: str) -> Iterator[Entry]:
    """Entries of the public names of a module, in file order; none if it is not Python.

    A docstring of one paragraph asks and does not answer: it makes no entry.

    >>> list(entries(b"'Only a summary, nothing more.'", "short"))
    []
    """
    for name, docstring in _docstrings(source, module):
        parts = _BLANK.split(docstring, maxsplit=1)
        query, text = " ".join(parts[0].split()), parts[-1].strip()
        words = len(text.split())
        if len(parts) == 2 and len(query.split()) in QUERY_WORDS and words >= DOCUMENT_WORDS:
            yield Entry(name, module, query, _shortened(text))


def distinct(found: Iterable[Entry]) -> list[Entry]:
    """The entries that can be told apart, sorted by name.

    Of a name (the setter beside its property) and of a text (an inherited docstring) the first
    is kept. A query that several entries ask has no single answer: all of them go.
    """
    by_name: dict[str, Entry] = {}
    texts: set[str] = set()
    for entry in found:
        if entry.name not in by_name and entry.text not in texts:
            by_name[entry.name] = entry
            texts.add(entry.text)
    asked: dict[str, int] = {}
    for entry in by_name.values():
        asked[entry.query] = asked.get(entry.query, 0) + 1
    return [by_name[name] for name in sorted(by_name) if asked[by_name[name].query] == 1]


def is_private(name: str) -> bool:
    """Whether a name is the author's own business.

    >>> is_private("_helper"), is_private("__init__"), is_private("join")
    (True, False, False)
    """
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def _docstrings(source: bytes, module: str) -> Iterator[tuple[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other people's escapes and comparisons
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return  # a template, Python 2, or a stress test of parsers
    yield from _own(tree, module)
    yield from _below(tree, module)


def _own(node: Documented, name: str) -> Iterator[tuple[str, str]]:
    docstring = ast.get_docstring(node)
    if docstring and _encodes(docstring):
        yield name, docstring


def _encodes(text: str) -> bool:
    """Half a surrogate pair is legal in a literal, and breaks every tokenizer."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _below(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    """Docstrings of public classes and functions, also under `if` and `try`, not in functions."""
    for child in (child for field in _BODIES for child in getattr(node, field, ())):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}.{child.name}"
            if not is_private(child.name):
                yield from _own(child, name)
                yield from _below(child, name) if isinstance(child, ast.ClassDef) else ()
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from _below(child, prefix)


def _shortened(text: str) -> str:
    if len(text) <= DOCUMENT_CHARACTERS:
        return text
    return text[:DOCUMENT_CHARACTERS].rsplit(maxsplit=1)[0]
