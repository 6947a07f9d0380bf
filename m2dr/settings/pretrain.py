"""The settings of `m2dr pretrain`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from m2dr.settings.reading import read_settings
from m2dr.settings.train import unreadable_cuts


@dataclass(frozen=True)
class PretrainSettings:
    """One pre-training run. Every number that changes a result is here, none in the code."""

    corpus: str = "pydocs"  # its documents are read; a .txt file of one text per line will do too
    backbone: str = "minilm"  # Hugging Face id or folder; minilm is built in
    checkpoints: tuple[str, ...] = ()  # cuts below the whole, as L2D32; empty: a usual staircase
    encoder_mask: float = 0.2  # share of the tokens that the encoder has to guess
    decoder_mask: float = 0.4  # the same of the decoder, which sees the embedding beside
    length: int = 128  # tokens of a text, special ones included

    steps: int = 60  # optimiser steps; a first look, minutes on two cores
    epochs: float = 0.0  # passes over the texts; above 0 it overrules steps
    batch_texts: int = 32  # per step and process
    accumulate: int = 1  # batches per step
    learning_rate: float = 1e-4
    head_learning_rate: float = 1e-4  # of the head that guesses words
    schedule: Literal["linear", "cosine"] = "linear"
    warmup: float = 0.1  # share of the steps
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    dropout: float | None = None  # None: the backbone's own
    seed: int = 13
    device: str = "auto"
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    log_steps: int = 10
    save_steps: int = 25


POSITIVE = (
    "steps",
    "batch_texts",
    "accumulate",
    "learning_rate",
    "head_learning_rate",
    "log_steps",
    "save_steps",
)


def read_pretrain_settings(
    path: Path | None, words: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> PretrainSettings:
    """Settings of a pre-training; arguments and errors as `read_settings`."""
    return read_settings(PretrainSettings, contradictions, path, words, options)


def contradictions(settings: PretrainSettings) -> list[str]:
    """What is wrong although every value alone is of the right kind."""
    found = [f"{name} must be above 0" for name in POSITIVE if getattr(settings, name) <= 0]
    for name in ("encoder_mask", "decoder_mask"):
        if not 0 < getattr(settings, name) < 1:
            found.append(f"{name} is a share, between 0 and 1")
    if settings.length < 8:
        found.append("length must be 8 or more")
    if not 0 <= settings.warmup <= 1:
        found.append("warmup is a share of the steps, from 0 to 1")
    if settings.dropout is not None and not 0 <= settings.dropout < 1:
        found.append("dropout is a share, from 0 to below 1")
    if min(settings.epochs, settings.seed, settings.weight_decay, settings.max_grad_norm) < 0:
        found.append("epochs, seed, weight_decay and max_grad_norm cannot be below 0")
    if settings.seed >= 2**32:
        found.append("seed must be below 4294967296")
    return found + unreadable_cuts(settings.checkpoints)
