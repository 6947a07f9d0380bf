"""What lies in a root of indexes: which layers are stored, which dims are built."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from m2dr.index.layout import MANIFEST, STORE, index_parts, store_folder


@dataclass(frozen=True, order=True)
class BuiltIndex:
    """A finished index in a store's folder."""

    dim: int
    engine: str  # a row of ENGINES, or the name of a factory string
    folder: Path


def built_indexes(store: Path) -> tuple[BuiltIndex, ...]:
    """Finished indexes in a store's folder, by dim and then engine."""
    folders = [path.parent for path in store.glob(f"dim-*/{MANIFEST}")]
    found = [(index_parts(folder), folder) for folder in folders]
    return tuple(sorted(BuiltIndex(*parts, folder) for parts, folder in found if parts))


def stored_layers(root: Path, corpus: str, fingerprint: str) -> tuple[int, ...]:
    """Layers whose documents a model has encoded to the end, increasing."""
    home = store_folder(root, corpus, fingerprint, 1).parent
    return _numbers(home.glob(f"layer-*/{STORE}"), r"layer-(\d+)")


def built_dims(store: Path) -> tuple[int, ...]:
    """Dims that have a flat index in a store's folder, increasing."""
    return _numbers(store.glob(f"dim-*/{MANIFEST}"), r"dim-(\d+)")


def _numbers(paths: Iterable[Path], pattern: str) -> tuple[int, ...]:
    found = (re.fullmatch(pattern, path.parent.name) for path in paths)
    return tuple(sorted(int(match[1]) for match in found if match))
