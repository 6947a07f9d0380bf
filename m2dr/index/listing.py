"""What lies below a folder of indexes: every store, finished or not, as a line of a table."""

from dataclasses import dataclass
from pathlib import Path

from m2dr.errors import UserError
from m2dr.index.inventory import built_indexes
from m2dr.index.layout import DIGITS, PARTIAL, STORE
from m2dr.index.manifest import StoreManifest, StorePlan
from m2dr.index.shards import Shards, read_partial


@dataclass(frozen=True)
class Listed:
    """One store."""

    folder: Path
    corpus: str
    model: str  # the first digits of its fingerprint
    layer: int
    documents: int  # written so far, where it is not finished
    dtype: str
    bytes: int  # of vectors and indexes
    indexes: tuple[str, ...]  # dims, each with its engine unless that is flat
    finished: bool
    problem: str = ""  # why it cannot be read


def store_folders(place: Path) -> list[Path]:
    """Folders at or below `place` that hold a store or a part of one, sorted."""
    found = {path.parent for name in (STORE, PARTIAL) for path in place.rglob(name)}
    return sorted(found)


def list_stores(root: Path) -> list[Listed]:
    """One row per store, sorted by folder; one that is damaged says why."""
    return [_listed(folder) for folder in store_folders(root)]


def _listed(folder: Path) -> Listed:
    finished = (folder / STORE).exists()
    try:
        plan, documents = _finished(folder) if finished else _partial(folder)
    except UserError as error:
        return Listed(folder, "?", "?", 0, 0, "?", 0, (), finished, str(error))
    built = built_indexes(folder)
    files = [*folder.glob(f"vectors-*.{plan.dtype}")]
    files += [path for index in built for path in index.folder.iterdir()]
    names = [str(b.dim) if b.engine == "flat" else f"{b.dim} {b.engine}" for b in built]
    return Listed(
        folder,
        plan.corpus,
        plan.label.fingerprint[:DIGITS],
        plan.layer,
        documents,
        plan.dtype,
        sum(path.stat().st_size for path in files),
        tuple(names),
        finished,
    )


def _finished(folder: Path) -> tuple[StorePlan, int]:
    manifest = StoreManifest.read(folder)
    return manifest.plan, manifest.documents


def _partial(folder: Path) -> tuple[StorePlan, int]:
    plan = read_partial(folder).plan
    shards = Shards(folder, plan)
    return plan, sum(shards.read(number).rows for number in shards.numbers())
