"""Text files as other programs write them: bytes, lines, quotes, JSON that is none."""

import codecs
import csv
import gzip
import io
import json
from pathlib import Path

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2dr.core.errors import UserError
from m2dr.data.loaders import open_dataset, open_texts
from m2dr.data.qrels import find_queries, read_topics
from m2dr.data.tables import read_rows


def texts(path: Path) -> list[str]:
    return [document.text for document in open_dataset(str(path)).documents()]


CELLS = st.text(st.sampled_from('a" \t,\n'), max_size=5)


@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1), all_quoted=st.booleans())
def test_cells_between_tabs_are_what_csv_wrote_and_pandas_reads(
    rows: list[tuple[str, str]], all_quoted: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cells") / "a.tsv"
    out = io.StringIO(newline="")
    quoting = csv.QUOTE_ALL if all_quoted else csv.QUOTE_MINIMAL
    csv.writer(out, delimiter="\t", quoting=quoting).writerows([("id", "text"), *rows])
    path.write_text(out.getvalue(), newline="")

    found = [(row["id"], row["text"]) for row in read_rows(path)]

    frame = pandas.read_csv(path, sep="\t", dtype=str, keep_default_na=False)
    assert found == rows == list(frame.itertuples(index=False, name=None))


@pytest.mark.parametrize(
    ("suffix", "cells", "found"),
    [
        (".csv", ['a 5" pipe', "b"], ['a 5" pipe', "b"]),
        (".tsv", ['a 5" pipe', '"he said ""hi"""'], ['a 5" pipe', 'he said "hi"']),
        # Quotes as characters, as in MS MARCO's collection
        (".tsv", ['"One" of two', '"both"'], ['"One" of two', '"both"']),
        (".tsv", ['"never closed', 'b "x"', '"both"'], ['"never closed', 'b "x"', '"both"']),
    ],
)
def test_a_quote_inside_a_cell_is_a_character(
    suffix: str, cells: list[str], found: list[str], tmp_path: Path
) -> None:
    path, sign = tmp_path / f"a{suffix}", "," if suffix == ".csv" else "\t"
    path.write_text(
        "".join(f"{row}\n" for row in [f"id{sign}text", *(f"x{sign}{c}" for c in cells)])
    )

    assert [row["text"] for row in read_rows(path)] == found


def test_every_reader_of_cells_reads_quotes_alike(tmp_path: Path) -> None:
    path = tmp_path / "queries.tsv"
    path.write_text('id\ttext\nq1\t"he said ""hi"""\n')

    read = [
        next(find_queries(path, {"q1"}).values().__iter__()).text,
        read_topics(path)[0].text,
        next(open_texts(str(path), queries=True)()).text,
        texts(path)[0],
    ]

    assert read == ['he said "hi"'] * 4


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", gzip.compress(b'{"id": "1", "text": "x"}\n', mtime=0)),
        ("a.tsv", gzip.compress(b"id\ttext\n1\tx\n", mtime=0)),
        ("a.csv.gz", b"id,text\n1,x\n"),
        ("a.jsonl", b'\xef\xbb\xbf{"id": "1", "text": "x"}\r\n\r\n'),
        ("a.json", b'\xef\xbb\xbf[{"id": "1", "text": "x"}]'),
        ("a.jsonl", b'{"id": "1", "text": "x", "title": NaN, "metadata": {"n": -Infinity}}'),
        ("a.json", b'[{"id": "1", "text": "x", "metadata": {"n": [NaN]}}]'),
    ],
)
def test_a_document_is_read_however_its_file_was_written(
    name: str, data: bytes, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)

    (document,) = open_dataset(str(tmp_path / name)).documents()

    assert (document.id, document.text, document.title, document.fields) == ("1", "x", "", ())


def test_control_characters_are_characters_and_half_a_pair_is_replaced(tmp_path: Path) -> None:
    lines = ["infor\x02mation", "\x00", "", "a\x0bb\x1c\u2028c"]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "a.jsonl").write_text('{"id": "1", "text": "\x02cut\t\\ud83d", "n": 7}\n')

    assert [each.text for each in open_texts(str(tmp_path / "a.txt"))()] == lines
    assert texts(tmp_path / "a.jsonl") == ["\x02cut\t\ufffd"]


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.jsonl", b'{"id": "1"}\n{"id": "\xff"}\n', "a.jsonl, line 2: the byte 0xff is no UTF-8"),
        ("a.csv", b"id,text\n1,Caf\xe9\n", "a.csv, line 2: the byte 0xe9 is no UTF-8"),
        ("a.json", b'[{"text": "Caf\xe9"}]', "a.json cannot be read: .* byte 0xe9 in position 14"),
        ("notes/a.txt", b"x\ny\nCaf\xe9", "notes/a.txt cannot be read: .* byte 0xe9 in position 7"),
        ("a.csv", "text\nab\n".encode("utf-16") + b"\0", "a.csv cannot be read: .* truncated data"),
        ("a.tsv", b"how tall is it\t\tVery tall.\t1\n", "how tall is it .* has no column"),
        ("a.tsv", b"how tall\t\t\tVery tall.\t1\n", "how tall .* has no column"),
        ("a.csv", b"how tall,very\n", "how tall .* has no column"),
        ("a.json", b"[" * 100_000, "a.json cannot be read: JSON is nested too deep"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl, row 1 is not JSON: JSON is nested too deep"),
    ],
)
def test_what_no_reader_understands_is_said(
    name: str, data: bytes, reason: str, tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(data)

    with pytest.raises(UserError, match=reason):
        texts(tmp_path / name if "/" not in name else tmp_path / "notes")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", "id,text\n1,Caf\xe9\n2,Stra\xdfe\n"),
        ("a.jsonl", '{"id": 1, "text": "Caf\xe9"}\n{"id": 2, "text": "Stra\xdfe"}\n'),
        ("a.json", '[{"id": 1, "text": "Caf\xe9"}, {"id": 2, "text": "Stra\xdfe"}]'),
        ("notes/a.txt", "Caf\xe9"),
    ],
)
def test_a_mark_says_that_a_file_is_in_utf_16(
    name: str, data: str, encoding: str, tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    (tmp_path / name).write_bytes(mark + data.encode(encoding))

    found = texts(tmp_path / name if "/" not in name else tmp_path / "notes")

    assert found == (["Caf\xe9", "Stra\xdfe"] if "/" not in name else ["Caf\xe9"])


# Notes


@pytest.mark.parametrize(
    ("note", "title", "text", "fields"),
    [
        ("---\ntitle: Dough\ntags: [bread, 'a, b']\n---\n# H\n", "Dough", "# H", {"tags": ["bread", "a, b"]}),
        ("---\r\nsince: 2026-08-01\r\nrating: 4.5 # of 5\r\n...\r\nx", "", "x", {"since": "2026-08-01", "rating": 4.5}),
        ('---\n# told\ntitle: "5 #: x"\nid: 7\ndraft: true\nl:\n- a\n- "[[B]]"\nno:\n---\n', "5 #: x", "", {"id": 7, "draft": True, "l": ["a", "[[B]]"]}),
        ("---\nurl: https://a.b/c\nl:\n  - x: y\n---\n\nx", "", "l:\n  - x: y\nx", {"url": "https://a.b/c"}),
        ("---\n\nnews\n\n---\nx", "", "---\n\nnews\n\n---\nx", {}),
        ("Do:\n```sh\n# first\n```\n## C#\nx", "C#", "Do:\n```sh\n# first\n```\n\nx", {}),
        ("~~~\n```\n# a\n~~~\n# B #\nx", "B", "~~~\n```\n# a\n~~~\n\nx", {}),
        ("Dough\n=====\n\nx", "Dough", "x", {}),
        ("#hashtag", "", "#hashtag", {}),
    ],
)  # fmt: skip
def test_a_note_has_the_title_and_fields_of_its_front_matter_or_its_first_heading(
    note: str, title: str, text: str, fields: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "a.md").write_bytes(note.encode())

    (document,) = open_dataset(str(tmp_path)).documents()

    found = (document.title, document.text, dict(document.fields))
    assert found == (title, text, fields)


def test_two_notes_of_one_id_are_named(tmp_path: Path) -> None:
    for name in ("x y.md", "x_y.md"):
        (tmp_path / name).write_text("x")

    with pytest.raises(UserError, match=r"x y\.md and .*x_y\.md have one id, 'x_y\.md'; rename"):
        list(open_dataset(str(tmp_path)).documents())


def test_what_is_not_read_of_front_matter_stays_in_the_text_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    front = "a:\n  b: c\nd: |\n  # e\nf:\n  - g: h\ni: {j: k}\nm: one\n  two\n"
    (tmp_path / "n.md").write_text(f"---\ntitle: T\nl: 1\nl: 2\n{front}---\nx")

    (document,) = open_dataset(str(tmp_path)).documents()

    assert (document.title, document.text) == ("T", f"l: 2\n{front}x")
    assert (
        "that of n.md, m2dr does not read the values of a, d, f, i, l, m" in capsys.readouterr().err
    )


# Judgements, and files that are not read


@pytest.mark.parametrize(
    ("name", "lines", "levels"),
    [
        ("test.tsv", ["1 2 1 0", "1 0 2 0", "2 1 1 0"], [1, 2, 1]),  # of ir_datasets
        ("test.tsv", ["1 2 1 4.5", "1 3 2 5", "2 1 1 4"], [1, 2, 1]),  # with rounds
        ("test.tsv", ["1 0 2 1", "1 0 0 2", "2 0 1 1"], [1, 2, 1]),  # of TREC
        ("test.tsv", ["1 Q0 2 1", "1 Q0 0 2", "2 Q0 1 0"], [1, 2, 0]),
        ("test.tsv", ["1 4 2 1", "1 4 0 2", "2 4 1 1"], [1, 2, 1]),
        ("test.tsv", ["doc_id relevance query_id iteration", "2 1 1 0", "0 2 1 0"], [1, 2]),
        ("test.txt", ["query-id corpus-id score extra", "1 2 1 x"], [1]),
        ("test.trec", ["1 0 2 1", "1 0 0 2"], [1, 2]),
    ],
)
def test_judgements_are_read_by_their_names_or_by_what_their_columns_hold(
    name: str, lines: list[str], levels: list[float], tmp_path: Path
) -> None:
    write_beir(tmp_path, {f"qrels/{name}": "\n".join(lines).replace(" ", "\t")})

    judgements = open_dataset(str(tmp_path)).judgements("test")

    pairs = [("1", "2"), ("1", "3" if "3" in lines[1].split() else "0"), ("2", "1")]
    assert [(j.query_id, j.document_id) for j in judgements] == pairs[: len(levels)]
    assert [j.relevance for j in judgements] == levels


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 2 1 4", "four unnamed columns"),
        ("qid passage relevance\n1 2 1", "corpus-id.*its columns are qid, passage, relevance"),
        ("1 2 \u0663", "not a finite number"),
        ("1 2 1\n1 0 3 1", "4 columns, where the first has 3"),
    ],
)
def test_judgements_that_nothing_explains_are_refused(
    text: str, reason: str, tmp_path: Path
) -> None:
    write_beir(tmp_path, {"qrels/test.tsv": text})

    with pytest.raises(UserError, match=reason):
        open_dataset(str(tmp_path)).judgements("test")


def write_beir(folder: Path, others: dict[str, str]) -> None:
    rows = "".join(f"{json.dumps({'_id': str(n), 'text': f'text {n}'})}\n" for n in range(4))
    for name, text in {"corpus.jsonl": rows, "queries.jsonl": rows, **others}.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text)


def test_judgements_of_any_place_are_read_or_named(tmp_path: Path) -> None:
    write_beir(tmp_path / "a", {"qrels.tsv": "1 0 2 1", "dev.qrels": "1 0 3 1", "README.md": ""})
    others = ["qrels/dev.pdf", "judgements.csv", "qrels.zip", "qrels/test.csv", "corpus.b.jsonl"]
    write_beir(tmp_path / "b", {"qrels/test.txt": "1 0 2 1"} | dict.fromkeys(others, "x"))
    marco = {"collection.tsv": "0\tx\n1\ty\n", "queries.tsv": "9\tq\n", "qrels.tsv": "9 0 1 1"}
    for name, text in marco.items():
        (tmp_path / "c").mkdir(exist_ok=True)
        (tmp_path / "c" / name).write_text(text)

    first, second, third = (open_dataset(str(tmp_path / name)) for name in "abc")

    assert (set(first.splits), first.unread) == ({"test", "dev"}, ())
    assert [j.document_id for j in first.judgements("dev")] == ["3"]
    assert second.splits == ("test",)
    lies = {*others, "qrels/test.txt"} - {"qrels/test.csv"}
    assert {str(path.relative_to(tmp_path / "b")) for path in second.unread} == lies
    assert [j.document_id for j in third.judgements("test")] == ["1"]


def test_files_of_a_mixed_folder_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("rows/a.jsonl", "rows/b.txt", "rows/README.md", "notes/a.md", "notes/sub/b.html")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text('{"id": "1", "text": "x"}')

    for folder, lies in (("rows", "b.txt"), ("notes", "sub/b.html")):
        dataset = open_dataset(str(tmp_path / folder))
        assert dataset.unread == (tmp_path / folder / lies,)
        assert len(list(dataset.documents())) == 1
        assert f"does not read 1 file there: {dataset.unread[0]}" in capsys.readouterr().err


def test_queries_that_find_themselves_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"qrels/test.tsv": "1 2 1"}
    write_beir(tmp_path / "paraphrases", own)
    write_beir(tmp_path / "quora", own)
    write_beir(tmp_path / "themselves", {"qrels/test.tsv": "1 1 1"})

    for name in ("paraphrases", "quora", "themselves"):
        dataset = open_dataset(str(tmp_path / name))
        dataset.judgements("test")
        said = "such as '1', are documents too" in capsys.readouterr().err
        assert said == bool(dataset.kept_own("test")) == (name == "paraphrases")
