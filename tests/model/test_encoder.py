import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor
from world import load_plain, make_model

from m2dr.core.errors import UserError
from m2dr.model.backbones import BACKBONES, backbone_of, cut_config
from m2dr.model.checkpoint import (
    export_cut,
    fingerprint,
    load,
    open_model,
    read_card,
    read_card_file,
    save,
)
from m2dr.model.devices import set_dropout
from m2dr.model.encoder import DualEncoder
from m2dr.model.folder import ModelFolder
from m2dr.model.hub import CARD
from m2dr.tasks.query import open_queries, plan_of_model

IDS = torch.tensor([[2, 7, 9, 11, 20, 3], [2, 8, 3, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
TEXTS = ["open the file", "a list of numbers and a class of text and a line of words"]


def add_trained_heads(encoder: DualEncoder, layers: Sequence[int]) -> None:
    """Exit heads as a training would leave them: near the identity, and each different."""
    generator = torch.Generator().manual_seed(13)
    encoder.add_exit_heads(layers)
    for head in encoder.exit_heads.parameters():
        head.data += 0.1 * torch.randn(head.shape, generator=generator)


def pooled(states: Tensor, pooling: str) -> Tensor:
    """States [B, T, H] to vectors [B, H], by the Pooling of sentence-transformers."""
    module = Pooling(states.shape[-1], {"last": "lasttoken"}.get(pooling, pooling))
    given = {"token_embeddings": states, "attention_mask": MASK}
    return module(given)["sentence_embedding"]


def padded(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids and mask [B, T] of rows of unlike length."""
    longest = max(map(len, rows))
    ids = np.array([[*row, *[0] * (longest - len(row))] for row in rows])
    mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return ids, mask


@pytest.mark.parametrize("layer", [1, 3, 4])
@pytest.mark.parametrize("model_type", BACKBONES)
def test_layer_n_is_what_a_backbone_of_n_blocks_says(
    model_type: str, layer: int, backbone: Callable[[str], Path]
) -> None:
    folder = backbone(model_type)
    encoder, _ = load(folder)
    shallow = load_plain(
        folder, config=cut_config(encoder.transformer.config, layer), dtype=torch.float32
    ).eval()

    with torch.inference_mode():
        found = encoder(IDS, MASK)[layer - 1]
        states = shallow(input_ids=IDS, attention_mask=MASK).last_hidden_state

    expected = pooled(states, encoder.card.pooling)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model_type", BACKBONES)
def test_layer_0_without_an_exit_is_what_transformers_calls_the_first_hidden_state(
    model_type: str, backbone: Callable[[str], Path]
) -> None:
    encoder, _ = load(backbone(model_type))
    plain = load_plain(backbone(model_type), dtype=torch.float32).eval()

    with torch.inference_mode():
        found, _ = encoder(IDS, MASK, [0, 2])
        given = plain(input_ids=IDS, attention_mask=MASK, output_hidden_states=True)
        states = backbone_of(plain.config).final_norm_of(plain)(given.hidden_states[0])

    expected = pooled(states, encoder.card.pooling)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model_type", BACKBONES)
def test_a_config_that_asks_for_attention_weights_gives_the_same_vectors(
    model_type: str, backbone: Callable[[str], Path], tmp_path: Path
) -> None:
    asking = shutil.copytree(backbone(model_type), tmp_path / "asking")
    config = json.loads((asking / "config.json").read_text())
    (asking / "config.json").write_text(json.dumps({**config, "output_attentions": True}))

    with torch.inference_mode():
        found, expected = (load(each)[0](IDS, MASK) for each in (asking, backbone(model_type)))

    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", [(), (1, 2, 3)], ids=["no-heads", "heads"])
@pytest.mark.parametrize("model_type", BACKBONES)
def test_saving_loading_and_exporting_keep_every_vector(
    model_type: str, heads: Sequence[int], backbone: Callable[[str], Path], tmp_path: Path
) -> None:
    encoder, tokenizer = load(backbone(model_type))
    add_trained_heads(encoder, heads)
    ids, mask = padded(tokenizer(TEXTS, encoder.card.document_length))
    expected = encoder.embed(ids, mask)

    save(encoder, tokenizer, encoder.card, tmp_path / "saved")
    exported = export_cut(open_model(tmp_path / "saved"), 2, tmp_path / "cut")

    again, part = load(tmp_path / "saved")[0], load(tmp_path / "saved", layer=2)[0]
    shallow = load(tmp_path / "cut")[0]
    np.testing.assert_allclose(again.embed(ids, mask), expected, atol=1e-5)
    np.testing.assert_allclose(part.embed(ids, mask), expected[:2], atol=1e-5)
    np.testing.assert_allclose(shallow.embed(ids, mask), expected[:2], atol=1e-5)
    for folder, layer in (("saved", 4), ("cut", 2)) if heads else ():
        theirs = SentenceTransformer(str(tmp_path / folder)).encode(TEXTS)
        np.testing.assert_allclose(theirs, expected[layer - 1], atol=1e-5)
    assert (exported.layers, shallow.layers) == (2, 2)
    assert len(backbone_of(part.transformer.config).layers_of(part.transformer)) == 2


@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize("model_type", BACKBONES)
def test_padding_changes_nothing(
    model_type: str, pooling: str, backbone: Callable[[str], Path]
) -> None:
    encoder, _ = load(backbone(model_type))
    encoder.card = replace(encoder.card, pooling=pooling)

    with torch.inference_mode():
        together = encoder(IDS, MASK)[:, 1]
        alone = encoder(IDS[1:, :3], MASK[1:, :3])[:, 0]

    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


CHECKPOINTED = [name for name in BACKBONES if name != "mpnet"]


@pytest.mark.parametrize("model_type", CHECKPOINTED)
def test_checkpointed_blocks_give_the_same_vectors_and_gradients(
    model_type: str, backbone: Callable[[str], Path]
) -> None:
    def step(checkpointed: bool) -> tuple[Tensor, list[int], dict[str, Tensor]]:
        encoder, _ = load(backbone(model_type))
        encoder.add_exit_heads([2])
        set_dropout(encoder.train(), 0.3)
        encoder.checkpoint_layers(checkpointed)
        torch.manual_seed(13)
        heard: list[int] = []
        vectors = encoder(IDS, MASK, None, lambda layer, _: heard.append(layer), [1, 2, 3, 4])
        (vectors * torch.arange(32)).square().mean().backward()
        return (
            vectors,
            heard,
            {n: p.grad for n, p in encoder.named_parameters() if p.grad is not None},
        )

    (vectors, heard, gradients), plain = step(True), step(False)

    assert heard == [1, 2, 3, 4]
    torch.testing.assert_close(vectors, plain[0], atol=1e-6, rtol=1e-6)
    assert gradients.keys() == plain[2].keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, plain[2][name], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("pooling", ["max", "mean", "cls", "last", "weightedmean"])
def test_a_text_without_a_token_is_zero(
    pooling: str, backbone: Callable[[str], Path], tmp_path: Path
) -> None:
    model = make_model(backbone("qwen2"), tmp_path / "model", pooling=pooling)
    encoder = load(model)
    queries = open_queries(plan_of_model(open_model(model), 4), device="cpu", dtype="fp32")

    for rows in ([[]], [[], []], [[], [5, 6, 7]]):
        vectors = encoder.of_tokens(rows, [1, 4])
        assert vectors.any(-1).tolist() == [[bool(row) for row in rows]] * 2
        np.testing.assert_allclose(queries.embed(rows, [""] * len(rows)), vectors[1], atol=1e-6)


# Token states


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


# Exit heads


@pytest.fixture
def encoder(backbone: Callable[[str], Path]) -> DualEncoder:
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


def test_a_head_changes_nothing_before_training(encoder: DualEncoder) -> None:
    before = encoder(IDS, MASK)

    encoder.add_exit_heads([1, 2, 3])

    torch.testing.assert_close(encoder(IDS, MASK), before, atol=0, rtol=0)


def test_a_head_maps_the_vectors_of_its_layer_and_no_others(encoder: DualEncoder) -> None:
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
    before = fingerprint(ModelFolder.read(headed), read_card(headed))

    heads = load_file(headed / "exit_heads.safetensors")
    heads["exit_heads.1.weight"] += 1
    save_file(heads, headed / "exit_heads.safetensors")

    assert fingerprint(ModelFolder.read(headed), read_card_file(headed / CARD)) != before
    with pytest.raises(UserError, match="were changed"):
        load(headed)
