"""`m2dr.Encoder`: the vectors of queries and documents at any cut of a model.

Shapes: N texts, Q queries, D dims of the cut.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from m2dr.api.documents import Item, contents
from m2dr.errors import UserError, nearest
from m2dr.model.hub import CARD, find_folder
from m2dr.pipelines.cut_encoder import CutEncoder
from m2dr.progress import progress
from m2dr.records.arguments import path_or_name, string, whole_number
from m2dr.records.cut import Cut
from m2dr.records.model_card import ModelCard
from m2dr.records.texts import Side

Precision = Literal["float32", "float16"]
Vectors = NDArray[np.floating[Any]]


class TextEncoder:
    """A model cut to a layer and a dim, which encodes queries and documents; thread-safe.

    It is `m2dr.Encoder`. Where the model compares by cosine, vectors have length one.

        model = m2dr.Encoder.from_pretrained("minilm", layer=4, dim=128)
        scores = model.similarity(model.encode_queries(queries), model.encode_documents(documents))
    """

    def __init__(self, cut_encoder: CutEncoder) -> None:
        """Wrap an open encoder; `from_pretrained` opens one."""
        self._inner = cut_encoder

    @classmethod
    def from_pretrained(
        cls,
        name: str | PathLike[str],
        layer: int | None = None,
        dim: int | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        runtime: str = "torch",
        revision: str = "",
        token: str = "",
        cache_dir: str | PathLike[str] | None = None,
    ) -> "TextEncoder":
        """Load the layers that queries of a cut run through.

        Args:
            name: folder of a model, `minilm`, which is built in, or a Hugging Face id.
            layer: layers that queries run through; all of them by default. Layer 0 is the table of
                tokens of a fitted model and needs no torch. Documents run through the layer that
                the model trained such queries to search.
            dim: dims of the embedding to keep; all by default.
            device: auto, cpu, cuda or cuda:N.
            dtype: auto, fp32 or bf16; auto is bf16 where the processor or gpu multiplies it.
            runtime: torch, onnx, openvino or auto.
            revision: branch, tag or commit of a Hugging Face id.
            token: of Hugging Face, for private models.
            cache_dir: folder of the local copies of Hugging Face models.

        Raises:
            UserError: no such model, or it has no such layer or dim.
        """
        model = path_or_name("name", name)
        source: dict[str, Any] = {
            "revision": string("revision", revision),
            "token": string("token", token),
            "cache_dir": None if cache_dir is None else Path(path_or_name("cache_dir", cache_dir)),
        }
        if any(source.values()):
            model = str(find_folder(model, **source))
        how = {"device": device, "dtype": dtype, "runtime": runtime}
        for argument, word in how.items():
            string(argument, word)
        return cls(CutEncoder(model, layer, dim, **how))

    @property
    def name(self) -> str:
        """Folder or id of the model."""
        return self._inner.model

    @property
    def layer(self) -> int:
        """Layer of the queries."""
        return self._inner.cut.layer

    @property
    def document_layer(self) -> int:
        """Layer of the documents that such queries search."""
        return self._inner.document_layer

    @property
    def dim(self) -> int:
        """Dims of a vector."""
        return self._inner.cut.dim

    @property
    def card(self) -> ModelCard:
        """The model card: layers, width, similarity, prompts, lengths, trained cuts."""
        return self._inner.card

    @property
    def device(self) -> str:
        """The device as it was asked for."""
        return self._inner.device

    @property
    def dtype(self) -> str:
        """The dtype as it was asked for."""
        return self._inner.dtype

    @property
    def runtime(self) -> str:
        """The runtime as it was asked for."""
        return self._inner.runtime

    def __repr__(self) -> str:
        return f"Encoder({self.name!r}, layer={self.layer}, dim={self.dim})"

    def encode_queries(
        self,
        texts: str | Iterable[str],
        *,
        precision: Precision = "float32",
        show_progress_bar: bool = False,
        tokens_per_batch: int | None = None,
    ) -> Vectors:
        """Return the vectors of queries, [N, D], or [D] for a single string.

        Each gets the query prompt of the model and is cut at its query length.

        Args:
            texts: queries, or one query.
            precision: float32 or float16.
            show_progress_bar: whether to show progress on standard error.
            tokens_per_batch: as `encode` takes it.

        Raises:
            UserError: a query is no string.
        """
        return self.encode(
            texts,
            layer=self.layer,
            side="query",
            precision=precision,
            show_progress_bar=show_progress_bar,
            tokens_per_batch=tokens_per_batch,
        )

    def encode_documents(
        self,
        texts: Item | Iterable[Item],
        *,
        precision: Precision = "float32",
        show_progress_bar: bool = False,
        tokens_per_batch: int | None = None,
    ) -> Vectors:
        """Return the vectors of documents, [N, D], or [D] for a single one.

        Each gets the document prompt of the model and is cut at its document length.

        Args:
            texts: documents, or one: strings, or dicts with a text and perhaps a title, which
                stands before the text.
            precision: float32 or float16.
            show_progress_bar: whether to show progress on standard error.
            tokens_per_batch: as `encode` takes it.

        Raises:
            UserError: a document is neither a string nor a dict with a text.
        """
        return self.encode(
            texts,
            layer=self.document_layer,
            side="document",
            precision=precision,
            show_progress_bar=show_progress_bar,
            tokens_per_batch=tokens_per_batch,
        )

    @overload
    def encode(
        self,
        texts: Item | Iterable[Item],
        *,
        layer: int | None = None,
        side: Side = "document",
        precision: Precision = "float32",
        show_progress_bar: bool = False,
        tokens_per_batch: int | None = None,
    ) -> Vectors: ...

    @overload
    def encode(
        self,
        texts: Item | Iterable[Item],
        *,
        layer: Sequence[int],
        side: Side = "document",
        precision: Precision = "float32",
        show_progress_bar: bool = False,
        tokens_per_batch: int | None = None,
    ) -> dict[int, Vectors]: ...

    def encode(
        self,
        texts: Item | Iterable[Item],
        *,
        layer: int | Sequence[int] | None = None,
        side: Side = "document",
        precision: Precision = "float32",
        show_progress_bar: bool = False,
        tokens_per_batch: int | None = None,
    ) -> Vectors | dict[int, Vectors]:
        """Return the vectors of texts at one layer, or at several from one pass.

        Args:
            texts: N texts, or one; documents may be dicts with a text and a title.
            layer: layers that they run through, or a list of such numbers; that of the side by
                default.
            side: query or document, which have prompts and lengths of their own.
            precision: float32 or float16.
            show_progress_bar: whether to show progress on standard error.
            tokens_per_batch: tokens of a batch, padding included; texts of similar length share a
                batch. By default as many as suit the device.

        Returns:
            [N, D], or [D] for a single text; of several layers a dict from layer to such an array.

        Raises:
            UserError: the model has no such layer, or a text is of another type.
        """
        for name, word, known in (("side", side, Side), ("precision", precision, Precision)):
            if word not in get_args(known):
                hint = nearest(str(word), get_args(known))
                raise UserError(f"{name} = {word!r} was asked for. {hint}")
        if tokens_per_batch is not None:
            whole_number("tokens_per_batch", tokens_per_batch, 1)
        alone = isinstance(texts, str | Mapping)
        given = contents([texts] if alone else texts, side)  # type: ignore[list-item]  # a single one, or many
        layers = self._layers(layer, side)
        shown = progress("Encoding", len(given), "texts") if show_progress_bar else nullcontext()
        with shown as advance:
            told = advance or (lambda _: None)
            vectors = self._inner.vectors(given, side, layers, tokens_per_batch, told)
        vectors = vectors.astype(precision, copy=False)
        found = {
            number: one[0] if alone else one for number, one in zip(layers, vectors, strict=True)
        }
        return found if isinstance(layer, Sequence) else found[layers[0]]

    def _layers(self, layer: int | Sequence[int] | None, side: Side) -> list[int]:
        """Return the layers to encode at, each once."""
        if layer is None:
            return [self.layer if side == "query" else self.document_layer]
        asked = layer if isinstance(layer, Sequence) else [layer]
        numbers = [whole_number("layer", one, 0) for one in asked]
        if not numbers:
            raise UserError("layer = [] was asked for. Give at least one layer, such as [2, 4].")
        return sorted(set(numbers))

    def similarity(self, queries: ArrayLike, documents: ArrayLike) -> NDArray[np.float32]:
        """Return the scores of all pairs of vectors, [Q, N]: cosines or dot products.

        Args:
            queries: [Q, D], or [D] of one.
            documents: [N, D], or [D] of one.

        Raises:
            UserError: they have different dims, or are no numbers.
        """
        try:
            left, right = (
                np.atleast_2d(np.asarray(one, np.float32)) for one in (queries, documents)
            )
        except (TypeError, ValueError):
            raise UserError(
                "What was given to compare is no array of numbers. Give vectors, such as "
                "encode_queries and encode_documents return."
            ) from None
        if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
            raise UserError(
                f"Vectors of shapes {list(left.shape)} and {list(right.shape)} were given. Give "
                "vectors of one dim, such as those of one encoder."
            )
        if self.card.similarity == "cosine":
            left, right = _unit(left), _unit(right)
        scores: NDArray[np.float32] = left @ right.T
        return scores

    def cut(self, layer: int | Cut | None = None, dim: int | None = None) -> "TextEncoder":
        """Return the same model at another cut; its layers are loaded once more.

        Args:
            layer: of the queries, from 0, or a whole cut; that of this encoder by default.
            dim: of the vectors; that of this encoder by default.

        Raises:
            UserError: the model has no such layer or dim.
        """
        if isinstance(layer, Cut):
            return self.cut(layer.layer, layer.dim if dim is None else dim)
        inner = self._inner
        return TextEncoder(
            CutEncoder(
                inner.model,
                self.layer if layer is None else layer,
                self.dim if dim is None else dim,
                device=inner.device,
                dtype=inner.dtype,
                runtime=inner.runtime,
            )
        )

    def save_pretrained(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write a model folder that m2dr, transformers and sentence-transformers open.

        Of a cut it is the smaller model that `m2dr export` writes, whose vectors are those of the
        queries: other layers and dims are left out. Where the model trained such queries to search
        documents of its last layer, save that cut too, for the documents. Layer 0 is a table and no
        model, so that the whole model is written.

        Args:
            folder: to write; empty or missing.
            force: whether a cut that was neither fitted nor trained is written too.

        Returns:
            The folder.

        Raises:
            UserError: the folder is not empty, or cannot be written, or the cut was neither fitted
                nor trained.
        """
        from m2dr.commands.export import save_cut

        out = Path(path_or_name("folder", folder))
        save_cut(self.name, Cut(self.layer, self.dim), self.document_layer, out, force)
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
        from m2dr.commands.export import save_model
        from m2dr.commands.push_model import push_model
        from m2dr.settings.hub_requests import PushModelRequest

        own = Path(self.name)
        is_whole = max(self.layer, self.document_layer) == self.card.layers
        with TemporaryDirectory() as place:
            if not (is_whole and (own / CARD).is_file()):
                own = Path(place, repo_id.rpartition("/")[2] or "model")
                save_model(self.name, max(self.layer, self.document_layer), own)
            asked = PushModelRequest(own, repo_id, private, revision, commit_message, token)
            return push_model(asked).url


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors of length one; one of length zero stays as it is."""
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    found: NDArray[np.float32] = (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)
    return found
