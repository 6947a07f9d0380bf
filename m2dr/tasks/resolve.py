"""Resolve a search request to a model and its stores, and open what is searched."""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from m2dr.core.errors import UserError, command, nearest
from m2dr.core.progress import say
from m2dr.core.records import Cut, ModelCard
from m2dr.core.requests import INDEXES, MODELS, PYDOCS, IndexRequest, SearchRequest, index_command
from m2dr.data.dataset import Dataset
from m2dr.index.engines import ENGINES
from m2dr.index.exit_files import fitting_exits, no_exits
from m2dr.index.faiss import FaissIndex, on_gpu
from m2dr.index.faiss_build import open_index
from m2dr.index.funnel import Funnel, FunnelIndex
from m2dr.index.manifest import (
    DIGITS,
    MANIFEST,
    PARTIAL,
    STORE,
    IndexManifest,
    StoreManifest,
    built_indexes,
    homes,
    index_folder,
    only_home,
    store_folder,
    store_folders_of,
)
from m2dr.index.searchable import Searchable
from m2dr.index.store import open_store
from m2dr.model.checkpoint import read_card
from m2dr.model.hub import CARD
from m2dr.tasks.encode_texts import open_corpus
from m2dr.tasks.encoder import document_layer, newest_model

if TYPE_CHECKING:
    from m2dr.index.exact import ExactIndex

EXACT = "exact"  # the engine that needs no index and scans the store
MILVUS = "milvus:"  # prefix of the URI of a server


@dataclass(frozen=True)
class ResolvedIndex:
    """A search request with its model, its corpus and the folder of their stores."""

    request: SearchRequest
    model: str
    corpus: str  # as stores name it
    home: Path  # holds a store per layer
    folder: Path | None = None  # of an index that the request names by its folder

    @cached_property
    def card(self) -> ModelCard:
        """The model card."""
        return read_card(self.model)

    @cached_property
    def dataset(self) -> Dataset:
        """The dataset with the texts of the documents.

        Raises:
            UserError: the corpus cannot be opened; an index folder records only its name.
        """
        try:
            return open_corpus(self.request.corpus)
        except UserError as error:
            raise UserError(f"The texts of {self.corpus} are not at hand: {error}") from error

    @property
    def query_layer(self) -> int:
        """Number of layers that queries run through."""
        return self.card.layers if self.request.query_layer is None else self.request.query_layer

    @property
    def document_layer(self) -> int:
        """Layer of the documents that such queries search."""
        asked = self.request.document_layer
        if asked is None and self.exits:
            return self.card.layers
        return document_layer(self.card, self.query_layer) if asked is None else asked

    @cached_property
    def exits(self) -> Path | None:
        """Folder of the exits that were fitted on the documents, if queries pass through them.

        Raises:
            UserError: they were asked for, and there are none.
        """
        asked, last = self.request.exits, self.card.layers
        if asked == "model" or self.query_layer >= last:
            return None
        of_milvus = self.request.index.startswith(MILVUS)
        if of_milvus or self.request.document_layer not in (None, last):
            if asked == "index":
                raise UserError(
                    f"Exits of an index are fitted on documents of layer {last}, in its folder; "
                    "leave out --index milvus: and --document-layer."
                )
            return None
        trained = self.card.fit is None and self.query_layer in self.card.layers_trained
        if not asked and trained and self.query_layer > 0:  # a table is always fitted
            return None
        found = fitting_exits(self.home / f"layer-{last:02d}")
        if found is None and asked == "index":
            raise no_exits(self.home)
        return found

    def fitting_command(self, documents: int) -> str:
        """Return the command that fits exits for documents of a layer; empty where none apply."""
        store, request = self.home / f"layer-{documents:02d}", self.request
        shallow = self.query_layer < self.card.layers == documents
        if not shallow or request.exits or request.index.startswith(MILVUS) or fitting_exits(store):
            return ""
        made = command("index", "fit", corpus=request.corpus, model=self.model, indexes=self.root)
        return made if (store / STORE).exists() else ""

    @property
    def root(self) -> Path | None:
        """Folder of indexes that holds the stores; None for the default one."""
        root, parts = self.request.root, len(Path(self.corpus).parts)
        if self.request.index and not self.request.index.startswith(MILVUS):
            root = next(iter(self.home.parents[parts : parts + 1]), root)
        return None if root == INDEXES else root

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose documents are encoded, increasing."""
        names = (path.parent.name for path in self.home.glob(f"layer-*/{STORE}"))
        found = (re.fullmatch(r"layer-(\d+)", name) for name in names)
        return tuple(sorted(int(match[1]) for match in found if match))


def resolve_index(request: SearchRequest) -> ResolvedIndex:
    """Find the model and the stores of a request, without loading weights.

    Raises:
        UserError: there is no such model, corpus or folder.
    """
    if request.index and not request.index.startswith(MILVUS):
        return _resolve_folder(request, Path(request.index))
    model = request.model or default_model(request.corpus, request.root)
    card = read_card(model)
    for layer in (request.query_layer, request.document_layer):  # before a corpus is looked for
        card.check(Cut(layer or card.layers, request.dim or 1), model)
    dataset = _open_corpus(request.corpus, request.root)
    home = store_folder(request.root, dataset.name, card.fingerprint, 1).parent
    resolved = ResolvedIndex(request, model, dataset.name, home)
    check_cut(resolved)
    return resolved


def _open_corpus(corpus: str, root: Path) -> Dataset:
    """Open a corpus.

    Raises:
        UserError: there is none; where an index is called so, the message says how it is named.
    """
    try:
        return open_corpus(corpus)
    except UserError as error:
        for folder in (Path(corpus), root / corpus):
            if folder.is_dir() and homes(folder):
                raise UserError(
                    f"{corpus} is no corpus, and {folder} holds an index. Name that by --index "
                    f"{folder}, in place of --corpus."
                ) from error
        raise


def default_model(corpus: str, root: Path) -> str:
    """Return the newest trained model; without any model, the one that encoded a corpus.

    Args:
        corpus: as it was given to m2dr.
        root: folder of the indexes.

    Raises:
        UserError: there is no model, and not exactly one that encoded the corpus.
    """
    try:
        return newest_model()
    except UserError:
        if any(MODELS.glob(f"*/{CARD}")) or not root.is_dir():
            raise
        folder = store_folder(root, _open_corpus(corpus, root).name, "", 1).parent
        labels = [StoreManifest.read(store_folders_of(home)[-1]).label for home in homes(folder)]
        models = {label.model for label in labels}
        if len(models) != 1 or "" in models:
            raise
    say(f"Model: {(model := models.pop())}, which encoded {folder}; --model names another.")
    return model


def check_cut(resolved: ResolvedIndex) -> None:
    """Check that the model has the layers and the dim of a request.

    Raises:
        UserError: it does not.
    """
    request, card = resolved.request, resolved.card
    own = request.exits == "model" or request.document_layer not in (None, card.layers)
    if request.query_layer == 0 < card.lowest_layer and not own and not resolved.exits:
        raise UserError(
            f"Layer 0 was asked for, which {resolved.model} does not have, and {resolved.home} has "
            "no exits of its documents; m2dr index fit makes some."
        )
    for layer in (request.query_layer, request.document_layer):
        if not (layer == 0 and resolved.exits):
            cut = Cut(card.layers if layer is None else layer, request.dim or 1)
            card.check(cut, resolved.model)


def _resolve_folder(request: SearchRequest, folder: Path) -> ResolvedIndex:
    """Resolve a request that names the folder of an index or of a store."""
    manifest: IndexManifest | StoreManifest
    if (folder / MANIFEST).exists():
        manifest, store = IndexManifest.read(folder), folder.parent
        if request.funnel:
            raise UserError(
                f"--funnel {request.funnel} was asked for, and --index {folder} is an index of one "
                f"dim, while a funnel reads the store. Name that, as in: "
                f"{command('search', 'a query', index=store, funnel=request.funnel)}"
            )
        dim, engine = request.dim or manifest.dim, request.engine or manifest.engine
        request = replace(request, dim=dim, engine=engine)
    elif (folder / STORE).exists():
        manifest, store = StoreManifest.read(folder), folder
    else:
        return _resolve_home(request, folder)
    request, model = _of_label(request, manifest, folder)
    layer = manifest.layer if request.document_layer is None else request.document_layer
    query_layer = layer if request.query_layer is None else request.query_layer
    request = replace(request, document_layer=layer, query_layer=query_layer)
    named = folder if isinstance(manifest, IndexManifest) else None
    resolved = ResolvedIndex(request, model, manifest.corpus, store.parent, named)
    check_cut(resolved)
    return resolved


def _resolve_home(request: SearchRequest, folder: Path) -> ResolvedIndex:
    """Resolve a request that names a folder above the stores of one index."""
    home = only_home(folder)
    manifest = StoreManifest.read(store_folders_of(home)[-1])
    request, model = _of_label(request, manifest, folder)
    resolved = ResolvedIndex(request, model, manifest.corpus, home)
    check_cut(resolved)
    return resolved


def _of_label(
    request: SearchRequest, manifest: IndexManifest | StoreManifest, folder: Path
) -> tuple[SearchRequest, str]:
    """Return a request of the corpus that an index records, and the model: both unless named."""
    label = manifest.label
    model = request.model or label.model
    if not request.model:
        say(f"Model: {model}, which encoded the documents of {folder}; --model names another.")
    corpus = (label.source or manifest.corpus) if request.corpus == PYDOCS else request.corpus
    return replace(request, corpus=corpus), model


def open_documents(resolved: ResolvedIndex) -> Searchable:
    """Open the documents of a request by its engine, funnel or Milvus server.

    Raises:
        UserError: they are not encoded or not indexed; the message has the command that does it.
    """
    request = resolved.request
    if request.index.startswith(MILVUS):
        return _open_collection(resolved)
    store = store_of(resolved)
    if request.funnel:
        return _open_funnel(resolved, store)
    if request.engine == EXACT:
        _refuse_search_params(request)
        dim = request.dim or resolved.card.width
        return _scan(store, dim, _device(request.device))
    index = open_index(_find_index(resolved, store), search_params=dict(request.search_params))
    # At layer 0 torch is not loaded to look for a gpu, unless one was named.
    stays = resolved.query_layer == 0 and request.device in ("auto", "cpu")
    return index if stays else _on_device(index, request, store)


def _on_device(index: FaissIndex, request: SearchRequest, store: Path) -> Searchable:
    """Return the index on a gpu if FAISS can, else a full scan on the gpu, else the index."""
    device = _device(request.device)
    if device == "cpu":
        return index
    moved, reason = on_gpu(index, int(device.partition(":")[2] or 0))
    say(reason)
    if moved is None and index.exact and not request.search_params and (store / STORE).exists():
        say(f"The vectors are scanned on {device}.")
        return _scan(store, index.dim, device)
    return moved or index


def _device(name: str) -> str:
    """Return the torch device that documents are searched on."""
    from m2dr.model.devices import choose_device

    return str(choose_device(name))


def _scan(store: Path, dim: int, device: str) -> "ExactIndex":
    """Return a full scan of a store, by torch."""
    from m2dr.index.exact import ExactIndex

    return ExactIndex(open_store(store), dim, device)


def store_of(resolved: ResolvedIndex) -> Path:
    """Return the store of the document layer, or the deepest one if no layer was named."""
    request, card = resolved.request, resolved.card
    named = resolved.folder
    if named is not None and request.document_layer == IndexManifest.read(named).layer:
        return named.parent  # an index may be copied without its store
    copied = Path(request.index)  # a store, whatever its folder is called
    is_store = bool(request.index) and (copied / STORE).exists()
    if is_store and request.document_layer == StoreManifest.read(copied).layer:
        return copied
    layers, layer = resolved.layers, resolved.document_layer
    folder = resolved.home / f"layer-{layer:02d}"
    if layer not in layers and (folder / PARTIAL).exists():
        open_store(folder)  # raises, with how far it is and how to go on
    if not layers:
        raise UserError(
            f"There is no index of {resolved.corpus} by model {card.fingerprint[:12]} in "
            f"{request.root}/{_others(resolved)}. Build one with: {_index_command(resolved)}"
        )
    if request.document_layer is not None and layer not in layers:
        raise UserError(
            f"There is no index of layer {layer} of {resolved.corpus} by model "
            f"{card.fingerprint[:12]} in {request.root}/; there are layers "
            f"{', '.join(map(str, layers))}. Queries run through {layer} layers of the model by "
            f"--query-layer {layer}; documents of that layer are encoded by: "
            f"{_index_command(resolved)}"
        )
    return folder if layer in layers else resolved.home / f"layer-{max(layers):02d}"


def _others(resolved: ResolvedIndex) -> str:
    """Return the indexes of other corpora by the model, for a message; empty if there are none."""
    found = resolved.request.root.rglob(resolved.card.fingerprint[:DIGITS])
    folders = sorted(str(folder) for folder in found if store_folders_of(folder))[:3]
    return f"; by that model there is, for --index, {' or '.join(folders)}" if folders else ""


def _index_command(resolved: ResolvedIndex, store: Path | None = None) -> str:
    """Return the command that builds what a request lacks.

    Args:
        resolved: the request.
        store: that is encoded already and lacks an index.
    """
    request = resolved.request
    stored = StoreManifest.read(store) if store else None
    layer = stored.layer if stored else request.document_layer
    asked = IndexRequest(
        request.corpus,
        resolved.model,
        dims=(request.dim,) if request.dim else (),
        layers=() if layer is None else (layer,),
        engines=(request.engine,) if request.engine not in ("", "flat", EXACT) else (),
        root=request.root,
        device=request.device,
        dtype=request.dtype,
        store=stored.dtype if stored else "f16",
    )
    return index_command(asked)


def _find_index(resolved: ResolvedIndex, store: Path) -> Path:
    """Return the folder of the requested index, or of the best one."""
    if resolved.folder is not None:
        made = IndexManifest.read(resolved.folder)
        asked = (resolved.request.document_layer, resolved.request.dim, resolved.request.engine)
        if asked == (made.layer, made.dim, made.engine):
            return resolved.folder  # wherever it was copied to
    request, built = resolved.request, built_indexes(store)
    fitting = [
        index
        for index in built
        if request.engine in ("", index.engine) and request.dim in (None, index.dim)
    ]
    if fitting:
        # Flat indexes first, and of those the longest dim.
        return max(fitting, key=lambda index: (index.engine == "flat", index.dim)).folder
    names = {EXACT, *ENGINES, *(index.engine for index in built)}
    if request.engine and request.engine not in names:
        raise UserError(
            f"There is no engine {request.engine!r}, and {store} holds no index of that name. "
            f"{nearest(request.engine, sorted(names))}"
        )
    folder = index_folder(store, request.dim or resolved.card.width, request.engine or "flat")
    there = ", ".join(f"{index.dim} ({index.engine})" for index in built)
    raise UserError(
        f"{folder} holds no finished index{f'; there are dims {there}' if there else ''}. Search "
        f"the vectors without one by --engine {EXACT}."
    )


def _open_collection(resolved: ResolvedIndex) -> Searchable:
    """Open the Milvus collection of a cut, by default of the longest dim of the layer."""
    from m2dr.index.milvus import open_collection

    request, card = resolved.request, resolved.card
    _refuse_search_params(request)
    layer, uri = resolved.document_layer, request.index.removeprefix(MILVUS)
    opened = open_collection(uri, resolved.corpus, card.fingerprint, layer, request.dim)
    store = resolved.home / f"layer-{layer:02d}"
    if (store / STORE).exists() and StoreManifest.read(store).digest != opened.manifest.store:
        opened.close()
        raise UserError(
            f"The collection {opened.manifest.name} of {opened.server.where} does not hold what "
            f"{store} holds; push it again with --overwrite."
        )
    return opened


def _open_funnel(resolved: ResolvedIndex, store: Path) -> Searchable:
    request = resolved.request
    _refuse_search_params(request)
    if request.engine:
        raise UserError(f"--funnel and --engine {request.engine} were given; give one of them.")
    funnel = Funnel.parse(request.funnel)
    if request.dim not in (None, funnel.dim):
        raise UserError(
            f"--funnel ends at dim {funnel.dim} and --dim {request.dim} was asked for; "
            "give one of them."
        )
    return FunnelIndex(open_store(store), funnel, device=_device(request.device))


def _refuse_search_params(request: SearchRequest) -> None:
    if request.search_params:
        names = ", ".join(name for name, _ in request.search_params)
        raise UserError(
            f"--search-param {names} is for engines that have it; this way to search has none."
        )
