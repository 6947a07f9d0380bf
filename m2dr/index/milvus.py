"""Access to Milvus through pymilvus: a server, or a local file of Milvus Lite."""

import hashlib
import json
import logging
import logging.config
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, install, nearest
from m2dr.core.files import FORMAT, parse_record
from m2dr.core.records import Cut
from m2dr.index.layout import DIGITS
from m2dr.index.manifest import Kind, Label
from m2dr.index.milvus_filter import LONGEST, column

Hit = tuple[float, int, str]  # score, row and docid

DEEPEST = 16_384  # documents per query that Milvus gives, and rows per answer
TOKEN = "MILVUS_TOKEN"
CONNECTING, ANSWERING = 10.0, 60.0  # seconds that a server may stay silent
ATTEMPTS = 3  # to connect with a local file
PUSH = "with m2dr index push, from where the index lies"
# Of the values of a field.
_TYPES: Mapping[Kind, tuple[str, Mapping[str, int]]] = {
    "integer": ("INT64", {}),
    "number": ("DOUBLE", {}),
    "date": ("INT64", {}),
    "boolean": ("BOOL", {}),
    "text": ("VARCHAR", {"max_length": LONGEST}),
}
_PROPERTY = "m2dr"  # of a collection, which holds its manifest
_SERVERS = ("http", "https", "tcp", "unix", "grpc")


@dataclass(frozen=True)
class MilvusEngine:
    """An index of Milvus. A new one is a row of MILVUS_ENGINES; the tests run over all rows."""

    name: str
    index_type: str  # as Milvus calls it
    build: tuple[tuple[str, int], ...] = ()
    search: tuple[tuple[str, int], ...] = ()

    def parameters(self, k: int) -> dict[str, int]:
        """Return search parameters for `k` documents; a graph must look at that many at least."""
        return {name: max(value, 2 * k if name == "ef" else 0) for name, value in self.search}


MILVUS_ENGINES = {
    row.name: row
    for row in (
        MilvusEngine("flat", "FLAT"),
        MilvusEngine("hnsw", "HNSW", (("M", 32), ("efConstruction", 200)), (("ef", 128),)),
        MilvusEngine("ivf", "IVF_FLAT", (("nlist", 1024),), (("nprobe", 32),)),
    )
}


def milvus_engine(name: str) -> MilvusEngine:
    """Return the row of MILVUS_ENGINES with that name.

    Raises:
        UserError: there is none.
    """
    if name not in MILVUS_ENGINES:
        raise UserError(f"There is no engine {name!r} for Milvus. {nearest(name, MILVUS_ENGINES)}")
    return MILVUS_ENGINES[name]


@dataclass(frozen=True)
class CollectionManifest:
    """What a collection holds: the vectors of one layer, cut to one dim."""

    corpus: str
    documents: int  # when all of them are there
    layer: int  # transformer layers that encoded them; 0: a table of tokens
    dim: int  # dims kept
    engine: str  # a name in MILVUS_ENGINES
    label: Label
    store: str  # digest of the store that they were cut from
    # Of the documents, in the order of their columns; empty where none were known.
    fields: tuple[tuple[str, Kind], ...] = ()

    @property
    def name(self) -> str:
        """Name of the collection."""
        return collection_name(self.corpus, self.label.fingerprint, Cut(self.layer, self.dim))

    def refuse_other(self, found: "CollectionManifest", where: str) -> None:
        """Refuse to mix these vectors with those of another manifest.

        Raises:
            UserError: a field differs.
        """
        names = ("corpus", "layer", "dim", "engine", "documents", "store")
        differences = {name: (getattr(found, name), getattr(self, name)) for name in names}
        differences |= found.label.differences(self.label)
        told = [f"{name} {a!r}, not {b!r}" for name, (a, b) in differences.items() if a != b]
        if told:
            raise UserError(
                f"The collection {self.name} of {where} was pushed with {', '.join(told)}. "
                f"Repeat the settings it was made with, or replace it with --overwrite."
            )


def collection_name(corpus: str, fingerprint: str, cut: Cut) -> str:
    """Return the name of a cut's collection: letters, digits and underscores, as Milvus asks.

    >>> collection_name("pydocs", "0123456789abcdef", Cut(6, 128))
    'm2dr_pydocs_0123456789ab_L6D128'
    >>> collection_name("beir/scifact", "0123456789abcdef", Cut(6, 128))
    'm2dr_beir_scifact_3c40cc_0123456789ab_L6D128'
    """
    return f"{_stem(corpus, fingerprint)}_{cut}"


def cut_of(name: str, corpus: str, fingerprint: str) -> Cut | None:
    """Return the cut that a collection of this corpus and model holds; None for any other."""
    found = re.fullmatch(rf"{_stem(corpus, fingerprint)}_(L(?:0|[1-9]\d*)D[1-9]\d*)", name)
    return Cut.parse(found[1]) if found else None


def _stem(corpus: str, fingerprint: str) -> str:
    """Return the start of a name; corpora that differ in other characters alone get two."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", corpus)[:100]
    if plain != corpus:
        plain += f"_{hashlib.sha256(corpus.encode()).hexdigest()[:6]}"
    return f"m2dr_{plain}_{re.sub(r'[^A-Za-z0-9]', '_', fingerprint[:DIGITS])}"


class Server:
    """A connection to a Milvus server, or to a file that Milvus Lite serves to this process alone.

    Every method raises UserError when the server cannot be reached or refuses.

    Args:
        uri: `http://HOST:19530`, or a path that ends in .db.
        token: `user:password` or an API key; $MILVUS_TOKEN when empty.
        create: make a local file that is not there.
        remedy: how to push an index to it, for the message about a file that is not there.

    Attributes:
        where: the address as messages show it, without a password.
    """

    def __init__(
        self, uri: str, token: str = "", *, create: bool = False, remedy: str = PUSH
    ) -> None:
        self.where = shown(uri)
        _check_address(uri, self.where, create, remedy)
        self._library = _pymilvus()
        with self._asking("be opened"):
            self._client = self._connected(uri, token or os.environ.get(TOKEN, ""))

    def _connected(self, uri: str, token: str) -> Any:
        """Return a client.

        All clients of a local file share one connection. Its server ends that now and then, since
        pymilvus asks every ten seconds whether it is still there; the next attempt makes another.
        """
        for _ in range(ATTEMPTS - 1 if _is_local(uri) else 0):
            with suppress(self._library.MilvusException):
                return self._library.MilvusClient(uri=uri, token=token, timeout=CONNECTING)
        return self._library.MilvusClient(uri=uri, token=token, timeout=CONNECTING)

    def names(self) -> list[str]:
        """Return the names of all collections, sorted."""
        with self._asking("list its collections"):
            return sorted(self._client.list_collections(timeout=ANSWERING))

    def create(self, manifest: CollectionManifest) -> None:
        """Create an empty collection that holds its manifest."""
        types, engine, text = (
            self._library.DataType,
            milvus_engine(manifest.engine),
            _label(manifest),
        )
        # The server keeps description and properties, Milvus Lite the properties alone.
        schema = self._client.create_schema(auto_id=False, description=text)
        schema.add_field("row", types.INT64, is_primary=True)
        schema.add_field("docid", types.VARCHAR, max_length=65_535)
        schema.add_field("vector", types.FLOAT_VECTOR, dim=manifest.dim)
        for place, (_, kind) in enumerate(manifest.fields):
            named, length = _TYPES[kind]
            schema.add_field(column(place), getattr(types, named), nullable=True, **length)
        # Vectors have length one where the similarity is cosine, and one of length zero scores 0.
        plan = self._client.prepare_index_params()
        plan.add_index(
            "vector", index_type=engine.index_type, metric_type="IP", params=dict(engine.build)
        )
        with self._asking(f"make the collection {manifest.name}"):
            self._client.create_collection(
                manifest.name,
                schema=schema,
                index_params=plan,
                properties={_PROPERTY: text},
                consistency_level="Strong",
                timeout=ANSWERING,
            )

    def manifest(self, name: str) -> CollectionManifest:
        """Read the manifest of a collection.

        Raises:
            UserError: it was not made by m2dr, or by one of another format.
        """
        with self._asking(f"describe the collection {name}"):
            found = self._client.describe_collection(name, timeout=ANSWERING)
        text = found.get("properties", {}).get(_PROPERTY) or found.get("description", "")
        where = f"The label of the collection {name} of {self.where}"
        try:
            return parse_record(text, CollectionManifest)
        except (ValueError, msgspec.MsgspecError) as error:
            raise UserError(f"{where} cannot be read: {error}.") from error

    def relabel(self, manifest: CollectionManifest) -> None:
        """Replace the manifest that a collection holds."""
        with self._asking(f"label the collection {manifest.name}"):
            self._client.alter_collection_properties(
                manifest.name, properties={_PROPERTY: _label(manifest)}, timeout=ANSWERING
            )

    def delete(self, name: str, rows: Sequence[int]) -> None:
        """Delete documents; those that are not there are passed over."""
        with self._asking(f"delete from the collection {name}"):
            self._client.delete(name, ids=list(rows), timeout=ANSWERING)

    def drop(self, name: str) -> None:
        """Delete a collection; nothing happens when there is none."""
        with self._asking(f"drop the collection {name}"):
            self._client.drop_collection(name, timeout=ANSWERING)

    def count(self, name: str, rows: range | None = None, condition: str = "") -> int:
        """Return how many documents a collection holds, of some rows, or that fit a condition."""
        with self._asking(f"count the documents of {name}"):
            found = self._client.query(
                name,
                filter=_between(rows) if rows is not None else condition,
                output_fields=["count(*)"],
                timeout=ANSWERING,
            )
        return int(found[0]["count(*)"])

    def docids(self, name: str, rows: range) -> dict[int, str]:
        """Return docids by row, of those rows that are there."""
        with self._asking(f"read from {name}"):
            found = self._client.query(
                name, filter=_between(rows), output_fields=["row", "docid"], timeout=ANSWERING
            )
        return {int(entity["row"]): entity["docid"] for entity in found}

    def fitting(self, name: str, condition: str) -> dict[int, str]:
        """Return docids by row of documents that fit a condition, of at most DEEPEST."""
        with self._asking(f"read from {name}"):
            found = self._client.query(
                name,
                filter=condition,
                output_fields=["row", "docid"],
                limit=DEEPEST,
                timeout=ANSWERING,
            )
        return {int(entity["row"]): entity["docid"] for entity in found}

    def vectors(self, name: str, rows: Sequence[int]) -> dict[int, NDArray[np.float32]]:
        """Return vectors [dim] by row, of those rows that are there."""
        with self._asking(f"read from {name}"):
            found = self._client.get(
                name, ids=list(rows), output_fields=["row", "vector"], timeout=ANSWERING
            )
        return {int(each["row"]): np.asarray(each["vector"], np.float32) for each in found}

    def upsert(
        self,
        name: str,
        rows: Sequence[int],
        docids: Sequence[str],
        vectors: NDArray[np.float32],
        fields: Sequence[Mapping[str, object]] = (),
    ) -> None:
        """Write documents with vectors [n, dim], in place of those that have the same rows.

        Args:
            name: of the collection.
            rows: n of them.
            docids: n of them.
            vectors: of the documents.
            fields: of each document, by column; none where there are none.
        """
        entities = [
            {"row": row, "docid": docid, "vector": vector, **more}
            for row, docid, vector, more in zip(
                rows, docids, vectors, fields or ({},) * len(rows), strict=True
            )
        ]
        with self._asking(f"take rows {rows[0]} to {rows[-1]} of {name}"):
            self._client.upsert(name, entities, timeout=ANSWERING)

    def flush(self, name: str) -> None:
        """Wait until what was written is on the server's disk."""
        with self._asking(f"finish the collection {name}"):
            self._client.flush(name, timeout=10 * ANSWERING)

    def load(self, name: str) -> None:
        """Make a collection ready for search."""
        with self._asking(f"load the collection {name}"):
            self._client.load_collection(name, timeout=10 * ANSWERING)

    def search(
        self,
        name: str,
        queries: NDArray[np.float32],
        k: int,
        parameters: Mapping[str, int],
        condition: str = "",
    ) -> list[list[Hit]]:
        """Search for the best `k` documents of each query [Q, dim], of those that fit a condition.

        Returns:
            Per query, score, row and docid, best first, ties in any order.
        """
        with self._asking(f"search the collection {name}"):
            found = self._client.search(
                name,
                data=list(queries),
                limit=k,
                filter=condition,
                output_fields=["docid"],
                search_params={"metric_type": "IP", "params": dict(parameters)},
                timeout=ANSWERING,
            )
        return [
            [(float(hit["distance"]), int(hit["row"]), hit["entity"]["docid"]) for hit in hits]
            for hits in found
        ]

    def close(self) -> None:
        """Close the connection; the server of a local file ends with this process."""
        self._client.close()

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Turn what pymilvus raises into a UserError."""
        try:
            yield
        except self._library.MilvusException as error:
            reason = " ".join(str(error.message or error).split()).rstrip(".")
            raise UserError(
                f"Milvus at {self.where} could not {what}: {reason[:300]}. See that it runs and is "
                f"reached from here, then give the same command again: it goes on from there."
            ) from error


def release(uri: str) -> None:
    """Stop the server of a local file, so that another process may open it."""
    from milvus_lite.server_manager import server_manager_instance

    server_manager_instance.release_server(uri)


def _between(rows: range) -> str:
    return f"row >= {rows.start} and row < {rows.stop}"


def shown(uri: str) -> str:
    """Return an address without the user and password that it may hold."""
    scheme, sign, rest = uri.partition("://")
    return f"{scheme}{sign}{rest.rpartition('@')[2]}" if sign else uri


def _is_local(uri: str) -> bool:
    return urlsplit(uri).scheme not in _SERVERS


def _check_address(uri: str, where: str, create: bool, remedy: str) -> None:
    """Refuse what is no address before pymilvus waits for it."""
    if not _is_local(uri):
        return
    path = Path(uri)
    if "://" in uri or path.suffix != ".db":
        raise UserError(
            f"{where!r} is no address of Milvus. Give http://HOST:19530 for a server, or a file "
            f"that ends in .db for Milvus Lite."
        )
    if not create and not path.exists():
        raise UserError(f"There is no Milvus Lite file {where}. Push an index to it {remedy}")
    if not path.parent.is_dir():
        raise UserError(f"There is no folder {path.parent} for the Milvus Lite file {path.name}.")


def _pymilvus() -> Any:
    """Import pymilvus where it is used: it takes seconds, and logs what is a UserError here."""
    try:
        with _logging_left_alone():
            import pymilvus
    except ImportError as error:
        raise UserError(
            f"Milvus needs pymilvus, and it is not installed. Install it with: {install('milvus')}"
        ) from error
    for name in ("pymilvus", "milvus_lite", "grpc"):  # the server of a local file logs as grpc
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return pymilvus


@contextmanager
def _logging_left_alone() -> Iterator[None]:
    """Ignore the logging that an import sets up.

    pymilvus gives logging a whole new configuration, which closes the handlers of everyone else,
    and with those of absl the stream that they write to.
    """
    configure = logging.config.dictConfig
    logging.config.dictConfig = lambda config: None  # noqa: ARG005 - callers may name it
    try:
        yield
    finally:
        logging.config.dictConfig = configure


def _label(manifest: CollectionManifest) -> str:
    return json.dumps({"format": FORMAT, **asdict(manifest)}, sort_keys=True, ensure_ascii=False)
