"""The data of a training: groups of a corpus or sentence pairs, their batches and the dev set."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from m2dr.core.errors import UserError, counted
from m2dr.core.progress import say
from m2dr.core.records import Cut, Document, Group, Judgement, ModelCard, Query, SentencePair
from m2dr.core.settings import TrainSettings
from m2dr.data.dataset import Dataset
from m2dr.data.sentences import Sentences, open_sentences, recognises_sentences
from m2dr.data.tables import is_hub
from m2dr.data.tokens import buckets, pad, split_by_length
from m2dr.data.training_rows import Groups, ScoredGroups, documents_of, false_negatives, read_scores
from m2dr.evaluate.measures import Evaluator
from m2dr.evaluate.sentence_tasks import correlations, distinct, gold_scores
from m2dr.index.exact import prefix_runs
from m2dr.index.searchable import Docids, encode_docids
from m2dr.model.encoder import Encoder
from m2dr.model.tokenizer import ModelTokenizer, tokenize
from m2dr.tasks.encode_texts import embed_texts, open_corpus
from m2dr.tasks.encoder import document_layer
from m2dr.tasks.recipe import Kind
from m2dr.train.module import TokenBatch, TokenPart, all_gather_objects
from m2dr.train.objective import POSITIVE

# Texts are encoded in so many groups of like length: the first saves half of the tokens as padding,
# and each costs one more pass over the gradient of the word embeddings.
PARTS = 4
MEASURE = "nDCG@10"  # of the dev queries


def make_batch(
    card: ModelCard,
    tokenizer: ModelTokenizer,
    groups: Sequence[Group],
    known: Mapping[str, frozenset[str]],
    tokens_at_once: int = 0,
) -> TokenBatch:
    """Return the tokens of the queries and documents of `groups`, and which pairs are no negatives.

    Args:
        card: prefixes and lengths.
        tokenizer: of the backbone.
        groups: the B groups of this process.
        known: query id to the docids judged relevant to it.
        tokens_at_once: of a part, with padding; 0: four parts, whatever their size.
    """
    rows = tokenize(card, tokenizer, [group.query.text for group in groups], "query")
    documents = [document.content for document in documents_of(groups)]
    rows += tokenize(card, tokenizer, documents, "document")
    texts = _parts(rows, tokenizer.pad_id, tokens_at_once)
    everyone = [
        group for share in all_gather_objects([_brief(g) for g in groups]) for group in share
    ]
    scores = [group.scores for group in everyone]
    teacher = np.array(scores, dtype=np.float32) if scores[0] else None
    return TokenBatch(texts, len(groups), false_negatives(everyone, known), teacher=teacher)


def make_pair_batch(
    card: ModelCard,
    tokenizer: ModelTokenizer,
    pairs: Sequence[SentencePair],
    tokens_at_once: int = 0,
) -> TokenBatch:
    """Return the tokens of both sentences of `pairs`, their scores, and which are no negatives.

    A sentence that is alike to the first of a pair, or reads like it, is no negative of it.
    Args as `make_batch`; both sentences are encoded as documents are.
    """
    rows = tokenize(card, tokenizer, [pair.first for pair in pairs], "document")
    rows += tokenize(card, tokenizer, [pair.second for pair in pairs], "document")
    texts = _parts(rows, tokenizer.pad_id, tokens_at_once)
    brief = [SentencePair(_digest(p.first), _digest(p.second), p.score) for p in pairs]
    everyone = [pair for share in all_gather_objects(brief) for pair in share]
    alike: dict[str, set[str]] = defaultdict(set)  # sentence → those alike to it, itself one
    for pair in everyone:
        if pair.score >= POSITIVE:
            alike[pair.first] |= {pair.first, pair.second}
            alike[pair.second] |= {pair.first, pair.second}
    groups = []
    for place, pair in enumerate(everyone):
        # A pair that is not alike says nothing of what answers its first sentence.
        name = pair.first if pair.score >= POSITIVE else f"{pair.first} {place}"
        groups.append(Group(Query(name, name), Document(pair.second, pair.second)))
    known = {name: frozenset(others) for name, others in alike.items()}
    labels = np.array([pair.score for pair in everyone], dtype=np.float32)
    return TokenBatch(texts, len(pairs), false_negatives(groups, known), labels)


def _parts(rows: Sequence[list[int]], pad_id: int, tokens_at_once: int) -> list[TokenPart]:
    lengths = [len(row) for row in rows]
    if tokens_at_once:
        parts = buckets(lengths, tokens_at_once, longest_first=True)
    else:
        parts = split_by_length(lengths, PARTS)
    return [(*pad([rows[i] for i in part], pad_id), part) for part in parts]


def _brief(group: Group) -> Group:
    """Replace texts by digests, which are enough to tell equal ones and cheap to send."""
    return Group(
        Query(group.query.id, _digest(group.query.text)),
        Document(group.positive.id, _digest(group.positive.content)),
        tuple(Document(document.id, _digest(document.content)) for document in group.negatives),
        group.scores,
    )


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True)
class DevSet:
    """A sample of dev queries, the documents that answer them, and distractors."""

    queries: list[Query]
    documents: list[Document]
    judgements: list[Judgement]

    @classmethod
    def of(cls, dataset: Dataset, settings: TrainSettings) -> "DevSet":
        """Draw a sample by a seed."""
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

    def quality(self, encoder: Encoder, tokenizer: ModelTokenizer) -> dict[Cut, float]:
        """Return nDCG@10 of each trained cut, from one pass over the texts."""
        card = encoder.card
        layers = card.layers_trained
        sources = sorted({document_layer(card, layer) for layer in layers})
        texts = [document.content for document in self.documents]
        documents = embed_texts(encoder, tokenizer, texts, "document", sources)
        asked = [query.text for query in self.queries]
        queries = embed_texts(encoder, tokenizer, asked, "query", layers)
        evaluator = Evaluator(self.judgements, [MEASURE])
        found: dict[Cut, float] = {}
        for layer, vectors in zip(layers, queries, strict=True):
            dims = [cut.dim for cut in card.cuts if cut.layer == layer]
            block = documents[sources.index(document_layer(card, layer))]
            runs = prefix_runs(
                [query.id for query in self.queries],
                vectors,
                block,
                Docids(encode_docids(document.id for document in self.documents)),
                dims,
                k=10,
                similarity=card.similarity,
            )
            for dim, run in runs.items():
                found[Cut(layer, dim)] = evaluator.scores(run).mean[MEASURE]
        return found


@dataclass(frozen=True)
class DevPairs:
    """Scored sentence pairs of the dev set."""

    sentences: Sentences

    def quality(self, encoder: Encoder, tokenizer: ModelTokenizer) -> dict[Cut, float]:
        """Return Spearman of each trained cut, from one pass over the texts."""
        card, pairs = encoder.card, self.sentences.pairs
        gold = gold_scores(pairs, self.sentences.name)
        texts, first, second = distinct(pairs)
        vectors = embed_texts(encoder, tokenizer, texts, "document", card.layers_trained)
        found: dict[Cut, float] = {}
        for layer, block in zip(card.layers_trained, vectors, strict=True):
            dims = sorted(cut.dim for cut in card.cuts if cut.layer == layer)
            by_dim = correlations(block, first, second, gold, dims)
            found |= {Cut(layer, dim): values["Spearman"] for dim, values in by_dim.items()}
        return found


@dataclass(frozen=True)
class TrainingData:
    """The examples of a training, and the function that makes batches of them."""

    name: str
    kind: Kind
    unit: str  # what is counted, in the plural
    count: int
    example: Callable[[int, int], Any]  # of an epoch, at a place
    batch: Callable[[ModelCard, ModelTokenizer, Sequence[Any]], TokenBatch]
    quality: Callable[[Encoder, ModelTokenizer], dict[Cut, float]] | None  # on the dev split
    widest: float = 0.0  # margin between the scores that a teacher gave to documents of a query


def open_training_data(settings: TrainSettings) -> TrainingData:
    """Open the training data that the settings name.

    Raises:
        UserError: no such corpus or file.
    """
    if recognises_sentences(settings.corpus):
        return _of_sentences(open_sentences(settings.corpus), settings)
    return _of_corpus(open_corpus(settings.corpus), settings)


def refuse_few(settings: TrainSettings, data: TrainingData) -> None:
    """Raise UserError if there are fewer examples than a batch holds."""
    if settings.batch_queries > data.count:
        raise UserError(
            f"batch_queries = {settings.batch_queries} was asked for; {data.name} has "
            f"{counted(data.count, data.unit)} to train on. Ask for fewer."
        )


def kind_of(settings: TrainSettings) -> Kind:
    """Return what the corpus of the settings holds; what is no file of sentences: documents."""
    if not recognises_sentences(settings.corpus):
        return "documents"
    return "scored pairs" if open_sentences(settings.corpus).scored else "sentences"


def _of_corpus(dataset: Dataset, settings: TrainSettings) -> TrainingData:
    taught = _taught(dataset, settings)
    groups = taught or _groups(dataset, settings)
    for note in (groups.answered.note, taught.note if taught else ""):
        if note:
            say(f"{dataset.name} {settings.split}: {note}")
    dev = _dev(dataset, settings)

    def example(epoch: int, place: int) -> Group:
        groups.set_epoch(epoch)
        return groups[place]

    def batch(card: ModelCard, tokenizer: ModelTokenizer, chosen: Sequence[Group]) -> TokenBatch:
        known, held = groups.known_positives, settings.gradient_cache
        return make_batch(card, tokenizer, chosen, known, held)

    return TrainingData(
        dataset.name,
        "documents",
        "queries",
        len(groups),
        example,
        batch,
        dev.quality if dev else None,
        taught.widest() if taught else 0.0,
    )


def _groups(dataset: Dataset, settings: TrainSettings) -> Groups:
    """Return groups without scores of a teacher."""
    source = settings.negative_source
    if source == "auto":
        source = "given" if dataset.negatives(settings.split) else "random"
    return Groups(dataset, settings.split, settings.negatives, source, settings.seed)


def _taught(dataset: Dataset, settings: TrainSettings) -> ScoredGroups | None:
    """Return groups with the scores of a file, or else of the corpus; None without distillation."""
    if settings.distill == "none":
        return None
    path = settings.teacher_scores
    if path:
        say(f"Reading the scores of {path}")
    scores = read_scores(Path(path)) if path else dataset.scores(settings.split)
    return ScoredGroups(
        dataset,
        settings.split,
        settings.negatives,
        "given" if settings.negative_source == "given" else "scored",
        settings.seed,
        scores,
        path or settings.corpus,
    )


def _dev(dataset: Dataset, settings: TrainSettings) -> DevSet | None:
    if settings.evaluate_steps == 0:
        return None
    dev = dataset.canonical(settings.dev)
    if dev not in dataset.splits or dev == dataset.canonical(settings.split):
        say(f"{dataset.name} has no split {settings.dev!r}: the last checkpoint is kept.")
        return None
    return DevSet.of(dataset, settings)


def _of_sentences(sentences: Sentences, settings: TrainSettings) -> TrainingData:
    pairs = sentences.pairs
    if sentences.skipped:
        say(
            f"{counted(sentences.skipped, 'rows')} without a label, or of another split than "
            "train, left out"
        )
    if not sentences.scored:
        say(
            f"{sentences.name} holds texts without queries: each is its own positive, and titles "
            "are not read (unsupervised SimCSE)"
        )
    if settings.loss == "simcse" and sentences.scored:
        pairs = tuple(SentencePair(text, text, 1.0) for text in distinct(pairs)[0])

    def example(_: int, place: int) -> SentencePair:
        return pairs[place]

    def batch(
        card: ModelCard, tokenizer: ModelTokenizer, chosen: Sequence[SentencePair]
    ) -> TokenBatch:
        return make_pair_batch(card, tokenizer, chosen, settings.gradient_cache)

    kind: Kind = "scored pairs" if sentences.scored else "sentences"
    dev = _dev_pairs(settings)
    quality = dev.quality if dev else None
    unit = "pairs" if sentences.scored else "sentences"
    return TrainingData(sentences.name, kind, unit, len(pairs), example, batch, quality)


def _dev_pairs(settings: TrainSettings) -> DevPairs | None:
    """Open the scored pairs of the file that `dev` names."""
    if settings.evaluate_steps == 0:
        return None
    if not (is_hub(settings.dev) or Path(settings.dev.split(",")[0]).is_file()):
        say(f"dev = {settings.dev!r} is no file of scored pairs: the last checkpoint is kept.")
        return None
    dev = open_sentences(settings.dev)
    if dev.skipped:
        raise UserError(
            f"dev = {settings.dev} holds rows of several splits, and those of train are for "
            "training; copy its dev rows to a file of their own."
        )
    return DevPairs(dev)
