import re
from pathlib import Path

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m2dr.core.errors import UserError
from m2dr.core.records import Document, Run
from m2dr.data.loaders import open_dataset
from m2dr.evaluation.measures import Evaluator
from m2dr.index.bm25 import HYBRID_DEPTH, Bm25, blended
from m2dr.index.hits import Hits

# What Snowball's English stemmer makes of each word; None: a stop word.
STEMS = {
    "cat": "cat", "cats": "cat", "dog": "dog", "runs": "run", "running": "run", "tree": "tree",
    "trees": "tree", "2024": "2024", "the": None, "of": None, "x": "x",
}  # fmt: skip

texts = st.lists(st.sampled_from([*STEMS, "CATS", "dog,"]), max_size=8).map(" ".join)


def stems(text: str) -> list[str]:
    found = (STEMS[word] for word in re.findall("[a-z0-9]+", text.lower()))
    return [stem for stem in found if stem is not None]


def bm25(*texts: str) -> Bm25:
    """Documents d0, d1, … of these texts."""
    return Bm25.of(Document(f"d{row}", text) for row, text in enumerate(texts))


@settings(deadline=None)  # the first example loads the stemmer
@given(documents=st.lists(texts, min_size=1, max_size=6), query=texts)
def test_scores_are_those_of_bm25s(documents: list[str], query: str) -> None:
    words = [stems(text) for text in documents]
    known = [stem for stem in stems(query) if any(stem in each for each in words)]
    expected = np.zeros(len(documents))
    if known:
        referee = bm25s.BM25(k1=0.9, b=0.4, method="lucene")
        referee.index(words, create_empty_token=False, show_progress=False)
        expected = referee.get_scores(known)

    scores = bm25(*documents).scores(query)

    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


@pytest.mark.parametrize("language", ["english", "none"])
def test_a_file_gives_the_same_scores(tmp_path: Path, language: str) -> None:
    documents = [Document("a", "cats run"), Document("b", ""), Document("c", "cat 東京都 cat")]
    built = Bm25.of(documents, language=language, digest="x")

    for name in ("one", "other"):
        built.write(tmp_path / name)
        built = Bm25.of(documents, language=language, digest="x")

    mapped = Bm25.open(tmp_path / "one", built.docids)
    assert mapped is not None
    assert (mapped.language, mapped.digest) == (language, "x")
    for query in ("cat", "東京 running", "the unknown", ""):
        assert mapped.scores(query).tolist() == built.scores(query).tolist()
    data = (tmp_path / "one").read_bytes()
    assert data == (tmp_path / "other").read_bytes()
    assert Bm25.open(tmp_path / "absent", built.docids) is None


def test_no_changed_byte_gives_other_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, path = Bm25.of([Document("a", "cats run"), Document("b", "cat")]), tmp_path / "one"
    built.write(path)
    data = path.read_bytes()

    scores = [built.scores(word).tolist() for word in ("cat", "run", "dog")]

    for size in (0, 4, 100, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(UserError, match="not the file that was written"):
            Bm25.open(path, built.docids)
    refused = 0
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            found = Bm25.open(path, built.docids)
        except UserError:
            refused += 1
        else:  # a byte of the header that nothing reads
            assert found is not None
            assert [found.scores(word).tolist() for word in ("cat", "run", "dog")] == scores
    assert refused > len(data) - 50
    monkeypatch.setattr("m2dr.index.bm25.HASHED_BYTES", 0)
    assert Bm25.open(path, built.docids)
    with pytest.raises(UserError, match="not the file that was written"):
        Bm25.open(path, built.docids, whole=True)


numbers = st.floats(0, 9, width=32)


@given(data=st.data(), words=st.lists(numbers, min_size=1, max_size=9), weight=st.floats(0, 1))
def test_a_blend_is_a_convex_combination(
    data: st.DataObject, words: list[float], weight: float
) -> None:
    rows = data.draw(st.lists(st.sampled_from(range(len(words))), unique=True))
    scores = sorted(data.draw(st.lists(numbers, min_size=len(rows), max_size=len(rows))))[::-1]

    given = np.array(words, np.float32), np.array(scores, np.float32), np.array(rows, int), weight
    found, total, _ = blended(*given, len(words))

    expected = {}
    for row, score in enumerate(words):
        if score > 0 or (row in rows and weight < 1):
            value = weight * score / (max(words) or 1)
            if row in rows:
                low, high = min(scores), max(scores)
                own = scores[rows.index(row)]
                same = float(len(rows) == 1)  # the best, of itself alone
                value += (1 - weight) * ((own - low) / (high - low) if high > low else same)
            expected[row] = value
    assert found.tolist() == list(expected)
    assert total.tolist() == pytest.approx(list(expected.values()), abs=1e-5)
    k = data.draw(st.integers(1, len(words)))
    best = found if found.size <= k else found[total >= np.sort(total)[-k]]
    assert blended(*given, k)[0].tolist() == best.tolist()


@pytest.mark.parametrize("weight", [0.0, 0.4, 1.0])
def test_the_best_of_a_blend_are_the_same_however_many_are_wanted(weight: float) -> None:
    rng = np.random.default_rng(5)
    index = bm25(*(f"cat{' dog' * (row % 7)}" * (row % 3 == 0) for row in range(3000)))
    vectors = rng.normal(size=3000).astype(np.float32)
    order = np.argsort(-vectors)
    none = np.array([-1])

    def blend(k: int) -> Run:
        rows = order[None, : max(k, HYBRID_DEPTH)]
        (hits,) = index.blend([Hits(vectors[rows], rows)], ["dog cat"], weight, k, none)
        return hits.run(["q"], index.docids)

    whole = blend(3000).rankings["q"]
    for k in (10, 1000, 1500):
        ranking = blend(k).rankings["q"]
        assert ranking.docids == whole.docids[:k]
        assert ranking.scores == whole.scores[:k]


@settings(deadline=None)  # the first example loads the stemmer
@given(documents=st.lists(texts, min_size=1, max_size=9), query=texts, k=st.integers(1, 9))
def test_a_ranking_holds_the_best_that_share_a_word(
    documents: list[str], query: str, k: int
) -> None:
    index = bm25(*documents)

    ranking = index.rank(index.scores(query), k)

    scores = index.scores(query).tolist()
    pairs = [(score, f"d{row}") for row, score in enumerate(scores) if score > 0]
    expected = sorted(pairs, reverse=True)[:k]
    assert list(zip(ranking.scores, ranking.docids, strict=True)) == expected


def test_a_language_is_that_of_the_texts() -> None:
    german = "der Hund und die Häuser, das ist nicht auch mit der Katze"

    assert bm25(german).language == "german"
    assert bm25(german).scores("haus").tolist()[0] > 0
    assert Bm25.of([Document("d", german)], language="none").scores("haus").tolist() == [0]


def test_a_dropped_document_makes_room_for_the_next() -> None:
    index = bm25("cat", "cat cat dog", "cat dog tree", "dog")

    scores = index.scores("cat")

    assert index.rank(scores, 2).docids == ("d1", "d0")
    assert index.rank(scores, 2, drop="d0").docids == ("d1", "d2")


def test_nfcorpus_scores_as_anserini_published(data: Path) -> None:
    if not (data / "beir" / "nfcorpus").is_dir():
        pytest.skip("beir/nfcorpus is not below $M2DR_DATA")
    dataset = open_dataset(str(data / "beir" / "nfcorpus"))

    index = Bm25.of(dataset.documents())
    queries = dataset.queries("test")
    run = Run({query.id: index.rank(index.scores(query.text), 100) for query in queries})

    # Anserini's regression beir-v1.0.0-nfcorpus-flat, whose analyser keeps single letters.
    measured = Evaluator(dataset.judgements("test"), ("nDCG@10", "R@100")).scores(run).mean
    assert measured["nDCG@10"] == pytest.approx(0.3218, abs=0.005)
    assert measured["R@100"] == pytest.approx(0.2457, abs=0.001)
