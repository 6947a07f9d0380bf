"""SMAE: pre-training of small cuts as masked autoencoders, to start a training of them from.

Shapes: B texts, T tokens, H width, K dims of a cut, n masked tokens, V tokens of the vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from m2dr.core.arrays import Int64, Intp
from m2dr.core.records import Cut
from m2dr.training.objective import not_a_number

MaskedTexts = Sequence[tuple[list[int], Intp]]  # ids with masks, and the masked places


class MaskedAutoencoder(nn.Module):
    """For each cut, predict masked tokens twice (Starbucks, section on pre-training).

    Once from the token states of the cut's layer, cut to its prefix; and once by a decoder of one
    layer, which reads the same text with more tokens masked, and in place of the first token the
    cut's embedding, widened by the head. The loss is the mean over cuts of the mean of both cross
    entropies, in nats.

    Args:
        encoder: (ids, mask, layers, tokens, token_layers) to [L, B, H], as Encoder.
        decoder: (inputs_embeds [B, T, H], attention_mask [B, T], first [B, H]) to states
            [B, T, H]: one transformer layer, in which `first` stands for the first token.
        head: (states [n, K], table [V, H]) to logits [n, V]; its `widened` gives [n, H].
        table: the encoder's embeddings.
        cuts: from small to the full model.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        head: Any,  # called and widened
        table: nn.Embedding,
        cuts: Sequence[Cut],
    ) -> None:
        super().__init__()
        self.encoder, self.decoder, self.head = encoder, decoder, head
        self.cuts = tuple(cuts)
        self._table = (table,)  # a tuple: it belongs to the encoder, and is saved once

    def forward(
        self,
        ids: Tensor,
        mask: Tensor,
        places: Tensor,
        fewer_ids: Tensor,
        fewer_places: Tensor,
        truth: Tensor,
        step: int = 0,  # noqa: ARG002  # Trainer passes both; nothing is drawn
        batch: int = 0,  # noqa: ARG002  # the same
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch, in nats, and its parts, detached.

        Args:
            ids: [B, T] what the encoder reads.
            mask: [B, T], 1 for a token and 0 for padding, which stands at the end.
            places: [B, T], True at the tokens that are masked for the encoder.
            fewer_ids: [B, T] what the decoder reads: fewer tokens are left.
            fewer_places: [B, T], True at the tokens that are masked for the decoder.
            truth: [B, T] the tokens as they are.
            step: of the optimiser.
            batch: of the step.
        """
        states: dict[int, Tensor] = {}
        layers = sorted({cut.layer for cut in self.cuts})

        def take(layer: int, found: Tensor) -> None:
            states[layer] = found[places]  # [n, H]

        vectors = self.encoder(ids, mask, layers, tokens=take, token_layers=layers)  # [L, B, H]
        (embeddings,) = self._table
        table = embeddings.weight
        shown = embeddings(fewer_ids)  # [B, T, H]
        parts: dict[str, Tensor] = {}
        for cut in self.cuts:
            logits = self.head(states[cut.layer][:, : cut.dim], table)
            parts[f"{cut}/mlm"] = cross_entropy(logits, truth[places])
            first = self.head.widened(vectors[layers.index(cut.layer)][:, : cut.dim])
            again = self.decoder(shown, mask, first)[fewer_places]
            parts[f"{cut}/mae"] = cross_entropy(self.head(again, table), truth[fewer_places])
        total = torch.stack(list(parts.values())).mean()
        found = {name: part.detach() for name, part in parts.items()}
        if not torch.isfinite(total.detach()):
            raise not_a_number(found)
        return total, found


def masked_batch(
    rows: Sequence[Sequence[int]],
    encoder: MaskedTexts,
    decoder: MaskedTexts,
    pad: Callable[[Sequence[Sequence[int]]], tuple[Int64, Int64]],
) -> dict[str, object]:
    """Return the arguments of a `MaskedAutoencoder` for some texts.

    Args:
        rows: the tokens as they are.
        encoder: what the encoder reads of each text, and the places that are masked.
        decoder: the same of the decoder.
        pad: rows to ids and mask, both [B, T].
    """
    truth, mask = pad(rows)

    def places(masked: MaskedTexts) -> Tensor:
        found = np.zeros(truth.shape, dtype=np.bool_)
        for row, (_, chosen) in enumerate(masked):
            found[row, chosen] = True
        return torch.from_numpy(found)

    return {
        "ids": torch.from_numpy(pad([shown for shown, _ in encoder])[0]),
        "mask": torch.from_numpy(mask),
        "places": places(encoder),
        "fewer_ids": torch.from_numpy(pad([shown for shown, _ in decoder])[0]),
        "fewer_places": places(decoder),
        "truth": torch.from_numpy(truth),
    }
