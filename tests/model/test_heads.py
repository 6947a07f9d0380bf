from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from m2dr.core.errors import UserError
from m2dr.core.files import write_record
from m2dr.model.checkpoint import (
    export_cut,
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


def test_a_head_multiplies_in_float32_under_autocast(encoder: Encoder) -> None:
    encoder.add_exit_heads([1])
    torch.nn.init.normal_(encoder.exit_heads["1"].weight)
    with torch.autocast("cpu", torch.bfloat16):
        mapped = encoder(IDS, MASK, [1])
        weight = encoder.exit_heads.pop("1").weight
        pooled = encoder(IDS, MASK, [1])

    torch.testing.assert_close(mapped, pooled @ weight.T, atol=1e-5, rtol=1e-5)


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


def test_a_cut_encoder_holds_the_heads_of_its_blocks_alone(headed: Path) -> None:
    full, _ = load(headed)
    cut, _ = load(headed, layer=2)

    assert set(cut.exit_heads) == {"1"}
    torch.testing.assert_close(cut(IDS, MASK), full(IDS, MASK)[:2], atol=1e-5, rtol=1e-5)


def test_a_model_without_heads_leaves_none_of_an_earlier_one_behind(
    headed: Path, tmp_path: Path, backbone: Callable[[str], Path]
) -> None:
    export_cut(headed, 3, tmp_path / "cut")
    encoder, tokenizer = load(backbone("bert"))

    save(encoder, tokenizer, encoder.card, tmp_path / "cut")

    assert load(tmp_path / "cut")[0].card.exit_head == "none"
    assert not list((tmp_path / "cut").glob("**/*Dense*"))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\x00", "exit_heads.safetensors cannot be read"),
        ({"elsewhere.1": torch.eye(32)}, "exit_heads.safetensors cannot be read"),
        ({"exit_heads.1.weight": torch.eye(8)}, r"layer 1 .* is \[8, 8\]; .* have 32 dims"),
    ],
)
def test_heads_that_are_damaged_are_named(headed: Path, content: object, sentence: str) -> None:
    path = headed / "exit_heads.safetensors"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        save_file(content, path)
    card = read_card_file(headed / CARD)
    write_record(headed / CARD, replace(card, fingerprint=fingerprint(headed, card)))

    with pytest.raises(UserError, match=sentence):
        load(headed)
