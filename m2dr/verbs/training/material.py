"""What a training reads: groups of a corpus, or pairs of sentences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m2dr.errors import UserError, counted
from m2dr.model.checkpoint import Tokenizer
from m2dr.model.encoder import Encoder
from m2dr.records.card import ModelCard
from m2dr.records.texts import Group, Pair
from m2dr.settings import TrainSettings
from m2dr.text.collection import Dataset
from m2dr.text.groups import Groups
from m2dr.text.sentences import Sentences, open_sentences, recognises_sentences
from m2dr.text.teacherfiles import read_scores
from m2dr.text.teachers import TaughtGroups
from m2dr.train.learner import Batch
from m2dr.verbs.corpora import open_corpus
from m2dr.verbs.progress import say
from m2dr.verbs.training.batches import make_batch, make_pair_batch
from m2dr.verbs.training.dev import DevPairs, DevSet
from m2dr.verbs.training.recipe import Kind


@dataclass(frozen=True)
class Material:
    """Examples of a training, and how to make batches of them."""

    name: str
    kind: Kind
    unit: str  # what is counted, in the plural
    count: int
    example: Callable[[int, int], Any]  # of an epoch, at a place
    batch: Callable[[ModelCard, Tokenizer, Sequence[Any]], Batch]
    quality: Callable[[Encoder, Tokenizer], float] | None  # on the dev split
    widest: float = 0.0  # margin between the scores that a teacher gave to documents of a query


def open_material(settings: TrainSettings) -> Material:
    """Open what the settings name.

    Raises:
        UserError: no such corpus or file.
    """
    if recognises_sentences(settings.corpus):
        return _of_sentences(open_sentences(settings.corpus), settings)
    return _of_corpus(open_corpus(settings.corpus), settings)


def refuse_few(settings: TrainSettings, material: Material) -> None:
    """Raise UserError unless there are as many examples as a batch holds."""
    if settings.batch_queries > material.count:
        raise UserError(
            f"batch_queries = {settings.batch_queries} was asked for; {material.name} has "
            f"{counted(material.count, material.unit)} to train on. Ask for fewer."
        )


def kind_of(settings: TrainSettings) -> Kind:
    """What the corpus of the settings holds; a file that is not there counts as documents."""
    if not recognises_sentences(settings.corpus):
        return "documents"
    return "scored pairs" if open_sentences(settings.corpus).scored else "sentences"


def _of_corpus(dataset: Dataset, settings: TrainSettings) -> Material:
    taught = _taught(dataset, settings)
    groups = taught or _groups(dataset, settings)
    for note in (groups.answered.note, taught.note if taught else ""):
        if note:
            say(f"{dataset.name} {settings.split}: {note}")
    dev = _dev(dataset, settings)

    def example(epoch: int, place: int) -> Group:
        groups.set_epoch(epoch)
        return groups[place]

    def batch(card: ModelCard, tokenizer: Tokenizer, chosen: Sequence[Group]) -> Batch:
        known, held = groups.known_positives, settings.gradient_cache
        return make_batch(card, tokenizer, chosen, known, held)

    return Material(
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
    """Return groups that no teacher scored."""
    source = settings.negative_source
    if source == "auto":
        source = "given" if dataset.negatives(settings.split) else "random"
    return Groups(dataset, settings.split, settings.negatives, source, settings.seed)


def _taught(dataset: Dataset, settings: TrainSettings) -> TaughtGroups | None:
    """Return groups with the scores of a file, or else of the corpus; None without distillation."""
    if settings.distill == "none":
        return None
    path = settings.teacher_scores
    if path:
        say(f"Reading the scores of {path}")
    scores = read_scores(Path(path)) if path else dataset.scores(settings.split)
    return TaughtGroups(
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
    if settings.dev not in dataset.splits or settings.dev == settings.split:
        say(f"{dataset.name} has no split {settings.dev!r}: the last checkpoint is kept.")
        return None
    return DevSet.of(dataset, settings)


def _of_sentences(sentences: Sentences, settings: TrainSettings) -> Material:
    pairs = sentences.pairs
    if sentences.skipped:
        say(
            f"{counted(sentences.skipped, 'rows')} without a label, or of another split than "
            "train, left out"
        )
    if settings.loss == "simcse" and sentences.scored:
        pairs = tuple(Pair(text, text, 1.0) for text in _texts(pairs))

    def example(_: int, place: int) -> Pair:
        return pairs[place]

    def batch(card: ModelCard, tokenizer: Tokenizer, chosen: Sequence[Pair]) -> Batch:
        return make_pair_batch(card, tokenizer, chosen, settings.gradient_cache)

    kind: Kind = "scored pairs" if sentences.scored else "sentences"
    dev = _dev_pairs(settings)
    quality = dev.quality if dev else None
    unit = "pairs" if sentences.scored else "sentences"
    return Material(sentences.name, kind, unit, len(pairs), example, batch, quality)


def _texts(pairs: Sequence[Pair]) -> list[str]:
    """Every sentence of some pairs, once."""
    return list(dict.fromkeys(text for pair in pairs for text in (pair.first, pair.second)))


def _dev_pairs(settings: TrainSettings) -> DevPairs | None:
    """Of sentences, `dev` names another file."""
    if settings.evaluate_steps == 0:
        return None
    if not Path(settings.dev.split(",")[0]).is_file():
        say(f"dev = {settings.dev!r} is no file of scored pairs: the last checkpoint is kept.")
        return None
    dev = open_sentences(settings.dev)
    if dev.skipped:
        raise UserError(
            f"dev = {settings.dev} holds rows of several splits, and those of train are for "
            "training; copy its dev rows to a file of their own."
        )
    return DevPairs(dev)
