"""What lies in a folder: written when it is finished, asked before it is used."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from m2dr.errors import UserError, nearest
from m2dr.index.label import Label
from m2dr.index.layout import MANIFEST, STORE, shard_name
from m2dr.index.remedies import index_remedy, store_remedy
from m2dr.jsontext import LATER, read_json, write_json
from m2dr.records.card import Similarity
from m2dr.records.cut import Cut

Dtype = Literal["f16", "f32", "int8"]


@dataclass(frozen=True)
class Shard:
    """One file of vectors, and what was encoded into it."""

    name: str
    rows: int
    sha256: str  # of the file
    docids: str  # sha256 of the docids, one per line
    texts: str  # the caller's digest of what was encoded


@dataclass(frozen=True)
class StorePlan:
    """What a store will hold: settled before its first vector, the same after a resume."""

    corpus: str
    layer: int
    width: int  # coordinates per vector
    label: Label
    dtype: Dtype = "f16"
    shard_rows: int = 65536  # in every shard but the last; 50 MB of f16 at width 384

    def __post_init__(self) -> None:
        if self.dtype not in get_args(Dtype):
            hint = nearest(self.dtype, get_args(Dtype))
            raise UserError(f"Vectors cannot be stored as {self.dtype!r}. {hint}")
        if self.layer < 0 or min(self.width, self.shard_rows) < 1:
            raise UserError(
                f"A store has a layer from 0, and a coordinate and a row per shard at least, not "
                f"{self.layer}, {self.width} and {self.shard_rows}."
            )

    def differences(self, other: "StorePlan") -> dict[str, tuple[str | int, str | int]]:
        """Name each field in which two stores would differ, with both values."""
        names = ("corpus", "layer", "width", "dtype", "shard_rows")
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        found = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        return found | self.label.differences(other.label)


@dataclass(frozen=True)
class PartialStore:
    """store.partial.json: a store whose encoding goes on; each shard has a record of its own."""

    plan: StorePlan


@dataclass(frozen=True)
class StoreManifest:
    """store.json: written last, so that a folder with it is a finished store."""

    corpus: str
    documents: int
    layer: int
    width: int
    dtype: Dtype
    shard_rows: int
    label: Label
    shards: tuple[Shard, ...]
    docids: str  # sha256 of docids.txt
    texts: str  # sha256 over the shards' digests of texts

    @property
    def plan(self) -> StorePlan:
        """What this store was to be."""
        return StorePlan(
            self.corpus, self.layer, self.width, self.label, self.dtype, self.shard_rows
        )

    @property
    def digest(self) -> str:
        """Identify what this store holds; the path of the model is not a part of it."""
        table = asdict(replace(self, label=replace(self.label, model="")))
        del table["label"]["source"]  # nor is the path of the corpus
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()

    def accept(self, queries: Label, folder: Path | None = None) -> None:
        """Raise UserError unless queries of that label may be scored against the store there."""
        self.label.accept(queries, self.corpus, folder)

    def warnings(self, query: Cut, folder: Path | None = None) -> list[str]:
        """Say why rankings of `query` may be worse than this model can do."""
        return self.label.warnings(query, Cut(self.layer, query.dim), folder)

    def write(self, folder: Path) -> None:
        """Write store.json."""
        write_json(folder / STORE, self)

    @classmethod
    def read(cls, folder: Path) -> "StoreManifest":
        """Read store.json.

        Raises:
            UserError: it is missing, malformed, incomplete or of another format.
        """

        def remedy() -> str:
            return f"Encode the documents again {store_remedy(folder, overwrite=True)}"

        manifest = read_json(folder / STORE, cls, remedy)
        for problem in manifest.problems():
            raise UserError(f"{folder / STORE} {problem}. {remedy()}")
        return manifest

    def problems(self) -> Iterator[str]:
        """Say how the fields contradict each other, each as the end of a sentence."""
        yield from _below_0(self.layer)
        least = min(self.documents, self.width, self.shard_rows)
        if least < 1:
            yield f"has {least} documents, coordinates or rows per shard, not at least 1"
        for number, shard in enumerate(self.shards):
            name = shard_name(number, self.dtype)
            last = number == len(self.shards) - 1
            if shard.name != name:  # a file of another folder, or the same one twice
                yield f"names shard {number} {shard.name!r} where {name!r} belongs"
            elif not (1 if last else self.shard_rows) <= shard.rows <= self.shard_rows:
                yield f"gives {name} {shard.rows} rows, and each shard has {self.shard_rows}"
        rows = sum(shard.rows for shard in self.shards)
        if rows != self.documents:
            yield f"has {rows} rows in its shards for {self.documents} documents"
        if self.texts != texts_digest(self.shards):
            yield "has another digest of its texts than its shards"


@dataclass(frozen=True)
class IndexManifest:
    """dim-K/manifest.json: written last, so that a folder with it is a finished index."""

    corpus: str
    documents: int
    layer: int  # transformer layers that encoded the documents; 0: a table of tokens
    dim: int  # coordinates kept
    engine: str
    similarity: Similarity
    label: Label
    bytes: int  # size of the index file
    sha256: str  # of the index file
    docids: str  # sha256 of the docid file
    store: str  # digest of the store that it was cut from
    # Fields that came later: a file that lacks them reads as these say.
    factory: str = field(default="Flat", metadata=LATER)  # what FAISS made it from
    # What searching starts from, by name.
    knobs: tuple[tuple[str, int], ...] = field(default=(), metadata=LATER)
    # The function of FAISS that opens the index file.
    reader: str = field(default="read_index", metadata=LATER)
    # How it differs from what the engine usually builds.
    notes: tuple[str, ...] = field(default=(), metadata=LATER)

    def accept(self, queries: Label, query: Cut, store: Path | None = None) -> None:
        """Raise UserError unless the `query` cut of that label may search this index.

        Args:
            queries: their label.
            query: their cut.
            store: the folder that holds the index's own, for the command in the refusal.
        """
        self.label.accept(queries, self.corpus, store)
        if query.dim != self.dim:
            origin = self.label.origin(store)
            raise UserError(
                f"Queries of dimension {query.dim} were asked for, and this index of {self.corpus} "
                f"has dimension {self.dim}. Build theirs "
                f"{origin.remedy(layer=self.layer, dim=query.dim)}"
            )

    def warnings(self, query: Cut, store: Path | None = None) -> list[str]:
        """Say why rankings of `query` may be worse than this model can do."""
        return self.label.warnings(query, Cut(self.layer, self.dim), store)

    def write(self, folder: Path) -> None:
        """Write manifest.json."""
        write_json(folder / MANIFEST, self)

    @classmethod
    def read(cls, folder: Path) -> "IndexManifest":
        """Read manifest.json.

        Raises:
            UserError: it is missing, malformed, incomplete or of another format.
        """

        def remedy() -> str:
            return f"Build the index {index_remedy(folder)}"

        manifest = read_json(folder / MANIFEST, cls, remedy)
        for problem in manifest.problems():
            raise UserError(f"{folder / MANIFEST} {problem}. {remedy()}")
        return manifest

    def problems(self) -> Iterator[str]:
        """Say how the fields contradict each other, each as the end of a sentence."""
        yield from _below_0(self.layer)
        least = min(self.documents, self.dim, self.bytes)
        if least < 1:
            yield f"has {least} documents, coordinates or bytes, not at least 1"
        if self.similarity != self.label.similarity:
            yield f"has similarity {self.similarity}, and its label {self.label.similarity}"


def _below_0(layer: int) -> Iterator[str]:
    if layer < 0:
        yield f"has layer {layer}, and layers count from 0"


def texts_digest(shards: Iterable[Shard]) -> str:
    """Return the sha256 over the digests of what was encoded into each shard, in hex."""
    return hashlib.sha256("".join(shard.texts for shard in shards).encode()).hexdigest()
