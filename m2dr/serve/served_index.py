"""An index as it is served: the cuts that can be searched, opened once; its texts and costs."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from m2dr.core.errors import UserError, nearest
from m2dr.core.records import Cut, Document, ModelCard
from m2dr.data.dataset import Dataset
from m2dr.evaluate.costs import Shape, bytes_per_document, search_multiply_adds
from m2dr.index.exit_files import digest_of_exits
from m2dr.index.faiss_build import build_index
from m2dr.index.faiss_build import open_index as open_faiss
from m2dr.index.fields import FIELDS, field_types
from m2dr.index.filters import Filter
from m2dr.index.layout import STORE, built_indexes
from m2dr.index.manifest import IndexManifest, StoreManifest
from m2dr.index.searchable import Searchable
from m2dr.index.store import open_store
from m2dr.model.checkpoint import read_card
from m2dr.model.hub import STATIC
from m2dr.serve.encoder_pool import EncoderKey, EncoderPool
from m2dr.serve.sources import ServedSource
from m2dr.tasks.encode_texts import open_corpus
from m2dr.tasks.encoder import (
    LruCache,
    QueryEncoder,
    default_dims,
    document_layer,
    label_of,
    names_of,
)
from m2dr.tasks.resolve import EXACT, open_documents

QUERY_TOKENS = 12  # of the query whose multiply-adds are told
_OPEN_CUTS = 32  # cuts of the documents that stay open
_IN_MEMORY = 64 * 2**20  # bytes of the documents of a dim without an index
_FILTERS = 16  # whose documents stay open
_TEXTS = 4096  # documents whose texts stay in memory


class NoSuchCutError(UserError):
    """A layer or dim that cannot be searched; `parameter` names which."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(message)
        self.parameter = parameter


class FilterError(UserError):
    """A filter that the documents cannot be searched by."""


class OpenCut:
    """A cut that is ready to be searched."""

    def __init__(self, cut: Cut, encoder: QueryEncoder, documents: Searchable) -> None:
        self.cut, self.encoder, self.documents = cut, encoder, documents
        self._filtered = LruCache(self._where, _FILTERS)

    def where(self, expression: str) -> Searchable:
        """Return the documents that a filter lets through; those asked for last stay open.

        Raises:
            UserError: it is no filter, or the documents have no such field.
        """
        return self._filtered.get(expression)

    def _where(self, expression: str) -> Searchable:
        return self.documents.where(Filter.parse(expression))


@dataclass(frozen=True)
class LayerView:
    """What queries of a layer search."""

    document_layer: int
    dims: tuple[int, ...]  # that are listed
    scanned: bool  # whether a store is there, which can be scanned at any dim
    key: EncoderKey


class ServedIndex:
    """The files of an index as they were at one moment.

    Searches that began on it end on it; when the files change, another one takes its place.
    """

    def __init__(
        self, source: ServedSource, encoders: EncoderPool, before: "ServedIndex | None" = None
    ) -> None:
        """Read the records of an index, and open its full model.

        Args:
            source: where it lies.
            encoders: of all indexes.
            before: what it was before its files changed; what is the same is taken over.

        Raises:
            UserError: there is no such index, or its model or its texts are not at hand.
        """
        self.source, self._encoders = source, encoders
        self.signature = source.signature()
        self.card: ModelCard = read_card(source.model)
        self.model = names_of([source.model])[0]
        self._views = _views(source, self.card)
        if not self._views:
            raise UserError(f"{source.alone or source.home} holds no documents to search.")
        self._require_engine()
        deepest = max(self._views)
        self.full = Cut(deepest, self._views[deepest].dims[-1])
        self._cuts: OrderedDict[tuple[int, int], OpenCut] = OrderedDict()
        self._documents: dict[tuple[int, int], Searchable] = {}
        self._texts: OrderedDict[str, Document] = OrderedDict()
        self._lock, self._text_lock = threading.Lock(), threading.Lock()
        self.base = self._open_base(before)
        self.dataset = self._changed_dataset()
        self.kinds = self._kinds()
        self.open(self.full)

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of queries that can be searched, increasing."""
        return tuple(self._views)

    @property
    def dims(self) -> tuple[int, ...]:
        """Dims that are listed at the full layer, increasing."""
        return self._views[self.full.layer].dims

    @property
    def documents(self) -> int:
        """Number of documents."""
        return self.open(self.full).documents.documents

    def cut(self, layer: int | None, dim: int | None) -> Cut:
        """Return the cut of a layer and a dim; None is that of the full model.

        Raises:
            NoSuchCutError: it cannot be searched.
        """
        layer = self.full.layer if layer is None else layer
        view = self._views.get(layer)
        if view is None:
            raise NoSuchCutError(
                "layer",
                f"Layer {layer} was asked for; queries can search "
                f"{self.source.corpus} at layers {_listed(self.layers)}.",
            )
        dim = view.dims[-1] if dim is None else dim
        if dim in view.dims or (view.scanned and 1 <= dim <= self.card.width):
            return Cut(layer, dim)
        raise NoSuchCutError(
            "dim",
            f"Dim {dim} was asked for; {self.source.corpus} can be searched at dims "
            f"{_listed(view.dims)} of layer {layer}.",
        )

    @property
    def keys(self) -> list[EncoderKey]:
        """The keys of its encoders."""
        return [view.key for view in self._views.values()]

    def open_cuts(self) -> list[Cut]:
        """Return the cuts that are open."""
        return [opened.cut for opened in list(self._cuts.values())]

    def find(self, cut: Cut) -> OpenCut | None:
        """Return a cut that is open already."""
        return self._cuts.get((cut.layer, cut.dim))

    def open(self, cut: Cut) -> OpenCut:
        """Return a cut, opening it if needed, which may take seconds.

        Raises:
            UserError: a file is missing or damaged.
        """
        key = (cut.layer, cut.dim)
        found = self._cuts.get(key)
        if found is not None:
            return found
        with self._lock:
            found = self._cuts.get(key) or self._open(cut)
            self._cuts[key] = found
            self._forget()
            return found

    def encoder(self, layer: int) -> QueryEncoder:
        """Return the encoder of queries of a layer, loading it if needed."""
        return self._encoders.get(self.key(layer))

    def key(self, layer: int) -> EncoderKey:
        """Return what decides the vectors of queries of a layer."""
        return self._views[layer].key

    def document_layer(self, layer: int) -> int:
        """Return the layer of the documents that queries of a layer search."""
        return self._views[layer].document_layer

    def remembered(self, docids: Iterable[str]) -> bool:
        """Whether the texts of documents are in memory."""
        return all(docid in self._texts for docid in docids)

    def document(self, docid: str) -> Document:
        """Return a document, of which those read last stay in memory.

        Raises:
            UserError: the corpus is not at hand, or does not hold it any more.
        """
        with self._text_lock:
            found = self._texts.get(docid)
            if found is None:
                found = self._read(docid)
                self._texts[docid] = found
                if len(self._texts) > _TEXTS:
                    self._texts.popitem(last=False)
            return found

    def _read(self, docid: str) -> Document:
        try:
            found = self.dataset.document(docid)
        except OSError as error:
            raise UserError(f"The texts of {self.source.corpus} cannot be read: {error}") from None
        if found.id != docid:  # a file that was written anew since its lines were counted
            raise UserError(f"The texts of {self.source.corpus} have changed.")
        return found

    def filtered(self, opened: OpenCut, expression: str) -> Searchable:
        """Return the documents of a cut that a filter lets through.

        Raises:
            FilterError: it is no filter, or the documents have no such field.
            UserError: the files have changed since they were opened.
        """
        try:
            return opened.where(expression)
        except UserError as error:
            if self.source.signature() != self.signature:
                raise
            raise FilterError(str(error)) from None

    def _kinds(self) -> Mapping[str, Any]:
        """Return the types of the documents' fields, by which a search can filter them."""
        if self.source.alone is not None:
            return {}
        return field_types(_store(self.source, self.document_layer(self.full.layer)) / FIELDS)

    def costs(self) -> list[dict[str, object]]:
        """Return the multiply-adds of a query and the bytes of a document, of every listed cut."""
        work = self._work
        return [
            {
                "cut": str(Cut(layer, dim)),
                "layer": layer,
                "dim": dim,
                "multiply_adds": work[layer] + search_multiply_adds(self.documents, dim),
                "bytes_per_document": bytes_per_document(dim),
            }
            for layer in self.layers
            for dim in self._views[layer].dims
        ]

    @cached_property
    def _work(self) -> dict[int, int]:
        """The multiply-adds of a query of QUERY_TOKENS tokens, by layer; 0 if they are not known.

        An encoder of a layer knows the exits of all layers below.
        """
        by_exits = {self.key(layer).exits: layer for layer in self.layers if layer}  # the deepest
        shapes = {exits: self._shape(layer) for exits, layer in by_exits.items()}
        found = {0: QUERY_TOKENS * self.card.width}
        for layer in self.layers:
            shape = shapes.get(self.key(layer).exits) if layer else None
            found.setdefault(layer, shape.encode(layer, QUERY_TOKENS) if shape else 0)
        return found

    def _shape(self, layer: int) -> Shape | None:
        """Return the sizes of the encoder of a layer; None for one that is not torch's."""
        from m2dr.model.encoder import Encoder
        from m2dr.tasks.costs import shape_of

        opened = self.encoder(layer).opened
        runtime = opened.runtime if opened else None
        return shape_of(runtime) if isinstance(runtime, Encoder) else None

    def _open(self, cut: Cut) -> OpenCut:
        key = (self.document_layer(cut.layer), cut.dim)
        if key not in self._documents:
            self._documents[key] = self._open_documents(cut)
        documents = self._documents[key]
        documents.accept(label_of(self.card, self.source.model), cut)
        return OpenCut(cut, self.encoder(cut.layer), documents)

    def _open_documents(self, cut: Cut) -> Searchable:
        """Open the documents of a cut; those of a dim without an index in memory, if they fit.

        What is in memory is searched on while its files are encoded anew.
        """
        engine = self._engine(cut)
        asked = self.source.request
        if (
            engine == EXACT != asked.engine
            and asked.device in ("auto", "cpu")
            and find_spec("faiss")
        ):
            store = open_store(_store(self.source, self.document_layer(cut.layer)))
            if 4 * cut.dim * store.documents <= _IN_MEMORY:
                with TemporaryDirectory(prefix="m2dr-serve-") as scratch:
                    built = build_index(store, cut.dim, "flat", folder=Path(scratch))
                    return open_faiss(built, store)
        return open_documents(self.source.resolved(cut.layer, cut.dim, engine))

    def _forget(self) -> None:
        """Close the cuts that were opened first, but for the full model, while there are many."""
        for key in list(self._cuts):
            if len(self._cuts) <= _OPEN_CUTS:
                break
            if key != (self.full.layer, self.full.dim):
                del self._cuts[key]
        used = {(self.document_layer(layer), dim) for layer, dim in self._cuts}
        self._documents = {key: one for key, one in self._documents.items() if key in used}

    def _require_engine(self) -> None:
        """Refuse an engine that is built at no layer and dim."""
        asked = self.source.request.engine
        if self.source.alone is not None or asked in ("", EXACT):
            return
        folders = {_store(self.source, view.document_layer) for view in self._views.values()}
        built = sorted({index.engine for folder in folders for index in built_indexes(folder)})
        if asked not in built:
            raise UserError(
                f"--engine {asked} was asked for, and {self.source.home} has no such index. "
                f"{nearest(asked, [*built, EXACT])}"
            )

    def _engine(self, cut: Cut) -> str:
        """Return the engine of a cut: that which was asked for where it is built, or a scan."""
        asked = self.source.request.engine
        if self.source.alone is not None or asked == EXACT:
            return asked
        built = built_indexes(_store(self.source, self.document_layer(cut.layer)))
        engines = {index.engine for index in built if index.dim == cut.dim}
        if asked:
            return asked if asked in engines else EXACT
        return "" if engines else EXACT

    def _open_base(self, before: "ServedIndex | None") -> Dataset:
        """Open the corpus, or take it over where it is the one that was encoded before."""
        self.encoded = self._encoded()
        if before is not None and self.encoded and before.encoded == self.encoded:
            return before.base
        return open_corpus(self.source.request.corpus)

    def _encoded(self) -> str:
        """Return the digest of the texts of the corpus; empty where it is not known."""
        if self.source.alone is not None:
            return ""
        manifest = StoreManifest.read(_store(self.source, self.document_layer(self.full.layer)))
        return manifest.texts

    def _changed_dataset(self) -> Dataset:
        if self.source.alone is not None:
            return self.source.resolved(None, None).dataset
        return self.base


def _views(source: ServedSource, card: ModelCard) -> dict[int, LayerView]:
    """Return what queries search by layer, increasing, of those whose documents are encoded."""
    stored = source.resolved(None, None).layers
    found = {}
    for layer in range(card.layers + 1):
        if layer == 0 and source.alone is not None and card.lowest_layer > 0:
            continue
        resolved = source.resolved(layer, None)
        exits, documents = resolved.exits, resolved.document_layer
        if layer == 0 and not (card.lowest_layer == 0 or (exits and (exits / STATIC).exists())):
            continue
        if source.alone is not None:
            fits = exits is not None or document_layer(card, layer) == documents
            dims: tuple[int, ...] = (IndexManifest.read(source.alone).dim,)
        else:
            fits = documents in stored
            built = {index.dim for index in built_indexes(_store(source, documents))}
            dims = tuple(sorted({*built, *default_dims(card.width)}))
        if fits:
            digest = digest_of_exits(exits) if exits else ""
            key = EncoderKey(source.model, card.fingerprint, layer, exits, digest)
            scanned = source.alone is None and (_store(source, documents) / STORE).exists()
            found[layer] = LayerView(documents, dims, scanned, key)
    return found


def _store(source: ServedSource, layer: int) -> Path:
    return source.home / f"layer-{layer:02d}"


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
