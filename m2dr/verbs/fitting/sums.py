"""What a fit has read so far: moments, texts that are held out, and vectors for the rotation."""

# Shapes in this file:
#   S shallow layers, N texts, P dims of a pooled state, F features of the tokens, W dims of the
#   embedding.

import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError
from m2dr.io import read_bytes, write_whole
from m2dr.train.fit import Moments, Sample

WINDOW = 1024  # texts that are read between two looks at what there is
HELD_OUT = 1024  # texts to choose λ by, at most; never part of the moments
_ONE_OF = 8  # of so many texts one is held out, until there are enough
VECTORS = 8192  # embeddings that the rotation is fitted on, at most

_AGAIN = "Begin the fit again with --overwrite."

Arrays = dict[str, NDArray[Any]]


@dataclass
class Sums:
    """Sums over windows of texts, whichever process read them.

    Attributes:
        moments: of all texts and snippets but those held out.
        snippets: how many of what the moments are of are parts of other texts.
        windows: numbers of the windows that are in.
        held_out: by window, texts that are held out.
        vectors: by window, embeddings [N, W].
    """

    moments: Moments
    snippets: int = 0
    windows: list[int] = field(default_factory=list)
    held_out: dict[int, Sample] = field(default_factory=dict)
    vectors: dict[int, NDArray[np.float32]] = field(default_factory=dict)

    def add(self, window: int, sample: Sample, of: NDArray[np.int64]) -> None:
        """Add a window of texts, in their order, and snippets of them, held out as their texts are.

        Args:
            window: its number.
            sample: the texts, then the snippets.
            of: the place of the text that each snippet is of.

        Raises:
            ValueError: a value is not finite.
        """
        first, texts = window * WINDOW, len(sample) - len(of)
        places = np.arange(first, first + texts)
        held = (places % _ONE_OF == _ONE_OF - 1) & (places < HELD_OUT * _ONE_OF)
        held = np.concatenate([held, held[of]])
        self.moments.add(_rows(sample, ~held))
        self.snippets += int((~held[texts:]).sum())
        if held.any():
            self.held_out[window] = _rows(sample, held)
        if first < VECTORS:
            self.vectors[window] = sample.targets[: min(VECTORS - first, texts)]
        self.windows.append(window)

    def merge(self, other: "Sums") -> None:
        """Add what another process has read."""
        self.moments.merge(other.moments)
        self.snippets += other.snippets
        self.windows += other.windows
        self.held_out |= other.held_out
        self.vectors |= other.vectors

    @property
    def texts(self) -> int:
        """How many texts the moments are of."""
        return self.moments.count - self.snippets

    def sample(self) -> Sample:
        """Return the texts that are held out, in the order of their windows; there may be none."""
        kept = [self.held_out[window] for window in sorted(self.held_out)]
        if not kept:
            width, features = self.moments.targets(0).shape[1], len(self.moments.targets(0)) - 1
            empty = np.empty((self.moments.layers, 0, 0), np.float32)
            return Sample(
                empty, np.empty((0, features), np.float32), np.empty((0, width), np.float32)
            )
        return sum(kept[1:], kept[0])

    def embeddings(self) -> NDArray[np.float32]:
        """Return the embeddings that are kept, in the order of their windows, [N, W]."""
        return np.concatenate([self.vectors[window] for window in sorted(self.vectors)])

    def write(self, path: Path) -> None:
        """Write everything to a file, whole or not at all."""
        arrays: Arrays = {f"moments/{name}": found for name, found in self.moments.arrays().items()}
        arrays["windows"] = np.array(self.windows, np.int64)
        arrays["snippets"] = np.array(self.snippets, np.int64)
        for window, sample in self.held_out.items():
            for name in ("states", "tokens", "targets"):
                arrays[f"{name}/{window}"] = getattr(sample, name)
        arrays |= {f"vectors/{window}": found for window, found in self.vectors.items()}
        data = io.BytesIO()
        np.savez(data, allow_pickle=False, **arrays)
        write_whole(path, data.getbuffer())

    @classmethod
    def read(cls, path: Path, layers: int, wide: bool) -> "Sums":
        """Read what `write` wrote.

        Raises:
            UserError: the file is damaged.
        """
        try:
            with np.load(io.BytesIO(read_bytes(path, _AGAIN)), allow_pickle=False) as file:
                arrays = dict(file)
            return cls._of(arrays, layers, wide)
        except (ValueError, KeyError, EOFError, BadZipFile) as error:
            raise UserError(f"{path} is damaged ({error}). {_AGAIN}") from error

    @classmethod
    def _of(cls, arrays: Arrays, layers: int, wide: bool) -> "Sums":
        def under(name: str) -> Iterable[tuple[str, NDArray[Any]]]:
            prefix = f"{name}/"
            return ((k.removeprefix(prefix), v) for k, v in arrays.items() if k.startswith(prefix))

        held = {
            int(window): Sample(states, arrays[f"tokens/{window}"], arrays[f"targets/{window}"])
            for window, states in under("states")
        }
        vectors = {int(window): found for window, found in under("vectors")}
        windows = [int(window) for window in arrays["windows"]]
        moments = Moments.of(dict(under("moments")), layers, wide)
        return cls(moments, int(arrays["snippets"]), windows, held, vectors)


def _rows(sample: Sample, chosen: NDArray[np.bool_]) -> Sample:
    return Sample(sample.states[:, chosen], sample.tokens[chosen], sample.targets[chosen])
