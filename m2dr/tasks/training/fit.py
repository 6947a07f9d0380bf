"""`m2dr fit`: words and exits for every layer of an unchanged encoder, by least squares.

Shapes: L layers, N texts, n spans, P dims of a pooled state, W dims of the embedding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from m2dr.core.errors import UserError, counted
from m2dr.core.progress import say
from m2dr.core.records import ModelCard, Side
from m2dr.core.report import Report, timed
from m2dr.core.settings import FitSettings
from m2dr.data.sentences import is_plain_text, open_sentences, recognises_sentences
from m2dr.data.tables import DistinctLines, name_of
from m2dr.evaluation.sentence_tasks import distinct_sentences
from m2dr.maps.files import FEWEST_DOCUMENTS
from m2dr.maps.fit import FitTexts, drop_exits, fit_maps
from m2dr.maps.log import read_log
from m2dr.model import checkpoint
from m2dr.model.devices import choose_training_device
from m2dr.model.hub import revision_of
from m2dr.tasks.corpus import open_corpus
from m2dr.tasks.models import fitted_cuts
from m2dr.tasks.training.run_folder import begin, clear, held, open_backbone

FITTED = "fitted"  # the variant of a fitted backbone that was never trained
MOST_TEXTS = 20_000  # texts whose states are read; more hardly help, and cost time and memory
QUERY_SPLIT = "train"  # the split whose queries are read


@dataclass(frozen=True)
class FitReport(Report):
    """The result of a fit."""

    folder: Path
    card: ModelCard
    texts: int
    cosines: tuple[float | None, ...]  # held out, of layers 1 to L - 1

    def __str__(self) -> str:
        cosines = ", ".join("-" if cosine is None else f"{cosine:.3f}" for cosine in self.cosines)
        return (
            f"{counted(self.texts, 'texts')} in {self.seconds:,.0f} s, cosines of layers 1 to "
            f"{self.card.layers - 1} with the full model on held-out texts: {cosines}; "
            f"{self.folder}"
        )


@timed
def fit(settings: FitSettings, folder: Path, overwrite: bool = False) -> FitReport:
    """Fit exits as `settings` say, and write the model's folder.

    Raises:
        UserError: anything a person can fix, before the first text where it can be known.
    """
    backbone = open_backbone(settings, folder)
    device = choose_training_device(settings.device)
    texts = fit_texts(settings.corpus, settings.texts or MOST_TEXTS, settings.seed)
    queries = read_log(Path(settings.queries) if settings.queries else None, settings.query_weight)
    loaded = checkpoint.load(backbone)
    runner = checkpoint.load(backbone, None, device, settings.dtype)
    for each in (loaded, runner):
        drop_exits(each.runtime)
    with held(folder):
        begin(folder, settings, resume=False, overwrite=overwrite)
        say(f"Fitting {settings.backbone} on {counted(len(texts.texts), 'texts', ',')}")
        if len(texts.texts) < FEWEST_DOCUMENTS:
            say(f"Warning: an index of fewer than {FEWEST_DOCUMENTS} documents gets no exits.")
        record = fit_maps(
            runner, texts, settings.seed, settings.rotation,
            settings.length, settings.language, queries=queries, query_weight=settings.query_weight,
        )  # fmt: skip
        encoder = loaded.runtime
        encoder.fitted, encoder.behind = runner.runtime.fitted, runner.runtime.behind
        encoder.to("cpu")
        card = encoder.card
        if not card.is_trained:
            revision = revision_of(backbone.folder)
            card = replace(card, backbone=settings.backbone, revision=revision, variant=FITTED)
        card = replace(
            card,
            cuts=fitted_cuts(card),
            documents="last",
            exported_from="",
            exits="",
            fit=record,
            fingerprint="",
        )
        card = checkpoint.save(*loaded, card, folder)
        clear(folder)
    return FitReport(folder, card, record.texts, record.cosines, files=(folder,))


@dataclass(frozen=True)
class _Source:
    """Texts of one kind of one corpus."""

    corpus: int  # its number
    side: Side
    count: int
    at: Callable[[int], str]


def fit_texts(corpora: str, most: int, seed: int, split: str = QUERY_SPLIT) -> FitTexts:
    """Choose the texts of a fit.

    Corpora share the number evenly, and in each of them queries and documents do; what one lacks
    is given to the others.

    Args:
        corpora: what each is called, joined by commas; files of sentences too.
        most: how many texts.
        seed: of the choice and the order.
        split: whose queries are read, where a corpus has it; never one of a test set.

    Raises:
        UserError: no such corpus, or one without a text.
    """
    given = [part.strip() for part in corpora.split(",") if part.strip()]
    words = [corpora] if Path(corpora).exists() else list(dict.fromkeys(given))
    if not words:
        raise UserError("A fit needs texts: name a corpus, such as pydocs or a .txt file.")
    names, sources = [], []
    for number, word in enumerate(words):
        name, found = _sources_of(number, word, split)
        names.append(name)
        sources += [source for source in found if source.count]
    if not sources:
        raise UserError(f"{corpora} holds no text to fit.")
    draw = np.random.default_rng(seed)
    shares = _shares(sources, most)
    rows = [
        np.stack([np.full(share, number), draw.choice(source.count, share, replace=False)], axis=1)
        for number, (source, share) in enumerate(zip(sources, shares, strict=True))
    ]
    order = draw.permutation(np.concatenate(rows)).tolist()
    return FitTexts(tuple(names), [(sources[n].side, sources[n].at(row)) for n, row in order])


def _sources_of(number: int, word: str, split: str) -> tuple[str, list[_Source]]:
    if is_plain_text(path := Path(word)):
        lines = DistinctLines(path)  # a file of any length: none of its texts is kept
        return name_of(path), [_Source(number, "document", len(lines), lines.__getitem__)]
    if recognises_sentences(word, documents=True):
        sentences = open_sentences(word)
        texts = distinct_sentences(sentences.pairs)[0]
        return sentences.name, [_Source(number, "document", len(texts), texts.__getitem__)]
    dataset = open_corpus(word)
    documents = _Source(
        number, "document", dataset.document_count, lambda row: dataset.document_at(row).content
    )
    queries = dataset.queries(split) if dataset.canonical(split) in dataset.splits else []
    return dataset.name, [
        documents,
        _Source(number, "query", len(queries), lambda row: queries[row].text),
    ]


def _shares(sources: Sequence[_Source], most: int) -> list[int]:
    """Divide `most` texts evenly among the corpora, and among the kinds of texts of each.

    Smallest first, each takes what is its due, and what it lacks goes to the larger ones.
    """
    kinds = [[s.count for s in some] for _, some in groupby(sources, lambda s: s.corpus)]
    of_corpora = _even([sum(counts) for counts in kinds], most)
    return [
        part
        for counts, share in zip(kinds, of_corpora, strict=True)
        for part in _even(counts, share)
    ]


def _even(counts: Sequence[int], most: int) -> list[int]:
    """Return how many of each are taken, evenly, at most `most` in all.

    >>> _even([10, 2, 50], 30)
    [10, 2, 18]
    """
    found = [0] * len(counts)
    left = most
    smallest_first = sorted(range(len(counts)), key=lambda number: counts[number])
    for done, number in enumerate(smallest_first):
        found[number] = min(counts[number], left // (len(counts) - done))
        left -= found[number]
    return found
