"""Quality of a model in training: its trained cuts on a sample of the dev split, or dev pairs."""

from dataclasses import dataclass
from itertools import islice
from statistics import fmean

import numpy as np

from m2dr.evaluate.measures import Evaluator
from m2dr.evaluate.sentences import correlations, distinct, gold_scores
from m2dr.index.docids import Docids, encode
from m2dr.index.exact import prefix_runs
from m2dr.model.checkpoint import Tokenizer
from m2dr.model.encoder import Encoder
from m2dr.records.texts import Document, Judgement, Query
from m2dr.settings import TrainSettings
from m2dr.text.collection import Dataset
from m2dr.text.sentences import Sentences
from m2dr.verbs.encoding import embed_texts
from m2dr.verbs.models import document_layer

MEASURE = "nDCG@10"


@dataclass(frozen=True)
class DevSet:
    """Some dev queries, the documents that answer them, and others beside them."""

    queries: list[Query]
    documents: list[Document]
    judgements: list[Judgement]

    @classmethod
    def of(cls, dataset: Dataset, settings: TrainSettings) -> "DevSet":
        """Draw a sample, the same for the same seed."""
        generator = np.random.default_rng([settings.seed, 1])
        queries = dataset.queries(settings.dev)
        order = generator.permutation(len(queries))[: settings.dev_queries]
        queries = [queries[i] for i in sorted(order)]
        asked = {query.id for query in queries}
        judgements = [j for j in dataset.judgements(settings.dev) if j.query_id in asked]
        relevant = list(dict.fromkeys(j.document_id for j in judgements if j.relevance > 0))
        there = (docid for docid in relevant if dataset.holds(docid))
        chosen = dict.fromkeys(islice(there, settings.dev_documents))
        others = [docid for docid in dataset.document_ids() if docid not in chosen]
        room = max(0, settings.dev_documents - len(chosen))
        picked = sorted(generator.permutation(len(others))[:room])
        docids = [*chosen, *(others[i] for i in picked)]
        return cls(queries, [dataset.document(docid) for docid in docids], judgements)

    def quality(self, encoder: Encoder, tokenizer: Tokenizer) -> float:
        """Mean nDCG@10 over every trained cut, from one pass over queries and documents."""
        card = encoder.card
        layers = card.layers_trained
        sources = sorted({document_layer(card, layer) for layer in layers})
        texts = [document.content for document in self.documents]
        documents = embed_texts(encoder, tokenizer, texts, "document", sources)
        asked = [query.text for query in self.queries]
        queries = embed_texts(encoder, tokenizer, asked, "query", layers)
        evaluator = Evaluator(self.judgements, [MEASURE])
        found = []
        for layer, vectors in zip(layers, queries, strict=True):
            dims = [cut.dim for cut in card.cuts if cut.layer == layer]
            block = documents[sources.index(document_layer(card, layer))]
            runs = prefix_runs(
                [query.id for query in self.queries],
                vectors,
                block,
                Docids(encode(document.id for document in self.documents)),
                dims,
                k=10,
                similarity=card.similarity,
            )
            found += [evaluator.scores(run).mean[MEASURE] for run in runs.values()]
        return fmean(found)


@dataclass(frozen=True)
class DevPairs:
    """Pairs of sentences with scores."""

    sentences: Sentences

    def quality(self, encoder: Encoder, tokenizer: Tokenizer) -> float:
        """Mean Spearman correlation over every trained cut, from one pass over the sentences."""
        card, pairs = encoder.card, self.sentences.pairs
        gold = gold_scores(pairs, self.sentences.name)
        texts, first, second = distinct(pairs)
        vectors = embed_texts(encoder, tokenizer, texts, "document", card.layers_trained)
        found = []
        for layer, block in zip(card.layers_trained, vectors, strict=True):
            dims = sorted(cut.dim for cut in card.cuts if cut.layer == layer)
            by_dim = correlations(block, first, second, gold, dims)
            found += [values["Spearman"] for values in by_dim.values()]
        return fmean(found)
