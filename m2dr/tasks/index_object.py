"""The index of people, commands and servers: search, at any cut, documents that were encoded."""

import shutil
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from m2dr.core.errors import UserError
from m2dr.core.files import atomic_path, list_folder, sha256_of
from m2dr.core.progress import printable
from m2dr.core.requests import (
    INDEXES,
    PYDOCS,
    IndexRequest,
    SearchRequest,
)
from m2dr.index.manifest import MANIFEST, STORE, layer_folders
from m2dr.tasks.encode_texts import document_line
from m2dr.tasks.encoder import (
    Encoder,
    Item,
    LruCache,
    QueryEncoder,
    as_documents,
    device_name,
    dtype_name,
)
from m2dr.tasks.search import MILVUS, Answer, ResolvedIndex, Searcher, check_cut, resolve_index

if TYPE_CHECKING:  # it loads torch, and a search at layer 0 does without
    from m2dr.tasks.index import ChangeReport

CORPUS = "corpus.jsonl"  # as in a folder of BEIR, which every command opens
_CUTS, _ENCODERS = 32, 32  # numbers of searchers and encoders that are kept open


class Index:
    """The documents of a corpus, encoded by a model, at every layer and dim; thread-safe.

    index = m2dr.Index.build(model, [{"id": "d1", "text": "A text."}], dims=[128])
    index.search("a query", k=10).hits
    """

    def __init__(self, request: SearchRequest, encoders: "QueryEncoders | None" = None) -> None:
        """Open the index of a request, and load its encoder; `open` has arguments for people.

        Args:
            request: of the cut that a search has by default.
            encoders: that other indexes use too.

        Raises:
            UserError: no such model, corpus or index, or they do not fit.
        """
        self.resolved = resolve_index(request)
        self.encoders = encoders or QueryEncoders()
        self._searchers = LruCache(self._open, _CUTS)
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self.searcher()

    @classmethod
    def open(
        cls,
        name: str | PathLike[str] = PYDOCS,
        *,
        layer: int | None = None,
        search_params: Mapping[str, int] | None = None,
        device: object = "auto",
        dtype: object = "auto",
        root: str | PathLike[str] = INDEXES,
        **options: Any,
    ) -> "Index":
        """Open documents that were encoded before.

        Args:
            name: a corpus, the folder of an index or a store, or one above, or milvus:URI.
            layer: layers that queries run through, unless a search says otherwise; all by default.
                Layer 0 is the table of tokens of a fitted model.
            search_params: of the engine, such as {"nprobe": 32}.
            device: auto, cpu, cuda or cuda:N.
            dtype: auto, fp32 or bf16.
            root: folder of the indexes.
            options: other fields of `SearchRequest`: model, corpus, dim, document_layer, engine,
                funnel, runtime, exits and filter, as `m2dr search` takes them.

        Raises:
            UserError: no such model, corpus or index, or they do not fit.
        """
        options = {
            key: fspath(value) if isinstance(value, PathLike) else value
            for key, value in options.items()
        }
        if options.get("exits", "") not in ("", "index", "model"):
            raise UserError(f"exits is 'index' or 'model', not {options['exits']!r}.")
        named = fspath(name)
        if _is_index(named):
            options = {"corpus": PYDOCS, "index": named, **options}
        else:
            options = {"corpus": named, **options}
        return cls(
            SearchRequest(
                query_layer=layer, search_params=tuple((search_params or {}).items()),
                device=device_name(device), dtype=dtype_name(dtype), root=Path(root), **options,
            )
        )  # fmt: skip

    @classmethod
    def build(
        cls,
        model: Encoder | str | PathLike[str],
        documents: str | PathLike[str] | Iterable[Item],
        *,
        name: str = "documents",
        folder: str | PathLike[str] = INDEXES,
        overwrite: bool = False,
        **options: Any,
    ) -> "Index":
        """Encode documents and build their indexes, as `m2dr index corpus` does; open them.

        What was encoded and built before is used again; an interrupted build goes on.

        Args:
            model: an encoder, whose layer and dim are those of a search that names none; or the
                folder or id of a model.
            documents: strings, or dicts with a text and perhaps a title, an id and other fields,
                by which a search may filter; they are kept in FOLDER/NAME/corpus.jsonl. Or the
                name of a corpus, as `m2dr index` takes it.
            name: of the documents, for later: `m2dr search --corpus FOLDER/NAME`. Not used for a
                corpus that has a name.
            folder: of the indexes.
            overwrite: whether to encode again; other documents of that name are replaced then, with
                all indexes of them.
            options: other fields of `IndexRequest`: dims, which are that of the encoder by default,
                layers, engines, store, exits and others.

        Raises:
            UserError: a document has no text, two have one id, there are other documents of that
                name, or the model has no such layer or dim.
        """
        encoder = model if isinstance(model, Encoder) else None
        root = Path(folder)
        if isinstance(documents, str | PathLike):
            corpus = fspath(documents)
        else:
            if Path(name).name != name or name == "..":
                raise UserError(f"name = {name!r} is not that of a folder.")
            corpus = str(root / name)
        shared: dict[str, Any] = {"root": root}
        if encoder:
            shared |= {"device": encoder.device, "dtype": encoder.dtype}
            options.setdefault("dims", (encoder.dim,))
            if encoder.runtime == "openvino":
                options.setdefault("runtime", encoder.runtime)
        options = {
            key: tuple(value) if isinstance(value, list | range) else value
            for key, value in options.items()
        }
        from m2dr.tasks.index import check_index_request, index_corpus

        named = encoder.name if encoder else fspath(model)  # type: ignore[arg-type]  # a name
        asked = IndexRequest(corpus, named, overwrite=overwrite, **shared, **options)
        if not isinstance(documents, str | PathLike):
            check_index_request(asked)  # before the index that is there is replaced
            _keep(documents, root / name, overwrite)
        index_corpus(asked)
        if encoder:
            shared |= {
                "query_layer": encoder.layer,
                "dim": encoder.dim if encoder.dim in asked.dims else None,
                "runtime": encoder.runtime if encoder.layer else "torch",
            }
        return cls(SearchRequest(corpus, named, **shared))

    def __repr__(self) -> str:
        return f"Index({self.resolved.corpus!r}, model={self.resolved.model!r})"

    def search(
        self,
        texts: str | Sequence[str],
        *,
        layer: int | None = None,
        dim: int | None = None,
        document_layer: int | None = None,
        k: int | None = None,
        filter: str = "",
    ) -> Any:  # an Answer, or a list of them
        """Return the best `k` documents of each query.

        A Python warning, given once, names what makes rankings worse than the model allows.

        Args:
            texts: queries, or one query.
            layer: layers that the queries run through; 0 is the table of tokens of a fitted model.
            dim: dims of the embedding that are compared.
            document_layer: of the documents; by default the one that queries of `layer` were
                trained to search.
            k: documents per query; 10 by default, or all where there are fewer.
            filter: which documents may be found, by their own fields, as `m2dr search --filter`
                takes it: "year >= 2020 and lang in (en, de)". Fewer than `k` may fit.

        Returns:
            A list with the `Answer` of each query, or a single one for a single string: `hits`,
            each with rank, score, docid, text and fields, and the milliseconds of each step.

        Raises:
            UserError: a query is empty, a number is invalid, the filter does not fit the fields of
                the documents, or the cut has no documents.
        """
        queries = [texts] if isinstance(texts, str) else list(texts)
        if isinstance(texts, Mapping) or not all(isinstance(query, str) for query in queries):
            raise UserError("Give a query, or a list of queries, which are strings.")
        searcher = self.searcher(layer, dim, document_layer)
        answers: list[Answer] = searcher.answers(queries, None if k is None else int(k), filter)
        return answers[0] if isinstance(texts, str) else answers

    def searcher(
        self,
        layer: int | None = None,
        dim: int | None = None,
        document_layer: int | None = None,
        engine: str = "",
    ) -> Searcher:
        """Return the searcher of a cut, which stays open; None is that of `open`.

        Raises:
            UserError: there are no such documents, or queries of this model cannot search them.
        """
        request = self.resolved.request
        # A document layer named at opening holds; without one documents follow the query.
        searcher = self._searchers.get(
            (
                request.query_layer if layer is None else layer,
                request.dim if dim is None else dim,
                request.document_layer if document_layer is None else document_layer,
                engine or request.engine,
            )
        )
        for sentence in searcher.warnings:
            self._warn(sentence)
        return searcher

    def add(self, documents: Iterable[Item], *, replace: bool = False) -> "ChangeReport":
        """Add documents to the corpus of `Index.build`, and to every layer and dim of its index.

        Args:
            documents: dicts with an id, a text, and perhaps a title and other fields.
            replace: whether documents of the same ids are replaced.

        Raises:
            UserError: an id is there already, a document has no id or no text, or the index was
                opened by its folder; nothing has changed then.
        """
        from m2dr.tasks.index import sync

        more = as_documents(documents, numbered=False)
        report = sync(self._collection(), more, replace_same=replace)
        self._reopen()
        return report

    def delete(self, docids: str | Sequence[str]) -> "ChangeReport":
        """Delete documents from the corpus of `Index.build`, and from its index.

        Raises:
            UserError: an id is not there, or all documents would be gone; nothing has changed then.
        """
        from m2dr.tasks.index import sync

        gone = [docids] if isinstance(docids, str) else list(docids)
        report = sync(self._collection(), delete=gone)
        self._reopen()
        return report

    def _collection(self) -> IndexRequest:
        """Return the request of what is changed."""
        request = self.resolved.request
        if request.index:
            raise UserError(
                f"{request.index} was opened by its folder; change it by its corpus and model."
            )
        return IndexRequest(
            request.corpus, self.resolved.model, root=request.root, device=request.device,
            dtype=request.dtype,
        )  # fmt: skip

    def _reopen(self) -> None:
        """Open what was changed at the next search."""
        self.resolved = resolve_index(self.resolved.request)
        self._searchers = LruCache(self._open, _CUTS)

    def _open(self, key: tuple[int | None, int | None, int | None, str]) -> Searcher:
        layer, dim, document_layer, engine = key
        request = replace(
            self.resolved.request, query_layer=layer, dim=dim, document_layer=document_layer,
            engine=engine,
        )  # fmt: skip
        resolved = replace(self.resolved, request=request)
        check_cut(resolved)
        return Searcher(request, resolved, self.encoders.of, self._warn)

    def _warn(self, sentence: str) -> None:
        with self._lock:
            if sentence in self._told:
                return
            self._told.add(sentence)
        warnings.warn(printable(sentence), UserWarning, stacklevel=4)


class _EncoderKey(NamedTuple):
    model: str
    fingerprint: str
    layer: int
    exits: Path | None
    runtime: str
    device: str
    dtype: str


class QueryEncoders:
    """Encoders of queries, each loaded when it is first needed; thread-safe.

    An encoder cut to a layer holds the tensors of the others of its model in place of its own
    copies, so that all layers together take the memory of the deepest one and of the exits.
    """

    def __init__(self) -> None:
        self._open = LruCache(self._load, _ENCODERS)

    def of(self, resolved: ResolvedIndex) -> QueryEncoder:
        """Return the encoder of the queries of a request.

        Raises:
            UserError: as `QueryEncoder` does.
        """
        request, layer = resolved.request, resolved.query_layer
        runtime = request.runtime if layer else "torch"
        return self._open.get(
            _EncoderKey(
                resolved.model, resolved.card.fingerprint, layer, resolved.exits, runtime,
                request.device, request.dtype,
            )
        )  # fmt: skip

    def _load(self, key: _EncoderKey) -> QueryEncoder:
        encoder = QueryEncoder(key.model, key.layer, key.runtime, key.device, key.dtype, key.exits)
        others = [(other.layer, opened) for other, opened in self._open.kept.items()
                  if other.fingerprint == key.fingerprint]  # fmt: skip
        for _, opened in sorted(others, key=lambda pair: -pair[0]):
            encoder.share_weights(opened)
        encoder.warm_up()
        return encoder


def _is_index(name: str) -> bool:
    """Whether a name is that of Milvus, or of the folder of an index, a store, or one above."""
    if name.startswith(MILVUS) or any(Path(name, file).exists() for file in (MANIFEST, STORE)):
        return True
    above = any(next(Path(name).glob(f"{up}layer-*/{STORE}"), None) for up in ("", "*/", "*/*/"))
    return above and not Path(name, CORPUS).exists()  # of Index.build: a corpus too


def _keep(items: Iterable[Item], folder: Path, overwrite: bool) -> None:
    """Write documents as corpus.jsonl of a folder.

    Raises:
        UserError: two have one id, or it holds other documents and may not overwrite them.
    """
    path = folder / CORPUS
    known = path.exists()
    seen: set[str] = set()
    with atomic_path(path) as unfinished:
        with unfinished.open("w", encoding="utf-8") as file:
            for document in as_documents(items):
                if document.id in seen:
                    raise UserError(f"Two documents have the id {document.id!r}.")
                if document.id.split() != [document.id]:
                    raise UserError(f"The id {document.id!r} holds white space, or nothing.")
                seen.add(document.id)
                file.write(document_line(document))
        if not seen:
            raise UserError("No documents were given.")
        changed = known and sha256_of(path) != sha256_of(unfinished)
        if changed and not overwrite:
            raise UserError(f"{folder} holds other documents; give another name or overwrite=True.")
        for index in [each for each in list_folder(folder) if changed and layer_folders(each)]:
            shutil.rmtree(index)
