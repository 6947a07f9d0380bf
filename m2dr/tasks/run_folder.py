"""The folder of a training while it runs: settings, checkpoints, lock, rules of overwriting."""

import json
import shutil
import signal
import threading
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from m2dr.core.errors import UserError, command, counted
from m2dr.core.files import list_folder, lock_folder, read_object, write_json
from m2dr.core.progress import is_main_process, process_count
from m2dr.core.requests import MODELS
from m2dr.core.trainings import FitSettings, PretrainSettings, TrainSettings
from m2dr.data import huggingface
from m2dr.data.sentence_pairs import SUFFIXES
from m2dr.model.checkpoint import ends_fitted
from m2dr.model.folder import read_card, read_exported
from m2dr.model.hub import (
    CARD,
    CHECKPOINTS,
    PROCESSES,
    RECORD,
    find_folder,
    go_on,
    launched,
)

SETTINGS = "settings.json"  # what `RECORD` is called when the training is finished
LOGS = "tensorboard"
BYTES_PER_PARAMETER = 12 * 3 + 8  # fp32 weights and two moments, in three checkpoints; the model
Settings = TypeVar("Settings", covariant=True)
TrainingSettings = TrainSettings | PretrainSettings | FitSettings


class Read(Protocol[Settings]):
    """A function of m2dr.settings that reads settings from a file, words and options."""

    def __call__(
        self, path: Path | None, words: Sequence[str], options: Mapping[str, Any]
    ) -> Settings:
        """Read and check the settings."""
        ...


def folder_of(corpus: str, what: str, out: Path | None) -> Path:
    """Return `out`, or the default folder of a training: models/CORPUS-WHAT."""
    name = "-".join(_stem(part.strip()) for part in corpus.split(","))
    return out or MODELS / f"{name}-{what}"


def _stem(corpus: str) -> str:
    """Return the name of a corpus without the folders and suffixes of a file.

    >>> _stem("data/groups.jsonl.gz"), _stem("irds:beir/fiqa/train"), _stem("data/msmarco-v1.1/")
    ('groups', 'irds-beir-fiqa-train', 'msmarco-v1.1')
    """
    if huggingface.recognises(corpus):
        return huggingface.short_name(corpus)
    if ":" in corpus and not Path(corpus).exists():
        return corpus.replace(":", "-").replace("/", "-")
    name = Path(corpus).resolve().name
    if Path(corpus).is_dir():
        return name
    plain = Path(name.removesuffix(".gz"))
    return plain.stem if plain.suffix.lower() in SUFFIXES else name


# Settings of any training that have an option of their own; the others are given by --set.
_OPTIONS = (
    "backbone", "revision", "corpus", "variant", "texts", "rotation", "inputs", "identity",
    "steps", "epochs", "seed", "device", "dtype",
)  # fmt: skip


def begin_command(
    verb: str, settings: TrainingSettings, folder: Path | None = None, overwrite: bool = False
) -> str:
    """Return the command that begins a training.

    Args:
        verb: train, pretrain or fit.
        settings: of the training.
        folder: of the model; the default one where it is None.
        overwrite: whether the folder holds something that is to go.
    """
    given = {
        field.name: getattr(settings, field.name)
        for field in fields(settings)
        if field.name in ("backbone", "corpus") or getattr(settings, field.name) != field.default
    }
    options = {name: given.pop(name) for name in _OPTIONS if name in given}
    words = [f"{name}={json.dumps(value)}" for name, value in given.items()]
    line = command(verb, **options, set=words, out=folder, overwrite=overwrite)
    return launched(line, process_count())


def refuse_own_folder(verb: str, settings: TrainingSettings, folder: Path, what: str) -> None:
    """Refuse to write a model over its backbone, which a resumed training would read again.

    Args:
        verb: train, pretrain or fit.
        settings: of the training.
        folder: to write.
        what: stands in the name of the default folder.

    Raises:
        UserError: the backbone is the folder, or lies in it.
    """
    own = Path(settings.backbone).resolve()
    if not (own.exists() and own.is_relative_to(folder.resolve())):
        return
    other = folder_of(settings.corpus, what, None)
    if other.exists():
        other = own.with_name(f"{own.name}-{what}")
    raise UserError(
        f"{settings.backbone} was to be the backbone of a model in {folder}, where it lies itself, "
        "and a model that is read cannot be written over; give another --out: "
        f"{begin_command(verb, settings, other)}"
    )


def refuse_cut(verb: str, settings: TrainingSettings, folder: Path | None = None) -> None:
    """Refuse a backbone whose last layer ends in a fitted exit, which the training would drop.

    Args:
        verb: train or fit.
        settings: of the training.
        folder: to write, for the command in the message; the default one where it is None.

    Raises:
        UserError: it is such a cut.
    """
    if not ends_fitted(settings.backbone):
        return
    home, source = find_folder(settings.backbone), read_card(settings.backbone).backbone
    record = read_exported(home)
    if record is not None:  # which names the model, and not its place
        places = (home.resolve().with_name(record.model), MODELS / record.model)
        source = next((str(place) for place in places if (place / CARD).exists()), source)
    raise UserError(
        f"{settings.backbone} was asked for as the backbone, and it is a cut whose last layer ends "
        "in a fitted exit, which would be lost. Take the model that it comes from: "
        f"{begin_command(verb, replace(settings, backbone=source, revision=''), folder)}"
    )


def resumed(
    read: Read[Settings],
    folder: Path,
    config: Path | None,
    words: Sequence[str],
    options: Mapping[str, Any],
) -> Settings:
    """Return the settings of the interrupted training that `--resume` names.

    Raises:
        UserError: there is none, or what was given now is not what it was begun with.
    """
    asked = _plain(read(config, words, options))
    saved = _read(folder, asked.keys())
    given = _given(config, words, options)
    changed = [key for key, value in asked.items() if key in given and value != saved[key]]
    if changed:
        raise UserError(
            f"--resume: {', '.join(changed)} differ from the training begun in {folder}. "
            "Leave them out, or begin again with --overwrite."
        )
    return read(None, (), saved)


def _given(config: Path | None, words: Sequence[str], options: Mapping[str, Any]) -> set[str]:
    """Return the settings that were given explicitly, defaults included."""
    table = tomllib.loads(config.read_text(encoding="utf-8-sig")) if config else {}
    named = {word.partition("=")[0].strip() for word in words}
    return {*table, *named} | {key for key, value in options.items() if value is not None}


@contextmanager
def asked_to_stop() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C within the block.

    A batch system sends it before it kills, and torchrun to the ranks that are left when one ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals in the main thread alone
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except BaseException:
        # The SIGTERM of torchrun may come while this process says what to do next.
        before = signal.SIG_IGN if process_count() > 1 else before
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock the folder of a training; of several ranks the first one does.

    Raises:
        UserError: another process trains into it.
    """
    with lock_folder(folder) if is_main_process() else nullcontext():
        yield


@contextmanager
def opened(
    folder: Path, settings: object, parameters: int, resume: bool, overwrite: bool
) -> Iterator[None]:
    """Lock and open the folder of a training with checkpoints of so many parameters.

    Raises:
        UserError: as `held`, `enough_space` and `open_run_folder`.
    """
    with held(folder):
        if is_main_process():
            if not resume:
                enough_space(folder, parameters)
            open_run_folder(folder, settings, resume, overwrite)
        yield


def open_run_folder(folder: Path, settings: object, resume: bool, overwrite: bool) -> None:
    """Make the folder of a training; refuse one that holds anything, unless told to overwrite it.

    A training that died before its first checkpoint has left nothing to keep: it is begun again.
    The folder is `held` already.
    """
    if resume:
        _require_begun(folder)  # another process may have finished it since the settings were read
        return
    dead = (folder / RECORD).exists() and not _is_worth_keeping(folder)
    if list_folder(folder) and not (overwrite or dead):
        if (folder / CARD).exists():
            what, hint = "a finished model", "choose another --out, or --overwrite it."
        elif (folder / RECORD).exists():
            what, hint = "an interrupted training", f"--overwrite it, or {go_on(folder)}"
        else:
            what, hint = "other files", "choose another --out."
        raise UserError(f"{folder} holds {what}; {hint}")
    if overwrite or dead:
        clear(folder)
        shutil.rmtree(folder / LOGS, ignore_errors=True)
        for name in (CARD, SETTINGS):
            (folder / name).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    _record(folder, settings)  # before the checkpoints, whose folder tells others to --resume
    (folder / CHECKPOINTS).mkdir(exist_ok=True)


def begin_many(folder: Path, settings: object, resume: bool, overwrite: bool) -> None:
    """Make a folder of several models, each in a folder of its own."""
    if resume:
        _require_begun(folder)
        return
    inside = [path for path in list_folder(folder) if _is_ours(path)]
    dead = (folder / RECORD).exists() and not any(map(_is_worth_keeping, inside))
    if list_folder(folder) and not (overwrite or dead):
        what = "an interrupted training" if (folder / RECORD).exists() else "trained models"
        what = what if inside or (folder / RECORD).exists() else "other files"
        raise UserError(
            f"{folder} holds {what}; choose another --out"
            f"{', or --overwrite them' if inside else ''}."
        )
    for path in inside:
        shutil.rmtree(path)
    folder.mkdir(parents=True, exist_ok=True)
    _record(folder, settings)


def _is_worth_keeping(folder: Path) -> bool:
    """Return whether the folder holds a model or a checkpoint."""
    return (folder / CARD).exists() or any((folder / CHECKPOINTS).glob("checkpoint-*"))


def _is_ours(path: Path) -> bool:
    return path.is_dir() and any((path / name).exists() for name in (CARD, RECORD))


def _record(folder: Path, settings: object) -> None:
    table = {PROCESSES: process_count(), **_plain(settings)}
    write_json(folder / RECORD, table)


def clear(folder: Path) -> None:
    """Remove the checkpoints of a finished training; its settings and log of losses stay."""
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    if (folder / RECORD).exists():
        (folder / RECORD).replace(folder / SETTINGS)


def enough_space(folder: Path, parameters: int) -> None:
    """Raise UserError if the checkpoints of a training will not fit on the disk."""
    present = next(parent for parent in (folder, *folder.resolve().parents) if parent.exists())
    needed, free = BYTES_PER_PARAMETER * parameters, shutil.disk_usage(present).free
    if free < needed:
        raise UserError(
            f"Training in {folder} needs {needed / 1e9:.1f} GB for its checkpoints and {present} "
            f"has {free / 1e9:.1f} GB free. Make room, or choose another --out."
        )


def _read(folder: Path, keys: Collection[str]) -> dict[str, Any]:
    path = folder / RECORD
    _require_begun(folder)
    table = read_object(path, {PROCESSES: int})
    begun, asked = table.pop(PROCESSES, 1), process_count()
    if table.keys() != set(keys):
        raise UserError(
            f"{path} was written by another command or another m2dr; begin again with --overwrite."
        )
    if begun != asked:  # a batch would be another one, and its negatives others
        raise UserError(
            f"--resume: {counted(begun, 'processes')} began the training in {folder}, and {asked} "
            "would go on with it. Start as many, or begin again with --overwrite."
        )
    return table


def _require_begun(folder: Path) -> None:
    if not (folder / RECORD).exists():
        done = "is finished" if (folder / CARD).exists() else "was never begun"
        raise UserError(f"--resume: the training in {folder} {done}; leave --resume out to train.")


def _plain(settings: Any) -> dict[str, Any]:  # a dataclass of settings
    """Return settings as JSON holds them: lists, not tuples."""
    table = asdict(settings).items()
    return {key: list(value) if isinstance(value, tuple) else value for key, value in table}
