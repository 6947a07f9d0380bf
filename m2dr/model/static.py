"""Layer 0: a query encoder that is a table of token vectors, without torch or transformers.

The vector of a text is the weighted mean of its tokens' rows: the sum of w[t] table[t] over the sum
of w[t]. Special tokens have the weight 0.
"""

# Shapes in this file:
#   V tokens of the tokenizer, W dims of the embedding, N texts, T tokens of all of them,
#   K dims that are asked for.

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from m2dr.core.errors import UserError, command, nearest
from m2dr.core.files import write_bytes
from m2dr.core.records import EXITS_FILE, ModelCard, Side
from m2dr.model.checkpoint import check_exits, fit_again, read_card
from m2dr.model.hub import STATIC, TOKENIZER, find_folder, transformer_folder
from m2dr.model.st_folder import lowercases
from m2dr.model.tokenizer import FileTokenizer, read_tokenizer, tokenize

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
Dtype = Literal["fp16", "fp32", "int8"]

_DTYPES: dict[str, np.dtype[Any]] = {  # by their names in safetensors
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "I8": np.dtype("i1"),
}
_LARGEST = 127  # of int8: the largest value of a row after scaling
_HEADER = 2**20  # bytes of a header at most; this one has some hundred
_AT_ONCE = 4096  # texts whose rows are held as float32 at a time
_AGAIN = "Copy the whole folder again, or fit the model again."


@dataclass(frozen=True)
class StaticTable:
    """The content of layer_0.safetensors; of a mapped table only rows that are used are read."""

    table: NDArray[Any]  # [V, W], float16, float32 or int8
    weights: Floats  # [V], 0 for special tokens
    scales: Floats | None = None  # [V], by which an int8 row is multiplied
    path: Path = Path(STATIC)  # for messages

    @property
    def tokens(self) -> int:
        """Number of rows, V."""
        return len(self.table)

    @property
    def width(self) -> int:
        """Dims of a vector, W."""
        return int(self.table.shape[1])

    def embed(self, rows: Sequence[Sequence[int]], dim: int | None = None) -> Floats:
        """Return the vectors of token rows, [N, K], not normalised.

        The vector of a text without tokens of a weight above 0 is 0.

        Args:
            rows: token ids of N texts, with the special ones or without.
            dim: K, by default W.

        Raises:
            UserError: there are fewer dims, an id has no row, or a row that is used is not finite.
        """
        vectors = np.zeros((len(rows), self.check(dim)), np.float32)
        for start in range(0, len(rows), _AT_ONCE):
            self._fill(vectors[start : start + _AT_ONCE], rows[start : start + _AT_ONCE])
        if not np.isfinite(vectors).all():
            raise _damaged(self.path, "holds a number that is not finite")
        return vectors

    def rows(self, ids: ArrayLike, dim: int | None = None) -> Floats:
        """Return the rows of some tokens without their weights, [n, K] float32.

        Raises:
            UserError: there are fewer dims, or an id has no row.
        """
        return self._rows(self._checked(ids), self.check(dim))

    def _fill(self, vectors: Floats, rows: Sequence[Sequence[int]]) -> None:
        """Write the vectors of some texts into zeros [N, K]."""
        dim = vectors.shape[1]
        if len(rows) == 1:  # finding repeated tokens costs more than reading them twice
            ids = self._checked(rows[0])
            _weigh(self.weights.take(ids), self._rows(ids, dim), vectors[0])
            return
        ids = self._checked(list(chain.from_iterable(rows)))
        used, positions = np.unique(ids, return_inverse=True)
        known, weights = self._rows(used, dim), self.weights.take(ids)
        end = 0
        for vector, row in zip(vectors, rows, strict=True):
            begin, end = end, end + len(row)
            _weigh(weights[begin:end], known.take(positions[begin:end], axis=0), vector)

    def _rows(self, ids: Ids, dim: int) -> Floats:
        """Return the rows of ids that were checked, [n, K] float32."""
        full = dim == self.width  # of a slice, `take` would copy all of the table first
        held = self.table.take(ids, axis=0) if full else self.table[:, :dim][ids]
        found: Floats = held.astype(np.float32)
        if self.scales is not None:
            found *= self.scales[ids, None]
        return found

    def check(self, dim: int | None) -> int:
        """Return K, which is W where no dim was asked for.

        Raises:
            UserError: there are fewer dims.
        """
        if dim is not None and not 1 <= dim <= self.width:
            raise UserError(f"Dim {dim} was asked for; layer 0 has {self.width} ({self.path}).")
        return self.width if dim is None else dim

    def _checked(self, row: ArrayLike) -> Ids:
        """Return ids [T], refusing one that the table has no row for."""
        ids = np.asarray(row, np.int64)
        # As unsigned numbers, negative ones are too large too.
        if ids.size and ids.view(np.uint64).max() >= self.tokens:
            strange = ids[(ids < 0) | (ids >= self.tokens)][0]
            raise UserError(
                f"Token {strange} was asked for, and {self.path} has rows of {self.tokens} tokens; "
                f"it was made for another tokenizer. {_again(self.path)}"
            )
        return ids


def _weigh(weights: Floats, rows: Floats, vector: Floats) -> None:
    """Write the mean of rows [T, K] by weights [T] into zeros [K]."""
    total = weights.sum()
    if total > 0:
        np.dot(weights, rows, out=vector)
        vector /= total


@dataclass(frozen=True)
class StaticEncoder:
    """Layer 0 of a model. Safe to use from several threads."""

    card: ModelCard
    tokenizer: FileTokenizer
    table: StaticTable

    def embed_ids(self, rows: Sequence[Sequence[int]], dim: int | None = None) -> Floats:
        """Return the vectors of token rows, [N, K], as `StaticTable.embed` does."""
        return self.table.embed(rows, dim)

    def embed(self, texts: Sequence[str], side: Side = "query", dim: int | None = None) -> Floats:
        """Return the vectors of texts, [N, K], not normalised.

        Args:
            texts: N of them; each gets the model's prefix, and is cut at its length.
            side: whether they are queries or documents.
            dim: K, by default W.

        Raises:
            UserError: as for `StaticTable.embed`.
        """
        return self.table.embed(tokenize(self.card, self.tokenizer, texts, side), dim)


def open_static(name: str | Path, folder: Path | None = None) -> StaticEncoder:
    """Open layer 0 of a model.

    Args:
        name: folder or id of the model.
        folder: of the table, where it is not the model's own. A tokenizer.json beside the table is
            read in place of the model's, and an exits.json there must be the table's record.

    Raises:
        UserError: no such model, no table, one that is damaged or another model's, or a tokenizer
            that has no tokenizer.json.
    """
    card, model = read_card(name), find_folder(str(name))
    inner = transformer_folder(model)
    table_folder = folder or inner
    if folder is not None and (folder / EXITS_FILE).exists():
        check_exits(folder, card.fingerprint, STATIC)
    if not (table_folder / STATIC).exists():
        why = f"the model is not fitted. Fit it with: {command('fit', backbone=name)}"
        raise UserError(
            f"{table_folder} has no {STATIC}, so that no query can run at layer 0: "
            f"{why if folder is None else f'no exits were fitted. {fit_again(table_folder)}'}"
        )
    table = read_static(table_folder)
    beside = (table_folder / TOKENIZER).exists()
    tokenizer = read_tokenizer(table_folder if beside else inner, lowercases(model))
    if table.width != card.width:
        raise UserError(
            f"{table.path} holds vectors of {table.width} dims, and those of {name} have "
            f"{card.width}; it is another model's. {_again(table.path)}"
        )
    if tokenizer.own_ids > table.tokens:
        raise UserError(
            f"{table.path} has rows of {table.tokens} tokens, and the tokenizer of {name} gives "
            f"{tokenizer.own_ids}; it was made for another tokenizer. {_again(table.path)}"
        )
    for length in ("query_length", "document_length"):
        tokenizer.require_room(getattr(card, length), f"{name} has {length}")
    return StaticEncoder(card, tokenizer, table)


@dataclass(frozen=True)
class _Tensor:
    """A tensor in the header of a safetensors file."""

    dtype: Literal["F16", "F32", "I8"]
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]  # of its bytes, behind the header


@dataclass(frozen=True)
class _Header:
    """The header of layer_0.safetensors."""

    table: _Tensor
    weights: _Tensor
    scales: _Tensor | None = None
    __metadata__: dict[str, str] = field(default_factory=dict)


def read_static(folder: Path) -> StaticTable:
    """Open the table in a folder as a memory map, of which opening reads next to nothing.

    Raises:
        UserError: there is none, or it is not as `write_static` writes it.
    """
    path = folder / STATIC
    if not path.is_file():
        raise UserError(f"{path} is no file, where the table of layer 0 belongs.")
    try:
        header, start = _read_header(path)
        _check_shapes(header, path.stat().st_size - start)
        table = StaticTable(
            _mapped(path, start, header.table),
            np.array(_mapped(path, start, header.weights)),
            np.array(_mapped(path, start, header.scales)) if header.scales else None,
            path,
        )
    except (ValueError, msgspec.MsgspecError) as error:
        raise _damaged(path, str(error)) from error
    except struct.error as error:
        raise _damaged(path, "ends before its header does") from error
    except OSError as error:
        raise _damaged(path, f"cannot be read ({error.strerror or error})") from error
    _check_numbers(table)
    return table


def write_static(folder: Path, table: Floats, weights: Floats, dtype: Dtype = "fp16") -> None:
    """Write the table of layer 0 into a folder, whole or not at all.

    Args:
        folder: of a model, or of an index's exits.
        table: [V, W], a row per token id.
        weights: [V], at least 0; 0 for special tokens.
        dtype: of the rows; each int8 row has a scale.

    Raises:
        UserError: there is no such dtype, a number is not finite or too large for it, a weight is
            negative, or all are 0; or the system refused to write.
        ValueError: the shapes do not agree.
    """
    from safetensors.numpy import save

    if dtype not in get_args(Dtype):
        raise UserError(f"A table cannot be kept as {dtype!r}. {nearest(dtype, get_args(Dtype))}")
    if table.ndim != 2 or weights.shape != table.shape[:1]:
        raise ValueError(f"A table of {table.shape} and weights of {weights.shape} do not agree.")
    path = folder / STATIC
    kept, scales = quantised(table, dtype, path)
    weights = np.ascontiguousarray(weights, np.float32)
    _check_numbers(StaticTable(kept, weights, scales, path))
    tensors = {"table": kept, "weights": weights, "scales": scales}
    write_bytes(path, save({name: one for name, one in tensors.items() if one is not None}))


def quantised(table: Floats, dtype: Dtype, path: Path) -> tuple[NDArray[Any], Floats | None]:
    """Return a table [V, W] in a dtype, and for int8 the scales [V] of its rows.

    Raises:
        UserError: a number is not finite, or too large for the dtype; `path` names the file.
    """
    with np.errstate(over="ignore"):  # infinite numbers are refused below
        kept = np.ascontiguousarray(table, np.float16 if dtype == "fp16" else np.float32)
    if not np.isfinite(kept).all():
        raise UserError(
            f"{path} cannot be written as {dtype}: a number of the table is not finite, or too "
            "large for it. Look at the model's weights."
        )
    if dtype != "int8":
        return kept, None
    scales = np.abs(kept).max(axis=1) / _LARGEST
    divisors = np.where(scales > 0, scales, 1)[:, None]
    return np.rint(kept / divisors).astype(np.int8), scales


def _read_header(path: Path) -> tuple[_Header, int]:
    """Read the header of a safetensors file, and the offset of its tensors."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        if size > _HEADER:
            raise ValueError(f"has a header of {size} bytes")
        return msgspec.json.decode(file.read(size), type=_Header), 8 + size


def _check_shapes(header: _Header, size: int) -> None:
    """Refuse tensors that do not match, or do not fill the `size` bytes behind the header."""
    table, scales = header.table, header.scales
    if len(table.shape) != 2 or min(table.shape) < 1:
        raise ValueError(f"has a table of shape {list(table.shape)}")
    if (scales is not None) != (table.dtype == "I8"):
        raise ValueError(f"has a table of {table.dtype} and {'' if scales else 'no '}scales")
    end = 0
    for name, one in (("table", table), ("weights", header.weights), ("scales", scales)):
        if one is None:
            continue
        if name != "table" and (one.shape, one.dtype) != (table.shape[:1], "F32"):
            raise ValueError(f"has {name} of {one.dtype} and shape {list(one.shape)}")
        begin, stop = one.data_offsets
        if begin < 0 or stop - begin != prod(one.shape) * _DTYPES[one.dtype].itemsize:
            raise ValueError(f"has {stop - begin} bytes of {name}")
        end = max(end, stop)
    if end != size:
        raise ValueError(f"has {size} bytes of tensors, and its header speaks of {end}")


def _mapped(path: Path, start: int, tensor: _Tensor) -> NDArray[Any]:
    """Return a tensor as a view of the file."""
    offset = start + tensor.data_offsets[0]
    return np.asarray(np.memmap(path, _DTYPES[tensor.dtype], "r", offset, tensor.shape))


def _check_numbers(table: StaticTable) -> None:
    """Refuse weights and scales that no table has; rows are checked when they are used."""
    for name, numbers in (("weights", table.weights), ("scales", table.scales)):
        if numbers is not None and not (np.isfinite(numbers).all() and numbers.min() >= 0):
            raise _damaged(table.path, f"has {name} that are negative or not finite")
    if not table.weights.any():
        raise _damaged(table.path, "has no token whose weight is above 0")


def _damaged(path: Path, what: str) -> UserError:
    """Return the error for a damaged table."""
    return UserError(f"{path} {what}, which no table of layer 0 has. {_again(path)}")


def _again(path: Path) -> str:
    """Return how to make a table again: that of an index, with a record beside it, or a model's."""
    return fit_again(path.parent) if (path.parent / EXITS_FILE).exists() else _AGAIN
