"""Where things lie in an index folder, and the commands that put them there."""

import re
from pathlib import Path

from m2dr.errors import UserError

STORE = "store.json"
PARTIAL = "store.partial.json"
DOCIDS = "docids.txt"
MANIFEST = "manifest.json"
INDEX = "index"  # this name and the next are those that pyserini's FaissSearcher opens
INDEX_DOCIDS = "docid"
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


def index_folder(store: Path, dim: int) -> Path:
    """Where the index of one prefix lies, beside the vectors it is cut from."""
    return store / f"dim-{dim}"


def store_command(folder: Path) -> str:
    """Name the command that makes the store in `folder`, as far as its name tells.

    >>> store_command(Path("indexes/pydocs/0123456789ab/layer-06"))
    'm2dr index corpus --layer 6'
    """
    layer = re.fullmatch(r"layer-0*(\d+)", folder.name)
    return "m2dr index corpus" + (f" --layer {layer[1]}" if layer else "")


def index_command(folder: Path) -> str:
    """Name the command that builds the index in `folder`, as far as its name tells.

    >>> index_command(Path("indexes/pydocs/0123456789ab/layer-06/dim-128"))
    'm2dr index corpus --layer 6 --dim 128'
    """
    dim = re.fullmatch(r"dim-(\d+)", folder.name)
    return store_command(folder.parent) + (f" --dim {dim[1]}" if dim else "")
