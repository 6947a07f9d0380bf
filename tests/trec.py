"""trec_eval as a referee: worlds to measure, and what pytrec_eval makes of them."""

import random
from collections.abc import Iterable, Mapping

import pytrec_eval
from hypothesis import strategies as st

from m2dr.core.records import Ranking, Run

Found = Mapping[str, Mapping[str, float]]  # query -> document -> score
Judged = Mapping[str, Mapping[str, int]]  # query -> document -> relevance
World = tuple[dict[str, dict[str, float]], dict[str, dict[str, int]]]
QUERIES = [f"q{i}" for i in range(6)]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Queries over up to 1,200 documents: ties, empty rankings, judged ones that nobody asked."""
    rng = random.Random(draw(st.integers(0, 10**6)))
    documents = [f"d{i}" for i in range(draw(st.sampled_from([1, 3, 15, 15, 30, 120, 1200])))]
    levels = draw(st.sampled_from([2, 5, 1000]))
    found, judged = {}, {}
    for query in draw(st.lists(st.sampled_from(QUERIES), unique=True)):
        some = rng.sample(documents, rng.randint(0, len(documents)))
        found[query] = {docid: rng.randrange(levels) / 7 for docid in some}
    for query in draw(st.lists(st.sampled_from(QUERIES), unique=True, min_size=1)):
        some = rng.sample([*documents, "gone"], rng.randint(1, min(len(documents), 30)))
        judged[query] = {docid: rng.choice([-1, 0, 0, 1, 1, 2, 3]) for docid in some}
    return found, judged


def run_of(found: Found) -> Run:
    return Run({q: Ranking.of(list(docs), docs.values()) for q, docs in found.items()})


def trec_eval(
    found: Found, judged: Judged, names: Iterable[str], level: int = 1
) -> dict[str, dict[str, float]]:
    """Per query, with 0 for a judged query that was not found, as trec_eval -c counts it.

    A query whose judgements are all negative gets one of 0, of a document that nobody finds:
    pytrec_eval reads outside its memory without it, and may never end.
    """
    names = list(names)
    none = {"nobody finds it": 0}
    bounded = {
        q: levels if max(levels.values()) >= 0 else levels | none for q, levels in judged.items()
    }
    evaluator = pytrec_eval.RelevanceEvaluator(bounded, names, relevance_level=level)
    return dict.fromkeys(judged, dict.fromkeys(names, 0.0)) | evaluator.evaluate(found)
