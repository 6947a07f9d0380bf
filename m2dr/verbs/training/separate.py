"""`m2dr train --variant separate` with several cuts: one model for each, the bar for the others."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from m2dr.errors import Interrupted
from m2dr.model.card import CARD
from m2dr.model.checkpoint import read_card
from m2dr.model.places import RECORD, resume_command
from m2dr.records.cut import Cut
from m2dr.settings import TrainSettings
from m2dr.verbs.progress import is_first, processes_asked, say
from m2dr.verbs.training.material import kind_of
from m2dr.verbs.training.recipe import recipe_of
from m2dr.verbs.training.train import TrainReport, train
from m2dr.verbs.workplace import begin_many, clear, held


@dataclass(frozen=True)
class SeparateReport:
    """What a training of several models did."""

    trained: tuple[TrainReport, ...]  # now; those that were there already are not among them
    cuts: tuple[Cut, ...]
    folder: Path
    seconds: float


def cuts_asked(settings: TrainSettings) -> tuple[Cut, ...]:
    """Every layer with every dim; those not named are the whole of the backbone."""
    backbone = read_card(settings.backbone)
    layers, dims = settings.layers or (backbone.layers,), settings.dims or (backbone.width,)
    cuts = {backbone.check(Cut(layer, dim)) for layer in layers for dim in dims}
    return tuple(sorted(cuts))


def asks_for_many(settings: TrainSettings) -> bool:
    """Whether the settings name more than one model."""
    several = len(set(settings.layers)) > 1 or len(set(settings.dims)) > 1
    return settings.recipe().alone and several


def largest(settings: TrainSettings) -> TrainSettings:
    """Of several models the one that costs most, to explain or to try; else the settings as is."""
    return _alone(settings, cuts_asked(settings)[-1]) if asks_for_many(settings) else settings


def train_separately(
    settings: TrainSettings, folder: Path, resume: bool = False, overwrite: bool = False
) -> SeparateReport:
    """Train one model per cut, each in a folder of its own: `folder`/L2D32 and so on.

    Resuming passes over the cuts that are finished, and goes on inside the one that is not.

    Raises:
        UserError: anything a person can fix; all cuts are checked before the first is trained.
        Interrupted: Ctrl-C; finished models and the last checkpoint are in the folder.
    """
    begun = time.monotonic()
    cuts, kind = cuts_asked(settings), kind_of(settings)
    ones = {cut: _alone(settings, cut) for cut in cuts}
    for one in ones.values():
        recipe_of(one, kind)
    with held(folder):
        if is_first():
            begin_many(folder, settings, resume, overwrite)
        trained = list(_each(ones, folder))
        if is_first():
            clear(folder)
    return SeparateReport(tuple(trained), cuts, folder, time.monotonic() - begun)


def _each(ones: Mapping[Cut, TrainSettings], folder: Path) -> Iterator[TrainReport]:
    """Train those that are not trained yet."""
    for place, (cut, one) in enumerate(ones.items(), start=1):
        own = folder / str(cut)
        if (own / CARD).exists() and not (own / RECORD).exists():
            say(f"{cut}: trained already ({place} of {len(ones)})")
            continue
        say(f"{cut}: {place} of {len(ones)}")
        try:
            yield train(one, own, resume=(own / RECORD).exists())
        except Interrupted as stopped:
            hint = f"go on with: {resume_command('train', folder, processes_asked())}"
            raise Interrupted(f"{str(stopped).split(';')[0]} of {cut}; {hint}") from None


def _alone(settings: TrainSettings, cut: Cut) -> TrainSettings:
    return replace(settings, layers=(cut.layer,), dims=(cut.dim,))
