"""Layer 0: a query encoder that is a table of token vectors, without torch or transformers.

The vector of a text is the weighted mean of its tokens' rows: the sum of w[t] table[t] over the sum
of w[t]. Special tokens have the weight 0.
"""

# Shapes in this file:
#   V tokens of the tokenizer, W dims of the embedding, N texts, T tokens of all of them,
#   K dims that are asked for.

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from m2dr.core.errors import UserError
from m2dr.core.files import explain_failure, write_bytes
from m2dr.core.records import EXITS_FILE, ModelCard, Side
from m2dr.model.checkpoint import check_exits, read_card
from m2dr.model.hub import STATIC, TOKENIZER, find_folder, transformer_folder
from m2dr.model.st_folder import lowercases
from m2dr.model.tokenizer import FileTokenizer, read_tokenizer, tokenize

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
_AT_ONCE = 4096  # texts whose rows are held as float32 at a time


@dataclass(frozen=True)
class StaticTable:
    """The content of layer_0.safetensors; of a mapped table only rows that are used are read."""

    table: NDArray[Any]  # [V, W], float16
    weights: Floats  # [V], 0 for special tokens
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
            raise UserError(f"{self.path} holds a number that is not finite.")
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
        rows: Floats = held.astype(np.float32)
        return rows

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
                f"it was made for another tokenizer."
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
        raise UserError(f"{table_folder} has no {STATIC}, so that nothing can run at layer 0.")
    table = read_static(table_folder)
    beside = (table_folder / TOKENIZER).exists()
    tokenizer = read_tokenizer(table_folder if beside else inner, lowercases(model))
    if table.width != card.width:
        raise UserError(
            f"{table.path} holds vectors of {table.width} dims, and those of {name} have "
            f"{card.width}; it is another model's."
        )
    if tokenizer.own_ids > table.tokens:
        raise UserError(
            f"{table.path} has rows of {table.tokens} tokens, and the tokenizer of {name} gives "
            f"{tokenizer.own_ids}; it was made for another tokenizer."
        )
    for length in ("query_length", "document_length"):
        tokenizer.require_room(getattr(card, length), f"{name} has {length}")
    return StaticEncoder(card, tokenizer, table)


def read_static(folder: Path) -> StaticTable:
    """Open the table in a folder as a memory map, of which opening reads next to nothing.

    Raises:
        UserError: there is none, or it is not as `write_static` writes it.
    """
    path = folder / STATIC
    with explain_failure(f"{path} cannot be read"), path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))  # of the header; the format is safetensors
        header = json.loads(file.read(min(size, 2**20)))

        def tensor(name: str, dtype: str) -> NDArray[Any]:
            offset = 8 + size + header[name]["data_offsets"][0]
            return np.asarray(np.memmap(path, dtype, "r", offset, tuple(header[name]["shape"])))

        table = StaticTable(tensor("table", "<f2"), np.array(tensor("weights", "<f4")), path)
        if (header["table"]["dtype"], header["weights"]["dtype"]) != ("F16", "F32"):
            raise ValueError("its numbers are not F16 and its weights not F32")
        _check(table.table, table.weights)
    return table


def write_static(folder: Path, table: Floats, weights: Floats) -> None:
    """Write the table of layer 0 into a folder, whole or not at all, as float16.

    Args:
        folder: of a model, or of an index's exits.
        table: [V, W], a row per token id.
        weights: [V], at least 0; 0 for special tokens.

    Raises:
        UserError: a number is not finite or too large, a weight is negative, or all are 0; or the
            system refused to write.
        ValueError: the shapes do not agree.
    """
    from safetensors.numpy import save

    path = folder / STATIC
    with np.errstate(over="ignore"):  # infinite numbers are refused below
        rows = np.ascontiguousarray(table, np.float16)
    weights = np.ascontiguousarray(weights, np.float32)
    _check(rows, weights)
    if not np.isfinite(rows).all():
        raise UserError(f"{path} was to be written, and a number is not finite or above 65,504.")
    write_bytes(path, save({"table": rows, "weights": weights}))


def _check(table: NDArray[Any], weights: Floats) -> None:
    """Refuse shapes and weights that no table has; rows are checked when they are used."""
    if table.ndim != 2 or weights.shape != table.shape[:1]:
        raise ValueError(f"a table of {table.shape} and weights of {weights.shape} do not agree")
    if not (np.isfinite(weights).all() and weights.min() >= 0 and weights.any()):
        raise UserError("Weights of layer 0 are negative or not finite, or all of them are 0.")
