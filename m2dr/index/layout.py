"""Paths of stores and indexes, and the complete commands that make again what is missing there."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m2dr.core.errors import UserError, command, counted
from m2dr.core.files import read_json

STORE = "store.json"
PARTIAL = "store.partial.json"
DOCIDS = "docids.txt"
MANIFEST = "manifest.json"
INDEX = "index"  # this name and the next are those that pyserini's FaissSearcher opens
INDEX_DOCIDS = "docid"
EXITS = "exits"  # folder of the exits that were fitted on the documents, beside the stores
DIGITS = 12  # of the fingerprint, in folder names and in messages
_LAYER = re.compile(r"layer-(\d+)")  # the name of a store's folder
_FACTORY = re.compile(r"[0-9a-f]{8}")  # the end of an index's name that a factory string gave it


def store_folder(root: Path, corpus: str, fingerprint: str, layer: int) -> Path:
    """Return the folder of the store of one layer.

    >>> store_folder(Path("indexes"), "beir/scifact", "0123456789abcdef", 6).as_posix()
    'indexes/beir/scifact/0123456789ab/layer-06'
    """
    parts = Path(corpus).parts
    if not parts or Path(corpus).is_absolute() or ".." in parts:
        raise UserError(f"{corpus!r} cannot name a corpus: use a relative name such as pydocs.")
    return root.joinpath(*parts, fingerprint[:DIGITS], f"layer-{layer:02d}")


def index_folder(store: Path, dim: int, engine: str = "flat") -> Path:
    """Return the folder of the index of one prefix, within the folder of its store.

    Args:
        store: its folder.
        dim: dims kept.
        engine: a row of ENGINES, or `engines.factory_name` of a factory string.

    >>> index_folder(Path("layer-06"), 128, "hnsw").as_posix()
    'layer-06/dim-128-hnsw'
    """
    return store / (f"dim-{dim}" if engine == "flat" else f"dim-{dim}-{engine}")


def index_parts(folder: Path) -> tuple[int, str] | None:
    """Return dim and engine of a folder that `index_folder` named; None for any other folder.

    >>> index_parts(Path("layer-06/dim-128-hnsw"))
    (128, 'hnsw')
    """
    found = re.fullmatch(r"dim-([1-9]\d*)(?:-([a-z0-9-]+))?", folder.name)
    return (int(found[1]), found[2] or "flat") if found else None


def shard_name(number: int, dtype: str) -> str:
    """Return the name of the file of a shard's vectors; shards count from 0 in corpus order.

    >>> shard_name(7, "f16")
    'vectors-00007.f16'
    """
    return f"vectors-{number:05d}.{dtype}"


@dataclass(frozen=True, order=True)
class BuiltIndex:
    """A finished index in a store's folder."""

    dim: int
    engine: str  # a row of ENGINES, or the name of a factory string
    folder: Path


def built_indexes(store: Path) -> tuple[BuiltIndex, ...]:
    """Return the finished indexes in a store's folder, by dim and then engine."""
    folders = [path.parent for path in store.glob(f"dim-*/{MANIFEST}")]
    found = [(index_parts(folder), folder) for folder in folders]
    return tuple(sorted(BuiltIndex(*parts, folder) for parts, folder in found if parts))


def layer_folders(home: Path) -> list[Path]:
    """Return the folders of layers beside one another; a copy such as layer-04.old is none."""
    return sorted(
        path for path in home.glob("layer-*") if _LAYER.fullmatch(path.name) and path.is_dir()
    )


def store_folders_of(home: Path) -> list[Path]:
    """Return the folders of layers whose stores are finished."""
    return [folder for folder in layer_folders(home) if (folder / STORE).exists()]


def homes(folder: Path) -> list[Path]:
    """Return the folders with stores of layers that a folder is, lies in or holds, sorted."""
    for place in (folder, folder.parent, folder.parent.parent):
        if store_folders_of(place) and (place == folder or _is_part(folder, place)):
            return [place]
    found = {path.parent.parent for path in folder.rglob(f"layer-*/{STORE}")}
    return sorted(home for home in found if store_folders_of(home))


def only_home(folder: Path, verb: str) -> Path:
    """Return the one of `homes`.

    Args:
        folder: that was given.
        verb: the command that it was given to, which takes an index as --index.

    Raises:
        UserError: there is none, or more than one.
    """
    found = homes(folder)
    if not found:
        raise UserError(
            f"{folder} holds no finished index and no store. See what there is with: "
            f"{command('index', 'list')}"
        )
    if len(found) > 1:
        raise UserError(
            f"{folder} holds {counted(len(found), 'indexes')} ({', '.join(map(str, found))}); name "
            f"one of them, as in: {command(verb, index=found[0])}"
        )
    return found[0]


def _is_part(folder: Path, home: Path) -> bool:
    """Whether a folder is a layer's store below a home, or one of its indexes."""
    layers = layer_folders(home)
    return folder in layers or (folder.parent in layers and (folder / MANIFEST).exists())


def stored_layers(root: Path, corpus: str, fingerprint: str) -> tuple[int, ...]:
    """Return the layers whose stores are finished, increasing."""
    home = store_folder(root, corpus, fingerprint, 1).parent
    return tuple(sorted(int(folder.name[6:]) for folder in store_folders_of(home)))


def built_dims(store: Path) -> tuple[int, ...]:
    """Return the dims that have a flat index in a store's folder, increasing."""
    return tuple(index.dim for index in built_indexes(store) if index.engine == "flat")


@dataclass(frozen=True)
class Origin:
    """How the vectors of a folder were made, as far as its records say."""

    source: str = ""  # the corpus, as it was given to m2dr
    model: str = ""  # the model, likewise
    dtype: str = ""  # of the store
    shard_rows: int = 0  # of an unfinished store, which goes on with as many
    root: Path | None = None  # the folder of indexes; None: indexes/

    def remedy(self, **options: object) -> str:
        """Return "with: " and the command; without it where corpus or model are not known."""
        if not (self.source and self.model):
            flags = "".join(f" and --{name}" for name, value in options.items() if value is True)
            return f"with the command that made it{flags}"
        store = "" if self.dtype == "f16" else self.dtype
        words = {"corpus": self.source, "model": self.model, **options, "store": store}
        return f"with: {command('index', 'corpus', **words, indexes=self.root)}"


def store_remedy(
    folder: Path,
    plan: Mapping[str, Any] | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
) -> str:
    """Return "with: " and the command that makes the store in `folder`, with its indexes.

    Args:
        folder: of a layer; it need not exist.
        plan: the fields of its StorePlan; None: as its records say.
        overwrite: whether the command encodes from the first document on.
        resume: whether the command has --resume.
    """
    origin = origin_of(folder) if plan is None else _origin(plan, folder)
    built = [one for one in built_indexes(folder) if not _FACTORY.fullmatch(one.engine[-8:])]
    engines = tuple(dict.fromkeys(one.engine for one in built))
    return origin.remedy(
        layer=_layer(folder),
        dim=tuple(dict.fromkeys(one.dim for one in built)),
        engine=() if engines == ("flat",) else engines,
        overwrite=overwrite,
        resume=resume,
        shard_rows=origin.shard_rows if resume and origin.shard_rows else None,
    )


def index_remedy(folder: Path) -> str:
    """Return "with: " and the command that builds the index in `folder`, which need not exist."""
    made = _read(folder / MANIFEST)
    parts = index_parts(folder)
    if parts is None and not made:
        return Origin().remedy()
    dim, engine = parts or (made.get("dim") or None, _word(made, "engine") or "flat")
    factory: object = ""
    if _FACTORY.fullmatch(engine[-8:]):  # only its manifest has the string behind that name
        factory, engine = _word(made, "factory"), "flat"
        if not factory:
            return Origin().remedy()
    return origin_of(folder.parent).remedy(
        layer=_layer(folder.parent),
        dim=dim,
        engine="" if engine == "flat" else engine,
        factory=factory,
    )


def origin_of(folder: Path) -> Origin:
    """Return what is recorded of a store, else of its indexes, else of the other layers."""
    found = (_origin(record, folder) for record in _records(folder) if record)
    return next(found, Origin())


def _origin(record: Mapping[str, Any], folder: Path) -> Origin:
    label = record.get("label")
    if not isinstance(label, Mapping):
        return Origin()
    rows = record.get("shard_rows")
    return Origin(
        _word(label, "source"),
        _word(label, "model"),
        _word(record, "dtype") or "f16",
        rows if type(rows) is int else 0,  # True is no count
        _root(folder, _word(record, "corpus"), _word(label, "fingerprint")),
    )


def _word(record: Mapping[str, Any], name: str) -> str:
    """Return a field of a record that may be damaged; empty where it is no text."""
    found = record.get(name)
    return found if isinstance(found, str) else ""


def _records(folder: Path) -> Iterator[dict[str, Any]]:
    for place in (folder, *sorted(folder.parent.glob("layer-*"))):
        yield _read(place / STORE)
        plan = _read(place / PARTIAL).get("plan")
        yield plan if isinstance(plan, dict) else {}
        for path in sorted(place.glob(f"dim-*/{MANIFEST}")):
            yield _read(path)


def _layer(folder: Path) -> str:
    """Return the layer in the name of a store's folder; empty where it has another name."""
    found = re.fullmatch(r"layer-0*(\d+)", folder.name)
    return found[1] if found else ""


def _read(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; an empty one where it cannot be read."""
    try:
        found = read_json(path)
    except UserError:
        return {}
    return found if isinstance(found, dict) else {}


def _root(folder: Path, corpus: str, fingerprint: str) -> Path | None:
    """Return the folder of indexes that holds a store's folder; None for the default, indexes/."""
    home, parts = folder.parent, Path(corpus).parts
    if home.name != fingerprint[:DIGITS] or home.parent.parts[-len(parts) :] != parts:
        return None  # it was copied elsewhere
    root = home.parents[len(parts)]
    return None if root == Path("indexes") else root
