"""The house keeps its order: small files, short functions, no words of elsewhere."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st

SOURCES = sorted((Path(__file__).parents[1] / "m2dr").rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION = 500, 45  # lines; the second without its docstring


def statements(function: ast.FunctionDef) -> int:
    """Lines of a function without its docstring and decorators."""
    first = function.body[1] if ast.get_docstring(function) and len(function.body) > 1 else None
    start = first.lineno if first else function.body[0].lineno
    return (function.end_lineno or start) - start + 1


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_file_and_its_functions_fit_on_a_few_screens(path: Path) -> None:
    text = path.read_text()

    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]

    assert len(text.splitlines()) <= LONGEST_FILE
    assert not [f.name for f in functions if statements(f) > LONGEST_FUNCTION]


def test_a_class_has_a_name_of_its_own() -> None:
    names = Counter(
        node.name
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )

    assert not [name for name, count in names.items() if count > 1]


def test_a_file_has_a_name_of_its_own() -> None:
    """But for those named after what a person types, or after another tool."""
    names = Counter(
        path.name
        for path in SOURCES
        if path.parent.name not in ("commands", "cli", "integrations") and "__" not in path.name
    )

    assert not [name for name, count in names.items() if count > 1]


def test_no_property_fails_for_a_slow_machine_or_a_long_example() -> None:
    assert settings.default.deadline is None
    assert len(repr(st.sampled_from(["x" * 40_000]))) > 40_000  # hypothesis warns of it


def test_whatever_is_printed_goes_through_one_place() -> None:
    """Control characters of the data are replaced there."""
    allowed = {"terminal.py", "progress.py", "gpu.py"}  # the last prints a word of its own

    printing = [
        path.name
        for path in SOURCES
        if path.name not in allowed
        and re.search(r"click\.s?echo\(|\bprint\((?!\w*\))|std(out|err)\.write", code(path))
    ]

    assert not printing


def code(path: Path) -> str:
    """A file without its docstrings and comments."""
    return ast.unparse(ast.parse(re.sub(r'"""(.|\n)*?"""', "'text'", path.read_text())))


COUNTED = (
    "documents|queries|collections|indexes|models|cuts|shards|rows|columns|texts|pairs|items|"
    "judgements|runs|weights|groups|labels|docids|steps|sentences|candidates"
)


def uncounted(source: str) -> list[str]:
    """Counts in f-strings that stand before a plural; after "of" they may be any number."""
    found = []
    for string in ast.walk(ast.parse(source)):
        parts = string.values if isinstance(string, ast.JoinedStr) else []
        for before, part, after in zip([None, *parts], parts, parts[1:], strict=False):
            if not isinstance(part, ast.FormattedValue) or not isinstance(after, ast.Constant):
                continue
            head = str(before.value) if isinstance(before, ast.Constant) else ""
            noun = re.match(rf" ({COUNTED})\b", str(after.value))
            is_len = isinstance(part.value, ast.Call) and ast.unparse(part.value.func) == "len"
            if noun and is_len and not head.endswith(("of ", "All ")):
                found.append(f"{string.lineno}: {ast.unparse(part.value)} {noun[1]}")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_count_and_its_noun_agree(path: Path) -> None:
    assert uncounted('f"{len(a)} collections"') == ["1: len(a) collections"]
    assert uncounted(path.read_text()) == []
