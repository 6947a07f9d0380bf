"""Changes of a collection: documents are added to all its stores, deleted from them, or compacted.

A change writes files under names of their own, and its records and index files into a folder
`next` beside those they replace. All of it counts as soon as `change.json` is written, and nothing
of it before: `layout.current` finds the files until they are renamed. What is left of a change that
was stopped is finished, or removed, by the next.

indexes/<corpus>/<model fingerprint>/change.json         a change that is made, until it is in place
indexes/<corpus>/<model fingerprint>/documents-*.jsonl   texts of added documents
indexes/<corpus>/<model fingerprint>/layer-NN/next/store.json
indexes/<corpus>/<model fingerprint>/layer-NN/deleted-*.i64
indexes/<corpus>/<model fingerprint>/layer-NN/fields-*.parquet
indexes/<corpus>/<model fingerprint>/layer-NN/dim-K/next/{index,docid,manifest.json}
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Literal

import numpy as np

from m2dr.core.errors import UserError
from m2dr.core.files import (
    atomic_path,
    explain_write_failure,
    lock_folder,
    remove_files,
    sync,
    write_bytes,
)
from m2dr.core.jsontext import read_record, write_record
from m2dr.core.records import Fields
from m2dr.index.faiss_build import renew_index
from m2dr.index.field_files import FIELD_FILES, field_file, write_fields
from m2dr.index.layout import (
    ADDED,
    CHANGE,
    NEXT,
    built_indexes,
    layer_folders,
    shard_name,
    store_folders_of,
    store_remedy,
)
from m2dr.index.manifest import FieldFile, IndexManifest, Shard, StoreManifest, texts_digest
from m2dr.index.store import Store, open_store, store_of_manifest
from m2dr.index.vectors import FORMATS

TEXTS = "documents-*.jsonl"  # texts of added documents

_ELSEWHERE = "give another --indexes"

Outcomes = tuple[tuple[str, str], ...]  # of each index: its folder, and what was done to it


@dataclass(frozen=True)
class Change:
    """change.json: what was asked, and what was done."""

    kind: Literal["add", "delete", "compact"]
    request: str  # digest of what was asked
    added: int  # documents
    deleted: int  # documents; those that are replaced count in both
    indexes: Outcomes = ()


@contextmanager
def changing(home: Path) -> Iterator[Change | None]:
    """Lock the stores and indexes of a collection, and put a change that was made into place.

    Yields:
        The change, if one was made and its command was stopped before it was in place.

    Raises:
        UserError: another process writes there, or the disk refuses.
    """
    with ExitStack() as held:
        for folder in (
            home,
            *(place for store in store_folders_of(home) for place in _places(store)),
        ):
            held.enter_context(lock_folder(folder, _ELSEWHERE))
        made = home / CHANGE
        again = "Give the command that changed it again"
        pending = read_record(made, Change, lambda: again) if made.exists() else None
        if pending:
            _put_in_place(home)
        else:
            _tidy(home)
        yield pending


def settle(home: Path) -> None:
    """Put a change that was made into place, if its command was stopped before it had done that."""
    if (home / CHANGE).exists():
        with changing(home):
            pass


def open_all(home: Path) -> list[Store]:
    """Open the stores of a collection, by layer.

    Raises:
        UserError: one is half-written or damaged, or they do not hold the same documents.
    """
    stores = [open_store(folder) for folder in layer_folders(home)]
    for store in stores[1:]:
        first, other = stores[0].manifest, store.manifest
        held = [(one.docids, one.deleted, one.revision) for one in (first, other)]
        if held[0] != held[1]:
            raise UserError(
                f"{stores[0].folder} and {store.folder} hold different documents, and a change is "
                f"made to all layers. Start afresh {store_remedy(store.folder, overwrite=True)}"
            )
    return stores


def commit(home: Path, change: Change) -> None:
    """Make a change whose files are all written: from here on it counts."""
    for place in (place for store in store_folders_of(home) for place in _places(store)):
        with explain_write_failure(place):
            sync(place)  # the name of its folder `next` is on the disk from here on
    write_record(home / CHANGE, change)
    _put_in_place(home)


def delete_rows(store: Store, rows: Iterable[int]) -> tuple[Store, Outcomes]:
    """Prepare a store, and its indexes, without some documents.

    Args:
        store: as it is.
        rows: of the documents, among those that are left.

    Returns:
        The store as it will be, and what was done to its indexes.
    """
    new = _prepared(store, _changed(store, rows, None, ""))
    return new, tuple(_outcomes(store, new, 1))


def add_store(
    store: Store,
    added: Store,
    rows: Iterable[int],
    texts: str,
    workers: int = 1,
    fields: FieldFile | None = None,
) -> tuple[Store, Outcomes]:
    """Prepare a store, and its indexes, with the documents of another at its end.

    Args:
        store: as it is.
        added: of the same layer, with the documents to add.
        rows: of documents that are replaced, among those that are left.
        texts: name of the file with the texts of the added documents.
        workers: threads that build a graph.
        fields: of the added documents, in a file in the folder of the store; None where those of
            the others are not known.

    Returns:
        As `delete_rows`.
    """
    new = _prepared(store, _changed(store, rows, added, texts, fields))
    return new, tuple(_outcomes(store, new, workers))


def compact_store(store: Store, texts: tuple[str, ...], workers: int = 1) -> tuple[Store, Outcomes]:
    """Prepare a store, and its indexes, that hold nothing but the documents that are left.

    Vectors keep their bytes, and shards are as large as if the documents were encoded anew.

    Args:
        store: as it is.
        texts: names of the files with texts of added documents from then on.
        workers: threads that build a graph.

    Returns:
        As `delete_rows`.
    """
    had, revision = store.manifest, store.manifest.revision + 1
    for problem in store.problems():
        raise UserError(problem)
    shards = tuple(_compacted(store))
    data = store.docids.data
    fields = None
    if had.fields is not None:
        fields = write_fields(store.folder / field_file(revision), partial(_fields_left, store))
    manifest = replace(
        had,
        documents=store.documents,
        shards=shards,
        docids=hashlib.sha256(data).hexdigest(),
        texts=texts_digest(shards),
        revision=revision,
        compacted=revision,
        docid_file=_docid_file(revision),
        deleted=None,
        added=texts,
        encoded=had.encoded or had.texts,
        fields=None if fields is None else (fields,),
    )
    write_bytes(store.folder / manifest.docid_file, data)
    new = _prepared(store, manifest)
    return new, tuple(_outcomes(store, new, workers))


def is_compact(store: Store) -> bool:
    """Whether nothing is deleted, and every shard but the last is full."""
    *full, _ = store.manifest.shards
    return not len(store.tombstones) and all(s.rows == store.manifest.shard_rows for s in full)


def _changed(
    store: Store,
    rows: Iterable[int],
    added: Store | None,
    texts: str,
    fields: FieldFile | None = None,
) -> StoreManifest:
    """Write the files of a store with fewer and more documents; return its manifest."""
    had, revision = store.manifest, store.manifest.revision + 1
    gone = store.tombstones.union(store.tombstones.stored(sorted(rows)))
    made = replace(had, revision=revision, encoded=had.encoded or had.texts)
    if len(gone) > len(store.tombstones):
        made = replace(made, deleted=gone.write(store.folder, f"deleted-{revision:05d}.i64"))
    if added is None:
        return made
    shards = []
    for number, shard in enumerate(added.manifest.shards, had.next_shard):
        name = shard_name(number, had.dtype)
        link(added.folder / shard.name, store.folder / name)
        shards.append(replace(shard, name=name))
    data = store.complete.docids.data + added.docids.data
    write_bytes(store.folder / _docid_file(revision), data)
    return replace(
        made,
        documents=had.documents + added.documents,
        shards=(*had.shards, *shards),
        docids=hashlib.sha256(data).hexdigest(),
        texts=texts_digest((*had.shards, *shards)),
        docid_file=_docid_file(revision),
        added=(*had.added, texts),
        fields=None if had.fields is None or fields is None else (*had.fields, fields),
    )


def _fields_left(store: Store) -> Iterator[Fields]:
    """Yield the fields of the documents that are left."""
    stays = np.ones(store.manifest.documents, np.bool_)
    stays[store.tombstones.rows] = False
    return compress(store.fields.texts(), stays)


def keep_fields(
    home: Path, rows: Callable[[Store], Iterable[Fields]], say: Callable[[str], None] | None = None
) -> None:
    """Write the fields of the documents of finished stores, which do not have them yet.

    Args:
        home: folder of the stores of all layers.
        rows: returns the fields of each stored document, deleted ones included; called twice.
        say: as `write_fields` takes it.

    Raises:
        UserError: another process changes the stores, or the disk refuses.
    """
    made: dict[tuple[str, int], tuple[Path, FieldFile]] = {}  # by documents: layers share them
    with lock_folder(home, _ELSEWHERE):
        for folder in store_folders_of(home) if not (home / CHANGE).exists() else ():
            with lock_folder(folder, _ELSEWHERE):
                _keep_fields_of(open_store(folder), rows, made, say)


def _keep_fields_of(
    store: Store,
    rows: Callable[[Store], Iterable[Fields]],
    made: dict[tuple[str, int], tuple[Path, FieldFile]],
    say: Callable[[str], None] | None,
) -> None:
    held, key = store.manifest, (store.manifest.docids, store.manifest.revision)
    if held.fields is not None:
        return
    if key not in made:
        path = store.folder / field_file(held.revision)
        made[key] = path, write_fields(path, partial(rows, store), say)
    path, record = made[key]
    if record.name and path.parent != store.folder:
        link(path, store.folder / path.name)
    replace(held, fields=(record,)).write(store.folder)


def _docid_file(revision: int) -> str:
    return f"docids.{revision:05d}.txt"  # not as the docids of a shard are called


def _prepared(store: Store, manifest: StoreManifest) -> Store:
    """Write the next store.json, and return the store that it tells of."""
    manifest.write(store.folder / NEXT)
    return store_of_manifest(store.folder, manifest)


def _outcomes(store: Store, new: Store, workers: int) -> Iterator[tuple[str, str]]:
    """Write the next files of each index of a store."""
    gone = new.manifest.deleted
    for built in built_indexes(store.folder):
        had = IndexManifest.read(built.folder)
        if had.store == new.manifest.rows_digest:
            kept = replace(had, deleted=gone, revision=new.manifest.revision)
            kept.write(built.folder / NEXT)
            done = "kept"
        else:
            done = renew_index(built.folder, store, new, workers) or "left as it was: out of date"
        if gone and (built.folder / NEXT).exists():
            new.tombstones.write(built.folder, gone.name)
        yield str(built.folder), done


def _compacted(store: Store) -> Iterator[Shard]:
    """Write the rows that are left to full shards, and yield their records."""
    manifest = store.manifest
    rows = manifest.shard_rows
    for number, start in enumerate(range(0, store.documents, rows), manifest.next_shard):
        wanted = store.tombstones.stored(range(start, min(start + rows, store.documents)))
        data, texts = _bytes_of(store, wanted)
        docids = "".join(f"{docid}\n" for docid in store.docids[start : start + rows]).encode()
        name = shard_name(number, manifest.dtype)
        write_bytes(store.folder / name, data)
        digests = (hashlib.sha256(part).hexdigest() for part in (data, docids, texts))
        yield Shard(name, len(wanted), *digests)


def _bytes_of(store: Store, wanted: Sequence[int] | np.ndarray) -> tuple[bytes, bytes]:
    """Return stored rows as a shard holds them, and what tells the texts they were encoded from."""
    manifest, start = store.manifest, 0
    parts: list[list[np.ndarray]] = []
    told = bytearray()
    rows = np.asarray(wanted)
    for shard in manifest.shards:
        here = rows[(start <= rows) & (rows < start + shard.rows)] - start
        if here.size:
            path = store.folder / shard.name
            found = FORMATS[manifest.dtype].parts(path, shard.rows, manifest.width)
            parts.append([part[here] for part in found])
            told += shard.texts.encode() + here.astype("<i8").tobytes()
        start += shard.rows
    joined = (np.concatenate(part) for part in zip(*parts, strict=True))
    return b"".join(part.tobytes() for part in joined), bytes(told)


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where a disk has no links."""
    with explain_write_failure(target):
        try:
            os.link(source, target)
        except OSError:
            with atomic_path(target) as temporary:
                shutil.copyfile(source, temporary)
        sync(target.parent)


def forget_encoded(home: Path) -> None:
    """Remove what was encoded of documents that were to be added."""
    with explain_write_failure(home):
        for folder in layer_folders(home):
            if (folder / ADDED).exists():
                shutil.rmtree(folder / ADDED)


def forget_added(home: Path) -> None:
    """Remove documents that were to be added, and what was encoded of them."""
    forget_encoded(home)
    with explain_write_failure(home):
        if (home / ADDED).exists():
            shutil.rmtree(home / ADDED)


def _places(store: Path) -> list[Path]:
    """Return the folder of a store and those of its indexes."""
    return [store, *(built.folder for built in built_indexes(store))]


def _put_in_place(home: Path) -> None:
    """Rename the files of a change that was made, and remove what it replaced."""
    for place in (place for store in store_folders_of(home) for place in _places(store)):
        with explain_write_failure(place):
            for path in sorted((place / NEXT).glob("*")):
                path.replace(place / path.name)
            sync(place)
    forget_added(home)
    _tidy(home)
    remove_files(home, CHANGE)


def _tidy(home: Path) -> None:
    """Remove the files that no record names, of a change that was not made or is in place."""
    texts: set[str] = set()
    for store in store_folders_of(home):
        for place in _places(store):
            with explain_write_failure(place):
                shutil.rmtree(place / NEXT, ignore_errors=True)
        manifest = StoreManifest.read(store)
        gone = [manifest.deleted.name] if manifest.deleted else []
        names = {*(shard.name for shard in manifest.shards), manifest.docid_file, *gone}
        names.update(file.name for file in manifest.fields or ())
        _remove_others(store, names, "vectors-*", "docids*", "deleted-*", FIELD_FILES)
        for built in built_indexes(store):
            deleted = IndexManifest.read(built.folder).deleted
            _remove_others(built.folder, {deleted.name} if deleted else set(), "deleted-*")
        texts.update(manifest.added)
    _remove_others(home, texts, TEXTS)


def _remove_others(folder: Path, names: set[str], *patterns: str) -> None:
    found = {path.name for pattern in patterns for path in folder.glob(pattern)}
    if found - names:
        remove_files(folder, *(found - names))
