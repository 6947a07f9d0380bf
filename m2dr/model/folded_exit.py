"""The fitted exit of one layer, folded into a map of its state and a table of token vectors.

A graph holds it, and so do modules of sentence-transformers: WordEmbeddings is the table,
WordWeights the rarity of a token, and a Pooling joins their mean with the mapped state.
"""

# Shapes in this file:
#   B texts, T tokens of the longest, V ids of the vocabulary, H width of a word embedding,
#   P dims of a pooled state, S dims of all states that an exit reads, K dims that are kept.

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from m2dr.core.errors import UserError
from m2dr.core.files import explain_failure, read_object, write_json
from m2dr.core.records import TOKENS, FitInputs, inputs_of
from m2dr.model.exits import FittedExits, linear
from m2dr.model.hub import TABLE_CHAIN, WEIGHTS, ListedModule, table_chain
from m2dr.model.token_features import TokenFeatures, float32_on

_FIRST = 2  # number of the folder of the first module
_CLS = "cls_token_embeddings"  # the feature that a Pooling takes for the state of the first token
_TOKENIZER = "sentence_transformers.models.tokenizer.WhitespaceTokenizer"  # never asked for a token
_WEIGHTS_FILE: dict[str, object] = {"vocab": list[str], "word_weights": dict[str, float]}
_AGAIN = "Export or copy the model again."


class FoldedExit(FittedExits):
    """The fitted exit of one layer whose token features are folded into a table.

    Args:
        layer: from 1.
        inputs: what the exit was fitted to read.
        head: from the states, S to K, with its bias.
        weights: [V], rarity of each token, 0 for special ones.
        table: [V, K], what each token adds.
    """

    def __init__(
        self, layer: int, inputs: FitInputs, head: nn.Linear, weights: Tensor, table: Tensor
    ) -> None:
        none = table.new_zeros((len(table), 0))
        tokens = TokenFeatures(none, weights, table.new_ones(()), weights > 0, 0)
        super().__init__(tokens, inputs, {layer: head}, table)
        self.layer = layer

    @classmethod
    @torch.no_grad()
    def of(
        cls, fitted: FittedExits, layer: int, words: Tensor, dim: int | None = None
    ) -> "FoldedExit":
        """Return the exit of one layer, cut to its first dims.

        Args:
            fitted: exits that read token features beside states, or one that is folded already.
            layer: of the exit, from 1.
            words: [V, H], the word embeddings of the backbone.
            dim: K; all by default.
        """
        head, weights = fitted.heads[str(layer)], fitted.tokens.weights
        assert isinstance(head, nn.Linear)
        if isinstance(fitted, FoldedExit):
            states = linear(head.weight[:dim].contiguous(), head.bias[:dim].contiguous())
            return cls(layer, fitted.inputs, states, weights, fitted.table[:, :dim].contiguous())
        read = fitted.tokens.width(words)
        weight = head.weight[:dim, -read:].T
        rows = torch.cat([features @ weight for features in fitted.tokens.of_ids(words)])
        kept = head.weight[:dim, :-read].contiguous(), head.bias[:dim].contiguous()
        return cls(layer, fitted.inputs, linear(*kept), weights, rows * (weights > 0)[:, None])

    @property
    def layers(self) -> tuple[int, ...]:
        """The one layer that has an exit."""
        return (self.layer,)

    @property
    def token_work(self) -> int:
        """Multiply-adds per token of the table."""
        return int(self.table.shape[1])

    def rows_of(self, input_ids: Tensor) -> Tensor:
        """Return what each token adds, [B, T] to [B, T, K]."""
        return self.table[input_ids]

    def embed(
        self,
        layers: tuple[int, ...],
        states: Mapping[int, Tensor],
        words: Tensor,  # noqa: ARG002  # they are in the table
        input_ids: Tensor,
        mask: Tensor | None,
    ) -> dict[int, Tensor]:
        """Return what `FittedExits.embed` gives, for the one layer or for none."""
        if not layers:
            return {}
        read = [states[part] for part in inputs_of(self.layer, self.inputs) if part != TOKENS]
        shares = self.tokens.shares(input_ids, mask)
        with float32_on(self.table.device):
            said = torch.einsum("bt,btw->bw", shares, self.rows_of(input_ids))
            mapped: Tensor = self.heads[str(self.layer)](torch.cat(read, dim=-1))
        return {self.layer: mapped + said}


def write_table(exit_: FoldedExit, folder: Path) -> list[ListedModule]:
    """Write a folded exit for sentence-transformers, and return its rows of modules.json.

    Args:
        exit_: of the last layer in the folder, which reads the state of that layer alone.
        folder: of the model.
    """
    rows = [
        ListedModule(kind, f"{number}_{kind}")
        for number, kind in enumerate(TABLE_CHAIN, start=_FIRST)
    ]
    table, rarity, state, joined, added = (folder / row.path for row in rows)
    settings = {
        "tokenizer_class": _TOKENIZER, "update_embeddings": False, "max_seq_length": 1_000_000
    }  # fmt: skip
    write_json(table / "wordembedding_config.json", settings)
    nothing = {"vocab": [], "stop_words": [], "do_lower_case": False}
    write_json(table / "whitespacetokenizer_config.json", nothing)
    save_file({"emb_layer.weight": exit_.table.contiguous()}, table / WEIGHTS)
    names = [str(number) for number in range(len(exit_.table))]
    weights = dict(zip(names, exit_.tokens.weights.tolist(), strict=True))
    write_json(
        rarity / "config.json",
        {"vocab": names, "word_weights": weights, "unknown_word_weight": 0.0},
    )
    head = exit_.heads[str(exit_.layer)]
    assert isinstance(head, nn.Linear)
    _write_dense(head.weight, head.bias, state, module_output_name=_CLS)
    dim = exit_.table.shape[1]
    flags = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    write_json(joined / "config.json", {"word_embedding_dimension": dim} | flags)
    sum_of_two = torch.eye(dim).repeat(1, 2)
    _write_dense(sum_of_two, None, added)
    return rows


def _write_dense(weight: Tensor, bias: Tensor | None, folder: Path, **names: str) -> None:
    height, width = weight.shape
    settings: dict[str, Any] = {
        "in_features": width,
        "out_features": height,
        "bias": bias is not None,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    write_json(folder / "config.json", settings | names)
    tensors = {"linear.weight": weight} | ({} if bias is None else {"linear.bias": bias})
    save_file({name: one.detach().contiguous() for name, one in tensors.items()}, folder / WEIGHTS)


def read_table(folder: Path, layer: int, pooled_width: int, width: int, ids: int) -> FoldedExit:
    """Read what `write_table` wrote.

    Args:
        folder: of the model.
        layer: its last one.
        pooled_width: P of its encoder.
        width: K of its card.
        ids: V of its encoder.

    Raises:
        UserError: a file is missing, damaged, or of another encoder.
    """
    rows = [folder / row.path for row in table_chain(folder)]
    if not rows:
        raise UserError(f"{folder} lacks the table of its exit, which m2dr.json names. {_AGAIN}")
    with explain_failure(f"The exit in {folder} cannot be read"):
        table = load_file(rows[0] / WEIGHTS)["emb_layer.weight"]
        dense = load_file(rows[2] / WEIGHTS)
        head = linear(dense["linear.weight"], dense["linear.bias"])
        named = read_object(rows[1] / "config.json", _WEIGHTS_FILE)
        weights = torch.tensor([named["word_weights"][name] for name in named["vocab"]])
    found = [list(table.shape), list(head.weight.shape), list(weights.shape)]
    belongs = [[ids, width], [width, pooled_width], [ids]]
    if found != belongs:
        raise UserError(
            f"The exit in {folder} has tensors of {found}, and {belongs} belong to its encoder. "
            f"{_AGAIN}"
        )
    return FoldedExit(layer, "tokens+layer", head, weights, table.float())
