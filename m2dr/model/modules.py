"""Run, load and write the torch modules of sentence-transformers behind the pooling.

They are written out here because importing sentence-transformers takes seconds, and every fitted
model has one. What their files may hold is in `folder.py`, which needs no torch.
"""

# Shapes in this file:
#   B texts, N dims of a vector, M dims of the output of a module, W dims of the embedding.

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from m2dr.core.arrays import Float32
from m2dr.core.errors import UserError, quoted
from m2dr.core.files import explain_failure, write_json
from m2dr.core.records import ModelCard, pooling_modes
from m2dr.model.folder import LAST, POOLING_FLAGS, ListedModule, ModelFolder, Table
from m2dr.model.hub import FITTED_CUT, MODEL_SETTINGS, MODULES, TRANSFORMER_SETTINGS, WEIGHTS

if TYPE_CHECKING:
    from m2dr.model.encoder import DualEncoder

FIRST = 2  # number of the first module behind the pooling, in DENSE too
_TANH = "torch.nn.modules.activation.Tanh"  # the activation function of a Dense that names none


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
    def matrix(self) -> Tensor | None:
        """The matrix [M, N] of a map that is nothing more, else None."""
        plain = isinstance(self.activation_function, nn.Identity) and not self.use_residual
        return self.linear.weight.detach() if plain and self.linear.bias is None else None

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


def _made(kind: str, settings: Table) -> nn.Module:
    """Return a module by its kind in modules.json and its config.json, without its weights."""
    if kind == "Normalize":
        return Normalize()
    if kind == "Dropout":
        return nn.Dropout(settings.get("dropout", 0.2))
    if kind == "LayerNorm":
        return LayerNorm(settings["dimension"])
    name = str(settings.get("activation_function", _TANH))
    activation = getattr(nn, name.rpartition(".")[2], None)
    is_module = isinstance(activation, type) and issubclass(activation, nn.Module)
    if activation is None or activation is nn.Module or not is_module or name[:9] != "torch.nn.":
        raise UserError(f"A Dense has the activation function {quoted(name)}, none of torch.nn.")
    sizes = settings["in_features"], settings["out_features"], settings.get("bias", True)
    return Dense(*sizes, activation(), bool(settings.get("use_residual")))


def _described(module: nn.Module) -> tuple[str, dict[str, Any]]:
    """Return the kind and the config.json of a module."""
    if isinstance(module, Dense):
        activation = type(module.activation_function)
        return "Dense", {
            "in_features": module.linear.in_features,
            "out_features": module.linear.out_features,
            "bias": module.linear.bias is not None,
            "activation_function": f"{activation.__module__}.{activation.__name__}",
            # Left out where False: versions before 5.7 do not know it.
            **({"use_residual": True} if module.use_residual else {}),
        }
    if isinstance(module, LayerNorm):
        return "LayerNorm", {"dimension": module.norm.normalized_shape[0]}
    return (
        ("Dropout", {"dropout": module.p}) if isinstance(module, nn.Dropout) else ("Normalize", {})
    )


def modules_behind(folder: ModelFolder, card: ModelCard) -> nn.Sequential:
    """Load the modules behind the pooling and the exit head of a model.

    Args:
        folder: of the model.
        card: of the model, to whose width the output of the last module is cut.

    Raises:
        UserError: a module's weights are missing or damaged, or it needs what m2dr does not run.
    """
    modules, width = [], len(pooling_modes(card.pooling)) * folder.sizes.width
    for row in folder.behind(card.similarity):
        place = folder.path / row.path
        with explain_failure(f"The module {row.kind} in {place} cannot be read"):
            with torch.device("meta"):  # no memory, no random draws
                module = _made(row.kind, row.settings)
            if module.state_dict():
                if not (place / WEIGHTS).exists():
                    raise UserError(f"{place} has no {WEIGHTS}, and m2dr reads no pickles.")
                state = load_file(place / WEIGHTS)
                module.load_state_dict({k: v.float() for k, v in state.items()}, assign=True)
        modules.append(module)
        width = row.settings.get("out_features", width)
    if card.width < width:
        modules.append(Truncate(card.width))
    return nn.Sequential(*modules).requires_grad_()


def write_modules(modules: Iterable[nn.Module], folder: Path, first: int) -> list[ListedModule]:
    """Write modules as sentence-transformers reads them, and return their rows of modules.json.

    Args:
        modules: as those of `modules_behind`, trained since or not.
        folder: of the model.
        first: number of the first module's folder.
    """
    listed: list[ListedModule] = []
    for module in (module for module in modules if not isinstance(module, Truncate)):
        kind, settings = _described(module)
        row = ListedModule(kind, f"{first + len(listed)}_{kind}")
        write_json(folder / row.path / "config.json", settings)
        state = {key: value.contiguous() for key, value in module.state_dict().items()}
        if state:
            save_file(state, folder / row.path / WEIGHTS)
        listed.append(row)
    return listed


def rotate(behind: nn.Sequential, width: int, rotation: Float32) -> nn.Sequential:
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
        width = module.linear.out_features if isinstance(module, Dense) else width
    weight = nn.functional.pad(weight, (0, width - weight.shape[1]))  # for dims that were cut off
    last = kept[-1] if kept else None
    if isinstance(last, Dense) and last.matrix is not None:
        weight = weight @ last.matrix  # an earlier rotation
        kept.pop()
    return nn.Sequential(*kept, Dense.of(weight.requires_grad_()))


def write_model_files(
    encoder: "DualEncoder", card: ModelCard, folder: Path, lowercases: bool, first: int
) -> None:
    """Write the files with which SentenceTransformer(folder) gives the same vectors.

    Where vectors are compared by cosine, the last module is a Normalize, so that dot products are
    cosines in tools that take no other. sentence-transformers cuts vectors behind its modules, and
    the cosine of a prefix does not depend on the length of the vector. The Pooling has flags, which
    any version reads, or a list where the order of its modes matters.

    Args:
        encoder: of the model.
        card: with the pooling, the prefixes and lengths of texts, and the similarity.
        folder: of the model.
        lowercases: whether texts are put in lower case first.
        first: number of the first module behind the exit head of the last layer.
    """
    modes = pooling_modes(card.pooling)
    theirs = {ours: name for name, ours in LAST.items()}
    flags: dict[str, Any] = {flag: mode in modes for flag, mode in POOLING_FLAGS.items()}
    if tuple(mode for mode in POOLING_FLAGS.values() if mode in modes) != modes:
        flags = {"pooling_mode": [theirs.get(mode, mode) for mode in modes]}
    width = {"word_embedding_dimension": int(encoder.transformer.config.hidden_size)}
    write_json(folder / "1_Pooling" / "config.json", width | flags)
    listed = [ListedModule("Transformer", ""), ListedModule("Pooling", "1_Pooling")]
    head = encoder.exit_heads.state_dict().get(f"{encoder.layers}.weight")  # of a cut encoder
    if head is not None:
        listed += write_modules([Dense.of(head)], folder, FIRST)
    ending = [Normalize()] if card.similarity == "cosine" else []
    listed += write_modules([*encoder.behind, *ending], folder, first)
    _write_list(folder, [(f"sentence_transformers.models.{row.kind}", row.path) for row in listed])
    truncated = any(isinstance(module, Truncate) for module in encoder.behind)
    write_model_settings(card, folder, **({"truncate_dim": card.width} if truncated else {}))
    lower = {"do_lower_case": True} if lowercases else {}
    write_json(folder / TRANSFORMER_SETTINGS[0], {"max_seq_length": card.document_length, **lower})


def write_fitted_cut(card: ModelCard, folder: Path) -> None:
    """Write what sentence-transformers reads of a cut with a fitted exit, which m2dr runs there."""
    _write_list(folder, [(FITTED_CUT, "")])
    write_model_settings(card, folder)


def _write_list(folder: Path, rows: Sequence[tuple[str, str]]) -> None:
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (kind, path) in enumerate(rows)
    ]
    write_json(folder / MODULES, listed)


def write_model_settings(card: ModelCard, folder: Path, **more: object) -> None:
    """Write config_sentence_transformers.json: prompts, the similarity, and more settings."""
    settings = {
        "prompts": {"query": card.query_prefix, "document": card.document_prefix},
        "default_prompt_name": None,
        "similarity_fn_name": card.similarity,
    }
    write_json(folder / MODEL_SETTINGS, settings | more)
