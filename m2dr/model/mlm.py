"""The masked-LM head of a backbone, and the one-layer decoder of masked-LM pre-training (SMAE)."""

# Shapes in this file:
#   B texts, T tokens, H width of a state, K dims of a prefix, V ids of the vocabulary.

from pathlib import Path
from typing import cast

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from m2dr.core.files import explain_failure
from m2dr.model.backbones import backbone_of
from m2dr.model.encoder import DualEncoder
from m2dr.model.folder import ModelFolder

# Names in checkpoints of masked language modelling: the transform, the norm, the bias's owner.
_STORED = (
    ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions"),
    ("lm_head.dense", "lm_head.layer_norm", "lm_head"),
)


class MaskedHead(nn.Module):
    """Token state to logits: transform, GELU, norm, product with the word embeddings.

    A prefix of a state is multiplied by that prefix of the transform's columns, so that one head
    serves every cut (Starbucks, SMAE).
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
        """Return the logits of the words, [n, V].

        Args:
            states: [n, K], the first K dims of token states.
            words: [V, H], word embeddings.
        """
        return linear(self.widened(states), words, self.bias)

    def widened(self, states: Tensor) -> Tensor:
        """Return the vectors that word embeddings are multiplied with: [n, K] to [n, H]."""
        weight = self.transform.weight[:, : states.shape[-1]]
        found: Tensor = self.norm(gelu(linear(states, weight, self.transform.bias)))
        return found


class FirstTokenDecoder(nn.Module):
    """A decoder of one layer whose first token is a given vector.

    The vector replaces the first token behind the norm of the embeddings, without a position
    (Starbucks, smae/modelling.py).
    """

    def __init__(self, decoder: DualEncoder) -> None:
        super().__init__()
        self.transformer = decoder.transformer
        self._first: Tensor | None = None
        layer = backbone_of(self.transformer.config).layers_of(self.transformer)[0]
        layer.register_forward_pre_hook(self._replace, with_kwargs=True)

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor, first: Tensor) -> Tensor:
        """Return the states [B, T, H] of its tokens.

        Args:
            inputs_embeds: [B, T, H], word embeddings.
            attention_mask: [B, T].
            first: [B, H], the vectors of the first tokens.
        """
        self._first = first
        try:
            states: Tensor = self.transformer(
                inputs_embeds=inputs_embeds, attention_mask=attention_mask
            )[0]
        finally:
            self._first = None
        return states

    def _replace(
        self, _: nn.Module, given: tuple[Tensor, ...], named: dict[str, object]
    ) -> tuple[tuple[Tensor, ...], dict[str, object]]:
        states = given[0] if given else cast(Tensor, named["hidden_states"])
        assert self._first is not None  # forward alone runs the layer
        replaced = torch.cat([self._first[:, None].to(states.dtype), states[:, 1:]], dim=1)
        return (replaced, *given[1:]), {k: v for k, v in named.items() if k != "hidden_states"}


def masked_head(model: ModelFolder) -> tuple[MaskedHead, bool]:
    """Return the masked-LM head of a backbone, and whether it has its weights.

    Without stored weights the head is initialised at random.

    Raises:
        UserError: the folder is damaged.
    """
    folder, config = model.inner, model.config()
    spread = float(getattr(config, "initializer_range", 0.02))
    epsilon = float(getattr(config, "layer_norm_eps", 1e-12))
    head = MaskedHead(config.hidden_size, config.vocab_size, spread, epsilon)
    with explain_failure(f"The masked-LM head in {folder} cannot be read"):
        found = _read_stored(folder)
        if found:
            head.load_state_dict(found)
    return head, bool(found)


def remove_word_embeddings(encoder: DualEncoder) -> None:
    """Remove the word embeddings of an encoder that is given embeddings."""
    encoder.transformer.set_input_embeddings(nn.Identity())


def _read_stored(folder: Path) -> dict[str, Tensor]:
    """Return the stored weights by their names in MaskedHead; none where there is no head."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            for transform, norm, bias in _STORED:
                wanted = {
                    "transform.weight": f"{transform}.weight",
                    "transform.bias": f"{transform}.bias",
                    "norm.weight": f"{norm}.weight",
                    "norm.bias": f"{norm}.bias",
                    "bias": f"{bias}.bias",
                }
                if set(wanted.values()) <= names:
                    return {key: file.get_tensor(stored) for key, stored in wanted.items()}
    return {}
