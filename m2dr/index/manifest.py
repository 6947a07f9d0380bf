"""Folders and records of stores and indexes: paths, the label of vectors, plans and manifests.

indexes/<corpus>/<model fingerprint>/layer-06/
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
from itertools import starmap
from pathlib import Path

from m2dr.core.errors import UserError, counted
from m2dr.core.files import folders_below, json_sha256, read_record, write_record
from m2dr.core.records import CARD_FILE, Cut, Similarity, is_ready
from m2dr.core.requests import SHARD_ROWS
from m2dr.core.requests import Dtype as Dtype
from m2dr.core.variants import DocumentLayer

STORE = "store.json"
PARTIAL = "store.partial.json"
DOCIDS = "docids.txt"
DIGESTS = "digests.bin"
MANIFEST = "manifest.json"
INDEX = "index"  # this name and the next are those that pyserini's FaissSearcher opens
INDEX_DOCIDS = "docid"
NEW, OLD = ".new", ".old"  # ends of the names of folders that a sync of changed documents uses
DIGITS = 12  # of the fingerprint, in folder names and in messages
IMPORTED = "imported"  # the runtime of vectors that another tool made


# Folders


def store_folder(root: Path, corpus: str, fingerprint: str, layer: int) -> Path:
    """Return the folder of the store of one layer.

    >>> store_folder(Path("indexes"), "beir/scifact", "0123456789abcdef", 6).as_posix()
    'indexes/beir/scifact/0123456789ab/layer-06'
    """
    parts = Path(corpus).parts
    if not parts or Path(corpus).is_absolute() or ".." in parts:
        raise UserError(f"{corpus!r} cannot name a corpus: use a relative name such as pydocs.")
    return layer_folder(root.joinpath(*parts, fingerprint[:DIGITS]), layer)


def layer_folder(home: Path, layer: int) -> Path:
    """Return the folder of the store of one layer, beside those of others in `home`."""
    return home / f"layer-{layer:02d}"


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


def built_dims(store: Path) -> tuple[int, ...]:
    """Return the dims that have a flat index in a store's folder, increasing."""
    return tuple(index.dim for index in built_indexes(store) if index.engine == "flat")


def layer_folders(home: Path) -> list[Path]:
    """Return the folders of layers beside one another; a copy such as layer-04.old is none."""
    names = re.compile(r"layer-\d+")
    return sorted(path for path in home.glob("layer-*") if names.fullmatch(path.name))


def store_folders_of(home: Path) -> list[Path]:
    """Return the folders of layers whose stores are finished."""
    return [folder for folder in layer_folders(home) if (folder / STORE).exists()]


def written_at(home: Path) -> int:
    """Return when the newest store of a home was written, in nanoseconds."""
    return max((folder / STORE).stat().st_mtime_ns for folder in store_folders_of(home))


def stored_layers(root: Path, corpus: str, fingerprint: str) -> tuple[int, ...]:
    """Return the layers whose stores are finished, increasing."""
    home = store_folder(root, corpus, fingerprint, 1).parent
    return tuple(sorted(int(folder.name[6:]) for folder in store_folders_of(home)))


def homes(folder: Path) -> list[Path]:
    """Return the homes (folders of `layer-NN`) that a folder is, lies in or holds, sorted."""
    for home in (folder, folder.parent, folder.parent.parent):
        if home in (folder, folder.parent) or (folder / MANIFEST).exists():
            layers = layer_folders(home)
            inside = home == folder or folder in layers or folder.parent in layers
            if inside and store_folders_of(home):
                return [home]
    return sorted({path.parent for path in store_folders(folder) if (path / STORE).exists()})


def only_home(folder: Path) -> Path:
    """Return the only one of `homes`.

    Raises:
        UserError: there is none, or more than one.
    """
    candidates = homes(folder)
    if not candidates:
        raise UserError(f"{folder} holds no finished index and no store.")
    if len(candidates) > 1:
        names = ", ".join(map(str, candidates))
        count = counted(len(candidates), "indexes")
        raise UserError(f"{folder} holds {count}: name one of {names}.")
    return candidates[0]


def store_folders(root: Path) -> list[Path]:
    """Return the folders at or below `root` that hold a store or a part of one, sorted."""
    return sorted(
        folder
        for folder in folders_below(root)
        if folder.parent.suffix not in (NEW, OLD)
        and any((folder / name).exists() for name in (STORE, PARTIAL))
    )


def model_of(home: Path, label: "Label") -> str:
    """Return the model of stores; for vectors without a model, the folder of the stores."""
    return str(home) if (home / CARD_FILE).exists() else label.model


# Records


@dataclass(frozen=True)
class Label:
    """How texts became vectors. Queries and documents are comparable when their labels agree."""

    fingerprint: str  # sha256 of the model's weights, tokenizer and config.json, in hex
    similarity: Similarity  # cosine: vectors are normalised after they are cut
    pooling: str
    query_prefix: str
    document_prefix: str
    query_length: int  # tokens, at most
    document_length: int  # tokens, at most
    document_layer: DocumentLayer  # which layer encodes documents for a shallow query
    cuts: tuple[tuple[int, int], ...] = ()  # (layer, dim) pairs that were trained
    model: str = ""  # where the model was found: a hint for people, never compared
    source: str = ""  # the corpus as it was given to m2dr, the same kind of hint

    def differences(self, other: "Label") -> dict[str, tuple[str | int, str | int]]:
        """Return the fields that make vectors incomparable, with both values."""
        mine, theirs = asdict(self), asdict(other)
        compared = sorted(mine.keys() - {"cuts", "model", "source"})
        return {name: (mine[name], theirs[name]) for name in compared if mine[name] != theirs[name]}

    def accept(self, queries: "Label", corpus: str) -> None:
        """Refuse queries that were not encoded as the documents of `corpus` were.

        Raises:
            UserError: another model, or the same one with other prefixes, pooling, lengths or
                similarity.
        """
        if queries.fingerprint != self.fingerprint:
            names = f"{self._name()}, and the queries by {queries._name()}"
            raise UserError(f"The documents of {corpus} were encoded by model {names}.")
        if different := self.differences(queries):
            words = ", ".join(f"{name} {a!r} against {b!r}" for name, (a, b) in different.items())
            raise UserError(f"The documents of {corpus} and the queries differ in {words}.")

    def warnings(self, query: Cut, documents: Cut) -> list[str]:
        """Return sentences that say why rankings may be worse than the model allows.

        Args:
            query: the cut of the queries.
            documents: the cut of the documents.
        """
        sentences = [
            f"Cut {cut} was not trained: expect worse or near random rankings."
            for cut in dict.fromkeys((query, documents))
            if not is_ready(cut, starmap(Cut, self.cuts))
        ]
        if query.layer != documents.layer and self.document_layer == "same":
            sentences.append(
                f"Queries of layer {query.layer} search documents of layer {documents.layer}, but "
                f"this model trained each layer against documents of its own: the two spaces are "
                f"not aligned, so expect much worse or near random rankings. Index layer "
                f"{query.layer}."
            )
        last = max((layer for layer, _ in self.cuts), default=documents.layer)
        if self.document_layer == "last" and documents.layer != last:
            sentences.append(
                f"Documents come from layer {documents.layer}, but this model trained queries "
                f"against documents of layer {last}: expect much worse rankings. Index that "
                "layer."
            )
        return sentences

    def _name(self) -> str:
        short = self.fingerprint[:DIGITS]
        return f"{short} ({self.model})" if self.model else short


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
