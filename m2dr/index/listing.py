"""List the stores below a folder of indexes, finished or not."""

from dataclasses import dataclass
from pathlib import Path

from m2dr.core.errors import UserError
from m2dr.index.layout import DIGITS, PARTIAL, STORE, built_indexes
from m2dr.index.manifest import StoreManifest
from m2dr.index.store_writer import Shards, read_partial


@dataclass(frozen=True)
class ListedStore:
    """A row of the list of stores."""

    folder: Path
    corpus: str
    model: str  # where it was found when the store was begun: a folder, a name or an id
    fingerprint: str  # the first digits of the model's
    layer: int
    documents: int  # written so far, where the store is not finished
    dtype: str
    bytes: int  # of vectors and indexes
    indexes: tuple[str, ...]  # dims, each with its engine unless that is flat
    finished: bool
    problem: str = ""  # why it cannot be read


def store_folders(root: Path) -> list[Path]:
    """Return the folders at or below `root` that hold a store or a part of one, sorted."""
    found = {path.parent for name in (STORE, PARTIAL) for path in root.rglob(name)}
    return sorted(found)


def list_stores(root: Path) -> list[ListedStore]:
    """Return a row per store, sorted by folder; that of a damaged one says why."""
    return [_listed(folder) for folder in store_folders(root)]


def _listed(folder: Path) -> ListedStore:
    finished = (folder / STORE).exists()
    try:
        if finished:
            manifest = StoreManifest.read(folder)
            plan, documents = manifest.plan, manifest.documents
        else:
            plan = read_partial(folder).plan
            documents = sum(s.rows for s in Shards(folder, plan).read_all())
    except UserError as error:
        return ListedStore(folder, "?", "?", "?", 0, 0, "?", 0, (), finished, str(error))
    built = built_indexes(folder)
    files = [*folder.glob(f"vectors-*.{plan.dtype}")]
    files += [path for index in built for path in index.folder.iterdir()]
    names = [str(b.dim) if b.engine == "flat" else f"{b.dim} {b.engine}" for b in built]
    return ListedStore(
        folder,
        plan.corpus,
        plan.label.model,
        plan.label.fingerprint[:DIGITS],
        plan.layer,
        documents,
        plan.dtype,
        sum(path.stat().st_size for path in files),
        tuple(names),
        finished,
    )
