"""Every kind of file gives the same rows, as text where it is text, streamed and by number."""

import gzip
import pickle
from pathlib import Path
from textwrap import dedent

import datasets
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from shell import python
from tabular import ARROW, Rows, save_to_disk, write_rows

from m2dr.core.errors import UserError
from m2dr.core.records import Document
from m2dr.data import tables
from m2dr.data.dataset import Dataset
from m2dr.data.loaders import open_dataset
from m2dr.data.sentences import open_sentences
from m2dr.data.tables import DistinctLines, Ids, StoredRows, read_rows

TEVATRON = [
    {
        "query_id": str(n),
        "query": f"query {n}",
        "positive_passages": [{"docid": f"p{n}", "title": "T", "text": f"yes {n}"}],
        "negative_passages": [{"docid": f"n{n}", "title": "", "text": f"no {n}"}] * (n % 3),
    }
    for n in range(8)
]
DOCUMENTS = [{"id": f"d{n}", "title": f"t{n % 2}", "text": f"text {n}"} for n in range(20)]
KINDS = [*ARROW[1:], ".csv", ".tsv", ".json", ".jsonl.gz", ".csv.zst", "folder"]


@pytest.fixture(autouse=True)
def hub(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("hub"))


def content(dataset: Dataset) -> object:
    """All that the rest of m2dr reads of a data set, but its name."""
    splits = {
        split: (
            dataset.queries(split),
            dataset.judgements(split),
            dataset.negatives(split),
            list(dataset.scores(split)),
        )
        for split in dataset.splits
    }
    return splits, list(dataset.documents())


def cells(exclude: str = "") -> st.SearchStrategy[str]:
    """Texts, among them those that readers take for numbers or for nothing."""
    characters = st.characters(exclude_categories=["Cs"], exclude_characters=exclude)
    odd = st.sampled_from(["007", "1e5", "NA", "null", "", " ", '"', "a\u2028b", "true", "a,b"])
    return st.text(characters, max_size=12) | odd


@settings(max_examples=30)
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_rows_of_any_file_are_what_was_written(
    kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    exclude = "\r" if kind in (".tsv", ".csv", ".csv.zst") else ""
    names = ("id", "text", "other")
    row = st.fixed_dictionaries({name: cells(exclude) for name in names})
    rows = data.draw(st.lists(row.filter(lambda r: any(r["id"].strip())), min_size=1, max_size=5))

    path = write_rows(tmp_path_factory.mktemp("rows") / f"a{kind.replace('folder', '')}", rows)

    assert list(read_rows(path)) == rows
    stored = StoredRows(path)
    assert [stored[number] for number in range(len(rows))] == rows


@pytest.mark.parametrize("kind", [".jsonl", ".tsv", ".csv"])
def test_a_line_of_megabytes_is_a_row_among_others(kind: str, tmp_path: Path) -> None:
    rows = [
        {"id": str(n), "text": "x" * (3_000_000 if n in (20_000, 30_000) else 9)}
        for n in range(40_000)
    ]

    assert list(read_rows(write_rows(tmp_path / f"a{kind}", rows))) == rows


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.jsonl", b'{"id": "1"}\n{\n', "a.jsonl, row 2 is not JSON"),
        ("a.jsonl", b'{"id": "1"}\n[true]\n', "row 2: it is \\[True\\], which has no columns"),
        ("a.tsv", b"id\ttext\n1\tx\n2\n", "a.tsv .*Row #3: Expected 2 columns, got 1"),
        ("a.csv", b'id,text\n1,"x\n2,y\n', r"a\.csv has a cell whose quotation mark"),
        (
            "a.tsv.gz",
            gzip.compress(b"id\ttext\n1\tx\n" * 999, mtime=0)[:-9],
            "a.tsv.gz cannot be read: Truncated",
        ),
        ("a.json", b'[{"id": "1"}, {]', r"a\.json cannot be read"),
        *((f"a{kind}", b"not a table", rf"a\{kind} cannot be read") for kind in sorted(ARROW)),
    ],
)
def test_what_is_malformed_is_named_by_file_and_row(
    name: str, data: bytes, reason: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)

    with pytest.raises(UserError, match=reason):
        list(read_rows(tmp_path / name))


# Documents


@pytest.mark.parametrize("in_memory", [0, 2**30], ids=["mapped", "in memory"])
@pytest.mark.parametrize("kind", KINDS)
def test_documents_are_found_by_row_and_by_id(
    kind: str, in_memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_IN_MEMORY", in_memory)
    path = write_rows(tmp_path / f"corpus-of-mine{kind.replace('folder', '')}", DOCUMENTS)

    dataset = open_dataset(str(path))

    expected = [Document(row["id"], row["text"], row["title"]) for row in DOCUMENTS]
    assert (dataset.name, dataset.splits) == ("corpus-of-mine", ())
    assert list(dataset.documents()) == expected
    assert [dataset.document_at(row) for row in range(20)] == expected
    assert [dataset.document(f"d{n}") for n in range(19, -1, -1)] == expected[::-1]
    assert (dataset.document_count, dataset.holds("d20")) == (20, False)
    sent = pickle.loads(pickle.dumps(dataset))  # noqa: S301  # ours, as to a worker
    assert sent.document("d7") == expected[7]


@pytest.mark.parametrize("kind", [".parquet", ".csv"])
def test_files_of_a_folder_are_one_corpus_in_the_order_of_their_names(kind, tmp_path) -> None:
    for place in (2, 0, 1):
        write_rows(tmp_path / f"shards/part-{place}{kind}", DOCUMENTS[place * 7 : place * 7 + 7])

    dataset = open_dataset(str(tmp_path / "shards"))
    assert list(dataset.document_ids()) == [row["id"] for row in DOCUMENTS]
    assert dataset.document_at(19).id == "d19"
    write_rows(tmp_path / f"shards/part-9{kind}", DOCUMENTS[3:4])
    with pytest.raises(UserError, match="rows 4 and 21 have the same id 'd3'"):
        _ = open_dataset(str(tmp_path / "shards")).document_count


@pytest.mark.parametrize("name", ["docs.csv", "note.md"])
def test_what_lies_in_hidden_folders_is_not_read(tmp_path: Path, name: str) -> None:
    folder = tmp_path / ".mine"  # the folder that is named may be hidden
    for place in ("", ".ipynb_checkpoints", "sub/.ipynb_checkpoints"):
        (folder / place).mkdir(parents=True, exist_ok=True)
        (folder / place / name).write_text("id,text\na,knead\n")
    for place in (".obsidian", "sub/.vscode"):
        (folder / place).mkdir()
        (folder / place / "app.json").write_text("{}")

    assert open_dataset(str(folder)).document_count == 1
    assert tables.unread_files(folder) == ()


def test_ids_of_one_hash_are_told_apart() -> None:
    class Same(str):
        __slots__ = ()

        def __hash__(self) -> int:
            return 7

    names = [Same("a"), Same("b"), Same("c")]
    ids = Ids(names, names.__getitem__, "here")

    assert [ids.row(name) for name in names] == [0, 1, 2]
    with pytest.raises(KeyError):
        ids.row(Same("d"))


def test_distinct_lines_are_those_of_a_set_in_file_order(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n\ntwo\tand\none\n  \nthree\n")

    lines = DistinctLines(path)

    assert [lines[number] for number in range(len(lines))] == ["one", "two\tand", "three"]


# Corpora with queries and judgements

JUDGED = {
    "corpus": [{"_id": f"d{n}", "title": "T", "text": f"text {n}"} for n in range(5)],
    "queries": [{"_id": f"q{n}", "text": f"query {n}"} for n in range(4)],
    "test": [{"query-id": f"q{n}", "corpus-id": f"d{n}", "score": n} for n in range(4)],
}


@pytest.fixture
def jsonl(tmp_path: Path) -> object:
    """What the BEIR folder of these parts holds."""
    for part in ("corpus", "queries"):
        write_rows(tmp_path / f"plain/{part}.jsonl", JUDGED[part])
    write_rows(tmp_path / "plain/qrels/test.tsv", JUDGED["test"])
    return content(open_dataset(str(tmp_path / "plain")))


@pytest.mark.parametrize("kind", [*ARROW, ""])
def test_parts_of_beir_may_be_tables(kind: str, jsonl: object, tmp_path: Path) -> None:
    for part in ("corpus", "queries"):
        write_rows(tmp_path / f"tiny/{part}{kind}", JUDGED[part])
    write_rows(tmp_path / f"tiny/qrels/test{kind}", JUDGED["test"])

    dataset = open_dataset(str(tmp_path / "tiny"))

    assert (dataset.name, content(dataset)) == ("tiny", jsonl)


def test_configs_of_a_data_set_are_its_corpus_queries_and_judgements(jsonl, tmp_path) -> None:
    configs = {"corpus": "corpus", "queries": "queries", "default": "test"}
    header = ["---", "configs:"]
    for config, split in configs.items():
        write_rows(tmp_path / f"mteb/{config}/{split}.parquet", JUDGED[split])
        header += [f"- config_name: {config}", "  data_files:"]
        header += [f"  - split: {split}", f"    path: {config}/{split}.parquet"]
    (tmp_path / "mteb/README.md").write_text("\n".join([*header, "---", ""]))

    dataset = open_dataset(f"hf:{tmp_path}/mteb")

    assert (dataset.name, content(dataset)) == ("mteb", jsonl)
    alone = open_dataset(f"hf:{tmp_path}/mteb/corpus")
    assert (alone.name, alone.splits, alone.document_count) == ("mteb-corpus", (), 5)


# Data sets of the library datasets


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    """A folder with two splits, as the library saves it, and beside it as files of parquet."""
    parts = {"train": TEVATRON[:5], "validation": TEVATRON[5:]}
    saved = {split: datasets.Dataset.from_list(rows) for split, rows in parts.items()}
    datasets.DatasetDict(saved).save_to_disk(tmp_path / "saved")
    for split, rows in parts.items():
        write_rows(tmp_path / f"files/{split}-00000-of-00001.parquet", rows)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "train", "dev"),
    [
        *((name, "01234", "567") for name in ("saved", "files", "hf:saved", "hf:files")),
        ("hf:files:validation", "", "567"),
        ("hf:saved:train", "01234", ""),
        ("hf:files:train[1:3]", "12", ""),
        ("files/validation-00000-of-00001.parquet", "", "567"),
    ],
)
def test_splits_are_those_of_the_library_and_validation_is_dev(
    halves: Path, name: str, train: str, dev: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(halves)
    dataset = open_dataset(name)

    ids = {split: "".join(q.id for q in dataset.queries(split)) for split in dataset.splits}
    assert ids == {split: found for split, found in (("train", train), ("dev", dev)) if found}


def test_a_selection_is_read_as_it_was_selected_without_what_the_library_caches(tmp_path) -> None:
    save_to_disk(tmp_path / "saved", TEVATRON, shards=2)
    loaded = datasets.load_from_disk(tmp_path / "saved")
    loaded.map(lambda row: {"query": row["query"] + "!"})
    loaded.select([5, 2]).save_to_disk(tmp_path / "chosen")

    assert list((tmp_path / "saved").glob("cache-*.arrow"))
    assert content(open_dataset(str(tmp_path / "saved"))) == content(
        open_dataset(f"hf:{tmp_path}/saved")
    )
    chosen = open_dataset(f"hf:{tmp_path}/chosen").queries("train")
    assert [query.id for query in chosen] == ["5", "2"]


def test_labels_of_inference_are_read_by_the_names_of_the_library(tmp_path: Path) -> None:
    def read(names: list[str], first: str, second: str) -> list[float]:
        columns = {first: datasets.Value("string"), second: datasets.Value("string")}
        features = datasets.Features({**columns, "label": datasets.ClassLabel(names=names)})
        rows = [{first: "a", second: str(n), "label": n} for n in range(len(names))]
        table = datasets.Dataset.from_list(rows, features=features)
        table.to_parquet(path := tmp_path / f"{'-'.join(names)}.parquet")
        table.save_to_disk(path.with_suffix(""))
        scores = [
            [pair.score for pair in open_sentences(str(name)).pairs]
            for name in (path, path.with_suffix(""), f"hf:{path.with_suffix('')}")
        ]
        assert scores[0] == scores[1] == scores[2]
        return scores[0]

    three = ["entailment", "contradiction", "neutral"]
    assert read(three, "premise", "hypothesis") == [1.0, 0.0, 0.5]
    assert read(three[1:] + three[:1], "sentence1", "sentence2") == [0.0, 0.5, 1.0]
    assert read(["not_entailment", "entailment"], "sentence1", "sentence2") == [0.0, 1.0]


# Columns of other toolkits


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"anchor": "a", "b": "c"}], "row 1: it has no document"),
        ([{"id": "1", "txt": "x"}], "row 1: .* any of text.* columns are id, txt"),
        ([{"query": ["a"], "positive": "b"}], r"row 1: the query is \['a'\], not a text"),
        ([DOCUMENTS[0], {"id": "a b", "text": "x"}], "row 2: the id 'a b' .* holds white space"),
    ],
)
def test_a_wrong_row_is_named_by_file_and_row(rows: Rows, reason: str, tmp_path: Path) -> None:
    for kind in (".parquet", ".jsonl"):
        path = write_rows(tmp_path / f"rows{kind}", rows)
        with pytest.raises(UserError, match=rf"rows\{kind}, {reason}"):
            list(open_dataset(str(path)).documents())


@pytest.mark.parametrize("kind", [".parquet", ".tsv"])
def test_texts_of_large_files_stay_out_of_memory(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"docs{kind}"
    texts = [f"{'word ' * 600}{n}" for n in range(50_000)]  # 150 MB
    if kind == ".tsv":
        with path.open("w") as file:
            file.write("id\ttext\n")
            file.writelines(f"d{n}\t{text}\n" for n, text in enumerate(texts))
    else:
        table = pa.table({"id": [f"d{n}" for n in range(50_000)], "text": texts})
        parquet.write_table(table, path, compression=None)
        del table
    del texts

    script = """
        import sys, tracemalloc
        import pyarrow
        from m2dr.data.loaders import open_dataset

        tracemalloc.start()
        corpus = open_dataset(sys.argv[1])
        print(corpus.document_count, corpus.document_at(49_999).text[-10:], corpus.document("d123").id)
        pool = pyarrow.default_memory_pool()
        print(pool.bytes_allocated() + tracemalloc.get_traced_memory()[0], pool.max_memory())
    """
    rows, memory = python("-c", dedent(script), path).splitlines()
    assert rows == "50000 word 49999 d123"
    held, peak = map(int, memory.split())
    assert held < 2**24
    assert kind == ".tsv" or peak < 2**26  # not a whole row group
