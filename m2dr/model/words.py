"""Words as a query encoder that runs no layer: a vector per word of a corpus, without torch.

Of a text, each word counts √(its number) · its weight; the row of these numbers, scaled to length
one, times the table is the vector. How tables are fitted: m2dr/maps/words.py.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from m2dr.core.analyzer import Analyzer
from m2dr.core.arrays import Array, Float32, Int64
from m2dr.core.errors import UserError
from m2dr.core.files import explain_failure, write_bytes
from m2dr.model.hub import WORDS

# Shapes in this file:
#   N texts, F words, W dims of the embedding, K dims that are asked for, L layers.

_BESIDE = "beside."  # begins the name of a layer's matrix
Parts = dict[str, Float32]  # what adds up to a vector, [W] each, by word and by names such as REST
REST = "(rest of the query)"  # of a query: all that is no sum over its words


@dataclass(frozen=True)
class WordTable:
    """The content of words.safetensors. Of the mapped table only rows of used words are read.

    Attributes:
        rows: row of each word, a stem of the analyzer.
        weights: [F] float32.
        table: [F, W] float16.
        language: of the stems.
        limit: words of a text that are read.
        alone: [F, W] float16, fitted to documents alone where the table learned from short texts
            too; exits, a mix and a bridge read it.
        beside: by layer from 1, the matrix [W, W] that takes the vector of a text's words, of
            length one, to what is added to the output of the layer's exit.
        bridge: [V, W], what takes the vectors of another model's queries to those of the words.
        query_model: digest of that model and of how it encodes; empty without one.
        path: for messages.
    """

    rows: Mapping[str, int]
    weights: Float32
    table: Array
    language: str
    limit: int
    alone: Array | None = None
    beside: Mapping[int, Float32] = field(default_factory=dict)
    bridge: Float32 | None = None
    query_model: str = ""
    path: Path = Path(WORDS)

    @property
    def width(self) -> int:
        """Dims of a vector, W."""
        return int(self.table.shape[1])

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers whose vectors words are part of, increasing; 0 is words alone."""
        return (0, *sorted(self.beside))

    @cached_property
    def analyzer(self) -> Analyzer:
        """Splits texts into words."""
        return Analyzer(self.language)

    @cached_property
    def of_documents(self) -> "WordTable":
        """The words that were fitted to documents alone: short texts imitate the full model."""
        return self if self.alone is None else replace(self, table=self.alone, alone=None)

    def tokenize(self, text: str) -> list[int]:
        """Return the rows of the words of a text that are known, in order, repeated ones too."""
        words = self.analyzer(text)[: self.limit]
        return [row for row in map(self.rows.get, words) if row is not None]

    def embed(self, texts: Sequence[str], dim: int | None = None) -> Float32:
        """Return the vectors of texts, [N, K] float32, not normalised; 0 without a known word.

        Args:
            texts: N of them, without prefix.
            dim: K, by default W.

        Raises:
            UserError: there are fewer dims, or a row that is used is not finite.
        """
        return self.embed_tokens([self.tokenize(text) for text in texts], dim)

    def embed_tokens(self, tokens: Sequence[Sequence[int]], dim: int | None = None) -> Float32:
        """Return what `embed` gives for N texts, of which `tokenize` gave the rows."""
        if dim is not None and not 1 <= dim <= self.width:
            raise UserError(f"Dim {dim} was asked for; layer 0 has {self.width} ({self.path}).")
        table = self.table if dim in (None, self.width) else self.table[:, :dim]
        vectors = np.zeros((len(tokens), table.shape[1]), np.float32)
        for vector, own in zip(vectors, tokens, strict=True):
            rows, shares = self._shares(own)
            np.dot(shares, table[rows].astype(np.float32), out=vector)
        if not np.isfinite(vectors).all():
            raise UserError(f"{self.path} holds a number that is not finite.")
        return vectors

    def _shares(self, tokens: Sequence[int]) -> tuple[Int64, Float32]:
        """Return the different rows of a text, and how much of each is in its vector."""
        counts = Counter(tokens)
        rows = np.fromiter(counts, np.int64, len(counts))
        shares = np.sqrt(np.fromiter(counts.values(), np.float32, len(counts)))
        return rows, unit_rows(shares * self.weights[rows])

    def parts(self, text: str, layer: int = 0) -> Parts:
        """Return what each known word adds to the vector of a text at a layer that reads words.

        Words are as the text writes them. The sum is what `embed` gives, or what `add` adds to the
        output of an exit.
        """
        rows, shares = self._shares(self.tokenize(text))
        table = self.of_documents.table if layer else self.table
        added = shares[:, None] * table[rows].astype(np.float32)
        written = self.analyzer.written(text, self.limit).items()
        names = {self.rows[stem]: form for stem, form in written if stem in self.rows}
        parts = {names[row]: part for row, part in zip(rows.tolist(), added, strict=True)}
        if not layer:
            return parts
        return {name: part @ self.beside[layer] for name, part in scaled(parts, 1.0).items()}

    def mixed(self, vectors: Float32, texts: Sequence[str], weight: float) -> Float32:
        """Return the vectors [N, W] of texts, of length one, plus `weight` times their words'."""
        words = self.of_documents.embed(texts)
        return unit_rows(vectors) + np.float32(weight) * unit_rows(words)

    def bridged(self, vectors: Float32, texts: Sequence[str]) -> Float32:
        """Map query-model vectors [N, V] to the document space, and add words with weight 1.

        Both parts have length one; the sum is [N, W].
        """
        assert self.bridge is not None, "the model of the bridge was compared"
        return self.mixed(vectors @ self.bridge, texts, 1.0)

    def add(self, vectors: Float32, layers: Sequence[int], texts: Sequence[str]) -> None:
        """Add what the words of texts say to the vectors of the layers that read words.

        Args:
            vectors: [L, N, W], changed in place.
            layers: L of them.
            texts: N of them, without prefix.
        """
        if not set(layers) & set(self.layers):
            return
        unit = unit_rows(self.of_documents.embed(texts)) if self.beside else None
        for place, layer in enumerate(layers):
            if unit is not None and layer in self.beside:
                vectors[place] += unit @ self.beside[layer]
            elif layer == 0:
                vectors[place] += self.embed(texts)[:, : vectors.shape[2]]

    def cut(self, layer: int, dim: int) -> "WordTable":
        """Return what one layer needs, cut to the first dims; beside an exit rows stay whole."""
        if layer in self.beside:
            return replace(self.of_documents, beside={layer: self.beside[layer][:, :dim]})
        return replace(self, beside={}, alone=None, table=self.table[:, :dim])

    def write(self, folder: Path) -> None:
        """Write words.safetensors into a folder, whole or not at all.

        Raises:
            UserError: a number is not finite or too large, or the system refused to write.
        """
        from safetensors.numpy import save

        path = folder / WORDS
        tables = {"table": self.table} | ({} if self.alone is None else {"alone": self.alone})
        tensors: dict[str, Array] = {"weights": self.weights}
        with np.errstate(over="ignore"):  # infinite numbers are refused below
            tensors |= {name: np.ascontiguousarray(t, np.float16) for name, t in tables.items()}
        if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
            raise UserError(f"{path} cannot be written: a number is not finite or above 65,504.")
        tensors["words"] = np.frombuffer("\n".join(self.rows).encode(), np.uint8)
        tensors |= {f"{_BESIDE}{n}": np.ascontiguousarray(m) for n, m in self.beside.items()}
        # One entry, because safetensors writes several in an order that differs from run to run.
        about = {"language": self.language, "limit": self.limit}
        if self.bridge is not None:
            tensors["bridge"] = np.ascontiguousarray(self.bridge)
            about["query_model"] = self.query_model
        write_bytes(path, save(tensors, {"m2dr": json.dumps(about)}))

    @classmethod
    def open(cls, folder: Path) -> "WordTable":
        """Open what `write` wrote, the table as a memory map.

        Raises:
            UserError: there is none, or it is damaged.
        """
        path = folder / WORDS
        if not path.is_file():
            raise UserError(f"{folder} has no {WORDS}, so that nothing can run at layer 0.")
        with explain_failure(f"{path} cannot be read"):
            file = np.memmap(path, np.uint8, "r")
            start = 8 + int(file[:8].view("<u8")[0])  # behind the header; the format is safetensors
            header = json.loads(bytes(file[8:start]))
            about = json.loads(header.pop("__metadata__")["m2dr"])
            kinds = {"F16": "<f2", "F32": "<f4", "U8": "u1"}

            def read(name: str) -> Array:
                entry = header[name]
                begin, end = (start + offset for offset in entry["data_offsets"])
                tensor = np.asarray(file[begin:end]).view(kinds[entry["dtype"]])
                return tensor.reshape(entry["shape"])

            words = bytes(read("words")).decode().split("\n")
            beside = {
                int(name.removeprefix(_BESIDE)): np.array(read(name))
                for name in header
                if name.startswith(_BESIDE)
            }
            rows = {word: row for row, word in enumerate(words)} if words != [""] else {}
            table, weights = read("table"), np.array(read("weights"))
            if not len(rows) == len(table) == len(weights):
                raise ValueError("its tensors do not belong together")
            Analyzer(about["language"])
            bridge = np.array(read("bridge")) if "bridge" in header else None
            alone = read("alone") if "alone" in header else None
            return cls(
                rows, weights, table, about["language"], about["limit"], alone, beside, bridge,
                about.get("query_model", ""), path,
            )  # fmt: skip


def unit_rows(vectors: Float32) -> Float32:
    """Return vectors of length one; one of length zero stays as it is."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: Float32 = vectors / np.maximum(lengths, np.float32(1e-12))
    return unit


def scaled(parts: Parts, length: float) -> Parts:
    """Return parts whose sum has a length; of a sum of length zero they stay as they are."""
    before = np.linalg.norm(sum(parts.values(), np.zeros(1, np.float32)))
    scale = np.float32(length / max(float(before), 1e-12))
    return {name: scale * part for name, part in parts.items()}


def with_rest(parts: Parts, vector: Float32) -> Parts:
    """Return parts, and what is missing of a vector [W] beside them."""
    return parts | {REST: vector - sum(parts.values(), np.zeros(1, np.float32))}
