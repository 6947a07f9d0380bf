from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from m2dr.core.errors import UserError
from m2dr.model.checkpoint import (
    fingerprint,
    load,
    read_card,
    read_card_file,
    save,
)
from m2dr.model.encoder import Encoder
from m2dr.model.hub import CARD

IDS = torch.tensor([[2, 7, 9, 11, 20, 3], [2, 8, 3, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])


@pytest.fixture
def encoder(backbone: Callable[[str], Path]) -> Encoder:
    return load(backbone("bert"))[0]


@pytest.fixture
def headed(backbone: Callable[[str], Path], tmp_path: Path) -> Path:
    """A model folder with random heads on layers 1 and 3 of 4."""
    encoder, tokenizer = load(backbone("bert"))
    encoder.add_exit_heads([1, 3])
    for number, head in enumerate(encoder.exit_heads.parameters()):
        torch.nn.init.normal_(head, generator=torch.Generator().manual_seed(number))
    save(encoder, tokenizer, encoder.card, tmp_path / "headed")
    return tmp_path / "headed"


def test_a_head_changes_nothing_before_training(encoder: Encoder) -> None:
    before = encoder(IDS, MASK)

    encoder.add_exit_heads([1, 2, 3])

    torch.testing.assert_close(encoder(IDS, MASK), before, atol=0, rtol=0)


def test_a_head_maps_the_vectors_of_its_layer_and_no_others(encoder: Encoder) -> None:
    before = encoder(IDS, MASK).detach()
    encoder.add_exit_heads([1, 3])
    weight = torch.randn(32, 32, generator=torch.Generator().manual_seed(1))
    encoder.exit_heads["3"].weight.data = weight

    after = encoder(IDS, MASK).detach()

    naive = [[sum(float(w) * float(x) for w, x in zip(row, vector, strict=True)) for row in weight]
             for vector in before[2]]  # fmt: skip
    torch.testing.assert_close(after[2], torch.tensor(naive), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(after[[0, 1, 3]], before[[0, 1, 3]], atol=0, rtol=0)


def test_the_card_says_what_the_folder_holds_and_the_fingerprint_covers_it(headed: Path) -> None:
    assert read_card(headed).exit_head == "linear"
    assert set(load_file(headed / "exit_heads.safetensors")) == {
        "exit_heads.1.weight",
        "exit_heads.3.weight",
    }
    before = fingerprint(headed, read_card(headed))

    heads = load_file(headed / "exit_heads.safetensors")
    heads["exit_heads.1.weight"] += 1
    save_file(heads, headed / "exit_heads.safetensors")

    assert fingerprint(headed, read_card_file(headed / CARD)) != before
    with pytest.raises(UserError, match="were changed"):
        load(headed)
