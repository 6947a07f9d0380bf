"""What `--index` of `m2dr serve` names: the stores of a corpus by a model, or one index alone."""

from dataclasses import dataclass, replace
from pathlib import Path

from m2dr.core.errors import UserError, command
from m2dr.core.records import EXITS_FILE
from m2dr.core.requests import INDEXES, PYDOCS, SearchRequest, ServeRequest
from m2dr.index.layout import EXITS, MANIFEST, STORE, only_home, store_folders_of
from m2dr.index.manifest import IndexManifest, StoreManifest
from m2dr.tasks.resolve import ResolvedIndex, default_model, resolve_index

Signature = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True)
class ServedSource:
    """An index that is served, by where it lies."""

    request: SearchRequest  # of its full model; a cut has another layer and dim
    model: str
    corpus: str  # as stores name it
    home: Path  # holds a store per layer
    alone: Path | None = None  # the folder of an index that has no store beside it

    def resolved(self, layer: int | None, dim: int | None, engine: str = "") -> ResolvedIndex:
        """Return the request of a cut, without loading anything."""
        asked = replace(self.request, query_layer=layer, dim=dim, engine=engine)
        if self.alone is not None:
            return resolve_index(asked)
        return ResolvedIndex(asked, self.model, self.corpus, self.home)

    def signature(self) -> Signature:
        """Return what tells whether the files are those that were read; empty without any."""
        folder = self.alone or self.home
        patterns = (
            (MANIFEST,)
            if self.alone
            else (f"layer-*/{STORE}", f"layer-*/dim-*/{MANIFEST}", f"{EXITS}/{EXITS_FILE}")
        )
        try:
            paths = sorted(path for pattern in patterns for path in folder.glob(pattern))
        except OSError:
            return ()  # as opening the index will say
        found = []
        for path in paths:
            try:
                stat = path.stat()
            except OSError:
                continue  # renamed meanwhile, as the next look will see
            found.append((str(path), stat.st_mtime_ns, stat.st_ino, stat.st_size))
        return tuple(found)


def open_sources(request: ServeRequest) -> list[ServedSource]:
    """Find what is served.

    Raises:
        UserError: a folder holds no index, or there is none of the corpus by the model.
    """
    if not request.indexes:
        return [_of_corpus(request)]
    return [_of_folder(Path(folder), request) for folder in dict.fromkeys(request.indexes)]


def _of_corpus(request: ServeRequest) -> ServedSource:
    """Find the index of a corpus by a model, as `m2dr search` does."""
    model = request.model or default_model(request.corpus, request.root)
    asked = _search_request(request, request.corpus, model, request.root)
    resolved = resolve_index(asked)
    if not resolved.layers:
        build = command(
            "index", "corpus", corpus=request.corpus, model=model,
            indexes=None if request.root == INDEXES else request.root,
        )  # fmt: skip
        raise UserError(
            f"There is no index of {resolved.corpus} by {model} in {request.root}/ to serve. "
            f"Build one with: {build}"
        )
    return ServedSource(asked, model, resolved.corpus, resolved.home)


def _of_folder(folder: Path, request: ServeRequest) -> ServedSource:
    if (folder / MANIFEST).exists() and not (folder.parent / STORE).exists():
        return _alone(folder, request)
    home = only_home(folder, "serve")
    manifest = StoreManifest.read(store_folders_of(home)[-1])
    corpus, model = _origin(manifest, request, folder)
    parts = len(Path(manifest.corpus).parts)
    root = next(iter(home.parents[parts : parts + 1]), INDEXES)
    return ServedSource(_search_request(request, corpus, model, root), model, manifest.corpus, home)


def _alone(folder: Path, request: ServeRequest) -> ServedSource:
    manifest = IndexManifest.read(folder)
    corpus, model = _origin(manifest, request, folder)
    asked = replace(
        _search_request(request, corpus, model, request.root),
        index=str(folder), document_layer=manifest.layer,
    )  # fmt: skip
    return ServedSource(asked, model, manifest.corpus, folder.parent.parent, folder)


def _origin(
    manifest: StoreManifest | IndexManifest, request: ServeRequest, folder: Path
) -> tuple[str, str]:
    """Return the corpus and the model of an index: those asked for, or those that it names."""
    label = manifest.label
    corpus = label.source if request.corpus == PYDOCS and label.source else request.corpus
    model = request.model or label.model
    if not model:
        again = command("serve", index=folder, model="MODEL")
        raise UserError(f"{folder} does not say which model encoded it. Name it, as in: {again}")
    return corpus, model


def _search_request(request: ServeRequest, corpus: str, model: str, root: Path) -> SearchRequest:
    return SearchRequest(
        corpus, model, root=root, device=request.device, dtype=request.dtype,
        engine=request.engine, runtime=request.runtime,
    )  # fmt: skip
