from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from m2dr.index.vectors import FORMATS

matrices = arrays(
    np.float32,
    st.tuples(st.integers(1, 9), st.integers(1, 7)),
    elements=st.floats(-6e4, 6e4, width=32),
)
# How far a coordinate may move: half a step between neighbours of the format.
ERRORS: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "f32": lambda rows: 0 * rows,
    "f16": lambda rows: np.abs(rows) * 2**-11 + 2**-25,
    "int8": lambda rows: np.abs(rows).max(axis=1, keepdims=True) / 127 * 0.5001 + 1e-38 + 0 * rows,
}


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(vectors=matrices)
def test_what_is_kept_is_as_near_as_the_format_allows(
    tmp_path_factory: pytest.TempPathFactory, name: str, vectors: NDArray[np.float32]
) -> None:
    row = FORMATS[name]
    path = tmp_path_factory.getbasetemp() / f"packed.{name}"
    path.write_bytes(b"".join(part.tobytes() for part in row.pack(vectors)))

    parts = row.parts(path, *vectors.shape)

    assert path.stat().st_size == row.bytes_of(*vectors.shape)
    found = np.asarray(row.vectors(parts), np.float64)
    assert (np.abs(found - vectors) <= ERRORS[name](vectors)).all()
    assert row.vectors(parts).dtype == row.read_as
