"""The complete commands that make again what an index folder should hold."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m2dr.errors import command
from m2dr.index.inventory import built_indexes
from m2dr.index.layout import DIGITS, MANIFEST, PARTIAL, STORE, index_parts
from m2dr.jsontext import load_json

_FACTORY = re.compile(r"[0-9a-f]{8}")  # the end of an index's name that a factory string gave it


@dataclass(frozen=True)
class Origin:
    """How the vectors of a folder were made, as far as its records tell."""

    source: str = ""  # what m2dr was given as the corpus
    model: str = ""  # the same of the model
    dtype: str = ""  # how vectors are kept
    shard_rows: int = 0  # of a store that is not finished, which goes on with as many
    root: Path | None = None  # the folder of indexes; None: indexes/

    def remedy(self, **options: object) -> str:
        """Return "with: " and the command, or what to say where corpus or model are not known."""
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
    """Return how to make the store in `folder`, with the indexes that lie in it.

    Args:
        folder: of a layer; it need not exist.
        plan: the fields of what it is to hold; None: what its records say.
        overwrite: the command encodes from the first document on.
        resume: the command says that it goes on.
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
    """Return how to build the index in `folder`, of a name that m2dr gave; it need not exist."""
    made = _read(folder / MANIFEST)
    parts = index_parts(folder)
    if parts is None and not made:
        return Origin().remedy()
    dim, engine = parts or (made.get("dim") or None, _word(made, "engine") or "flat")
    factory: object = ""
    if _FACTORY.fullmatch(engine[-8:]):  # only its manifest knows the string behind that name
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
    """Return what the records of a store tell, else those of its indexes, else of other layers."""
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
    """A field of a record that may be damaged; empty where it is no text."""
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
    """The layer that a store's folder is named after; empty where it has another name."""
    found = re.fullmatch(r"layer-0*(\d+)", folder.name)
    return found[1] if found else ""


def _read(path: Path) -> dict[str, Any]:
    """The JSON object of a file; an empty one where there is none, whatever the reason."""
    try:
        found = load_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _root(folder: Path, corpus: str, fingerprint: str) -> Path | None:
    """The folder of indexes that a store's folder lies in; None where that is the usual one."""
    home, parts = folder.parent, Path(corpus).parts
    if home.name != fingerprint[:DIGITS] or home.parent.parts[-len(parts) :] != parts:
        return None  # it was copied elsewhere
    root = home.parents[len(parts)]
    return None if root == Path("indexes") else root
