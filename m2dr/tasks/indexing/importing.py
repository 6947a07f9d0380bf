"""`m2dr index import`: the vectors of another tool become a store and its indexes."""

import hashlib
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.core.arrays import Float32
from m2dr.core.errors import UserError, counted
from m2dr.core.files import json_sha256, write_bytes, write_record
from m2dr.core.progress import progress, say
from m2dr.core.records import CARD_FILE, GIVEN, WHOLE, Cut, ModelCard, Similarity, default_dims
from m2dr.core.report import Report, timed
from m2dr.core.requests import SHARD_ROWS, ImportRequest
from m2dr.data.dataset import Dataset
from m2dr.data.tables import name_of
from m2dr.data.vectors import Vectors
from m2dr.index import manifest
from m2dr.index.engines import check_engine
from m2dr.index.filters import FIELDS, write_fields
from m2dr.index.folder import IndexFolder
from m2dr.index.store import begin_store, clear_store, remove_leftovers, text_digests
from m2dr.index.vectors import prefixes
from m2dr.maps.files import Maps, sampled_rows
from m2dr.maps.log import asked_now
from m2dr.model import checkpoint
from m2dr.model.checkpoint import Model, open_model, read_card
from m2dr.model.folder import ModelFolder
from m2dr.tasks.corpus import CorpusRows, absolute, as_indexed, name_of_corpus, open_corpus
from m2dr.tasks.models import with_lengths_of_index
from m2dr.tasks.vectors import vectors_of

# How far an imported vector may lie from the same document encoded here, where one document lies
# from another at 1: 16-bit numbers alone move it by .01, another layer or order of rows by about 1.
MOST_APART = 0.1
NEIGHBOURS = 10  # of a document, which short prefixes should keep
COMPARED = 2000  # documents of which that is asked
READY = 0.9  # prefixes that keep so much of what rotated ones keep need no rotation


@dataclass(frozen=True)
class ImportReport(Report):
    """What was written; `files` are the indexes."""

    store: Path
    documents: int
    width: int
    sampled: int  # documents that were encoded again and compared

    def __str__(self) -> str:
        end = (
            f"{counted(self.documents, 'documents', ',')} of width {self.width}, "
            f"{self.sampled or 'none'} encoded again, {self.seconds:,.0f} s: {self.store}"
        )
        return "\n".join([*map(str, self.files), end])


@dataclass(frozen=True)
class _Source:
    """Vectors in the order of the documents; without a corpus, in their own."""

    vectors: Vectors
    rows: NDArray[np.int64]  # of the vectors, [N]
    dataset: Dataset | None
    corpus: CorpusRows | None

    @classmethod
    def of(cls, request: ImportRequest, model: Model | None) -> "_Source":
        vectors, dataset = vectors_of(request.vectors, request.ids), None
        try:
            name = request.corpus
            if model:
                fingerprint = model.card.fingerprint
                index = IndexFolder.of(request.root, name_of_corpus(name), fingerprint)
                name, _ = as_indexed(name, index.asked)
            dataset = open_corpus(name)
        except UserError:
            if not request.model or request.sample or vectors.ids is None:
                raise
        corpus = CorpusRows.of(dataset) if dataset else None
        docids = corpus.docids if corpus else vectors.ids or ()
        return cls(vectors, vectors.of(docids, "documents", exactly=True), dataset, corpus)

    def block(self, start: int) -> Float32:
        """Return the vectors of a shard of documents; raises UserError if one is not finite."""
        return self.vectors.finite(self.rows[start : start + SHARD_ROWS])


@timed
def import_vectors(request: ImportRequest) -> ImportReport:
    """Write a store, indexes of its prefixes, and without a model the words of its documents.

    Vectors do not say who made them. Of a model, the label is what the user says, so that queries
    of any other are refused; and it is tried on a sample of the corpus, which the model encodes
    again. Without one, the folder of the index holds a card of its own, and its words, fitted to
    the vectors, are what encodes queries.

    Raises:
        UserError: the files are malformed or do not fit, or the sample shows another model.
        Interrupted: Ctrl-C.
    """
    if request.model and (log := request.queries or request.query_vectors):
        raise UserError(f"{log} is for vectors without a model; use m2dr index fit --queries.")
    # Loads torch, which a search does without.
    from m2dr.tasks.indexing.encode import EncodingJob, refuse_other_fit
    from m2dr.tasks.indexing.steps import Target, check_given, reach

    named, length = None, request.document_length
    if request.model:
        named = open_model(request.model, document_length=length)
    source = _Source.of(request, named)
    vectors, dataset = source.vectors, source.dataset
    model, rotation = (named, None) if named else _without_model(request, source)
    card = model.card
    check_given(model, request.queries, request.query_vectors)
    layer = card.layers if request.layer is None else request.layer
    card.check(Cut(layer, 1))
    if vectors.width > card.width:
        raise UserError(f"{vectors.path} has {vectors.width} dims, and the model {card.width}.")
    dims = sorted(set(request.dims)) or [vectors.width]
    for dim in dims:
        if dim > vectors.width:
            raise UserError(f"Dim {dim} was asked for; {vectors.path} has {vectors.width}.")
        check_engine(request.engine, "", dim)
    sampled = min(request.sample, len(source.rows)) if dataset and request.model else 0
    if dataset and sampled:
        _try(request, source, dataset, model, layer)
    name = dataset.name if dataset else request.corpus
    index = IndexFolder.of(request.root, name, card.fingerprint)
    corpus, asked = request.corpus, index.asked
    if dataset:
        corpus, asked = as_indexed(corpus, asked)
    asked = asked_now(asked, request, store=request.store)
    model = with_lengths_of_index(model, index, asked.query_length, length or asked.document_length)
    folder, label = index.layer(layer), model.label(absolute(corpus))
    form, imported = asked.store or "f16", manifest.IMPORTED
    plan = manifest.StorePlan(name, layer, vectors.width, label, form, SHARD_ROWS, imported)
    with index.lock():
        index.end_sync()
        if request.overwrite or not index.holds(layer):
            index.ask(asked)
            clear_store(folder)
            if not request.model:
                _begin(index, card, rotation)
            _write_store(source, rotation, folder, plan)
        elif request.model or not _holds(index, card, source):
            raise UserError(f"{folder} holds vectors already; --overwrite replaces them.")
        else:
            remove_leftovers(folder)  # of an import that was killed as its store was finished
        if Maps(index).are_fitted:
            refuse_other_fit(Maps(index), request)
        index.ask(asked)
    store, engines = index.store(layer), [(dim, request.engine, "") for dim in dims]
    job = EncodingJob.of_store(store, index, model, corpus, request.device, request.dtype)
    given, fits = (request.queries, request.query_vectors), not request.model
    files = reach(Target(job, dataset, [store], fits, given=given, engines=engines))
    return ImportReport(folder, store.documents, store.width, sampled, files=files)


# Vectors without a model


def _without_model(request: ImportRequest, source: _Source) -> tuple[Model, Float32 | None]:
    """Return what stands for the model of vectors without one, and their rotation, if any.

    The vectors count as the only layer of an unknown encoder; layer 0 is words. Name, similarity
    and rotation are those of an import before, of these vectors or of this name, where none other
    is named now.
    """
    from m2dr.maps.exits import fit_rotation

    sha256, rows, width = hashlib.sha256(), source.rows, source.vectors.width
    for start in range(0, len(rows), SHARD_ROWS):
        sha256.update(source.block(start).tobytes())
    digest = sha256.hexdigest()
    before = _card_before(request, source, digest)
    similarity = request.similarity or (before.similarity if before else "cosine")
    sample = source.vectors.finite(rows[sampled_rows(len(rows))])
    rotation = fit_rotation(sample, "pca", similarity, ())
    dim = max(width // 4, 1)
    points = sample[sampled_rows(len(sample), COMPARED)]
    kept = [neighbours_kept(vectors, dim, similarity) for vectors in (points, points @ rotation.T)]
    rotates = bool(before.rotation) if before else kept[0] < READY * kept[1]
    if request.rotate != "auto":
        rotates = request.rotate == "yes"
    say(
        f"{dim} of {width} dims keep {kept[0]:.0%} of each document's {NEIGHBOURS} nearest "
        f"neighbours, {kept[1]:.0%} after PCA rotation: {'rotated' if rotates else 'not rotated'}."
    )
    cuts_well = rotates or kept[0] >= READY * kept[1]
    cuts = tuple(Cut(1, dim) for dim in (default_dims(width) if cuts_well else (width,)))
    backbone = request.name or name_of(request.vectors)
    fingerprint = json_sha256([request.name or digest, similarity, rotates])
    if before:
        backbone, fingerprint = before.backbone, before.fingerprint
    whole = before.document_length if before else WHOLE
    card = ModelCard(
        backbone=backbone, variant=GIVEN, layers=1, width=width,
        cuts=cuts, documents="last", pooling="mean", similarity=similarity, temperature=1.0,
        revision=digest, fingerprint=fingerprint, document_length=request.document_length or whole,
        rotation=hashlib.sha256(rotation.tobytes()).hexdigest() if rotates else "",
    )  # fmt: skip
    return Model(card.backbone, ModelFolder(request.vectors), card), rotation if rotates else None


def _card_before(request: ImportRequest, source: _Source, digest: str) -> ModelCard | None:
    """Return the card of the newest import of this name, or of these vectors, as is asked now.

    Raises:
        UserError: no name is asked for, and an import of another name is of the documents as they
            were before a change.
    """
    paths = (request.root / source.dataset.name).glob(f"*/{CARD_FILE}") if source.dataset else ()
    name, others = request.name or name_of(request.vectors), []
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        card, index = read_card(path.parent), IndexFolder(path.parent)
        is_same = card.backbone == name or (not request.name and card.revision == digest)
        if (
            is_same
            and request.similarity in (None, card.similarity)
            and (request.rotate == "auto" or (request.rotate == "yes") == bool(card.rotation))
        ):
            return card
        now = source.corpus.digest if source.corpus and index.holds(card.layers) else None
        if now and not now.is_of(index.record(card.layers)):
            others.append((index, card.backbone))
    for index, other in others[: not request.name]:
        raise UserError(
            f"{index} holds imported vectors, and none of other documents; "
            f"--name {shlex.quote(other)} --overwrite replaces them, "
            f"--name {shlex.quote(name)} keeps both."
        )
    return None


def neighbours_kept(vectors: Float32, dim: int, similarity: Similarity) -> float:
    """Return the share of each vector's nearest neighbours that prefixes keep.

    >>> neighbours_kept(np.eye(3, dtype=np.float32), 3, "dot")
    1.0
    """
    nearest = []
    for length in (vectors.shape[1], dim):
        points = prefixes(vectors, length, similarity)
        scores = points @ points.T
        np.fill_diagonal(scores, -np.inf)
        nearest.append(np.argsort(-scores, axis=1, kind="stable")[:, :NEIGHBOURS])
    return float(np.mean([np.isin(*pair).mean() for pair in zip(*nearest, strict=True)]))


def _begin(index: IndexFolder, card: ModelCard, rotation: Float32 | None) -> None:
    """Write the card and rotation of vectors without a model; remove those of an earlier import."""
    index.path.mkdir(parents=True, exist_ok=True)
    Maps(index).drop()
    index.rotation.unlink(missing_ok=True)
    write_record(index.card, card)
    if rotation is not None:
        write_bytes(index.rotation, rotation.tobytes())


def _holds(index: IndexFolder, card: ModelCard, source: _Source) -> bool:
    """Return whether a finished store has these vectors of these documents."""
    corpus = source.corpus
    # The last bits of a rotation depend on the machine.
    same = index.card.exists() and replace(read_card(index.path), rotation=card.rotation) == card
    return bool(same and corpus and corpus.digest.is_of(index.record(card.layers)))


def _write_store(
    source: _Source, rotation: Float32 | None, folder: Path, plan: manifest.StorePlan
) -> None:
    """Write vectors as a store of their corpus, or without one of their ids."""
    corpus, dataset, count = source.corpus, source.dataset, len(source.rows)
    docids = corpus.docids if corpus else source.vectors.ids or ()
    writer = begin_store(folder, plan)
    with progress("Importing", count, "documents") as advance:
        for number, start in enumerate(range(0, count, SHARD_ROWS)):
            part, block = slice(start, start + SHARD_ROWS), source.block(start)
            digests = text_digests(vector.tobytes() for vector in block)
            digests = corpus.digests[part].tobytes() if corpus else digests
            block = block if rotation is None else block @ rotation.T
            writer.write(number, docids[part], block, digests)
            advance(len(block))
    fields = (document.fields for document in dataset.documents()) if dataset else ()
    writer.finish(write_fields(folder / FIELDS, fields), corpus.fields if corpus else "")


def _try(
    request: ImportRequest, source: _Source, dataset: Dataset, model: Model, layer: int
) -> None:
    """Encode a few documents again, and refuse vectors that differ from them."""
    rows, vectors = source.rows, source.vectors
    count = min(request.sample, len(rows))
    chosen = np.linspace(0, len(rows) - 1, count).astype(int)
    documents = [dataset.document_at(int(row)) for row in chosen]
    # In bf16 the documents of some encoders lie as near to each other as to their fp32 vectors.
    dtype = "fp32" if request.dtype == "auto" else request.dtype
    encoder = checkpoint.load(model, layer, request.device, dtype)
    texts = [document.content for document in documents]
    ours = encoder.vectors(texts, "document", [layer])[0][:, : vectors.width]
    theirs = vectors.finite(rows[chosen])
    # A cosine would not do: of some encoders, that of any two documents is near 1.
    a, b = (
        prefixes(rows, vectors.width, model.card.similarity).astype(np.float64)
        for rows in (ours, theirs)
    )
    between = np.linalg.norm(a - np.roll(a, 1, axis=0), axis=1).mean()
    unit = between or np.linalg.norm(a, axis=1).mean() or 1.0
    far = np.linalg.norm(a - b, axis=1) / unit
    for document, row, apart in zip(documents, rows[chosen], far, strict=True):
        if apart > MOST_APART:
            raise UserError(
                f"Document {document.id!r} by {model} at layer {layer} does not match row {row}: "
                f"{apart:.2f} times as far as other rows; give the right --model, or --sample 0."
            )
