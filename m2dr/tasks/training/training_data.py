"""The data of a training: groups of a corpus or sentence pairs, their batches and the dev set."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from m2dr.core.errors import UserError, counted
from m2dr.core.files import json_sha256, sha256_of
from m2dr.core.progress import say
from m2dr.core.records import Cut, Document, Group, ModelCard, Query, SentencePair
from m2dr.core.settings import TrainSettings
from m2dr.data import irds
from m2dr.data.dataset import Dataset
from m2dr.data.sentences import Sentences, open_sentences, recognises_sentences
from m2dr.data.tables import is_hub
from m2dr.data.training_rows import Groups, ScoredGroups, documents_of, false_negatives, read_scores
from m2dr.evaluation.measures import Evaluator
from m2dr.evaluation.sentence_tasks import correlations, distinct_sentences, gold_scores
from m2dr.index.docids import Docids, encode_docids
from m2dr.index.exact import prefix_runs
from m2dr.model.backbones import backbone_of
from m2dr.model.embed import TextEncoder
from m2dr.model.encoder import DualEncoder
from m2dr.model.tokenizer import ModelTokenizer, tokenize
from m2dr.model.tokens import buckets, pad, split_by_length
from m2dr.tasks.corpus import open_corpus
from m2dr.tasks.query import document_layer
from m2dr.tasks.training.recipe import Kind
from m2dr.training.module import TokenBatch, TokenPart, all_gather_objects
from m2dr.training.objective import POSITIVE

# Texts are encoded in at most so many groups of like length: the first saves half of the tokens.
LENGTH_GROUPS = 4
# Multiply-adds of a layer that a gpu does while the kernels of one more pass over it are started.
STARTING = 5e10
MEASURE = "nDCG@10"  # of the dev queries


@dataclass(frozen=True)
class Quality:
    """A measure on dev."""

    measure: str
    count: int
    unit: str  # what is counted, in the plural
    of: Callable[[TextEncoder[DualEncoder]], dict[Cut, float]]  # of each trained cut
    digest: str  # of what it reads


def make_batch(
    card: ModelCard,
    tokenizer: ModelTokenizer,
    groups: Sequence[Group],
    barred: Mapping[str, frozenset[str]],
    tokens_at_once: int = 0,
    pass_tokens: int = 0,
) -> TokenBatch:
    """Return the tokens of the queries and documents of `groups`, and which pairs are no negatives.

    Args:
        card: prefixes and lengths.
        tokenizer: of the backbone.
        groups: the B groups of this process.
        barred: query id to the docids that are no negatives of it.
        tokens_at_once: of a part, with padding; 0: at most four parts, whatever their size.
        pass_tokens: what a pass over the backbone costs beside its work, in tokens.
    """
    rows = tokenize(card, tokenizer, [group.query.text for group in groups], "query")
    documents = [document.content for document in documents_of(groups)]
    rows += tokenize(card, tokenizer, documents, "document")
    texts = _parts(rows, tokenizer.pad_id, tokens_at_once, pass_tokens)
    shares = all_gather_objects([_brief(group) for group in groups])
    everyone = [group for share in shares for group in share]
    scores = [group.scores for group in everyone]
    teacher = np.array(scores, dtype=np.float32) if scores[0] else None
    return TokenBatch(texts, len(groups), false_negatives(everyone, barred), teacher=teacher)


def make_pair_batch(
    card: ModelCard,
    tokenizer: ModelTokenizer,
    pairs: Sequence[SentencePair],
    tokens_at_once: int = 0,
    pass_tokens: int = 0,
) -> TokenBatch:
    """Return the tokens of both sentences of `pairs`, their scores, and which are no negatives.

    A sentence that is alike to the first of a pair, or reads like it, is no negative of it.
    Args as `make_batch`; both sentences are encoded as documents are.
    """
    rows = tokenize(card, tokenizer, [pair.first for pair in pairs], "document")
    rows += tokenize(card, tokenizer, [pair.second for pair in pairs], "document")
    texts = _parts(rows, tokenizer.pad_id, tokens_at_once, pass_tokens)
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


def pass_tokens(encoder: DualEncoder) -> int:
    """Return what one more pass over an encoder costs beside its work, in tokens: 0 off a gpu."""
    if encoder.device.type != "cuda":
        return 0
    transformer = encoder.transformer
    layer = backbone_of(transformer.config).layers_of(transformer)[0]
    return round(STARTING / sum(weights.numel() for weights in layer.parameters()))


def _parts(
    rows: Sequence[list[int]], pad_id: int, tokens_at_once: int, pass_tokens: int
) -> list[TokenPart]:
    lengths = [len(row) for row in rows]
    if tokens_at_once:
        parts = buckets(lengths, tokens_at_once, longest_first=True)
    else:
        parts = split_by_length(lengths, LENGTH_GROUPS, pass_tokens)
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
class TrainingData:
    """The examples of a training, and the function that makes batches of them."""

    name: str
    kind: Kind
    unit: str  # what is counted, in the plural
    count: int
    example: Callable[[int, int], Any]  # of an epoch, at a place
    batch: Callable[..., TokenBatch]  # of a card, a tokenizer, examples and pass_tokens
    quality: Quality | None  # on the dev split
    negatives: str  # where they come from, in words
    digest: str  # of all that examples and dev are made of


def open_training_data(settings: TrainSettings) -> TrainingData:
    """Open the training data that the settings name.

    Raises:
        UserError: no such corpus or file.
    """
    if recognises_sentences(settings.corpus):
        sentences = open_sentences(settings.corpus, neutral=settings.neutral)
        return _of_sentences(sentences, settings)
    return _of_corpus(open_corpus(settings.corpus), settings)


def kind_of(settings: TrainSettings) -> Kind:
    """Return what the corpus of the settings holds; what is no file of sentences: documents."""
    if not recognises_sentences(settings.corpus):
        return "documents"
    return "scored pairs" if open_sentences(settings.corpus).scored else "sentences"


def _of_corpus(dataset: Dataset, settings: TrainSettings) -> TrainingData:
    split = settings.split
    groups: Groups
    if settings.distill == "none":
        source = settings.negative_source
        if source == "auto":
            source = "given" if dataset.negatives(split) else "random"
        groups = Groups(dataset, split, settings.negatives, source, settings.seed)
        origin = f"given by {dataset.name}"
        if source == "random":
            origin = f"drawn at random from {dataset.name}"
            origin += ", which gives none" * (settings.negative_source == "auto")
        elif groups.short:
            queries = counted(len(groups), "queries")
            origin += f"; {groups.short} of {queries} have fewer, filled up at random"
    else:
        origin = "scored by the teacher"
        path = settings.teacher_scores
        groups = scored = ScoredGroups(
            dataset,
            split,
            settings.negatives,
            "given" if settings.negative_source == "given" else "scored",
            settings.seed,
            read_scores(Path(path)) if path else dataset.scores(split),
            path or settings.corpus,
        )
        if scored.note:
            say(f"{dataset.name} {split}: {scored.note}")
    own = origin if settings.negatives else "(negatives = 0; given ones are not drawn)"
    negatives = f"other documents of the batch, and {settings.negatives or 'none'} per query {own}"

    def example(epoch: int, place: int) -> Group:
        groups.set_epoch(epoch)
        return groups[place]

    batch = partial(make_batch, barred=groups.barred, tokens_at_once=settings.gradient_cache)
    quality, count = _ranking_quality(dataset, settings), len(groups)
    digest = json_sha256([_read_of(dataset, settings), quality.digest if quality else ""])
    return TrainingData(
        dataset.name, "documents", "queries", count, example, batch, quality, negatives, digest
    )


def _read_of(dataset: Dataset, settings: TrainSettings) -> list[str]:
    """Return digests of all that groups are made of."""
    split, path = settings.split, settings.teacher_scores
    read: list[Iterable[object]] = [dataset.queries(split), dataset.judgements(split)]
    if settings.negatives:
        read.append(dataset.negatives(split).items())
    if settings.distill != "none":
        read.append([sha256_of(Path(path))] if path else dataset.scores(split))
    return [digest_of(dataset, settings.corpus), *map(_digest_of_all, read)]


def _digest_of_all(items: Iterable[object]) -> str:
    digest = blake2b()
    for item in items:  # tens of millions of ids, of which no second copy is made
        digest.update(repr(item).encode())
    return digest.hexdigest()


def digest_of(dataset: Dataset, name: str) -> str:
    """Return a digest of the documents of a dataset; those of ir_datasets never change."""
    if dataset.files or irds.recognises(name):
        return json_sha256([sha256_of(path) for path in dataset.files])
    return _digest_of_all((document.id, document.content) for document in dataset.documents())


def _ranking_quality(dataset: Dataset, settings: TrainSettings) -> Quality | None:
    """Draw a sample of the dev queries, the documents that answer them, and distractors."""
    if settings.evaluate_steps == 0:
        return None
    dev = dataset.canonical(settings.dev)
    if dev not in dataset.splits or dev == dataset.canonical(settings.split):
        say(f"{dataset.name} has no split {settings.dev!r}: the last checkpoint is kept.")
        return None
    generator = np.random.default_rng([settings.seed, 1])
    queries = dataset.queries(settings.dev)
    order = generator.permutation(len(queries))[: settings.dev_queries]
    queries = [queries[i] for i in sorted(order)]
    names = [query.id for query in queries]
    judgements = [j for j in dataset.judgements(settings.dev) if j.query_id in {*names}]
    relevant = list(dict.fromkeys(j.document_id for j in judgements if j.relevance > 0))
    there = (docid for docid in relevant if dataset.holds(docid))
    chosen = dict.fromkeys(islice(there, settings.dev_documents))
    others = [docid for docid in dataset.document_ids() if docid not in chosen]
    room = max(0, settings.dev_documents - len(chosen))
    picked = sorted(generator.permutation(len(others))[:room])
    docids = [*chosen, *(others[i] for i in picked)]
    texts = [dataset.document(docid).content for docid in docids]
    encoded, evaluator = Docids(encode_docids(docids)), Evaluator(judgements, [MEASURE])
    drop = {name: own for name in names if (own := dataset.own_document(name))}

    def quality(encoder: TextEncoder[DualEncoder]) -> dict[Cut, float]:
        """Return nDCG@10 of each trained cut, from one pass over the texts."""
        card = encoder.card
        layers = card.layers_trained
        sources = sorted({document_layer(card, layer) for layer in layers})
        documents = encoder.vectors(texts, "document", sources)
        asked = encoder.vectors([query.text for query in queries], "query", layers)
        measured: dict[Cut, float] = {}
        for layer, vectors in zip(layers, asked, strict=True):
            dims = [cut.dim for cut in card.cuts if cut.layer == layer]
            block = documents[sources.index(document_layer(card, layer))]
            runs = prefix_runs(names, vectors, block, encoded, dims, 10, card.similarity, drop=drop)
            for dim, run in runs.items():
                measured[Cut(layer, dim)] = evaluator.scores(run).mean[MEASURE]
        return measured

    digest = json_sha256([queries, judgements, docids, texts])
    return Quality(MEASURE, len(queries), "queries", quality, digest)


def _of_sentences(sentences: Sentences, settings: TrainSettings) -> TrainingData:
    pairs = sentences.pairs
    if settings.loss == "simcse" and sentences.scored:
        pairs = tuple(SentencePair(text, text, 1.0) for text in distinct_sentences(pairs)[0])

    kind: Kind = "scored pairs" if sentences.scored else "sentences"
    batch = partial(make_pair_batch, tokens_at_once=settings.gradient_cache)
    quality = _pairs_quality(settings)
    return TrainingData(
        sentences.name,
        kind,
        kind.removeprefix("scored "),
        len(pairs),
        lambda _, place: pairs[place],
        batch,
        quality,
        "other sentences of the batch",
        json_sha256([pairs, quality.digest if quality else ""]),
    )


def _pairs_quality(settings: TrainSettings) -> Quality | None:
    """Open the scored pairs of the file that `dev` names."""
    if settings.evaluate_steps == 0:
        return None
    if not (is_hub(settings.dev) or Path(settings.dev.split(",")[0]).is_file()):
        say(f"dev = {settings.dev!r} is no file of scored pairs: the last checkpoint is kept.")
        return None
    dev = open_sentences(settings.dev)
    if dev.skipped:
        raise UserError(f"dev = {settings.dev} holds rows of several splits; give only dev rows.")
    gold = gold_scores(dev.pairs, dev.name)
    texts, first, second = distinct_sentences(dev.pairs)

    def quality(encoder: TextEncoder[DualEncoder]) -> dict[Cut, float]:
        """Return Spearman of each trained cut, from one pass over the texts."""
        card, measured = encoder.card, dict[Cut, float]()
        vectors = encoder.vectors(texts, "document", card.layers_trained)
        for layer, block in zip(card.layers_trained, vectors, strict=True):
            dims = sorted(cut.dim for cut in card.cuts if cut.layer == layer)
            by_dim = correlations(block, first, second, gold, dims)
            measured |= {Cut(layer, dim): values["Spearman"] for dim, values in by_dim.items()}
        return measured

    return Quality("Spearman", len(dev.pairs), "pairs", quality, json_sha256(dev.pairs))
