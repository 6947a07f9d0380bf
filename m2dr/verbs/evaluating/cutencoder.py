"""One cut of a model as other tools want an encoder: texts in, finished vectors out."""

# Shapes in this file:
#   N texts, D coordinates of the cut.

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from m2dr.index.vectors import prefixes
from m2dr.model import checkpoint
from m2dr.model.counts import parameters_of
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.records.arguments import whole_number
from m2dr.records.card import ModelCard
from m2dr.records.cut import Cut
from m2dr.records.texts import Side
from m2dr.verbs.encoding import embed_texts
from m2dr.verbs.models import document_layer, names_of


def asked_cut(card: ModelCard, layer: int | None, dim: int | None, model: str) -> Cut:
    """Return the cut that a layer and a dim mean, either of them all of the model's when None.

    Args:
        card: of the model.
        layer: from 0.
        dim: from 1.
        model: folder or id, for the command in a refusal.

    Raises:
        UserError: the model has no such cut.
    """
    whole = card.whole
    layer = None if layer is None else whole_number("layer", layer, 0)
    dim = None if dim is None else whole_number("dim", dim, 1)
    cut = Cut(whole.layer if layer is None else layer, whole.dim if dim is None else dim)
    return card.check(cut, model)


class CutEncoder:
    """Queries, documents and other texts as vectors of one cut.

    Vectors are cut and then, where the model compares by cosine, made of length one: as its folder
    gives them in sentence-transformers, so that a dot product is right too.
    """

    def __init__(
        self,
        model: str,
        layer: int | None = None,
        dim: int | None = None,
        device: str = "auto",
        dtype: str = "auto",
    ) -> None:
        """Load the blocks that the cut needs.

        Args:
            model: folder or id.
            layer: layers that a text runs through, from 0; all of them when None. Documents of a
                query run through those that the model was trained to be searched by.
            dim: coordinates to keep; all when None.
            device: auto, cpu, cuda or cuda:N.
            dtype: auto, fp32 or bf16.

        Raises:
            UserError: no such model, or it has no such cut.
        """
        self.card = checkpoint.read_card(model)
        self.name = names_of([model])[0]
        self.cut = asked_cut(self.card, layer, dim, model)
        self._document_layer = document_layer(self.card, self.cut.layer)
        self._deepest = max(self.cut.layer, self._document_layer)
        chosen = choose_device(device)
        self._encoder, self._tokenizer = checkpoint.load(
            model, self._deepest, chosen, choose_dtype(dtype, chosen)
        )

    @property
    def parameters(self) -> int:
        """How many numbers queries and documents of the cut are encoded by."""
        return parameters_of(self._encoder, self._deepest)

    def queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Texts that ask, [N, D]."""
        return self._embed(texts, "query", self.cut.layer)

    def documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Texts to be found by such queries, [N, D]."""
        return self._embed(texts, "document", self._document_layer)

    def texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Texts that are compared with each other, [N, D]: documents, by the layer of the cut."""
        return self._embed(texts, "document", self.cut.layer)

    def _embed(self, texts: Sequence[str], side: Side, layer: int) -> NDArray[np.float32]:
        vectors = embed_texts(self._encoder, self._tokenizer, texts, side, [layer])[0]
        return prefixes(vectors, self.cut.dim, self.card.similarity)
