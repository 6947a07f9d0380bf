"""Which documents a search means, and by which way it goes through them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from m2dr.errors import UserError, command
from m2dr.index.cards import on_card
from m2dr.index.engines import Index, open_index
from m2dr.index.exit_files import fitting_exits, no_exits
from m2dr.index.inventory import built_indexes
from m2dr.index.layout import MANIFEST, PARTIAL, STORE, index_folder, store_folder
from m2dr.index.manifest import IndexManifest, StoreManifest
from m2dr.index.recipes import ENGINES
from m2dr.index.remedies import index_remedy
from m2dr.index.searchable import Searchable
from m2dr.index.stages import Funnel
from m2dr.index.store import open_store
from m2dr.model.folder import read_card
from m2dr.records.card import ModelCard
from m2dr.records.cut import Cut
from m2dr.text.collection import Dataset
from m2dr.verbs.corpora import open_corpus
from m2dr.verbs.indexing.request import INDEXES, IndexRequest, index_command
from m2dr.verbs.models import document_layer, newest_model
from m2dr.verbs.progress import say

if TYPE_CHECKING:
    from m2dr.index.exact import ExactIndex

EXACT = "exact"  # no index at all: the store is scanned
MILVUS = "milvus:"
PYDOCS = "pydocs"


@dataclass(frozen=True)
class SearchRequest:
    """What `m2dr search` was asked, but for the queries."""

    corpus: str = PYDOCS
    model: str = ""  # empty: the newest trained one, or the one that made `index`
    query_layer: int | None = None  # None: all of the encoder
    # Of the documents; None: the one that the model was trained to be searched by.
    layer: int | None = None
    dim: int | None = None  # None: the longest that is built
    root: Path = INDEXES
    device: str = "auto"
    dtype: str = "auto"
    engine: str = ""  # empty: flat where it is built
    funnel: str = ""  # as 32:1000,128:100,384
    index: str = ""  # milvus:URI, or the folder of an index or a store
    runtime: str = "torch"
    knobs: tuple[tuple[str, int], ...] = ()  # of the engine at search time, such as nprobe
    # Of shallow queries; empty: those of the index, where it has any and the layer is not trained.
    exits: Literal["", "index", "model"] = ""


@dataclass(frozen=True)
class Place:
    """A request whose model and corpus are known, and where their stores lie."""

    request: SearchRequest
    model: str
    corpus: str  # as stores name it
    home: Path  # holds a store per layer
    folder: Path | None = None  # an index that was named by its folder

    @cached_property
    def card(self) -> ModelCard:
        """What the model says of itself."""
        return read_card(self.model)

    @cached_property
    def dataset(self) -> Dataset:
        """The texts of the documents.

        Raises:
            UserError: an index that was named by its folder tells its corpus's name alone.
        """
        try:
            return open_corpus(self.request.corpus)
        except UserError as error:
            raise UserError(f"The texts of {self.corpus} are not at hand: {error}") from error

    @property
    def query_layer(self) -> int:
        """How many layers queries run through."""
        asked = self.request.query_layer
        return self.card.layers if asked is None else asked

    @property
    def document_layer(self) -> int:
        """The layer of the documents that such queries should search."""
        asked = self.request.layer
        if asked is None and self.exits:
            return self.card.layers
        return document_layer(self.card, self.query_layer) if asked is None else asked

    @cached_property
    def exits(self) -> Path | None:
        """The exits that were fitted on the documents, where queries should pass them.

        Raises:
            UserError: they were asked for, and there are none.
        """
        asked, last = self.request.exits, self.card.layers
        shallow = self.query_layer < last and self.request.layer in (None, last)
        if asked == "model" or not shallow or self.request.index.startswith(MILVUS):
            return None
        trained = self.card.fit is None and self.query_layer in self.card.layers_trained
        if not asked and trained:
            return None
        store = self.home / f"layer-{last:02d}"
        found = fitting_exits(store)
        if found is None and asked == "index":
            root = None if self.request.root == INDEXES else self.request.root
            raise no_exits(str(store.parent), self.request.corpus, self.model, root)
        return found

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose documents are encoded, increasing."""
        names = (path.parent.name for path in self.home.glob(f"layer-*/{STORE}"))
        found = (re.fullmatch(r"layer-(\d+)", name) for name in names)
        return tuple(sorted(int(match[1]) for match in found if match))


def find_place(request: SearchRequest) -> Place:
    """Find the model and the stores of a request; no weight is loaded.

    Raises:
        UserError: there is no such model, corpus or folder.
    """
    if request.index and not request.index.startswith(MILVUS):
        return _named(request, Path(request.index))
    model = request.model or newest_model()
    card = read_card(model)
    for layer in (request.query_layer, request.layer):  # before a corpus is looked for
        card.check(Cut(layer or card.layers, request.dim or 1), model)
    dataset = open_corpus(request.corpus)
    home = store_folder(request.root, dataset.name, card.fingerprint, 1).parent
    place = Place(request, model, dataset.name, home)
    check_cut(place)
    return place


def check_cut(place: Place) -> None:
    """Refuse layers of queries or documents, and a dim, that the model does not have.

    Raises:
        UserError: it does not have one of them.
    """
    request, card = place.request, place.card
    for layer in (request.query_layer, request.layer):
        if not (layer == 0 and place.exits):
            cut = Cut(card.layers if layer is None else layer, request.dim or 1)
            card.check(cut, place.model)


def _named(request: SearchRequest, folder: Path) -> Place:
    """The place of an index, or of a store, that was named by its folder."""
    manifest: IndexManifest | StoreManifest
    if (folder / MANIFEST).exists():
        manifest, store = IndexManifest.read(folder), folder.parent
        request = replace(
            request, dim=request.dim or manifest.dim, engine=request.engine or manifest.engine
        )
    elif (folder / STORE).exists():
        manifest, store = StoreManifest.read(folder), folder
    else:
        raise UserError(
            f"{folder} holds no finished index and no store. Name a folder such as "
            "indexes/pydocs/MODEL/layer-04/dim-128, or a corpus that m2dr index corpus encoded."
        )
    model = request.model or manifest.label.model
    if not request.model:
        say(f"Model: {model}, which encoded the documents of {folder}; --model names another.")
    corpus = manifest.corpus if request.corpus == PYDOCS else request.corpus
    layer = manifest.layer if request.layer is None else request.layer
    query_layer = layer if request.query_layer is None else request.query_layer
    request = replace(request, corpus=corpus, layer=layer, query_layer=query_layer)
    named = folder if isinstance(manifest, IndexManifest) else None
    place = Place(request, model, manifest.corpus, store.parent, named)
    check_cut(place)
    return place


def open_documents(place: Place) -> Searchable:
    """Open the documents that queries of a layer should search, by the way that was asked.

    Raises:
        UserError: they are not encoded or not indexed; the sentence holds the command that does it.
    """
    request = place.request
    if request.index.startswith(MILVUS):
        return _collection(place)
    store = store_of(place)
    if request.funnel:
        return _funnel(place, store)
    if request.engine == EXACT:
        _refuse_knobs(request)
        dim = request.dim or place.card.width
        return _scan(store, dim, _device(request.device))
    index = open_index(_index(place, store), knobs=dict(request.knobs))
    # At layer 0 torch is not loaded to look for a gpu, unless one was named.
    stays = place.query_layer == 0 and request.device in ("auto", "cpu")
    return index if stays else _on_device(index, request, store)


def _on_device(index: Index, request: SearchRequest, store: Path) -> Searchable:
    """The index on a card where FAISS works there, else a full scan on the card, else as it is."""
    device = _device(request.device)
    if device == "cpu":
        return index
    moved = on_card(index, int(device.partition(":")[2] or 0))
    say(moved.reason)
    scan = None
    if index.exact and not request.knobs and (store / STORE).exists():
        scan = _scan(store, index.dim, device)
    if moved.index is not None:
        return moved.index if index.engine.l2 else replace(moved.index, deep=scan)
    if scan is not None:
        say(f"The vectors are scanned on {device}.")
        return scan
    return index


def _device(name: str) -> str:
    """Return where documents are searched, as torch names it."""
    from m2dr.model.devices import choose_device

    return str(choose_device(name))


def _scan(store: Path, dim: int, device: str) -> "ExactIndex":
    """Return a full scan of a store, which torch runs."""
    from m2dr.index.exact import ExactIndex

    return ExactIndex(open_store(store), dim, device)


def store_of(place: Place) -> Path:
    """The store that queries of a layer should search, or the nearest there is."""
    request, card = place.request, place.card
    if place.folder is not None and request.layer == IndexManifest.read(place.folder).layer:
        return place.folder.parent  # an index may be copied without its store
    layers, layer = place.layers, place.document_layer
    folder = place.home / f"layer-{layer:02d}"
    if layer not in layers and (folder / PARTIAL).exists():
        open_store(folder)  # says how far it is, and how to go on
    if not layers:
        raise UserError(
            f"There is no index of {place.corpus} by model {card.fingerprint[:12]} in "
            f"{request.root}/. Build one with: {_command(place)}"
        )
    if request.layer is not None and layer not in layers:
        raise UserError(
            f"There is no index of layer {layer} of {place.corpus} by model "
            f"{card.fingerprint[:12]} in {request.root}/; there are layers "
            f"{', '.join(map(str, layers))}. Build it with: {_command(place)}"
        )
    return folder if layer in layers else place.home / f"layer-{max(layers):02d}"


def _command(place: Place, store: Path | None = None) -> str:
    """The command that builds what a request lacks.

    Args:
        place: of the request.
        store: what is there already, and lacks an index.
    """
    request = place.request
    stored = StoreManifest.read(store) if store else None
    asked = IndexRequest(
        request.corpus,
        place.model,
        dims=(request.dim,) if request.dim else (),
        layers=(stored.layer,) if stored else () if request.layer is None else (request.layer,),
        engines=(request.engine,) if request.engine not in ("", "flat", EXACT) else (),
        root=request.root,
        device=request.device,
        dtype=request.dtype,
        store=stored.dtype if stored else "f16",
    )
    return index_command(asked)


def _index(place: Place, store: Path) -> Path:
    """The folder of the index that was asked for, or of the best there is."""
    if place.folder is not None:
        made = IndexManifest.read(place.folder)
        asked = (place.request.layer, place.request.dim, place.request.engine)
        if asked == (made.layer, made.dim, made.engine):
            return place.folder  # wherever it was copied to
    request, built = place.request, built_indexes(store)
    fitting = [
        index
        for index in built
        if request.engine in ("", index.engine) and request.dim in (None, index.dim)
    ]
    if fitting:
        # Flat before all others, and of those the longest.
        return max(fitting, key=lambda index: (index.engine == "flat", index.dim)).folder
    folder = index_folder(store, request.dim or place.card.width, request.engine or "flat")
    there = ", ".join(f"{index.dim} ({index.engine})" for index in built)
    known = request.engine in ("", *ENGINES)
    remedy = f"with: {_command(place, store)}" if known else index_remedy(folder)
    raise UserError(
        f"{folder} holds no finished index{f'; there are dims {there}' if there else ''}. Search "
        f"the vectors without one by --engine {EXACT}, or build it {remedy}"
    )


def _collection(place: Place) -> Searchable:
    """The Milvus collection of a cut; the longest dim of the layer when none was asked."""
    from m2dr.index.cluster import open_collection, pushed_cuts
    from m2dr.index.milvus import shown

    request, card = place.request, place.card
    _refuse_knobs(request)
    uri = request.index.removeprefix(MILVUS)
    if not uri:
        raise UserError("--index milvus: names no server; give milvus:http://host:19530 or a file.")
    layer, dim = place.document_layer, request.dim
    remedy = f"with: {_push_command(place, shown(uri), layer)}"
    if dim is None:
        cuts = pushed_cuts(uri, place.corpus, card.fingerprint, remedy=remedy)
        dim = max((cut.dim for cut in cuts if cut.layer == layer), default=card.width)
    return open_collection(uri, place.corpus, card.fingerprint, layer, dim, remedy=remedy)


def _push_command(place: Place, uri: str, layer: int) -> str:
    request = place.request
    return command(
        "index",
        "push",
        to="milvus",
        uri=uri,
        corpus=request.corpus,
        model=place.model,
        layer=layer,
        dim=request.dim,
        indexes=None if request.root == INDEXES else request.root,
    )


def _funnel(place: Place, store: Path) -> Searchable:
    from m2dr.index.funnel import FunnelIndex

    request = place.request
    _refuse_knobs(request)
    if request.engine:
        raise UserError(f"--funnel and --engine {request.engine} were given; give one of them.")
    funnel = Funnel.parse(request.funnel)
    if request.dim not in (None, funnel.dim):
        raise UserError(
            f"--funnel ends at dim {funnel.dim} and --dim {request.dim} was asked for; "
            "give one of them."
        )
    return FunnelIndex(open_store(store), funnel, device=_device(request.device))


def _refuse_knobs(request: SearchRequest) -> None:
    if request.knobs:
        names = ", ".join(name for name, _ in request.knobs)
        raise UserError(f"--set {names} is for engines that have it; this way to search has none.")


def parse_knobs(words: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Settings such as nprobe=32.

    >>> parse_knobs(["nprobe=32"])
    (('nprobe', 32),)
    """
    found = [re.fullmatch(r"(\w+)=(\d+)", word) for word in words]
    for word, match in zip(words, found, strict=True):
        if match is None:
            raise UserError(f"--set takes name=number, such as nprobe=32, not {word!r}.")
    return tuple((match[1], int(match[2])) for match in found if match)
