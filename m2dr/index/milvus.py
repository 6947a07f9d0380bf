"""Milvus: push a store's vectors to a server or a local file, and search them there.

One collection holds one prefix, and not the full width for all of them: cosine normalises what is
left after cutting, which no search over longer vectors can do, and a search then multiplies the
prefix alone.
"""

# Shapes in this file: Q queries, n documents of a batch.

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from math import ceil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from m2dr.core.arrays import Floats
from m2dr.core.errors import UserError, nearest, require
from m2dr.core.files import parse_record, record_table
from m2dr.core.records import DIGITS, Cut, Label
from m2dr.index.filters import FIELDS, Filter, field_kinds, field_types
from m2dr.index.manifest import STORE, StoreManifest
from m2dr.index.searchable import LISTED, NamedHits, Rows, Scores, Searchable
from m2dr.index.store import Store
from m2dr.index.vectors import check_depth, check_queries, prefixes

MILVUS_PREFIX = "milvus:"  # of the name of an index that lies in Milvus
TOKEN = "MILVUS_TOKEN"
MOST_K = 16_384  # documents per query that Milvus gives
CONNECTING, ANSWERING = 10.0, 60.0  # seconds that a server may stay silent
ATTEMPTS = 3  # to connect with a local file, whose server pymilvus now and then ends
BATCH_BYTES = 8 * 2**20  # of vectors; a server takes messages of 64 MB
BATCH_ROWS = 4096
_ANSWERS = 200_000  # documents in one answer for a batch of queries
_LONGEST = 65_535  # bytes of a text; fields with longer ones are left out
_MOST_FIELDS = 50  # of a collection; Milvus takes 64, vector and ids included
_SERVERS = ("http://", "https://", "tcp://", "unix://", "grpc://")
_PROPERTY = "m2dr"  # of a collection, which holds its manifest

MilvusHit = tuple[float, int, str]  # score, row and docid
# Type of the index as Milvus calls it, and the parameters of building and searching it.
MilvusEngine = tuple[str, Mapping[str, int], Mapping[str, int]]

# A new engine is a row, and the tests run over all rows.
MILVUS_ENGINES: dict[str, MilvusEngine] = {
    "flat": ("FLAT", {}, {}),
    "hnsw": ("HNSW", {"M": 32, "efConstruction": 200}, {"ef": 128}),
    "ivf": ("IVF_FLAT", {"nlist": 1024}, {"nprobe": 32}),
}


def in_milvus(index: str) -> bool:
    """Return whether the name of an index is `milvus:URI`."""
    return index.startswith(MILVUS_PREFIX)


def check_milvus_engine(name: str) -> None:
    """Raise UserError unless `name` is a row of MILVUS_ENGINES and pymilvus is installed."""
    require("pymilvus")
    if name not in MILVUS_ENGINES:
        raise UserError(f"There is no engine {name!r} for Milvus. {nearest(name, MILVUS_ENGINES)}")


@dataclass(frozen=True)
class CollectionManifest:
    """What a collection holds: the vectors of one layer, cut to one dim."""

    corpus: str
    documents: int  # when all of them are there
    layer: int  # transformer layers that encoded them; 0: words alone
    dim: int  # dims kept
    engine: str  # a name in MILVUS_ENGINES
    label: Label
    docids: str  # sha256 of the docids of the store
    store: str  # digest of the store that they were cut from
    fields: tuple[tuple[str, str], ...]  # name and type of each, in the order of their columns

    @property
    def name(self) -> str:
        """Name of the collection."""
        return collection_name(self.corpus, self.label.fingerprint, Cut(self.layer, self.dim))

    @property
    def columns(self) -> dict[str, str]:
        """Columns by field: names of fields are free, and those of Milvus are not."""
        return {name: f"field_{place}" for place, (name, _) in enumerate(self.fields)}


def collection_name(corpus: str, fingerprint: str, cut: Cut) -> str:
    """Return the name of a cut's collection: letters, digits and underscores, as Milvus asks.

    >>> collection_name("pydocs", "0123456789abcdef", Cut(6, 128))
    'm2dr_pydocs_0123456789ab_L6D128'
    >>> collection_name("beir/scifact", "0123456789abcdef", Cut(6, 128))
    'm2dr_beir_scifact_3c40cc_0123456789ab_L6D128'
    """
    plain = re.sub(r"[^A-Za-z0-9_]", "_", corpus)[:100]
    if plain != corpus:  # corpora that differ in other characters alone get two names
        plain += f"_{hashlib.sha256(corpus.encode()).hexdigest()[:6]}"
    return f"m2dr_{plain}_{re.sub(r'[^A-Za-z0-9]', '_', fingerprint[:DIGITS])}_{cut}"


class Server:
    """A connection to a Milvus server, or to a file that Milvus Lite serves to this process alone.

    Args:
        uri: `http://HOST:19530`, or a path that ends in .db.
        token: `user:password` or an API key; $MILVUS_TOKEN when empty.
        create: make a local file that is not there.

    Raises:
        UserError: pymilvus is not installed, this is no address, or nothing answers.
    """

    def __init__(self, uri: str, token: str = "", *, create: bool = False) -> None:
        scheme, sign, rest = uri.partition("://")
        self._where = f"{scheme}{sign}{rest.rpartition('@')[2]}" if sign else uri  # no password
        local = not uri.startswith(_SERVERS)
        if local and (sign or Path(uri).suffix != ".db"):
            raise UserError(
                f"{self._where!r} is no http://HOST:19530, nor FILE.db for Milvus Lite."
            )
        if local and not (Path(uri).parent.is_dir() if create else Path(uri).exists()):
            raise UserError(f"There is no Milvus Lite file {self._where}.")
        require("pymilvus")
        import pymilvus

        self.library: Any = pymilvus
        token = token or os.environ.get(TOKEN, "")
        for left in reversed(range(ATTEMPTS if local else 1)):
            try:
                self.client = pymilvus.MilvusClient(uri=uri, token=token, timeout=CONNECTING)
                break
            except pymilvus.MilvusException as error:
                if not left:
                    raise self._refused("open", error) from error

    def ask(self, what: str, *arguments: Any, **settings: Any) -> Any:
        """Return the answer of a method of pymilvus's client.

        Raises:
            UserError: the server cannot be reached or refuses.
        """
        try:
            return getattr(self.client, what)(*arguments, **{"timeout": ANSWERING, **settings})
        except self.library.MilvusException as error:
            raise self._refused(what, error) from error

    def _refused(self, what: str, error: Any) -> UserError:
        reason = " ".join(str(error.message or error).split()).rstrip(".")
        return UserError(f"Milvus at {self._where} failed to {what}: {reason[:300]}.")

    def count(self, name: str, condition: str = "") -> int:
        """Return how many documents of a collection fit a condition."""
        counted = self.ask("query", name, filter=condition, output_fields=["count(*)"])
        return int(counted[0]["count(*)"])

    def manifest(self, name: str) -> CollectionManifest:
        """Read the manifest of a collection.

        Raises:
            UserError: it was not made by m2dr, or by one of another format.
        """
        properties = self.ask("describe_collection", name).get("properties", {})
        try:
            return parse_record(properties.get(_PROPERTY, ""), CollectionManifest)
        except (ValueError, msgspec.MsgspecError) as error:
            raise UserError(f"The collection {name} has no label of m2dr: {error}") from error

    def create(self, manifest: CollectionManifest) -> None:
        """Create an empty collection that holds its manifest."""
        types, (index_type, build, _) = self.library.DataType, MILVUS_ENGINES[manifest.engine]
        schema = self.client.create_schema(auto_id=False)
        schema.add_field("row", types.INT64, is_primary=True)
        schema.add_field("docid", types.VARCHAR, max_length=_LONGEST)
        schema.add_field("vector", types.FLOAT_VECTOR, dim=manifest.dim)
        kinds = {"double": types.DOUBLE, "bool": types.BOOL, "string": types.VARCHAR}
        for name, kind in manifest.fields:
            length = {"max_length": _LONGEST} if kind == "string" else {}
            own = kinds.get(kind, types.INT64)
            schema.add_field(manifest.columns[name], own, nullable=True, **length)
        # Vectors have length one where the similarity is cosine, and one of length zero scores 0.
        plan = self.client.prepare_index_params()
        plan.add_index("vector", index_type=index_type, metric_type="IP", params=build)
        text = json.dumps(record_table(manifest), sort_keys=True, default=msgspec.to_builtins)
        self.ask(
            "create_collection",
            manifest.name,
            schema=schema,
            index_params=plan,
            properties={_PROPERTY: text},
            consistency_level="Strong",
        )

    def close(self) -> None:
        """Close the connection; the server of a local file ends with this process."""
        self.client.close()


@dataclass(frozen=True)
class MilvusCollection(Searchable):
    """Documents at one layer and dim in Milvus, open for search."""

    manifest: CollectionManifest
    server: Server
    condition: str = ""  # that documents must fit, as Milvus reads it
    fitting: int = 0  # documents that fit it

    @property
    def documents(self) -> int:
        """Number of documents, of those that fit the condition."""
        return self.fitting if self.condition else self.manifest.documents

    @property
    def deepest(self) -> int:
        """Documents per query that Milvus gives, at most."""
        return min(self.documents, MOST_K)

    @property
    def dim(self) -> int:
        """Dims of a query that are compared."""
        return self.manifest.dim

    def where(self, wanted: Filter) -> "MilvusCollection":
        """See Searchable; the fields are those that were pushed."""
        if not self.manifest.fields:
            raise UserError(f"The collection {self.manifest.name} holds no fields of documents.")
        condition = _condition(wanted, self.manifest)
        fitting = self.server.count(self.manifest.name, condition)
        return replace(self, condition=condition, fitting=fitting)

    def search(self, queries: Floats, k: int) -> tuple[Scores, Rows]:
        """See Searchable."""
        hits = list(self._ask(queries, k))
        width = max(map(len, hits), default=0)
        scores = np.full((len(hits), width), -np.inf, np.float32)
        rows = np.full((len(hits), width), -1, np.int64)
        for number, own in enumerate(hits):
            scores[number, : len(own)] = [score for score, _, _ in own]
            rows[number, : len(own)] = [row for _, row, _ in own]
        return scores, rows

    def _hits(self, queries: Floats, k: int) -> Iterable[NamedHits]:
        for hits in self._ask(queries, k):
            yield [docid for *_, docid in hits], np.array([hit[0] for hit in hits], np.float32)

    def _ask(self, queries: Floats, k: int) -> Iterator[list[MilvusHit]]:
        """Yield the hits of each query, best first, in batches that an answer can hold."""
        check_depth(k)
        check_queries(queries, self.dim)
        if k > MOST_K:
            raise UserError(f"{k:,} documents were asked for; Milvus gives {MOST_K:,} at most.")
        prepared = prefixes(queries, self.dim, self.manifest.label.similarity)
        _, build, search = MILVUS_ENGINES[self.manifest.engine]
        # A graph must look at k at least; few lists may miss what a filter lets through, or hold k.
        lists = build.get("nlist", 0)
        listed = ceil(LISTED * k * lists / max(self.manifest.documents, 1))
        least = {"ef": 2 * k, "nprobe": lists if self.condition else min(lists, listed)}
        parameters = {name: max(value, least[name]) for name, value in search.items()}
        size = max(1, _ANSWERS // k)
        for start in range(0, len(prepared), size):
            for hits in self.server.ask(
                "search",
                self.manifest.name,
                data=list(prepared[start : start + size]),
                limit=k,
                filter=self.condition,
                output_fields=["docid"],
                search_params={"metric_type": "IP", "params": parameters},
            ):
                yield [
                    (float(hit["distance"]), int(hit["row"]), hit["entity"]["docid"])
                    for hit in hits
                ]

    def close(self) -> None:
        """Close the connection."""
        self.server.close()


def _condition(wanted: Filter, manifest: CollectionManifest) -> str:
    """Return a filter as an expression of Milvus."""
    columns = manifest.columns

    def compare(name: str, sign: str, scalars: Sequence[Any]) -> str:
        column, each = columns[name], "==" if sign == "in" else sign
        if sign == "is":
            return f"({column} is null)"
        equal_to_none = f"{column} is {'not ' * (sign == '!=')}null"
        parts = [f"{column} {each} {_literal(scalar)}" for scalar in scalars] or [equal_to_none]
        return f"({column} is not null and ({' or '.join(parts)}))"

    def join(word: str, parts: Sequence[str]) -> str:
        return f"(not {parts[0]})" if word == "not" else f"({f' {word} '.join(parts)})"

    kinds = field_kinds()
    types = {name: kinds[kind] for name, kind in manifest.fields}
    return str(wanted.translated(types, compare, join))


def _literal(scalar: Any) -> str:
    """Return a value of pyarrow as Milvus reads it: dates are microseconds since 1970."""
    dated = str(scalar.type).startswith("timestamp")
    return str(scalar.value) if dated else json.dumps(scalar.as_py(), ensure_ascii=False)


def open_collection(
    index: str,
    corpus: str,
    fingerprint: str,
    layer: int,
    dim: int | None = None,
    store: Path | None = None,
) -> MilvusCollection:
    """Open a collection that `m2dr index push` wrote.

    Args:
        index: a server or a local file, as `Server` takes it, or `milvus:` before one.
        corpus: whose documents.
        fingerprint: of the model that encoded them.
        layer: of the documents.
        dim: of the collection; None: the longest.
        store: folder of the store of that layer, if there is one on this machine.

    Raises:
        UserError: the server does not answer, or there is no such collection, or it is
            half-written, of another corpus or model, or of other vectors than the store.
    """
    server = Server(index.removeprefix(MILVUS_PREFIX))
    try:
        cuts = list_cuts(server, corpus, fingerprint)
        dims = [cut.dim for cut in cuts if cut.layer == layer and dim in (None, cut.dim)]
        if not dims:
            known = ", ".join(map(str, cuts)) or "none"
            raise UserError(f"Milvus lacks that cut of {corpus} by this model; it has {known}.")
        name = collection_name(corpus, fingerprint, Cut(layer, max(dims)))
        manifest = server.manifest(name)
        if (manifest.corpus, manifest.label.fingerprint) != (corpus, fingerprint):
            raise UserError(f"The collection {name} holds another corpus, or is by another model.")
        beside = StoreManifest.read(store) if store and (store / STORE).exists() else None
        if beside and beside.digest != manifest.store:
            raise UserError(f"{name} is not {store}; push it again with --overwrite.")
        # Documents of a collection that is not loaded cannot be counted.
        server.ask("load_collection", name, timeout=10 * ANSWERING)
        count = server.count(name)
        if count != manifest.documents:
            whole = manifest.documents
            raise UserError(f"{name} is half-written: {count:,} of {whole:,}; push it again.")
        return MilvusCollection(manifest, server)
    except UserError:
        server.close()
        raise


def list_cuts(server: Server, corpus: str, fingerprint: str) -> tuple[Cut, ...]:
    """Return the cuts of a corpus that have a collection, finished or not, increasing."""
    stem = collection_name(corpus, fingerprint, Cut(0, 1)).removesuffix("L0D1")
    names = [name.removeprefix(stem) for name in server.ask("list_collections") if stem in name]
    return tuple(sorted(Cut.parse(name) for name in names if re.fullmatch(r"L\d+D\d+", name)))


@dataclass(frozen=True)
class PushResult:
    """What a push did."""

    name: str  # of the collection
    documents: int  # that it holds now
    written: int  # of them, by this push; the others were there
    bytes: int  # of the vectors written


def push(
    store: Store,
    dim: int,
    server: Server,
    engine: str = "flat",
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> PushResult:
    """Write the first `dim` dims of a store to a collection, or go on writing.

    It skips batches that are there; a row sent twice is replaced.

    Args:
        store: whose vectors are cut, then normalised if the similarity is cosine.
        dim: dims to keep.
        server: connected.
        engine: a name in MILVUS_ENGINES.
        overwrite: drop a collection of that name first.
        progress: called with the number of documents in Milvus.

    Raises:
        UserError: the collection holds something else, or the server does not answer.
    """
    check_milvus_engine(engine)
    if not 1 <= dim <= store.width:
        raise UserError(f"Dim {dim} was asked for; {store.folder} has {store.width}.")
    own = store.manifest
    manifest = CollectionManifest(
        own.corpus, store.documents, store.layer, dim, engine, own.label, own.docids, own.digest,
        _pushed_fields(store),
    )  # fmt: skip
    name = manifest.name
    if overwrite:
        server.ask("drop_collection", name)
    if not server.ask("has_collection", name):
        server.create(manifest)
    elif (there := server.manifest(name)) != replace(manifest, label=there.label):
        raise UserError(f"{name} has another engine or other vectors; --overwrite replaces it.")
    server.ask("load_collection", name, timeout=10 * ANSWERING)
    size, written = max(1, min(BATCH_ROWS, BATCH_BYTES // (4 * dim))), 0
    rows = _field_values(store.folder / FIELDS) if manifest.fields else repeat({})
    for start, block in store.blocks(size, compare=True):
        stop, fields = start + len(block), list(islice(rows, len(block)))
        if server.count(name, f"row >= {start} and row < {stop}") < len(block):
            vectors, docids = prefixes(block, dim, own.label.similarity), store.docids[start:stop]
            entities = [
                {"row": row, "docid": docid, "vector": vector}
                | {column: field.get(one) for one, column in manifest.columns.items()}
                for row, docid, vector, field in zip(
                    range(start, stop), docids, vectors, fields, strict=True
                )
            ]
            server.ask("upsert", name, entities)
            written += len(block)
        progress(len(block))
    if written:
        server.ask("flush", name, timeout=10 * ANSWERING)
    return PushResult(name, server.count(name), written, 4 * dim * written)


def _pushed_fields(store: Store) -> tuple[tuple[str, str], ...]:
    """Return name and type of the fields that a collection holds: no long texts and no lists."""
    from pyarrow import compute, parquet

    path, kept, kinds = store.folder / FIELDS, [], field_kinds()
    for name, kind in field_types(path).items() if store.manifest.fields else ():
        if str(kind) not in kinds:
            continue
        if str(kind) == "string":
            column = parquet.read_table(path, columns=[name])[name]
            if (compute.max(compute.binary_length(column)).as_py() or 0) > _LONGEST:
                continue
        kept.append((name, str(kind)))
    return tuple(kept[:_MOST_FIELDS])


def _field_values(path: Path) -> Iterator[Mapping[str, object]]:
    """Yield the fields of each document by name; dates as microseconds since 1970."""
    import pyarrow as pa
    from pyarrow import parquet

    for batch in parquet.ParquetFile(path).iter_batches(BATCH_ROWS):
        table = pa.table(batch)
        for place, field in enumerate(table.schema):
            if pa.types.is_timestamp(field.type):
                table = table.set_column(place, field.name, table[place].cast(pa.int64()))
        yield from table.to_pylist()
