"""`m2dr export`: write a cut as a model of its own or as a graph, or layer 0 as a table."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from m2dr.core.errors import UserError, command, counted, nearest
from m2dr.core.progress import say
from m2dr.core.records import Cut, CutCosts, ExportRecord, MeasuredCut, ModelCard, QuantizedCheck
from m2dr.core.requests import GRAPHS, PYDOCS, CardRequest, ExportRequest
from m2dr.evaluate.costs import Cost, bytes_per_document
from m2dr.model.checkpoint import export_cut, load, save
from m2dr.model.encoder import Encoder, parameters_of
from m2dr.model.folder import locked_for_export, read_card
from m2dr.model.graph_export import graph_aside, require_graph
from m2dr.model.standalone import CutModel, cut_model, refuse_unready, write_standalone
from m2dr.model.static_formats import FORMATS, StaticFolder, export_static
from m2dr.tasks.card import results_of
from m2dr.tasks.encoder import names_of, newest_model
from m2dr.tasks.figures import ModelResult
from m2dr.tasks.int8_check import compare, open_sample

FOLDER = "sentence-transformers"  # the format of a folder, and the first one of layer 0
LEAST_COSINE, LARGEST_LOSS = 0.999, 0.02  # of int8: the mean cosine, and nDCG@10 on the sample


@dataclass(frozen=True)
class ExportReport:
    """What was exported: lines of the answer, and notes beside them."""

    lines: tuple[str, ...]
    notes: tuple[str, ...] = ()


def export_model(request: ExportRequest) -> ExportReport:
    """Write what a request asks for.

    Raises:
        UserError: options contradict each other, there is no such model or cut, it was neither
            fitted nor trained, `out` holds something or lies in the model, or int8 weights lose
            too much.
    """
    if request.named and request.model and request.named != request.model:
        raise UserError(
            f"MODEL is {request.named} and --model is {request.model}. Give one of the two."
        )
    layer, dim = _layer_and_dim(request)
    _refuse_format(request, layer)
    request = replace(request, model=request.named or request.model or newest_model())
    _refuse_place(request)
    if layer == 0:
        return _table(request, dim)
    if dim is None and request.exits is None and request.format not in GRAPHS:
        card = export(request.model, layer, request.out)
        cuts = ", ".join(map(str, card.cuts)) or "none"
        line = f"{counted(card.layers, 'layers')}, cuts trained: {cuts}; {request.out}"
        return ExportReport((line,))
    return _export_cut(request, Cut(layer, dim or read_card(request.model).width))


def _layer_and_dim(request: ExportRequest) -> tuple[int, int | None]:
    """Return the layer that is asked for, and the dim, None for all."""
    cut, layers, dim = request.cut, request.layers, request.dim
    if cut is not None and (layers is not None or dim is not None):
        raise UserError(
            f"--cut {cut} names a layer and a dim, and --layers or --dim was given beside it. Give "
            "--cut alone."
        )
    if cut is not None:
        return cut.layer, cut.dim
    if layers is None:
        line = command("export", request.named or "MODEL", cut="L4D128", out=request.out)
        raise UserError(f"No cut was named, by --cut or by '--layers'. Name one, as in: {line}")
    return layers, dim


def _refuse_format(request: ExportRequest, layer: int) -> None:
    """Refuse a format that a layer does not have, and options of another one."""
    known = (FOLDER, *GRAPHS) if layer else tuple(FORMATS)
    asked = request.format
    if asked and asked not in {*known, *GRAPHS, *FORMATS}:
        of_table = "" if layer else " for layer 0"
        raise UserError(f"There is no format {asked!r}{of_table}. {nearest(asked, known)}")
    if layer and (asked in FORMATS and asked != FOLDER or request.dtype):
        given = f"--dtype {request.dtype}" if request.dtype else f"--format {asked}"
        raise UserError(
            f"{given} of an export is for layer 0, and layer {layer} was asked for. Leave it out; "
            "--format onnx --int8 writes int8 weights."
        )
    if layer == 0 and (asked in GRAPHS or request.int8):
        raise UserError(
            f"Layer 0 is a table that runs no layer, so it needs no graph, and "
            f"{'--int8' if request.int8 else f'--format {asked}'} was asked for. Take "
            f"--format {' or '.join(FORMATS)}, with --dtype int8 for small rows."
        )
    if request.corpus != PYDOCS and not request.int8:
        raise UserError(
            f"--corpus {request.corpus} was asked for and is of the sample of --int8, which was "
            "not. Add --int8, or leave --corpus out."
        )
    if request.int8 and asked not in GRAPHS:
        raise UserError(
            "--int8 was asked for and is of graphs: transformers reads no such weights. Add "
            "--format onnx or --format openvino."
        )


def _refuse_place(request: ExportRequest) -> None:
    """Refuse to write into the model, of whose files the export would become a part."""
    folder = Path(request.model)
    if folder.is_dir() and request.out.resolve().is_relative_to(folder.resolve()):
        name = f"{folder.resolve().name}-{request.cut or 'cut'}"
        raise UserError(
            f"--out {request.out} lies in the folder of the model that is exported. Name another "
            f"place, as in --out {folder.parent / name}"
        )


def _table(request: ExportRequest, dim: int | None) -> ExportReport:
    """Write layer 0."""
    made = export_table(
        request.model, request.out, request.format, dim, request.dtype, request.exits
    )
    numbers = f"{counted(made.tokens, 'tokens', ',')}, {counted(made.dim, 'dims')}"
    line = f"Layer 0 for {made.format}: {numbers}, {made.dtype}; {request.out}"
    return ExportReport((line,), made.notes)


def _export_cut(request: ExportRequest, cut: Cut) -> ExportReport:
    model, exits = request.model, request.exits
    if exits and cut.layer == read_card(model).layers:
        raise UserError(
            f"--exits {exits} was asked for with {cut}, and exits of an index are those of layers "
            f"below {cut.layer}, the last one of {model}. Leave --exits out, or name such a layer."
        )
    if not request.force:
        refuse_unready(read_card(model), cut, model, exits)
    is_graph = request.format in GRAPHS
    kind = require_graph(request.format, f"--format {request.format}") if is_graph else None
    sample = open_sample(request.corpus) if request.int8 else None
    made = cut_model(model, cut, exits)
    full = load(model)[0]
    record = _record(request, made, full)
    if kind is None:
        write_standalone(made, request.out, record, model)
        return ExportReport(tuple(_told(request, record)), tuple(_notes(request, record)))
    exact = cut_model(model, cut, exits).encoder if sample else None
    with graph_aside(made, kind, request.out, exact) as written:
        record = replace(record, lowest_cosine=written.lowest)
        if sample and exact is not None:
            whole = full if made.query_only else None
            record = replace(record, int8=compare(sample, made, exact, written.graph, whole))
            refuse_loss(request, record)
        written.finish(record)
    return ExportReport(tuple(_told(request, record)), tuple(_notes(request, record)))


def refuse_loss(request: ExportRequest, record: ExportRecord) -> None:
    """Refuse int8 weights that take too much."""
    found = record.int8
    assert found is not None
    if request.force or (found.cosine >= LEAST_COSINE and found.loss <= LARGEST_LOSS):
        return
    raise UserError(
        f"int8 weights of {record.cut} lose too much: {_int8(found)}; a mean cosine of "
        f"{LEAST_COSINE} and a loss of {LARGEST_LOSS} are allowed. Leave --int8 out, or take them "
        "as they are with --force."
    )


def _record(request: ExportRequest, made: CutModel, full: Encoder) -> ExportRecord:
    """Return the record of a cut with what was measured and what it costs."""
    card, cut, model = made.parent, made.cut, request.model
    found: list[ModelResult] = []
    if not made.of_index:  # results do not say by which exits of an index
        asked = CardRequest(Path(model), request.results)
        found, _ = results_of(card, names_of([model])[0], asked)
    return ExportRecord(
        cut=cut,
        full=card.full,
        model=names_of([model])[0],
        fingerprint=card.fingerprint,
        query_only=made.query_only,
        written_as=request.format if request.format in GRAPHS else "folder",
        measured=tuple(_measured(found, cut, card.full)),
        costs=_costs(found, cut, parameters_of(made.encoder, cut.layer)),
        full_costs=_costs(found, card.full, parameters_of(full, card.layers)),
    )


def _measured(found: list[ModelResult], cut: Cut, full: Cut) -> Iterator[MeasuredCut]:
    """Yield the measures of a cut, those of each corpus and split once."""
    places = set()
    for result in found:
        grid = result.grid
        if (grid.corpus, grid.split) in places or cut not in grid.cells:
            continue
        places.add((grid.corpus, grid.split))
        for measure in grid.measures:
            whole = grid.cells[full][measure] if full in grid.cells else None
            value = grid.cells[cut][measure]
            yield MeasuredCut(grid.corpus, grid.split, grid.queries, measure, value, whole)


def _costs(found: list[ModelResult], cut: Cut, parameters: int) -> CutCosts:
    """Return the costs of a cut: those that were measured, or what arithmetic gives."""
    for costs in (result.costs for result in found):
        if costs is not None and cut in costs.cells:
            one: Cost = costs.cells[cut]
            latency, setup = one.latency_p50_ms, costs.setup
            stored = one.bytes_per_document
            return CutCosts(one.multiply_adds, parameters, stored, latency, setup)
    return CutCosts(None, parameters, bytes_per_document(cut.dim))


def _told(request: ExportRequest, record: ExportRecord) -> Iterator[str]:
    """Yield the lines that say what was written."""
    size = sum(path.stat().st_size for path in request.out.rglob("*") if path.is_file())
    form = f"a folder for {FOLDER}" if record.written_as == "folder" else record.written_as
    yield f"{record.cut} of {record.model} as {form}: {size / 1e6:,.1f} MB; {request.out}"
    for one in record.measured:
        full = "" if one.full is None else f", {one.full:.4f} of {record.full}"
        place = f"{one.corpus} {one.split}".strip()
        yield f"{place}: {one.measure} {one.value:.4f}{full}"
    if record.lowest_cosine is not None:
        yield f"Lowest cosine to the vectors of torch in fp32: {record.lowest_cosine:.6f}"
    if record.int8 is not None:
        yield f"int8 weights: {_int8(record.int8)}"


def _int8(found: QuantizedCheck) -> str:
    texts = f"{counted(found.queries, 'queries')} and {counted(found.documents, 'documents', ',')}"
    return (
        f"on {texts} of {found.corpus} the cosine to fp32 is {found.cosine:.5f} in the mean and "
        f"{found.lowest:.5f} at the lowest, and {found.measure} {found.value:.4f} instead of "
        f"{found.fp32:.4f}, a loss of {found.loss:.4f}"
    )


def _notes(request: ExportRequest, record: ExportRecord) -> Iterator[str]:
    """Yield sentences on what a reader might not expect."""
    if record.query_only:
        documents = Cut(record.full.layer, record.cut.dim)
        out = f"{str(request.out).rstrip('/')}-documents"
        line = command("export", request.model, cut=documents, format=request.format, out=out)
        yield (
            f"{record.cut} encodes queries, and finds documents of {documents} best. Export these "
            f"for your documents with: {line}"
        )
    if not record.measured:
        line = command("evaluate", "retrieval", corpus="CORPUS", model=request.model)
        yield (
            f"No results of {record.model} were found, so the card shows none of {record.cut}. "
            f"Measure it with: {line}"
        )


def export(model: str, layer: int, out: Path) -> ModelCard:
    """Write the first layers of a model with all dims, and return their card."""
    return export_cut(model or newest_model(), layer, out)


def save_cut(model: str, cut: Cut, documents: int, out: Path, force: bool = False) -> None:
    """Write a cut as `m2dr export` does, or the whole model where the cut is all of it.

    Args:
        model: folder or id.
        cut: to keep; with layer 0, whose table is no model, all that its documents need is kept.
        documents: layer of the documents.
        out: folder to write.
        force: whether a cut that was neither fitted nor trained is written too.

    Raises:
        UserError: as `export_model` and `save_model` do.
    """
    if cut.layer == 0 or cut == read_card(model).full:
        save_model(model, max(cut.layer, documents), out)
        return
    report = export_model(ExportRequest(out=out, cut=cut, model=model, force=force))
    for note in report.notes:
        say(note)


def save_model(model: str, layers: int, out: Path) -> ModelCard:
    """Write the first layers of a model, or all of it under the card that it has.

    Raises:
        UserError: there is no such model, or `out` holds something or cannot be written.
    """
    if layers < read_card(model).layers:
        return export_cut(model, layers, out)
    with locked_for_export(out):
        encoder, tokenizer = load(model)
        return save(encoder, tokenizer, encoder.card, out)


def export_table(
    model: str,
    out: Path,
    format_name: str = "",
    dim: int | None = None,
    dtype: str = "",
    exits: Path | None = None,
) -> StaticFolder:
    """Write layer 0 for another tool, and return a description of it.

    Raises:
        UserError: as `export_static` does.
    """
    usual = next(iter(FORMATS))
    named = model or newest_model()
    return export_static(named, out, format_name or usual, dim, dtype or "fp32", exits)
