"""The folder of a training while it runs: its settings, its checkpoints, what it may overwrite."""

import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar

from m2dr.errors import UserError, counted
from m2dr.io import contents, locked, write_text
from m2dr.jsontext import load_json
from m2dr.model.card import CARD
from m2dr.model.places import CHECKPOINTS, PROCESSES, RECORD, go_on
from m2dr.verbs.models import MODELS
from m2dr.verbs.progress import is_first, processes_asked

SETTINGS = "settings.json"  # the same when the training is finished: what made the model
LOGS = "tensorboard"
_SUFFIXES = (".jsonl", ".csv", ".tsv", ".txt")  # of files that m2dr trains on
BYTES_PER_PARAMETER = 12 * 3 + 8  # fp32 weights and two moments, in three checkpoints; the model
Settings = TypeVar("Settings", covariant=True)


class Read(Protocol[Settings]):
    """Settings from a file, words and options, as m2dr.settings reads them."""

    def __call__(
        self, path: Path | None, words: Sequence[str], options: Mapping[str, Any]
    ) -> Settings:
        """Read and check them."""
        ...


def folder_of(corpus: str, what: str, out: Path | None) -> Path:
    """Where a training goes when nobody says where: models/CORPUS-WHAT."""
    name = "-".join(_stem(part.strip()) for part in corpus.split(","))
    return out or MODELS / f"{name}-{what}"


def _stem(corpus: str) -> str:
    """Return the name of a corpus as a folder has it: without the folders and suffixes of a file.

    >>> _stem("data/groups.jsonl.gz"), _stem("irds:beir/fiqa/train"), _stem("data/msmarco-v1.1/")
    ('groups', 'irds-beir-fiqa-train', 'msmarco-v1.1')
    """
    if ":" in corpus and not Path(corpus).exists():
        return corpus.replace(":", "-").replace("/", "-")
    name = Path(corpus).resolve().name
    if Path(corpus).is_dir():
        return name
    plain = Path(name.removesuffix(".gz"))
    return plain.stem if plain.suffix.lower() in _SUFFIXES else name


def resumed(
    read: Read[Settings],
    folder: Path,
    config: Path | None,
    words: Sequence[str],
    options: Mapping[str, Any],
) -> Settings:
    """Settings of the interrupted training that `--resume` means.

    Raises:
        UserError: there is none, or what was given now is not what it was begun with.
    """
    asked, default = _plain(read(config, words, options)), _plain(read(None, (), {}))
    saved = _read(folder, default.keys())
    changed = [key for key, value in asked.items() if value not in (default[key], saved[key])]
    if changed:
        raise UserError(
            f"--resume: {', '.join(changed)} differ from the training begun in {folder}. "
            "Leave them out, or begin again with --overwrite."
        )
    return read(None, (), saved)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the folder of a training against other processes; of several ranks the first one does.

    Raises:
        UserError: another process trains into it.
    """
    with locked(folder, "give another --out") if is_first() else nullcontext():
        yield


def open_workplace(folder: Path, settings: object, resume: bool, overwrite: bool) -> None:
    """Make the folder of a training, or refuse one that holds something worth keeping.

    A training that died before its first checkpoint has left nothing to keep: it is begun again.
    The folder is `held` already.
    """
    if resume:
        _require_begun(folder)  # another process may have finished it since the settings were read
        return
    dead = (folder / RECORD).exists() and not _is_worth_keeping(folder)
    if contents(folder) and not (overwrite or dead):
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
    """The same for a folder of several models, each in a folder of its own."""
    if resume:
        _require_begun(folder)
        return
    inside = [path for path in contents(folder) if _is_ours(path)]
    dead = (folder / RECORD).exists() and not any(map(_is_worth_keeping, inside))
    if contents(folder) and not (overwrite or dead):
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
    """Whether a training has left a model there, or a checkpoint."""
    return (folder / CARD).exists() or any((folder / CHECKPOINTS).glob("checkpoint-*"))


def _is_ours(path: Path) -> bool:
    return path.is_dir() and any((path / name).exists() for name in (CARD, RECORD))


def _record(folder: Path, settings: object) -> None:
    table = {PROCESSES: processes_asked(), **_plain(settings)}
    write_text(folder / RECORD, json.dumps(table, indent=2) + "\n")


def clear(folder: Path) -> None:
    """Remove what only an unfinished training needs; its settings and the log of losses stay."""
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    if (folder / RECORD).exists():
        (folder / RECORD).replace(folder / SETTINGS)


def enough_space(folder: Path, parameters: int) -> None:
    """Refuse before the first step a training whose checkpoints will not fit on the disk."""
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
    try:
        table: dict[str, Any] = load_json(path)
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); begin again with --overwrite.") from error
    begun, asked = table.pop(PROCESSES, 1), processes_asked()
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


def _plain(settings: Any) -> dict[str, Any]:  # noqa: ANN401  # a dataclass of settings
    """As JSON holds them: lists, not tuples."""
    table = asdict(settings).items()
    return {key: list(value) if isinstance(value, tuple) else value for key, value in table}
