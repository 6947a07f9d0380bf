"""The settings of `m2dr fit`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from m2dr.records.fit import FitInputs, Rotation
from m2dr.records.variant import DocumentLayer
from m2dr.settings.reading import read_settings


@dataclass(frozen=True)
class FitSettings:
    """One fit of exits. Every number that changes a result is here, none in the code."""

    backbone: str = "minilm"  # Hugging Face id or folder, of a trained model too
    corpus: str = "pydocs"  # its documents and training queries; .txt files too; several by commas
    texts: int = 0  # how many are read; 0: until the exits get no better by more
    length: int = 64  # tokens of a text that are read, at most
    rotation: Rotation = "learned"  # of the embedding, so that its prefixes are good
    inputs: FitInputs = "tokens+layer"  # what an exit reads
    documents: DocumentLayer = "last"  # which layer's documents a shallow query searches
    identity: int = 0  # random signs per token, which tell tokens apart
    ridge: float = 0.0  # relative to the mean of the diagonal; 0: by the texts that are held out
    seed: int = 13
    device: str = "auto"
    dtype: Literal["auto", "fp32", "bf16"] = "auto"


def read_fit_settings(
    path: Path | None, words: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> FitSettings:
    """Settings of a fit; arguments and errors as `read_settings`."""
    return read_settings(FitSettings, contradictions, path, words, options)


def contradictions(settings: FitSettings) -> list[str]:
    """What is wrong although every value alone is of the right kind."""
    numbers = ("texts", "identity", "ridge", "seed")
    found = [f"{name} cannot be below 0" for name in numbers if getattr(settings, name) < 0]
    if settings.length < 1:
        found.append("length is a number of tokens, from 1")
    if settings.identity > 2**16:
        found.append("identity is at most 65536")
    if settings.seed >= 2**32:
        found.append("seed must be below 4294967296")
    return found
