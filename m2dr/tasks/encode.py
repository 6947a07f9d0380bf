"""`m2dr encode`: the vectors of a file of texts, as an array or a table."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, install, nearest
from m2dr.core.files import atomic_path, refuse_same_file
from m2dr.core.progress import Advance, progress
from m2dr.core.records import Cut, Side
from m2dr.core.requests import EncodeRequest
from m2dr.data.text_files import Texts, open_texts
from m2dr.data.tokens import batched
from m2dr.tasks.encoder import AT_ONCE, CutEncoder, newest_model

# Shapes in this file: N texts, n of them at a time, D dims.

Vectors = NDArray[np.floating[Any]]
Write = Callable[[list[str], Vectors], None]  # ids of n texts, and their vectors [n, D]
Opened = AbstractContextManager[Write]


@dataclass(frozen=True)
class EncodeReport:
    """The vectors that were written."""

    texts: int
    model: str
    cut: Cut
    seconds: float


def encode(request: EncodeRequest) -> EncodeReport:
    """Encode all texts of a file at one cut, and write their vectors in its order.

    All lines are checked before the model is loaded. The files are replaced when they are complete.

    Raises:
        UserError: a line is malformed, there is none, there is no such model or cut, the format
            is not known or its library not installed, or two of the files are the same.
    """
    begun = time.monotonic()
    kind = request.out.suffix.lower()
    if kind not in FORMATS:
        raise UserError(
            f"--out {request.out} has the format {kind or 'of no suffix'}. {nearest(kind, FORMATS)}"
        )
    if kind == ".parquet" and find_spec("pyarrow") is None:
        raise UserError(
            f"--out {request.out} needs pyarrow, which is not installed. Write .npy, or install it "
            f"with: {install('datasets')}"
        )
    refuse_same_file("--out", request.out, {"FILE": request.file, "--ids": request.ids})
    refuse_same_file("--ids", request.ids, {"FILE": request.file})
    texts = open_texts(request.file, request.query)
    total = sum(1 for _ in texts())
    if total == 0:
        raise UserError(f"{request.file} holds no texts. Give a file with one at least.")
    model = request.model or newest_model()
    encoder = CutEncoder(
        model,
        request.layer,
        request.dim,
        device=request.device,
        dtype=request.dtype,
        runtime=request.runtime,
    )
    with ExitStack() as files:
        shape = (total, encoder.cut.dim)
        write = files.enter_context(FORMATS[kind](request.out, shape, request.precision))
        keep = files.enter_context(_ids_file(request.ids)) if request.ids else None
        advance = files.enter_context(progress("Encoding", total, "texts"))
        for ids, vectors in _encoded(request, encoder, texts, advance):
            total -= len(ids)
            if total < 0:
                break
            write(ids, vectors)
            if keep:
                keep(ids)
        if total != 0:
            raise UserError(f"{request.file} has changed while it was encoded. Encode it again.")
    return EncodeReport(shape[0], model, encoder.cut, time.monotonic() - begun)


def _encoded(
    request: EncodeRequest, encoder: CutEncoder, texts: Texts, advance: Advance
) -> Iterator[tuple[list[str], Vectors]]:
    """Yield the ids of n texts, and their vectors [n, D]."""
    read: deque[list[str]] = deque()  # ids of the parts whose vectors are to come

    def parts() -> Iterator[list[str]]:
        for part in batched(texts(), AT_ONCE):
            read.append([one.id for one in part])
            yield [one.content for one in part]

    side: Side = "query" if request.query else "document"
    layers, budget = [encoder.cut.layer], request.tokens_per_batch
    for (vectors,) in encoder.stream(parts(), side, layers, budget, advance):
        yield read.popleft(), vectors


def _in(precision: str, vectors: Vectors) -> Vectors:
    """Return vectors in the number format that they are written in.

    Raises:
        UserError: a value is too large for it.
    """
    with np.errstate(over="ignore"):
        found = vectors.astype(precision)
    if not np.isfinite(found).all() and np.isfinite(vectors).all():
        raise UserError(
            f"--precision {precision} was asked for, and a vector has the value "
            f"{np.abs(vectors).max():.6g}, which is too large for it. Leave --precision out."
        )
    return found


@contextmanager
def _npy(path: Path, shape: tuple[int, int], precision: str) -> Iterator[Write]:
    """Open an array [N, D], which `numpy.load` reads."""
    descr = np.lib.format.dtype_to_descr(np.dtype(precision))
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    # Not through a mapped file: on a full disk that ends the process by a signal.
    with atomic_path(path) as unfinished, unfinished.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)

        def write(_: list[str], vectors: Vectors) -> None:
            file.write(_in(precision, vectors).tobytes())

        yield write


@contextmanager
def _parquet(path: Path, shape: tuple[int, int], precision: str) -> Iterator[Write]:
    """Open a table with the columns `id` and `vector`, a list of D numbers."""
    import pyarrow
    from pyarrow import parquet

    numbers = pyarrow.from_numpy_dtype(np.dtype(precision))
    schema = pyarrow.schema({"id": pyarrow.string(), "vector": pyarrow.list_(numbers, shape[1])})
    with atomic_path(path) as unfinished, parquet.ParquetWriter(unfinished, schema) as file:

        def write(ids: list[str], vectors: Vectors) -> None:
            flat = pyarrow.array(_in(precision, vectors).ravel())
            column = pyarrow.FixedSizeListArray.from_arrays(flat, shape[1])
            file.write_table(pyarrow.table([pyarrow.array(ids), column], schema=schema))

        yield write


@contextmanager
def _ids_file(path: Path) -> Iterator[Callable[[list[str]], None]]:
    """Open a file of one id per line, as `m2dr index import --ids` reads it."""
    with atomic_path(path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        yield lambda ids: file.writelines(f"{one}\n" for one in ids)


FORMATS: dict[str, Callable[[Path, tuple[int, int], str], Opened]] = {
    ".npy": _npy,
    ".parquet": _parquet,
}
