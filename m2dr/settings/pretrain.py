"""The settings of `m2dr pretrain`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m2dr.settings.reading import read_settings
from m2dr.settings.run import RunSettings, unreadable_cuts, wrong_run


@dataclass(frozen=True)
class PretrainSettings(RunSettings):
    """One pre-training run. Every number that changes a result is here, none in the code."""

    corpus: str = "pydocs"  # its documents are read; a .txt file of one text per line will do too
    backbone: str = "minilm"  # Hugging Face id or folder; minilm is built in
    checkpoints: tuple[str, ...] = ()  # cuts below the whole, as L2D32; empty: a usual staircase
    encoder_mask: float = 0.2  # share of the tokens that the encoder has to guess
    decoder_mask: float = 0.4  # the same of the decoder, which sees the embedding beside
    length: int = 128  # tokens of a text, special ones included
    batch_texts: int = 32  # per step and process


def read_pretrain_settings(
    path: Path | None, words: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> PretrainSettings:
    """Settings of a pre-training; arguments and errors as `read_settings`."""
    return read_settings(PretrainSettings, contradictions, path, words, options)


def contradictions(settings: PretrainSettings) -> list[str]:
    """What is wrong although every value alone is of the right kind."""
    found = wrong_run(settings, positive=("batch_texts",))
    for name in ("encoder_mask", "decoder_mask"):
        if not 0 < getattr(settings, name) < 1:
            found.append(f"{name} is a share, between 0 and 1")
    if settings.length < 8:
        found.append("length must be 8 or more")
    return found + unreadable_cuts(settings.checkpoints)
