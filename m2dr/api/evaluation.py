"""`m2dr.evaluate`: the measures of every cut of a model, as a table, a figure or a choice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from m2dr.api.encode_options import words
from m2dr.api.keywords import understood
from m2dr.api.text_encoder import TextEncoder
from m2dr.core.arguments import (
    one_of,
    one_or_many,
    path_or_name,
    string,
    whole_number,
    whole_numbers,
)
from m2dr.core.errors import UserError, command, install
from m2dr.core.reading import count, measure_floor, milliseconds, share, size
from m2dr.core.requests import INDEXES, RESULTS, EvaluateRequest, PickRequest
from m2dr.evaluate.figures import quality_over_dims
from m2dr.evaluate.grid import Grid, text_table
from m2dr.evaluate.pick import Choice
from m2dr.tasks.evaluate import evaluate as run
from m2dr.tasks.evaluate import keep_record
from m2dr.tasks.pick import pick_cut

if TYPE_CHECKING:
    import pandas

Value = TypeVar("Value")


@dataclass(frozen=True)
class EvaluatedGrid(Grid):
    """The measures of one model, cut by cut, and the folder with its files.

    Cells are `grid.cells[m2dr.core.records.Cut(4, 128)]["nDCG@10"]`; `str(grid)` is the table that
    `m2dr evaluate` prints.
    """

    request: EvaluateRequest | None = None  # what was measured; None of no grid that is returned
    folder: Path = Path()  # with grid.json, grid.csv and runs

    def __str__(self) -> str:
        return "\n\n".join(text_table(self, measure) for measure in self.measures)

    @understood("to_pandas")
    def to_pandas(self) -> "pandas.DataFrame":
        """Return a row per cut, with the columns layer and dim and one for each measure.

        Raises:
            UserError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise UserError(
                f"pandas is not installed. Install it with: {install('pandas')}"
            ) from None
        cuts = self.cells.items()
        rows = [{"layer": cut.layer, "dim": cut.dim, **values} for cut, values in sorted(cuts)]
        return pandas.DataFrame(rows)

    @understood("plot", {"file": "path", "out": "path"})
    def plot(self, path: str | PathLike[str], measure: str = "") -> Path:
        """Draw a measure over the dims, a line per layer, in the format of the file's suffix.

        Args:
            path: file to write, such as grid.png or grid.svg.
            measure: one of the grid; the first by default.

        Returns:
            The path.

        Raises:
            UserError: the grid does not hold the measure, or the file cannot be written.
        """
        file, measure = Path(path_or_name("path", path)), string("measure", measure)
        quality_over_dims([self], measure or self.measures[0], file)
        return file

    @understood("pick", {"latency_ms": "latency", "bytes": "bytes_per_document"})
    def pick(
        self,
        *,
        latency: str = "",
        bytes_per_document: str | int = "",
        multiply_adds: str | int = "",
        quality: str | float = "",
        at_least: str = "",
        measure: str = "",
        percentile: Literal[50, 95] = 50,
    ) -> Choice:
        """Return the best cut within a budget, as `m2dr pick` does; `choice.chosen.cut` is the cut.

        Costs that are not known yet are measured on this machine.

        Args:
            latency: largest latency of a query, such as 5ms.
            bytes_per_document: largest size in the index, such as 256 or 1KB.
            multiply_adds: most multiply-adds of a query, such as 85M.
            quality: least quality as a share of the full model's, such as .97 or 97%.
            at_least: least value of a measure, such as nDCG@10=.3.
            measure: of quality; nDCG@10 by default, or the first one.
            percentile: of the queries' latencies.

        Raises:
            UserError: no cut fits, with the nearest ones and what they lack; or a limit is not
                written as it should be.
        """
        assert self.request is not None  # every grid that `evaluate` returns has one
        return pick_cut(
            PickRequest(
                self.folder,
                latency_ms=_read("latency", milliseconds, latency),
                bytes_per_document=_read("bytes_per_document", size, bytes_per_document),
                multiply_adds=_read("multiply_adds", count, multiply_adds),
                quality=_read("quality", share, quality),
                at_least=_read("at_least", measure_floor, at_least),
                measure=string("measure", measure),
                percentile=one_of("percentile", percentile, (50, 95)),
                model=self.request.models[0],
                corpus=self.request.corpora[0],
                root=self.request.root,
                device=self.request.device,
                dtype=self.request.dtype,
            )
        )


@understood(
    "m2dr.evaluate",
    {
        **dict.fromkeys(("metrics", "measure", "metric"), "measures"),
        **dict.fromkeys(("dataset", "data"), "corpus"),
        "layer": "layers", "dim": "dims", "root": "folder",
    },
)  # fmt: skip
def evaluate(
    model: TextEncoder | str | PathLike[str],
    corpus: str | PathLike[str],
    *,
    split: str = "",
    layers: int | Sequence[int] = (),
    dims: int | Sequence[int] = (),
    measures: str | Sequence[str] = (),
    documents: str | int = "trained",
    exits: Literal["model", "index"] = "model",
    folder: str | PathLike[str] = INDEXES,
    out: str | PathLike[str] = RESULTS,
    overwrite: bool = False,
    device: str | None = None,
    dtype: str | None = None,
) -> EvaluatedGrid:
    """Measure every cut of a model on a corpus, as `m2dr evaluate retrieval` does.

    Documents are encoded once into the stores of `folder`; what was measured before is not
    measured again.

    Args:
        model: an encoder, or the folder or id of a model.
        corpus: pydocs, a folder in BEIR or MS MARCO layout or its bare name, or irds:ID.
        split: of the queries; test by default, and dev of MS MARCO.
        layers: layers to measure; all by default.
        dims: dims to measure; by default powers of two from 8, and the full width.
        measures: one or several, as ir_measures writes them; the default measures of the data.
        documents: layer whose documents are searched: trained, same, last or a number.
        exits: of the queries: the model's own, or some fitted on the documents searched.
        folder: of the indexes.
        out: folder of tables, runs and figures.
        overwrite: whether to measure again what was measured before.
        device: auto, cpu, cuda or cuda:N; that of the encoder by default.
        dtype: auto, fp32 or bf16; that of the encoder by default.

    Raises:
        UserError: a corpus, split, model, measure or cut is not there.
    """
    if not isinstance(documents, str):
        documents = str(whole_number("documents", documents, 0))
    how = words({"device": device, "dtype": dtype})
    encoder = model if isinstance(model, TextEncoder) else None
    name = encoder.name if encoder else path_or_name("model", model)
    if documents == "cross":
        made = command("evaluate", "retrieval", corpus=corpus, model=name, documents="cross")
        raise UserError(
            f"documents = cross was asked for, and gives a grid per layer of the documents, where "
            f"one is returned. Make these with: {made}"
        )
    request = EvaluateRequest(
        corpora=(path_or_name("corpus", corpus),),
        models=(name,),
        split=string("split", split),
        layers=whole_numbers("layers", layers, 0),
        dims=whole_numbers("dims", dims, 1),
        documents=documents,
        exits=one_of("exits", exits, ("model", "index")),
        measures=tuple(one_or_many("measures", measures)),
        root=Path(path_or_name("folder", folder)),
        out=Path(path_or_name("out", out)),
        overwrite=overwrite,
        device=how["device"] or (encoder.device if encoder else "auto"),
        dtype=how["dtype"] or (encoder.dtype if encoder else "auto"),
    )
    report = run(request)
    keep_record(report)
    if report.means:  # of a corpus that consists of several
        grid = report.means[0]
        home = request.out / grid.corpus.replace(" ", "-")
    else:
        grid, home = report.grids[0], report.folder
    values = {field.name: getattr(grid, field.name) for field in fields(Grid)}
    return EvaluatedGrid(**values, request=request, folder=home / grid.model)


def _read(name: str, read: Callable[[str], Value], value: object) -> Value | None:
    """Return a limit as `m2dr pick` reads it; None where it is empty."""
    if value in ("", None):
        return None
    try:
        return read(str(value))
    except ValueError as error:
        raise UserError(f"{name} = {value!r} was asked for; {error}") from None
