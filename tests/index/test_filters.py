"""Search among documents whose own fields fit: as if all others were not there."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m2dr.core.errors import UserError
from m2dr.core.records import Value
from m2dr.data.dataset import own_fields
from m2dr.data.roles import DOCUMENT
from m2dr.index import faiss
from m2dr.index.engines import ENGINES
from m2dr.index.exact import ExactIndex
from m2dr.index.faiss import build_index, open_faiss
from m2dr.index.filters import FIELDS, Filter, field_names, field_types, matching, write_fields
from m2dr.index.funnel import Funnel, FunnelIndex
from m2dr.index.milvus import MILVUS_ENGINES, Server, open_collection, push
from m2dr.index.searchable import Searchable
from m2dr.index.store import Store, open_store

DOCUMENTS, DIM = 90, 16
QUERIES = np.random.default_rng(5).normal(size=(3, DIM)).astype(np.float32)
NAMES = ["a", "b", "c"]


# The documents, and what their fields are worth, apart from how m2dr keeps them


def make_row(number: int) -> dict[str, object]:
    draw = np.random.default_rng(number)
    row: dict[str, object] = {"_id": f"d{number}", "text": "x"}
    if number % 7:
        row["year"] = int(draw.integers(-3, 12)) if number != 8 else 2**62 + 1
    if number % 3:
        row["price"] = [float(draw.integers(0, 9)) / 4, int(draw.integers(0, 3))][number % 2]
    if number % 5:
        row["lang"] = str(draw.choice(["en", "de", "en gb", "it's", 'a "b" \\ c', "zürich"]))
    if number % 6:
        row["shelf"] = str(number % 13)
    row["metadata"] = {
        "day": f"2024-01-{1 + number % 28:02d}T12:00:00{['Z', '+05:00', '-03:30'][number % 3]}",
        "of.the": {"writer": None if number % 4 == 0 else f"w{number % 6}"},
    }
    if number % 2:
        row["open"] = bool(number % 5 < 3)
    if number % 11:
        row["mixed"] = number % 10 if number % 4 else f"v{number % 10}"
    return row


ROWS = [make_row(number) for number in range(DOCUMENTS)]


def value_of(row: dict[str, object], name: str) -> object:
    held = row["metadata"]
    assert isinstance(held, dict)
    if name == "of.the.writer":
        return held["of.the"]["writer"]
    if name == "day":
        return datetime.fromisoformat(held["day"])
    value = row.get(name)
    if name == "shelf" and value is not None:
        return int(str(value))
    return str(value) if name == "mixed" and value is not None else value


class Asked(NamedTuple):
    """A random condition: as text, and what is true of a row."""

    text: str
    fits: Callable[[dict[str, object]], bool]


def quoted(text: str) -> st.SearchStrategy[str]:
    ways = [repr(text), json.dumps(text)]
    return st.sampled_from([*ways, text] if text.isidentifier() else ways)


WHOLE = st.integers(-4, 13).map(str) | st.just(str(2**62 + 1))
DECIMAL = WHOLE | st.sampled_from(["2.5", ".75", "1e0", "-0.5", "3.0"])
NUMBERS = DECIMAL | st.sampled_from(["1e30", "-1e30"])
DAYS = st.integers(1, 28).flatmap(
    lambda day: st.sampled_from([f"2024-01-{day:02d}", f"2024-01-{day:02d}T12:00:00+05:00"])
)
TEXTS = st.sampled_from(["en", "de", "en gb", "it's", 'a "b" \\ c', "zürich", "w2", "5", "v3", "z"])
VALUES: dict[str, st.SearchStrategy[str]] = {
    "year": DECIMAL,
    "price": NUMBERS,
    "lang": TEXTS,
    "day": DAYS,
    "of.the.writer": TEXTS,
    "open": st.sampled_from(["true", "False"]),
    "mixed": TEXTS,
    "shelf": WHOLE,
}


def read(name: str, text: str) -> object:
    if name in ("year", "price", "shelf"):
        return Fraction(text)
    if name == "day":
        found = datetime.fromisoformat(text)
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return text.lower() == "true" if name == "open" else text


SIGNS: dict[str, Callable[[object, object], bool]] = {
    "=": lambda a, b: a == b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


@st.composite
def comparisons(draw: st.DrawFn) -> Asked:
    name = draw(st.sampled_from(sorted(VALUES)))
    signs = ["=", "==", "!=", "in", "not in", "is"] + (
        [] if name == "open" else ["<", "<=", ">", ">="]
    )
    sign = draw(st.sampled_from(signs))
    if sign == "is":
        none = draw(st.sampled_from(["== None", "= null", "is None", "!= None", "is not null"]))
        lacks = "!" not in none and "not" not in none
        return Asked(f"{name} {none}", lambda row: (value_of(row, name) is None) is lacks)
    if sign in SIGNS:
        text = draw(VALUES[name])
        value, compare = read(name, text), SIGNS[sign]

        def fits(row: dict[str, object]) -> bool:
            held = value_of(row, name)
            return held is not None and compare(held, value)

        return Asked(f"{name} {sign} {draw(quoted(text))}", fits)
    texts = draw(st.lists(VALUES[name], min_size=1, max_size=3))
    values = [read(name, text) for text in texts]
    listed = "".join(f"{draw(quoted(text))}, " for text in texts)
    within = sign == "in"

    def found(row: dict[str, object]) -> bool:
        held = value_of(row, name)
        return held is not None and (held in values) is within

    return Asked(f"{name} {sign} ({listed})", found)


def joined(parts: st.SearchStrategy[Asked]) -> st.SearchStrategy[Asked]:
    def both(pair: tuple[Asked, Asked, str]) -> Asked:
        left, right, word = pair
        join = all if word == "and" else any
        return Asked(
            f"({left.text}) {word} ({right.text})",
            lambda row: join([left.fits(row), right.fits(row)]),
        )

    several = st.tuples(parts, parts, st.sampled_from(["and", "or"])).map(both)
    return several | parts.map(lambda a: Asked(f"not ({a.text})", lambda row: not a.fits(row)))


CONDITIONS = st.recursive(comparisons(), joined, max_leaves=5)


# Engines


@pytest.fixture(scope="module")
def store(build, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Documents with fields."""
    home = tmp_path_factory.mktemp("filtered") / "0123456789ab"
    vectors = np.random.default_rng(3).normal(size=(DOCUMENTS, DIM)).astype(np.float32)
    whole = build(home / "layer-06", vectors, corpus="filtered", shard_rows=32)
    rows = (own_fields(DOCUMENT.of(row)[1]) for row in ROWS)
    fields = write_fields(whole.folder / FIELDS, rows)
    replace(whole.manifest, fields=fields).write(whole.folder)
    for engine in ENGINES:
        build_index(whole, DIM, engine)
    return open_store(whole.folder)


@pytest.fixture(scope="module")
def ways(store: Store, uri: str) -> Iterator[dict[str, Searchable]]:
    """Each engine, and the exact scan, a funnel and Milvus, over the same documents."""
    pytest.importorskip("milvus_lite")
    found: dict[str, Searchable] = {
        engine: open_faiss(store.folder / (f"dim-{DIM}" + f"-{engine}" * (engine != "flat")))
        for engine in ENGINES
    }
    found["exact"] = ExactIndex(store, DIM)
    found["funnel"] = FunnelIndex(store, Funnel.parse(f"8:{DOCUMENTS},{DIM}"))
    server = Server(uri, create=True)
    held = store.manifest
    for engine in MILVUS_ENGINES:
        own = replace(store, manifest=replace(held, corpus=f"filtered-{engine}"))
        push(own, DIM, server, engine)
        found[f"milvus {engine}"] = open_collection(
            uri, own.manifest.corpus, held.label.fingerprint, store.layer, DIM
        )
    yield found
    server.close()


def allowed(asked: Asked) -> list[str]:
    return [str(row["_id"]) for row in ROWS if asked.fits(row)]


def check(ways: dict[str, Searchable], store: Store, asked: Asked, k: int) -> None:
    """All that fit and nothing else, ranked as in a full scan of everything."""
    fitting = set(allowed(asked))
    whole = ExactIndex(store, DIM).ranked(NAMES, QUERIES, DOCUMENTS).rankings
    for name, way in ways.items():
        wanted = Filter.parse(asked.text)
        found = way.where(wanted).ranked(NAMES, QUERIES, k).rankings
        for query in NAMES:
            best = [docid for docid in whole[query].docids if docid in fitting][:k]
            hits = list(found[query].docids)
            assert set(hits) <= fitting, (name, asked.text)
            assert len(hits) == len(best), (name, asked.text)
            if name in EXACT:
                assert hits == best, (name, asked.text)


EXACT = ["flat", "exact", "funnel", "milvus flat"]


@settings(max_examples=30)
@given(asked=CONDITIONS, k=st.sampled_from([1, 5, DOCUMENTS]))
def test_every_engine_finds_what_fits_and_nothing_else(
    ways: dict[str, Searchable], store: Store, asked: Asked, k: int
) -> None:
    check(ways, store, asked, k)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faiss, "SCANNED", 0)  # engines are asked themselves
        check({name: ways[name] for name in ENGINES}, store, asked, k)


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ([1, -20, 0], ["int64"]),
        ([1, 2.5, 1e3], ["double"]),
        ([True, False], ["bool"]),
        ([True, 1], ["string"]),
        ([2**63 + 1], ["string"]),
        ([0.5, 2**62 + 1], ["string"]),  # as a number it would be another id
        (["2024-01-05", "2024-01-05T10:00:00.5"], ["timestamp[us]"]),
        (["2024-01-05T10:00Z", "2024-01-05T10:00:00.5+01:00"], ["timestamp[us, tz=UTC]"]),
        (["1", "2024-01-05"], ["string"]),
        (["2024-02-30"], ["string"]),
        # Texts, and what all of them are read as
        (["1", "-20", "0"], ["string", "int64"]),
        (["1", 2, "0.5"], ["string", "double"]),
        (["True", "False"], ["string", "bool"]),
        (["true", "1"], ["string"]),
        (["1.1", "1.10"], ["string"]),  # versions
        (["01", "2"], ["string"]),  # codes
        (["+49170", "+33123"], ["string"]),  # telephones
        (["12e4", "7e2"], ["string"]),
        (["0x1F", "0x2A"], ["string"]),
        (["\u0663", "1"], ["string"]),
        (["0.5", "nan"], ["string"]),
        ([1, [{"a": 1}]], ["int64"]),  # objects of a list have no text
    ],
)
def test_a_field_has_the_type_of_its_values_and_texts_may_be_read_as_numbers(
    tmp_path: Path, values: list[Value], kinds: list[str]
) -> None:
    write_fields(tmp_path / FIELDS, [(), *((("x", value),) for value in values)])

    types = field_types(tmp_path / FIELDS)
    assert list(map(str, types.values())) == kinds
    assert field_names(types) == ["x"]


@pytest.mark.parametrize(
    ("held", "wanted", "fits"),
    [
        (["1.1", "1.2"], "x == '1.10'", []),
        (["1.1", "1.10"], "x == 1.10", [1]),
        (["1.1", "1.10"], "x in (1.1, '7')", [0]),
        (["9", "10", None], "x >= 9.5", [1]),
        (["9", "10", None], "x in (9.5, 10.0)", [1]),
        (["9", "10", None], "x not in (9, 9.5)", [1]),
        ([9, 10], "x > 1e999999999", "whole numbers"),
        (["None", "a", None], "x == None", [2]),
        (["None", "a", None], "x == 'None'", [0]),
        (["a"], "x in (None, 'a')", "None was compared by in"),
        (["a"], "x > null", "None was compared by >"),
        (["a"], "x is a", "no filter"),
        (["9", "10", None], "x >= 10", [1]),
        (["9", "10", None], "x != 9", [1]),
        (["9.0", "10.5"], "x == 9", [0]),
        (["9", "n.d."], "x >= 5", "not all plain numbers"),
        (["9", "n.d."], "x >= '5'", [0, 1]),
        (["0x1F", "0x2A"], "x == 0x1F", [0]),
        (["true", "1"], "x == true", [0]),
        (["True", "False"], "x == true", [0]),
        (["True", "False"], "x == 'true'", []),
        ([1, 2], "x == '2'", [1]),
    ],
)
def test_texts_are_equal_as_texts_and_ordered_as_the_numbers_that_all_are(
    tmp_path: Path, held: list[Value | None], wanted: str, fits: list[int] | str
) -> None:
    path = tmp_path / FIELDS
    write_fields(path, [() if value is None else (("x", value),) for value in held])

    if isinstance(fits, str):
        with pytest.raises(UserError, match=fits):
            matching(path, Filter.parse(wanted))
    else:
        assert matching(path, Filter.parse(wanted)).tolist() == fits


def test_words_of_sql_have_any_case() -> None:
    text = """year >= 2020 AND NOT lang IN ("AND", 'or') OR tag IS null"""

    made = Filter.parse(text)

    same = Filter.parse("""year >= 2020 and not lang in ("AND", 'or') or tag is null""")
    types = {"year": pa.int64(), "lang": pa.string(), "tag": pa.string()}
    assert str(made.expression(types)) == str(same.expression(types))
    assert "AND" in str(made.expression(types))


def test_thousands_of_values_are_read_in_time_proportional_to_them(tmp_path: Path) -> None:
    write_fields(tmp_path / FIELDS, [(("x", n),) for n in (3, 100_000)])

    def seconds(count: int) -> float:
        begun = time.process_time()
        for text in (f"x in ({','.join(map(str, range(count)))})", f"x == 9{' or x == 3' * count}"):
            assert matching(tmp_path / FIELDS, Filter.parse(text)).tolist() == [0]
        return time.process_time() - begun

    seconds(10)
    assert seconds(4_000) < 40 * (seconds(400) + 0.01)


def test_what_a_row_has_besides_id_and_text_is_its_fields() -> None:
    row = json.loads(
        '{"n": 1, "no": null, "tags": ["x"], "e": " ", "f": 1e999,'
        ' "b": true, "metadata": {"n": 2, "m": 0.5, "o": {"p": {"q": "r"}}}}'
    )

    assert own_fields(row) == (
        ("n", 1), ("tags", ["x"]), ("b", True), ("metadata.n", 2), ("m", 0.5), ("o.p.q", "r"),
    )  # fmt: skip


LISTS = (["u", "v"], "u", None, ["w", None, 7], ["u,v"], [{"name": "u"}], ["x\x1fu"], [True, "V"])


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        ("tags = u", [0, 1]),
        ("tags in (v, 7)", [0, 3]),
        ("tags != 'u' and not tags = w", [4, 6, 7]),
        ("tags not in (u, w)", [4, 6, 7]),
        ("tags is None", [2, 5]),
        ("tags = 'u,v' or tags = true", [4, 7]),
        ("tags = 'x\x1fu'", [6]),
    ],
)
@pytest.mark.parametrize("at_once", [3, 2**16])
def test_a_list_fulfils_what_one_of_its_values_does(
    asked: str, rows: list[int], at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("m2dr.index.filters._ROWS_AT_ONCE", at_once)
    given = [own_fields({"tags": each, "by": [{"a": 1}]}) for each in LISTS]
    write_fields(tmp_path / FIELDS, given)

    assert matching(tmp_path / FIELDS, Filter.parse(asked)).tolist() == rows
    assert dict(given[5])["tags"] == [{"name": "u"}]
    for wrong, reason in (
        ("tags > 'u'", "holds lists, which > cannot"),
        ("by = 1", "no field 'by' to filter by. There are: tags."),
        ("TAGS = u", "Did you mean tags[?] There are: tags."),
    ):
        with pytest.raises(UserError, match=reason):
            matching(tmp_path / FIELDS, Filter.parse(wrong))


@given(st.text(alphabet="ab=<>!()',\" \nnotrdi1.", max_size=30))
def test_any_text_is_a_filter_or_refused_in_a_sentence(text: str) -> None:
    with suppress(UserError):
        Filter.parse(text).expression({"a": pa.int64(), "b": pa.string()})
