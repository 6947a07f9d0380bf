"""`m2dr fit`: exits for every layer of an encoder that stays as it is, by least squares."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import numpy as np

from m2dr.errors import UserError, counted
from m2dr.model import checkpoint
from m2dr.model.checkpoint import Tokenizer
from m2dr.model.devices import choose_dtype, choose_training_device
from m2dr.model.encoder import Encoder
from m2dr.model.fitted import TokenFeatures
from m2dr.model.meeting import Meeting
from m2dr.model.places import CHECKPOINTS
from m2dr.records.card import ModelCard
from m2dr.settings import FitSettings
from m2dr.text.ragged import Ragged
from m2dr.train.fit import Moments
from m2dr.verbs.fitting.reading import count_tokens, read_features, read_texts, rows_of
from m2dr.verbs.fitting.solving import fitted_cuts, give_fit, heads_of, record_of
from m2dr.verbs.fitting.sums import WINDOW, Sums
from m2dr.verbs.fitting.texts import FitTexts, fit_texts
from m2dr.verbs.progress import is_first, processes_asked, progress, say
from m2dr.verbs.workplace import clear, held, open_workplace

FITTED = "fitted"  # the variant of a fitted backbone that was never trained
MOST = 65536  # texts that are read at most where no number was asked for
FIRST = 2048  # texts after which it is asked for the first time whether more are needed
ENOUGH = 0.002  # of the mean held-out cosine: a doubling that gains less is the last
COUNTED = 16384  # texts whose tokens are counted, to know which are rare
SAVE_EVERY = 30.0  # seconds of work that an interruption can cost


@dataclass(frozen=True)
class FitReport:
    """What a fit did."""

    folder: Path
    card: ModelCard
    texts: int
    cosines: tuple[float | None, ...]  # held out, of layers 0 to L - 1
    seconds: float


def fit(
    settings: FitSettings, folder: Path, resume: bool = False, overwrite: bool = False
) -> FitReport:
    """Fit exits as `settings` say, and write the model's folder.

    Raises:
        UserError: anything a person can fix, before the first text where it can be known.
        Interrupted: Ctrl-C; what was read until the last save is in the folder.
    """
    begun = time.monotonic()
    device = choose_training_device(settings.device)
    texts = fit_texts(settings.corpus, settings.texts or MOST, settings.seed)
    if len(texts) < settings.texts:
        say(f"{settings.texts} texts were asked for, and {settings.corpus} has {len(texts)}.")
    encoder, tokenizer = checkpoint.load(settings.backbone)
    encoder.fitted = None
    if encoder.card.fit:
        before = encoder.card.fit
        say(
            f"{settings.backbone} was fitted before, on {counted(before.texts, 'texts')} of "
            f"{', '.join(before.corpora)}: its exits and its table of layer 0 are fitted anew, and "
            "what the full model finds stays."
        )
    dtype = choose_dtype(settings.dtype, device)
    meeting = Meeting() if processes_asked() > 1 else None
    with held(folder):
        if is_first():
            open_workplace(folder, settings, resume, overwrite)
        runner = checkpoint.load(settings.backbone, None, device, dtype)[0]
        runner.fitted = None
        work = _Work(settings, folder, texts, runner, tokenizer, meeting)
        sums, features = work.run()
        card = encoder.card
        if is_first():
            card = _write(encoder, tokenizer, sums, features, settings, texts, folder)
            clear(folder)
        if meeting:
            meeting.all_here("fitted")
    cosines = card.fit.cosines if card.fit else ()
    return FitReport(folder, card, sums.texts, cosines, time.monotonic() - begun)


class _Work:
    """Reads the texts of a fit, goes on where an earlier one stopped, and saves now and then."""

    def __init__(
        self,
        settings: FitSettings,
        folder: Path,
        texts: FitTexts,
        encoder: Encoder,
        tokenizer: Tokenizer,
        meeting: Meeting | None,
    ) -> None:
        self._settings, self._texts = settings, texts
        self._encoder, self._tokenizer = encoder, tokenizer
        self._meeting = meeting
        self._rank: int = meeting.rank if meeting else 0
        self._ranks: int = meeting.size if meeting else 1
        self._cosine = -inf  # held out, after the round before
        self._places = [
            folder / CHECKPOINTS / f"checkpoint-{rank}.npz" for rank in range(self._ranks)
        ]

    def run(self) -> tuple[Sums, TokenFeatures]:
        """Return the sums over all texts that were needed; another rank's are its own alone."""
        say(f"Fitting {self._settings.backbone} on {counted(len(self._texts), 'texts')} at most")
        features = self._features()
        mine = self._begin()
        for number, windows in enumerate(self._rounds()):
            self._read(windows, mine, features)
            together = self._together(number, mine)
            if self._is_last(number, windows, together):
                return together or mine, features
        return mine, features

    def _features(self) -> TokenFeatures:
        first = self._texts.read(0, min(COUNTED, len(self._texts)))
        rows = rows_of(self._encoder.card, self._tokenizer, first, self._settings.length)
        counts = count_tokens(Ragged.of(rows), len(self._encoder.words))
        ids = len(self._tokenizer.ordinary_ids())
        with progress("Reading the vocabulary", ids, "tokens") as advance:
            return read_features(
                self._encoder, self._tokenizer, counts, self._settings.identity, advance
            )

    def _begin(self) -> Sums:
        """What this process has read before, or nothing."""
        wide = self._settings.inputs == "all-layers"
        layers, place = self._encoder.blocks - 1, self._places[self._rank]
        return Sums.read(place, layers, wide) if place.exists() else Sums(Moments(layers, wide))

    def _rounds(self) -> Iterator[range]:
        """The windows of each round: after it, the exits are good enough or more is read."""
        last, done = -(-len(self._texts) // WINDOW), 0
        until = last if self._settings.texts else FIRST // WINDOW
        while done < last:
            yield range(done, min(until, last))
            done, until = until, 2 * until

    def _read(self, windows: range, sums: Sums, features: TokenFeatures) -> None:
        """Add this process's share of some windows."""
        mine = [w for w in windows if w % self._ranks == self._rank and w not in sums.windows]
        total = min(windows.stop * WINDOW, len(self._texts)) - windows.start * WINDOW
        saved = time.monotonic()
        with progress("Reading", len(mine) * WINDOW if self._ranks > 1 else total, "texts") as told:
            for window in mine:
                texts = self._texts.read(window * WINDOW, (window + 1) * WINDOW)
                draw = np.random.default_rng([self._settings.seed, window])
                models, length = (self._encoder, self._tokenizer), self._settings.length
                found = read_texts(*models, features, texts, length, draw, told)
                try:
                    sums.add(window, *found)
                except ValueError as error:
                    raise UserError(
                        f"{self._settings.backbone} cannot be fitted: {error} for a text of "
                        f"{self._settings.corpus}. Its weights are damaged; get the model again."
                    ) from error
                if time.monotonic() - saved > SAVE_EVERY:
                    sums.write(self._places[self._rank])
                    saved = time.monotonic()
        if self._ranks > 1 or mine:
            sums.write(self._places[self._rank])

    def _together(self, number: int, mine: Sums) -> Sums | None:
        """The sums of all processes, for the first one; None for the others."""
        if self._meeting is None:
            return mine
        self._meeting.all_here(f"round-{number}")
        if self._rank:
            return None
        wide = self._settings.inputs == "all-layers"
        whole = Sums(Moments(self._encoder.blocks - 1, wide))
        for place in self._places:
            whole.merge(Sums.read(place, whole.moments.layers, wide))
        return whole

    def _is_last(self, number: int, windows: range, together: Sums | None) -> bool:
        """Whether no more texts are needed; the first process decides."""
        if windows.stop * WINDOW >= len(self._texts):
            return True
        enough = False
        if together is not None:
            found = _mean_cosine(together, self._settings)
            enough, self._cosine = found - self._cosine < ENOUGH, found
        if self._meeting is None:
            return enough
        return self._meeting.agree(f"enough-{number}", str(enough)) == str(True)


def _mean_cosine(sums: Sums, settings: FitSettings) -> float:
    heads = heads_of(sums, settings.inputs, settings.ridge)
    return sum(head.cosine or 0.0 for head in heads) / len(heads)


def _write(
    encoder: Encoder,
    tokenizer: Tokenizer,
    sums: Sums,
    features: TokenFeatures,
    settings: FitSettings,
    texts: FitTexts,
    folder: Path,
) -> ModelCard:
    """Solve, rotate, and write the folder."""
    card = encoder.card
    heads = heads_of(sums, settings.inputs, settings.ridge)
    fewest = len(sums.moments.targets(0))
    if sums.moments.count < fewest:
        say(
            f"{counted(sums.moments.count, 'texts and snippets')} were read for {fewest} inputs of "
            "an exit: the ridge decides what they leave open; more texts give better exits."
        )
    how = settings.rotation, settings.inputs, settings.identity
    record = record_of(heads, texts.names, sums.texts, sums.snippets, *how)
    give_fit(encoder, features.cpu(), heads, sums.embeddings(), record, settings.seed)
    untrained = not card.is_trained
    return checkpoint.save(
        encoder,
        tokenizer,
        replace(
            card,
            backbone=settings.backbone if untrained else card.backbone,
            variant=FITTED if untrained else card.variant,
            cuts=fitted_cuts(card),
            documents=settings.documents,
            exported_from="",
            fit=record,
            fingerprint="",
        ),
        folder,
    )
