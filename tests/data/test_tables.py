"""Parquet, Arrow, CSV, folders of them and data sets of `datasets` are read as JSONL files are."""

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import datasets
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from tabular import ARROW, Rows, save_to_disk, write_rows

from m2dr.core.errors import UserError
from m2dr.core.records import Document, Query
from m2dr.data.dataset import Dataset
from m2dr.data.loaders import open_dataset
from m2dr.data.sentence_pairs import open_scored_pairs, open_sentences, recognises_sentences
from m2dr.data.tables import read_records
from m2dr.data.teachers import read_scores

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
SCORED = [{"sentence1": f"a{n}", "sentence2": f"b{n}", "score": n / 4} for n in range(5)]


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
            [score[1:] for score in dataset.scores(split)],
        )
        for split in dataset.splits
    }
    return splits, list(dataset.documents())


# The same data whatever the file

anything = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda text: text.strip()
)
plain = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\t\r\n"), min_size=1, max_size=20
).filter(lambda text: text.encode().strip() and text.strip())


def groups_of(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Rows]:
    columns = ("anchor", "positive", "negative_1", "negative_2")
    return st.lists(st.fixed_dictionaries(dict.fromkeys(columns, texts)), min_size=1, max_size=6)


@settings(max_examples=40)
@pytest.mark.parametrize("kind", ARROW)
@given(rows=groups_of(anything))
def test_random_groups_are_read_from_arrow_as_from_jsonl(
    kind: str, rows: Rows, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check_round_trip(tmp_path_factory.mktemp("rows"), kind, rows)


@settings(max_examples=40)
@pytest.mark.parametrize("kind", [".csv", ".tsv"])
@given(rows=groups_of(plain))
def test_random_groups_are_read_from_tables_of_text_as_from_jsonl(
    kind: str, rows: Rows, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check_round_trip(tmp_path_factory.mktemp("rows"), kind, rows)


@settings(max_examples=8)
@given(rows=groups_of(anything))
def test_random_groups_are_read_from_a_folder_of_datasets_as_from_jsonl(
    rows: Rows, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    check_round_trip(folder, "", rows)

    assert content(open_dataset(f"hf:{folder}/given")) == content(
        open_dataset(str(folder / "given"))
    )


def check_round_trip(folder: Path, kind: str, rows: Rows) -> None:
    expected = open_dataset(str(write_rows(folder / "given.jsonl", rows)))

    found = open_dataset(str(write_rows(folder / f"given{kind}", rows)))

    assert (found.name, content(found)) == ("given", content(expected))


def with_pandas(path: Path, rows: Rows) -> None:
    pd.DataFrame(rows).to_parquet(path)


def with_datasets(path: Path, rows: Rows) -> None:
    datasets.Dataset.from_list(list(rows)).to_parquet(path)


@pytest.mark.parametrize("writer", [write_rows, with_pandas, with_datasets])
@pytest.mark.parametrize(
    "rows",
    [
        TEVATRON,
        [{"query": "a", "answer": "b"}, {"query": "c", "answer": "d"}],
        [{"question": "a", "answer": "b"}],
        [{"query": "a", "document": "b", "title": "T"}],
        [{"query": "a", "positive": "b", "negative": "c", "scores": [3.5, -1.0]}],
        [{"query": "a", "positive": "b", "negative": "c", "score": 4.5}],
        [{"query": "a", "pos": ["b"], "neg": ["c"], "pos_scores": [1.0], "neg_scores": [0.5]}],
        [{"query": "a", "positives": [{"text": "b", "score": 1.0}], "negatives": None}],
        [
            {"query": "a", "positives": [{"text": "b", "score": 1.0}]},
            {"query": "c", "positives": [{"text": "d"}]},
        ],
        [{"split": "validation", "anchor": "a", "positive": "b"}, {"anchor": "c", "positive": "d"}],
    ],
    ids=lambda value: "-".join(value[0]) if isinstance(value, list) else value.__name__,
)
def test_columns_of_other_toolkits_are_read_from_parquet_as_from_jsonl(
    writer: Callable[[Path, Rows], object], rows: Rows, tmp_path: Path
) -> None:
    writer(tmp_path / "rows.parquet", rows)
    expected = open_dataset(str(write_rows(tmp_path / "rows.jsonl", rows)))

    found = open_dataset(str(tmp_path / "rows.parquet"))

    assert content(found) == content(expected)


def test_a_categorical_column_of_pandas_holds_texts(tmp_path: Path) -> None:
    frame = pd.DataFrame({"query": ["a", "a"], "positive": ["b", "c"]}).astype("category")
    frame.to_parquet(tmp_path / "rows.parquet")

    assert open_dataset(str(tmp_path / "rows.parquet")).queries("train") == [Query("q0", "a")]


# Documents


@pytest.mark.parametrize("kind", [*ARROW, ".csv", ".tsv", ".jsonl", ""])
def test_documents_are_found_by_row_and_by_id(kind: str, tmp_path: Path) -> None:
    dataset = open_dataset(str(write_rows(tmp_path / f"corpus-of-mine{kind}", DOCUMENTS)))

    expected = [Document(row["id"], row["text"], row["title"]) for row in DOCUMENTS]
    assert (dataset.name, dataset.splits) == ("corpus-of-mine", ())
    assert list(dataset.documents()) == expected
    assert [dataset.document_at(row) for row in range(20)] == expected
    assert [dataset.document(f"d{n}") for n in range(19, -1, -1)] == expected[::-1]
    assert dataset.document_count == 20
    assert not dataset.holds("d20")
    sent = pickle.loads(pickle.dumps(dataset))  # ours, as to a worker
    assert sent.document_at(7) == expected[7]


@pytest.mark.parametrize("names", [("_id", "text"), ("docid", "contents"), ("id", "contents")])
def test_ids_and_texts_have_the_names_of_beir_tevatron_and_anserini(names, tmp_path) -> None:
    rows = [dict(zip(names, ("d1", "x"), strict=True))]

    dataset = open_dataset(str(write_rows(tmp_path / "docs.parquet", rows)))

    assert list(dataset.documents()) == [Document("d1", "x")]


@pytest.mark.parametrize("kind", [".parquet", ".csv", ".jsonl"])
def test_files_of_a_folder_are_one_corpus_in_the_order_of_their_names(kind, tmp_path) -> None:
    for place in (2, 0, 1):
        write_rows(tmp_path / f"shards/part-{place}{kind}", DOCUMENTS[place * 7 : place * 7 + 7])
    if kind == ".jsonl":  # a folder of training groups in JSONL is one of MS MARCO
        assert [line.json()["id"] for line in read_records(tmp_path / "shards")] == [
            row["id"] for row in DOCUMENTS
        ]
        return

    dataset = open_dataset(str(tmp_path / "shards"))

    assert list(dataset.document_ids()) == [row["id"] for row in DOCUMENTS]
    assert dataset.document_at(19).id == "d19"


@pytest.mark.parametrize("kind", [".parquet", ".csv"])
def test_an_id_of_two_files_is_refused_with_both_places(kind: str, tmp_path: Path) -> None:
    for name in "ab":
        write_rows(tmp_path / f"shards/{name}{kind}", DOCUMENTS[:1])

    unit, number = ("row", 1) if kind == ".parquet" else ("line", 2)
    reason = (
        rf"b\{kind}, {unit} {number}: the id 'd0' is already used in {unit} {number} of .*a\{kind}"
    )
    with pytest.raises(UserError, match=reason):
        _ = open_dataset(str(tmp_path / "shards")).document_count


def test_columns_that_no_document_has_are_not_read(tmp_path: Path) -> None:
    rows = [{**row, "embedding": [0.5] * 4} for row in DOCUMENTS]
    path = write_rows(tmp_path / "docs.parquet", rows)

    (first, *_) = read_records(path, ("id", "text"))

    assert first.json() == {"id": "d0", "text": "text 0"}


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


def test_parts_of_beir_may_be_folders_of_shards(jsonl: object, tmp_path: Path) -> None:
    for part, rows in JUDGED.items():
        name = part if part != "test" else "qrels/test"
        for place in (0, 1):
            shard = f"{Path(name).name}-0000{place}-of-00002.parquet"
            write_rows(tmp_path / "tiny" / name / shard, rows[place * 3 : place * 3 + 3])

    assert content(open_dataset(str(tmp_path / "tiny"))) == jsonl


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
    with pytest.raises(UserError, match=r"there is no folder .*/corpsu\. Did you mean corpus"):
        open_dataset(f"hf:{tmp_path}/mteb/corpsu")


def test_of_several_configs_one_must_be_named(tmp_path: Path) -> None:
    header = ["---", "configs:"]
    for config in ("pair", "triplet"):
        write_rows(tmp_path / f"nli/{config}.parquet", TEVATRON)
        header += [f"- config_name: {config}", f"  data_files: {config}.parquet"]
    (tmp_path / "nli/README.md").write_text("\n".join([*header, "---", ""]))
    name = f"hf:{tmp_path}/nli"

    with pytest.raises(
        UserError, match="has several configs, pair, triplet; name one, as in hf:.*/pair"
    ):
        open_dataset(name)
    assert len(open_dataset(f"{name}/triplet").queries("train")) == 8
    assert len(open_dataset(f"{name}/pair:train[2:]").queries("train")) == 6


def test_a_folder_that_is_also_the_owner_of_a_data_set_of_the_hub_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner/README.md").write_text("Software.")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UserError, match="'owner/set' is no folder here, and the hub"):
        open_dataset("hf:owner/set")


def test_what_the_library_caches_beside_a_data_set_is_not_read_with_it(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "saved", TEVATRON, shards=2)
    loaded = datasets.load_from_disk(tmp_path / "saved")
    loaded.map(lambda row: {"query": row["query"] + "!"})

    assert list((tmp_path / "saved").glob("cache-*.arrow"))
    assert content(open_dataset(str(tmp_path / "saved"))) == content(
        open_dataset(f"hf:{tmp_path}/saved")
    )


def test_splits_that_were_saved_together_are_its_corpus_queries_and_judgements(
    jsonl: object, tmp_path: Path
) -> None:
    parts = {part: datasets.Dataset.from_list(rows) for part, rows in JUDGED.items()}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")

    assert content(open_dataset(f"hf:{tmp_path}/saved")) == jsonl


# Splits


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    """A folder with two splits, as the library saves it, and beside it as files of parquet."""
    parts = {"train": TEVATRON[:5], "validation": TEVATRON[5:]}
    saved = {split: datasets.Dataset.from_list(rows) for split, rows in parts.items()}
    datasets.DatasetDict(saved).save_to_disk(tmp_path / "saved")
    for split, rows in parts.items():
        write_rows(tmp_path / f"files/{split}-00000-of-00001.parquet", rows)
    return tmp_path


@pytest.mark.parametrize("name", ["saved", "files", "hf:saved", "hf:files"])
def test_splits_are_those_of_the_library_and_validation_is_dev(
    halves: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(halves)

    dataset = open_dataset(name)

    assert dataset.splits == ("train", "dev")
    assert [query.id for query in dataset.queries("train")] == list("01234")
    assert [query.id for query in dataset.queries("validation")] == list("567")


@pytest.mark.parametrize(
    ("name", "split", "queries"),
    [
        ("hf:files:validation", "dev", "567"),
        ("hf:saved:train", "train", "01234"),
        ("hf:files:train[1:3]", "train", "12"),
        ("files/validation-00000-of-00001.parquet", "dev", "567"),
    ],
)
def test_one_split_is_read_where_one_is_named(halves, name, split, queries, monkeypatch) -> None:
    monkeypatch.chdir(halves)

    dataset = open_dataset(name)

    assert dataset.splits == (split,)
    assert "".join(query.id for query in dataset.queries(split)) == queries


def test_a_selection_of_a_data_set_is_read_as_it_was_selected(tmp_path: Path) -> None:
    chosen = datasets.Dataset.from_list(TEVATRON).select([5, 2])
    chosen.save_to_disk(tmp_path / "chosen")

    assert [query.id for query in open_dataset(f"hf:{tmp_path}/chosen").queries("train")] == [
        "5", "2",
    ]  # fmt: skip


# Sentences and scores


@pytest.mark.parametrize("kind", [*ARROW, ".csv", ""])
def test_scored_pairs_are_read_from_any_table(kind: str, tmp_path: Path) -> None:
    expected = open_sentences(str(write_rows(tmp_path / "sts.jsonl", SCORED)))
    path = str(write_rows(tmp_path / f"sts{kind}", SCORED))

    assert recognises_sentences(path)
    assert open_sentences(path) == expected
    assert open_scored_pairs(path).pairs[4].score == 1.0


@pytest.mark.parametrize("kind", ["saved", "hf:", ".parquet"])
def test_labels_of_inference_are_read_by_the_names_of_the_library(
    kind: str, tmp_path: Path
) -> None:
    def read(names: list[str], first: str, second: str) -> list[float]:
        columns = {first: datasets.Value("string"), second: datasets.Value("string")}
        features = datasets.Features({**columns, "label": datasets.ClassLabel(names=names)})
        rows = [{first: "a", second: str(n), "label": n} for n in range(len(names))]
        table = datasets.Dataset.from_list(rows, features=features)
        path = tmp_path / f"{'-'.join(names)}.parquet"
        if kind == ".parquet":
            table.to_parquet(path)
        else:
            table.save_to_disk(path.with_suffix(""))
            path = path.with_suffix("")
        name = f"hf:{path}" if kind == "hf:" else str(path)
        return [pair.score for pair in open_sentences(name).pairs]

    three = ["entailment", "contradiction", "neutral"]
    assert read(three, "premise", "hypothesis") == [1.0, 0.0, 0.5]
    assert read(three[1:] + three[:1], "sentence1", "sentence2") == [0.0, 0.5, 1.0]
    assert read(["not_entailment", "entailment"], "sentence1", "sentence2") == [0.0, 1.0]
    with pytest.raises(UserError, match="'label' is 'not_entailment', not one of entailment"):
        read(["entailment", "not_entailment"], "sentence1", "sentence2")


def test_the_splits_of_a_data_set_of_pairs_are_those_of_a_column(tmp_path: Path) -> None:
    parts = {"train": SCORED[:3], "test": SCORED[3:]}
    saved = {split: datasets.Dataset.from_list(rows) for split, rows in parts.items()}
    datasets.DatasetDict(saved).save_to_disk(tmp_path / "sts")
    name = f"hf:{tmp_path}/sts"

    assert open_sentences(name).skipped == 2
    assert [pair.first for pair in open_scored_pairs(name, "test").pairs] == ["a3", "a4"]
    assert len(open_scored_pairs(f"{name}:test").pairs) == 2
    with pytest.raises(UserError, match="holds rows of several splits, test, train; say which"):
        open_scored_pairs(name)


@pytest.mark.parametrize(
    "rows",
    [
        [{"query_id": "1", "document_ids": ["a", "b"], "scores": [1.5, 0.5]}],
        [{"query_id": n, "docid": str(n), "score": n / 2} for n in range(3)],
    ],
)
def test_scores_of_a_teacher_are_read_by_row(rows: Rows, tmp_path: Path) -> None:
    found = [score[1:] for score in read_scores(write_rows(tmp_path / "s.parquet", rows))]

    lines = [
        f"{row['query_id']} {docid} {score}"
        for row in rows
        for docid, score in zip(
            row.get("document_ids", [row.get("docid")]),
            row.get("scores", [row.get("score")]),
            strict=True,
        )
    ]
    (tmp_path / "s.txt").write_text("\n".join(lines))
    assert found == [score[1:] for score in read_scores(tmp_path / "s.txt")]


# Refusals


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (
            [{"anchor": "a", "b": "c"}],
            "row 1: has neither 'document' .* its keys are 'anchor', 'b'. Rename",
        ),
        ([{"positive": "a"}], "row 1: has no 'query'; its keys are 'positive'"),
        ([{"id": "1", "txt": "x"}], "row 1: has neither .* nor an id and a text .* 'id', 'txt'"),
        (
            [{"id": "1", "docid": "2", "text": "x"}],
            "row 1: has 'id' and 'docid', of which one is read; rename the others",
        ),
        ([TEVATRON[0], {**TEVATRON[1], "query": None}], "row 2: 'query' is null, not a string"),
        (
            [{"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": None}],
            "row 2: has no positive document",
        ),
        ([{"query": "a", "positive": 3}], "row 1: 'positive' holds 3, which is neither a text"),
        ([{"query": ["a"], "positive": "b"}], r"row 1: 'query' is \['a'\], not a string"),
        ([{"id": "1", "text": {"a": "b"}}], "row 1: 'text' is {'a': 'b'}, not a string"),
        ([{"id": "1", "text": b"bytes"}], "row 1: 'text' is b'bytes', not a string"),
        ([DOCUMENTS[0], {"id": None, "text": "x"}], "row 2: 'id' is None, not a string"),
        ([DOCUMENTS[0], {"id": "d1", "text": None}], "row 2: 'text' is null, not a string"),
    ],
)
def test_a_wrong_row_is_named_by_file_and_row(rows: Rows, reason: str, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.parquet", rows)

    with pytest.raises(UserError, match=rf"rows\.parquet, {reason}"):
        list(open_dataset(str(path)).documents())


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"query": [], "positive": []}), tmp_path / "none.parquet")

    with pytest.raises(UserError, match=r"none\.parquet holds no row"):
        open_dataset(str(tmp_path / "none.parquet"))


@pytest.mark.parametrize("kind", ARROW)
def test_a_file_that_is_no_table_is_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / f"a{kind}").write_text("not a table")

    with pytest.raises(UserError, match=rf"a\{kind} cannot be read as a table of \{kind}"):
        open_dataset(str(tmp_path / f"a{kind}"))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"])] * 2, names=["query", "query"])
    parquet.write_table(table, tmp_path / "a.parquet")

    with pytest.raises(UserError, match=r"a\.parquet has two columns 'query'\. Rename one"):
        open_dataset(str(tmp_path / "a.parquet"))


def test_a_table_of_groups_and_of_sentence_pairs_is_ambiguous(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "both.parquet", [{**SCORED[0], "query": "a", "positive": "b"}])

    with pytest.raises(UserError, match="row 1: names sentence pairs .* and also a query"):
        recognises_sentences(str(path))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hf:", "'hf:' names no data set; give hf:ID or hf:FOLDER"),
        ("hf:./savd", r"there is no folder \./savd\. Did you mean saved\?"),
        ("hf:savd", r"'savd' is no folder here, and the hub cannot be reached .* mean saved\?"),
        ("hf:no/such", r"hf download --repo-type dataset no/such --local-dir such; .* hf:\./such"),
        ("hf:saved:tran", "hf:saved has no split 'tran'. Did you mean train"),
        ("hf:files:tran", "hf:files has no split 'tran'. Did you mean train"),
        ("hf:saved:train[:2]", r"read by whole splits\. Give hf:saved:train$"),
        ("hf:files:tran[:2]", "hf:files has no split 'tran'. Did you mean train"),
    ],
)
def test_a_data_set_that_is_not_there_is_refused_with_the_nearest(
    halves: Path, name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(halves)

    with pytest.raises(UserError, match=reason):
        open_dataset(name)


def test_files_that_the_library_cannot_read_are_told_in_its_words(tmp_path: Path) -> None:
    write_rows(tmp_path / "mixed/a.parquet", [{"query": "a"}])
    write_rows(tmp_path / "mixed/b.parquet", [{"other": 1}])

    with pytest.raises(UserError, match="hf:.*/mixed cannot be loaded by the library datasets"):
        open_dataset(f"hf:{tmp_path}/mixed")


def test_a_private_data_set_is_told_how_to_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'a/b' is gated")

    monkeypatch.setattr(datasets, "get_dataset_config_names", refuse)

    with pytest.raises(UserError, match="no data set 'a/b', or it is private .* hf auth login"):
        open_dataset("hf:a/b")


@pytest.mark.parametrize(
    ("library", "name"), [("pyarrow", "rows.parquet"), ("datasets", "hf:saved")]
)
def test_an_absent_library_is_named_with_its_extra(
    library: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path / "rows.parquet", TEVATRON)
    save_to_disk(tmp_path / "saved", TEVATRON)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(UserError, match=rf"{library}, which is not .* 'm2dr\[datasets\]'"):
        open_dataset(name)


def test_a_long_value_is_not_printed_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"query": ["a" * 999], "positive": "b"}))

    with pytest.raises(UserError) as error:
        open_dataset(str(path))
    assert len(str(error.value)) < 300


def anonymous_mb() -> float:
    """Memory of this process that no file holds, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024


@pytest.mark.skipif(sys.platform != "linux", reason="the memory is read from /proc")
def test_texts_of_parquet_stay_out_of_memory(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    path = tmp_path / "docs" / "train-00000-of-00001.parquet"
    columns = pa.schema([("id", pa.string()), ("text", pa.string())])
    with parquet.ParquetWriter(path, columns) as file:  # 150 MB of texts
        for start in range(0, 50_000, 5_000):
            rows = range(start, start + 5_000)
            table = {"id": [f"d{n}" for n in rows], "text": [f"{'word ' * 600}{n}" for n in rows]}
            file.write_table(pa.table(table, schema=columns))
    corpus = open_dataset(str(tmp_path / "docs"))
    before = anonymous_mb()

    assert corpus.document_count == 50_000
    assert corpus.document_at(49_999).text.endswith("word 49999")
    assert corpus.document("d123").text.endswith("word 123")
    assert anonymous_mb() - before < 100


@pytest.mark.parametrize("split", ["train[:7]", "train[3:9]", "train[8:200]"])
def test_a_slice_is_read_without_the_rows_behind_it(
    split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path / "d" / "train.parquet", TEVATRON * 3)
    whole = datasets.load_dataset(str(tmp_path / "d"), split=split, cache_dir=str(tmp_path / "c"))
    streamed, load = [], datasets.load_dataset

    def loading(*places: object, **how: object) -> object:
        streamed.append(how.get("streaming"))
        return load(*places, **how)

    monkeypatch.setattr(datasets, "load_dataset", loading)
    rows = [line.json() for line in read_records(Path(f"hf:{tmp_path / 'd'}:{split}"))]

    assert rows == [{**row, "split": "train"} for row in whole.to_list()]
    assert streamed == [True]
