"""Records of stores and indexes: the label of their vectors, plans and manifests."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar, get_args

from m2dr.core.errors import UserError, nearest
from m2dr.core.files import json_sha256, read_record, write_record
from m2dr.core.records import Cut, Similarity
from m2dr.core.requests import Dtype as Dtype
from m2dr.core.variants import DocumentLayer
from m2dr.index.layout import (
    DIGITS,
    MANIFEST,
    STORE,
    Origin,
    index_remedy,
    origin_of,
    shard_name,
    store_remedy,
)

_NO_VECTOR_DEPENDS_ON = ("fields", "runtime")
AnyManifest = TypeVar("AnyManifest", "StoreManifest", "IndexManifest")


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
    # The corpus as it was given to m2dr, the same kind of hint; empty for imported vectors.
    source: str = ""

    def differences(self, other: "Label") -> dict[str, tuple[str | int, str | int]]:
        """Return the fields that make vectors incomparable, with both values."""
        mine, theirs = asdict(self), asdict(other)
        compared = sorted(mine.keys() - {"cuts", "model", "source"})
        return {name: (mine[name], theirs[name]) for name in compared if mine[name] != theirs[name]}

    def accept(self, queries: "Label", corpus: str, store: Path | None = None) -> None:
        """Refuse queries that were not encoded as the documents of `corpus` were.

        Args:
            queries: their label.
            corpus: its name.
            store: the folder of the documents' store, whose records complete the command to run.

        Raises:
            UserError: another model, or the same one with other prefixes, pooling, lengths or
                similarity.
        """
        if queries.fingerprint != self.fingerprint:
            remedy = replace(self.origin(store), model=queries.model).remedy()
            raise UserError(
                f"The documents of {corpus} were encoded by model {self._name()}, and the queries "
                f"come from model {queries._name()}. Search with the first model, or let the "
                f"second encode the documents, {remedy}"
            )
        found = self.differences(queries)
        if found:
            told = ", ".join(f"{name} {a!r} against {b!r}" for name, (a, b) in found.items())
            raise UserError(
                f"The documents of {corpus} and the queries were encoded differently by the same "
                f"model: {told}. Restore the model's m2dr.json, or encode the documents again "
                f"{store_remedy(store, overwrite=True) if store else self.origin().remedy()}"
            )

    def origin(self, store: Path | None = None) -> Origin:
        """Return corpus and model of these vectors: from the records of a store, else from here."""
        known = origin_of(store) if store else Origin()
        return known if known.source else Origin(self.source, self.model)

    def warnings(
        self, query: Cut, documents: Cut, store: Path | None = None, dim: int = 0
    ) -> list[str]:
        """Return sentences that say why rankings may be worse than the model allows.

        Args:
            query: the cut of the queries.
            documents: the cut of the documents.
            store: as `accept` takes it.
            dim: of the indexes that are searched; 0: that of the documents.
        """
        untrained = [cut for cut in (query, documents) if (cut.layer, cut.dim) not in self.cuts]
        found = [self._untrained(cut) for cut in dict.fromkeys(untrained)]
        if query.layer != documents.layer and self.document_layer == "same":
            found.append(
                f"Queries of layer {query.layer} search documents of layer {documents.layer}, but "
                f"this model trained each layer against documents of its own: the two spaces are "
                f"not aligned, so expect much worse or near random rankings. Index that layer "
                f"{self.origin(store).remedy(layer=query.layer, dim=dim or documents.dim)}"
            )
        last = max((layer for layer, _ in self.cuts), default=documents.layer)
        if self.document_layer == "last" and documents.layer != last:
            found.append(
                f"Documents come from layer {documents.layer}, but this model trained queries "
                f"against documents of layer {last}: expect much worse rankings. Index that layer "
                f"{self.origin(store).remedy(layer=last, dim=dim or documents.dim)}"
            )
        return found

    def _untrained(self, cut: Cut) -> str:
        dims = sorted(dim for layer, dim in self.cuts if layer == cut.layer)
        layers = sorted({layer for layer, _ in self.cuts})
        if not layers:
            worse, trained = "near random rankings", "no cut of this model was"
        elif dims:
            worse, trained = "worse rankings", f"dims {_list(dims)} of that layer were"
        else:
            worse, trained = "near random rankings", f"layers {_list(layers)} were"
        return f"Cut {cut} was not trained ({trained}): expect {worse}."

    def _name(self) -> str:
        short = self.fingerprint[:DIGITS]
        return f"{short} ({self.model})" if self.model else short


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


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
    """What a store will hold, fixed before its first vector is written."""

    corpus: str
    layer: int
    width: int  # dims of a vector
    label: Label
    dtype: Dtype = "f16"
    shard_rows: int = 65536  # in every shard but the last; 50 MB of f16 at width 384
    # What multiplies: torch, or openvino, whose vectors differ by rounding. Older files lack it.
    runtime: str = "torch"

    def __post_init__(self) -> None:
        if self.dtype not in get_args(Dtype):
            hint = nearest(self.dtype, get_args(Dtype))
            raise UserError(f"Vectors cannot be stored as {self.dtype!r}. {hint}")
        if self.layer < 0 or min(self.width, self.shard_rows) < 1:
            raise UserError(
                f"A store has a layer from 0, and a dim and a row per shard at least, not "
                f"{self.layer}, {self.width} and {self.shard_rows}."
            )

    def differences(self, other: "StorePlan") -> dict[str, tuple[str | int, str | int]]:
        """Return the fields in which two stores would differ, with both values."""
        names = ("corpus", "layer", "width", "dtype", "shard_rows", "runtime")
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        found = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        return found | self.label.differences(other.label)


@dataclass(frozen=True)
class PartialStore:
    """store.partial.json: an unfinished store; each of its shards has a record of its own."""

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
    docids: str  # sha256 of the docids of all rows
    texts: str  # sha256 over the shards' digests of texts
    runtime: str = "torch"  # of the plan
    # Sha256 of the file with the fields of all rows; empty: they have none; None: not yet written.
    fields: str | None = None

    @property
    def plan(self) -> StorePlan:
        """The plan that this store was written by."""
        return StorePlan(
            self.corpus,
            self.layer,
            self.width,
            self.label,
            self.dtype,
            self.shard_rows,
            self.runtime,
        )

    @property
    def digest(self) -> str:
        """Sha256 that identifies what this store holds, without the paths of model and corpus."""
        table = asdict(replace(self, label=replace(self.label, model="")))
        del table["label"]["source"]
        for name in _NO_VECTOR_DEPENDS_ON:
            del table[name]
        return json_sha256(table)

    def write(self, folder: Path) -> None:
        """Write store.json."""
        write_record(folder / STORE, self)

    @classmethod
    def read(cls, folder: Path) -> "StoreManifest":
        """Read store.json.

        Raises:
            UserError: it is missing, malformed, incomplete or of another format.
        """
        return _read(
            folder / STORE,
            cls,
            lambda: f"Encode the documents again {store_remedy(folder, overwrite=True)}",
        )

    def problems(self) -> Iterator[str]:
        """Yield how the fields contradict each other, each as the end of a sentence."""
        yield from _below_0(self.layer)
        least = min(self.documents, self.width, self.shard_rows)
        if least < 1:
            yield f"has {least} documents, dims or rows per shard, not at least 1"
        for number, shard in enumerate(self.shards):
            name = shard_name(number, self.dtype)
            short = number == len(self.shards) - 1
            if shard.name != name:  # a file of another folder, or the same one twice
                yield f"names shard {number} {shard.name!r} where {name!r} belongs"
            elif not (1 if short else self.shard_rows) <= shard.rows <= self.shard_rows:
                yield f"gives {name} {shard.rows} rows, and each shard has {self.shard_rows}"
        yield from self._contradictions()

    def _contradictions(self) -> Iterator[str]:
        """Yield how the fields contradict the shards."""
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
    dim: int  # dims kept
    engine: str
    similarity: Similarity
    label: Label
    bytes: int  # size of the index file
    sha256: str  # of the index file
    docids: str  # sha256 of the docid file
    store: str  # digest of the store that it was cut from
    # Older files lack the fields below, and read as these defaults.
    factory: str = "Flat"  # what FAISS made it from
    # Default search parameters, by name.
    knobs: tuple[tuple[str, int], ...] = ()
    # The function of FAISS that opens the index file.
    reader: str = "read_index"
    # What differs from the engine's default, and why.
    notes: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Write manifest.json."""
        write_record(folder / MANIFEST, self)

    @classmethod
    def read(cls, folder: Path) -> "IndexManifest":
        """Read manifest.json.

        Raises:
            UserError: it is missing, malformed, incomplete or of another format.
        """
        return _read(folder / MANIFEST, cls, lambda: f"Build the index {index_remedy(folder)}")

    def problems(self) -> Iterator[str]:
        """Yield how the fields contradict each other, each as the end of a sentence."""
        yield from _below_0(self.layer)
        least = min(self.documents, self.dim, self.bytes)
        if least < 1:
            yield f"has {least} documents, dims or bytes, not at least 1"
        if self.similarity != self.label.similarity:
            yield f"has similarity {self.similarity}, and its label {self.label.similarity}"


def _read(path: Path, kind: type[AnyManifest], remedy: Callable[[], str]) -> AnyManifest:
    manifest = read_record(path, kind)
    for problem in manifest.problems():
        raise UserError(f"{path} {problem}. {remedy()}")
    return manifest


def _below_0(layer: int) -> Iterator[str]:
    if layer < 0:
        yield f"has layer {layer}, and layers count from 0"


def texts_digest(shards: Iterable[Shard]) -> str:
    """Return the sha256 over the digests of what was encoded into each shard, in hex."""
    return hashlib.sha256("".join(shard.texts for shard in shards).encode()).hexdigest()
