"""Faults in the files of an index, found without opening it in FAISS."""

from collections.abc import Iterator
from pathlib import Path

from m2dr.core.errors import UserError
from m2dr.core.files import sha256_of
from m2dr.index.layout import INDEX, INDEX_DOCIDS, index_remedy
from m2dr.index.manifest import IndexManifest
from m2dr.index.searchable import read_docids


def index_problems(folder: Path, *, compare: bool = True) -> Iterator[str]:
    """Yield a sentence for each fault in the files of an index.

    Args:
        folder: of the index.
        compare: whether the checksum of the index file is compared too; else its size alone.
    """
    try:
        manifest = IndexManifest.read(folder)
        path = folder / INDEX_DOCIDS
        read_docids(path, manifest.documents, manifest.docids, lambda: index_remedy(folder))
    except UserError as error:
        yield str(error)
        return
    path = folder / INDEX
    is_there = path.is_file() and path.stat().st_size == manifest.bytes
    if not is_there or (compare and sha256_of(path) != manifest.sha256):
        yield (
            f"{path} is missing or not the file that was written. Build it again "
            f"{index_remedy(folder)}"
        )
