"""Folders of Pyserini: vectors in a FAISS index, and their docids."""

from pathlib import Path
from typing import Any

from m2dr.core.errors import UserError
from m2dr.index.library import load_faiss, reason_of
from m2dr.index.manifest import INDEX


def open_pyserini(folder: Path) -> Any:  # an index of FAISS
    """Open the FAISS `index` of a folder, as Pyserini and m2dr write it, to reconstruct its rows.

    An index that holds codes instead of vectors gives back approximations.

    Raises:
        UserError: it is missing, empty or no such index, or does not give its vectors back.
    """
    path, faiss = folder / INDEX, load_faiss()
    try:
        index = faiss.read_index(str(path))
        if hasattr(index, "make_direct_map"):
            index.make_direct_map()  # inverted lists know no rows without it
        if index.ntotal:
            index.reconstruct(0)  # asked for many at once, an index that cannot ends the process
    except RuntimeError as error:
        raise UserError(f"{path} does not give its vectors back: {reason_of(error)}.") from error
    if not index.ntotal:
        raise UserError(f"{path} holds no vectors.")
    return index
