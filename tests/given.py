"""Vectors that somebody else made: sums of a vector per word, of documents and of queries."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.core.records import Query
from m2dr.core.requests import ImportRequest, SearchRequest
from m2dr.data.loaders import open_dataset
from m2dr.tasks.indexing.importing import import_vectors
from m2dr.tasks.searching.search import Searcher, open_searcher

Floats = NDArray[np.float32]
WIDTH = 24


def vectors_of(texts: list[str]) -> Floats:
    """Sums of a random vector per word, whose strongest dims come last."""
    generator = np.random.default_rng(5)
    words = sorted({word for text in texts for word in text.split()})
    table = generator.normal(size=(len(words), WIDTH)) * np.linspace(0.1, 2, WIDTH)
    known = dict(zip(words, table, strict=True))
    rows = np.stack([sum(known[word] for word in text.split()) for text in texts])
    return rows.astype(np.float32)


def write_answers(path: Path, queries: Sequence[Query], vectors: Floats) -> Path:
    """Write vectors of queries as the batches of an API come, in another order."""
    pairs = reversed(list(zip(queries, vectors.tolist(), strict=True)))
    rows = [{"custom_id": query.id, "embedding": vector} for query, vector in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class Given:
    """A corpus, the vectors of its documents and queries, and a folder for indexes."""

    def __init__(self, corpus: Path, folder: Path) -> None:
        self.corpus, self.root = str(corpus), folder / "indexes"
        dataset = open_dataset(self.corpus)
        self.queries, documents = dataset.queries("test"), list(dataset.documents())
        texts = [document.content for document in documents]
        every = vectors_of([*texts, *(query.text for query in self.queries)])
        self.documents, self.given = every[: len(texts)], every[len(texts) :]
        self.vectors = folder / "v.npy"
        np.save(self.vectors, self.documents)
        self.answers = write_answers(folder / "q.jsonl", self.queries, self.given)

    def load(self, **options: object) -> Path:
        """Import the vectors, and return the folder of their index."""
        request = ImportRequest(self.vectors, self.corpus, root=self.root, store="f32")
        return import_vectors(replace(request, **options)).store.parent

    def searcher(self, **options: object) -> Searcher:
        return open_searcher(replace(SearchRequest(self.corpus, root=self.root), **options))
