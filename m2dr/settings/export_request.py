"""The request of `m2dr export`.

Neither torch nor numpy is imported here: `--help` is made from this class.
"""

from dataclasses import dataclass
from pathlib import Path

from m2dr.records.cut import Cut
from m2dr.records.option import REQUIRED, option
from m2dr.settings.index_requests import DIMS, NEWEST, PYDOCS

GRAPHS = ("onnx", "openvino")


@dataclass(frozen=True)
class ExportRequest:
    """What `m2dr export` is asked."""

    out: Path = option(REQUIRED, "Folder of the smaller model.")
    named: str = option("", NEWEST, is_argument=True, metavar="[MODEL]")
    cut: Cut | None = option(
        None,
        "Cut to export, as L4D128; layer 0 is the table of tokens of a fitted model.",
        read=Cut.parse,
        metavar="L4D128",
    )
    format: str = option(
        "",
        "onnx or openvino: a graph. By default a folder that transformers, sentence-transformers "
        "and m2dr open. Of layer 0: sentence-transformers, which is the default, or model2vec.",
    )
    int8: bool = option(
        False, "Store the weights of a graph as int8, and measure what that takes from a sample."
    )
    corpus: str = option(
        PYDOCS, "Corpus of the sample of --int8, with judged queries.", default=PYDOCS
    )
    force: bool = option(
        False, "Export a cut that was neither fitted nor trained, or int8 weights that lose much."
    )
    exits: Path | None = option(
        None, "Exits that an index has, its folder exits, in place of the model's own."
    )
    results: tuple[Path, ...] = option(
        (), "Folder of results for the model card; results by default.", "--results"
    )
    model: str = option("", "The same as MODEL.")
    layers: int | None = option(
        None, "Layers to keep, with all dims unless --dim is given.", old=("--layer",)
    )
    dim: int | None = option(None, "Dims to keep, beside --layers.", *DIMS, least=1)
    dtype: str = option("", "Number format of layer 0: fp32, which is the default, fp16 or int8.")
