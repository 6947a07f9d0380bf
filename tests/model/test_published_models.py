"""Folders such as the hub has of GTR, EmbeddingGemma and others, which sentence-transformers made."""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules.module import Module
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)
from torch import nn
from transformers import T5ForConditionalGeneration
from world import WORDS, configurations, make_backbone, unigrams

from m2dr.core.settings import FitSettings, TrainSettings
from m2dr.model.checkpoint import load
from m2dr.tasks.training.fit import fit
from m2dr.tasks.training.train import train

TEXTS = ["open the file", "a list of numbers and a class of text and a line of words", "path"]
Floats = NDArray[np.float32]


def dense(given: int, wanted: int) -> Dense:
    torch.manual_seed(given)
    return Dense(given, wanted, bias=False, activation_function=nn.Identity())


@dataclass(frozen=True)
class Published:
    """A model as it was published, but for its size."""

    model_type: str
    layers: str  # attribute path to its layers in sentence-transformers' model
    pooling: str = "mean"
    behind: Callable[[], list[Module]] = list
    config: dict[str, object] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)


GATED = {"feed_forward_proj": "gated-gelu", "is_gated_act": True, "dense_act_fn": "gelu_new"}
MODELS = {
    "gtr": Published("t5", "encoder.block", behind=lambda: [dense(32, 32), Normalize()]),
    "sentence-t5-1.1": Published(
        "t5",
        "encoder.block",
        behind=lambda: [dense(32, 32), Normalize()],
        config=GATED,
    ),
    "deberta": Published("deberta-v2", "encoder.layer"),
    "deberta without shared keys": Published(
        "deberta-v2", "encoder.layer", config={"share_att_key": False, "position_buckets": -1}
    ),
    "nomic": Published(
        "nomic_bert",
        "layers",
        behind=lambda: [Normalize()],
        prompts={"query": "search_query: ", "document": "search_document: "},
    ),
    "gte": Published("gte", "layers", "cls", config={"type_vocab_size": 0}),
    "e5-mistral": Published("mistral", "layers", "lasttoken", lambda: [Normalize()]),
    "bge-gemma2": Published("gemma2", "layers", "lasttoken", lambda: [Normalize()]),
    "embeddinggemma": Published(
        "gemma3_text",
        "layers",
        behind=lambda: [dense(32, 48), dense(48, 32), Normalize()],
        config={"use_bidirectional_attention": True},
        prompts={"query": "task: search result | query: ", "document": "title: none | text: "},
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a model as sentence-transformers writes it."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            place, model = tmp_path_factory.mktemp("published"), MODELS[name]
            make_backbone(place / "backbone", model.model_type, **model.config)
            modules = [Transformer(str(place / "backbone"), max_seq_length=24)]
            modules += [Pooling(32, model.pooling), *model.behind()]
            written = SentenceTransformer(modules=modules, prompts=dict(model.prompts))
            written.save(str(place / "model"), create_model_card=False)
            made[name] = place / "model"
        return made[name]

    return get


def theirs(folder: Path, side: str = "document", cut: tuple[str, int] | None = None) -> Floats:
    """Vectors of sentence-transformers, its transformer cut to the first layers."""
    model = SentenceTransformer(str(folder), device="cpu")
    if cut is not None:
        path, layer = cut
        holder, _, last = path.rpartition(".")
        parent = attrgetter(holder)(model[0].model) if holder else model[0].model
        setattr(parent, last, getattr(parent, last)[:layer])
    if side == "query":
        return np.asarray(model.encode_query(TEXTS, normalize_embeddings=True))
    return np.asarray(model.encode_document(TEXTS, normalize_embeddings=True))


def ours(folder: Path, side: str = "document", layers: tuple[int, ...] | None = None) -> Floats:
    """Vectors of m2dr, which leaves a last Normalize to the cosine."""
    encoder = load(folder)
    vectors = encoder.vectors(TEXTS, side, layers or (encoder.runtime.layers,))
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors if layers else vectors[0]


@pytest.mark.parametrize("side", ["query", "document"])
def test_every_layer_is_what_sentence_transformers_says_of_a_model_that_ends_there(
    side: str, name: str, published: Callable[[str], Path]
) -> None:
    folder = published(name)

    found = ours(folder, side, (1, 2, 3, 4))

    for layer, vectors in enumerate(found, start=1):
        expected = theirs(folder, side, (MODELS[name].layers, layer))
        np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_it_trains_with_lora_and_all_its_modules(
    name: str, published: Callable[[str], Path], tiny_corpus: Path, tmp_path: Path
) -> None:
    settings = TrainSettings(
        variant="elastic", corpus=str(tiny_corpus), backbone=str(published(name)), batch_size=4,
        steps=1, evaluate_steps=1, query_length=16, document_length=24, lora_rank=2, device="cpu",
    )  # fmt: skip

    train(settings, tmp_path / "model")

    found = ours(tmp_path / "model")
    np.testing.assert_allclose(theirs(tmp_path / "model"), found, atol=1e-5)
    assert np.abs(found - ours(published(name))).max() > 1e-5


def test_a_checkpoint_of_t5_holds_its_word_embeddings_once_and_is_read_back(
    published: Callable[[str], Path], tmp_path: Path
) -> None:
    trained, _ = load(published("gtr"))
    with torch.no_grad():
        trained.word_embeddings.weight.mul_(2)
    save_file(trained.state_dict(), tmp_path / "weights.safetensors")
    fresh, _ = load(published("gtr"))

    fresh.load_state_dict(load_file(tmp_path / "weights.safetensors"))

    assert torch.equal(fresh.word_embeddings.weight, trained.word_embeddings.weight)
    assert fresh.transformer.encoder.embed_tokens.weight is fresh.word_embeddings.weight


@pytest.mark.parametrize("fitted", ["gtr", "embeddinggemma"])
def test_fitted_exits_keep_the_full_model(
    fitted: str, published: Callable[[str], Path], tmp_path: Path
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text(
        "".join(f"{' '.join(WORDS[i % 9 : i % 9 + 5])} {WORDS[i % 14]}\n" for i in range(99))
    )
    settings = FitSettings(str(published(fitted)), str(texts), rotation="pca", device="cpu")
    fit(settings, tmp_path / "fitted")

    before, after = ours(published(fitted)), ours(tmp_path / "fitted")
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=1e-5)
    np.testing.assert_allclose(theirs(tmp_path / "fitted"), after, atol=1e-5)


def test_t5_with_a_decoder_is_read_without_it(tmp_path: Path) -> None:
    torch.manual_seed(13)
    whole = T5ForConditionalGeneration(configurations()["t5"])
    whole.save_pretrained(tmp_path)
    unigrams(tmp_path)
    ids = torch.tensor([[5, 7, 9, 1]])

    encoder, _ = load(tmp_path)

    with torch.inference_mode():
        states = whole.eval().encoder(input_ids=ids).last_hidden_state
        torch.testing.assert_close(encoder(ids, None)[-1], states.mean(dim=1), atol=1e-5, rtol=1e-5)
    assert not [name for name, _ in encoder.named_parameters() if "decoder" in name]


@pytest.mark.parametrize("config", [{}, GATED], ids=["plain", "gated"])
def test_states_of_t5_beyond_the_range_of_fp16_stay_finite_in_bf16(
    config: dict[str, object], tmp_path: Path
) -> None:
    folder = make_backbone(tmp_path, "t5", **config)
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        tensor.mul_(1e5 if name.endswith("wo.weight") else 1)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    exact, _ = load(folder)
    ids = torch.tensor([[5, 7, 9, 11, 20, 1], [6, 8, 1, 0, 0, 0]])
    mask = (ids > 0).long()
    heard: dict[int, torch.Tensor] = {}
    exact.transformer.encoder.block[-1].register_forward_hook(
        lambda _, __, output: heard.update({0: output[0]})
    )

    with torch.inference_mode():
        expected = exact(ids, mask)
        loaded = load(folder, dtype=torch.bfloat16)[0](ids, mask)
        with torch.autocast("cpu", torch.bfloat16):
            cast = exact(ids, mask)

    assert heard[0].abs().max() > 65504
    for found in (loaded, cast):
        assert torch.cosine_similarity(found, expected, dim=-1).min() > 0.999
