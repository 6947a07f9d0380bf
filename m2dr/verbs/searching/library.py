"""`m2dr.open_index`: search from Python, at any cut, with what was used last kept warm."""

import threading
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, overload

from m2dr.errors import UserError, nearest
from m2dr.index.layout import MANIFEST, STORE
from m2dr.records.arguments import path_or_name, string, strings, whole_number
from m2dr.verbs.indexing.request import INDEXES
from m2dr.verbs.progress import printable
from m2dr.verbs.searching.online import QueryEncoder, Warm, open_query_encoder
from m2dr.verbs.searching.opening import (
    MILVUS,
    PYDOCS,
    Place,
    SearchRequest,
    check_cut,
    find_place,
)
from m2dr.verbs.searching.search import Answer, Searcher

_CUTS, _LAYERS = 8, 4  # indexes and encoders that are kept open
_Asked = tuple[int | None, int | None, int | None]  # query layer, dim, document layer


class OpenIndex:
    """Documents of one corpus by one model, at every layer and dim that is encoded.

    Safe to use from several threads.
    """

    def __init__(self, request: SearchRequest) -> None:
        """Open what the request names, and load its encoder.

        Raises:
            UserError: no such model, corpus or index, or they do not fit.
        """
        self._place = find_place(request)
        self._encoders = Warm(self._load, _LAYERS)
        self._searchers = Warm(self._open, _CUTS)
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self.searcher()

    def searcher(
        self, layer: int | None = None, dim: int | None = None, document_layer: int | None = None
    ) -> Searcher:
        """Return what searches at a cut, kept warm.

        Args:
            layer: of the queries, from 0; None: as `open_index` was told.
            dim: from 1; None: as `open_index` was told.
            document_layer: of the documents; None: as `open_index` was told.

        Raises:
            UserError: there are no such documents, or this model's queries may not search them.
        """
        asked = self._place.request
        layer, dim, document_layer = _cut(layer, dim, document_layer)
        # A layer named at opening is that of the documents; without one they follow the query.
        searcher = self._searchers.get(
            (
                asked.query_layer if layer is None else layer,
                asked.dim if dim is None else dim,
                asked.layer if document_layer is None else document_layer,
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
        k: int = 10,
    ) -> Answer: ...

    @overload
    def search(
        self,
        texts: Sequence[str],
        *,
        layer: int | None = None,
        dim: int | None = None,
        document_layer: int | None = None,
        k: int = 10,
    ) -> list[Answer]: ...

    def search(
        self,
        texts: str | Sequence[str],
        *,
        layer: int | None = None,
        dim: int | None = None,
        document_layer: int | None = None,
        k: int = 10,
    ) -> Answer | list[Answer]:
        """The best `k` documents of each query.

        What makes rankings worse than the model can do is told by a Python warning, once.

        Args:
            texts: queries, or one of them.
            layer: layers that the queries run through; 0 is the table of tokens of a fitted model.
            dim: coordinates that are compared.
            document_layer: of the documents; by default the one that the model trained queries
                of `layer` to search.
            k: documents per query.

        Returns:
            An answer per query, in their order; the answer itself where one string was given.

        Raises:
            UserError: a query is empty or no string, a number is none, or the cut has no
                documents; the sentence holds the command that makes them.
        """
        alone = isinstance(texts, str)
        queries = strings([texts] if alone else texts, "queries")
        k = whole_number("k", k, 1)
        answers = self.searcher(layer, dim, document_layer).answers(queries, k)
        return answers[0] if alone else answers

    def _open(self, asked: _Asked) -> Searcher:
        layer, dim, document_layer = asked
        request = replace(self._place.request, query_layer=layer, dim=dim, layer=document_layer)
        place = replace(self._place, request=request)
        check_cut(place)
        return Searcher(request, place, self._encoder_of, self._warn)

    def _encoder_of(self, place: Place) -> QueryEncoder:
        return self._encoders.get((place.query_layer, place.exits))

    def _load(self, wanted: tuple[int, Path | None]) -> QueryEncoder:
        asked, (layer, exits) = self._place.request, wanted
        encoder = open_query_encoder(
            self._place.model,
            layer,
            asked.runtime,
            asked.device,
            asked.dtype,
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
    knobs: dict[str, int] | None = None,
    runtime: str = "torch",
    device: str = "auto",
    dtype: str = "auto",
    exits: Literal["", "index", "model"] = "",
    root: str | Path = INDEXES,
) -> OpenIndex:
    """Open documents that `m2dr index corpus` encoded, for search from Python.

    Args:
        name: a corpus, the folder of an index or a store, or milvus:URI.
        model: folder or id; by default the newest trained one in models/, or what made the folder.
        corpus: whose texts hits show, where `name` is no corpus.
        layer: layers that queries run through, unless a search says otherwise; all by default, and
            0 is the table of tokens of a fitted model.
        dim: coordinates compared, unless a search says otherwise; the longest by default.
        document_layer: of the documents, unless a search says otherwise.
        engine: as `m2dr search --engine` takes it; flat where it is built.
        funnel: as `m2dr search --funnel` takes it.
        knobs: of the engine at search time, such as {"nprobe": 32}.
        runtime: torch, onnx, openvino or auto.
        device: as `m2dr search --device` takes it.
        dtype: as `m2dr search --dtype` takes it.
        exits: of shallow queries, as `m2dr search --exits` takes it: those that were fitted on the
            documents of the index, or those of the model.
        root: where indexes lie.

    Raises:
        UserError: no such model, corpus or index, or they do not fit; or an argument is of another
            type.
    """
    named, model = path_or_name("name", name), path_or_name("model", model)
    layer, dim, document_layer = _cut(layer, dim, document_layer)
    words = {
        "corpus": corpus, "engine": engine, "funnel": funnel, "runtime": runtime, "device": device,
        "dtype": dtype,
    }  # fmt: skip
    for argument, word in words.items():
        string(argument, word)
    if exits not in ("", "index", "model"):
        hint = nearest(str(exits), ("index", "model"))
        raise UserError(f"exits = {exits!r} was asked for. {hint}")
    if not isinstance(knobs, dict | None):
        raise UserError(f"knobs = {knobs!r} was asked for. Give a dict, such as {{'nprobe': 32}}.")
    chosen = ((string("A knob", key), value) for key, value in (knobs or {}).items())
    is_index = named.startswith(MILVUS) or any(
        Path(named, file).exists() for file in (MANIFEST, STORE)
    )
    return OpenIndex(
        SearchRequest(
            corpus=corpus or (PYDOCS if is_index else named), model=model, query_layer=layer,
            layer=document_layer, dim=dim, root=Path(path_or_name("root", root)), device=device,
            dtype=dtype, engine=engine, funnel=funnel, index=named if is_index else "",
            runtime=runtime, exits=exits,
            knobs=tuple((key, whole_number(key, value, 0)) for key, value in chosen),
        )
    )  # fmt: skip


def _cut(layer: int | None, dim: int | None, document_layer: int | None) -> _Asked:
    """Refuse what is no whole number of the kind; None stands for what is usual."""
    return (
        None if layer is None else whole_number("layer", layer, 0),
        None if dim is None else whole_number("dim", dim, 1),
        None if document_layer is None else whole_number("document_layer", document_layer, 0),
    )
