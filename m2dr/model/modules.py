"""Modules of sentence-transformers behind the pooling: run as it runs them, and written."""

# Shapes in this file:
#   B texts, N dims of a vector, M dims of what a module makes of it.

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from m2dr.errors import UserError
from m2dr.io import first_words
from m2dr.model.backbones import read_sizes
from m2dr.model.foreign import (
    LAST,
    MODEL_SETTINGS,
    MODULE_FILES,
    POOLING_FLAGS,
    module_settings,
)
from m2dr.model.places import DENSE, MODULES, SETTINGS, WEIGHTS, Listed, behind_pooling
from m2dr.records.card import ModelCard, modes_of

FIRST = 3  # number of the first module behind an exit head, whose own folder is DENSE
Config = dict[str, Any]


class Dense(nn.Module):
    """A linear map, an activation function and, where asked for, the input added: N to M."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool, activation: nn.Module, residual: bool
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation_function = activation
        self.use_residual = residual
        if residual and in_features != out_features:
            self.residual = nn.Linear(in_features, out_features, bias=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, N] to [B, M]."""
        mapped: Tensor = self.activation_function(self.linear(vectors))
        if not self.use_residual:
            return mapped
        return mapped + (self.residual(vectors) if hasattr(self, "residual") else vectors)


class LayerNorm(nn.Module):
    """torch's LayerNorm; its weights have the names that sentence-transformers gives them."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dimension)

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, N] to [B, N]."""
        normed: Tensor = self.norm(vectors)
        return normed


class Normalize(nn.Module):
    """Division of each vector by its length."""

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, N] to [B, N]."""
        return normalize(vectors, dim=-1)


class Truncate(nn.Module):
    """The first dims alone; sentence-transformers has no module for it but `truncate_dim`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, N] to [B, M]."""
        return vectors[:, : self.dim]


@dataclass(frozen=True)
class Kind:
    """A module that m2dr runs. A new one is a row of KINDS, and the tests run over all rows."""

    type: type[nn.Module]
    make: Callable[[Config], nn.Module]  # from its config.json, weights not yet read
    config: Callable[[Any], Config]  # and back


def _make_dense(config: Config) -> nn.Module:
    activation = _activation(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    sizes = config["in_features"], config["out_features"]
    return Dense(
        *sizes, config.get("bias", True), activation, bool(config.get("use_residual", False))
    )


def _dense_config(module: Dense) -> Config:
    activation = type(module.activation_function)
    return {
        "in_features": module.linear.in_features,
        "out_features": module.linear.out_features,
        "bias": module.linear.bias is not None,
        "activation_function": f"{activation.__module__}.{activation.__name__}",
        # Left out where False: versions before 5.7 do not know it.
        **({"use_residual": True} if module.use_residual else {}),
    }


def _activation(name: str) -> nn.Module:
    """An activation function of torch.nn by its full name, made without arguments.

    Raises:
        ValueError: there is none of that name.
    """
    found = getattr(nn, name.rpartition(".")[2], None)
    known = isinstance(found, type) and issubclass(found, nn.Module) and found is not nn.Module
    if found is None or not (name.startswith("torch.nn.") and known):
        raise ValueError(f"its activation function {name} is none of torch.nn")
    activation: nn.Module = found()
    return activation


KINDS = {
    "Dense": Kind(Dense, _make_dense, _dense_config),
    "LayerNorm": Kind(
        LayerNorm,
        lambda config: LayerNorm(config["dimension"]),
        lambda module: {"dimension": module.norm.normalized_shape[0]},
    ),
    "Normalize": Kind(Normalize, lambda _: Normalize(), lambda _: {}),
    "Dropout": Kind(
        nn.Dropout,
        lambda config: nn.Dropout(config.get("dropout", 0.2)),
        lambda module: {"dropout": module.p},
    ),
}


def modules_behind(folder: Path, card: ModelCard, pooled_width: int) -> nn.Sequential:
    """Load the modules that every vector of a model passes behind its pooling and exit head."""
    listed = behind_pooling(folder, card.similarity)
    return read_modules(folder, listed, pooled_width, card.width)


def read_modules(folder: Path, listed: Sequence[Listed], width: int, dim: int) -> nn.Sequential:
    """Load the modules behind a pooling.

    Args:
        folder: of the model.
        listed: its modules behind the pooling, all of them in KINDS.
        width: dims of a pooled vector.
        dim: dims of the model's vectors; fewer than the last module gives are its first ones.

    Raises:
        UserError: a module's files are missing, damaged, made for another width, or need
            something that m2dr does not run.
    """
    made = []
    for row in listed:
        place = folder / row.path
        module = _made(place, row.kind, width)
        if MODULE_FILES[row.kind].trained:
            _load(module, place)
        made.append(module)
        width = _width_behind(module, width)
    if dim > width:
        raise UserError(
            f"Vectors of {folder} have {dim} dims as its m2dr.json says, and its modules give "
            f"{width}; one of them was changed. Train or copy the model again."
        )
    if dim < width:
        made.append(Truncate(dim))
    return nn.Sequential(*made).requires_grad_()


def _width_behind(module: nn.Module, width: int) -> int:
    """Return the dims that a module makes of `width` dims."""
    return module.linear.out_features if isinstance(module, Dense) else width


def write_modules(modules: nn.Sequential, folder: Path, first: int) -> list[Listed]:
    """Write the modules where sentence-transformers finds them, and return what to list.

    Args:
        modules: as `read_modules` made them, trained since or not.
        folder: of the model.
        first: number of the first module's folder.
    """
    listed: list[Listed] = []
    for module in (module for module in modules if not isinstance(module, Truncate)):
        name = next(name for name, kind in KINDS.items() if isinstance(module, kind.type))
        row = Listed(name, f"{first + len(listed)}_{name}")
        place = folder / row.path
        place.mkdir(exist_ok=True)
        config = json.dumps(KINDS[name].config(module), indent=2)
        (place / "config.json").write_text(config + "\n", encoding="utf-8")
        if MODULE_FILES[name].trained:
            state = {key: value.contiguous() for key, value in module.state_dict().items()}
            save_file(state, place / WEIGHTS)
        listed.append(row)
    return listed


def rotate(behind: nn.Sequential, width: int, rotation: NDArray[np.float32]) -> nn.Sequential:
    """Return modules that give R e where `behind` gives e, by one more Dense at the end.

    Args:
        behind: the modules of a model.
        width: dims of a pooled vector.
        rotation: R [W, W], orthogonal; W is the width of the embedding.
    """
    kept, weight = list(behind), torch.from_numpy(rotation)
    truncated = bool(kept) and isinstance(kept[-1], Truncate)
    kept = kept[:-1] if truncated else kept
    for module in kept:
        width = _width_behind(module, width)
    weight = nn.functional.pad(weight, (0, width - weight.shape[1]))  # of dims that are cut off
    last = kept[-1] if kept else None
    if isinstance(last, Dense) and _is_linear(last):  # an earlier rotation
        weight, width = weight @ last.linear.weight.detach(), last.linear.in_features
        kept.pop()
    dense = Dense(width, len(weight), bias=False, activation=nn.Identity(), residual=False)
    dense.linear.weight = nn.Parameter(weight.contiguous())
    return nn.Sequential(*kept, dense)


def _is_linear(module: Dense) -> bool:
    """Whether a module is a linear map and nothing else."""
    plain = isinstance(module.activation_function, nn.Identity)
    return plain and not module.use_residual and module.linear.bias is None


def write_sentence_transformers_files(
    card: ModelCard,
    folder: Path,
    head: Tensor | None = None,
    behind: nn.Sequential | None = None,
    lowercases: bool = False,
) -> None:
    """What SentenceTransformer(folder) needs to give the same vectors.

    Args:
        card: says how to pool, what stands before a text and how long it may be.
        folder: of the model.
        head: [P, P], the exit head of the last layer in the folder, where it has one; P is the
            width of a pooled vector.
        behind: the modules that stand behind it.
        lowercases: whether texts are put in lower case first.

    There is no module that normalises where vectors are compared by cosine: sentence-transformers
    cuts behind its modules, and a prefix must be cut first and normalised after. Its cosine does
    that by itself.
    """
    listed = [Listed("Transformer", ""), Listed("Pooling", "1_Pooling")]
    if head is not None:
        height, width = head.shape
        dense = Dense(width, height, bias=False, activation=nn.Identity(), residual=False)
        dense.linear.weight = nn.Parameter(head)
        (row,) = write_modules(nn.Sequential(dense), folder, int(DENSE[0]))
        listed.append(row)
    listed += write_modules(behind or nn.Sequential(), folder, FIRST)
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": row.path,
            "type": f"sentence_transformers.models.{row.kind}",
        }
        for i, row in enumerate(listed)
    ]
    settings: dict[str, object] = {
        "prompts": {"query": card.query_prefix, "document": card.document_prefix},
        "default_prompt_name": None,
        "similarity_fn_name": card.similarity,
    }
    if behind and isinstance(behind[-1], Truncate):
        settings["truncate_dim"] = card.width
    _write(folder / MODULES, modules)
    _write(folder / "1_Pooling" / "config.json", _pooling_config(card, folder))
    _write(folder / MODEL_SETTINGS, settings)
    lower = {"do_lower_case": True} if lowercases else {}
    _write(folder / SETTINGS[0], {"max_seq_length": card.document_length, **lower})


def _pooling_config(card: ModelCard, folder: Path) -> dict[str, object]:
    """The Pooling's config.json: flags that any version reads, or a list where order matters."""
    modes = modes_of(card.pooling)
    width = read_sizes(folder).width
    found: dict[str, object] = {"word_embedding_dimension": width}
    flags = {flag: mode in modes for flag, mode in POOLING_FLAGS.items()}
    if tuple(mode for mode in POOLING_FLAGS.values() if mode in modes) == modes:
        return found | flags
    theirs = {ours: name for name, ours in LAST.items()}
    return found | {"pooling_mode": [theirs.get(mode, mode) for mode in modes]}


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _made(place: Path, kind: str, width: int) -> nn.Module:
    """Return a module by its settings; its weights take no memory, nor a random draw, yet."""
    settings = module_settings(place, kind, width)
    try:
        with torch.device("meta"):
            return KINDS[kind].make(settings)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"The module {kind} in {place} cannot be made: {first_words(error)}. Take another "
            "model."
        ) from error


def _load(module: nn.Module, place: Path) -> None:
    path = place / WEIGHTS
    if not path.exists():
        whole = place.parent
        raise UserError(
            f"{place} has no {WEIGHTS}, and m2dr reads no pickles such as pytorch_model.bin. "
            'Write the model anew: python -c "from sentence_transformers import '
            f"SentenceTransformer as S; S('{whole}').save_pretrained('{whole}-safetensors')\""
        )
    try:
        state = load_file(path)
        module.load_state_dict({k: weight.float() for k, weight in state.items()}, assign=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"The weights in {path} cannot be read ({first_words(error)}); get the model again."
        ) from error
