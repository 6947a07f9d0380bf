"""An index as it is served: the cuts that can be searched, opened once; its texts and costs."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from m2dr.data.dataset import Dataset
from m2dr.errors import UserError
from m2dr.evaluate.costs import Shape, bytes_per_document, search_multiply_adds
from m2dr.index.exit_files import digest_of_exits
from m2dr.index.layout import STORE, built_indexes
from m2dr.index.manifest import IndexManifest, StoreManifest
from m2dr.index.searchable import Searchable
from m2dr.model.folder import read_card
from m2dr.model.hub import STATIC
from m2dr.pipelines.changed_corpus import with_changes
from m2dr.pipelines.encode import open_corpus
from m2dr.pipelines.models import default_dims, document_layer, label_of, names_of
from m2dr.pipelines.query_encoder import LayerEncoder, QueryEncoder
from m2dr.pipelines.resolve import EXACT, open_documents
from m2dr.records.cut import Cut
from m2dr.records.model_card import ModelCard
from m2dr.records.texts import Document
from m2dr.serve.encoder_pool import EncoderKey, EncoderPool
from m2dr.serve.sources import ServedSource

QUERY_TOKENS = 12  # of the query whose multiply-adds are told
_OPEN_CUTS = 32  # cuts of the documents that stay open
_TEXTS = 4096  # documents whose texts stay in memory


class NoSuchCutError(UserError):
    """A layer or dim that cannot be searched."""


@dataclass(frozen=True)
class OpenCut:
    """A cut that is ready to be searched."""

    cut: Cut  # of the queries
    encoder: QueryEncoder
    documents: Searchable


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
        self._layers = _searchable_layers(source, self.card)
        if not self._layers:
            raise UserError(f"{source.alone or source.home} holds no documents to search.")
        self.full = Cut(max(self._layers), self._dims_of(max(self._layers))[-1])
        self._keys: dict[int, EncoderKey] = {}
        self._cuts: OrderedDict[tuple[int, int], OpenCut] = OrderedDict()
        self._documents: dict[tuple[int, int], Searchable] = {}
        self._texts: OrderedDict[str, Document] = OrderedDict()
        self._lock, self._text_lock = threading.Lock(), threading.Lock()
        self.base = self._open_base(before)
        self.dataset = self._changed_dataset()
        self.open(self.full)

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of queries that can be searched, increasing."""
        return self._layers

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """Dims that can be searched at the full layer, increasing."""
        return self._dims_of(self.full.layer)

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
        if layer not in self._layers:
            raise NoSuchCutError(
                f"Layer {layer} was asked for; queries can search "
                f"{self.source.corpus} at layers {_listed(self._layers)}."
            )
        dims = self._dims_of(layer)
        dim = dims[-1] if dim is None else dim
        if dim in dims or (self._has_store(layer) and 1 <= dim <= self.card.width):
            return Cut(layer, dim)
        raise NoSuchCutError(
            f"Dim {dim} was asked for; {self.source.corpus} can be searched at dims "
            f"{_listed(dims)} of layer {layer}."
        )

    @property
    def keys(self) -> list[EncoderKey]:
        """The keys of its encoders."""
        return list(self._keys.values())

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
            while len(self._cuts) > _OPEN_CUTS:
                self._cuts.popitem(last=False)
            return found

    def encoder(self, layer: int) -> QueryEncoder:
        """Return the encoder of queries of a layer, loading it if needed."""
        return self._encoders.get(self.key(layer))

    def key(self, layer: int) -> EncoderKey:
        """Return what decides the vectors of queries of a layer."""
        if layer not in self._keys:
            exits = self.source.resolved(layer, None).exits
            digest = digest_of_exits(exits) if exits else ""
            made = EncoderKey(self.source.model, self.card.fingerprint, layer, exits, digest)
            self._keys[layer] = made
        return self._keys[layer]

    def document_layer(self, layer: int) -> int:
        """Return the layer of the documents that queries of a layer search."""
        return self.source.resolved(layer, None).document_layer

    def document(self, docid: str) -> Document:
        """Return a document, of which those read last stay in memory.

        Raises:
            UserError: the corpus is not at hand, or does not hold it any more.
        """
        with self._text_lock:
            found = self._texts.get(docid)
            if found is None:
                found = self.dataset.document(docid)
                self._texts[docid] = found
                if len(self._texts) > _TEXTS:
                    self._texts.popitem(last=False)
            return found

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
            for dim in self._dims_of(layer)
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
        from m2dr.commands.costs import shape_of
        from m2dr.model.encoder import Encoder

        encoder = self.encoder(layer).encoder
        runtime = encoder.opened.runtime if isinstance(encoder, LayerEncoder) else None
        return shape_of(runtime) if isinstance(runtime, Encoder) else None

    def _open(self, cut: Cut) -> OpenCut:
        resolved = self.source.resolved(cut.layer, cut.dim, self._engine(cut))
        key = (resolved.document_layer, cut.dim)
        if key not in self._documents:
            self._documents[key] = open_documents(resolved)
        documents = self._documents[key]
        documents.accept(label_of(self.card, self.source.model), cut)
        return OpenCut(cut, self.encoder(cut.layer), documents)

    def _engine(self, cut: Cut) -> str:
        """Return the engine of a cut: that which was asked for where it is built, or a scan."""
        asked = self.source.request.engine
        if self.source.alone is not None or asked == EXACT:
            return asked
        built = built_indexes(self._store(cut.layer))
        engines = {index.engine for index in built if index.dim == cut.dim}
        if asked:
            return asked if asked in engines else EXACT
        return "" if engines else EXACT

    def _store(self, layer: int) -> Path:
        return self.source.home / f"layer-{self.document_layer(layer):02d}"

    def _has_store(self, layer: int) -> bool:
        return self.source.alone is None and (self._store(layer) / STORE).exists()

    def _dims_of(self, layer: int) -> tuple[int, ...]:
        if self.source.alone is not None:
            return (IndexManifest.read(self.source.alone).dim,)
        built = {index.dim for index in built_indexes(self._store(layer))}
        return tuple(sorted({*built, *default_dims(self.card.width)}))

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
        manifest = StoreManifest.read(self._store(self.full.layer))
        return manifest.encoded or manifest.texts

    def _changed_dataset(self) -> Dataset:
        return with_changes(self.base, self.source.home)


def _searchable_layers(source: ServedSource, card: ModelCard) -> tuple[int, ...]:
    """Return the layers of queries whose documents are encoded, increasing."""
    found = []
    stored = source.resolved(None, None).layers
    for layer in range(card.layers + 1):
        resolved = source.resolved(layer, None) if layer or source.alone is None else None
        if resolved is None:
            continue
        exits = resolved.exits
        if layer == 0 and not (card.lowest_layer == 0 or (exits and (exits / STATIC).exists())):
            continue
        if source.alone is not None:
            wanted = resolved.document_layer
            fits = exits is not None or document_layer(card, layer) == wanted
        else:
            fits = resolved.document_layer in stored
        if fits:
            found.append(layer)
    return tuple(found)


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
