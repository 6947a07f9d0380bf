"""What a way to search loses against a full scan of the same vectors, and what it saves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from m2dr.errors import counted
from m2dr.index.exact import ExactIndex
from m2dr.index.store import open_store
from m2dr.records.run import Ranking
from m2dr.records.texts import Query
from m2dr.verbs.searching.opening import store_of
from m2dr.verbs.searching.search import Searcher


@dataclass(frozen=True)
class ScanReport:
    """One line for a person."""

    queries: int
    k: int
    recall: float  # of the exact best k, mean over queries
    scanned: int  # multiply-adds per query of the full scan
    spent: int  # multiply-adds per query of this way; 0: not known

    def __str__(self) -> str:
        queries = counted(self.queries, "queries")
        found = f"recall@{self.k} {self.recall:.4f} of a full scan over {queries}"
        if not self.spent:
            return f"{found}; that takes {self.scanned:,} multiply-adds per query"
        return (
            f"{found}; {self.spent:,} multiply-adds per query against {self.scanned:,}, "
            f"{self.scanned / self.spent:.1f} times fewer"
        )


def compare_with_scan(searcher: Searcher, queries: Sequence[Query], k: int) -> ScanReport:
    """Search once more, by a full scan, and compare.

    A funnel is compared with the whole width, which it stands for; all else with its own dim.

    Raises:
        UserError: the vectors are not on this machine.
    """
    documents = searcher.documents
    store = open_store(store_of(searcher.place))
    dim = store.width if searcher.place.request.funnel else documents.dim
    scan = ExactIndex(store, dim)
    vectors = searcher.vectors([query.text for query in queries])
    names = [query.id for query in queries]
    k = min(k, documents.documents)
    exact, found = (way.ranked(names, vectors, k).rankings for way in (scan, documents))
    spent = int(getattr(documents, "multiply_adds", 0))
    return ScanReport(len(queries), k, recall(found, exact), documents.documents * dim, spent)


def recall(found: Mapping[str, Ranking], exact: Mapping[str, Ranking]) -> float:
    """Share of the exact best documents that were found, mean over queries; 0 to 1.

    >>> best = {"q": Ranking(("a", "b"), (2.0, 1.0))}
    >>> recall({"q": Ranking(("b", "c"), (1.0, 0.5))}, best)
    0.5
    """
    shares = (
        len({*found[name].docids} & {*best.docids}) / len(best.docids)
        for name, best in exact.items()
    )
    return fmean(shares)
