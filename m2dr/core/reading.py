"""Settings from a TOML file and key=value words, and values of options with a unit, checked."""

import re
import reprlib
import tomllib
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from math import inf, isfinite
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from m2dr.core.errors import UserError
from m2dr.core.option import option_of

Hint: TypeAlias = Any  # what get_type_hints returns: a class, or a form of typing
Settings = TypeVar("Settings")
Verbatim = Annotated[str, "verbatim"]  # a text whose spaces count, also where it is a bare word
_NUMBER = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-zµ%]*)")


def read_settings(
    kind: type[Settings],
    find_problems: Callable[[Settings], list[str]],
    path: Path | None,
    words: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> Settings:
    """Read settings from a TOML file, and over it `key=value` words and command-line options.

    A setting that a word and an option give must have one value.

    Args:
        kind: the dataclass whose fields are the keys.
        find_problems: returns what is wrong although every value alone has the right type.
        path: a file of `key = value` lines; None: no file.
        words: each as `--set` takes it; the value is TOML, or a bare word.
        options: values of command-line options; None is not given.

    Raises:
        UserError: a file or word cannot be read, or settings are wrong; names all of these.
    """
    table: dict[str, Any] = _own_names(_read_toml(path) if path else {}, kind)
    named = _own_names(dict(_parse_word(word, kind) for word in words), kind)
    given = {key: value for key, value in (options or {}).items() if value is not None}
    given = _own_names(given, kind)
    table |= named | given
    problems = _problems(table, kind) + _conflicts(named, given, kind)
    if not problems:
        lists = {key: tuple(value) for key, value in table.items() if isinstance(value, list)}
        settings = kind(**{**table, **lists})
        problems = find_problems(settings)
    if problems:
        where = f"{path}: " if path else "Settings: "
        raise UserError(where + "; ".join(problems) + ".")
    return settings


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"The settings file {path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # TOML and UTF-8 mistakes
        raise UserError(f"{path} is not TOML: {error}.") from error


def _parse_word(word: str, kind: type) -> tuple[str, Any]:
    key, equals, text = word.partition("=")
    if not equals:
        raise UserError(f"--set takes key=value, such as steps=50; found {word!r}.")
    key, value = key.strip(), text.strip()  # a bare word, such as cosine
    try:
        table = tomllib.loads(f"value = {text}")
        value = table["value"] if len(table) == 1 else value
    except tomllib.TOMLDecodeError:
        pass
    except (ValueError, RecursionError) as error:
        raise UserError(f"--set {key}: its value is not TOML: {error}.") from error
    quoted = isinstance(value, str) and value != text.strip()
    return key, value if quoted or not _is_verbatim(key, kind) else text


def _is_verbatim(key: str, kind: type) -> bool:
    hint = get_type_hints(kind, include_extras=True).get(key)
    return Verbatim in (hint, *get_args(hint))


def lists_of(kind: type) -> set[str]:
    """Return the settings that are lists, with the names that the command line has for them."""
    hints = get_type_hints(kind)
    names = {name for name, hint in hints.items() if get_origin(hint) is tuple}
    return names | {word for word, name in _spellings(kind).items() if name in names}


def _spellings(kind: type) -> dict[str, str]:
    """Return the names of settings by the spellings of the command line, such as batch_size."""
    found = {}
    for each in fields(kind):
        described = option_of(each)
        for flag in (*described.flags, *described.old) if described else ():
            found[flag.lstrip("-").replace("-", "_")] = each.name
    return found


def _own_names(table: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return settings by their own names, which those of the command line may stand for.

    Raises:
        UserError: one is given by two names.
    """
    known, found = _spellings(kind), dict[str, Any]()
    for key, value in table.items():
        name = known.get(key, key)
        if name in found:
            raise UserError(
                f"Settings: {key} is given twice, as {name} too; leave one of them out."
            )
        found[name] = value
    return found


def _problems(table: Mapping[str, Any], kind: type) -> list[str]:
    hints = get_type_hints(kind)
    known = [field.name for field in fields(kind)]
    found = []
    for key, value in table.items():
        if key not in known:
            found.append(f"unknown setting {key!r} ({_meant(key, known)})")
        elif not _fits(value, hints[key]):
            found.append(f"{key} = {reprlib.repr(value)} is not {describe(hints[key])}")
    return found


def _conflicts(named: Mapping[str, Any], given: Mapping[str, Any], kind: type) -> list[str]:
    """Name the settings that `--set` and an option of their own give different values."""
    described = {field.name: option_of(field) for field in fields(kind)}
    found = []
    for key in named.keys() & given.keys():
        # A list of a TOML file or of Python code is the tuple of an option.
        word, option = (tuple(v) if isinstance(v, list) else v for v in (named[key], given[key]))
        if word != option:
            each = described.get(key)
            flag = (each and each.name) or key.replace("_", "-")
            found.append(
                f"{key} is {word} by --set and {option} by --{flag}; leave one of them out"
            )
    return sorted(found)


# Names that other trainers give to settings.
_ELSEWHERE = {
    "sampled": "draw",
    "lr": "learning_rate",
    "head_lr": "head_learning_rate",
    "bs": "batch_queries",
    "batch": "batch_queries",
    "batch_size": "batch_queries",
    "per_device_train_batch_size": "batch_queries",
    "epoch": "epochs",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
    "wd": "weight_decay",
    "decay": "weight_decay",
    "tau": "temperature",
    "temp": "temperature",
    "grad_accum": "accumulate",
    "gradient_accumulation_steps": "accumulate",
    "grad_norm": "max_grad_norm",
    "clip": "max_grad_norm",
    "max_length": "document_length",
    "max_seq_length": "document_length",
    "lr_scheduler_type": "schedule",
    "scheduler": "schedule",
    "warmup_ratio": "warmup",
    "warmup_steps": "warmup",
    "eval_steps": "evaluate_steps",
    "logging_steps": "log_steps",
    "model": "backbone",
    "base_model": "backbone",
    "dataset": "corpus",
    "data": "corpus",
    "recipe": "variant",
    "metric": "similarity",
    "num_negatives": "negatives",
    "hard_negatives": "negatives",
    "fp16": "dtype",
    "bf16": "dtype",
    "r": "lora_rank",
    "knowledge_distillation": "distill",
    "kd_loss_type": "distill",
    "teacher_temperature": "distill_temperature",
    "student_temperature": "temperature",
}
_INSTEAD = {  # in settings that lack the first
    "batch_queries": "batch_texts",
    "document_length": "length",
}
_SHOWN = 5  # settings that a hint names at most


def _meant(key: str, known: Sequence[str]) -> str:
    """Return a hint that names a few settings that an unknown one may have meant."""
    word = key.strip().lower().replace("-", "_").lstrip("_")
    other = _ELSEWHERE.get(word, "")
    for name in (word, other, _INSTEAD.get(other, "")):
        if name in known:
            return f"Did you mean {name}?"
    parts = {part for part in word.split("_") if len(part) > 2}
    near = get_close_matches(word, known, n=1, cutoff=0.8)
    near = near or [name for name in known if len(word) > 2 and (word in name or name in word)]
    near = near or [name for name in known if parts & set(name.split("_"))]
    near = near or get_close_matches(word, known, n=2)
    if not near:
        return "no setting has a name like it; docs/settings.md lists all"
    return f"Did you mean {' or '.join(near[:_SHOWN])}?"


def _fits(value: object, hint: Hint) -> bool:
    origin: Any = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if origin is tuple:
        return isinstance(value, list | tuple) and all(_fits(v, get_args(hint)[0]) for v in value)
    if hint is float:
        return isinstance(value, float) and isfinite(value) or _fits(value, int)
    if hint is int:  # of more than 64 bits it fits in no array and in no file of weights
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, hint)


def describe(hint: Hint) -> str:
    """Return the type of a setting in words.

    >>> describe(int | None), describe(tuple[float, ...])
    ('a whole number', 'a list of numbers')
    """
    origin: Any = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(p) for p in get_args(hint) if p is not types.NoneType)
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if origin is tuple:
        words = {int: "whole numbers", float: "numbers", str: "texts"}
        return f"a list of {words[get_args(hint)[0]]}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return words.get(hint, str(hint))


# Values of options that have a unit or are written as name=value. Each function raises ValueError,
# whose text says how the value is written.


def _amount(
    what: str, units: Mapping[str, float], example: str, most: float = inf
) -> Callable[[str], float]:
    """Return a reader of numbers above 0, up to `most`; `units` has the size of each unit."""

    def read(word: str) -> float:
        found = _NUMBER.fullmatch(word.strip().lower())
        number = float(found[1]) * units.get(found[2], 0) if found else 0.0
        if not isfinite(number) or number <= 0:
            raise ValueError(f"{word!r} is no {what} above 0; write it as {example}.")
        if number > most:
            raise ValueError(f"{word!r} is above {most:g}; write it as {example}.")
        return number

    return read


milliseconds = _amount("time", {"": 1, "ms": 1, "s": 1000, "us": 0.001, "µs": 0.001}, "5ms or 0.1s")
size = _amount("size", {"": 1, "b": 1, "kb": 1e3, "kib": 2**10}, "256, 1KB or 1KiB")
count = _amount("number", {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}, "85000000 or 85M")
share = _amount("share", {"": 1, "%": 0.01}, "0.97 or 97%", most=1)


def measure_floor(word: str) -> tuple[str, float]:
    """Read a measure and its least value.

    >>> measure_floor("nDCG@10=.3")
    ('nDCG@10', 0.3)
    """
    measure, _, number = word.rpartition("=")
    try:
        floor = float(number)
    except ValueError:
        floor = float("nan")
    if not measure.strip() or not isfinite(floor):
        raise ValueError(f"{word!r} is no measure and value, such as nDCG@10=.3.")
    return measure.strip(), floor


def search_param(word: str) -> tuple[str, int]:
    """Read a setting of an engine.

    >>> search_param("nprobe=32")
    ('nprobe', 32)
    """
    name, _, number = word.partition("=")
    if not name.strip() or not (number.strip().isdecimal() and number.isascii()):
        raise ValueError(f"{word!r} is no name=number, such as nprobe=32.")
    return name.strip(), int(number)
