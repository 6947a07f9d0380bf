"""`m2dr.Encoder`: the vectors of queries and documents at any cut of a model.

Shapes: N texts, Q queries, D dims of the cut.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from m2dr.api.documents import Item, contents
from m2dr.api.encode_options import (
    INSTEAD,
    OPEN_INSTEAD,
    OPEN_SAME,
    SAME,
    SIDES,
    EncodeOptions,
    plan_encoding,
    words,
)
from m2dr.api.keywords import understood
from m2dr.core.arguments import one_of, path_or_name, string, whole_number
from m2dr.core.errors import UserError
from m2dr.core.progress import progress
from m2dr.core.records import Cut, ModelCard, Side
from m2dr.model.hub import find_folder
from m2dr.tasks.encoder import CutEncoder

if TYPE_CHECKING:
    import torch

Vectors = NDArray[np.floating[Any]]


class TextEncoder:
    """A model cut to a layer and a dim, which encodes queries and documents; thread-safe.

    It is `m2dr.Encoder`. Where the model compares by cosine, vectors have length one.

        model = m2dr.Encoder.from_pretrained("minilm", layer=4, dim=128)
        scores = model.similarity(model.encode_queries(queries), model.encode_documents(documents))
    """

    def __init__(self, cut_encoder: CutEncoder, *_: object, **__: object) -> None:
        """Wrap an open encoder; `from_pretrained` opens one.

        Raises:
            UserError: it is something else, such as the name of a model.
        """
        if not isinstance(cut_encoder, CutEncoder):
            asked = repr(str(cut_encoder)) if isinstance(cut_encoder, str | PathLike) else "NAME"
            raise UserError(f"Open a model by m2dr.Encoder.from_pretrained({asked}).")
        self._inner = cut_encoder

    @classmethod
    @understood("m2dr.Encoder.from_pretrained", OPEN_SAME, OPEN_INSTEAD)
    def from_pretrained(
        cls,
        name: str | PathLike[str],
        layer: int | None = None,
        dim: int | None = None,
        *,
        device: str | None = "auto",
        dtype: str | None = "auto",
        runtime: str = "torch",
        revision: str | None = "",
        token: str | bool | None = "",
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
            token: of Hugging Face, for private models; that of the login by default.
            cache_dir: folder of the local copies of Hugging Face models.

        Names that sentence-transformers has for these are understood too, such as `truncate_dim`,
        `backend` and `cache_folder`.

        Raises:
            UserError: no such model, or it has no such layer or dim; or there is no such argument.
        """
        model = path_or_name("name", name)
        source: dict[str, Any] = {
            "revision": string("revision", revision or ""),
            "token": string("token", "" if token is True else token or ""),
            "cache_dir": None if cache_dir is None else Path(path_or_name("cache_dir", cache_dir)),
        }
        if any(source.values()):
            model = str(find_folder(model, **source))
        how = {"device": device or "auto", "dtype": dtype or "auto", "runtime": runtime}
        return cls(CutEncoder(model, layer, dim, **words(how)))

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

    def get_sentence_embedding_dimension(self) -> int:
        """Return `dim`, as sentence-transformers calls it."""
        return self.dim

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

    @overload
    def encode_queries(
        self,
        texts: str | Iterable[str],
        *,
        convert_to_tensor: Literal[True],
        **options: Unpack[EncodeOptions],
    ) -> "torch.Tensor": ...

    @overload
    def encode_queries(
        self,
        texts: str | Iterable[str],
        *,
        convert_to_tensor: Literal[False] = False,
        **options: Unpack[EncodeOptions],
    ) -> Vectors: ...

    @understood("encode_queries", SAME, INSTEAD)
    def encode_queries(
        self,
        texts: str | Iterable[str],
        *,
        convert_to_tensor: bool = False,
        **options: Unpack[EncodeOptions],
    ) -> "Vectors | torch.Tensor":
        """Return the vectors of queries, [N, D], or [D] for a single string.

        Each gets the query prompt of the model and is cut at its query length.

        Args:
            texts: queries, or one query.
            convert_to_tensor: whether a tensor of torch is returned.
            options: as `encode` takes them.

        Raises:
            UserError: a query is no string.
        """
        found: Vectors | torch.Tensor = self._encode(
            texts, [self.layer], "query", convert_to_tensor, options
        )[0]
        return found

    encode_query = encode_queries  # as sentence-transformers names it

    @overload
    def encode_documents(
        self,
        texts: Item | Iterable[Item],
        *,
        convert_to_tensor: Literal[True],
        **options: Unpack[EncodeOptions],
    ) -> "torch.Tensor": ...

    @overload
    def encode_documents(
        self,
        texts: Item | Iterable[Item],
        *,
        convert_to_tensor: Literal[False] = False,
        **options: Unpack[EncodeOptions],
    ) -> Vectors: ...

    @understood("encode_documents", SAME, INSTEAD)
    def encode_documents(
        self,
        texts: Item | Iterable[Item],
        *,
        convert_to_tensor: bool = False,
        **options: Unpack[EncodeOptions],
    ) -> "Vectors | torch.Tensor":
        """Return the vectors of documents, [N, D], or [D] for a single one.

        Each gets the document prompt of the model and is cut at its document length.

        Args:
            texts: documents, or one: strings, or dicts with a text and perhaps a title, which
                stands before the text.
            convert_to_tensor: whether a tensor of torch is returned.
            options: as `encode` takes them.

        Raises:
            UserError: a document is neither a string nor a dict with a text.
        """
        found: Vectors | torch.Tensor = self._encode(
            texts, [self.document_layer], "document", convert_to_tensor, options
        )[0]
        return found

    encode_document = encode_documents  # as sentence-transformers names it

    @overload
    def encode(
        self,
        texts: Item | Iterable[Item],
        *,
        layer: int | None = None,
        convert_to_tensor: Literal[False] = False,
        side: Side | None = None,
        **options: Unpack[EncodeOptions],
    ) -> Vectors: ...

    @overload
    def encode(
        self,
        texts: Item | Iterable[Item],
        *,
        layer: Sequence[int],
        convert_to_tensor: Literal[False] = False,
        side: Side | None = None,
        **options: Unpack[EncodeOptions],
    ) -> dict[int, Vectors]: ...

    @overload
    def encode(
        self,
        texts: Item | Iterable[Item],
        *,
        layer: int | None = None,
        convert_to_tensor: Literal[True],
        side: Side | None = None,
        **options: Unpack[EncodeOptions],
    ) -> "torch.Tensor": ...

    @overload
    def encode(
        self,
        texts: Item | Iterable[Item],
        *,
        layer: Sequence[int],
        convert_to_tensor: Literal[True],
        side: Side | None = None,
        **options: Unpack[EncodeOptions],
    ) -> "dict[int, torch.Tensor]": ...

    @understood("encode", SAME | {"layers": "layer"}, INSTEAD)
    def encode(
        self,
        texts: Item | Iterable[Item],
        *,
        layer: int | Sequence[int] | None = None,
        convert_to_tensor: bool = False,
        side: Side | None = None,
        **options: Unpack[EncodeOptions],
    ) -> "Vectors | torch.Tensor | dict[int, Vectors] | dict[int, torch.Tensor]":
        """Return the vectors of texts at one layer, or at several from one pass.

        Args:
            texts: N texts, or one; documents may be dicts with a text and a title.
            layer: layers that they run through, or a list of such numbers; that of the side by
                default.
            convert_to_tensor: whether tensors of torch are returned, on the processor.
            side: query or document, which have prompts and lengths of their own; document by
                default.
            options: precision, show_progress_bar, tokens_per_batch, and the other arguments that
                `m2dr.api.encode_options.EncodeOptions` describes; they mean what they mean in
                sentence-transformers.

        Returns:
            [N, D], or [D] for a single text; of several layers a dict from layer to such an array.

        Raises:
            UserError: the model has no such layer, a text is of another type, or there is no such
                argument.
        """
        if side is not None:
            one_of("side", side, get_args(Side))
        named = SIDES.get(str(options.get("prompt_name")).lower(), "document")
        layers = self._layers(layer, side or named)
        found = self._encode(texts, layers, side, convert_to_tensor, options)
        return dict(zip(layers, found, strict=True)) if isinstance(layer, Sequence) else found[0]

    def _encode(
        self,
        texts: Item | Iterable[Item],
        layers: list[int],
        side: Side | None,
        as_tensors: bool,
        options: EncodeOptions,
    ) -> list[Any]:
        """Return the vectors of texts at each of some layers."""
        plan = plan_encoding(self.card, self.dim, self.device, side, options)
        alone = isinstance(texts, str | Mapping)
        given = contents([texts] if alone else texts, plan.side)  # type: ignore[list-item]  # a single one, or many
        shown = progress("Encoding", len(given), "texts") if plan.shows_progress else nullcontext()
        with shown as advance:
            told = advance or (lambda _: None)
            vectors = self._inner.vectors(
                given, plan.side, layers, plan.tokens_per_batch, told, plan.dim
            )
        if plan.normalise:
            vectors = np.stack([_unit(one) for one in vectors])
        vectors = vectors.astype(plan.precision, copy=False)
        found = [one[0] if alone else one for one in vectors]
        if not as_tensors:
            return found
        from m2dr.model.devices import as_tensor

        return [as_tensor(one) for one in found]

    def _layers(self, layer: int | Sequence[int] | None, side: Side) -> list[int]:
        """Return the layers to encode at, each once."""
        if layer is None:
            return [self.layer if side == "query" else self.document_layer]
        asked = layer if isinstance(layer, Sequence) else [layer]
        numbers = [whole_number("layer", one, 0) for one in asked]
        if not numbers:
            raise UserError("layer = [] was asked for. Give at least one layer, such as [2, 4].")
        return sorted(set(numbers))

    @understood("similarity", {"embeddings1": "queries", "embeddings2": "documents"})
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

    @understood("cut", {"layers": "layer", "truncate_dim": "dim", "dims": "dim"})
    def cut(self, layer: int | str | Cut | None = None, dim: int | None = None) -> "TextEncoder":
        """Return the same model at another cut; its layers are loaded once more.

        Args:
            layer: of the queries, from 0, or a whole cut, also as "L4D128"; this one's by default.
            dim: of the vectors; that of this encoder by default.

        Raises:
            UserError: the model has no such layer or dim.
        """
        if isinstance(layer, str):
            layer = Cut.parse(layer)
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

    @understood(
        "save_pretrained",
        dict.fromkeys(("path", "save_directory", "output_path", "out"), "folder"),
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
        from m2dr.tasks.export import save_cut

        out = Path(path_or_name("folder", folder))
        save_cut(self.name, Cut(self.layer, self.dim), self.document_layer, out, force)
        return out

    @understood("push_to_hub", {"repo_name": "repo_id", "name": "repo_id"})
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
        from m2dr.core.requests import PushModelRequest
        from m2dr.tasks.push_model import push_layers

        for name, value in (
            ("repo_id", repo_id), ("revision", revision), ("commit_message", commit_message),
            ("token", token),
        ):  # fmt: skip
            string(name, value)
        own = Path(self.name)
        asked = PushModelRequest(own, repo_id, private, revision, commit_message, token)
        return push_layers(asked, max(self.layer, self.document_layer)).url


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors of length one; one of length zero stays as it is."""
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    found: NDArray[np.float32] = (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)
    return found
