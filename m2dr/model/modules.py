"""Modules of sentence-transformers that stand behind the pooling, run as it runs them."""

# Shapes in this file:
#   B texts, N dims of a vector, M dims of what a module makes of it.

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from m2dr.errors import UserError
from m2dr.io import first_words
from m2dr.jsontext import quoted, read_table
from m2dr.model.places import WEIGHTS, Listed

VECTOR = "sentence_embedding"  # what sentence-transformers calls a text's vector
PLACES = ("module_input_name", "module_output_name")  # keys: what a module reads and writes
Config = dict[str, Any]
_AGAIN = "Get the model again."
_FIELDS: dict[str, object] = {  # of a module's config.json
    **dict.fromkeys(("in_features", "out_features", "dimension"), int),
    **dict.fromkeys(("bias", "use_residual"), bool),
    **dict.fromkeys(PLACES, str | None),
    "activation_function": str,
    "dropout": float,
}


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
    keys: tuple[str, ...]  # that its config.json may hold
    takes: str = ""  # the key with the dims it takes; empty: any, and it has no weights

    @property
    def trained(self) -> bool:
        """Whether it has weights, so that the vectors behind it lie in another space."""
        return bool(self.takes)


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
    "Dense": Kind(
        Dense,
        _make_dense,
        _dense_config,
        keys=(
            "in_features",
            "out_features",
            "bias",
            "activation_function",
            "use_residual",
            *PLACES,
        ),
        takes="in_features",
    ),
    "LayerNorm": Kind(
        LayerNorm,
        lambda config: LayerNorm(config["dimension"]),
        lambda module: {"dimension": module.norm.normalized_shape[0]},
        keys=("dimension",),
        takes="dimension",
    ),
    "Normalize": Kind(Normalize, lambda _: Normalize(), lambda _: {}, keys=PLACES),
    "Dropout": Kind(
        nn.Dropout,
        lambda config: nn.Dropout(config.get("dropout", 0.2)),
        lambda module: {"dropout": module.p},
        keys=("dropout",),
    ),
}


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
        if KINDS[row.kind].trained:
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


def final_width(folder: Path, listed: Sequence[Listed], width: int) -> int:
    """Return the dims of a vector behind the modules, from their settings alone."""
    for row in listed:
        width = _width_behind(_made(folder / row.path, row.kind, width), width)
    return width


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
        if KINDS[name].trained:
            state = {key: value.contiguous() for key, value in module.state_dict().items()}
            save_file(state, place / WEIGHTS)
        listed.append(row)
    return listed


def _made(place: Path, kind: str, width: int) -> nn.Module:
    """Return a module by its settings; its weights take no memory, nor a random draw, yet."""
    config = read_table(place / "config.json", _FIELDS, _AGAIN)
    strange = [key for key in config if key not in KINDS[kind].keys]
    if strange:
        raise UserError(
            f"The module {kind} in {place} has {quoted(strange[0])} = "
            f"{quoted(config[strange[0]])}, which m2dr does not run. Take another model."
        )
    for key in PLACES:
        if config.get(key) not in (None, VECTOR):
            raise UserError(
                f"The module {kind} in {place} works on {quoted(config[key])}, and m2dr runs those "
                f"alone that work on the vector of a text ({VECTOR}). Take another model."
            )
    try:
        with torch.device("meta"):
            module = KINDS[kind].make(config)
    except KeyError as error:
        raise UserError(f"{place / 'config.json'} lacks {error}; get the model again.") from error
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"The module {kind} in {place} cannot be made: {first_words(error)}. Take another "
            "model."
        ) from error
    takes = KINDS[kind].takes
    if takes and config[takes] != width:
        raise UserError(
            f"The module {kind} in {place} takes {quoted(config[takes])} dims, and a vector has "
            f"{width} before it. Get the model again."
        )
    return module


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
