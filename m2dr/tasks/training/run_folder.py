"""The folder of a training while it runs: lock, settings, checkpoints, rules of overwriting."""

import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

from m2dr.core.errors import UserError
from m2dr.core.files import list_folder, lock_folder, read_object, write_json
from m2dr.core.progress import is_main_process, process_count
from m2dr.core.requests import MODELS, refuse_both
from m2dr.core.settings import Settings, find_config, read_settings, read_table
from m2dr.data.tables import is_hub, name_of
from m2dr.model.checkpoint import Model, open_model
from m2dr.model.hub import CARD, CHECKPOINTS, PROCESSES, RECORD

TRAINING_SETTINGS = "settings.json"  # what `RECORD` is called when the training is finished
LOGS = "tensorboard"
LOSS = "custom_loss"  # in `RECORD`: the name of a loss that is a function
# In `RECORD`, digests of what settings name alone, and what has changed where they differ.
DIGESTS = {"data_digest": "training data", "backbone_digest": "backbone"}


def training_folder(corpus: str, what: str, out: Path | None) -> Path:
    """Return `out`, or the default folder of a training: models/CORPUS-WHAT."""
    names = []
    for part in map(str.strip, corpus.split(",")):
        path = Path(part)
        if is_hub(part) or path.exists():
            names.append(name_of(path))
        else:
            names.append(re.sub("[:/]", "-", part) if ":" in part else path.name)
    return out or MODELS / f"{'-'.join(names)}-{what}"


def open_backbone(settings: Any, folder: Path | None = None) -> Model:
    """Open the backbone of a training or fit, at the revision that its settings name.

    Args:
        settings: of the training.
        folder: to write, if any.

    Raises:
        UserError: there is no such model, it lies in the folder to write and could not be read
            again, or its last layer ends in a fitted exit, which would be lost.
    """
    own = Path(settings.backbone).resolve()
    if folder is not None and own.exists() and own.is_relative_to(folder.resolve()):
        raise UserError(f"The backbone {settings.backbone} lies in {folder}; give another --out.")
    backbone = open_model(settings.backbone, revision=settings.revision)
    if backbone.last_layer_has_exit:
        raise UserError(f"{backbone} ends in a fitted exit; take the model that it was cut from.")
    return backbone


def read_training(
    kind: type[Settings],
    what: str,
    config: str | PathLike[str] | None,
    words: Sequence[str],
    options: Mapping[str, Any],
    out: str | PathLike[str] | None,
    resume: bool = False,
    overwrite: bool = False,
) -> tuple[Settings, Path]:
    """Return the settings of a run and its folder.

    Args:
        kind: of the settings.
        what: the end of the folder's default name; the variant when empty.
        config: file of settings, or the name of a built-in one.
        words: as `read_settings` takes them.
        options: as `read_settings` takes them.
        out: the folder.
        resume: whether an interrupted run goes on, with the settings that it was begun with.
        overwrite: whether it begins again, which resuming does not.

    Raises:
        UserError: both were asked for, settings are wrong, or there is no such run, or what was
            given now is not what it was begun with.
    """
    refuse_both(resume, overwrite)
    path = find_config(config)
    settings: Any = read_settings(kind, path, words, options)
    folder = training_folder(settings.corpus, what or settings.variant, Path(out) if out else None)
    if not resume:
        return settings, folder
    _require_begun(folder)
    saved = read_object(folder / RECORD, {PROCESSES: int})
    begun = saved[PROCESSES]
    saved = {each.name: saved[each.name] for each in fields(kind)}
    if begun != process_count():  # a batch would be another one, and its negatives others
        now = process_count()
        raise UserError(f"{folder} was begun by {begun} processes and cannot go on with {now}.")
    given = {*read_table(path), *(word.partition("=")[0].strip() for word in words)}
    given |= {key for key, value in options.items() if value is not None}
    asked = _plain(settings)
    if asked["dtype"] == "auto":  # the one that it was begun in
        given.discard("dtype")
    changed = [key for key, value in asked.items() if key in given and value != saved[key]]
    if changed:
        raise UserError(f"{', '.join(changed)} differ from the training begun in {folder}.")
    return read_settings(kind, options=saved), folder


@contextmanager
def stops_on_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM within the block; a second one, or that of several ranks, is Ctrl-C.

    A batch system sends it before it kills, and torchrun to the ranks that are left when one ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals in the main thread alone
        return

    def first(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        stop()

    handler: Any = first if process_count() == 1 else signal.default_int_handler
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    except BaseException:
        # The SIGTERM of torchrun may come while this process says what to do next.
        before = signal.SIG_IGN if process_count() > 1 else before
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def held(folder: Path) -> Any:  # a context
    """Lock the folder of a training; of several ranks the first one does."""
    return lock_folder(folder) if is_main_process() else nullcontext()


@contextmanager
def open_training(
    folder: Path, settings: object, resume: bool, overwrite: bool, beside: Mapping[str, str]
) -> Iterator[None]:
    """Lock a folder, and begin or resume a training in it; `beside` as of `begin`.

    Raises:
        UserError: another process trains into it, or it holds something else.
    """
    with held(folder):
        if is_main_process():
            begin(folder, settings, resume, overwrite, beside=beside)
            (folder / CHECKPOINTS).mkdir(exist_ok=True)
        yield


def begin(
    folder: Path,
    settings: object,
    resume: bool,
    overwrite: bool,
    several: bool = False,
    beside: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Begin a training in its locked folder, or check that it can be resumed.

    A training that died before its first checkpoint has left nothing to keep: it is begun again.
    One of `several` models has a folder of its own for each. What a training is of `beside` its
    settings is recorded: DIGESTS, its dtype, and the name of a LOSS that is a function.

    Raises:
        UserError: the folder holds something and is not to be overwritten, or was begun with
            something else than what resumes it.
    """
    if resume:
        _require_begun(folder)  # another process may have finished it since the settings were read
        record = read_object(folder / RECORD, {})
        for name, what in DIGESTS.items():
            if name in beside and record.get(name) != beside[name]:
                raise UserError(f"The {what} of {folder} changed since it was begun; begin again.")
        for name in (LOSS, "dtype") if beside else ():
            was, now = (each.get(name) or "the loss of its settings" for each in (record, beside))
            if was != now:
                end = "; m2dr.train(loss=...) takes a function." if name == LOSS else "."
                raise UserError(f"{folder} was begun with {was}, and cannot go on with {now}{end}")
        return
    inside = [
        path
        for path in list_folder(folder)
        if several and ((path / CARD).exists() or (path / RECORD).exists())
    ]
    begun, places = (folder / RECORD).exists(), (folder, *inside)
    finished = any((path / CARD).exists() for path in places)
    resumable = begun and any(any((path / CHECKPOINTS).glob("checkpoint-*")) for path in places)
    dead = begun and not (finished or resumable)
    if list_folder(folder) and not (overwrite or dead):
        contents = "other files"
        if resumable or (begun and several):
            contents = "an interrupted training, which --resume goes on with"
        elif inside or finished:
            contents = "a finished model"
        raise UserError(f"{folder} holds {contents}; choose another --out, or --overwrite it.")
    clear(folder)
    for path in [*inside, folder / LOGS]:
        shutil.rmtree(path, ignore_errors=True)
    for name in (CARD, TRAINING_SETTINGS):
        (folder / name).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RECORD, {PROCESSES: process_count(), **_plain(settings), **beside})


def clear(folder: Path) -> None:
    """Remove the checkpoints of a finished training; its settings and log of losses stay."""
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    if (folder / RECORD).exists():
        (folder / RECORD).replace(folder / TRAINING_SETTINGS)


def _require_begun(folder: Path) -> None:
    if not (folder / RECORD).exists():
        done = "is finished" if (folder / CARD).exists() else "was never begun"
        raise UserError(f"The training in {folder} {done}, so there is nothing to resume.")


def _plain(settings: Any) -> dict[str, Any]:  # a dataclass of settings
    """Return settings as JSON holds them: lists, not tuples."""
    table = asdict(settings).items()
    return {key: list(value) if isinstance(value, tuple) else value for key, value in table}
