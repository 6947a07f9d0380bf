"""The same vectors in a Milvus cluster, searched as an index on disk is."""

# One collection holds one prefix, and not the full width for all of them: cosine normalises what
# is left after cutting, which no search over longer vectors can do, and a search then multiplies
# the prefix alone.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError, counted
from m2dr.index.label import Label
from m2dr.index.layout import DIGITS
from m2dr.index.milvus import PUSH, Server
from m2dr.index.pushed import DEEPEST, Pushed, collection_name, cut_of, kind_of
from m2dr.index.vectors import Floats, check_depth, check_queries, prefixes
from m2dr.records.cut import Cut
from m2dr.records.run import Ranking, Run

Hits = list[tuple[float, int, str]]  # score, row and docid

_SLACK = 16  # documents fetched beyond k, so that few queries must be searched again
_WIDER = 4  # times as many for those
_ANSWERS = 200_000  # documents in one answer for a batch of queries
_ROUNDING = 2e-6  # share of the largest score by which a server may round a product


@dataclass(frozen=True)
class Collection:
    """Documents at one layer and dim in Milvus, open for search; a `Searchable`.

    Attributes:
        pushed: its label.
        server: where it lies.
    """

    pushed: Pushed
    server: Server

    @property
    def corpus(self) -> str:
        """Whose documents they are."""
        return self.pushed.corpus

    @property
    def documents(self) -> int:
        """How many there are."""
        return self.pushed.documents

    @property
    def layer(self) -> int:
        """How many transformer blocks encoded them."""
        return self.pushed.layer

    @property
    def dim(self) -> int:
        """How many coordinates of a query are looked at."""
        return self.pushed.dim

    def accept(self, queries: Label, query: Cut) -> None:
        """Raise UserError unless the `query` cut of that label may search these documents."""
        self.pushed.label.accept(queries, self.corpus)
        if query.dim != self.dim:
            raise UserError(
                f"Queries of dimension {query.dim} were asked for, and the collection "
                f"{self.pushed.name} has dimension {self.dim}. Open the collection of theirs."
            )

    def warnings(self, query: Cut) -> list[str]:
        """Say why rankings of `query` may be worse than this model can do."""
        return self.pushed.label.warnings(query, Cut(self.layer, self.dim))

    def ranked(
        self,
        query_ids: Sequence[str],
        queries: Floats,
        k: int,
        drop: Mapping[str, str] | None = None,
    ) -> Run:
        """Rank the best `k` documents of each query: score descending, then docid descending.

        A server rounds one and the same vector differently at different rows. Documents whose
        scores are that close are therefore scored once more here, in float64, so that copies of
        a document rank by docid, as in an index on disk.

        Args:
            query_ids: Q of them.
            queries: [Q, at least dim], not normalised.
            k: how many documents for each query.
            drop: per query id, a docid to leave out, such as the query's own document.

        Raises:
            UserError: the queries are too short or not finite, k is below 1 or more than Milvus
                gives, or the server does not answer.
        """
        check_depth(k)
        check_queries(queries, self.dim)
        wanted = min(k + bool(drop), self.documents)
        if wanted > DEEPEST:
            raise UserError(
                f"{k:,} documents per query were asked for, and Milvus gives {DEEPEST:,} at most"
                f"{', the dropped one included' if drop else ''}. Ask for fewer, or search an "
                f"index on disk."
            )
        prepared = prefixes(queries, self.dim, self.pushed.label.similarity)
        found = self._search(dict(zip(query_ids, prepared, strict=True)), wanted)
        drop = drop or {}
        rankings = {}
        for name in query_ids:
            scores, docids = [hit[0] for hit in found[name]], [hit[2] for hit in found[name]]
            rankings[name] = Ranking.of(docids, scores, k, drop.get(name))
        return Run(rankings)

    def close(self) -> None:
        """Let go of the connection."""
        self.server.close()

    def _search(self, pending: dict[str, NDArray[np.float32]], wanted: int) -> dict[str, Hits]:
        """What reaches the score of rank `wanted`; more is fetched where that score is shared."""
        found: dict[str, Hits] = {}
        fetch = min(wanted + _SLACK, DEEPEST)
        while pending:
            last = fetch >= min(self.documents, DEEPEST)
            again = {}
            for name, hits in self._ask(pending, fetch):
                if last or _complete(hits, wanted, fetch):
                    found[name] = self._settled(pending[name], hits)
                else:
                    again[name] = pending[name]
            pending, fetch = again, min(fetch * _WIDER, DEEPEST)
        return found

    def _ask(
        self, queries: Mapping[str, NDArray[np.float32]], fetch: int
    ) -> list[tuple[str, Hits]]:
        """Hits of each query, in batches that an answer can hold."""
        fetch = min(fetch, self.documents)
        parameters = kind_of(self.pushed.engine).parameters(fetch)
        found: list[tuple[str, Hits]] = []
        names = iter(queries)
        while batch := list(islice(names, max(1, _ANSWERS // fetch))):
            vectors = np.stack([queries[name] for name in batch])
            hits = self.server.search(self.pushed.name, vectors, fetch, parameters)
            found += zip(batch, hits, strict=True)
        return found

    def _settled(self, query: NDArray[np.float32], hits: Hits) -> Hits:
        """The hits with scores that do not depend on rows, where rounding could swap two.

        Args:
            query: [dim], as the vectors of the collection are.
            hits: by score, descending.
        """
        scores = np.array([hit[0] for hit in hits])
        close = np.flatnonzero(scores[:-1] - scores[1:] <= _rounding(hits))
        rows = sorted({hits[place + step][1] for place in close.tolist() for step in (0, 1)})
        exact: dict[int, float] = {}
        for first in range(0, len(rows), 1024):
            part = self.server.vectors(self.pushed.name, rows[first : first + 1024])
            for row, vector in part.items():
                exact[row] = float(vector.astype(np.float64) @ query.astype(np.float64))
        return [(exact.get(row, score), row, docid) for score, row, docid in hits]


def open_collection(
    uri: str,
    corpus: str,
    fingerprint: str,
    layer: int,
    dim: int,
    token: str = "",
    remedy: str = PUSH,
) -> Collection:
    """Open what `m2dr index push` wrote.

    Args:
        uri: a server or a local file, as `Server` takes it.
        corpus: whose documents.
        fingerprint: of the model that encoded them.
        layer: of the documents.
        dim: of the collection.
        token: as `Server` takes it.
        remedy: how to push what is missing, for the sentence that refuses.

    Raises:
        UserError: the server does not answer, or there is no such collection, or it is
            half-written or of another corpus or model.
    """
    server = Server(uri, token, remedy=remedy)
    try:
        return Collection(_find(server, corpus, fingerprint, Cut(layer, dim), remedy), server)
    except UserError:
        server.close()
        raise


def pushed_cuts(
    uri: str, corpus: str, fingerprint: str, token: str = "", remedy: str = PUSH
) -> tuple[Cut, ...]:
    """Cuts of a corpus that have a collection, increasing; finished or not. Args as above.

    Raises:
        UserError: the server does not answer.
    """
    server = Server(uri, token, remedy=remedy)
    try:
        return _cuts(server.names(), corpus, fingerprint)
    finally:
        server.close()


def _find(server: Server, corpus: str, fingerprint: str, cut: Cut, remedy: str) -> Pushed:
    """The label of a collection that holds what is asked, all of it."""
    name, names = collection_name(corpus, fingerprint, cut), server.names()
    if name not in names:
        cuts = _cuts(names, corpus, fingerprint)
        known = f"; there are {', '.join(map(str, cuts))}" if cuts else ""
        raise UserError(
            f"Milvus at {server.where} holds no {cut} of {corpus} by model "
            f"{fingerprint[:DIGITS]}{known}. Push it {remedy}"
        )
    pushed = server.label(name)
    if (pushed.corpus, pushed.label.fingerprint) != (corpus, fingerprint):
        raise UserError(
            f"The collection {name} of {server.where} holds {pushed.corpus} by model "
            f"{pushed.label.fingerprint}, not {corpus} by {fingerprint}. Use another database."
        )
    server.load(name)  # documents of a collection that is not loaded cannot be counted
    count = server.count(name)
    if count != pushed.documents:
        raise UserError(
            f"The collection {name} of {server.where} is half-written: {count:,} of "
            f"{counted(pushed.documents, 'documents', ',')}. Go on from there {remedy}"
        )
    return pushed


def _cuts(names: Sequence[str], corpus: str, fingerprint: str) -> tuple[Cut, ...]:
    found = (cut_of(name, corpus, fingerprint) for name in names)
    return tuple(sorted(cut for cut in found if cut is not None))


def _complete(hits: Hits, wanted: int, fetch: int) -> bool:
    """Whether no document that was not fetched may reach the score of rank `wanted`."""
    # An approximate index may find fewer than asked for; asking again finds no more.
    return len(hits) < fetch or hits[-1][0] + _rounding(hits) < hits[wanted - 1][0]


def _rounding(hits: Hits) -> float:
    return _ROUNDING * max((abs(score) for score, _, _ in hits), default=0.0)
