"""`m2dr doctor`: check an install, models, indexes and a corpus against each other."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from m2dr.core.errors import UserError, command, counted
from m2dr.core.fault import Fault, worst_first
from m2dr.core.records import ModelCard
from m2dr.core.requests import INDEXES, MODELS, RESULTS, DoctorRequest
from m2dr.index.layout import store_folder, stored_layers
from m2dr.index.vectors import FORMATS
from m2dr.model.folder import read_card
from m2dr.tasks.doctor_index import IndexChecks
from m2dr.tasks.doctor_install import install_facts, install_faults
from m2dr.tasks.doctor_machine import machine_facts, machine_faults
from m2dr.tasks.doctor_model import model_faults, trained
from m2dr.tasks.encode_texts import open_corpus
from m2dr.tasks.encoder import document_layers

_INDEXED = 4  # bytes of a value in a flat index
_SMALL = 64  # dims of the index that is proposed where there is little room


@dataclass(frozen=True)
class DoctorReport:
    """What was found, by name, and the faults, the worst first."""

    facts: dict[str, str]
    faults: tuple[Fault, ...]


def examine(request: DoctorRequest) -> DoctorReport:
    """Check what a request names; nothing is changed."""
    folders = dict.fromkeys((MODELS, request.root, RESULTS))
    faults = [*install_faults(), *machine_faults(request.device, folders)]
    facts = {**install_facts(), **machine_facts(request.device)}
    facts["models"] = request.model or f"{counted(len(trained()), 'models')} in {MODELS}"
    faults += model_faults(request.model, request.thorough)
    checks = IndexChecks(request)
    facts["indexes"] = checks.run()
    faults += checks.faults
    facts["free disk"] = f"{_free(request.root) / 1e9:,.1f} GB at {request.root}"
    if request.corpus and request.model and not request.index:
        faults += _room_faults(request)
    return DoctorReport(facts, tuple(worst_first(faults)))


def told(report: DoctorReport) -> Iterator[str]:
    """Yield the lines of a report."""
    width = max(map(len, report.facts))
    for name, value in report.facts.items():
        yield f"{name:<{width}}  {value}"
    yield ""
    for fault in report.faults:
        yield f"{fault.level.upper()} {fault.problem.rstrip('.')}. Mend it with: {fault.mend}"
    yield f"{counted(len(report.faults), 'faults')}." if report.faults else "No fault was found."


def _room_faults(request: DoctorRequest) -> Iterator[Fault]:
    """Yield the fault of a disk on which a corpus that is to be indexed has no room."""
    try:
        card, dataset = read_card(request.model), open_corpus(request.corpus)
        there = stored_layers(request.root, dataset.name, card.fingerprint)
        layers = set(document_layers(card)) - set(there)
        home = store_folder(request.root, dataset.name, card.fingerprint, 1).parent
    except UserError:
        return  # told by the checks of models and indexes
    needs = _needs(card, dataset.document_count * len(layers), "f16", card.width)
    free = _free(request.root)
    if needs <= free:
        return
    where = {"corpus": request.corpus, "model": request.model}
    dim = min(_SMALL, card.width)
    small = _needs(card, dataset.document_count * len(layers), "int8", dim)
    made = command(
        "index", "corpus", **where, store="int8", dim=dim,
        indexes=None if request.root == INDEXES else request.root,
    )  # fmt: skip
    if small > free:
        made = command("index", "corpus", **where, indexes=_roomiest(request.root))
    problem = (
        f"The vectors and the index of {dataset.name} take {needs / 1e6:,.1f} MB in {home}, and "
        f"{free / 1e6:,.1f} MB are free."
    )
    yield Fault("error", str(request.root), problem, made)


def _needs(card: ModelCard, documents: int, store: str, dim: int) -> int:
    """Return the bytes of the vectors of documents and of their flat index at one dim."""
    return FORMATS[store].bytes_of(documents, card.width) + documents * dim * _INDEXED


def _roomiest(root: Path) -> Path:
    """Return a folder of indexes on the disk, of a few, that has the most room."""
    places = [Path.home(), Path("/tmp"), Path.cwd().parent]  # a proposal
    return max(places, key=_free) / root.name


def _free(folder: Path) -> int:
    """Return the free bytes of the disk that a folder, which need not exist, is on."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free
