"""How vectors are kept on disk: FORMATS as rows, one of which a store has for all its shards."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.index.vectors import Floats

_STEPS = 127  # of int8 on either side of zero; -128 is left out, so that negating loses nothing


@dataclass(frozen=True)
class Format:
    """One way to keep vectors. A new one is a row of FORMATS, and the tests run over all rows.

    Where rows are scaled, a shard holds the scales of its rows first, [n] float32, and then the
    coordinates, [n, width]: multiplied, they are the vectors. A scale per row needs no look at the
    corpus before the first shard, so that a shard is the same bytes whoever writes it.
    """

    name: str  # as store.json has it, and the end of a shard's name
    dtype: np.dtype[Any]  # of a coordinate; little-endian on every machine
    scaled: bool = False  # a float32 per row goes before the coordinates

    def bytes_of(self, rows: int, width: int) -> int:
        """Size of a shard."""
        return rows * (width * self.dtype.itemsize + (4 if self.scaled else 0))

    def pack(self, vectors: Floats) -> bytes:
        """Vectors [n, width] as a shard holds them; what is too large becomes infinite in f16."""
        if not self.scaled:
            with np.errstate(over="ignore"):
                return np.ascontiguousarray(vectors, self.dtype).tobytes()
        vectors = np.ascontiguousarray(vectors, np.float32)
        scales = (np.abs(vectors).max(axis=1) / np.float32(_STEPS)).astype("<f4")
        steps = np.where(scales > 0, scales, np.float32(1))
        rounded = np.rint(vectors / steps[:, None]).astype(self.dtype)
        return bytes(scales.tobytes() + rounded.tobytes())

    def reader(self, path: Path, rows: int, width: int) -> Callable[[Any], Floats]:
        """What turns a slice or row numbers of a shard into its vectors.

        Those of f16 and f32 are read-only views of the file; those of int8 are new, float32.
        """
        if not self.scaled:
            whole: Floats = np.memmap(path, self.dtype, mode="r", shape=(rows, width))
            return whole.__getitem__
        scales = np.memmap(path, "<f4", mode="r", shape=(rows, 1))
        steps = np.memmap(path, self.dtype, mode="r", offset=rows * 4, shape=(rows, width))

        def scaled(chosen: Any) -> NDArray[np.float32]:  # noqa: ANN401  # whatever numpy takes
            return np.asarray(steps[chosen] * scales[chosen], np.float32)

        return scaled

    @property
    def read_as(self) -> np.dtype[np.floating[Any]]:
        """Dtype of the vectors that a reader gives."""
        return np.dtype(np.float32) if self.scaled else self.dtype


FORMATS = {
    row.name: row
    for row in (
        Format("f16", np.dtype("<f2")),
        Format("f32", np.dtype("<f4")),
        Format("int8", np.dtype("i1"), scaled=True),
    )
}
