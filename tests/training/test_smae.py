"""The loss of SMAE, compared with a naive one, text by text, as in its public code."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import public_code as public
import pytest
import torch
from referee import same_gradients
from torch import Tensor, nn
from transformers import AutoModel

from m2dr.core.records import Cut
from m2dr.model.checkpoint import load
from m2dr.model.mlm import FirstTokenDecoder, MaskedHead, remove_word_embeddings
from m2dr.training.smae import MaskedAutoencoder, masked_batch

B, T, H, V = 3, 5, 8, 20
CUTS = (Cut(1, 2), Cut(2, 4), Cut(3, 8))


class Blocks(nn.Module):
    """Three layers that mix tokens; the embedding is the first token's state."""

    def __init__(self, words: nn.Embedding) -> None:
        super().__init__()
        self.words = words
        self.blocks = nn.ModuleList(nn.Linear(H, H) for _ in range(3))

    def forward(self, ids: Tensor, mask: Tensor, layers, tokens, token_layers) -> Tensor:
        states, found = self.words(ids), []
        for layer, block in enumerate(self.blocks, start=1):
            mean = (states * mask[..., None]).sum(1, keepdim=True) / mask.sum(1)[:, None, None]
            states = torch.tanh(block(states + mean))
            if layer in token_layers:
                tokens(layer, states)
            found.append(states[:, 0])
        return torch.stack([found[layer - 1] for layer in layers])


class Decoder(nn.Module):
    """One layer that lets every token see the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(H, H)

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor, first: Tensor) -> Tensor:
        seen = torch.cat([first[:, None], inputs_embeds[:, 1:]], dim=1) * attention_mask[..., None]
        return torch.tanh(self.block(seen + seen[:, :1]))


@pytest.fixture
def module() -> MaskedAutoencoder:
    torch.manual_seed(13)
    words = nn.Embedding(V, H)
    head = MaskedHead(H, V, spread=0.5, epsilon=1e-5)
    return MaskedAutoencoder(Blocks(words), Decoder(), head, words, CUTS).double()


def pad(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    ids, mask = np.zeros((len(rows), T), dtype=np.int64), np.zeros((len(rows), T), dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    return ids, mask


ROWS = [[1, 5, 6, 7, 8], [1, 9, 10], [1, 11, 12, 13]]
FEW = [([1, 2, 6, 7, 8], np.array([1])), ([1, 9, 2], np.array([2])), ([1, 2, 2, 13], [1, 2])]
MORE = [([1, 2, 2, 7, 8], np.array([1, 2])), ([1, 2, 2], [1, 2]), ([1, 11, 2, 2], [2, 3])]


def naive(module: MaskedAutoencoder) -> Tensor:
    """(MLM + MAE) / 2 of each cut, and their mean; nothing shared, one text after the other."""
    head, words = module.head, module.encoder.words

    def widened(state: Tensor) -> Tensor:
        of = (head.transform.weight, head.transform.bias, head.norm.weight, head.norm.bias)
        return public.smae_head(state[None], *of, k=len(state), eps=1e-5)[0]

    def cost(state: Tensor, token: int) -> Tensor:
        return -torch.log_softmax(words.weight @ widened(state) + head.bias, 0)[token]

    mlm, mae = [], []
    for cut in CUTS:
        ours, theirs = [], []
        for row, (few, few_places), (more, more_places) in zip(ROWS, FEW, MORE, strict=True):
            states = words.weight[few]
            for block in module.encoder.blocks[: cut.layer]:
                states = torch.tanh(block(states + states.mean(0)))
            ours += [cost(states[p][: cut.dim], row[p]) for p in few_places]
            seen = torch.cat([widened(states[0][: cut.dim])[None], words.weight[more[1:]]])
            again = torch.tanh(module.decoder.block(seen + seen[0]))
            theirs += [cost(again[p], row[p]) for p in more_places]
        mlm.append(torch.stack(ours).mean())
        mae.append(torch.stack(theirs).mean())
    return public.smae_loss(mlm, mae)


def test_loss_and_gradients_are_those_of_the_formula(module: MaskedAutoencoder) -> None:
    loss, parts = module(**masked_batch(ROWS, FEW, MORE, pad))

    expected = naive(module)
    torch.testing.assert_close(loss, expected, atol=1e-10, rtol=1e-10)
    assert set(parts) == {f"{cut}/{kind}" for cut in CUTS for kind in ("mlm", "mae")}
    same_gradients(loss, expected, list(module.parameters()))


# The decoder


IDS = torch.tensor([[2, 7, 9, 11, 20, 3], [2, 8, 3, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])


@torch.no_grad()
def test_what_is_given_stands_behind_the_embeddings_in_the_first_place(tiny_backbone: Path) -> None:
    decoder, _ = load(tiny_backbone, layer=1)
    words = decoder.word_embeddings
    plain = AutoModel.from_pretrained(tiny_backbone).eval()
    remove_word_embeddings(decoder)
    first = torch.randn(2, 32, generator=torch.Generator().manual_seed(13))

    found = FirstTokenDecoder(decoder)(words(IDS), MASK, first)

    states = plain.embeddings(IDS)
    states[:, 0] = first
    seen = MASK[:, None, None, :].bool()
    block = plain.encoder.layer[0](states, attention_mask=seen)
    expected = block if isinstance(block, torch.Tensor) else block[0]
    torch.testing.assert_close(found[MASK.bool()], expected[MASK.bool()], atol=1e-5, rtol=1e-5)
