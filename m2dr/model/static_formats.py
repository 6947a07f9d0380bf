"""Export layer 0 as a folder of sentence-transformers (StaticEmbedding) or model2vec.

Both take the plain mean of the rows of a text's tokens without special ones. So each row is
multiplied by its weight: the mean is parallel to the weighted mean of m2dr, of another length.
"""

# Shapes in this file:
#   V tokens, K dims that are kept.

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, nearest, quoted
from m2dr.core.files import write_json
from m2dr.model.folder import folder_aside, locked_for_export, told_of_exits
from m2dr.model.hub import TOKENIZER, WEIGHTS, ListedModule
from m2dr.model.readme import write_static_readme
from m2dr.model.sentence_transformers import (
    write_model_settings,
    write_modules_list,
)
from m2dr.model.static import Dtype, Floats, StaticEncoder, open_static, quantised

_LARGEST = 16  # of fp16 rows, so that a sum of hundreds stays finite
_NUMPY = {"fp16": "float16", "fp32": "float32", "int8": "int8"}
_EMBEDDING = ListedModule("StaticEmbedding", "")


@dataclass(frozen=True)
class StaticFolder:
    """An exported table of layer 0."""

    folder: Path
    format: str
    tokens: int
    dim: int
    dtype: Dtype
    notes: tuple[str, ...]  # sentences on what the format cannot hold


@dataclass(frozen=True)
class _Export:
    """Layer 0, cut to some dims."""

    encoder: StaticEncoder
    rows: NDArray[Any]  # [V, K]
    weights: Floats | None  # [V], factors of int8 rows; None: in the rows
    dtype: Dtype

    @property
    def dim(self) -> int:
        """Dims that were kept, K."""
        return int(self.rows.shape[1])

    @property
    def tensors(self) -> dict[str, NDArray[Any]]:
        """Tensors by the names of model2vec, which sentence-transformers reads too."""
        found = {"embeddings": self.rows}
        return found if self.weights is None else {**found, "weights": self.weights}


@dataclass(frozen=True)
class StaticFormat:
    """An export format. A new one is a row of FORMATS, and the tests run over all rows."""

    name: str
    write: Callable[[_Export, Path], None]
    notes: Callable[[_Export], tuple[str, ...]]


def export_static(
    name: str | Path,
    folder: Path,
    format_name: str,
    dim: int | None = None,
    dtype: str = "fp32",
    exits: Path | None = None,
) -> StaticFolder:
    """Write layer 0 of a model as a folder that another tool opens.

    Args:
        name: folder or id of the model.
        folder: to write; empty or missing.
        format_name: a name in FORMATS.
        dim: dims to keep; all by default.
        dtype: of the rows: fp32, fp16 or int8.
        exits: folder of the exits of an index, in place of the model's own.

    Raises:
        UserError: as `open_static` does, there is no such dim, format or dtype, or `folder` holds
            something or is being written to.
    """
    _require("format", format_name, tuple(FORMATS))
    _require("dtype", dtype, get_args(Dtype))
    encoder, chosen = open_static(name, exits), FORMATS[format_name]
    made = _folded(encoder, encoder.table.check(dim), cast(Dtype, dtype), folder)
    with locked_for_export(folder):
        with folder_aside(folder) as aside:
            chosen.write(made, aside)
            encoder.tokenizer.write(aside / TOKENIZER, encoder.card.query_length)
            fitted = "texts of the model's fit" if exits is None else told_of_exits(exits)
            about = (encoder.card, str(name), fitted, made.dim, made.dtype, chosen.name)
            write_static_readme(*about, aside)
        for path in sorted(aside.iterdir()):
            path.replace(folder / path.name)
        aside.rmdir()
    tokens, notes = len(made.rows), chosen.notes(made)
    return StaticFolder(folder, chosen.name, tokens, made.dim, made.dtype, notes)


def _require(what: str, asked: str, known: Collection[str]) -> None:
    if asked not in known:
        raise UserError(f"There is no {what} {asked!r} for layer 0. {nearest(asked, known)}")


def _folded(encoder: StaticEncoder, dim: int, dtype: Dtype, folder: Path) -> _Export:
    """Return the rows of all tokens multiplied by their weights; int8 keeps the two apart."""
    ids = np.arange(min(encoder.tokenizer.last_id + 1, encoder.table.tokens))
    weights = encoder.table.weights[ids]
    rows = encoder.table.rows(ids, dim) * (weights > 0 if dtype == "int8" else weights)[:, None]
    if dtype == "fp16":  # rows of frequent tokens are short: scaled, they lose no digits
        rows *= 2.0 ** np.floor(np.log2(_LARGEST / np.abs(rows).max(initial=1e-9)))
    kept, scales = quantised(rows, dtype, folder / WEIGHTS)
    return _Export(encoder, kept, None if scales is None else weights * scales, dtype)


def _write_sentence_transformers(made: _Export, folder: Path) -> None:
    card = made.encoder.card
    tensors = {"embedding.weight": made.rows} if made.weights is None else made.tensors
    _save(tensors, folder)
    write_modules_list(folder, [_EMBEDDING])
    write_model_settings(folder, card)


def _write_model2vec(made: _Export, folder: Path) -> None:
    card, tokens = made.encoder.card, made.encoder.tokenizer.ids
    tensors = dict(made.tensors)
    if len(made.rows) != tokens:  # some ids have no token: model2vec needs a mapping then
        tensors["mapping"] = np.arange(len(made.rows))
    _save(tensors, folder)
    normalize = card.similarity == "cosine"
    config = {
        "model_type": "model2vec",
        "architectures": ["StaticModel"],
        "tokenizer_name": card.backbone,
        "hidden_dim": made.dim,
        "max_length": card.query_length - made.encoder.tokenizer.around,
        "normalize": normalize,
        "pooling": "mean",
        "embedding_dtype": _NUMPY[made.dtype],
    }
    write_json(folder / "config.json", config)
    behind = [ListedModule("Normalize", "1_Normalize")] if normalize else []
    write_modules_list(folder, [_EMBEDDING, *behind])


def _prompt_note(made: _Export) -> tuple[str, ...]:
    prefix = made.encoder.card.query_prefix
    told = f"model2vec puts nothing before a text: put {quoted(prefix)} before each query yourself."
    return (told,) if prefix else ()


FORMATS = {
    row.name: row
    for row in (
        StaticFormat("sentence-transformers", _write_sentence_transformers, lambda _: ()),
        StaticFormat("model2vec", _write_model2vec, _prompt_note),
    )
}


def _save(tensors: dict[str, NDArray[Any]], folder: Path) -> None:
    from safetensors.numpy import save

    data = save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})
    (folder / WEIGHTS).write_bytes(data)
