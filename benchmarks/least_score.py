"""What --min-score p95, p99 and p99.9 leave out, of hits that were judged and of other queries.

    python benchmarks/least_score.py data/beir/scifact data/beir/nfcorpus --other queries.tsv

Each corpus was indexed and fitted in indexes/. Queries of its test split and of other collections,
of which none of its documents should be found, have their ten best documents.
"""

import argparse
from pathlib import Path

import numpy as np

import m2dr
from m2dr.data.loaders import open_dataset
from m2dr.data.qrels import read_topics

NAMES = ("p95", "p99", "p99.9")
K = 10


def rows(corpus: str, others: list[list[str]], layer: int, queries: int) -> None:
    """Print a row of the table for each percentile."""
    dataset = open_dataset(corpus)
    index = m2dr.open_index(corpus, model="minilm", layer=layer)
    judged = {
        (each.query_id, each.document_id)
        for each in dataset.judgements("test")
        if each.relevance > 0
    }
    own = dataset.queries("test")
    own = own[:: max(1, len(own) // queries)][:queries]
    answers = index.search([query.text for query in own], k=K)
    relevant = [
        (hit.score, (query.id, hit.docid) in judged)
        for query, answer in zip(own, answers, strict=True)
        for hit in answer
    ]
    scores, is_relevant = (np.array(column) for column in zip(*relevant, strict=True))
    foreign = [
        [[hit.score for hit in answer] for answer in index.search(some[:queries], k=K)]
        for some in others
    ]
    searcher = index.searcher()
    for name in NAMES:
        least = searcher.least(name, searcher.blend())
        cells = [
            f"{100 * np.mean(scores[which] < least):.0f} %" for which in (is_relevant, ~is_relevant)
        ]
        for answer_scores in foreign:
            left = [sum(score >= least for score in each) for each in answer_scores]
            cells.append(f"{100 * np.mean(np.equal(left, 0)):.0f} %, {np.mean(left):.1f}")
        print(f"| {dataset.name} | {layer} | {name}: {least:.2f} | {' | '.join(cells)} |")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("corpora", nargs="+")
    parser.add_argument("--other", type=Path, required=True, help="queries of a third collection")
    parser.add_argument("--queries", type=int, default=300, help="of each collection, at most")
    asked = parser.parse_args()
    third = [query.text for query in read_topics(asked.other)]
    print(
        "| corpus | layer | least score | relevant hits left out | other hits left out | queries "
        "of the other corpus: find nothing, hits left | of the third: the same |\n"
        "|---|---|---|---|---|---|---|"
    )
    for corpus in asked.corpora:
        other = next(each for each in [*reversed(asked.corpora)] if each != corpus)
        texts = [query.text for query in open_dataset(other).queries("test")]
        for layer in (0, 6):
            rows(corpus, [texts, third], layer, asked.queries)


if __name__ == "__main__":
    main()
