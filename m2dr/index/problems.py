"""Faults in the files of an index, found without opening it in FAISS."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from m2dr.core.errors import UserError
from m2dr.core.files import sha256_of
from m2dr.index.layout import INDEX, INDEX_DOCIDS, current, index_remedy, read_current
from m2dr.index.manifest import IndexManifest
from m2dr.index.searchable import read_docids
from m2dr.index.tombstones import read_tombstones


def index_problems(folder: Path, *, compare: bool = True) -> Iterator[str]:
    """Yield a sentence for each fault in the files of an index.

    Args:
        folder: of the index.
        compare: whether the checksum of the index file is compared too; else its size alone.
    """
    try:
        manifest = IndexManifest.read(folder)
        remedy = partial(index_remedy, folder)
        read_current(
            folder / INDEX_DOCIDS,
            lambda path: read_docids(path, manifest.documents, manifest.docids, remedy),
        )
        read_tombstones(folder, manifest.deleted, manifest.documents, remedy)
    except UserError as error:
        yield str(error)
        return
    path = current(folder / INDEX)
    is_there = path.is_file() and path.stat().st_size == manifest.bytes
    if not is_there or (compare and sha256_of(path) != manifest.sha256):
        yield (
            f"{path} is missing or not the file that was written. Build it again "
            f"{index_remedy(folder)}"
        )
