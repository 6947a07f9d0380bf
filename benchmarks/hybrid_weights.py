"""nDCG@10 by the weight of BM25, and what choices without judgements give.

    python benchmarks/hybrid_weights.py data/beir/scifact:train,test data/msmarco/pool:dl19,dl20

Each corpus was indexed and fitted in indexes/. After the queries of a split come 400 short texts of
documents, as queries of these: titles or first sentences, then spans; "out" is left out of the
document, which is encoded again. Column "gap" has a weight by query, from how far the tenth score
of BM25 is below the first; the last is the share that both rankings' top tens have in common.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import m2dr
from m2dr.core.records import Document
from m2dr.data.loaders import open_dataset
from m2dr.index.bm25 import HYBRID_DEPTH, Bm25, blended
from m2dr.index.store import open_store
from m2dr.maps.fit import SPAN_WORDS
from m2dr.model.words import unit_rows
from m2dr.tasks.encoder import Encoder
from m2dr.tasks.searching.search import store_of

WEIGHTS = [tenth / 10 for tenth in range(11)]
JUDGES, QUERIES, K = 400, 600, 10  # short texts, queries of a split, documents of a ranking
FIRST = re.compile(r"(.{20,200}?[.?!])\s+(\S.{60,})", re.DOTALL)  # a sentence, and what follows
GAP = 0.33, 0.46  # chosen on SciFact train, NFCorpus dev and 600 dev queries of MS MARCO
DISCOUNTS = 1 / np.log2(np.arange(2, 2 + K))

Floats = NDArray[Any]
Gains = Mapping[int, float]  # of the rows of documents
Short = tuple[int, str, str]  # the row of a document, a text of it, and the document without that


def titles(documents: Sequence[Document], draw: np.random.Generator) -> list[Short]:
    """Return titles, or first sentences where there are none."""
    found = []
    for row in draw.permutation(len(documents)).tolist():
        document = documents[row]
        parts = FIRST.match(document.text)
        if len(document.title.split()) > 1:  # one word is a name, as of a module
            found.append((row, document.title, document.text))
        elif parts:
            found.append((row, " ".join(parts[1].split()), parts[2]))
    return found[:JUDGES]


def spans(documents: Sequence[Document], draw: np.random.Generator) -> list[Short]:
    """Return spans of as many words as those that an index learns from."""
    found = []
    for row in draw.permutation(len(documents)).tolist():
        words = documents[row].content.split()
        if len(words) >= 2 * SPAN_WORDS[1]:
            count = int(draw.integers(*SPAN_WORDS))
            first = int(draw.integers(len(words) - count + 1))
            rest = words[:first] + words[first + count :]
            found.append((row, " ".join(words[first : first + count]), " ".join(rest)))
    return found[:JUDGES]


def ndcg(rows: Sequence[int], gains: Gains) -> float:
    """Return nDCG@10 of a ranking."""
    best = np.sort([*gains.values()])[::-1][:K]
    found = [gains.get(row, 0) for row in rows]
    return float(found @ DISCOUNTS[: len(rows)] / (best @ DISCOUNTS[: len(best)]))


def curve(
    bm25: Bm25, documents: Floats, texts: Sequence[str], queries: Floats, gains: Sequence[Gains]
) -> tuple[Floats, float]:
    """Return nDCG@10 by the weight, then by GAP [12], and the agreement of both top tens."""
    values, alike = np.zeros((len(texts), len(WEIGHTS) + 1)), []
    for number, text in enumerate(texts):
        words, scores = bm25.scores(text), documents @ queries[number]
        rows = np.argsort(-scores, kind="stable")[:HYBRID_DEPTH]
        tops, high = [], np.sort(words)[: -K - 1 : -1]
        by_gap = GAP[0] + GAP[1] * (1 - high[-1] / max(high[0], 1e-9))
        for weight in (*WEIGHTS, by_gap):
            best, totals, _ = blended(words, scores[rows], rows, weight, K)
            tops.append(best[np.argsort(-totals, kind="stable")[:K]].tolist())
        values[number] = [ndcg(top, gains[number]) for top in tops]
        alike.append(len({*tops[0]} & {*tops[10]}) / K)
    return values.mean(axis=0), float(np.mean(alike))


def row(name: str, layer: int, values: Floats, alike: float) -> None:
    """Print a row of the table."""
    cells = " | ".join(f"{100 * value:.1f}" for value in values)
    best = WEIGHTS[int(values[: len(WEIGHTS)].argmax())]
    print(f"| {name} | {layer} | {cells} | {best:g} | {alike:.2f} |")


def table(corpus: str, splits: Sequence[str]) -> None:
    """Print the rows of a corpus."""
    dataset, encoder = open_dataset(corpus), Encoder("minilm")
    documents = list(dataset.documents())
    rows_of = {document.id: at for at, document in enumerate(documents)}
    index = m2dr.open_index(corpus, model="minilm")
    vectors = unit_rows(open_store(store_of(index.resolved)).rows(np.arange(len(documents))))
    layers = (0, encoder.card.layers)
    bm25 = Bm25.of(documents)
    rank = partial(curve, bm25, vectors)

    def of(layer: int, texts: Sequence[str]) -> Floats:
        return unit_rows(index.searcher(layer=layer).vectors(texts))

    for split in splits:
        gains: dict[str, dict[int, float]] = {}
        for each in dataset.judgements(split):
            if each.relevance > 0 and each.document_id in rows_of:
                gains.setdefault(each.query_id, {})[rows_of[each.document_id]] = each.relevance
        asked = [query for query in dataset.queries(split) if query.id in gains][:QUERIES]
        texts, judged = [query.text for query in asked], [gains[query.id] for query in asked]
        for layer in layers:
            row(f"{dataset.name} {split}", layer, *rank(texts, of(layer, texts), judged))
    for cut, name in ((titles, "title or first sentence"), (spans, "span")):
        places, short, rests = zip(*cut(documents, np.random.default_rng(0)), strict=True)
        judged = [{place: 1.0} for place in places]
        without, changed = vectors.copy(), list(documents)
        without[list(places)] = unit_rows(encoder.encode_documents(rests))
        for place, rest in zip(places, rests, strict=True):
            changed[place] = Document(documents[place].id, rest)
        rank_without = partial(curve, Bm25.of(changed), without)
        for layer in layers:
            row(f"{name}, in", layer, *rank(short, of(layer, short), judged))
            row(f"{name}, out", layer, *rank_without(short, of(layer, short), judged))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("corpora", nargs="+", help="CORPUS:SPLIT,SPLIT")
    asked = parser.parse_args()
    header = " | ".join(f"{weight:g}" for weight in WEIGHTS)
    print(f"| queries | layer | {header} | gap | best | alike |\n|{'---|' * (len(WEIGHTS) + 5)}")
    for each in asked.corpora:
        corpus, _, splits = each.rpartition(":")
        table(corpus, splits.split(","))


if __name__ == "__main__":
    main()
