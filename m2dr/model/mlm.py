"""The head that guesses masked words, from a backbone's own weights where it has them."""

from pathlib import Path
from typing import cast

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.functional import gelu, linear
from transformers import PretrainedConfig

from m2dr.io import refusing
from m2dr.model.backbones import backbone_of, read_config
from m2dr.model.encoder import Encoder
from m2dr.model.places import find_folder, transformer_folder

# Where a checkpoint of masked language modelling keeps them: transform, norm, bias of the words.
PLACES = (
    ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions"),
    ("lm_head.dense", "lm_head.layer_norm", "lm_head"),
)


class MaskedHead(nn.Module):
    """State of a token to the logits of every word: transform, GELU, norm, product with the words.

    A prefix of a state goes through a prefix of the transform's columns, so that one head serves
    every cut (Starbucks, SMAE).
    """

    def __init__(self, width: int, words: int, spread: float, epsilon: float) -> None:
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=epsilon)
        self.bias = nn.Parameter(torch.zeros(words))
        generator = torch.Generator().manual_seed(13)
        with torch.no_grad():
            self.transform.weight.normal_(std=spread, generator=generator)
            self.transform.bias.zero_()

    def forward(self, states: Tensor, words: Tensor) -> Tensor:
        """Logits of the words.

        Args:
            states: [n, K] the first K coordinates of token states.
            words: [V, H] word embeddings.

        Returns:
            [n, V].
        """
        weight = self.transform.weight[:, : states.shape[-1]]
        hidden = self.norm(gelu(linear(states, weight, self.transform.bias)))
        return linear(hidden, words, self.bias)


def masked_head(name: str) -> tuple[MaskedHead, bool]:
    """The head of a backbone, and whether its weights came with it; fresh ones otherwise."""
    folder = transformer_folder(find_folder(name))
    config = read_config(folder)
    head = MaskedHead(config.hidden_size, config.vocab_size, _spread(config), _epsilon(config))
    with refusing(f"The head of {folder} that guesses words cannot be read", "Download it again."):
        found = _stored(folder)
        if found:
            head.load_state_dict(found)
    return head, bool(found)


def understands_masks(name: str) -> bool:
    """Whether tokens see what follows them, so that a masked one can be guessed from both sides."""
    return not backbone_of(read_config(find_folder(name))).causal


def words_of(encoder: Encoder) -> nn.Embedding:
    """The word embeddings of an encoder: [V, H] as its weight."""
    return cast(nn.Embedding, encoder.transformer.get_input_embeddings())


def drop_words(encoder: Encoder) -> None:
    """Take the word embeddings out of an encoder that is given embeddings."""
    encoder.transformer.set_input_embeddings(nn.Identity())


def _stored(folder: Path) -> dict[str, Tensor]:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            for transform, norm, bias in PLACES:
                wanted = {
                    "transform.weight": f"{transform}.weight",
                    "transform.bias": f"{transform}.bias",
                    "norm.weight": f"{norm}.weight",
                    "norm.bias": f"{norm}.bias",
                    "bias": f"{bias}.bias",
                }
                if set(wanted.values()) <= names:
                    return {key: file.get_tensor(place) for key, place in wanted.items()}
    return {}


def _spread(config: PretrainedConfig) -> float:
    return float(getattr(config, "initializer_range", 0.02))


def _epsilon(config: PretrainedConfig) -> float:
    return float(getattr(config, "layer_norm_eps", 1e-12))
