from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from world import load_plain

from m2dr.model.backbones import BACKBONES, cut_config
from m2dr.model.checkpoint import load

IDS = torch.tensor([[2, 7, 9, 11, 20, 3], [2, 8, 3, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("model_type", BACKBONES)
def test_token_states_are_those_that_a_backbone_of_n_layers_gives(
    model_type: str, pooling: str, backbone: Callable[[str], Path]
) -> None:
    folder = backbone(model_type)
    encoder, _ = load(folder)
    encoder.card = replace(encoder.card, pooling=pooling)
    heard: dict[int, Tensor] = {}

    vectors = encoder(IDS, MASK, [1, 2], tokens=heard.__setitem__, token_layers=[4, 1])

    assert list(heard) == [1, 4]
    torch.testing.assert_close(vectors, encoder(IDS, MASK)[:2], atol=1e-6, rtol=1e-6)
    for layer, states in heard.items():
        shallow = load_plain(
            folder, config=cut_config(encoder.transformer.config, layer), dtype=torch.float32
        ).eval()
        alone = shallow(input_ids=IDS, attention_mask=MASK).last_hidden_state
        real = MASK.bool()
        torch.testing.assert_close(states[real], alone[real], atol=1e-5, rtol=1e-5)
        assert states.requires_grad
