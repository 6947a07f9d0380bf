"""SMAE: one masked autoencoder for several cuts, to begin a training of small cuts from."""

# Shapes in this room:
#   B texts, T tokens, H width, n hidden tokens, C cuts, V words.

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from m2dr.records.cut import Cut
from m2dr.train.objective import not_a_number


class MaskedAutoencoder(nn.Module):
    """For each cut, guess hidden words twice (Starbucks, section on pre-training).

    Once from the token states of the cut's layer, cut to its prefix; and once by a decoder of one
    block, which sees the same text with more hidden, and the cut's embedding in the place of the
    first token. The loss is the mean over cuts of the mean of both cross entropies, in nats.

    Args:
        encoder: (ids, mask, layers, tokens, token_layers) to [L, B, H], as Encoder.
        decoder: (inputs_embeds [B, T, H], attention_mask) to an output whose first field is
            [B, T, H]: one transformer block.
        head: (states [n, K], words [V, H]) to logits [n, V].
        words: the module that holds the encoder's word embeddings.
        cuts: from small to whole.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        head: nn.Module,
        words: nn.Embedding,
        cuts: Sequence[Cut],
    ) -> None:
        super().__init__()
        self.encoder, self.decoder, self.head = encoder, decoder, head
        self.cuts = tuple(cuts)
        self._words = (words,)  # a tuple: they belong to the encoder, and are saved with it once

    def forward(
        self,
        ids: Tensor,
        mask: Tensor,
        places: Tensor,
        fewer_ids: Tensor,
        fewer_places: Tensor,
        truth: Tensor,
        step: int = 0,  # noqa: ARG002  # a learner is told; nothing is drawn here
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of a batch and its parts, detached.

        Args:
            ids: [B, T] what the encoder sees.
            mask: [B, T], 1 for a token and 0 for padding, which stands at the end.
            places: [B, T], True where the encoder's states have to guess.
            fewer_ids: [B, T] what the decoder sees: more is hidden.
            fewer_places: [B, T], True where the decoder has to guess.
            truth: [B, T] the tokens as they are.
            step: of the optimiser.
        """
        states: dict[int, Tensor] = {}
        layers = sorted({cut.layer for cut in self.cuts})

        def take(layer: int, found: Tensor) -> None:
            states[layer] = found[places]  # [n, H]

        vectors = self.encoder(ids, mask, layers, tokens=take, token_layers=layers)  # [L, B, H]
        table = self._words[0].weight
        shown = self._words[0](fewer_ids)  # [B, T, H]
        parts: dict[str, Tensor] = {}
        for cut in self.cuts:
            guess = self.head(states[cut.layer][:, : cut.dim], table)
            parts[f"{cut}/mlm"] = cross_entropy(guess, truth[places])
            vector = vectors[layers.index(cut.layer)]
            again = self._decode(shown, mask, vector, cut.dim)[fewer_places]
            parts[f"{cut}/mae"] = cross_entropy(self.head(again, table), truth[fewer_places])
        total = torch.stack(list(parts.values())).mean()
        found = {name: part.detach() for name, part in parts.items()}
        if not torch.isfinite(total.detach()):
            raise not_a_number(found)
        return total, found

    def _decode(self, shown: Tensor, mask: Tensor, vector: Tensor, dim: int) -> Tensor:
        """[B, T, H] of the decoder, which sees only the first `dim` coordinates of the vector."""
        first = torch.zeros_like(vector)
        first[:, :dim] = vector[:, :dim]
        seen = torch.cat([first[:, None].to(shown.dtype), shown[:, 1:]], dim=1)
        states: Tensor = self.decoder(inputs_embeds=seen, attention_mask=mask)[0]
        return states


Ints = NDArray[np.int64]
Hidden = Sequence[tuple[list[int], NDArray[np.intp]]]  # what is shown of a text, what to guess


def masked_batch(
    rows: Sequence[Sequence[int]],
    encoder: Hidden,
    decoder: Hidden,
    pad: Callable[[Sequence[Sequence[int]]], tuple[Ints, Ints]],
) -> dict[str, object]:
    """The arguments of a MaskedAutoencoder for some texts.

    Args:
        rows: the tokens as they are.
        encoder: what the encoder sees of each text, and the places that it has to guess.
        decoder: the same of the decoder.
        pad: rows to ids and mask, both [B, T].
    """
    truth, mask = pad(rows)

    def places(hidden: Hidden) -> Tensor:
        found = np.zeros(truth.shape, dtype=np.bool_)
        for row, (_, chosen) in enumerate(hidden):
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
