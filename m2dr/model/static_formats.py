"""Layer 0 as folders that other tools open: a StaticEmbedding of sentence-transformers, model2vec.

Both take the plain mean of the rows of a text's tokens, special ones left out. So the weight of a
token is folded into its row: the mean is parallel to the weighted mean of m2dr, of another length.
"""

# Shapes in this file:
#   V tokens, K dims that are kept.

import json
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError, nearest
from m2dr.io import contents, locked
from m2dr.jsontext import quoted
from m2dr.model.foreign import MODEL_SETTINGS
from m2dr.model.places import ASIDE, MODULES, WEIGHTS, is_half_written
from m2dr.model.readme import write_static_readme
from m2dr.model.static import Dtype, Floats, StaticEncoder, open_static, quantised
from m2dr.model.tokenizer import FILE

_LARGEST = 16  # of fp16 rows, so that a sum of hundreds stays finite
_NUMPY = {"fp16": "float16", "fp32": "float32", "int8": "int8"}


@dataclass(frozen=True)
class StaticFolder:
    """What was written."""

    folder: Path
    format: str
    tokens: int
    dim: int
    dtype: Dtype
    notes: tuple[str, ...]  # what the format cannot hold, a sentence each


@dataclass(frozen=True)
class _Export:
    """Layer 0, cut to some dims."""

    encoder: StaticEncoder
    rows: NDArray[Any]  # [V, K]
    weights: Floats | None  # [V], by which int8 rows are multiplied; None: folded into them
    dtype: Dtype

    @property
    def dim(self) -> int:
        """How many dims were kept, K."""
        return int(self.rows.shape[1])

    @property
    def tensors(self) -> dict[str, NDArray[Any]]:
        """What model2vec reads; sentence-transformers reads it too."""
        found = {"embeddings": self.rows}
        return found if self.weights is None else {**found, "weights": self.weights}


@dataclass(frozen=True)
class Format:
    """One format. A new one is a row of FORMATS, and the tests run over all rows."""

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
        folder: to write, which is empty or not there.
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
    with locked(folder, "give another --out"):
        if contents(folder) and not is_half_written(folder):
            raise UserError(f"{folder} is not empty; choose another --out.")
        with _aside(folder) as place:
            chosen.write(made, place)
            encoder.tokenizer.write(place / FILE, encoder.card.query_length)
            write_static_readme(encoder.card, made.dim, made.dtype, chosen.name, place)
    tokens, notes = len(made.rows), chosen.notes(made)
    return StaticFolder(folder, chosen.name, tokens, made.dim, made.dtype, notes)


def _require(what: str, asked: str, known: Collection[str]) -> None:
    if asked not in known:
        raise UserError(f"Layer 0 is exported in no {what} {asked!r}. {nearest(asked, known)}")


def _folded(encoder: StaticEncoder, dim: int, dtype: Dtype, folder: Path) -> _Export:
    """Return the rows of all tokens by their weights; of int8 the two stay apart."""
    ids = np.arange(encoder.tokenizer.last_id + 1)
    weights = encoder.table.weights[ids]
    rows = encoder.table.rows(ids, dim) * (weights > 0 if dtype == "int8" else weights)[:, None]
    if dtype == "fp16":  # the rows of frequent tokens are short, and small numbers lose digits
        rows *= 2.0 ** np.floor(np.log2(_LARGEST / np.abs(rows).max(initial=1e-9)))
    kept, scales = quantised(rows, dtype, folder / WEIGHTS)
    return _Export(encoder, kept, None if scales is None else weights * scales, dtype)


def _write_sentence_transformers(made: _Export, folder: Path) -> None:
    card = made.encoder.card
    tensors = {"embedding.weight": made.rows} if made.weights is None else made.tensors
    _save(tensors, folder)
    _write_json(folder / MODULES, _modules())
    settings = {
        "prompts": {"query": card.query_prefix, "document": card.document_prefix},
        "default_prompt_name": None,
        "similarity_fn_name": card.similarity,
    }
    _write_json(folder / MODEL_SETTINGS, settings)


def _write_model2vec(made: _Export, folder: Path) -> None:
    card, tokens = made.encoder.card, made.encoder.tokenizer.ids
    tensors = dict(made.tensors)
    if len(made.rows) != tokens:  # ids that no token has: model2vec asks for a mapping then
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
    _write_json(folder / "config.json", config)
    _write_json(folder / MODULES, _modules("Normalize") if normalize else _modules())


def _prompt_note(made: _Export) -> tuple[str, ...]:
    prefix = made.encoder.card.query_prefix
    told = f"model2vec puts nothing before a text: put {quoted(prefix)} before each query yourself."
    return (told,) if prefix else ()


FORMATS = {
    row.name: row
    for row in (
        Format("sentence-transformers", _write_sentence_transformers, lambda _: ()),
        Format("model2vec", _write_model2vec, _prompt_note),
    )
}


def _modules(*behind: str) -> list[dict[str, object]]:
    """Return modules.json of sentence-transformers, as model2vec writes it too."""
    places = [("StaticEmbedding", ""), *((kind, f"{n}_{kind}") for n, kind in enumerate(behind, 1))]
    return [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(places)
    ]


def _save(tensors: dict[str, NDArray[Any]], folder: Path) -> None:
    from safetensors.numpy import save

    data = save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})
    (folder / WEIGHTS).write_bytes(data)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """Lend a folder within, and move its files out of it when all of them are written."""
    place = folder / ASIDE
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        yield place
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    for path in sorted(place.iterdir()):
        path.replace(folder / path.name)
    place.rmdir()
