"""Use an index in BEIR's evaluation; `m2dr.Encoder` goes into its exact search as it is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from m2dr.core.errors import UserError
from m2dr.core.records import Query
from m2dr.core.requests import INDEXES, SearchRequest
from m2dr.tasks.corpus import open_corpus
from m2dr.tasks.searching.search import Searcher

Corpus = Mapping[str, Mapping[str, str]]  # docid -> title and text, as BEIR's loader gives it
Results = dict[str, dict[str, float]]  # query id -> docid -> score

SIMILARITIES = {"cos_sim": "cosine", "dot": "dot"}  # BEIR's name of a similarity -> the model's


class BeirIndex:
    """An index of m2dr, as a retriever for BEIR's EvaluateRetrieval.

        retriever = BeirIndex("data/scifact", "models/full-dim", layer=2, dim=128)
        EvaluateRetrieval(retriever, score_function="cos_sim").retrieve(corpus, queries)

    BEIR drops the document that has the id of the query from the rankings of every dataset, when
    it searches and when it evaluates; by default this retriever does so too.
    """

    def __init__(
        self,
        corpus: str,
        model: str = "",
        layer: int | None = None,
        dim: int | None = None,
        *,
        root: Path | str = INDEXES,
        ignore_identical_ids: bool = True,
        **options: Any,
    ) -> None:
        """Open an index that `m2dr index corpus` has built.

        Args:
            corpus: the corpus that was indexed: a folder in BEIR layout, or another name.
            model: folder or id; that of the index when empty.
            layer: layers that a query runs through, from 0; all when None.
            dim: of the index; the longest that is built when None.
            root: folder of the indexes.
            ignore_identical_ids: whether to leave out the document with the id of the query.
            options: other fields of `SearchRequest`, such as device and dtype.

        Raises:
            UserError: no such model or index, or the two do not fit.
        """
        self._documents = open_corpus(corpus).document_count
        request = SearchRequest(
            corpus, str(model), query_layer=layer, dim=dim, root=Path(root), **options
        )
        self._searcher = Searcher(request)
        self._similarity = self._searcher.resolved.card.similarity
        self._ignores = ignore_identical_ids
        self.warnings = self._searcher.warnings

    def search(
        self,
        corpus: Corpus,
        queries: Mapping[str, str],
        top_k: int,
        score_function: str,
        **_: object,
    ) -> Results:
        """Return the best `top_k` documents of each query, with their scores.

        Args:
            corpus: the documents that were indexed; their ids are checked, not their texts.
            queries: query id -> text.
            top_k: documents per query.
            score_function: cos_sim or dot, which must be that of the model.

        Raises:
            UserError: the model compares by another function, or the index has other documents.
        """
        # Vectors of length one have the same dot product and cosine.
        wanted = SIMILARITIES.get(score_function)
        if not wanted or self._similarity not in (wanted, "cosine"):
            right = next(name for name, known in SIMILARITIES.items() if known == self._similarity)
            raise UserError(f"This model compares by {self._similarity}: score_function={right!r}.")
        if len(corpus) != self._documents:
            raise UserError(f"BEIR gives {len(corpus)} documents; {self._documents} are indexed.")
        results: Results = {}
        if queries:
            records = [Query(name, text) for name, text in queries.items()]
            run = self._searcher.run(records, top_k + self._ignores)
            for name, ranking in run.rankings.items():
                pairs = zip(ranking.docids, ranking.scores, strict=True)
                own = name if self._ignores else None
                kept = [(docid, score) for docid, score in pairs if docid != own]
                results[name] = dict(kept[:top_k])
        strange = {docid for scores in results.values() for docid in scores} - corpus.keys()
        if strange:
            raise UserError(f"The index holds {min(strange)!r}, and the corpus of BEIR does not.")
        return results
