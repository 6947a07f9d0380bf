import ast
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2dr.core.errors import UserError
from m2dr.core.records import Document, Judgement, Query
from m2dr.data import pydocs
from m2dr.data.loaders import open_dataset
from m2dr.data.pydocs import DOCUMENT_CHARACTERS, Entry, distinct, entries

ANSWER = "This is the second paragraph, which has more than eight words."
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
    def inner():
        """Hidden inside a function.

        {ANSWER} Inner.
        """

def _private():
    """Nobody should call this.

    {ANSWER} Private.
    """

try:
    import nothing
except ImportError:
    class Fallback:
        """Stand in for it.

        {ANSWER} Class.
        """
        @property
        def size(self):
            """Number of things inside.

            {ANSWER} Getter.
            """
        @size.setter
        def size(self, value):
            """Set number of things.

            {ANSWER} Setter.
            """
else:
    async def later():
        """Wait for it now.

        {ANSWER} Async.
        """
'''


def found(source: str) -> dict[str, Entry]:
    return {entry.name: entry for entry in distinct(entries(source.encode(), "m"))}


def docstring(query: str, text: str, name: str = "f") -> str:
    return f"def {name}():\n    {(query + chr(10) * 2 + text)!r}\n"


def test_public_names_are_found_wherever_a_module_defines_them() -> None:
    assert set(found(SOURCE)) == {"m", "m.public", "m.Fallback", "m.Fallback.size", "m.later"}


def test_the_first_paragraph_asks_and_the_rest_answers_without_its_indentation() -> None:
    entry = found(SOURCE)["m.public"]

    assert entry.query == "Do something useful with x."
    assert entry.text == f"{ANSWER} Function.\n  Indented.\n\nThird paragraph."


def test_of_a_property_and_its_setter_the_first_is_kept() -> None:
    assert found(SOURCE)["m.Fallback.size"].query == "Number of things inside."


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


def test_a_long_answer_is_cut_at_a_word() -> None:
    text = found(docstring("Three words here", "abcdefg " * 1000))["m.f"].text

    assert DOCUMENT_CHARACTERS - 10 < len(text) <= DOCUMENT_CHARACTERS
    assert set(text.split()) == {"abcdefg"}


def test_a_repeated_answer_is_kept_once_and_an_ambiguous_question_not_at_all() -> None:
    source = (
        docstring("First one asked", ANSWER, "a")
        + docstring("Second one asked", ANSWER, "b")
        + docstring("Asked by two", f"{ANSWER} c", "c")
        + docstring("Asked by two", f"{ANSWER} d", "d")
    )

    assert set(found(source)) == {"m.a"}


@pytest.mark.parametrize(
    "source", [b"print 'python two'", b"\x00", b"\xff\xfe", b"(" * 5000, b"x = ="]
)
def test_what_is_not_python_has_no_entries(source: bytes) -> None:
    assert list(entries(source, "m")) == []


@pytest.mark.filterwarnings("error")
def test_a_module_that_compiles_with_a_warning_is_read_in_silence() -> None:
    assert set(found(docstring("Three words here", ANSWER) + "x = '\\d' is 1\n")) == {"m.f"}


identifiers = st.from_regex(r"[a-z]{1,3}", fullmatch=True)
paragraphs = st.text(st.sampled_from("ab \n\t\"'\\"), max_size=80)


@given(
    parts=st.lists(st.tuples(identifiers, paragraphs, paragraphs), max_size=6),
)
def test_entries_are_distinct_sorted_and_fit_to_be_ids(
    parts: list[tuple[str, str, str]],
) -> None:
    source = "".join(docstring(query, text, f"x{name}") for name, query, text in parts)

    kept = distinct(entries(source.encode(), "m"))

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


@pytest.mark.usefixtures("_cached")
def test_all_pairs_of_a_module_are_in_one_split() -> None:
    dataset = open_dataset("pydocs:stdlib")
    module = {entry.name: entry.module for entry in pydocs.read_entries("pydocs:stdlib")}

    modules = [
        {module[judgement.document_id] for judgement in dataset.judgements(split)}
        for split in dataset.splits
    ]

    assert sum(map(len, modules)) == len(set.union(*modules))


@pytest.mark.usefixtures("_cached")
def test_no_document_of_the_standard_library_is_a_test_or_private() -> None:
    for entry in pydocs.read_entries("pydocs:stdlib"):
        parts = entry.name.split(".")
        assert parts[0] in sys.stdlib_module_names
        assert not {"test", "tests", "idle_test"} & set(parts[:-1])
        assert not any(map(pydocs.is_private, entry.name[len(entry.module) :].split(".")))


@pytest.mark.usefixtures("_cached")
def test_a_query_is_judged_by_the_rest_of_its_docstring() -> None:
    dataset = open_dataset("pydocs:stdlib")
    name = "json.decoder.JSONDecoder"
    docstring = ast.get_docstring(_class("json/decoder.py", "JSONDecoder"))
    assert docstring is not None
    query, _, text = docstring.partition("\n\n")

    assert dataset.document(name) == Document(name, text, title=name)
    split = next(s for s in dataset.splits if Query(f"query:{name}", query) in dataset.queries(s))
    assert Judgement(f"query:{name}", name, 1) in dataset.judgements(split)


def _class(file: str, name: str) -> ast.ClassDef:
    tree = ast.parse((Path(json.__file__).parents[1] / file).read_bytes())
    return next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)


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


def test_only_modules_of_the_library_are_read(small_stdlib: Path) -> None:
    assert [entry.name for entry in pydocs.read_entries("pydocs:stdlib")] == [
        "abc.method",
        "json.load",
    ]
    assert len(list(small_stdlib.iterdir())) == 1


def test_two_cold_readings_leave_the_same_bytes(small_stdlib: Path) -> None:
    def cold() -> bytes:
        pydocs.read_entries("pydocs:stdlib")
        (path,) = small_stdlib.iterdir()
        data = path.read_bytes()
        path.unlink()
        return data

    assert cold() == cold()


def test_what_is_cached_is_not_parsed_again(small_stdlib: Path) -> None:
    steps: list[int] = []

    first = pydocs.read_entries("pydocs:stdlib", steps.append)
    assert steps == [1, 1]
    assert pydocs.read_entries("pydocs:stdlib", steps.append) == first
    assert steps == [1, 1]
    assert small_stdlib.is_dir()


@pytest.mark.parametrize("damage", [b"{", b'{"name": 3}\n', b"\xff\n"])
def test_a_damaged_cache_is_made_again(small_stdlib: Path, damage: bytes) -> None:
    first = pydocs.read_entries("pydocs:stdlib")
    (path,) = small_stdlib.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage)

    assert pydocs.read_entries("pydocs:stdlib") == first
    assert path.read_bytes() == whole


def test_a_cache_folder_that_cannot_be_written_is_done_without(small_stdlib: Path) -> None:
    small_stdlib.write_text("a file where the folder should be")

    assert len(pydocs.read_entries("pydocs:stdlib")) == 2


def test_a_full_disk_leaves_nothing_half_written(
    small_stdlib: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pydocs.os, "fsync", full)

    assert len(pydocs.read_entries("pydocs:stdlib")) == 2
    assert list(small_stdlib.iterdir()) == []


def test_a_python_without_sources_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pydocs.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    monkeypatch.setenv("M2DR_CACHE", str(tmp_path / "cache"))

    with pytest.raises(UserError, match="this Python has no sources"):
        open_dataset("pydocs:stdlib")


def test_another_python_is_another_cache(
    small_stdlib: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pydocs.read_entries("pydocs:stdlib")
    monkeypatch.setattr(pydocs.sys, "version", "another")
    pydocs.read_entries("pydocs:stdlib")

    assert len(list(small_stdlib.iterdir())) == 2


def test_the_cache_lies_where_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("M2DR_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert pydocs.cache_folder() == Path("/home/someone/.cache/m2dr")

    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert pydocs.cache_folder() == Path("/var/cache/m2dr")

    monkeypatch.setenv("M2DR_CACHE", "/fast")
    assert pydocs.cache_folder() == Path("/fast")


def test_the_packages_read_are_those_needed_directly_or_not_and_without_extras() -> None:
    names = {package.name.lower() for package in pydocs.requirements("m2dr")}

    assert {"torch", "numpy", "click", "transformers"} <= names
    assert not {"m2dr", "pytest", "sympy", "faiss-cpu", "sentence-transformers"} & names


def test_sources_of_a_package_are_found_without_importing_it() -> None:
    (click,) = [package for package in pydocs.requirements("m2dr") if package.name == "click"]

    sources = {source.module: source.path for source in pydocs._of(click)}

    assert "click.decorators" in sources
    assert sources["click"].name == "__init__.py"
    assert all(path.is_file() for path in sources.values())


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("a/b.py", "a.b"),
        ("a/__init__.py", "a"),
        ("a/_b.py", "a._b"),
        ("_pydecimal.py", "_pydecimal"),
        ("a/_vendor/b.py", None),
        ("a/tests/b.py", None),
        ("a/test.py", None),
        ("idlelib/idle_test/b.py", None),
        ("bin/not-a-module.py", None),
        ("../../bin/script.py", None),
    ],
)
def test_a_file_is_a_module_unless_it_is_a_test_or_in_a_private_folder(
    file: str, module: str | None
) -> None:
    source = pydocs._source(Path(file), Path("/lib") / file)

    assert (source and source.module) == module


def test_the_name_in_a_store_opens_the_corpus() -> None:
    """`m2dr index verify` opens what the store names."""
    name = open_dataset("pydocs:stdlib").name

    assert open_dataset(name).name == name == "pydocs-stdlib"
