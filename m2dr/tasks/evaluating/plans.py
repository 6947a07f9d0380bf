"""The plans of the queries of a grid, and the documents that they search."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from m2dr.core.requests import EvaluateRequest, IndexRequest
from m2dr.data.dataset import Dataset
from m2dr.index.folder import IndexFolder
from m2dr.index.store import Store
from m2dr.maps.files import FEWEST_DOCUMENTS, Maps
from m2dr.model.checkpoint import open_model
from m2dr.tasks.indexing.index import encode_corpus
from m2dr.tasks.indexing.steps import fit_lacking
from m2dr.tasks.models import with_lengths_of_index
from m2dr.tasks.query import QueryPlan, plan_layers


@dataclass(frozen=True)
class GridPlans:
    """How the queries of each layer of a grid become vectors, and whether exits are fitted first.

    Attributes:
        by_layer: the plans.
        index: of the documents.
        has_exits: whether exits are fitted on these, for queries of these plans or others.
    """

    by_layer: Mapping[int, QueryPlan]
    index: IndexFolder
    has_exits: bool

    @property
    def maps(self) -> Maps | None:
        """The exits, once they are fitted."""
        return Maps(self.index) if self.has_exits and Maps(self.index).are_fitted else None


def grid_plans(request: EvaluateRequest, name: str, dataset: Dataset) -> GridPlans:
    """Decide how queries of a request search the documents of a corpus, before they are encoded.

    Args:
        request: of the grid.
        name: of the model, folder or id.
        dataset: with the corpus.

    Raises:
        UserError: as `plan_layers` does.
    """
    model = open_model(name)
    card = model.card
    index = IndexFolder.of(request.root, dataset.name, card.fingerprint)
    lengths = request.query_length, request.document_length
    model = with_lengths_of_index(model, index, *lengths)
    exits = request.exits or card.exits
    will_be_fitted = exits == "index" or (
        index.asked.exits
        and not index.holds(card.layers)
        and dataset.document_count >= FEWEST_DOCUMENTS
        and not model.last_layer_has_exit
    )
    meets_last = request.documents in ("trained", "last", str(card.layers))
    will_be_fitted = will_be_fitted and meets_last and exits != "model"
    plans = plan_layers(request, model, index, request.layers, request.documents, will_be_fitted)
    fitted = will_be_fitted or Maps(index).are_fitted
    applies = meets_last and exits != "model"
    return GridPlans(plans, index, fitted and (applies or bool(request.query_mix)))


def encode_documents(request: EvaluateRequest, corpus: str, plans: GridPlans) -> dict[int, Store]:
    """Encode the documents that plans search, and fit the exits that queries pass.

    Args:
        request: of the grid.
        corpus: as it was named.
        plans: of the grid.

    Returns:
        Stores by layer; with fitted exits also that of the last layer.

    Raises:
        UserError: as `encode_corpus` and `fit_lacking` do.
    """
    model = next(iter(plans.by_layer.values())).model
    layers = {plan.document_layer for plan in plans.by_layer.values()}
    sources = sorted({*layers, *((model.card.layers,) if plans.has_exits else ())})
    index = IndexRequest(
        corpus, model.name, runtime=request.runtime, root=request.root, device=request.device,
        dtype=request.dtype, query_length=request.query_length,
        document_length=request.document_length,
    )  # fmt: skip
    target = encode_corpus(index, model, sources, plans.has_exits)
    fit_lacking(replace(target, fits=plans.has_exits))
    return dict(zip(sources, target.stores, strict=True))
