"""Which measures the field reports on which data, as rows."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from m2dr.evaluate.measures import DEFAULT

# The 13 public sets of BEIR (Thakur et al. 2021), as their folders are called, and the measures
# that papers report on them. MS MARCO is its training data and not among them.
BEIR13 = (
    "trec-covid",
    "nfcorpus",
    "nq",
    "hotpotqa",
    "fiqa",
    "arguana",
    "webis-touche2020",
    "quora",
    "dbpedia-entity",
    "scidocs",
    "fever",
    "climate-fever",
    "scifact",
)
OTHER_NAMES = {
    "webis-touche2020": ("touche-2020", "touche2020", "webis-touche2020-v2"),
    "dbpedia-entity": ("dbpedia",),
    "trec-covid": ("trec-covid-beir",),
}
_OTHERS = ("bioasq", "signal1m", "trec-news", "robust04", "cqadupstack")
_BEIR = (*BEIR13, *_OTHERS, *(name for names in OTHER_NAMES.values() for name in names))


@dataclass(frozen=True)
class Custom:
    """What is usual on some data. A new one is a row of CUSTOMS."""

    name: str
    says: re.Pattern[str]  # found in "corpus split", lower case
    measures: tuple[str, ...]


_MARCO = r"ms[-_]?marco"
# The first that fits decides.
CUSTOMS = (
    # Judgements of 0 to 3; relevant means 2 or more for all but nDCG (Craswell et al. 2020).
    Custom(
        "TREC deep learning",
        re.compile(r"(\b|_)(trec-)?dl[-_]?(20)?(19|20)(\b|_)|\b20(19|20)-?(pass|judged)"),
        ("nDCG@10", "AP(rel=2)", "R(rel=2)@100", "RR(rel=2)@10"),
    ),
    Custom("MS MARCO dev", re.compile(rf"{_MARCO}.* \S*dev\S*$"), ("RR@10", "R@1000")),
    Custom(
        "BEIR",
        re.compile(rf"(^|[\s/:])({'|'.join(map(re.escape, _BEIR))}|cqadupstack[/-]\w+)([\s/]|$)"),
        ("nDCG@10", "R@100"),
    ),
)
OTHER = Custom("other data", re.compile(""), DEFAULT)


def usual(corpus: str, split: str) -> Custom:
    """What is usual on a split of a corpus, decided by their names alone.

    >>> usual("msmarco", "dev.small").measures, usual("scifact", "test").measures
    (('RR@10', 'R@1000'), ('nDCG@10', 'R@100'))
    """
    text = f"{corpus} {split}".lower()
    return next((custom for custom in CUSTOMS if custom.says.search(text)), OTHER)


def usual_split(corpus: str, splits: Collection[str]) -> str:
    """Return the split of a corpus that papers report: test, and dev of BEIR's msmarco.

    >>> usual_split("msmarco", ("dev", "test", "train")), usual_split("fiqa", ("dev", "test"))
    ('dev', 'test')
    """
    return "dev" if corpus.lower() == "msmarco" and "dev" in splits else "test"
