import ir_datasets
import pytest

from m2dr.core.errors import UserError
from m2dr.core.records import Document, Judgement, Query
from m2dr.data.loaders import open_dataset


@pytest.fixture
def local(write, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two data sets over one corpus in the catalogue, made of local files."""
    docs = ir_datasets.create_dataset(docs_tsv=str(write("docs.tsv", "d1\tone", "d2\ttwo")))
    monkeypatch.setattr(ir_datasets.registry, "_registered", dict(ir_datasets.registry._registered))
    ir_datasets.registry.register("tiny", docs)
    for split, qrel in (("train", "q1 0 d1 1"), ("test", "q2 0 d2 2")):
        judged = ir_datasets.create_dataset(
            queries_tsv=str(write(f"{split}.tsv", "q1\tfirst", "q2\tsecond")),
            qrels_trec=str(write(f"{split}.qrels", qrel)),
        )
        both = ir_datasets.Dataset(docs, judged)
        ir_datasets.registry.register(f"tiny/{split}", both)
    return "irds:tiny"


def test_documents_queries_and_judgements_come_through(local: str) -> None:
    dataset = open_dataset(f"{local}/test")

    assert list(dataset.documents()) == [Document("d1", "one"), Document("d2", "two")]
    assert dataset.document("d2") == dataset.document_at(1) == Document("d2", "two")
    assert dataset.document_count == 2
    assert dataset.queries("test") == [Query("q2", "second")]
    assert dataset.judgements("test") == [Judgement("q2", "d2", 2)]
    assert dataset.negatives("test") == {}
    with pytest.raises(UserError, match="tiny holds no document 'd9'"):
        dataset.document("d9")


def test_an_id_without_judgements_has_the_splits_below_it(local: str) -> None:
    dataset = open_dataset(local)

    assert dataset.splits == ("train", "test")
    assert dataset.queries("train") == [Query("q1", "first")]


@pytest.mark.parametrize(
    ("name", "corpus", "split"),
    [
        ("irds:msmarco-passage/trec-dl-2019/judged", "msmarco-passage", "trec-dl-2019-judged"),
        ("irds:beir/scifact/test", "beir-scifact", "test"),
        ("irds:mr-tydi/ar", "mr-tydi-ar", "all"),
    ],
)
def test_a_catalogued_id_names_its_corpus_and_its_split(name: str, corpus: str, split: str) -> None:
    dataset = open_dataset(name)

    assert (dataset.name, dataset.splits) == (corpus, (split,))
