"""`m2dr fit`: fit an exit to every layer of an unchanged encoder by least squares."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from m2dr.core.errors import Interrupted, UserError, counted
from m2dr.core.files import return_free_memory
from m2dr.core.progress import is_main_process, process_count, progress, say
from m2dr.core.records import ModelCard, Side
from m2dr.core.trainings import FitSettings
from m2dr.data.tokens import Ragged
from m2dr.model import checkpoint
from m2dr.model.devices import choose_dtype, choose_training_device
from m2dr.model.distributed import RankGroup
from m2dr.model.encoder import Encoder
from m2dr.model.hub import CHECKPOINTS, find_folder, resume_command, revision_of
from m2dr.model.token_features import TokenFeatures
from m2dr.model.tokenizer import ModelTokenizer
from m2dr.tasks.encoder import at_revision, fitted_cuts
from m2dr.tasks.fit_heads import (
    WINDOW,
    Rounds,
    Sums,
    give_fit,
    heads_of,
    record_of,
)
from m2dr.tasks.fit_texts import (
    FitTexts,
    count_tokens,
    drop_exits,
    fit_texts,
    read_features,
    read_texts,
    rows_of,
)
from m2dr.tasks.run_folder import (
    asked_to_stop,
    begin_command,
    clear,
    held,
    open_run_folder,
    refuse_cut,
    refuse_own_folder,
)
from m2dr.train.linear_fit import DEFAULT_RIDGE, RIDGES, FittedHead, Moments

FITTED = "fitted"  # the variant of a fitted backbone that was never trained
MOST = 65536  # texts that are read at most where no number was asked for
FIRST = 2048  # texts after which it is asked for the first time whether more are needed
ENOUGH = 0.002  # of the mean held-out cosine: a doubling that gains less is the last
COUNTED = 16384  # texts whose tokens are counted, to know which are rare
SAVE_EVERY = 30.0  # seconds of work that an interruption can cost
ROUNDS = "rounds.json"  # among the checkpoints: what the fit is of, and what was decided
_REFUSED = "refused"


@dataclass(frozen=True)
class FitReport:
    """The result of a fit."""

    folder: Path
    card: ModelCard
    texts: int
    cosines: tuple[float | None, ...]  # held out, of layers 0 to L - 1
    seconds: float


@at_revision
def fit(
    settings: FitSettings, folder: Path, resume: bool = False, overwrite: bool = False
) -> FitReport:
    """Fit exits as `settings` say, and write the model's folder.

    Raises:
        UserError: anything a person can fix, before the first text where it can be known.
        Interrupted: Ctrl-C; what was read until the last save is in the folder.
    """
    begun = time.monotonic()
    refuse_own_folder("fit", settings, folder, FITTED)
    refuse_cut("fit", settings, folder)
    device = choose_training_device(settings.device)
    texts = fit_texts(settings.corpus, settings.texts or MOST, settings.seed)
    if len(texts) < settings.texts:
        say(f"{settings.texts} texts were asked for, and {settings.corpus} has {len(texts)}.")
    encoder, tokenizer = checkpoint.load(settings.backbone)
    if encoder.card.fit:
        before = encoder.card.fit
        say(
            f"{settings.backbone} was fitted before, on {counted(before.texts, 'texts')} of "
            f"{', '.join(before.corpora)}: its exits and its table of layer 0 are fitted anew, and "
            "what the full model finds stays."
        )
    dtype = choose_dtype(settings.dtype, device)
    runner = checkpoint.load(settings.backbone, None, device, dtype)[0]
    for each in (encoder, runner):
        drop_exits(each)
    rounds = Rounds(_of(runner, texts))
    group = RankGroup() if process_count() > 1 else None
    with _begun(settings, folder, rounds, resume, overwrite, group) as rounds:
        work = _Work(settings, folder, texts, runner, tokenizer, group, rounds)
        with work.kept_when_stopped():
            sums, features = work.run()
            card = encoder.card
            if is_main_process():
                card = _write(encoder, tokenizer, sums, features, settings, texts, folder)
                clear(folder)
            if group:
                group.barrier("fitted")
    cosines = card.fit.cosines if card.fit else ()
    return FitReport(folder, card, sums.texts, cosines, time.monotonic() - begun)


def _of(encoder: Encoder, texts: FitTexts) -> dict[str, str]:
    """Return digests of the weights and texts that a fit depends on."""
    digest = sha256(texts.order.tobytes())
    for part in (*texts.names, *(word for text in _first(texts) for word in text)):
        data = part.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    dtype = str(encoder.words.dtype).removeprefix("torch.")
    return {"weights": encoder.card.fingerprint, "texts": digest.hexdigest(), "dtype": dtype}


def _first(texts: FitTexts) -> list[tuple[Side, str]]:
    return texts.read(0, min(COUNTED, len(texts)))


@contextmanager
def _begun(
    settings: FitSettings,
    folder: Path,
    rounds: Rounds,
    resume: bool,
    overwrite: bool,
    group: RankGroup | None,
) -> Iterator[Rounds]:
    """Lock the folder; the first process opens it before the others read it."""
    with ExitStack() as stack:
        told = ""
        try:
            stack.enter_context(held(folder))
            if is_main_process():
                open_run_folder(folder, settings, resume, overwrite)
                rounds = _rounds_so_far(settings, folder, rounds)
        except BaseException:
            if group and is_main_process():
                group.put("begun", _REFUSED)
            raise
        if group:
            told = group.broadcast("begun", rounds.text())
        if told == _REFUSED:
            raise UserError("The first process could not begin the fit; mend what it says.")
        yield Rounds.of_text(told) if told else rounds


def _rounds_so_far(settings: FitSettings, folder: Path, rounds: Rounds) -> Rounds:
    """Return the rounds that an earlier run of the same fit recorded, or those given.

    Raises:
        UserError: the earlier one was of other texts, weights or numbers.
    """
    path = folder / CHECKPOINTS / ROUNDS
    if not any(path.parent.glob("checkpoint-*")):  # nothing was read yet
        rounds.write(path)
        return rounds
    again = begin_command("fit", settings, folder, overwrite=True)
    found = Rounds.read(path)
    other = [name for name, value in rounds.of.items() if found.of.get(name) != value]
    if other:
        raise UserError(
            f"--resume: {' and '.join(other)} differ from those that the fit in {folder} was begun "
            f"with; begin again with: {again}"
        )
    return found


class _Work:
    """The texts of a fit, read from where an earlier run stopped, and saved regularly."""

    def __init__(
        self,
        settings: FitSettings,
        folder: Path,
        texts: FitTexts,
        encoder: Encoder,
        tokenizer: ModelTokenizer,
        group: RankGroup | None,
        rounds: Rounds,
    ) -> None:
        self._settings, self._texts = settings, texts
        self._encoder, self._tokenizer = encoder, tokenizer
        self._group = group
        self._rank: int = group.rank if group else 0
        self._ranks: int = group.size if group else 1
        self._decided = rounds
        self._path = folder / CHECKPOINTS / ROUNDS
        self._folder = folder
        self._mine: Sums | None = None  # what this process has read
        self._adding = False  # a window, of which a part may be in
        self._places = [
            folder / CHECKPOINTS / f"checkpoint-{rank}.npz" for rank in range(self._ranks)
        ]

    def run(self) -> tuple[Sums, TokenFeatures]:
        """Return the sums over all texts that were needed; other ranks return their own part."""
        say(f"Fitting {self._settings.backbone} on {counted(len(self._texts), 'texts')} at most")
        features = self._features()
        mine = self._mine = self._begin()
        for number, windows in enumerate(self._rounds()):
            self._read(windows, mine, features)
            last = self._is_last(number, windows)
            if last is False:  # as an earlier run decided
                continue
            together = self._together(number, mine)
            if last or self._is_enough(number, windows, together):
                return together or mine, features
        return mine, features

    @contextmanager
    def kept_when_stopped(self) -> Iterator[None]:
        """Save what was read when the fit is interrupted, and say how to resume."""
        try:
            with asked_to_stop():
                yield
        except KeyboardInterrupt:
            if self._mine and not self._adding and self._path.parent.exists():
                self._mine.write(self._places[self._rank])
            ends = [(w + 1) * WINDOW for w in (self._mine.windows if self._mine else ())]
            read = sum(WINDOW - max(end - len(self._texts), 0) for end in ends)
            go_on = resume_command("fit", self._folder, self._ranks)
            raise Interrupted(
                f"Fitting stopped after {counted(read, 'texts')}; go on with: {go_on}"
            ) from None

    def _features(self) -> TokenFeatures:
        first = _first(self._texts)
        card, counts = self._encoder.card, np.zeros(len(self._encoder.words), np.int64)
        for start in range(0, len(first), WINDOW):  # a tokenizer needs kilobytes per text
            part = first[start : start + WINDOW]
            rows = rows_of(card, self._tokenizer, part, self._settings.length)
            counts += count_tokens(Ragged.of(rows), len(counts))
        ids = len(self._tokenizer.ordinary_ids())
        with progress("Reading the vocabulary", ids, "tokens") as advance:
            return read_features(
                self._encoder, self._tokenizer, counts, self._settings.identity, advance
            )

    def _begin(self) -> Sums:
        """Return what this process has read before, or nothing."""
        place = self._places[self._rank]
        return self._read_sums(place) if place.exists() else self._no_sums()

    def _no_sums(self) -> Sums:
        return Sums(Moments(self._encoder.layers - 1, self._settings.inputs == "all-layers"))

    def _read_sums(self, place: Path) -> Sums:
        moments = self._no_sums().moments
        return Sums.read(place, moments.layers, moments.wide)

    def _rounds(self) -> Iterator[range]:
        """Yield the windows of each round; after a round either more is read or the fit ends."""
        last, done = -(-len(self._texts) // WINDOW), 0
        until = last if self._settings.texts else FIRST // WINDOW
        while done < last:
            yield range(done, min(until, last))
            done, until = until, 2 * until

    def _read(self, windows: range, sums: Sums, features: TokenFeatures) -> None:
        """Read this process's share of some windows, and add it to the sums."""
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
                    self._adding = True
                    sums.add(window, *found)
                    self._adding = False
                except ValueError as error:
                    raise UserError(
                        f"{self._settings.backbone} cannot be fitted: {error} for a text of "
                        f"{self._settings.corpus}. Its weights are damaged; get the model again."
                    ) from error
                return_free_memory()
                if time.monotonic() - saved > SAVE_EVERY:
                    sums.write(self._places[self._rank])
                    saved = time.monotonic()
        if self._ranks > 1 or mine:
            sums.write(self._places[self._rank])

    def _together(self, number: int, mine: Sums) -> Sums | None:
        """Return the sums of all processes to the first one, None to the others."""
        if self._group is None:
            return mine
        self._group.barrier(f"round-{number}")
        if self._rank:
            return None
        whole = self._no_sums()
        for place in self._places:
            whole.merge(self._read_sums(place))
        return whole

    def _is_last(self, number: int, windows: range) -> bool | None:
        """Return whether this round is the last one, or None if that is still open."""
        if windows.stop * WINDOW >= len(self._texts):
            return True
        if number >= self._decided.judged:
            return None
        return self._decided.enough and number == self._decided.judged - 1

    def _is_enough(self, number: int, windows: range, together: Sums | None) -> bool:
        """Return whether this round gained too little for another one; the first process decides.

        Both rounds are judged on the texts that the earlier one held out: later ones may be easier.
        """
        if together is not None:
            cosine = gained = self._cosine(together)
            earlier = {w: found for w, found in together.held_out.items() if w < windows.start}
            if 0 < len(earlier) < len(together.held_out):
                gained = self._cosine(replace(together, held_out=earlier))
            before = self._decided.cosine
            enough = before is not None and gained - before < ENOUGH
            self._decided = Rounds(self._decided.of, number + 1, cosine, enough)
            self._decided.write(self._path)
        if self._group is None:
            return self._decided.enough
        told = self._group.broadcast(f"enough-{number}", str(self._decided.enough))
        return told == str(True)

    def _cosine(self, sums: Sums) -> float:
        heads = _heads(sums, self._settings, self._folder)
        return sum(head.cosine or 0.0 for head in heads) / len(heads)


def _heads(sums: Sums, settings: FitSettings, folder: Path) -> list[FittedHead]:
    try:
        return heads_of(sums, settings.inputs, settings.ridge)
    except ValueError as error:
        larger = max(DEFAULT_RIDGE, 10 * (settings.ridge or max(RIDGES)))
        line = begin_command("fit", replace(settings, ridge=larger), folder, overwrite=True)
        raise UserError(
            f"Exits of {settings.backbone} cannot be fitted: {error}; begin again with a larger "
            f"one: {line}"
        ) from error


def _write(
    encoder: Encoder,
    tokenizer: ModelTokenizer,
    sums: Sums,
    features: TokenFeatures,
    settings: FitSettings,
    texts: FitTexts,
    folder: Path,
) -> ModelCard:
    """Solve the regressions, rotate, and write the folder."""
    card = encoder.card
    heads = _heads(sums, settings, folder)
    fewest = len(sums.moments.targets(0))
    if sums.moments.count < fewest:
        say(
            f"{counted(sums.moments.count, 'texts')}, snippets included, for {fewest} inputs of an "
            "exit: the ridge decides what they leave open; more texts give better exits."
        )
    how = settings.rotation, settings.inputs, settings.identity
    record = record_of(heads, texts.names, sums.texts, sums.snippets, *how)
    give_fit(encoder, features.cpu(), heads, sums.embeddings(), record, settings.seed)
    untrained = not card.is_trained
    own_revision = revision_of(find_folder(settings.backbone))
    return checkpoint.save(
        encoder,
        tokenizer,
        replace(
            card,
            backbone=settings.backbone if untrained else card.backbone,
            revision=own_revision if untrained else card.revision,
            variant=FITTED if untrained else card.variant,
            cuts=fitted_cuts(card),
            documents=settings.documents,
            exported_from="",
            fit=record,
            fingerprint="",
        ),
        folder,
    )
