"""`Index`: documents that were encoded, at every layer and dim, as Python has them."""

import shutil
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m2dr.core import requests
from m2dr.core.errors import UserError, missing_told, quoted
from m2dr.core.files import list_folder, remove_folder, sha256_of
from m2dr.core.progress import printable
from m2dr.core.records import DIGITS, Document
from m2dr.core.settings import request_of, show_fields
from m2dr.data.dataset import row_of_document
from m2dr.data.memory import CORPUS_FILE, Columns, Passages, documents_in, name_of_data
from m2dr.data.tables import id_of
from m2dr.index.folder import IndexFolder
from m2dr.index.manifest import MANIFEST, STORE
from m2dr.index.milvus import in_milvus
from m2dr.index.vectors import prefixes
from m2dr.tasks.corpus import WRITTEN, name_of_corpus, refuse_imported, write_documents
from m2dr.tasks.encoder import Encoder
from m2dr.tasks.models import device_name, dtype_name
from m2dr.tasks.query import QueryEncoders
from m2dr.tasks.searching.search import Answer, Searcher, check_cut, resolve_index
from m2dr.tasks.vectors import rotation_of

if TYPE_CHECKING:
    from m2dr.tasks.indexing.index import ChangeReport

_CUTS = 32  # searchers that are kept open


class Index:
    """The documents of a corpus, encoded by a model, at every layer and dim; thread-safe.

    index = m2dr.Index.build(model, [{"id": "d1", "text": "A text."}], dims=[128])
    index.search("a query", k=10).hits
    """

    def __init__(
        self, request: requests.SearchRequest, encoders: "QueryEncoders | None" = None
    ) -> None:
        """Open the index of a request, and load its encoder; `open` has simpler arguments.

        Args:
            request: of the cut that a search has by default.
            encoders: that other indexes use too.

        Raises:
            UserError: no such model, corpus or index, or they do not fit.
        """
        self.resolved = resolve_index(request)
        self.encoders = encoders or QueryEncoders()
        self._searchers = lru_cache(_CUTS)(self._open)
        self.searcher()

    @classmethod
    def open(
        cls,
        name: str | PathLike[str] = requests.PYDOCS,
        *,
        search_params: Mapping[str, int] | None = None,
        device: object = "auto",
        dtype: object = "auto",
        root: str | PathLike[str] | None = None,
        columns: Columns | None = None,
        **options: Any,
    ) -> "Index":
        """Open documents that were encoded before.

        Args:
            name: a corpus, the folder of an index or a store, or one above, or milvus:URI.
            search_params: of the engine, such as {"nprobe": 32}.
            device: auto, cpu, cuda or cuda:N.
            dtype: auto, fp32 or bf16.
            root: folder of the indexes; by default that of FOLDER/NAME of `build`, else indexes/.
            columns: of a corpus, as `build` takes them; by default those of its index.
            options: other fields of `SearchRequest`: model, corpus, engine, funnel, runtime, exits,
                and those of `Ask`, for searches that say nothing else.

        Raises:
            UserError: no such model, corpus or index, or they do not fit.
        """
        named = name_of_data(name, columns) if columns else fspath(name)
        folder = Path(named)
        source: dict[str, Any] = {"index" if _is_index(named) else "corpus": named}
        if (
            root is None
            and (folder / CORPUS_FILE).exists()
            and (stored := IndexFolder.found(folder))
        ):
            root = folder.parent
            if not options.get("model") and len(stored) == 1:
                source["model"] = stored[0].model
        arguments = {
            "search_params": tuple((search_params or {}).items()),
            "device": device_name(device),
            "dtype": dtype_name(dtype),
            "root": requests.INDEXES if root is None else root,
        }
        return cls(request_of(requests.SearchRequest, source | arguments | options))

    @classmethod
    @missing_told()
    def build(
        cls,
        model: Encoder | str | PathLike[str],
        documents: Any,  # what `m2dr.data.tables.rows_of` takes, or a name
        *,
        name: str = "",
        folder: str | PathLike[str] = requests.INDEXES,
        overwrite: bool = False,
        columns: Columns | None = None,
        passages: Passages | None = None,
        **options: Any,
    ) -> "Index":
        """Encode documents and build their indexes, as `m2dr index corpus` does; open them.

        What was encoded and built before is used again; an interrupted build goes on.

        Args:
            model: an encoder, whose layer and dim are those of a search that names none; or the
                folder or id of a model.
            documents: strings, dicts with a text and perhaps a title, an id and other fields, by
                which a search may filter, a dict of id to text, a frame, a data set; they are kept
                in FOLDER/NAME/corpus.jsonl. Or the name of a corpus, as `m2dr index` takes it.
            name: of the documents, for later: `m2dr search --corpus FOLDER/NAME`. By default those
                in memory are named by their content, and a corpus by its own name.
            folder: of the indexes.
            overwrite: whether to encode again; other documents of that name are replaced then, with
                all indexes of them.
            columns: names of columns that are not m2dr's, such as {"text": "Body"}.
            passages: words of the passages that long documents are divided into, and how many of
                them each shares with the one before, such as (200, 50); whole by default.
            options: other fields of `IndexRequest`: dims, which are that of the encoder by default,
                layers, engines, store, exits and others.

        Raises:
            UserError: a document has no text, two have one id, there are other documents of that
                name, or the model has no such layer or dim.
        """
        encoder = model if isinstance(model, Encoder) else None
        root = Path(folder)
        if taken := options.keys() & {"root", "corpus"}:
            raise UserError(f"{min(taken)} = … was given; build takes folder, documents and name.")
        if Path(name).name != name or name == "..":
            raise UserError(f"name = {name!r} is not that of a folder.")
        shared: dict[str, Any] = {"root": root}
        if encoder:
            shared |= {name: value for name, value in encoder.options.items() if name != "runtime"}
            options.setdefault("dims", (encoder.dim,))
        elif not isinstance(model, str | PathLike):
            raise UserError(f"build takes a model, then documents; {quoted(model)} is no model.")
        from m2dr.tasks.indexing.index import check_index_request, index_corpus

        if is_name := isinstance(documents, str | PathLike):
            path = name_of_data(documents, columns, passages=passages)
            options["corpus"] = f"{name}={path}" if name else path
        named = encoder.name if encoder else fspath(model)  # type: ignore[arg-type]  # a name
        request = request_of(
            requests.IndexRequest, {"model": named, "overwrite": overwrite} | shared | options
        )
        if not is_name:
            check_index_request(request)  # before the index that is there is replaced
            given = documents_in(documents, columns, passages)
            corpus = str(_write_corpus(given, root, name, overwrite))
            request = replace(request, corpus=corpus)
        index_corpus(request)
        if encoder:
            shared |= {
                "layer": encoder.layer,
                "dim": encoder.dim if encoder.dim in request.dims else None,
                "runtime": encoder.options["runtime"] if encoder.layer else "torch",
            }
        index = cls(requests.SearchRequest(request.corpus, named, **shared))
        if (columns or passages) and not is_name:  # for documents that are added
            home, own = index.resolved.index, tuple(sorted((columns or {}).items()))
            home.ask(replace(home.asked, columns=own, passages=passages))
        return index

    @classmethod
    def load(cls, folder: str | PathLike[str], **options: Any) -> "Index":
        """Open what `save` wrote; `options` as `open` takes them, the model by default its own.

        Raises:
            UserError: the folder holds no index or several, or its model is not there.
        """
        index = IndexFolder.at(Path(folder))
        corpus = index.path.parent
        named = f"{corpus.relative_to(folder)}={corpus}"
        return cls.open(named, **{"root": folder, "model": index.model} | options)

    def save(self, folder: str | PathLike[str]) -> Path:
        """Copy vectors, indexes and texts to a folder for `load`, and return it.

        It may be moved to another machine, where `load` is given the model.

        Raises:
            UserError: the folder is not empty, or the documents lie in Milvus.
        """
        target, home = Path(folder), self.resolved.index.path
        if list_folder(target):
            raise UserError(f"{target} is not empty.")
        if not home.is_dir():
            raise UserError(f"{self!r} has no vectors in {home.parent} to save.")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as aside:
            corpus = Path(aside, "saved", self.resolved.corpus)
            shutil.copytree(home, corpus / home.name)
            write_documents(self.resolved.dataset.documents(), corpus / CORPUS_FILE)
            (corpus / WRITTEN).touch()
            Path(aside, "saved").replace(target)
        return target

    def __len__(self) -> int:
        """Return the number of documents."""
        return self.searcher().documents.documents

    def get(self, docid: str | int) -> dict[str, Any]:
        """Return a document as `add` takes it: id, title, text and its own fields.

        Fields that have the name of one of those, or of another column of m2dr, are in `metadata`.

        Raises:
            UserError: there is none of that id, or the corpus is not on this machine.
        """
        return row_of_document(self.resolved.dataset.document(_docid(docid)))

    def __repr__(self) -> str:
        return f"Index({self.resolved.corpus!r}, model={self.resolved.model.name!r})"

    @show_fields(requests.Ask)
    def search(
        self, texts: str | Sequence[str], **options: Any
    ) -> Any:  # an Answer, or a list of them
        """Return the best `k` documents of each query.

        A Python warning, given once, names what makes rankings worse than the model allows.

        Args:
            texts: queries, or one query.
            options: fields of `Ask`, which by default are as the index was opened: k, layer (0 is
                words alone), dim, document_layer, filter and min_score, by which fewer than `k`
                may be found, hybrid and query_mix (True or a weight), and explain, which computes
                the shares of words at once.

        Returns:
            A list with the `Answer` of each query, or a single one for a single string: `hits`,
            each with rank, score, docid, text and fields, of a hybrid also vector_score and
            bm25_score, and the milliseconds of each step.

        Raises:
            UserError: a query is empty, a number is invalid, the filter does not fit the fields of
                the documents, or the cut has no documents.
        """
        queries = [texts] if isinstance(texts, str) else list(texts)
        if not all(isinstance(query, str) for query in queries):
            raise UserError("Give a query, or a list of queries, which are strings.")
        ask = self.asked(options)
        searcher = self.searcher(ask.layer, ask.dim, ask.document_layer)
        answers: list[Answer] = searcher.answers(queries, ask=ask)
        return answers[0] if isinstance(texts, str) else answers

    def asked(self, options: Mapping[str, Any]) -> requests.Ask:
        """Return fields of `Ask` by name as one; the others are as the index was opened.

        Raises:
            UserError: a field is unknown, or its value is of another type or out of its range.
        """
        ask: requests.Ask = request_of(requests.Ask, options, "search", self.resolved.request)
        return ask

    def embed_query(self, text: str, layer: int | None = None) -> list[float]:
        """Return the vector of a query at all dims, as vector stores of other libraries take it.

        It is compared with the vectors of the documents as they were given or encoded, so that any
        store of these answers by it.

        Args:
            text: the query.
            layer: layers that it runs through; 0: words alone, as without a model.

        Raises:
            UserError: as `searcher` does, or no word of the query is known at layer 0.
        """
        searcher = self.searcher(layer)
        card, index = searcher.resolved.card, searcher.resolved.index
        vectors, rotation = searcher.vectors([text]), rotation_of(index, card.width)
        if not vectors.any():
            raise UserError(f"No word of {text[:80]!r} is known at layer 0, so it has no vector.")
        vectors = vectors if rotation is None else vectors @ rotation
        numbers: list[float] = prefixes(vectors, card.width, card.similarity)[0].tolist()
        return numbers

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
        return self._searchers(
            request.layer if layer is None else layer,
            request.dim if dim is None else dim,
            request.document_layer if document_layer is None else document_layer,
            engine or request.engine,
        )

    @missing_told()
    def add(
        self, documents: Any, *, replace: bool = False, columns: Columns | None = None
    ) -> "ChangeReport":
        """Add documents to the corpus that `Index.build` wrote, and to its whole index.

        Args:
            documents: as `build` takes them. Where all ids are whole numbers, as those that `build`
                gave, new documents may have none, and the next numbers are theirs.
            replace: whether documents of the same ids are replaced.
            columns: as `build` takes them; by default those of the index.

        Raises:
            UserError: an id is there already, a document has no id or no text, the index was
                opened by its folder, or its corpus is a file that m2dr did not write; nothing has
                changed then.
        """
        from m2dr.tasks.indexing.index import sync

        known = list(self.searcher().documents.docids)
        is_numbered = all(map(str.isdecimal, known))
        first = max(map(int, known)) + 1 if is_numbered else None
        own = dict(self.resolved.index.asked.columns)
        added = documents_in(documents, own if columns is None else columns, first=first)
        report = sync(self._index_request(), added, replace_same=replace)
        self._reopen()
        return report

    @missing_told()
    def delete(self, docids: str | int | Iterable[str | int]) -> "ChangeReport":
        """Delete documents from the corpus that `Index.build` wrote, and from its index.

        Raises:
            UserError: an id is not there, or neither a text nor a whole number, all documents
                would be gone, or the corpus is a file that m2dr did not write; nothing has changed
                then.
        """
        from m2dr.tasks.indexing.index import sync

        listed = (
            docids if isinstance(docids, Iterable) and not isinstance(docids, str) else [docids]
        )
        report = sync(self._index_request(), delete=list(map(_docid, listed)))
        self._reopen()
        return report

    def _index_request(self) -> requests.IndexRequest:
        """Return the request to index this corpus by this model."""
        request, index = self.resolved.request, self.resolved.index
        if in_milvus(request.index):
            raise UserError(f"{request.index} is changed by m2dr index push, as its corpus is.")
        refuse_imported(index)
        root, model = request.root, self.resolved.model
        if request.index:
            root = index.root(self.resolved.corpus)
            corpus = name_of_corpus(request.corpus)
            if IndexFolder.of(root, corpus, model.card.fingerprint) != index:
                raise UserError(f"{index} is no folder where m2dr indexes {request.corpus}.")
        return requests.IndexRequest(
            request.corpus, model.name, root=root, device=request.device, dtype=request.dtype
        )

    def _reopen(self) -> None:
        """Let the next search open the changed stores."""
        self.resolved = resolve_index(self.resolved.request)
        self._searchers = lru_cache(_CUTS)(self._open)

    def _open(
        self, layer: int | None, dim: int | None, document_layer: int | None, engine: str
    ) -> Searcher:
        request = replace(
            self.resolved.request, layer=layer, dim=dim, document_layer=document_layer,
            engine=engine,
        )  # fmt: skip
        resolved = replace(self.resolved, request=request)
        check_cut(resolved)
        searcher = Searcher(resolved, self.encoders)
        for sentence in searcher.warnings:
            warnings.warn(printable(sentence), UserWarning, stacklevel=4)
        return searcher


def _is_index(name: str) -> bool:
    """Return whether a name is milvus:URI, or the folder of an index or store, or one above."""
    if in_milvus(name) or any(Path(name, file).exists() for file in (MANIFEST, STORE)):
        return True
    above = any(next(Path(name).glob(f"{up}layer-*/{STORE}"), None) for up in ("", "*/", "*/*/"))
    return above and not Path(name, CORPUS_FILE).exists()  # of Index.build: a corpus too


def _docid(given: object) -> str:
    """Return a docid as `add` takes it; raise UserError where that is refused."""
    try:
        return id_of(given)
    except ValueError as error:
        raise UserError(f"{error}.") from None


def _write_corpus(documents: Iterable[Document], root: Path, name: str, overwrite: bool) -> Path:
    """Write documents as corpus.jsonl of a folder of `root`, named by them by default; return it.

    Raises:
        UserError: two have one id, or it holds other documents and may not overwrite them, as
            ever where it was not written by this.
    """
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=root) as aside:
        unfinished = Path(aside, CORPUS_FILE)
        write_documents(documents, unfinished)
        digest = sha256_of(unfinished)
        folder = root / (name or f"documents-{digest[:DIGITS]}")
        path = folder / CORPUS_FILE
        if path.exists():
            if sha256_of(path) == digest:
                return folder
            if not (folder / WRITTEN).exists():
                raise UserError(f"{path} was not written by m2dr and is kept: take another name.")
            if name and not overwrite:
                raise UserError(f"{folder} holds other documents; name it or overwrite=True.")
            for path_of in [
                each for each in list_folder(folder) if IndexFolder(each).layer_folders
            ]:
                remove_folder(path_of)
        folder.mkdir(exist_ok=True)
        (folder / WRITTEN).touch()
        unfinished.replace(path)
    return folder
