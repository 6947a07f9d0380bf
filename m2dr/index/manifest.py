"""Records of stores and engines: plans and manifests, and the files beside them.

layer-06/
    store.json            a StoreManifest, written last
    docids.txt            in the order of the rows
    digests.bin           of the texts that were encoded, 16 bytes each, in the order of the rows
    vectors-00000.f16     [rows, width], row-major
    dim-128/index         a FAISS file; pyserini's FaissSearcher opens this folder
    dim-128/docid         in the order of the rows
    dim-128/manifest.json an IndexManifest, written last
"""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from m2dr.core.errors import UserError
from m2dr.core.files import folders_below, json_sha256, read_record, write_record
from m2dr.core.records import Dtype as Dtype
from m2dr.core.records import Label, Similarity
from m2dr.core.requests import SHARD_ROWS

STORE = "store.json"
PARTIAL = "store.partial.json"
DOCIDS = "docids.txt"
DIGESTS = "digests.bin"
MANIFEST = "manifest.json"
INDEX = "index"  # this name and the next are those that pyserini's FaissSearcher opens
INDEX_DOCIDS = "docid"
NEW, OLD = ".new", ".old"  # ends of the names of folders that a sync uses
IMPORTED = "imported"  # the runtime of vectors that another tool made


# Folders


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


@dataclass(frozen=True, order=True)
class BuiltIndex:
    """A finished index in a store's folder."""

    dim: int
    engine: str  # a row of ENGINES, or the name of a factory string
    folder: Path


def built_indexes(store: Path) -> tuple[BuiltIndex, ...]:
    """Return the finished indexes in a store's folder, by dim and then engine."""
    built = []
    for path in store.glob(f"dim-*/{MANIFEST}"):
        if parts := re.fullmatch(r"dim-([1-9]\d*)(?:-([a-z0-9-]+))?", path.parent.name):
            built.append(BuiltIndex(int(parts[1]), parts[2] or "flat", path.parent))
    return tuple(sorted(built))


def store_folders(root: Path) -> list[Path]:
    """Return the folders at or below `root` that hold a store or a part of one, sorted."""
    return sorted(
        folder
        for folder in folders_below(root)
        if folder.parent.suffix not in (NEW, OLD)
        and any((folder / name).exists() for name in (STORE, PARTIAL))
    )


# Records


@dataclass(frozen=True)
class Shard:
    """One file of vectors, and what was encoded into it."""

    name: str
    rows: int
    sha256: str  # of the file
    docids: str  # sha256 of the docids, one per line
    texts: str  # sha256 of the digests of the texts


@dataclass(frozen=True)
class StorePlan:
    """What a store will hold, fixed before its first vector is written."""

    corpus: str
    layer: int
    width: int  # dims of a vector
    label: Label
    dtype: Dtype = "f16"
    shard_rows: int = SHARD_ROWS  # in every shard but the last
    runtime: str = "torch"  # what multiplied: openvino's vectors differ by rounding; or IMPORTED

    def refuse_other(self, other: "StorePlan", folder: Path, ignored: Iterable[str] = ()) -> None:
        """Refuse to mix the vectors in `folder`, of this plan, with those of another plan.

        Args:
            other: what was asked for.
            folder: of the store.
            ignored: names of fields that may differ.

        Raises:
            UserError: another field differs.
        """
        names = {"corpus", "layer", "width", "dtype", "shard_rows", "runtime"} - {*ignored}
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in sorted(names)}
        pairs |= self.label.differences(other.label)
        if words := [f"{name} {a!r}, not {b!r}" for name, (a, b) in pairs.items() if a != b]:
            raise UserError(f"{folder} has {', '.join(words)}; --overwrite encodes it anew.")


@dataclass(frozen=True, kw_only=True)
class StoreManifest(StorePlan):
    """store.json: written last, so that a folder with it is a finished store."""

    documents: int
    shards: tuple[Shard, ...]
    docids: str  # sha256 of docids.txt
    texts: str  # sha256 of digests.bin
    fields: str = ""  # sha256 of the file of fields; empty where no document has any
    field_texts: str = ""  # digest of the fields, which that file was made from

    @property
    def knows_texts(self) -> bool:
        """Return whether digests of texts are stored: vectors can be imported without a corpus."""
        return self.runtime != IMPORTED or bool(self.field_texts)

    @property
    def plan(self) -> StorePlan:
        """The plan that this store was written by."""
        return StorePlan(**{each.name: getattr(self, each.name) for each in fields(StorePlan)})

    @property
    def digest(self) -> str:
        """Sha256 that identifies what this store holds, without the paths of model and corpus."""
        table = asdict(self)
        del table["label"]["model"], table["label"]["source"]
        for name in ("runtime", "fields", "field_texts"):  # no vector depends on these
            del table[name]
        return json_sha256(table)

    def write(self, folder: Path) -> None:
        """Write store.json."""
        write_record(folder / STORE, self)

    @classmethod
    def read(cls, folder: Path) -> "StoreManifest":
        """Read store.json.

        Raises:
            UserError: it is missing or malformed, or its numbers of documents contradict each
                other.
        """
        manifest = read_record(folder / STORE, cls)
        if sum(shard.rows for shard in manifest.shards) != manifest.documents:
            raise UserError(f"{folder / STORE} has other numbers of rows than of documents.")
        return manifest


def begun_plan(folder: Path) -> StorePlan | None:
    """Return the plan of a store, finished or not; None where there is none."""
    if (folder / STORE).exists():
        return StoreManifest.read(folder).plan
    path = folder / PARTIAL
    return read_record(path, StorePlan) if path.exists() else None


@dataclass(frozen=True)
class IndexManifest:
    """dim-K/manifest.json: written last, so that a folder with it is a finished index."""

    corpus: str
    documents: int
    layer: int  # transformer layers that encoded the documents; 0: words alone
    dim: int  # dims kept
    engine: str
    similarity: Similarity
    label: Label
    bytes: int  # size of the index file
    sha256: str  # of the index file
    docids: str  # sha256 of the docid file
    store: str  # digest of the store that it was cut from
    factory: str = "Flat"  # what FAISS made it from
    search_params: tuple[tuple[str, int], ...] = ()  # the defaults, by name
    notes: tuple[str, ...] = ()  # what differs from the engine's default, and why

    def write(self, folder: Path) -> None:
        """Write manifest.json."""
        write_record(folder / MANIFEST, self)

    @classmethod
    def read(cls, folder: Path) -> "IndexManifest":
        """Read manifest.json.

        Raises:
            UserError: it is missing or malformed.
        """
        return read_record(folder / MANIFEST, cls)
