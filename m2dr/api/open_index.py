"""`m2dr.open_index`: search from Python, at any cut; encoders and indexes used last stay open."""

import threading
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from m2dr.api.documents import Item, checked_documents
from m2dr.api.encode_options import words
from m2dr.api.keywords import understood
from m2dr.core.arguments import (
    one_of,
    one_or_many,
    path_or_name,
    string,
    strings,
    whole_number,
)
from m2dr.core.errors import UserError
from m2dr.core.progress import printable
from m2dr.core.requests import (
    INDEXES,
    PYDOCS,
    IndexRequest,
    SearchRequest,
)
from m2dr.index.layout import MANIFEST, STORE
from m2dr.tasks.encoder import LruCache, QueryEncoder, open_query_encoder
from m2dr.tasks.resolve import MILVUS, ResolvedIndex, check_cut, resolve_index
from m2dr.tasks.search import Answer, Searcher

if TYPE_CHECKING:  # it loads torch, and a search at layer 0 does without
    from m2dr.tasks.index import ChangeReport

_CUTS, _LAYERS = 8, 4  # numbers of indexes and encoders that are kept open
_CutKey = tuple[int | None, int | None, int | None]  # query layer, dim, document layer


class OpenIndex:
    """The documents of a corpus, encoded by a model, at every layer and dim; thread-safe."""

    def __init__(self, request: SearchRequest) -> None:
        """Open the index of a request, and load its encoder.

        Raises:
            UserError: no such model, corpus or index, or they do not fit.
        """
        self._resolved = resolve_index(request)
        self._encoders = LruCache(self._load, _LAYERS)
        self._searchers = LruCache(self._open, _CUTS)
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self.searcher()

    def __repr__(self) -> str:
        corpus, model = self._resolved.corpus, self._resolved.model
        return f"{type(self).__name__}({corpus!r}, model={model!r})"

    def searcher(
        self, layer: int | None = None, dim: int | None = None, document_layer: int | None = None
    ) -> Searcher:
        """Return the searcher of a cut, which stays open.

        Args:
            layer: of the queries, from 0; None: that of `open_index`.
            dim: from 1; None: that of `open_index`.
            document_layer: of the documents; None: that of `open_index`.

        Raises:
            UserError: there are no such documents, or queries of this model cannot search them.
        """
        request = self._resolved.request
        layer, dim, document_layer = _cut(layer, dim, document_layer)
        # A document layer named at opening holds; without one documents follow the query.
        searcher = self._searchers.get(
            (
                request.query_layer if layer is None else layer,
                request.dim if dim is None else dim,
                request.document_layer if document_layer is None else document_layer,
            )
        )
        for sentence in searcher.warnings:
            self._warn(sentence)
        return searcher

    @overload
    def search(  # type: ignore[overload-overlap]  # a str is a sequence too; this one is tried first
        self,
        texts: str,
        *,
        layer: int | None = None,
        dim: int | None = None,
        document_layer: int | None = None,
        k: int | None = None,
        filter: str = "",
    ) -> Answer: ...

    @overload
    def search(
        self,
        texts: Sequence[str],
        *,
        layer: int | None = None,
        dim: int | None = None,
        document_layer: int | None = None,
        k: int | None = None,
        filter: str = "",
    ) -> list[Answer]: ...

    @understood(
        "search",
        {
            **dict.fromkeys(("query", "queries", "text"), "texts"),
            **dict.fromkeys(("top_k", "topk", "limit", "n"), "k"),
            "query_layer": "layer",
        },
    )  # fmt: skip
    def search(
        self,
        texts: str | Sequence[str],
        *,
        layer: int | None = None,
        dim: int | None = None,
        document_layer: int | None = None,
        k: int | None = None,
        filter: str = "",
    ) -> Answer | list[Answer]:
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
            A list with the answer of each query, or a single answer for a single string.

        Raises:
            UserError: a query is empty or no string, a number is invalid, the filter does not fit
                the fields of the documents, or the cut has no documents; the message has the
                command that encodes them.
        """
        alone = isinstance(texts, str)
        queries = strings([texts] if alone else texts, "queries")
        k = None if k is None else whole_number("k", k, 1)
        wanted = string("filter", filter)
        answers = self.searcher(layer, dim, document_layer).answers(queries, k, wanted)
        return answers[0] if alone else answers

    @understood("add", {"texts": "documents", "docs": "documents"})
    def add(self, documents: Iterable[Item], *, replace: bool = False) -> "ChangeReport":
        """Add documents to the corpus of `Index.build`, and to every layer and dim of its index.

        Args:
            documents: dicts with an id, a text, and perhaps a title and other fields.
            replace: whether documents of the same ids are replaced.

        Raises:
            UserError: an id is there already, a document has no id or no text, or this is an index
                of Milvus; nothing has changed then.
        """
        from m2dr.tasks.index import change_documents

        found = checked_documents(documents, "documents", numbered=False)
        report = change_documents(*self._collection(), found, replace=replace)
        self._reopen()
        return report

    @understood("delete", dict.fromkeys(("ids", "doc_ids", "documents"), "docids"))
    def delete(self, docids: str | Sequence[str]) -> "ChangeReport":
        """Delete documents from the corpus of `Index.build`, and from its index.

        Raises:
            UserError: an id is not there, or all documents would be gone; nothing has changed then.
        """
        from m2dr.tasks.index import change_documents

        gone = one_or_many("docids", docids)
        report = change_documents(*self._collection(), delete=gone)
        self._reopen()
        return report

    def _collection(self) -> tuple[IndexRequest, Path]:
        """Return the request of what is changed, and the folder of its stores."""
        request = self._resolved.request
        if request.index:
            raise UserError(
                f"Documents of {request.index} were to be changed. Open the index by its corpus "
                "and model, change that, and push it again."
            )
        asked = IndexRequest(
            request.corpus,
            str(self._resolved.model),
            root=request.root,
            device=request.device,
            dtype=request.dtype,
        )
        return asked, self._resolved.home

    def _reopen(self) -> None:
        """Open what was changed at the next search."""
        self._resolved = resolve_index(self._resolved.request)
        self._searchers = LruCache(self._open, _CUTS)

    def _open(self, key: _CutKey) -> Searcher:
        layer, dim, document_layer = key
        request = replace(
            self._resolved.request, query_layer=layer, dim=dim, document_layer=document_layer
        )
        resolved = replace(self._resolved, request=request)
        check_cut(resolved)
        return Searcher(request, resolved, self._encoder_of, self._warn)

    def _encoder_of(self, resolved: ResolvedIndex) -> QueryEncoder:
        return self._encoders.get((resolved.query_layer, resolved.exits))

    def _load(self, key: tuple[int, Path | None]) -> QueryEncoder:
        request, (layer, exits) = self._resolved.request, key
        encoder = open_query_encoder(
            self._resolved.model,
            layer,
            request.runtime,
            request.device,
            request.dtype,
            lambda _: None,
            exits,
        )
        encoder.warm_up()
        return encoder

    def _warn(self, sentence: str) -> None:
        with self._lock:
            if sentence in self._told:
                return
            self._told.add(sentence)
        warnings.warn(printable(sentence), UserWarning, stacklevel=4)


@understood(
    "m2dr.open_index",
    {
        **dict.fromkeys(("index", "path"), "name"),
        **dict.fromkeys(("dims", "truncate_dim"), "dim"),
        "layers": "layer", "query_layer": "layer", "backend": "runtime", "folder": "root",
    },
)  # fmt: skip
def open_index(
    name: str | Path = PYDOCS,
    *,
    model: str = "",
    corpus: str = "",
    layer: int | None = None,
    dim: int | None = None,
    document_layer: int | None = None,
    engine: str = "",
    funnel: str = "",
    search_params: dict[str, int] | None = None,
    runtime: str = "torch",
    device: str | None = "auto",
    dtype: str | None = "auto",
    exits: Literal["", "index", "model"] = "",
    root: str | Path = INDEXES,
    knobs: dict[str, int] | None = None,
) -> OpenIndex:
    """Open documents that `m2dr index corpus` encoded, to search them from Python.

    Args:
        name: a corpus, the folder of an index or a store, or one above, or milvus:URI.
        model: folder or id; by default the newest trained one in models/, or that of the folder.
        corpus: whose texts the hits show, where `name` is not a corpus.
        layer: layers that queries run through, unless a search says otherwise; all by default.
            Layer 0 is the table of tokens of a fitted model.
        dim: dims compared, unless a search says otherwise; the longest by default.
        document_layer: of the documents, unless a search says otherwise.
        engine: as `m2dr search --engine` takes it; flat where it is built.
        funnel: as `m2dr search --funnel` takes it.
        search_params: of the engine, such as {"nprobe": 32}.
        runtime: torch, onnx, openvino or auto.
        device: as `m2dr search --device` takes it.
        dtype: as `m2dr search --dtype` takes it.
        exits: of shallow queries, as `m2dr search --exits` takes it: those that were fitted on the
            documents of the index, or those of the model.
        root: folder of the indexes.
        knobs: former name of `search_params`.

    Raises:
        UserError: no such model, corpus or index, or they do not fit; or an argument is of another
            type.
    """
    named, model = path_or_name("name", name), path_or_name("model", model)
    layer, dim, document_layer = _cut(layer, dim, document_layer)
    for argument, word in (
        ("corpus", corpus), ("engine", engine), ("funnel", funnel), ("runtime", runtime),
    ):  # fmt: skip
        string(argument, word)
    how = words({"device": device, "dtype": dtype})
    one_of("exits", exits, ("", "index", "model"))
    params = knobs if search_params is None else search_params
    if not isinstance(params, dict | None):
        raise UserError(
            f"search_params = {params!r} was asked for. Give a dict, such as {{'nprobe': 32}}."
        )
    chosen = ((string("A search parameter", key), value) for key, value in (params or {}).items())
    is_index = _is_index(named)
    return OpenIndex(
        SearchRequest(
            corpus=corpus or (PYDOCS if is_index else named), model=model, query_layer=layer,
            document_layer=document_layer, dim=dim, root=Path(path_or_name("root", root)),
            device=how["device"] or "auto", dtype=how["dtype"] or "auto", engine=engine,
            funnel=funnel,
            index=named if is_index else "", runtime=runtime, exits=exits,
            search_params=tuple((key, whole_number(key, value, 0)) for key, value in chosen),
        )
    )  # fmt: skip


def _is_index(name: str) -> bool:
    """Whether a name is that of Milvus, or of the folder of an index, a store, or one above."""
    if name.startswith(MILVUS) or any(Path(name, file).exists() for file in (MANIFEST, STORE)):
        return True
    above = any(next(Path(name).glob(f"{up}layer-*/{STORE}"), None) for up in ("", "*/", "*/*/"))
    return above and not Path(name, "corpus.jsonl").exists()  # of Index.build: a corpus too


def _cut(layer: int | None, dim: int | None, document_layer: int | None) -> _CutKey:
    """Return the arguments if each is None or a whole number that can be a layer or a dim."""
    return (
        None if layer is None else whole_number("layer", layer, 0),
        None if dim is None else whole_number("dim", dim, 1),
        None if document_layer is None else whole_number("document_layer", document_layer, 0),
    )
