"""The public `Encoder`: texts at one cut, or at several layers in one pass.

Shapes: L layers, N texts, Q queries, H width of the model, D dims of a cut.
"""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from os import PathLike, fspath
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from m2dr.core.arrays import Float32
from m2dr.core.errors import UserError, nearest, require
from m2dr.core.files import cache_folder
from m2dr.core.progress import Advance, progress
from m2dr.core.records import Cut, ModelCard, Side
from m2dr.core.requests import ExportRequest, PushModelRequest, of_queries
from m2dr.core.settings import meant_by
from m2dr.data.dataset import as_documents
from m2dr.data.tables import rows_of
from m2dr.index.vectors import prefixes
from m2dr.model.checkpoint import open_model
from m2dr.model.embed import AT_ONCE, TextEncoder
from m2dr.model.folder import SIDES, default_prompt_name
from m2dr.model.hub import find_folder
from m2dr.tasks.models import device_name, dtype_name, names_of
from m2dr.tasks.query import document_layer, open_queries, plan_of_model

if TYPE_CHECKING:
    from m2dr.model.graphs import BatchEncoder
    from m2dr.tasks.query import QueryEncoder

# Arguments of sentence-transformers' `encode`, and the values of each that are taken.
_FIXED: dict[str, tuple[object, ...]] = {
    "output_value": ("sentence_embedding",),
    "precision": ("float32", None),  # its evaluators give None
    **dict.fromkeys(("device", "pool", "chunk_size"), (None,)),
}

_LONG = 512  # tokens of a long text; some models take texts of any length
_OPEN = 3  # encoders of different layers that are kept
Input = str | Mapping[str, object]  # a text, or a dict with a text and perhaps a title and an id
Tokens = TypeVar("Tokens")


class Encoder:
    """A model cut to a layer and a dim, which encodes queries and documents; thread-safe.

    Vectors are cut and, where the model compares by cosine, then scaled to length one, as
    sentence-transformers does. They are those of `m2dr index` and `m2dr search`. It stands where a
    SentenceTransformer stands: in the evaluators and utilities of sentence-transformers, in MTEB,
    in BEIR's exact search, and where LangChain takes embeddings. It can be pickled.

        model = m2dr.Encoder("minilm", layer=4, dim=128)
        scores = model.similarity(model.encode_queries(queries), model.encode_documents(documents))

    Attributes:
        name: folder or id of the model.
        model: of that name, opened.
        layer: that queries run through.
        dim: of a vector.
        options: device, dtype, runtime and lengths, as they were asked for.
    """

    def __init__(
        self,
        name: str | PathLike[str],
        layer: int | None = None,
        dim: int | None = None,
        *,
        device: object = "auto",
        dtype: object = "auto",
        runtime: str = "torch",
        query_length: int | None = None,
        document_length: int | None = None,
    ) -> None:
        """Load the layers that queries of a cut run through; those of documents when needed.

        Args:
            name: folder of a model, `minilm`, which is built in, or a Hugging Face id.
            layer: layers that queries run through; all of them by default. Layer 0 is words
                alone, of a fitted model, and needs no torch. Documents run through the layer that
                the model trained such queries to search.
            dim: dims of the embedding to keep; all by default.
            device: auto, cpu, cuda or cuda:N.
            dtype: auto, fp32 or bf16; auto is bf16 where that is faster. With
                int8 documents are multiplied in int8 by OpenVINO, calibrated on the first ones.
            runtime: torch, onnx or openvino.
            query_length: tokens of a query, special ones included; those of the model by default.
            document_length: tokens of a document, likewise.

        Raises:
            UserError: no such model, or it has no such layer or dim, or reads no such length.
        """
        if dtype == "int8":
            require("openvino", "nncf")
        self.name = str(fspath(name))
        self.model = open_model(self.name, query_length, document_length)
        full = self.card.full
        cut = Cut(full.layer if layer is None else layer, full.dim if dim is None else dim)
        self.card.check(cut)
        self.layer, self.dim = cut.layer, cut.dim
        self.options: dict[str, Any] = {
            "device": device_name(device), "dtype": dtype_name(dtype), "runtime": runtime,
            "query_length": query_length, "document_length": document_length,
        }  # fmt: skip
        self._encoder = lru_cache(_OPEN)(self._open)
        self._graph = lru_cache(1)(self._open_graph)
        self._first_documents: Sequence[str] = ()  # which calibrate int8
        self._encoder(self.layer)

    @classmethod
    def from_pretrained(
        cls,
        name: Any,  # a name, or a SentenceTransformer, which is not imported here
        layer: int | None = None,
        dim: int | None = None,
        *,
        revision: str = "",
        token: str = "",
        cache_dir: str | PathLike[str] | None = None,
        **options: Any,
    ) -> "Encoder":
        """Load a model as the constructor does, of a revision of the hub too.

        Args:
            name: folder or id; or a SentenceTransformer, which is saved to a temporary folder that
                stays until Python ends.
            layer: layers that queries run through; all by default.
            dim: dims to keep; all by default.
            revision: branch, tag or commit of a Hugging Face id.
            token: of Hugging Face, for private models; that of the login by default.
            cache_dir: folder of the local copies of Hugging Face models.
            options: device, dtype, runtime, query_length and document_length.

        Raises:
            UserError: no such model, or it has no such layer or dim.
        """
        if hasattr(name, "save_pretrained"):
            saved = tempfile.mkdtemp(prefix="m2dr-")
            atexit.register(shutil.rmtree, saved, ignore_errors=True)
            name.save_pretrained(saved, create_model_card=False)
            name = saved
        folder = str(fspath(name))
        if revision or token or cache_dir:
            cache = Path(cache_dir) if cache_dir else None
            folder = str(find_folder(folder, revision=revision, token=token, cache_dir=cache))
        known = ("device", "dtype", "runtime", "query_length", "document_length")
        for each in options.keys() - known:
            meant = meant_by(each, ("layer", "dim", "revision", "token", "cache_dir", *known))
            hint = f"Did you mean {meant}?" if meant else f"Known: {', '.join(known)}."
            raise UserError(f"from_pretrained takes no {each}. {hint}")
        return cls(folder, layer, dim, **options)

    @property
    def card(self) -> ModelCard:
        """The card of the model: layers, width, similarity, prompts, lengths, trained cuts."""
        return self.model.card

    @property
    def document_layer(self) -> int:
        """Layer of the documents that queries of the cut were trained to search."""
        return document_layer(self.card, self.layer)

    @property
    def device(self) -> str:
        """The device that queries are encoded on."""
        opened = self._encoder(self.layer).opened
        return str(opened.runtime.device) if opened else "cpu"

    @property
    def model_card_data(self) -> SimpleNamespace:
        """A model card for evaluators of sentence-transformers; it ignores their measures."""
        return SimpleNamespace(base_model=self.name, set_evaluation_metrics=lambda *_: None)

    @property
    def max_seq_length(self) -> int:
        """Tokens of the longest text, query or document; what is set holds for both.

        Raises:
            UserError: the maximum of the model is smaller.
        """
        return max(self.card.query_length, self.card.document_length)

    @max_seq_length.setter
    def max_seq_length(self, length: int) -> None:
        self.model = self.model.with_lengths(length, length)
        self.options |= {"query_length": length, "document_length": length}

    @property
    def similarity_fn_name(self) -> str:
        """How vectors are compared, cosine or dot, as sentence-transformers calls it."""
        return self.card.similarity

    @cached_property
    def prompts(self) -> dict[str, str]:
        """The prompts of the model by name; those of queries and documents are among them."""
        sides = {"query": self.card.query_prefix, "document": self.card.document_prefix}
        named = self._settings.get("prompts") or {}
        return {name: text for name, text in named.items() if isinstance(text, str)} | sides

    @cached_property
    def _settings(self) -> Mapping[str, Any]:
        """The settings of the model for sentence-transformers."""
        return self.model.files.settings

    def get_embedding_dimension(self) -> int:
        """Return `dim`, as sentence-transformers calls it."""
        return self.dim

    get_sentence_embedding_dimension = get_embedding_dimension

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), self.name, self.layer, self.dim, **self.options), ()

    def _with(self, **attributes: object) -> "Encoder":
        """Return a copy with other attributes, which shares what is loaded."""
        copy = object.__new__(type(self))
        copy.__dict__ |= self.__dict__ | attributes
        return copy

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, layer={self.layer}, dim={self.dim})"

    def encode(
        self,
        sentences: Input | Iterable[Input],
        *,
        side: Side | None = None,
        layer: int | Iterable[int] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        task_metadata: Any = None,
        prompt_type: str | None = None,
        **fixed: object,
    ) -> Any:  # an array, a tensor, or a dict of these
        """Return the vectors of texts at one layer, or at several from one pass.

        Most arguments are those of sentence-transformers; of its others the defaults are taken.

        Args:
            sentences: N texts, or one; documents may be dicts with a text and a title.
            side: query or document, which have prompts and lengths of their own. Without one, and
                without `prompt_name`, texts have the length and layer of documents, and the default
                prompt of the model, which few have, unless it is one of queries.
            layer: layers that they run through, or several such numbers; that of the side by
                default.
            prompt_name: query, document, or another prompt of the model; its side is that of the
                name where it has one, as `passage` and `search_query` do.
            prompt: that stands before each text, in place of one of the model.
            batch_size: texts of the longest length whose tokens make a batch; of shorter texts
                there are more in a batch. By default as many as suit the device.
            show_progress_bar: whether to show progress on standard error.
            convert_to_numpy: whether arrays are returned, not lists of tensors.
            convert_to_tensor: whether tensors of torch are returned, on the processor.
            normalize_embeddings: whether vectors are scaled to length one, also those of a model
                that compares by dot products.
            truncate_dim: dims to keep, at most those of the encoder; cut before they are
                normalised.
            task_metadata: of a task of MTEB; `sentences` are then batches, with texts under `text`.
            prompt_type: query or document, as MTEB calls the side.
            fixed: other arguments of sentence-transformers, of their defaults, or None.

        Returns:
            [N, D], a tensor or a list of N tensors, or [D] for a single text; of several layers a
            dict from layer to such vectors.

        Raises:
            UserError: the model has no such layer, dim or prompt.
        """
        if task_metadata is not None or prompt_type is not None:
            sentences, side, prompt = self.of_mteb(sentences, task_metadata, prompt_type)
            layer = None if prompt_type else self.layer
        elif odd := [name for name, value in fixed.items() if value not in _FIXED.get(name, ())]:
            raise UserError(f"encode does not take {odd[0]} = {fixed[odd[0]]!r}.")
        if prompt_name in SIDES and prompt is None:
            side, prompt = side or SIDES[prompt_name], self.prompts.get(prompt_name)
        elif prompt is None and (prompt_name or not side):
            prompt_name = prompt_name or default_prompt_name(self._settings, "document")
            if prompt_name and prompt_name not in self.prompts:
                hint = nearest(prompt_name, self.prompts)
                raise UserError(f"There is no prompt {prompt_name!r}. {hint}")
            prompt = self.prompts[prompt_name] if prompt_name else ""
        side = side or "document"
        longest = self.card.query_length if side == "query" else self.card.document_length
        budget = batch_size and batch_size * min(longest, _LONG)
        if truncate_dim is not None and truncate_dim > self.dim:
            raise UserError(f"Dim {truncate_dim} was asked for; this encoder has {self.dim}.")
        default = self.layer if side == "query" else self.document_layer
        requested = layer if isinstance(layer, Iterable) else [default if layer is None else layer]
        layers = sorted({*requested})
        single = isinstance(sentences, str | Mapping)
        items = [sentences] if isinstance(sentences, str | Mapping) else sentences
        texts = [document.content for document in as_documents(rows_of(items))]
        bar = progress("Encoding", len(texts), "texts") if show_progress_bar else nullcontext()
        with bar as advance:
            vectors = self.vectors(
                texts, side, layers, budget, advance or (lambda _: None), truncate_dim, prompt
            )
        if normalize_embeddings and self.card.similarity != "cosine":
            vectors = np.stack([_unit(rows) for rows in vectors])
        rows = [matrix[0] if single else matrix for matrix in vectors]
        if convert_to_tensor or not convert_to_numpy:
            from m2dr.model.devices import as_tensor

            rows = [as_tensor(array) for array in rows]
            rows = rows if convert_to_tensor or single else [list(tensor) for tensor in rows]
        return dict(zip(layers, rows, strict=True)) if layer is requested else rows[0]

    def of_mteb(
        self, batches: Iterable[Any], task: Any, prompt_type: str | None
    ) -> tuple[list[str], Side, str | None]:
        """Return the texts of batches of MTEB, their side, and the prompt of their task if any.

        Texts of neither side, such as both sentences of a pair, are documents at the layer of
        queries, as for `m2dr evaluate sts`. The prompt is the one that MTEB chooses of those of the
        model: by the name of the task, by its type, or by these and `-query` or `-document`.
        """
        kind = str(getattr(prompt_type, "value", prompt_type))  # an enum of such words
        rows = list(batches)
        if any("text" not in batch for batch in rows):
            raise UserError("The task has inputs without a text, and m2dr encodes text alone.")
        name = None
        if task is not None:
            from mteb.models.abs_encoder import get_prompt_name
            from mteb.types import PromptType

            name = get_prompt_name(
                self.prompts, task, PromptType(kind) if kind in ("query", "document") else None
            )
        prompt = None if name in (None, "query", "document") else self.prompts[name]
        side: Side = "query" if kind == "query" else "document"
        return [text for batch in rows for text in batch["text"]], side, prompt

    def encode_queries(self, queries: str | Iterable[str], **options: Any) -> Any:
        """Return the vectors of queries, [Q, D], or [D] of one; `options` as `encode` takes them.

        Each gets the query prompt of the model and is cut at its query length.
        """
        return self.encode(queries, side="query", **options)

    def encode_documents(self, documents: Input | Iterable[Input], **options: Any) -> Any:
        """Return the vectors of documents, [N, D], or [D] of one; `options` as `encode` takes them.

        Each gets the document prompt of the model and is cut at its document length. Dicts have a
        text and perhaps a title, which stands before the text.
        """
        return self.encode(documents, side="document", **options)

    encode_query, encode_document = encode_queries, encode_documents  # of sentence-transformers
    encode_corpus = encode_documents  # of BEIR

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query, as LangChain calls it.

        Raises:
            UserError: no word of it is known at layer 0.
        """
        vector = self.encode_queries(text)
        if not vector.any():
            raise UserError(f"No word of {text[:80]!r} is known at layer 0, so it has no vector.")
        return cast("list[float]", vector.tolist())

    def embed_documents(self, texts: Iterable[Input]) -> list[list[float]]:
        """Return the vectors of documents, as LangChain calls it."""
        return cast("list[list[float]]", self.encode_documents(texts).tolist())

    def similarity(self, queries: Any, documents: Any) -> Any:  # arrays or tensors
        """Return the scores of all pairs of vectors, [Q, N]: cosines or dot products.

        Args:
            queries: [Q, D], or [D] of one; an array, or a tensor, and then a tensor is returned.
            documents: [N, D], or [D] of one, likewise.
        """
        return self._scores(queries, documents, "qd,nd->qn")

    def similarity_pairwise(self, queries: Any, documents: Any) -> Any:  # arrays or tensors
        """Return the score [N] of each pair of rows of two arrays or tensors, both [N, D]."""
        return self._scores(queries, documents, "nd,nd->n")

    def _scores(self, queries: Any, documents: Any, product: str) -> Any:
        left, right = (
            np.atleast_2d(np.asarray(each.cpu() if hasattr(each, "cpu") else each, np.float32))
            for each in (queries, documents)
        )
        if self.card.similarity == "cosine":
            left, right = _unit(left), _unit(right)
        scores = np.einsum(product, left, right, optimize=True)
        if hasattr(queries, "cpu") or hasattr(documents, "cpu"):
            from m2dr.model.devices import as_tensor

            return as_tensor(scores)
        return scores

    @cached_property
    def mteb_model_meta(self) -> Any:  # mteb's ModelMeta, which is not imported here
        """Metadata that MTEB writes with scores; the revision is the sha256 of the weights."""
        from mteb.models import ModelMeta

        from m2dr.model.checkpoint import load
        from m2dr.model.encoder import parameters_of

        card, deepest = self.card, max(self.layer, self.document_layer)
        metadata = {
            "name": f"m2dr/{names_of([self.name])[0]}-{Cut(self.layer, self.dim)}",
            "revision": card.fingerprint,
            "n_parameters": parameters_of(load(self.model, deepest).runtime, deepest),
            "embed_dim": self.dim,
            "max_tokens": max(card.query_length, card.document_length),
            "similarity_fn_name": card.similarity,
            "framework": ["PyTorch"],
            "use_instructions": bool(card.query_prefix or card.document_prefix),
        }
        return ModelMeta(**ModelMeta.create_empty().model_dump() | metadata)

    def cut(self, layer: int | str | Cut | None = None, dim: int | None = None) -> "Encoder":
        """Return the same model at another cut; its layers are loaded once more.

        Args:
            layer: of the queries, from 0, or a whole cut, also as "L4D128"; this one's by default.
            dim: of the vectors; that of this encoder by default.

        Raises:
            UserError: the model has no such layer or dim.
        """
        if isinstance(layer, str | Cut):
            cut = Cut.parse(layer) if isinstance(layer, str) else layer
            layer, dim = cut.layer, cut.dim if dim is None else dim
        return Encoder(
            self.name,
            self.layer if layer is None else layer,
            self.dim if dim is None else dim,
            **self.options,
        )

    def save_pretrained(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write a model folder that m2dr, transformers and sentence-transformers open.

        Of a cut it is the smaller model that `m2dr export` writes, whose vectors are those of the
        queries: other layers and dims are left out. Where the model trained such queries to search
        documents of its last layer, save that cut too, for the documents. Layer 0 is words and no
        model, so that the whole model is written.

        Args:
            folder: to write; empty or missing.
            force: whether a cut that was neither fitted nor trained is written too.

        Raises:
            UserError: the folder is not empty, or the cut was neither fitted nor trained.
        """
        from m2dr.tasks.publish import export_model, save_model

        self._refuse_lengths()
        cut, out = Cut(self.layer, self.dim), Path(folder)
        if cut.layer == 0 or cut == self.card.full:
            save_model(self.model, max(cut.layer, self.document_layer), out)
        else:
            export_model(ExportRequest(out=out, cut=cut, model=self.name, force=force))
        return out

    def push_to_hub(
        self,
        repo_id: str,
        *,
        token: str = "",
        private: bool = False,
        commit_message: str = "",
        revision: str = "",
    ) -> str:
        """Upload the model to the Hugging Face hub, as `m2dr push` does, and return its address.

        A folder that holds the whole model is uploaded as it is, with its README and figures. Of a
        cut whose documents need fewer layers, and of a model from elsewhere, a folder of the layers
        that queries and documents need is uploaded, with all dims.

        Args:
            repo_id: OWNER/NAME.
            token: of the hub; that of the login by default.
            private: whether a new model is private.
            commit_message: of the commit.
            revision: branch to write to, made where it is missing; main by default.

        Raises:
            UserError: the id is not OWNER/NAME, there is no token, or the hub refuses.
        """
        from m2dr.tasks.publish import push_layers

        self._refuse_lengths()
        request = PushModelRequest(
            Path(self.name), repo_id, private, revision, commit_message, token
        )
        return push_layers(request, max(self.layer, self.document_layer)).url

    def _refuse_lengths(self) -> None:
        if self.options["query_length"] or self.options["document_length"]:
            raise UserError("This encoder has other lengths than its model, which are not saved.")

    def vectors(
        self,
        texts: Sequence[str],
        side: Side,
        layers: Sequence[int],
        budget: int | None = None,
        advance: Advance = lambda _: None,
        dim: int | None = None,
        prompt: str | None = None,
    ) -> Float32:
        """Return the vectors of texts at some layers, [L, N, D]; arguments as for `stream`."""
        vectors = np.empty((len(layers), len(texts), dim or self.dim), np.float32)
        parts = (texts[start : start + AT_ONCE] for start in range(0, len(texts), AT_ONCE))
        end = 0
        for part in self.stream(parts, side, layers, budget, advance, dim, prompt):
            start, end = end, end + part.shape[1]
            vectors[:, start:end] = part
        return vectors

    def stream(
        self,
        parts: Iterable[Sequence[str]],
        side: Side,
        layers: Sequence[int],
        budget: int | None = None,
        advance: Advance = lambda _: None,
        dim: int | None = None,
        prompt: str | None = None,
    ) -> Iterator[Float32]:
        """Yield the vectors of each part of the texts, [L, n, D], while the next is tokenised.

        Args:
            parts: of n texts each, in the order of the texts.
            side: whether they are queries or documents.
            layers: L layers; all of them come from one pass, but queries in a runtime other than
                torch, and any text in onnx, take one each.
            budget: tokens of a batch, padding included; by default as many as suit the device.
            advance: receives the number of texts of each batch.
            dim: dims to keep; those of the cut by default.
            prompt: that stands before each text, in place of that of the side.

        Raises:
            UserError: the model has no such layer or dim.
        """
        dim, card = dim or self.dim, self.card
        if prompt is not None:
            card = replace(card, query_prefix=prompt, document_prefix=prompt)
        for layer in layers:
            self.card.check(Cut(layer, dim))
        deepest = self._encoder(max(layers))

        def tokens(part: Sequence[str]) -> tuple[Sequence[str], list[list[int]]]:
            return part, deepest.tokenize(part, side, card)

        for texts, rows in _ahead(tokens, parts):
            embedded = self._embed(deepest, texts, rows, side, layers, budget, advance)
            yield np.stack([prefixes(each, dim, self.card.similarity) for each in embedded])

    def _embed(
        self,
        deepest: "QueryEncoder",
        texts: Sequence[str],
        rows: list[list[int]],
        side: Side,
        layers: Sequence[int],
        budget: int | None,
        advance: Advance,
    ) -> Float32:  # [L, n, H], not normalised
        runtime, is_document = self.options["runtime"], side == "document"
        opened: TextEncoder[Any] | None = deepest.opened if runtime == "torch" else None
        graph = is_document and self.options["dtype"] == "int8" and max(layers) > 0
        # One document has no batches to be sorted into.
        if deepest.opened and (len(texts) > 1 or len(layers) > 1):
            graph = graph or (runtime == "openvino" and is_document)
        if graph:
            previous, self._first_documents = self._first_documents, self._first_documents or texts
            try:
                opened = self._graph(max(layers))  # batches side by side
            except UserError:
                self._first_documents = previous  # too few to calibrate int8
                raise
        if opened:
            return opened.of_tokens(rows, layers, texts, advance, budget)
        vectors = []
        for layer in layers:
            encoder = self._encoder(layer)
            tokens = rows if layer or encoder is deepest else encoder.tokenize(texts)
            vectors.append(encoder.embed(tokens, texts))
        advance(len(texts))
        return np.stack(vectors)

    def _open_graph(self, layer: int) -> "TextEncoder[BatchEncoder]":
        from m2dr.model.graphs import OPENVINO, DocumentSource

        device, dtype = self.options["device"], self.options["dtype"]
        source = DocumentSource(self.model, layer, device, of_queries(dtype), cache_folder())
        runtime = OPENVINO
        if dtype == "int8":
            from m2dr.model.int8 import quantized

            source, runtime = quantized(source, self._first_documents)
        return source.open(runtime)

    def _open(self, layer: int) -> "QueryEncoder":
        how = [self.options[name] for name in ("runtime", "device", "dtype")]
        return open_queries(plan_of_model(self.model, layer), *how)


def _unit(vectors: Float32) -> Float32:
    """Return vectors of length one; one of length zero stays as it is."""
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    unit: Float32 = (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)
    return unit


def _ahead(
    tokens: Callable[[Sequence[str]], Tokens], parts: Iterable[Sequence[str]]
) -> Iterator[Tokens]:
    """Yield `tokens(part)` for each part, while a thread tokenises the next one."""
    source = iter(parts)
    first, part = next(source, None), next(source, None)
    if first is None:
        return
    rows = tokens(first)
    if part is not None:  # a single query is not worth a thread
        with ThreadPoolExecutor(1, "tokenise") as pool:
            while part is not None:
                future = pool.submit(tokens, part)
                yield rows
                rows, part = future.result(), next(source, None)
    yield rows
