"""An m2dr model or index in BEIR: its exact search and its evaluation drive them as they are."""

# Shapes in this file:
#   Q queries, N documents, D coordinates of the cut.

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError, counted
from m2dr.model import checkpoint
from m2dr.records.arguments import mappings, path_or_name, strings, whole_number
from m2dr.records.run import Ranking
from m2dr.records.texts import Document, Query
from m2dr.verbs.corpora import open_corpus
from m2dr.verbs.evaluating.cutencoder import CutEncoder
from m2dr.verbs.indexing.request import INDEXES
from m2dr.verbs.models import newest_model
from m2dr.verbs.searching.search import Searcher, SearchRequest

Corpus = Mapping[str, Mapping[str, str]]  # docid -> title and text, as BEIR's loader gives it
Results = dict[str, dict[str, float]]  # query id -> docid -> score

SCORES = {"cos_sim": "cosine", "dot": "dot"}  # BEIR's name of a similarity -> the model's


class Model:
    """One cut of a model, which encodes for BEIR's DenseRetrievalExactSearch.

    Queries and documents get the model's own prefixes and lengths, and a document is its title and
    text. Vectors of a model that compares by cosine have length one, so both of BEIR's score
    functions rank them alike; for one that compares by dot, ask for `score_function="dot"`.

        model = DenseRetrievalExactSearch(Model("models/full-dim", layer=4, dim=128))
        EvaluateRetrieval(model, score_function="cos_sim").retrieve(corpus, queries)
    """

    def __init__(
        self,
        model: str,
        layer: int | None = None,
        dim: int | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
    ) -> None:
        """Load the model; layer and dim are all of it when None.

        Raises:
            UserError: no such model, or it has no such cut.
        """
        self.encoder = CutEncoder(path_or_name("model", model), layer, dim, device, dtype)

    def encode_queries(
        self, queries: Sequence[str], batch_size: int = 0, **_: object
    ) -> NDArray[np.float32]:
        """Vectors [Q, D]; batches are made by length, so `batch_size` says nothing here."""
        del batch_size
        return self.encoder.queries(strings(queries, "queries"))

    def encode_corpus(
        self, corpus: Sequence[Mapping[str, str]], batch_size: int = 0, **_: object
    ) -> NDArray[np.float32]:
        """Vectors [N, D] of documents, each with a `text` and perhaps a `title`."""
        del batch_size
        rows = mappings(corpus, "documents")
        texts = strings([row.get("text", "") for row in rows], "documents' texts")
        titles = strings([row.get("title") or "" for row in rows], "documents' titles")
        documents = (Document("", *parts) for parts in zip(texts, titles, strict=True))
        return self.encoder.documents([document.content for document in documents])


class Index:
    """An index that m2dr built, which searches for BEIR's EvaluateRetrieval.

        retriever = Index("data/scifact", "models/full-dim", layer=2, dim=128)
        EvaluateRetrieval(retriever, score_function="cos_sim").retrieve(corpus, queries)

    BEIR drops the document that has the query's own id, from every ranking of every dataset, both
    when it searches and when it evaluates; so this does too, unless told otherwise.
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
        device: str = "auto",
        dtype: str = "auto",
    ) -> None:
        """Open what `m2dr index corpus` has built.

        Args:
            corpus: the same that was indexed: a folder in BEIR layout, or another name.
            model: folder or id; the newest trained one when empty.
            layer: layers that a query runs through, from 0; all when None.
            dim: of the index; the longest that is built when None.
            root: where indexes lie.
            ignore_identical_ids: whether the document with the query's id is left out.
            device: of the query encoder.
            dtype: of the query encoder.

        Raises:
            UserError: no such model or index, or the two do not fit.
        """
        model = path_or_name("model", model) or newest_model()
        layer = None if layer is None else whole_number("layer", layer, 0)
        dim = None if dim is None else whole_number("dim", dim, 1)
        self._similarity = checkpoint.read_card(model).similarity
        self._documents = open_corpus(corpus).document_count
        self._searcher = Searcher(
            SearchRequest(
                corpus,
                model,
                query_layer=layer,
                dim=dim,
                root=Path(root),
                device=device,
                dtype=dtype,
            )
        )
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
        """The best `top_k` documents of each query, with their scores.

        Args:
            corpus: the documents that were indexed; their ids are compared, not their texts.
            queries: query id -> text.
            top_k: how many documents for each.
            score_function: cos_sim or dot, as the model compares.

        Raises:
            UserError: the model compares otherwise, or the index is of other documents.
        """
        self._check_similarity(score_function)
        top_k = whole_number("top_k", top_k, 1)
        mappings([corpus, queries], "corpus and queries")
        strings(queries.values(), "queries")
        if len(corpus) != self._documents:
            raise UserError(
                f"BEIR was given {counted(len(corpus), 'documents')}, and {self._documents} are "
                "indexed; give the corpus that was indexed, or index the other."
            )
        asked = [Query(name, text) for name, text in queries.items()]
        found = self._searcher.run(asked, top_k + self._ignores) if asked else None
        rankings = found.rankings if found else {}
        return {name: self._scores(name, rankings[name], corpus, top_k) for name in rankings}

    def _scores(self, name: str, ranking: Ranking, corpus: Corpus, top_k: int) -> dict[str, float]:
        strange = next((docid for docid in ranking.docids if docid not in corpus), None)
        if strange is not None:
            raise UserError(
                f"The index holds the document {strange!r}, which the corpus given to BEIR does "
                f"not; give the corpus that was indexed."
            )
        own = name if self._ignores else None
        pairs = zip(ranking.docids, ranking.scores, strict=True)
        return dict([(docid, score) for docid, score in pairs if docid != own][:top_k])

    def _check_similarity(self, score_function: str) -> None:
        wanted = SCORES.get(score_function)
        # Vectors of length one have the same dot product and cosine.
        if wanted == self._similarity or (wanted and self._similarity == "cosine"):
            return
        right = next(name for name, known in SCORES.items() if known == self._similarity)
        raise UserError(
            f"BEIR asked for scores by {score_function!r}, and this model compares by "
            f"{self._similarity}; use EvaluateRetrieval(retriever, score_function={right!r})."
        )
