"""What `m2dr evaluate` does with its grids besides: costs of the cuts, and comparisons."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from m2dr.evaluate.made import Made, package_versions, write_made
from m2dr.model import checkpoint
from m2dr.verbs.evaluating.against import CompareRequest, compare_folders
from m2dr.verbs.evaluating.against import tables as comparison_tables
from m2dr.verbs.evaluating.costs import CostsRequest, measure_costs
from m2dr.verbs.evaluating.evaluate import EvaluateReport, EvaluateRequest, Place


def keep_record(report: EvaluateReport) -> None:
    """Write beside each grid how it was made."""
    for place in report.places:
        for model, folder in _folders(place):
            card = checkpoint.read_card(model)
            write_made(
                Made(
                    command=_command(),
                    model=model,
                    corpus=place.corpus,
                    split=place.split,
                    fingerprint=card.fingerprint,
                    versions=package_versions(),
                ),
                folder,
            )


def measure_all_costs(request: EvaluateRequest, report: EvaluateReport) -> None:
    """Measure what each cut of each model costs on this machine; costs.json beside each grid."""
    for place in report.places:
        for model, folder in _folders(place):
            asked = CostsRequest(
                model=model,
                corpus=place.corpus,
                split=place.split,
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
        for _, folder in _folders(place):
            others = tuple(one for one in against if Path(one).resolve() != folder.resolve())
            if others:  # a model is no baseline of its own
                asked = CompareRequest(folder=folder, against=others, measures=request.measures)
                yield comparison_tables(compare_folders(asked).comparisons)


def _folders(place: Place) -> Iterator[tuple[str, Path]]:
    """The model of each grid, and the folder that it lies in."""
    for model, grid in zip(place.models, place.grids, strict=True):
        yield model, place.folder / grid.model


def _command() -> str:
    """The command line of this process, when it is m2dr's."""
    program = Path(sys.argv[0]).name
    is_ours = program in ("m2dr", "__main__.py")
    return shlex.join(["m2dr", *sys.argv[1:]]) if is_ours else ""
