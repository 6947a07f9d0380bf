"""Export a cut of a model, write its card, and upload it to the Hugging Face hub."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from m2dr.core.errors import UserError, counted
from m2dr.core.files import error_summary, lock_folder
from m2dr.core.records import (
    EXPORTED_FILE,
    Cut,
    CutCosts,
    ExportRecord,
    MeasuredCut,
    ModelCard,
)
from m2dr.core.report import Report
from m2dr.core.requests import (
    RESULTS,
    CardRequest,
    ExportRequest,
    PushModelRequest,
    at_cut,
)
from m2dr.evaluation.costs import bytes_per_document
from m2dr.evaluation.grid import GRID, by_code
from m2dr.model import checkpoint
from m2dr.model.card import README, MeasuredGrid, read_training_settings, write_readme
from m2dr.model.checkpoint import Model, open_model
from m2dr.model.encoder import parameters_of
from m2dr.model.export import (
    cut_model,
    refuse_unready,
    write_graph,
    write_words,
)
from m2dr.model.hub import (
    CARD,
    CHECKPOINTS,
    MODEL_SETTINGS,
    MODULES,
    TRANSFORMER_SETTINGS,
    WEIGHTS_INDEX,
)
from m2dr.tasks.evaluating.figures import ModelResult, read_results
from m2dr.tasks.models import names_of, newest_model
from m2dr.tasks.training.run_folder import TRAINING_SETTINGS

MAIN = "main"  # the branch of a new repository
# Files of a model in its own folder; those of its modules lie in folders that modules.json names.
FILES = (
    CARD,
    README,
    EXPORTED_FILE,
    "config.json",
    "generation_config.json",
    "*.safetensors",
    WEIGHTS_INDEX,
    *checkpoint.TOKENIZERS,
    "chat_template.jinja",
    MODULES,
    MODEL_SETTINGS,
    *TRANSFORMER_SETTINGS,
    TRAINING_SETTINGS,
)
_IN_MODULES = ("config.json", "*_config.json", "*.safetensors")


def export_model(request: ExportRequest) -> Report:
    """Write a cut as a folder or a graph, the first layers of a model, or the words of layer 0.

    Raises:
        UserError: options contradict each other, there is no such model or cut, it was neither
            fitted nor trained, or `out` holds something or lies in the model.
    """
    request, name = at_cut(request, "layers"), request.model or newest_model()
    layer, dim = request.layers, request.dim
    names = ("pooling", "similarity", "query_length", "document_length")
    told = {name: value for name in names if (value := getattr(request, name))}
    if told:
        if any((layer is not None, dim, request.format, request.exits)):
            raise UserError(f"--{next(iter(told))} is of a whole folder; export a cut of it after.")
        card = checkpoint.adopt(name, request.out, **told)
        text = f"{card.full}, {card.pooling}, {card.similarity}; {request.out}"
        return Report(text=text, files=(request.out,))
    if layer is None:
        raise UserError("No cut was named, by --cut L4D128 or by --layers 4.")
    if layer == 0 and request.format:
        raise UserError(f"--format {request.format} was given, and layer 0 is words, no graph.")
    folder = Path(name)
    if folder.is_dir() and request.out.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"--out {request.out} lies in the folder of the model that is exported.")
    model = open_model(name)
    if layer == 0:
        words, dims = write_words(model, request.out, dim, request.exits)
        text = f"Layer 0: {words:,} words, {dims} dims; {request.out}, which WordTable.open reads"
    elif not (dim or request.exits or request.format):
        card = checkpoint.export_cut(model, layer, request.out)
        cuts = ", ".join(map(str, card.cuts)) or "none"
        text = f"{counted(card.layers, 'layers')}, cuts trained: {cuts}; {request.out}"
    else:
        cut = Cut(layer, dim or model.card.width)
        text = "\n".join(_export_cut(request, model, cut))
    return Report(text=text, files=(request.out,))


def _export_cut(request: ExportRequest, model: Model, cut: Cut) -> list[str]:
    card, exits = model.card, request.exits
    if exits and cut.layer == card.layers:  # its documents, which pass no exit
        checkpoint.check_exits(exits, card.fingerprint)
    if not request.force:
        refuse_unready(model, cut, exits)
    made, name = cut_model(model, cut, exits), names_of([model.name])[0]
    results: list[ModelResult] = []
    if not made.of_index:  # results do not say by which exits of an index
        found = _results_of(card, name, Path(model.name), request.results)
        results = [r for r in found if not (r.provenance and r.provenance.exits)]
    record = ExportRecord(
        cut=cut,
        full=card.full,
        model=name,
        fingerprint=card.fingerprint,
        query_only=made.query_only,
        written_as=request.format or "folder",
        measured=tuple(_measured(results, cut, card.full)),
        costs=_costs(results, cut, parameters_of(made.encoder, cut.layer)),
        full_costs=_costs(
            results, card.full, parameters_of(checkpoint.load(model).runtime, card.layers)
        ),
    )
    if request.format:
        record = write_graph(made, request.format, request.out, record)
    else:
        with checkpoint.locked_for_export(request.out):
            checkpoint.save(*made.loaded, made.card, request.out, record)
    size = sum(path.stat().st_size for path in request.out.rglob("*") if path.is_file())
    lines = [f"{cut} of {record.model} as {record.written_as}: {size / 1e6:,.1f} MB; {request.out}"]
    for row in record.measured:
        full = "" if row.full is None else f", {row.full:.4f} of {record.full}"
        lines.append(f"{row.corpus} {row.split}: {row.measure} {row.value:.4f}{full}")
    if record.lowest_cosine is not None:
        lines.append(f"Lowest cosine to the vectors of torch in fp32: {record.lowest_cosine:.6f}")
    if record.query_only:
        documents = Cut(record.full.layer, cut.dim)
        lines.append(f"{cut} encodes queries that search documents of {documents}; export both.")
    return lines


def _measured(results: list[ModelResult], cut: Cut, full: Cut) -> Iterator[MeasuredCut]:
    """Yield the measures of a cut, those of each corpus and split once."""
    seen = set()
    for grid in (result.grid for result in results):
        if (grid.corpus, grid.split) in seen or cut not in grid.cells:
            continue
        seen.add((grid.corpus, grid.split))
        for measure in grid.measures:
            whole = grid.cells[full][measure] if full in grid.cells else None
            value = grid.cells[cut][measure]
            yield MeasuredCut(grid.corpus, grid.split, grid.queries, measure, value, whole)


def _costs(results: list[ModelResult], cut: Cut, parameters: int) -> CutCosts:
    """Return the costs of a cut: measured, else computed."""
    for costs in (result.costs for result in results):
        if costs is not None and cut in costs.cells:
            cell = costs.cells[cut]
            return CutCosts(
                cell.multiply_adds, parameters, cell.bytes_per_document, cell.latency_p50_ms,
                costs.setup,
            )  # fmt: skip
    return CutCosts(None, parameters, bytes_per_document(cut.dim))


def save_model(model: Model, layers: int, out: Path) -> ModelCard:
    """Write the first layers of a model, or all of it under the card that it has.

    Raises:
        UserError: there is no such model, or `out` holds something or cannot be written.
    """
    if layers < model.card.layers:
        return checkpoint.export_cut(model, layers, out)
    with checkpoint.locked_for_export(out):
        loaded = checkpoint.load(model)
        return checkpoint.save(*loaded, loaded.card, out)


def write_card(request: CardRequest) -> Report:
    """Write README.md from m2dr.json, the settings of the training and the model's results.

    What a person wrote between the two comments, and metadata that m2dr does not write, are kept.

    Raises:
        UserError: there is no model that m2dr wrote, README.md is of others, the folder is being
            written to, or no results of the model are in the folders that were named.
    """
    folder = request.model
    _require_own(folder)
    card, name = open_model(folder).card, names_of([str(folder)])[0]
    results = _results_of(card, name, folder, request.results)
    with lock_folder(folder):
        grids = tuple(
            MeasuredGrid(
                corpus=grid.corpus,
                split=grid.split,
                size=counted(grid.queries, grid.unit),
                cells=by_code([grid])[0].cells,
                notes=(*grid.notes, *grid.checks),
                command=provenance.command if provenance else "",
            )
            for grid, provenance in ((result.grid, result.provenance) for result in results)
        )
        settings = read_training_settings(folder / TRAINING_SETTINGS)
        write_readme(card, folder, settings, grids, export=checkpoint.read_exported(folder))
    lines = [
        f"{grid.corpus} {grid.split}".strip()
        + f": {', '.join(grid.measures)} of {counted(len(grid.cells), 'cuts')}"
        for grid in grids
    ]
    lines.append(f"{folder / README}" + ", without results" * (not grids))
    return Report(text="\n".join(lines), files=(folder / README,))


def _require_own(folder: Path) -> None:
    if not (folder / CARD).is_file():
        raise UserError(f"{folder} is no model that m2dr wrote: no {CARD} is in it.")


def _results_of(
    card: ModelCard, name: str, model: Path, folders: Sequence[Path]
) -> list[ModelResult]:
    """Return the results of a model; means of several corpora have only its name.

    A fingerprint does not cover pooling, prefixes and the similarity, so that two folders may share
    it. The folder that was measured may have been renamed since.
    """
    if not folders and not any(RESULTS.rglob(GRID)):
        return []
    results = read_results(folders or (RESULTS,))
    own = []
    for result in results:
        provenance = result.provenance
        if provenance is None:
            is_own = result.grid.model == name
        else:
            measured = Path(provenance.model)
            moved = not measured.is_dir() or measured.resolve() == model.resolve()
            alone = not (any(provenance.blend.values()) or provenance.system)
            is_own = provenance.fingerprint == card.fingerprint and moved and alone
        if is_own:
            own.append(result)
    if not own and folders:
        others = ", ".join(sorted({result.grid.model for result in results}))[:200]
        raise UserError(f"No results are of {model} as it is now; these are of {others}.")
    return own


@dataclass(frozen=True)
class PushedModel(Report):
    """What was uploaded, or would be."""

    id: str
    revision: str
    sizes: Mapping[str, int]  # file -> bytes
    url: str  # of the commit; empty where nothing was sent
    commit: str  # its hash

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(self.sizes.values())

    def __str__(self) -> str:
        end = f" would go to {self.id}, branch {self.revision}; nothing was sent."
        end = f": {self.url}" if self.url else end
        lines = [f"{size:>15,}  {name}" for name, size in self.sizes.items()]
        what = f"{counted(len(lines), 'files')}, {self.bytes / 1e6:,.1f} MB{end}"
        return "\n".join([*lines, what])

    def record(self) -> Any:  # a dict
        """Return the fields, with the sizes as `files`, and their sum."""
        record = super().record()
        return record | {"files": record.pop("sizes"), "bytes": self.bytes}


def push_layers(request: PushModelRequest, layers: int) -> PushedModel:
    """Upload the first layers of a model.

    A folder of m2dr that has no more layers goes as it is, and a copy of any other model.

    Raises:
        UserError: as `push_model` and `save_model` do.
    """
    model = open_model(request.model)
    if (request.model / CARD).is_file() and model.card.layers == layers:
        return push_model(request)
    with TemporaryDirectory() as folder:
        copy = Path(folder, request.id.rpartition("/")[2])
        save_model(model, layers, copy)
        return push_model(replace(request, model=copy))


def push_model(request: PushModelRequest) -> PushedModel:
    """Upload the files of a model in one commit, and make its repository where there is none.

    Large files that have arrived are kept by the hub, so that the same request goes on after an
    interruption. Files of an earlier model that this one does not have are removed.

    Raises:
        UserError: the folder holds no complete model, there is no token, or the hub cannot be
            reached or refuses.
    """
    folder, revision = request.model, request.revision or MAIN
    _require_own(folder)
    if (folder / CHECKPOINTS).exists():
        raise UserError(f"{folder} holds a training that is not finished.")
    patterns = [*FILES, "LICENSE*"]
    for row in open_model(folder).found.modules:  # the files are those of m2dr.json
        patterns += [f"{row.path}/{kind}" for kind in _IN_MODULES] if row.path else []
    paths = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(paths)
        if not path.name.startswith(".")
    }
    if request.dry_run:
        return PushedModel(request.id, revision, files, "", "")
    from huggingface_hub import HfApi, get_token

    token = request.token or get_token()
    if not token:
        raise UserError("A token of the hub is needed: `hf auth login`, $HF_TOKEN or --token.")
    api = HfApi(token=token)
    try:
        api.create_repo(request.id, private=request.private or None, exist_ok=True)
        if request.private and not api.model_info(request.id).private:
            raise UserError(f"{request.id} was to be private and is public; nothing was sent.")
        if revision != MAIN:
            api.create_branch(request.id, branch=revision, exist_ok=True)
        # Files of an earlier model that are not among those to come.
        patterns = [*FILES, *(f"[0-9]_*/{kind}" for kind in _IN_MODULES)]
        old = [
            name
            for name in sorted({*api.list_repo_files(request.id, revision=revision)} - {*files})
            if any(fnmatchcase(name, p) and name.count("/") == p.count("/") for p in patterns)
        ]
        done = api.upload_folder(
            repo_id=request.id,
            folder_path=folder,
            revision=revision,
            commit_message=request.message or f"Upload {folder.resolve().name} with m2dr",
            allow_patterns=list(files),
            delete_patterns=old,
        )
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:  # the hub's client raises many classes of errors
        status = getattr(getattr(error, "response", None), "status_code", type(error).__name__)
        reason = getattr(error, "server_message", None) or error_summary(error)
        raise UserError(f"{request.id} cannot be pushed ({status}: {reason}).") from error
    return PushedModel(request.id, revision, files, done.commit_url, done.oid)
