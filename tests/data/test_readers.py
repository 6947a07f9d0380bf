import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import piped

from m2dr.core.errors import UserError
from m2dr.data.loaders import open_dataset
from m2dr.data.qrels import read_judgements
from m2dr.data.readers import DistinctLines, Line, LineTable, identifier, read_lines, read_table
from m2dr.data.sentence_pairs import open_sentences


def first_word(line: Line) -> str:
    return line.text.split(" ")[0]


def table(path: Path) -> LineTable:
    return LineTable(path, first_word)


names = st.text(st.characters(categories=["L", "N"]), min_size=1)
rests = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"))


@given(
    records=st.lists(st.tuples(names, rests), unique_by=lambda record: record[0], min_size=1),
    blanks=st.lists(st.booleans(), min_size=30, max_size=30),
    ended=st.booleans(),
)
def test_a_line_is_found_by_its_id_and_by_its_row_whatever_stands_around_it(
    records: list[tuple[str, str]],
    blanks: list[bool],
    ended: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("lines") / "file"
    texts, numbers = [], []
    for record, blank in zip(records, [*blanks, *[False] * len(records)], strict=False):
        texts += ["", " ".join(record)] if blank else [" ".join(record)]
        numbers.append(len(texts))
    path.write_bytes("\n".join(texts).encode() + (b"\n" if ended else b""))

    found = table(path)

    assert len(found) == len(records)
    for row, (record, number) in enumerate(zip(records, numbers, strict=True)):
        assert found.find(record[0]) == found.line(row) == Line(path, number, " ".join(record))
        assert record[0] in found


def test_an_absent_id_is_neither_in_the_table_nor_found(write) -> None:
    found = table(write("file", "a 1", "b 2"))

    assert "c" not in found
    with pytest.raises(KeyError, match="c"):
        found.find("c")


def test_ids_of_the_same_hash_are_told_apart(write) -> None:
    # Python's hash is salted for strings, so a clash is made by a string that hashes like another.
    class Same(str):
        __slots__ = ()

        def __hash__(self) -> int:
            return 7

    found = LineTable(write("file", "a 1", "b 2", "c 3"), lambda line: Same(first_word(line)))

    assert [found.find(Same(name)).text for name in "abc"] == ["a 1", "b 2", "c 3"]
    with pytest.raises(KeyError, match="d"):
        found.find(Same("d"))


def test_a_repeated_id_is_refused_with_both_lines(write) -> None:
    with pytest.raises(UserError, match=r"file, line 4: the id 'a' is already used in line 1"):
        table(write("file", "a 1", "b 2", "", "a 3"))


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"fine\nna\xefve\n")

    with pytest.raises(UserError, match=r"file, line 2: is not UTF-8 \(byte 3"):
        list(read_lines(path))


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbfa 1\r\nb 2\r\n")

    assert [line.text for line in read_lines(path)] == ["a 1", "b 2"]
    assert table(path).find("a").text == "a 1"


def test_a_line_that_was_cut_off_since_is_a_sentence(write) -> None:
    path = write("file", "a " + "1" * 9000, "", "b 2", "", "c 3")
    found = table(path)
    first = found.line(0)

    path.write_bytes(path.read_bytes()[:9005])

    assert found.line(0) == found.find("a") == first
    for row in (1, 2):
        with pytest.raises(UserError, match=rf"file, line {2 * row + 1}: has gone, as the file is"):
            found.line(row)


def test_a_gzipped_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(b"some text\n" * 1000)[:-20])

    with pytest.raises(UserError, match=r"file\.gz is not a complete gzip file"):
        list(read_lines(path))


def test_a_file_that_is_only_called_gz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(b"plain text\n")

    with pytest.raises(UserError, match=r"file\.gz is not a complete gzip file"):
        list(read_lines(path))


def test_an_absent_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing cannot be read: No such file"):
        list(read_lines(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("a b", "holds whitespace"),
        ("a\tb", "holds whitespace"),
        ("a\n", "holds whitespace"),
        ("a\u2003b", "holds whitespace"),
        (None, "not a string"),
        (1.5, "not a string"),
        (True, "not a string"),
        ("\ud800", "half a surrogate pair"),
    ],
)
def test_what_a_run_file_cannot_carry_is_no_id(value: object, reason: str) -> None:
    with pytest.raises(UserError, match=f"file, line 3: the id .*{reason}"):
        identifier(Line(Path("file"), 3, ""), value, "the id")


def test_an_id_written_as_a_number_is_taken_as_its_digits() -> None:
    assert identifier(Line(Path("file"), 1, ""), 4983, "the id") == "4983"


@pytest.mark.parametrize("text", ["[1]", "{", "nonsense", "[" * 100_000, '"text"'])
def test_a_line_that_is_no_json_object_is_named(text: str) -> None:
    with pytest.raises(UserError, match=r"file, line 9: is not"):
        Line(Path("file"), 9, text).json()


SENTENCE = "is a pipe or a device, which can be read only once, .* Write its content to a file"


@pytest.mark.parametrize(
    "read",
    [
        lambda path: next(read_lines(path)),
        lambda path: open_dataset(str(path)),
        lambda path: open_sentences(str(path)),
        lambda path: next(read_judgements(path)),
        lambda path: next(read_table(path)),
    ],
    ids=["lines", "corpus", "sentences", "qrels", "table"],
)
def test_what_is_read_more_than_once_is_no_pipe(read: Callable[[Path], object]) -> None:
    with pytest.raises(UserError, match=SENTENCE):
        read(piped(b"a\tb\n"))


def test_a_quoted_cell_keeps_its_blank_lines_and_rows_may_have_some_between(write) -> None:
    path = write("a.csv", "text,label", "", '"one', "", "  ", 'two",x', " ", '"three",y', "")

    rows = [(line.number, row) for line, row in read_table(path)]

    assert rows == [
        (3, {"text": "one\n\n  \ntwo", "label": "x"}),
        (8, {"text": "three", "label": "y"}),
    ]


def test_a_cell_may_be_as_long_as_a_document(write) -> None:
    path = write("a.csv", "text,label", f"{'word ' * 40_000},x")

    assert [len(row["text"]) for _, row in read_table(path)] == [200_000]


def test_a_table_may_begin_and_end_as_windows_has_it(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbftext,label\r\n"one\r\n\r\ntwo",x\r\n\r\n')

    assert [row for _, row in read_table(path)] == [{"text": "one\n\ntwo", "label": "x"}]


@pytest.mark.parametrize("name", ["a\0b", "a b", "a\tb", "a\u2028b", ""])
def test_an_id_that_no_run_file_holds_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="x, line 1: the id .* (run files cannot hold|is empty)"):
        identifier(Line(Path("x"), 1, ""), name, "the id")


def test_distinct_lines_are_those_of_the_file_each_once(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufefföne two\r\n\n three\n\u2003\nthree\n three\nfour".encode())
    lines = DistinctLines(path)
    assert [lines[row] for row in range(len(lines))] == ["öne two", " three", "three", "four"]
    assert lines[2] == "three"


def test_distinct_lines_that_are_not_utf_8_are_refused_by_number(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"one\ntwo \xff\n")
    with pytest.raises(UserError, match="line 2: is not UTF-8"):
        DistinctLines(path)
