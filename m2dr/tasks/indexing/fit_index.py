"""`m2dr index fit`: words and exits of an index that is there, or a bridge to it."""

from dataclasses import dataclass

from m2dr.core.errors import UserError, counted
from m2dr.core.records import IndexExits
from m2dr.core.report import Report
from m2dr.core.requests import FitIndexRequest
from m2dr.index.folder import IndexFolder
from m2dr.maps.files import Maps
from m2dr.maps.log import asked_now
from m2dr.model import checkpoint
from m2dr.model.checkpoint import open_model
from m2dr.tasks.corpus import CorpusDigest, as_indexed, model_for, name_of_corpus, open_corpus
from m2dr.tasks.indexing.encode import EncodingJob, refuse_other_fit
from m2dr.tasks.indexing.steps import Target, check_given, reach


@dataclass(frozen=True)
class FitIndexReport(Report):
    """The exits that an index has now; `files` is their folder."""

    exits: IndexExits


def fit_index(request: FitIndexRequest) -> FitIndexReport:
    """Fit exits on the documents of an index.

    With a `query_model`, exits that are there stay, and get a bridge from its queries; where
    documents have changed since, they stay too, and their words are fitted again.

    Raises:
        UserError: there is no such index of the last layer, it has exits already, the model or the
            corpus has changed since, or the model ends in an exit of its own.
    """
    name = name_of_corpus(request.corpus)
    model = open_model(request.model or model_for(name, request.root))
    card = model.card
    checkpoint.refuse_ended(model)
    index = IndexFolder.of(request.root, name, card.fingerprint)
    corpus, asked = as_indexed(request.corpus, index.asked)
    dataset = open_corpus(corpus)
    store, maps = index.store(card.layers), Maps(index)
    if not request.overwrite and maps.are_fitted:
        refuse_other_fit(maps, request, request.language)
        if not request.query_model and not maps.is_old():
            these = "exits of these documents"
            if maps.is_old(1):
                these = "exits of documents that have changed since"
            raise UserError(f"{maps} has {these}; --overwrite replaces them.")
    check_given(model, request.queries, request.query_vectors)
    store.manifest.label.accept(
        model.with_lengths_of(store.manifest.label).label(), store.manifest.corpus
    )
    if not CorpusDigest.of(dataset).is_of(store.manifest):
        raise UserError(
            f"{store.folder} holds other documents than {request.corpus}; index it again."
        )
    index.ask(asked_now(asked, request, language=request.language, exits=True))
    job = EncodingJob.of_store(store, index, model, corpus, request.device, request.dtype)
    given = request.queries, request.query_vectors
    refits, bridge = request.overwrite, request.query_model
    reach(Target(job, dataset, [store], True, refits, given, bridge))
    record = maps.record
    text = f"{counted(record.fit.texts, 'documents')}: {maps}"
    return FitIndexReport(record, text=text, files=(maps.folder,))
