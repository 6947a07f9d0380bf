"""Where things lie in an index folder."""

import re
from pathlib import Path

from m2dr.errors import UserError

STORE = "store.json"
PARTIAL = "store.partial.json"
DOCIDS = "docids.txt"
MANIFEST = "manifest.json"
INDEX = "index"  # this name and the next are those that pyserini's FaissSearcher opens
INDEX_DOCIDS = "docid"
EXITS = "exits"  # folder of the exits that were fitted on the documents, beside the stores
DIGITS = 12  # of the fingerprint, in folder names and in sentences


def store_folder(root: Path, corpus: str, fingerprint: str, layer: int) -> Path:
    """Where the store of one layer lies.

    >>> store_folder(Path("indexes"), "beir/scifact", "0123456789abcdef", 6).as_posix()
    'indexes/beir/scifact/0123456789ab/layer-06'
    """
    parts = Path(corpus).parts
    if not parts or Path(corpus).is_absolute() or ".." in parts:
        raise UserError(f"{corpus!r} cannot name a corpus: use a relative name such as pydocs.")
    return root.joinpath(*parts, fingerprint[:DIGITS], f"layer-{layer:02d}")


def index_folder(store: Path, dim: int, engine: str = "flat") -> Path:
    """Where the index of one prefix lies, beside the vectors it is cut from.

    Args:
        store: its folder.
        dim: coordinates kept.
        engine: a row of ENGINES, or `recipes.factory_name` of a factory string.

    >>> index_folder(Path("layer-06"), 128, "hnsw").as_posix()
    'layer-06/dim-128-hnsw'
    """
    return store / (f"dim-{dim}" if engine == "flat" else f"dim-{dim}-{engine}")


def index_parts(folder: Path) -> tuple[int, str] | None:
    """Dim and engine that `index_folder` put into a name; None for any other folder.

    >>> index_parts(Path("layer-06/dim-128-hnsw"))
    (128, 'hnsw')
    """
    found = re.fullmatch(r"dim-([1-9]\d*)(?:-([a-z0-9-]+))?", folder.name)
    return (int(found[1]), found[2] or "flat") if found else None


def shard_name(number: int, dtype: str) -> str:
    """Name the file of vectors of a shard, counted from 0 in the order of the corpus.

    >>> shard_name(7, "f16")
    'vectors-00007.f16'
    """
    return f"vectors-{number:05d}.{dtype}"
