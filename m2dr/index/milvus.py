"""Milvus, a cluster or a local file of Milvus Lite: the one door to pymilvus."""

import logging
import logging.config
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError, install
from m2dr.index.pushed import Kind, Pushed
from m2dr.jsontext import dump, parse

TOKEN = "MILVUS_TOKEN"  # noqa: S105 - the name of a variable, which is no secret
CONNECTING, ANSWERING = 10.0, 60.0  # seconds that a server may stay silent
PUSH = "with m2dr index push, from where the index lies"
_LABEL = "m2dr"  # property of a collection
_SERVERS = ("http", "https", "tcp", "unix", "grpc")


class Server:
    """A Milvus server, or a file of its own that Milvus Lite serves to this process alone.

    Every method raises UserError when the server cannot be reached or refuses.

    Args:
        uri: `http://HOST:19530`, or a path that ends in .db.
        token: `user:password` or an API key; $MILVUS_TOKEN when empty.
        create: make a local file that is not there.
        remedy: how to push an index to it, for the sentence that refuses such a file.

    Attributes:
        where: the address as sentences show it, without a password.
    """

    def __init__(
        self, uri: str, token: str = "", *, create: bool = False, remedy: str = PUSH
    ) -> None:
        self.where = shown(uri)
        _check_address(uri, self.where, create, remedy)
        self._library = _pymilvus()
        with self._asking("be opened"):
            self._client = self._library.MilvusClient(
                uri=uri, token=token or os.environ.get(TOKEN, ""), timeout=CONNECTING
            )

    def names(self) -> list[str]:
        """Collections that are there."""
        with self._asking("list its collections"):
            return sorted(self._client.list_collections(timeout=ANSWERING))

    def create(self, pushed: Pushed, kind: Kind) -> None:
        """Make an empty collection that says what it is for."""
        types = self._library.DataType
        label = dump(pushed)
        # The server keeps both, Milvus Lite the properties alone.
        schema = self._client.create_schema(auto_id=False, description=label)
        schema.add_field("row", types.INT64, is_primary=True)
        schema.add_field("docid", types.VARCHAR, max_length=65_535)
        schema.add_field("vector", types.FLOAT_VECTOR, dim=pushed.dim)
        # Vectors have length one where the similarity is cosine, and one of length zero scores 0.
        plan = self._client.prepare_index_params()
        plan.add_index(
            "vector", index_type=kind.index_type, metric_type="IP", params=dict(kind.build)
        )
        with self._asking(f"make the collection {pushed.name}"):
            self._client.create_collection(
                pushed.name,
                schema=schema,
                index_params=plan,
                properties={_LABEL: label},
                consistency_level="Strong",
                timeout=ANSWERING,
            )

    def label(self, name: str) -> Pushed:
        """What a collection says of itself.

        Raises:
            UserError: it was not made by m2dr, or by one of another format.
        """
        with self._asking(f"describe the collection {name}"):
            found = self._client.describe_collection(name, timeout=ANSWERING)
        text = found.get("properties", {}).get(_LABEL) or found.get("description", "")
        where = f"The label of the collection {name} of {self.where}"
        return parse(text, Pushed, where, lambda: "Push the index again, with --overwrite.")

    def drop(self, name: str) -> None:
        """Forget a collection; nothing happens when there is none."""
        with self._asking(f"drop the collection {name}"):
            self._client.drop_collection(name, timeout=ANSWERING)

    def count(self, name: str, rows: range | None = None) -> int:
        """How many documents a collection holds, of some rows or of all."""
        with self._asking(f"count the documents of {name}"):
            found = self._client.query(
                name,
                filter=_between(rows) if rows is not None else "",
                output_fields=["count(*)"],
                timeout=ANSWERING,
            )
        return int(found[0]["count(*)"])

    def docids(self, name: str, rows: range) -> dict[int, str]:
        """Docids by row, of those rows that are there."""
        with self._asking(f"read from {name}"):
            found = self._client.query(
                name, filter=_between(rows), output_fields=["row", "docid"], timeout=ANSWERING
            )
        return {int(entity["row"]): entity["docid"] for entity in found}

    def vectors(self, name: str, rows: Sequence[int]) -> dict[int, NDArray[np.float32]]:
        """Vectors [dim] by row, of those rows that are there."""
        with self._asking(f"read from {name}"):
            found = self._client.get(
                name, ids=list(rows), output_fields=["row", "vector"], timeout=ANSWERING
            )
        return {int(each["row"]): np.asarray(each["vector"], np.float32) for each in found}

    def upsert(
        self, name: str, rows: range, docids: Sequence[str], vectors: NDArray[np.float32]
    ) -> None:
        """Write documents, in place of those that have the same rows."""
        entities = [
            {"row": row, "docid": docid, "vector": vector}
            for row, docid, vector in zip(rows, docids, vectors, strict=True)
        ]
        with self._asking(f"take rows {rows.start} to {rows.stop - 1} of {name}"):
            self._client.upsert(name, entities, timeout=ANSWERING)

    def settle(self, name: str) -> None:
        """Wait until what was written is on the server's disk."""
        with self._asking(f"finish the collection {name}"):
            self._client.flush(name, timeout=10 * ANSWERING)

    def load(self, name: str) -> None:
        """Make a collection ready for search."""
        with self._asking(f"load the collection {name}"):
            self._client.load_collection(name, timeout=10 * ANSWERING)

    def search(
        self, name: str, queries: NDArray[np.float32], k: int, parameters: Mapping[str, int]
    ) -> list[list[tuple[float, int, str]]]:
        """Search for the best `k` documents of each query [Q, dim].

        Returns:
            Per query, score, row and docid, best first, ties in any order.
        """
        with self._asking(f"search the collection {name}"):
            found = self._client.search(
                name,
                data=list(queries),
                limit=k,
                output_fields=["docid"],
                search_params={"metric_type": "IP", "params": dict(parameters)},
                timeout=ANSWERING,
            )
        return [
            [(float(hit["distance"]), int(hit["row"]), hit["entity"]["docid"]) for hit in hits]
            for hits in found
        ]

    def close(self) -> None:
        """Let go of the connection; the server of a local file ends with this process."""
        self._client.close()

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Turn what pymilvus raises into a sentence."""
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
    """The address without the user and password it may hold."""
    scheme, sign, rest = uri.partition("://")
    return f"{scheme}{sign}{rest.rpartition('@')[2]}" if sign else uri


def _is_local(uri: str) -> bool:
    return urlsplit(uri).scheme not in _SERVERS


def _check_address(uri: str, where: str, create: bool, remedy: str) -> None:
    """Refuse what is no address before a library waits for it."""
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


def _pymilvus() -> Any:  # noqa: ANN401 - pymilvus has no type stubs
    """Import pymilvus where it is used; it takes seconds, and logs what is a sentence here."""
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
