"""Tokens to embeddings: every layer from one pass, or only the first blocks."""

# Shapes in this room:
#   L layers asked for, B texts, T tokens, H width.

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from m2dr.errors import UserError
from m2dr.model.backbones import backbone_of
from m2dr.model.exits import listening, pool, watch
from m2dr.records.card import ModelCard


class Encoder(nn.Module):
    """One embedding per text and per layer.

    Holds as many blocks as it was loaded with: a cut encoder has no others in memory, and gives
    the vectors that the whole one gives at these layers.
    """

    def __init__(self, transformer: PreTrainedModel, card: ModelCard) -> None:
        super().__init__()
        backbone = backbone_of(transformer.config)
        self.transformer = transformer
        self.card = card
        self.blocks = len(backbone.blocks_of(transformer))
        self._final_norm_of = backbone.final_norm_of
        self._options = {"use_cache": False} if backbone.causal else {}
        watch(backbone.blocks_of(transformer))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, layers: Sequence[int] | None = None
    ) -> Tensor:
        """Embed each text at each layer.

        Args:
            input_ids: [B, T].
            attention_mask: [B, T], 1 for a token and 0 for padding, which stands at the end.
            layers: which to return, increasing; all blocks when None.

        Returns:
            [L, B, H] float32, not normalised; the state after `layers[i]` blocks at index i.
        """
        wanted = tuple(layers or range(1, self.blocks + 1))
        if wanted[-1] > self.blocks:
            raise UserError(f"Layer {wanted[-1]} was asked for; {self.blocks} are loaded.")
        pooled: dict[int, Tensor] = {}
        norm = self._final_norm_of(self.transformer)

        def take(layer: int, states: Tensor) -> None:
            if layer in wanted:
                pooled[layer] = pool(states, attention_mask, self.card.pooling, norm)

        with listening(take):
            self.transformer(input_ids=input_ids, attention_mask=attention_mask, **self._options)
        return torch.stack([pooled[layer] for layer in wanted])

    @torch.inference_mode()
    def embed(
        self,
        input_ids: NDArray[np.int64],
        attention_mask: NDArray[np.int64],
        layers: Sequence[int] | None = None,
    ) -> NDArray[np.float32]:
        """The same from arrays to arrays, without gradients: [B, T] twice to [L, B, H]."""
        ids = torch.from_numpy(input_ids).to(self.device)
        mask = torch.from_numpy(attention_mask).to(self.device)
        vectors: NDArray[np.float32] = self(ids, mask, layers).cpu().numpy()
        return vectors
