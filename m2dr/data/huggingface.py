"""Data sets of the library `datasets`: `hf:ID[/CONFIG][:SPLIT]`, from the hub or a folder.

The library downloads and caches them as memory-mapped Arrow tables.
"""

import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m2dr.core.errors import UserError, install, nearest, suggestion
from m2dr.core.files import error_summary, explain_failure

if TYPE_CHECKING:
    from pyarrow import Table

Untyped = Any  # datasets has no types

PREFIX = "hf:"
QRELS = ("qrels", "default")  # configs that hold the judgements of a corpus, as MTEB names them
_STREAMED_ROWS = 100_000  # of a slice, at most
_SAVED, _SAVED_SPLITS = "state.json", "dataset_dict.json"  # files of `save_to_disk`


@dataclass(frozen=True)
class HubName:
    """The parts of `hf:ID[/CONFIG][:SPLIT]`.

    Attributes:
        id: of the hub, or a folder.
        config: a subset; empty for the default one.
        split: may be a slice, such as train[:1000]; empty for all splits.
    """

    id: str
    config: str = ""
    split: str = ""

    @classmethod
    def of(cls, name: str) -> "HubName":
        """Parse a name; a folder may have configs where its README.md names them.

        >>> HubName.of("hf:sentence-transformers/all-nli/triplet:train[:9]")
        HubName(id='sentence-transformers/all-nli', config='triplet', split='train[:9]')
        >>> HubName.of("hf:squad")
        HubName(id='squad', config='', split='')

        Raises:
            UserError: there is no id, or no such folder.
        """
        whole, _, split = name.removeprefix(PREFIX).partition(":")
        whole = whole.rstrip("/")
        above, _, last = whole.rpartition("/")
        is_path = whole.startswith((".", "/", "~"))
        if above and _names_config(Path(above, "README.md").expanduser(), last):
            return cls(above, last, split)
        if whole and Path(whole).expanduser().is_dir():
            return cls(whole, "", split)
        if not whole.strip():
            raise UserError(f"{name!r} names no data set; give {PREFIX}ID or {PREFIX}FOLDER.")
        if is_path:
            near = Path(above).iterdir() if Path(above).is_dir() else ()
            hint = suggestion(last, [path.name for path in near])
            raise UserError(f"{name}: there is no folder {whole}. {hint}".rstrip())
        owner, _, rest = whole.partition("/")
        title, _, config = rest.partition("/")
        return cls(f"{owner}/{title}".rstrip("/"), config, split)

    @property
    def folder(self) -> Path | None:
        """The folder that the id is; None for one of the hub."""
        path = Path(self.id).expanduser()
        return path if path.is_dir() else None


def _names_config(page: Path, config: str) -> bool:
    """Return whether the README.md of a data set declares a config."""
    if not page.is_file():
        return False
    pattern = rf"^\W*config_name:\s*['\"]?{re.escape(config)}['\"]?\s*$"
    return re.search(pattern, page.read_text("utf-8", "replace"), re.MULTILINE) is not None


def recognises(name: object) -> bool:
    """Return whether a name or path begins with hf:."""
    return str(name).startswith(PREFIX)


def short_name(name: str) -> str:
    """Return a name that is fit to name a folder.

    >>> short_name("hf:mteb/scifact"), short_name("hf:sentence-transformers/all-nli/pair:dev")
    ('mteb-scifact', 'sentence-transformers-all-nli-pair')
    """
    asked = HubName.of(name)
    base = asked.folder.resolve().name if asked.folder else asked.id
    return "-".join(part for part in (base, asked.config) if part).replace("/", "-")


def load_tables(name: str) -> "Mapping[str, Table]":
    """Return the Arrow tables of a name by split, in the data's order; memory-mapped.

    Raises:
        UserError: the library is absent, there is no such data set, config or split, it is private,
            or the hub cannot be reached.
    """
    folder = HubName.of(name).folder
    files = folder.rglob("*") if folder else ()
    stamp = max((path.stat().st_mtime_ns for path in files if path.is_file()), default=0)
    return _tables(name, stamp)


def retrieval_parts(name: str) -> dict[str, str]:
    """Return names of the parts of a data set with configs, or splits, `corpus` and `queries`.

    They are "corpus", "queries", and "qrels/SPLIT" for each split of the judgements. Empty for
    any other data set, and where a config or split is named.
    """
    asked = HubName.of(name)
    if asked.config or asked.split:
        return {}
    if asked.folder and (asked.folder / _SAVED_SPLITS).is_file():
        splits = load_tables(name)
        if not {"corpus", "queries"} <= splits.keys():
            return {}
        of = {split: f"{name}:{split}" for split in splits}
        parts = {part: of.pop(part) for part in ("corpus", "queries")}
        return parts | {f"qrels/{split.removeprefix('qrels-')}": of[split] for split in of}
    configs = _configs(asked)
    if not {"corpus", "queries"} <= set(configs):
        return {}
    parts = {part: f"{name}/{part}" for part in ("corpus", "queries")}
    judged = next((config for config in QRELS if config in configs), "")
    splits = load_tables(f"{name}/{judged}") if judged else {}
    return parts | {f"qrels/{split}": f"{name}/{judged}:{split}" for split in splits}


@lru_cache(maxsize=8)
def _tables(name: str, stamp: int) -> "Mapping[str, Table]":  # noqa: ARG001  # part of the key
    asked = HubName.of(name)
    library = _library(name)
    folder = asked.folder
    with _explained(name, asked):
        if folder and any((folder / file).is_file() for file in (_SAVED, _SAVED_SPLITS)):
            found = library.load_from_disk(str(folder))
            if asked.config:
                raise _unknown(asked, "config", asked.config, [])
            if _is_slice(asked.split):
                raise UserError(
                    f"{name} asks for a slice, and a folder of save_to_disk is read by whole "
                    f"splits. Give {PREFIX}{asked.id}:{_first_split(asked.split)}"
                )
        else:
            found = _load(library, asked)
        if not isinstance(found, dict):
            found = {str(found.split or ""): found}
        if asked.split and not _is_slice(asked.split):
            if asked.split not in found:
                raise _unknown(asked, "split", asked.split, list(filter(None, found)))
            found = {asked.split: found[asked.split]}
        # Through a format and not `.data`, which a selection or a shuffle leaves as it was.
        return {_first_split(split): part.with_format("arrow")[:] for split, part in found.items()}


def _load(library: Untyped, asked: HubName) -> Untyped:
    """Load from the hub, or from a folder of files."""
    source, config = str(asked.folder or asked.id), asked.config or None
    configs = _configs(asked)
    if (asked.config or "default") not in configs and (asked.config or len(configs) != 1):
        raise _unknown(asked, "config", asked.config, configs)
    if not _is_slice(asked.split):
        return library.load_dataset(source, config)
    splits = library.get_dataset_split_names(source, config)
    if (split := _first_split(asked.split)) not in splits:
        raise _unknown(asked, "split", split, splits)
    bounds = _bounds(asked.split)
    if bounds and not _is_prepared(library, source, config):
        return _streamed(library, source, config, split, *bounds)
    return library.load_dataset(source, config, split=asked.split)


def _configs(asked: HubName) -> tuple[str, ...]:
    if asked.folder and (asked.folder / _SAVED).is_file():
        return ()
    return _config_names(str(asked.folder.resolve() if asked.folder else asked.id), asked)


@lru_cache(maxsize=8)
def _config_names(source: str, asked: HubName) -> tuple[str, ...]:
    library = _library(f"{PREFIX}{source}")
    with _explained(f"{PREFIX}{source}", asked):
        return tuple(library.get_dataset_config_names(source))


def _is_slice(split: str) -> bool:
    return "[" in split or "+" in split


def _bounds(split: str) -> tuple[int, int] | None:
    """Return the first and the last row but one of a slice by number that fits in memory.

    >>> _bounds("train[:1000]"), _bounds("train[10:30]"), _bounds("train[:10%]")
    ((0, 1000), (10, 30), None)
    """
    found = re.fullmatch(r"[^\[+]+\[(\d*):(\d+)\]", split)
    start, end = (int(found[1] or 0), int(found[2])) if found else (0, 0)
    return (start, end) if 0 < end - start <= _STREAMED_ROWS else None


def _is_prepared(library: Untyped, source: str, config: str | None) -> bool:
    """Return whether the library holds all rows already; without a network nothing is streamed."""
    if library.config.HF_HUB_OFFLINE and not Path(source).is_dir():
        return True
    return Path(library.load_dataset_builder(source, config).cache_dir).is_dir()


def _streamed(
    library: Untyped, source: str, config: str | None, split: str, start: int, end: int
) -> Untyped:
    """Return some rows of a split, without downloading or preparing those behind them."""
    rows = library.load_dataset(source, config, split=split, streaming=True)
    rows = rows.skip(start).take(end - start)
    found = library.Dataset.from_list(list(rows), features=rows.features)
    return {split: found}


def _first_split(split: str) -> str:
    return re.split(r"[\[+]", split)[0]


def _unknown(asked: HubName, what: str, word: str, known: Sequence[str]) -> UserError:
    """Return the error for a config or split that a data set lacks, or for none where one must."""
    name = f"{PREFIX}{asked.id}"
    if not known:
        return UserError(f"{name} has no {what} {word!r}, nor any other; leave it out.")
    if not word:
        return UserError(
            f"{name} has several {what}s, {', '.join(known)}; name one, as in {name}/{known[0]}."
        )
    return UserError(f"{name} has no {what} {word!r}. {nearest(word, known)}")


def _library(name: str) -> Untyped:
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"{name} is read by the library datasets, which is not installed. Install it with: "
            f"{install('datasets')}"
        ) from None
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    # It logs each of its tries to reach the hub; what came of them is said below.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    return datasets


@contextmanager
def _explained(name: str, asked: HubName) -> Iterator[None]:
    """Turn what the library raises into a UserError."""
    from datasets.exceptions import DatasetNotFoundError

    with explain_failure(f"{name} cannot be loaded by the library datasets"):
        try:
            yield
        except DatasetNotFoundError:
            raise UserError(
                f"The hub has no data set {asked.id!r}, or it is private or gated. Look for its "
                "name at https://huggingface.co/datasets, or log in with: hf auth login"
            ) from None
        except ConnectionError as error:
            raise _unreachable(name, asked, error) from None


def _unreachable(name: str, asked: HubName, error: ConnectionError) -> UserError:
    title = Path(asked.id).name
    folders = [str(path) for path in Path(asked.id).parent.glob("*") if path.is_dir()]
    sentences = (
        f"{name}: {asked.id!r} is no folder here, and the hub cannot be reached "
        f"({error_summary(error)}).",
        suggestion(asked.id, folders),
        "Where there is a network: "
        f"hf download --repo-type dataset {asked.id} --local-dir {title}; then give "
        f"{PREFIX}./{title}",
    )
    return UserError(" ".join(filter(None, sentences)))
