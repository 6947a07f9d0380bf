"""`m2dr encode`: the vectors of all texts of a file, at one cut."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from m2dr.core.errors import UserError, counted
from m2dr.core.files import atomic_path, refuse_same_file, write_text
from m2dr.core.progress import progress
from m2dr.core.records import Cut, Side
from m2dr.core.report import Report, timed
from m2dr.core.requests import EncodeRequest, at_cut
from m2dr.data.loaders import open_texts
from m2dr.model.embed import AT_ONCE
from m2dr.model.tokens import batched
from m2dr.tasks.encoder import Encoder
from m2dr.tasks.models import newest_model


@dataclass(frozen=True)
class EncodeReport(Report):
    """The vectors that `m2dr encode` wrote."""

    texts: int
    model: str
    cut: Cut

    def __str__(self) -> str:
        what = f"{counted(self.texts, 'texts', ',')}, {self.cut} of {self.model}"
        return f"{what}, {self.seconds:,.0f} s: {self.files[0]}"


@timed
def encode(request: EncodeRequest) -> EncodeReport:
    """Encode all texts of a file at one cut, and write their vectors in its order.

    All lines are checked before the model is loaded. The files are replaced when they are complete.

    Raises:
        UserError: a line is malformed, there is none, there is no such model or cut, the format
            is not known, or two of the files are the same.
    """
    request = at_cut(request, "layer")
    if request.out.suffix != ".npy":
        raise UserError(f"--out {request.out} does not end in .npy.")
    if request.query and request.dtype == "int8":
        raise UserError("--dtype int8 encodes documents only, but --query was given.")
    refuse_same_file("--out", request.out, {"FILE": request.file, "--ids": request.ids})
    refuse_same_file("--ids", request.ids, {"FILE": request.file})
    texts = open_texts(request.file, request.query)
    total = sum(1 for _ in texts())
    if total == 0:
        raise UserError(f"{request.file} holds no texts.")
    encoder = Encoder(
        request.model or newest_model(), request.layer, request.dim,
        device=request.device, dtype=request.dtype, runtime=request.runtime,
    )  # fmt: skip
    ids: list[str] = []

    def parts() -> Iterator[list[str]]:
        for part in batched(texts(), AT_ONCE):
            if request.ids:
                ids.extend(document.id for document in part)
            yield [document.content for document in part]

    side: Side = "query" if request.query else "document"
    descr = np.lib.format.dtype_to_descr(np.dtype(request.precision))
    header = {"descr": descr, "fortran_order": False, "shape": (total, encoder.dim)}
    count = 0
    with ExitStack() as files:
        # Not through a mapped file: on a full disk that ends the process by a signal.
        out = files.enter_context(files.enter_context(atomic_path(request.out)).open("wb"))
        np.lib.format.write_array_header_1_0(out, header)
        advance = files.enter_context(progress("Encoding", total, "texts"))
        budget = request.tokens_per_batch
        for (vectors,) in encoder.stream(parts(), side, [encoder.layer], budget, advance):
            with np.errstate(over="ignore"):
                written = vectors.astype(request.precision)
            if not np.isfinite(written).all():
                raise UserError(f"A vector has {np.abs(vectors).max():.6g}, too large for float16.")
            out.write(written.tobytes())
            count += len(vectors)
        if count != total:
            raise UserError(f"{request.file} has changed while it was encoded. Encode it again.")
    if request.ids:
        write_text(request.ids, "".join(f"{each}\n" for each in ids))
    cut = Cut(encoder.layer, encoder.dim)
    paths = (request.out, request.ids) if request.ids else (request.out,)
    return EncodeReport(total, encoder.name, cut, files=paths)
