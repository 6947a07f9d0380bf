"""The folder of a training while it runs: its settings, its checkpoints, what it may overwrite."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from m2dr.errors import UserError
from m2dr.model.places import CARD, CHECKPOINTS
from m2dr.settings import TrainSettings, read_train_settings
from m2dr.verbs.models import MODELS

RECORD = "training.json"
LOGS = "tensorboard"
BYTES_PER_PARAMETER = 12 * 3 + 8  # fp32 weights and two moments, in three checkpoints; the model


def folder_of(settings: TrainSettings, out: Path | None) -> Path:
    """Where a training goes when nobody says where."""
    corpus = Path(settings.corpus).name.replace(":", "-")
    return out or MODELS / f"{corpus}-{settings.variant}"


def resumed(
    config: Path | None, words: Sequence[str], options: Mapping[str, Any], out: Path | None
) -> tuple[TrainSettings, Path]:
    """Settings and folder of the interrupted training that `--resume` means.

    Raises:
        UserError: there is none, or what was given now is not what it was begun with.
    """
    folder = folder_of(read_train_settings(config, words, options), out)
    saved = _read(folder)
    asked = _plain(read_train_settings(config, words, options))
    default = _plain(TrainSettings())
    changed = [key for key, value in asked.items() if value not in (default[key], saved[key])]
    if changed:
        raise UserError(
            f"--resume: {', '.join(changed)} differ from the training begun in {folder}. "
            "Leave them out, or begin again with --overwrite."
        )
    return read_train_settings(None, (), saved), folder


def open_workplace(folder: Path, settings: TrainSettings, resume: bool, overwrite: bool) -> None:
    """Make the folder of a training, or refuse one that holds something worth keeping."""
    if resume:
        return
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        if (folder / CARD).exists():
            what, hint = "a finished model", "choose another --out, or --overwrite it"
        elif (folder / RECORD).exists():
            what, hint = "an interrupted training", "go on with --resume, or --overwrite it"
        else:
            what, hint = "other files", "choose another --out"
        raise UserError(f"{folder} holds {what}; {hint}.")
    if overwrite:
        clear(folder)
        shutil.rmtree(folder / LOGS, ignore_errors=True)
        (folder / CARD).unlink(missing_ok=True)
    (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    aside = folder / f"{RECORD}.tmp"
    aside.write_text(json.dumps(_plain(settings), indent=2) + "\n", encoding="utf-8")
    aside.replace(folder / RECORD)


def clear(folder: Path) -> None:
    """Remove what only an unfinished training needs; the log of the losses stays."""
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    (folder / RECORD).unlink(missing_ok=True)


def enough_space(folder: Path, parameters: int) -> None:
    """Refuse before the first step a training whose checkpoints will not fit on the disk."""
    present = next(parent for parent in (folder, *folder.resolve().parents) if parent.exists())
    needed, free = BYTES_PER_PARAMETER * parameters, shutil.disk_usage(present).free
    if free < needed:
        raise UserError(
            f"Training in {folder} needs {needed / 1e9:.1f} GB for its checkpoints and {present} "
            f"has {free / 1e9:.1f} GB free. Make room, or choose another --out."
        )


def _read(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    if not path.exists():
        done = "is finished" if (folder / CARD).exists() else "was never begun"
        raise UserError(f"--resume: the training in {folder} {done}; leave --resume out to train.")
    try:
        table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); begin again with --overwrite.") from error
    if table.keys() != _plain(TrainSettings()).keys():
        raise UserError(f"{path} was written by another m2dr; begin again with --overwrite.")
    return table


def _plain(settings: TrainSettings) -> dict[str, Any]:
    """As JSON holds them: lists, not tuples."""
    table = asdict(settings).items()
    return {key: list(value) if isinstance(value, tuple) else value for key, value in table}
