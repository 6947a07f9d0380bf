"""The folder of an index: where each of its parts lies, and how a sync exchanges all at once.

indexes/<corpus>/<model fingerprint>/
    layer-06/       a store, and its engines: index/manifest.py
    exits/          maps of queries: maps/files.py
    asked.json      what was named once: `Asked`
    bm25.safetensors
    int8/           the graph that encoded documents in int8
    card.json, rotation.f32     of imported vectors without a model
    syncing         while stores are replaced
"""

import ctypes
import os
import re
import shutil
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from m2dr.core.errors import UserError, counted
from m2dr.core.files import fsync, lock_file, read_record, write_record
from m2dr.core.records import CARD_FILE, DIGITS, EXITS_FILE, Asked, Label
from m2dr.index.manifest import (
    MANIFEST,
    NEW,
    OLD,
    PARTIAL,
    STORE,
    BuiltIndex,
    StoreManifest,
    StorePlan,
    begun_plan,
    built_indexes,
    index_folder,
    store_folders,
)
from m2dr.index.store import Store, open_store, stamp_of

SYNCING = "syncing"  # a file in the folder of stores that a sync writes, until it has ended
_LAYER = re.compile(r"layer-\d+")  # a copy such as layer-04.old is none


@dataclass(frozen=True, order=True)
class IndexFolder:
    """The documents of a corpus by one model: stores of layers, engines, maps, BM25."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @classmethod
    def of(cls, root: Path, corpus: str, fingerprint: str) -> "IndexFolder":
        """Return the index of a corpus by a model, which may not be there yet.

        >>> str(IndexFolder.of(Path("indexes"), "beir/scifact", "0123456789abcdef"))
        'indexes/beir/scifact/0123456789ab'

        Raises:
            UserError: the corpus has a name that no folder may have.
        """
        parts = Path(corpus).parts
        if not parts or Path(corpus).is_absolute() or ".." in parts:
            raise UserError(f"{corpus!r} cannot name a corpus: use a relative name such as pydocs.")
        return cls(root.joinpath(*parts, fingerprint[:DIGITS]))

    @classmethod
    def found(cls, folder: Path) -> list["IndexFolder"]:
        """Return the indexes with a finished store that a folder is, lies in or holds, sorted."""
        for path in (folder, folder.parent, folder.parent.parent):
            if path in (folder, folder.parent) or (folder / MANIFEST).exists():
                index, inside = cls(path), {folder, folder.parent}
                if index.layers and (path == folder or inside & {*index.layer_folders}):
                    return [index]
        return sorted({cls(path.parent) for path in store_folders(folder) if _is_finished(path)})

    @classmethod
    def at(cls, folder: Path) -> "IndexFolder":
        """Return the only one of those that are `found`.

        Raises:
            UserError: there is none, or more than one.
        """
        candidates = cls.found(folder)
        if not candidates:
            raise UserError(f"{folder} holds no finished index and no store.")
        if len(candidates) > 1:
            names, count = ", ".join(map(str, candidates)), counted(len(candidates), "indexes")
            raise UserError(f"{folder} holds {count}: name one of {names}.")
        return candidates[0]

    @classmethod
    def holding(cls, store: Path) -> "IndexFolder":
        """Return the index of a folder of a store."""
        return cls(store.parent)

    # Parts

    def root(self, corpus: str) -> Path:
        """Return the folder of indexes where this is one of a corpus, as `of` takes it."""
        return Path(*self.path.parts[: -1 - len(Path(corpus).parts)])

    def layer(self, layer: int) -> Path:
        """Return the folder of the store of a layer."""
        return self.path / f"layer-{layer:02d}"

    def engine(self, layer: int, dim: int, engine: str = "") -> Path:
        """Return the folder of an engine of a layer; the flat one by default."""
        return index_folder(self.layer(layer), dim, engine or "flat")

    @property
    def exits(self) -> Path:
        """Folder of the words, exits and bridge that were fitted to the documents."""
        return self.path / "exits"

    @property
    def bm25(self) -> Path:
        """File of BM25."""
        return self.path / "bm25.safetensors"

    @property
    def int8(self) -> Path:
        """Folder of the graph that encodes documents in int8."""
        return self.path / "int8"

    @property
    def card(self) -> Path:
        """Card file of imported vectors without a model."""
        return self.path / CARD_FILE

    @property
    def rotation(self) -> Path:
        """File of the rotation of such vectors, [W, W] float32."""
        return self.path / "rotation.f32"

    # What was asked

    @property
    def asked(self) -> Asked:
        """What commands named until now.

        Raises:
            UserError: the record is damaged.
        """
        path = self.path / _ASKED
        return read_record(path, Asked) if path.exists() else Asked()

    def ask(self, asked: Asked) -> None:
        """Keep what a command names, before it begins to work."""
        if asked != self.asked:
            self.path.mkdir(parents=True, exist_ok=True)
            write_record(self.path / _ASKED, asked)

    # What is there

    @property
    def layer_folders(self) -> list[Path]:
        """Folders of layers, finished or not, increasing."""
        return sorted(p for p in self.path.glob("layer-*") if _LAYER.fullmatch(p.name))

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose stores are finished, increasing."""
        return tuple(_number(path) for path in self.layer_folders if _is_finished(path))

    @property
    def is_begun(self) -> bool:
        """Whether a store exists, finished or not."""
        return any((path / name).exists() for path in self.layer_folders for name in _RECORDS)

    def holds(self, layer: int) -> bool:
        """Return whether the store of a layer is finished."""
        return _is_finished(self.layer(layer))

    def store(self, layer: int) -> Store:
        """Open the store of a layer; raises UserError as `open_store` does."""
        return open_store(self.layer(layer))

    def stores(self) -> list[Store]:
        """Open the finished stores, by layer."""
        return [self.store(layer) for layer in self.layers]

    def plan(self, layer: int) -> StorePlan | None:
        """Return what the store of a layer holds or will hold; None where there is none."""
        return begun_plan(self.layer(layer))

    @property
    def plans(self) -> list[StorePlan]:
        """What all stores hold or will hold: finished ones first, the deepest of them first."""
        deepest = sorted(self.layer_folders, key=lambda path: (_is_finished(path), path))[::-1]
        return [plan for plan in map(begun_plan, deepest) if plan]

    def record(self, layer: int | None = None) -> StoreManifest:
        """Return the record of a finished store; by default of the deepest one.

        Raises:
            UserError: it is missing or damaged.
        """
        return StoreManifest.read(self.layer(self.layers[-1] if layer is None else layer))

    def engines(self, layer: int) -> tuple[BuiltIndex, ...]:
        """Return the finished engines of a layer, by dim and then name."""
        return built_indexes(self.layer(layer))

    def dims(self, layer: int) -> tuple[int, ...]:
        """Return the dims of the flat indexes of a layer, increasing."""
        return tuple(built.dim for built in self.engines(layer) if built.engine == "flat")

    @property
    def model(self) -> str:
        """The model of the vectors, or this folder if they have none."""
        return self.model_of(self.record().label)

    def model_of(self, label: Label) -> str:
        """Return the model of a store or an engine, as `model`."""
        return str(self) if self.card.exists() else label.model

    @property
    def written_at(self) -> int:
        """When the newest store was written, in nanoseconds."""
        return max((self.layer(each) / STORE).stat().st_mtime_ns for each in self.layers)

    @property
    def state(self) -> list[tuple[int, ...]]:
        """Stamps of stores, engines and maps: others once one of them has changed."""
        records = [folder / STORE for folder in self.layer_folders]
        engines = sorted(self.path.glob(f"layer-*/dim-*/{MANIFEST}"))
        return [stamp_of(path) for path in (*records, *engines, self.exits / EXITS_FILE)]

    # The stores of all layers, which a sync replaces at once

    def lock(self) -> AbstractContextManager[None]:
        """Lock the stores of all layers against other writers.

        Raises:
            UserError: another process holds the lock.
        """
        return lock_file(self._beside(".stores"))

    @property
    def new(self) -> "IndexFolder":
        """The folder in which a sync writes the stores that will replace these."""
        return IndexFolder(self._beside(NEW))

    def _beside(self, end: str) -> Path:
        """Return a path beside this folder, on its own disk also where that is a link."""
        path = Path(os.path.realpath(self.path))
        return path.with_name(path.name + end)

    def swap_in(self) -> None:
        """Put the stores of `new` in the place of these, by one rename; remove these.

        Other things in the folder are kept.
        """
        exchange(self._beside(""), self.new.path)
        self.end_sync()

    def end_sync(self) -> None:
        """Remove what a sync left that was stopped; one that wrote stores can still go on."""
        home, new, old = self._beside(""), self.new.path, self._beside(OLD)
        if old.exists():  # of an exchange by three renames
            old.rename(new if home.exists() else home)
        if (home / SYNCING).exists():
            for path in new.glob("*"):  # such as a half-written layer, or somebody's copy
                if not (home / path.name).exists():
                    path.rename(home / path.name)
            shutil.rmtree(new, ignore_errors=True)
            (home / SYNCING).unlink()
        elif new.exists() and not (new / SYNCING).exists():
            shutil.rmtree(new)


_RECORDS = (STORE, PARTIAL)
_ASKED = "asked.json"


def _is_finished(folder: Path) -> bool:
    return (folder / STORE).exists()


def _number(folder: Path) -> int:
    return int(folder.name[6:])


def exchange(first: Path, second: Path) -> None:
    """Exchange two folders: at once where the system can, else by three renames."""
    fsync(second)
    with suppress(AttributeError, OSError):
        at, flag = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
        library = ctypes.CDLL(None, use_errno=True)
        if library.renameat2(at, os.fsencode(first), at, os.fsencode(second), flag) == 0:
            fsync(first.parent)
            return
    middle = first.with_name(first.name + OLD)
    first.rename(middle)
    second.rename(first)
    middle.rename(second)
    fsync(first.parent)
