"""What `m2dr evaluate` does with its grids besides: costs of the cuts, and comparisons."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from m2dr.evaluate.made import Made, package_versions, write_made
from m2dr.model import checkpoint
from m2dr.verbs.against import CompareRequest, compare_folders
from m2dr.verbs.against import tables as comparison_tables
from m2dr.verbs.costs import CostsRequest, measure_costs
from m2dr.verbs.evaluate import EvaluateReport, EvaluateRequest
from m2dr.verbs.models import names_of, newest_model


def keep_record(request: EvaluateRequest, report: EvaluateReport) -> None:
    """Write beside each grid how it was made."""
    for place, corpus in zip(report.places, report.corpora, strict=True):
        for model, folder in _folders(request, place.folder):
            card = checkpoint.read_card(model)
            made = Made(
                _command(), model, corpus, request.split, card.fingerprint, package_versions()
            )
            write_made(made, folder)


def measure_all_costs(request: EvaluateRequest, report: EvaluateReport) -> None:
    """Measure what each cut of each model costs on this machine; costs.json beside each grid."""
    for place, corpus in zip(report.places, report.corpora, strict=True):
        for model, folder in _folders(request, place.folder):
            asked = CostsRequest(
                model=model,
                corpus=corpus,
                split=request.split,
                layers=request.layers,
                dims=request.dims,
                root=request.root,
                device=request.device,
                dtype=request.dtype,
            )
            measure_costs(asked, folder)


def compared(
    request: EvaluateRequest, report: EvaluateReport, against: tuple[str, ...]
) -> Iterator[str]:
    """Each model's table against each baseline, with marks; JSON and CSV beside each grid."""
    for place in report.places:
        for _, folder in _folders(request, place.folder):
            others = tuple(one for one in against if Path(one).resolve() != folder.resolve())
            if others:  # a model is no baseline of its own
                asked = CompareRequest(folder=folder, against=others, measures=request.measures)
                yield comparison_tables(compare_folders(asked).comparisons)


def _folders(request: EvaluateRequest, folder: Path) -> Iterator[tuple[str, Path]]:
    """Each model and the folder of its own results, pairings of other layers included."""
    models = request.models or (newest_model(),)
    for model, name in zip(models, names_of(models), strict=True):
        for found in sorted(folder.glob(f"{name}*/grid.json")):
            if found.parent.name == name or found.parent.name.startswith(f"{name}.documents"):
                yield model, found.parent


def _command() -> str:
    """The command line of this process, when it is m2dr's."""
    program = Path(sys.argv[0]).name
    is_ours = program in ("m2dr", "__main__.py")
    return shlex.join(["m2dr", *sys.argv[1:]]) if is_ours else ""
