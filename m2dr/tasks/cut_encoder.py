"""Encode any number of queries or documents at one cut, or at several layers in one pass.

Shapes: L layers, N texts, D dims of a cut.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from m2dr.core.arguments import path_or_name
from m2dr.core.errors import UserError
from m2dr.core.progress import say
from m2dr.core.records import Cut, Side
from m2dr.data.pydocs import cache_folder
from m2dr.index.vectors import prefixes
from m2dr.model.folder import read_card
from m2dr.model.tokenizer import tokenize
from m2dr.tasks.encode_texts import embed_tokens
from m2dr.tasks.models import document_layer, find_cut, names_of
from m2dr.tasks.query_encoder import LayerEncoder, LruCache, RowEncoder, open_query_encoder

if TYPE_CHECKING:
    from m2dr.model.document_encoder import BatchEncoder

AT_ONCE = 4096  # texts that are tokenised at a time, and sorted by length into batches
_OPEN = 3  # encoders of different layers that are kept
Vectors = NDArray[np.float32]


class CutEncoder:
    """Encodes queries, documents and other texts at one cut; thread-safe.

    Vectors are cut and, where the model compares by cosine, then scaled to length one, as
    sentence-transformers gives them: dot products rank alike. They are those of `m2dr index` and
    `m2dr search`.
    """

    def __init__(
        self,
        model: str,
        layer: int | None = None,
        dim: int | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        runtime: str = "torch",
    ) -> None:
        """Load the layers that queries of the cut need; those of documents when they are needed.

        Args:
            model: folder or id.
            layer: layers that queries run through, from 0; all of them when None. Documents run
                through those that the model trained such queries to search.
            dim: dims to keep; all when None.
            device: auto, cpu, cuda or cuda:N.
            dtype: auto, fp32 or bf16.
            runtime: torch, onnx, openvino or auto; layer 0 needs none of them.

        Raises:
            UserError: no such model, or it has no such cut.
        """
        self.model = path_or_name("model", model)
        self.card = read_card(self.model)
        self.name = names_of([self.model])[0]
        self.cut = find_cut(self.card, layer, dim, self.model)
        self.device, self.dtype, self.runtime = device, dtype, runtime
        self._tokenizing = threading.Lock()  # a tokenizer keeps its last length inside
        self._encoders = LruCache(self._open, _OPEN)
        self._graphs = LruCache(self._open_graph, 1)
        self._encoders.get(self.cut.layer)

    @property
    def document_layer(self) -> int:
        """Layer of the documents that queries of the cut were trained to search."""
        return document_layer(self.card, self.cut.layer)

    @property
    def parameters(self) -> int:
        """Number of weights that encode queries and documents of the cut."""
        from m2dr.model.checkpoint import load
        from m2dr.model.encoder import parameters_of

        deepest = max(self.cut.layer, self.document_layer)
        return parameters_of(load(self.model, deepest)[0], deepest)

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of queries, [N, D]."""
        return self._at(texts, "query", self.cut.layer)

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of documents that such queries search, [N, D]."""
        return self._at(texts, "document", self.document_layer)

    def texts(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts to compare with each other, as documents, [N, D]."""
        return self._at(texts, "document", self.cut.layer)

    def _at(self, texts: Sequence[str], side: Side, layer: int) -> Vectors:
        found: Vectors = self.vectors(texts, side, [layer])[0]
        return found

    def vectors(
        self,
        texts: Sequence[str],
        side: Side,
        layers: Sequence[int],
        budget: int | None = None,
        advance: Callable[[int], None] = lambda _: None,
        dim: int | None = None,
    ) -> Vectors:
        """Return the vectors of texts at some layers, [L, N, D]; arguments as for `stream`."""
        found = np.empty((len(layers), len(texts), dim or self.cut.dim), np.float32)
        parts = (texts[start : start + AT_ONCE] for start in range(0, len(texts), AT_ONCE))
        end = 0
        for part in self.stream(parts, side, layers, budget, advance, dim):
            start, end = end, end + part.shape[1]
            found[:, start:end] = part
        return found

    def stream(
        self,
        parts: Iterable[Sequence[str]],
        side: Side,
        layers: Sequence[int],
        budget: int | None = None,
        advance: Callable[[int], None] = lambda _: None,
        dim: int | None = None,
    ) -> Iterator[Vectors]:
        """Yield the vectors of each part of the texts, [L, n, D], while the next is tokenised.

        Args:
            parts: of n texts each, in the order of the texts.
            side: whether they are queries or documents.
            layers: L layers; all of them come from one pass, but queries in a runtime other than
                torch, and any text in onnx, take one each.
            budget: tokens of a batch, padding included; by default as many as suit the device.
            advance: receives the number of texts of each batch.
            dim: dims to keep; those of the cut by default.

        Raises:
            UserError: the model has no such layer or dim.
        """
        dim = dim or self.cut.dim
        for layer in layers:
            self.card.check(Cut(layer, dim), self.model)
        if budget is not None and budget < 1:
            raise UserError(f"{budget} tokens per batch were asked for. Ask for at least one.")
        deepest = self._encoders.get(max(layers))

        def tokens(part: Sequence[str]) -> list[list[int]]:
            with self._tokenizing:
                return tokenize(self.card, deepest.tokenizer, part, side)

        for rows in _ahead(tokens, parts):
            vectors = self._embed(deepest, rows, side, layers, budget, advance)
            cut = [prefixes(one, dim, self.card.similarity) for one in vectors]
            yield np.stack(cut)

    def _embed(
        self,
        deepest: RowEncoder,
        rows: list[list[int]],
        side: Side,
        layers: Sequence[int],
        budget: int | None,
        advance: Callable[[int], None],
    ) -> Vectors:
        """Return the vectors of token rows at some layers, [L, n, H], not normalised."""
        alone = len(rows) == 1 and len(layers) == 1  # one query has no batches to be sorted into
        if isinstance(deepest, LayerEncoder) and deepest.opened.name == "torch" and not alone:
            from m2dr.model.encoder import Encoder

            encoder, pad_id = deepest.opened.runtime, deepest.opened.tokenizer.pad_id
            assert isinstance(encoder, Encoder)  # what runtime torch opens
            return embed_tokens(encoder, rows, pad_id, layers, advance, budget)
        if self._in_graphs(deepest, side) and not alone:
            graph, pad_id = self._graphs.get(max(layers))
            return embed_tokens(graph, rows, pad_id, layers, advance, budget)
        found = np.stack([self._encoders.get(layer).embed_ids(rows) for layer in layers])
        advance(len(rows))
        return found

    @staticmethod
    def _in_graphs(deepest: RowEncoder, side: Side) -> bool:
        """Whether documents run several batches at a time, as `m2dr index` runs them."""
        opened = isinstance(deepest, LayerEncoder) and deepest.opened.name == "openvino"
        return side == "document" and opened

    def _open_graph(self, layer: int) -> "tuple[BatchEncoder, int]":
        from m2dr.model.document_encoder import OPENVINO, DocumentSource

        source = DocumentSource(self.model, layer, self.device, self.dtype, cache_folder())
        encoder, tokenizer = source.open(OPENVINO)
        return encoder, tokenizer.pad_id

    def _open(self, layer: int) -> RowEncoder:
        runtime = "torch" if layer == 0 else self.runtime
        return open_query_encoder(self.model, layer, runtime, self.device, self.dtype, say).encoder


def _ahead(
    tokens: Callable[[Sequence[str]], list[list[int]]], parts: Iterable[Sequence[str]]
) -> Iterator[list[list[int]]]:
    """Yield the token rows of each part; another thread tokenises the next meanwhile."""
    source = iter(parts)
    part = next(source, None)
    if part is None:
        return
    rows, part = tokens(part), next(source, None)
    if part is None:  # a single query is not worth a thread
        yield rows
        return
    with ThreadPoolExecutor(1, "tokenise") as pool:
        while part is not None:
            coming = pool.submit(tokens, part)
            yield rows
            rows, part = coming.result(), next(source, None)
    yield rows
