"""The loss of SMAE, written with loops over texts and cuts, referees the batched one."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

from m2dr.errors import UserError
from m2dr.model.mlm import MaskedHead
from m2dr.records.cut import Cut
from m2dr.train.smae import MaskedAutoencoder, masked_batch

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
    """One block that lets every token see the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(H, H)

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor) -> tuple[Tensor]:
        seen = inputs_embeds * attention_mask[..., None]
        return (torch.tanh(self.block(seen + seen[:, :1])),)


@pytest.fixture
def learner() -> MaskedAutoencoder:
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


def naive(learner: MaskedAutoencoder) -> Tensor:
    """(MLM + MAE) / 2 of each cut, and their mean; nothing shared, one text after the other."""
    head, words = learner.head, learner.encoder.words

    def cost(state: Tensor, token: int) -> Tensor:
        weight = head.transform.weight[:, : len(state)]
        hidden = gelu(weight @ state + head.transform.bias)
        hidden = layer_norm(hidden, (H,), head.norm.weight, head.norm.bias, 1e-5)
        return -torch.log_softmax(words.weight @ hidden + head.bias, 0)[token]

    losses = []
    for cut in CUTS:
        guesses: dict[str, list[Tensor]] = {"mlm": [], "mae": []}
        for row, (few, few_places), (more, more_places) in zip(ROWS, FEW, MORE, strict=True):
            states = words.weight[few]
            for block in learner.encoder.blocks[: cut.layer]:
                states = torch.tanh(block(states + states.mean(0)))
            guesses["mlm"] += [cost(states[p][: cut.dim], row[p]) for p in few_places]
            first = torch.cat([states[0][: cut.dim], torch.zeros(H - cut.dim).double()])
            seen = torch.cat([first[None], words.weight[more[1:]]])
            again = torch.tanh(learner.decoder.block(seen + seen[0]))
            guesses["mae"] += [cost(again[p], row[p]) for p in more_places]
        losses.append(sum(torch.stack(g).mean() for g in guesses.values()) / 2)
    return torch.stack(losses).mean()


def test_loss_and_gradients_are_those_of_the_formula(learner: MaskedAutoencoder) -> None:
    loss, parts = learner(**masked_batch(ROWS, FEW, MORE, pad))

    expected = naive(learner)
    torch.testing.assert_close(loss, expected, atol=1e-10, rtol=1e-10)
    assert set(parts) == {f"{cut}/{kind}" for cut in CUTS for kind in ("mlm", "mae")}
    weights = list(learner.parameters())
    ours = torch.autograd.grad(loss, weights)
    theirs = torch.autograd.grad(expected, weights)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)


def test_the_coordinates_beyond_every_cut_of_a_layer_learn_nothing_there(
    learner: MaskedAutoencoder,
) -> None:
    learner.cuts = (Cut(3, 4),)

    loss, _ = learner(**masked_batch(ROWS, FEW, MORE, pad))
    loss.backward()

    assert learner.encoder.blocks[2].weight.grad[4:].abs().sum() == 0
    assert learner.encoder.blocks[2].weight.grad[:4].abs().sum() > 0


def test_a_loss_that_is_not_a_number_names_its_part(learner: MaskedAutoencoder) -> None:
    with torch.no_grad():
        learner.decoder.block.weight.fill_(torch.nan)

    with pytest.raises(UserError, match=r"its part L1D2/mae, L2D4/mae, L3D8/mae is nan"):
        learner(**masked_batch(ROWS, FEW, MORE, pad))
