import pytest

from m2dr.evaluation.measures import default_measures


@pytest.mark.parametrize(
    ("corpus", "split", "name"),
    [
        ("msmarco", "dev.small", "MS MARCO dev"),
        ("msmarco/passage-pool", "dev_in_pool", "MS MARCO dev"),
        ("msmarco/passage-pool", "dl19", "TREC deep learning"),
        ("msmarco", "2019-pass", "TREC deep learning"),
        ("irds:msmarco-passage/trec-dl-2020/judged msmarco-passage", "trec-dl-2020-judged",
         "TREC deep learning"),
        ("msmarco-passage", "trec-dl-2019", "TREC deep learning"),
        ("irds:msmarco-passage/dev/small msmarco-passage", "dev-small", "MS MARCO dev"),
        ("msmarco", "train", "other data"),
        ("beir/nfcorpus", "dev", "BEIR"),
        ("irds:beir/nq beir-nq", "test", "BEIR"),
        ("cqadupstack/android", "test", "BEIR"),
        ("nq-mine", "test", "other data"),
        ("pydocs", "test", "other data"),
    ],
)  # fmt: skip
def test_names_decide_the_default_measures(corpus: str, split: str, name: str) -> None:
    assert default_measures(corpus, split).name == name
