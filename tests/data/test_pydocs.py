from pathlib import Path
from textwrap import indent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2dr.data import pydocs
from m2dr.data.loaders import open_dataset
from m2dr.data.pydocs import Entry, distinct_entries, entries

ANSWER = "This is the second paragraph, which has more than eight words."


def docstring(query: str, text: str, name: str = "f") -> str:
    return f"def {name}():\n    {(query + chr(10) * 2 + text)!r}\n"


SOURCE = f'''
"""What the module is for.

{ANSWER} Module.
"""

def public(x):
    """Do something
    useful with x.

    {ANSWER} Function.
      Indented.

    Third paragraph.
    """
{indent(docstring("Hidden inside a function.", f"{ANSWER} Inner", "inner"), " " * 4)}
{docstring("Nobody should call this.", f"{ANSWER} Private.", "_private")}
try:
    import nothing
except ImportError:
    class Fallback:
        {f"Stand in for it.{chr(10) * 2}{ANSWER} Class."!r}
        @property
{indent(docstring("Number of things inside.", f"{ANSWER} Getter.", "size"), " " * 8)}
        @size.setter
{indent(docstring("Set number of things.", f"{ANSWER} Setter.", "size"), " " * 8)}
else:
    async {docstring("Wait for it now.", f"{ANSWER} Async.", "later").replace("    ", " " * 8)}
'''


def found(source: str) -> dict[str, Entry]:
    return {entry.name: entry for entry in distinct_entries(entries(source.encode(), "m"))}


def test_public_names_are_found_wherever_a_module_defines_them() -> None:
    assert set(found(SOURCE)) == {"m", "m.public", "m.Fallback", "m.Fallback.size", "m.later"}


def test_the_first_paragraph_asks_and_the_rest_answers_without_its_indentation() -> None:
    entry = found(SOURCE)["m.public"]

    assert entry.query == "Do something useful with x."
    assert entry.text == f"{ANSWER} Function.\n  Indented.\n\nThird paragraph."


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("Two words", ANSWER),
        ("word " * 61, ANSWER),
        ("Three words here", "too short an answer to keep"),
        ("Half a \ud800 surrogate", ANSWER),
    ],
    ids=["short question", "endless question", "short answer", "not text"],
)
def test_a_docstring_that_makes_no_good_pair_is_left_out(query: str, text: str) -> None:
    assert found(docstring(query, text)) == {}


def test_a_repeated_answer_is_kept_once_and_an_ambiguous_question_not_at_all() -> None:
    source = (
        docstring("First one asked", ANSWER, "a")
        + docstring("Second one asked", ANSWER, "b")
        + docstring("Asked by two", f"{ANSWER} c", "c")
        + docstring("Asked by two", f"{ANSWER} d", "d")
    )

    assert set(found(source)) == {"m.a"}


identifiers = st.from_regex(r"[a-z]{1,3}", fullmatch=True)
paragraphs = st.text(st.sampled_from("ab \n\t\"'\\"), max_size=80)


@given(
    parts=st.lists(st.tuples(identifiers, paragraphs, paragraphs), max_size=6),
)
def test_entries_are_distinct_sorted_and_fit_to_be_ids(
    parts: list[tuple[str, str, str]],
) -> None:
    source = "".join(docstring(query, text, f"x{name}") for name, query, text in parts)

    kept = distinct_entries(entries(source.encode(), "m"))

    names = [entry.name for entry in kept]
    assert names == sorted(set(names))
    assert len({entry.text for entry in kept}) == len({e.query for e in kept}) == len(kept)
    assert all(entry.name.split() == [entry.name] for entry in kept)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def _cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("M2DR_CACHE", str(cache))


@pytest.mark.usefixtures("_cached")
def test_the_standard_library_makes_more_than_two_thousand_pairs() -> None:
    dataset = open_dataset("pydocs:stdlib")

    assert dataset.name == "pydocs-stdlib"
    assert dataset.document_count > 2000
    counts = {split: len(dataset.queries(split)) for split in dataset.splits}
    assert list(counts) == ["train", "dev", "test"]
    assert sum(counts.values()) == dataset.document_count
    assert 0.7 < counts["train"] / dataset.document_count < 0.9


@pytest.fixture
def small_stdlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library of two modules, and an empty cache."""
    library = tmp_path / "lib"
    (library / "json").mkdir(parents=True)
    (library / "json" / "__init__.py").write_text(docstring("Load a thing", ANSWER, "load"))
    (library / "abc.py").write_text(docstring("Be an abstraction", f"{ANSWER} abc", "method"))
    (library / "site-packages").mkdir()
    (library / "site-packages" / "abc.py").write_text(docstring("Not of the", f"{ANSWER} x"))
    (library / "foreign.py").write_text(docstring("Not of the library", f"{ANSWER} y"))
    monkeypatch.setattr(pydocs.sysconfig, "get_paths", lambda: {"stdlib": str(library)})
    monkeypatch.setenv("M2DR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_two_cold_readings_leave_the_same_bytes(small_stdlib: Path) -> None:
    def cold() -> bytes:
        kept = pydocs.read_entries("pydocs:stdlib")
        assert {entry.name for entry in kept} == {"abc.method", "json.load"}
        (path,) = small_stdlib.iterdir()
        data = path.read_bytes()
        path.unlink()
        return data

    assert cold() == cold()
