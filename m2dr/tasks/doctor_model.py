"""Checks of `m2dr doctor` on models: complete, unchanged, and with the tokenizer they had."""

import shlex
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from m2dr.core.errors import UserError, command
from m2dr.core.fault import Fault, fault_of
from m2dr.core.files import is_locked
from m2dr.core.jsontext import load_json
from m2dr.core.requests import MODELS
from m2dr.core.toml_files import toml_value
from m2dr.core.trainings import FitSettings, PretrainSettings, TrainSettings
from m2dr.model.folder import fingerprint, read_card, read_card_file
from m2dr.model.hub import (
    BUILT_IN,
    CARD,
    CHECKPOINTS,
    RECORD,
    TOKENIZER,
    find_folder,
    is_half_written,
)
from m2dr.tasks.run_folder import SETTINGS

_OPTIONS = ("variant", "corpus", "backbone")  # settings that are options of their own


def model_faults(name: str, thorough: bool) -> Iterator[Fault]:
    """Yield the faults of a model, or of all that lie in models/.

    Args:
        name: folder or id; empty for all, whose files are compared only when `thorough`.
        thorough: whether tokenizers are opened too.
    """
    folders = [name] if name else [str(path) for path in trained()]
    for each in folders:
        if is_locked(Path(each)):
            continue
        try:
            find_folder(each)
            if name or thorough:
                read_card(each)
            else:
                read_card_file(Path(each, CARD))
            if thorough:
                _open_tokenizer(each)
        except UserError as error:
            yield fault_of_model(each, error)


def fault_of_model(name: str, error: UserError) -> Fault:
    """Return the fault of a model that is refused."""
    return _of_tokenizer(Path(name)) or fault_of(error, name, made_again(Path(name)))


def trained() -> list[Path]:
    """Return the folders in models/ that hold a model, or what is left of one."""
    parts = [path.parent for one in (CARD, CHECKPOINTS) for path in MODELS.glob(f"*/{one}")]
    parts += [path for path in MODELS.glob("*") if path.is_dir() and is_half_written(path)]
    return sorted(set(parts))


def _open_tokenizer(name: str) -> None:
    from m2dr.model.checkpoint import check_vocabulary

    check_vocabulary(name)


def _of_tokenizer(folder: Path) -> Fault | None:
    """Return the fault of a model that is as it was but for its tokenizer, else None.

    That is so where it has its fingerprint again with the tokenizer of its backbone.
    """
    try:
        card = read_card_file(folder / CARD)
        if not is_here(card.backbone):
            return None
        own = find_folder(card.backbone) / TOKENIZER
        with tempfile.TemporaryDirectory(prefix="m2dr-") as place:
            for path in folder.iterdir():
                if path.name != TOKENIZER:
                    Path(place, path.name).symlink_to(path.resolve())
            Path(place, TOKENIZER).symlink_to(own.resolve())
            if fingerprint(Path(place), card) != card.fingerprint:
                return None
    except (UserError, OSError):
        return None
    mend = shlex.join(["cp", str(own), str(folder / TOKENIZER)])
    problem = f"{folder / TOKENIZER} is not the tokenizer that {folder} was trained with."
    return Fault("error", str(folder), problem, mend)


def is_here(name: str) -> bool:
    """Return whether a model needs no download."""
    return name == BUILT_IN or Path(name).is_dir()


def made_again(folder: Path) -> str:
    """Return the command that makes the model in a folder again, by the record of its settings."""
    for name in (SETTINGS, RECORD):
        try:
            record = load_json(folder / name)
        except (OSError, ValueError):
            continue
        if isinstance(record, dict):
            return _command_of(record, folder)
    return command("train", out=folder, overwrite=True)


def _command_of(record: Mapping[str, Any], folder: Path) -> str:
    kind: Any = TrainSettings if "variant" in record else PretrainSettings
    verb = "train" if "variant" in record else "pretrain"
    if "rotation" in record:
        kind, verb = FitSettings, "fit"
    defaults = vars(kind())
    given = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in record.items()
        if key in defaults
    }
    changed = {key: value for key, value in given.items() if value != defaults[key]}
    words = tuple(
        f"{key}={toml_value(value)}"
        for key, value in changed.items()
        if key not in _OPTIONS and value is not None
    )
    chosen = {key: given[key] for key in _OPTIONS if key in given}
    return command(verb, **chosen, set=words, out=folder, overwrite=True)
