"""Run, load and write the torch modules of sentence-transformers behind the pooling.

What their files may hold is in `sentence_transformers.py`, which needs no torch.
"""

# Shapes in this file:
#   B texts, N dims of a vector, M dims of the output of a module, W dims of the embedding.

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

from m2dr.core.errors import UserError
from m2dr.core.files import error_summary, write_json
from m2dr.core.records import ModelCard, pooling_modes
from m2dr.model.backbones import read_sizes
from m2dr.model.hub import DENSE, SETTINGS, WEIGHTS, ListedModule, behind_pooling
from m2dr.model.st_folder import (
    LAST,
    MODULE_FILES,
    POOLING_FLAGS,
    module_settings,
    write_model_settings,
    write_modules_list,
)

FIRST = 2  # number of the first module behind the pooling
_FIRST = 3  # number of the first module behind an exit head, whose own folder is DENSE

Config = dict[str, Any]


class Dense(nn.Module):
    """A linear map, an activation function and an optional residual connection: N to M."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool, activation: nn.Module, residual: bool
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation_function = activation
        self.use_residual = residual
        if residual and in_features != out_features:
            self.residual = nn.Linear(in_features, out_features, bias=False)

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None) -> "Dense":
        """Return the linear map of a matrix [M, N] and a bias [M]."""
        dense = cls(weight.shape[1], weight.shape[0], bias is not None, nn.Identity(), False)
        dense.linear.weight = nn.Parameter(weight.contiguous(), weight.requires_grad)
        if bias is not None:
            dense.linear.bias = nn.Parameter(bias.contiguous(), bias.requires_grad)
        return dense

    @property
    def is_linear(self) -> bool:
        """Whether it has no activation function and no residual connection."""
        return isinstance(self.activation_function, nn.Identity) and not self.use_residual

    def forward(self, vectors: Tensor) -> Tensor:
        """Map vectors [B, N] to [B, M]."""
        mapped: Tensor = self.activation_function(self.linear(vectors))
        if not self.use_residual:
            return mapped
        return mapped + (self.residual(vectors) if hasattr(self, "residual") else vectors)


class LayerNorm(nn.Module):
    """torch's LayerNorm, with the parameter names of sentence-transformers."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dimension)

    def forward(self, vectors: Tensor) -> Tensor:
        """Normalise vectors [B, N] to [B, N]."""
        normed: Tensor = self.norm(vectors)
        return normed


class Normalize(nn.Module):
    """The division of each vector by its length."""

    def forward(self, vectors: Tensor) -> Tensor:
        """Normalise vectors [B, N] to [B, N]."""
        return normalize(vectors, dim=-1)


class Truncate(nn.Module):
    """The first dims of a vector, which sentence-transformers keeps by `truncate_dim`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, vectors: Tensor) -> Tensor:
        """Cut vectors [B, N] to [B, M]."""
        return vectors[:, : self.dim]


@dataclass(frozen=True)
class ModuleKind:
    """A module that m2dr runs. A new one is a row of MODULE_KINDS; the tests run over all rows."""

    type: type[nn.Module]
    make: Callable[[Config], nn.Module]  # from config.json, without its weights
    config: Callable[[Any], Config]  # the config.json of a module


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
    """Return an activation function of torch.nn by its full name.

    Raises:
        ValueError: there is none of that name.
    """
    found = getattr(nn, name.rpartition(".")[2], None)
    known = isinstance(found, type) and issubclass(found, nn.Module) and found is not nn.Module
    if found is None or not (name.startswith("torch.nn.") and known):
        raise ValueError(f"its activation function {name} is none of torch.nn")
    activation: nn.Module = found()
    return activation


MODULE_KINDS = {
    "Dense": ModuleKind(Dense, _make_dense, _dense_config),
    "LayerNorm": ModuleKind(
        LayerNorm,
        lambda config: LayerNorm(config["dimension"]),
        lambda module: {"dimension": module.norm.normalized_shape[0]},
    ),
    "Normalize": ModuleKind(Normalize, lambda _: Normalize(), lambda _: {}),
    "Dropout": ModuleKind(
        nn.Dropout,
        lambda config: nn.Dropout(config.get("dropout", 0.2)),
        lambda module: {"dropout": module.p},
    ),
}


def modules_behind(folder: Path, card: ModelCard, pooled_width: int) -> nn.Sequential:
    """Load the modules behind the pooling and the exit head of a model."""
    listed = behind_pooling(folder, card.similarity)
    return read_modules(folder, listed, pooled_width, card.width)


def read_modules(
    folder: Path, listed: Sequence[ListedModule], width: int, dim: int
) -> nn.Sequential:
    """Load the modules behind a pooling.

    Args:
        folder: of the model.
        listed: its modules behind the pooling, all of them in MODULE_KINDS.
        width: dims of a pooled vector.
        dim: dims of the model's vectors; the output of the last module is cut to them.

    Raises:
        UserError: a module's files are missing, damaged, made for another width, or need
            something that m2dr does not run.
    """
    modules = []
    for row in listed:
        module = _make(folder / row.path, row.kind, width)
        if MODULE_FILES[row.kind].trained:
            _load(module, folder / row.path)
        modules.append(module)
        width = _width_behind(module, width)
    if dim > width:
        raise UserError(
            f"Vectors of {folder} have {dim} dims as its m2dr.json says, and its modules give "
            f"{width}; one of them was changed. Train or copy the model again."
        )
    if dim < width:
        modules.append(Truncate(dim))
    return nn.Sequential(*modules).requires_grad_()


def _width_behind(module: nn.Module, width: int) -> int:
    """Return the dims of the output of a module for an input of `width` dims."""
    return module.linear.out_features if isinstance(module, Dense) else width


def write_modules(modules: nn.Sequential, folder: Path, first: int) -> list[ListedModule]:
    """Write modules as sentence-transformers reads them, and return their rows of modules.json.

    Args:
        modules: as `read_modules` returns them, trained since or not.
        folder: of the model.
        first: number of the first module's folder.
    """
    listed: list[ListedModule] = []
    for module in (module for module in modules if not isinstance(module, Truncate)):
        name = next(name for name, kind in MODULE_KINDS.items() if isinstance(module, kind.type))
        row = ListedModule(name, f"{first + len(listed)}_{name}")
        write_json(folder / row.path / "config.json", MODULE_KINDS[name].config(module))
        if MODULE_FILES[name].trained:
            state = {key: value.contiguous() for key, value in module.state_dict().items()}
            save_file(state, folder / row.path / WEIGHTS)
        listed.append(row)
    return listed


def rotate(behind: nn.Sequential, width: int, rotation: NDArray[np.float32]) -> nn.Sequential:
    """Return modules that give R e where `behind` gives e, by a Dense at the end.

    Args:
        behind: the modules behind the pooling of a model.
        width: dims of a pooled vector.
        rotation: R [W, W], orthogonal; W is the width of the embedding.
    """
    kept, weight = list(behind), torch.from_numpy(rotation)
    truncated = bool(kept) and isinstance(kept[-1], Truncate)
    kept = kept[:-1] if truncated else kept
    for module in kept:
        width = _width_behind(module, width)
    weight = nn.functional.pad(weight, (0, width - weight.shape[1]))  # for dims that were cut off
    last = kept[-1] if kept else None
    if isinstance(last, Dense) and _is_linear(last):  # an earlier rotation
        weight, width = weight @ last.linear.weight.detach(), last.linear.in_features
        kept.pop()
    dense = Dense(width, len(weight), bias=False, activation=nn.Identity(), residual=False)
    dense.linear.weight = nn.Parameter(weight.contiguous())
    return nn.Sequential(*kept, dense)


def _is_linear(module: Dense) -> bool:
    """Return whether a module is a linear map alone."""
    plain = isinstance(module.activation_function, nn.Identity)
    return plain and not module.use_residual and module.linear.bias is None


def write_sentence_transformers_files(
    card: ModelCard,
    folder: Path,
    head: Tensor | None = None,
    behind: nn.Sequential | None = None,
    lowercases: bool = False,
) -> None:
    """Write the files with which SentenceTransformer(folder) gives the same vectors.

    Where vectors are compared by cosine, the last module is a Normalize, so that dot products are
    cosines in tools that take no other. sentence-transformers cuts vectors behind its modules, and
    the cosine of a prefix does not depend on the length of the vector.

    Args:
        card: with the pooling, the prefixes and lengths of texts, and the similarity.
        folder: of the model.
        head: [N, N], the exit head of the last layer in the folder, where it has one.
        behind: the modules behind it.
        lowercases: whether texts are put in lower case first.
    """
    listed = [ListedModule("Transformer", ""), ListedModule("Pooling", "1_Pooling")]
    if head is not None:
        height, width = head.shape
        dense = Dense(width, height, bias=False, activation=nn.Identity(), residual=False)
        dense.linear.weight = nn.Parameter(head)
        (row,) = write_modules(nn.Sequential(dense), folder, int(DENSE[0]))
        listed.append(row)
    ending = [Normalize()] if card.similarity == "cosine" else []
    listed += write_modules(nn.Sequential(*(behind or ()), *ending), folder, _FIRST)
    truncated = behind and isinstance(behind[-1], Truncate)
    lower = {"do_lower_case": True} if lowercases else {}
    write_modules_list(folder, listed)
    write_json(folder / "1_Pooling" / "config.json", _pooling_config(card, folder))
    write_model_settings(folder, card, **({"truncate_dim": card.width} if truncated else {}))
    write_json(folder / SETTINGS[0], {"max_seq_length": card.document_length, **lower})


def write_standalone_files(
    card: ModelCard, folder: Path, behind: Sequence[ListedModule], lowercases: bool
) -> None:
    """Write the files with which other tools give the vectors of an exported cut.

    Its modules cut the vectors, so that they can normalise them too where they are compared by
    cosine.

    Args:
        card: with the pooling, the prefixes and lengths of texts, and the similarity.
        folder: of the model.
        behind: the modules behind the pooling, whose files are written.
        lowercases: whether texts are put in lower case first.
    """
    listed = [ListedModule("Transformer", ""), ListedModule("Pooling", "1_Pooling"), *behind]
    if card.similarity == "cosine":
        listed += write_modules(nn.Sequential(Normalize()), folder, len(listed))
    lower = {"do_lower_case": True} if lowercases else {}
    write_modules_list(folder, listed)
    write_json(folder / "1_Pooling" / "config.json", _pooling_config(card, folder))
    write_model_settings(folder, card)
    write_json(folder / SETTINGS[0], {"max_seq_length": card.document_length, **lower})


def _pooling_config(card: ModelCard, folder: Path) -> dict[str, object]:
    """Return the Pooling's config.json: flags for any version, or a list where order matters."""
    modes = pooling_modes(card.pooling)
    width = read_sizes(folder).width
    found: dict[str, object] = {"word_embedding_dimension": width}
    flags = {flag: mode in modes for flag, mode in POOLING_FLAGS.items()}
    if tuple(mode for mode in POOLING_FLAGS.values() if mode in modes) == modes:
        return found | flags
    theirs = {ours: name for name, ours in LAST.items()}
    return found | {"pooling_mode": [theirs.get(mode, mode) for mode in modes]}


def _make(folder: Path, kind: str, width: int) -> nn.Module:
    """Return a module by its settings, with weights on meta: no memory, no random draws."""
    settings = module_settings(folder, kind, width)
    try:
        with torch.device("meta"):
            return MODULE_KINDS[kind].make(settings)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"The module {kind} in {folder} cannot be made: {error_summary(error)}. Take another "
            "model."
        ) from error


def _load(module: nn.Module, folder: Path) -> None:
    """Load the weights of a module from its folder."""
    path = folder / WEIGHTS
    if not path.exists():
        model = folder.parent
        raise UserError(
            f"{folder} has no {WEIGHTS}, and m2dr reads no pickles such as pytorch_model.bin. "
            'Convert the model: python -c "from sentence_transformers import '
            f"SentenceTransformer as S; S('{model}').save_pretrained('{model}-safetensors')\""
        )
    try:
        state = load_file(path)
        module.load_state_dict({k: weight.float() for k, weight in state.items()}, assign=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"The weights in {path} cannot be read ({error_summary(error)}); get the model again."
        ) from error
