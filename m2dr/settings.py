"""One run's settings: a TOML file plus key=value, read once and checked whole."""

import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from m2dr.errors import UserError, nearest
from m2dr.records.card import Pooling, Similarity
from m2dr.records.variant import VARIANTS, Alignment, DocumentLayer, Prefixes, Variant, Weights

Hint: TypeAlias = Any  # what get_type_hints returns: a class, or a form of typing


@dataclass(frozen=True)
class TrainSettings:
    """One training run. Every number that changes a result is here, none in the code.

    A field that is None follows the variant (the recipe's choices) or the backbone (how its
    vectors are pooled and compared).
    """

    variant: str = "full-dim"
    corpus: str = "pydocs"  # a name that `m2dr index corpus --corpus` knows too
    split: str = "train"
    dev: str = "dev"  # split that picks the best checkpoint, where the corpus has it
    backbone: str = "minilm"  # Hugging Face id or folder; minilm is built in

    # The recipe: each overrules one field of the variant's row.
    shallow: bool | None = None
    prefixes: Prefixes | None = None
    full_dim: bool | None = None
    documents: DocumentLayer | None = None
    align: Alignment | None = None
    weights: Weights | None = None
    layers: tuple[int, ...] = ()  # shallow layers to train; empty: all. Of `separate`: the one
    dims: tuple[int, ...] = ()  # prefixes to train; empty: the variant's own

    # What a text becomes.
    pooling: Pooling | None = None
    similarity: Similarity | None = None
    temperature: float | None = None  # divides scores; None: 1 for dot, .05 for cosine
    query_prefix: str | None = None
    document_prefix: str | None = None
    query_length: int = 64  # tokens, special ones included
    document_length: int = 128  # the same

    # The run.
    steps: int = 60  # optimiser steps; a first look, minutes on two cores
    epochs: float = 0.0  # passes over the queries; above 0 it overrules steps
    batch_queries: int = 32  # per step and process
    negatives: int = 0  # per query, beside the other documents of the batch
    negative_source: Literal["auto", "given", "random"] = "auto"  # auto: given where there are any
    accumulate: int = 1  # batches per step; each has only its own in-batch negatives
    learning_rate: float = 1e-4
    schedule: Literal["linear", "cosine"] = "linear"
    warmup: float = 0.1  # share of the steps
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    dropout: float | None = None  # None: the backbone's own
    seed: int = 13
    device: str = "auto"
    dtype: Literal["auto", "fp32", "bf16"] = "auto"  # bf16: autocast, weights stay fp32

    # What is looked at and kept.
    log_steps: int = 10
    save_steps: int = 25
    evaluate_steps: int = 30  # 0: never
    dev_queries: int = 100  # at most
    dev_documents: int = 500  # at most, those that answer the dev queries first

    def recipe(self) -> Variant:
        """The variant's row with the fields that these settings overrule."""
        row = VARIANTS[self.variant]
        names = ("shallow", "prefixes", "full_dim", "documents", "align", "weights")
        chosen = {name: getattr(self, name) for name in names}
        return replace(row, **{name: value for name, value in chosen.items() if value is not None})


POSITIVE = (
    "batch_queries",
    "accumulate",
    "learning_rate",
    "query_length",
    "document_length",
    "log_steps",
    "save_steps",
    "dev_queries",
    "dev_documents",
)
NOT_NEGATIVE = ("epochs", "negatives", "evaluate_steps", "seed", "weight_decay", "max_grad_norm")


def read_train_settings(
    path: Path | None, words: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> TrainSettings:
    """Settings from a TOML file, then `key=value` words, then command-line options.

    Args:
        path: a file of `key = value` lines; the defaults alone when None.
        words: each as `--set` takes it; the value is TOML, or a bare word.
        options: values that were given as options of their own; None is not given.

    Raises:
        UserError: everything that is wrong, at once.
    """
    table: dict[str, Any] = _read_toml(path) if path else {}
    table |= dict(_parse_word(word) for word in words)
    table |= {key: value for key, value in (options or {}).items() if value is not None}
    problems = _problems(table, TrainSettings)
    if not problems:
        lists = {key: tuple(value) for key, value in table.items() if isinstance(value, list)}
        settings = TrainSettings(**{**table, **lists})
        problems = _contradictions(settings)
    if problems:
        where = f"{path}: " if path else "Settings: "
        raise UserError(where + "; ".join(problems) + ".")
    return settings


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"The settings file {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # TOML and UTF-8 mistakes
        raise UserError(f"{path} is not TOML: {error}.") from error


def _parse_word(word: str) -> tuple[str, Any]:
    key, equals, text = word.partition("=")
    if not equals:
        raise UserError(f"--set takes key=value, such as steps=50; found {word!r}.")
    try:
        return key.strip(), tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), text.strip()  # a bare word, such as cosine


def _problems(table: Mapping[str, Any], kind: type) -> list[str]:
    hints = get_type_hints(kind)
    known = [field.name for field in fields(kind)]
    found = []
    for key, value in table.items():
        if key not in known:
            found.append(f"unknown setting {key!r} ({nearest(key, known).rstrip('.')})")
        elif not _fits(value, hints[key]):
            found.append(f"{key} = {value!r} is not {_describe(hints[key])}")
    return found


def _fits(value: object, hint: Hint) -> bool:
    origin: Any = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if origin is tuple:
        return isinstance(value, list | tuple) and all(_fits(v, get_args(hint)[0]) for v in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _describe(hint: Hint) -> str:
    origin: Any = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(p) for p in get_args(hint) if p is not types.NoneType)
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if origin is tuple:
        return "a list of whole numbers"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return words.get(hint, str(hint))


def _contradictions(settings: TrainSettings) -> list[str]:
    """What is wrong although every value alone is of the right kind."""
    found = [f"{name} must be above 0" for name in POSITIVE if getattr(settings, name) <= 0]
    if settings.variant not in VARIANTS:
        found.append(
            f"unknown variant {settings.variant!r} ({nearest(settings.variant, VARIANTS)})"
        )
    if settings.steps <= 0 and settings.epochs <= 0:
        found.append("steps or epochs must be above 0")
    if min((*settings.layers, *settings.dims, 1)) < 1:
        found.append("layers and dims count from 1")
    if not 0 <= settings.warmup <= 1:
        found.append("warmup is a share of the steps, from 0 to 1")
    if settings.temperature is not None and settings.temperature <= 0:
        found.append("temperature must be above 0")
    found += [f"{name} cannot be below 0" for name in NOT_NEGATIVE if getattr(settings, name) < 0]
    if settings.seed >= 2**32:
        found.append("seed must be below 4294967296")
    if settings.dropout is not None and not 0 <= settings.dropout < 1:
        found.append("dropout is a share, from 0 to below 1")
    return found
