"""Imported vectors, of documents and of queries.

Shapes: N vectors, W width.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from m2dr.core.arrays import Float32
from m2dr.core.errors import UserError
from m2dr.core.files import sha256_of
from m2dr.core.records import ModelCard
from m2dr.data.vectors import Vectors, open_vectors, read_ids
from m2dr.index import manifest
from m2dr.index.folder import IndexFolder
from m2dr.index.library import open_pyserini
from m2dr.model.checkpoint import read_card


def vectors_of(path: Path, ids: Path | None = None) -> Vectors:
    """Open a file of vectors, or a folder of Pyserini.

    Raises:
        UserError: as `open_vectors` and `open_pyserini` do.
    """
    if not (path / manifest.INDEX).is_file():
        return open_vectors(path, ids)
    index, docids = open_pyserini(path), read_ids(ids or path / manifest.INDEX_DOCIDS)
    return Vectors(path, index.ntotal, index.d, index.reconstruct_batch, docids)


def query_vectors(path: Path, card: ModelCard, index: IndexFolder) -> Vectors:
    """Open vectors of queries, rotated as those of the documents of an index were.

    Args:
        path: as `vectors_of` takes it.
        card: of the documents.
        index: of the documents.

    Raises:
        UserError: they have other dims than the documents.
    """
    vectors, width = vectors_of(path), card.width
    if vectors.width != width:
        raise UserError(f"{path} has vectors of {vectors.width} dims, and documents have {width}.")
    rotation = rotation_of(index, width)
    if rotation is None:
        return vectors
    return replace(vectors, read=lambda rows: vectors.finite(rows) @ rotation.T)


def rotation_of(index: IndexFolder, width: int) -> Float32 | None:
    """Return the rotation R [W, W] of imported vectors, stored as v Rᵀ; None if not rotated.

    Raises:
        UserError: its file is missing or not the one that was written.
    """
    digest = read_card(index.path).rotation if index.card.exists() else ""
    if not digest:
        return None
    path = index.rotation
    if not path.is_file() or sha256_of(path) != digest:
        raise UserError(
            f"{path} is missing or not the file that was written; import again with --overwrite."
        )
    return np.fromfile(path, np.float32).reshape(width, width)
