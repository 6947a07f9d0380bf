"""Settings of `m2dr train`, `m2dr pretrain` and `m2dr fit`, read from files, words and options."""

import difflib
import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from m2dr.core import variants
from m2dr.core.errors import UserError, missing, nearest, quoted
from m2dr.core.option import Option, option, option_of
from m2dr.core.records import Attention, Cut, Pooling, Rotation, Similarity, as_utf8

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class")
Settings = TypeVar("Settings", bound="RunSettings | FitSettings")
LARGEST_SEED = 2**32 - 1

CONFIGS = Path(__file__).parents[1] / "configs"  # files of settings that are installed
REPORTERS = ("tensorboard", "wandb", "mlflow", "trackio")


def _overruling(
    row: type, names: Sequence[str], after: str
) -> Callable[[type[Class]], type[Class]]:
    """Return a decorator that gives settings the fields of a row, so that they are written once.

    Each field keeps its type and description. Its default is None, which leaves it to the row.

    Args:
        row: the dataclass that declares them.
        names: of its fields.
        after: the setting behind which they stand, in files too.
    """
    hints = get_type_hints(row)
    own = {one.name: one for one in fields(row)}

    def add(settings: type[Class]) -> type[Class]:
        known = list(settings.__annotations__.items())
        place = [name for name, _ in known].index(after) + 1
        added = [(name, hints[name] | None) for name in names]
        settings.__annotations__ = dict([*known[:place], *added, *known[place:]])
        for name in names:
            setattr(settings, name, field(default=None, metadata=own[name].metadata))
        return settings

    return add


@dataclass(frozen=True)
class RunSettings:
    """How long and how fast a model is trained, and what is kept meanwhile."""

    steps: int = option(60, "Optimiser steps; the default is for a first look.")
    epochs: float = option(0.0, "Passes over the training data, in place of steps if above 0.")
    accumulate: int = option(1, "Batches per step; each has its own in-batch negatives.", least=1)
    learning_rate: float = option(1e-4, "Peak learning rate.", above=0)
    head_learning_rate: float = option(
        1e-3,
        "Peak learning rate of new parameters: exit heads, projectors, weights.",
        above=0,
    )
    schedule: Literal["linear", "cosine", "constant"] = option(
        "linear", "Decay of the learning rate after warm-up; constant: none."
    )
    warmup: float = option(0.1, "Share of warm-up steps.", most=1)
    weight_decay: float = option(0.01, "Weight decay of AdamW, except of norms and biases.")
    max_grad_norm: float = option(1.0, "Maximum norm of the gradient.")
    dropout: float | None = option(
        None, "Dropout of the encoder. Default: the backbone's.", below=1
    )
    seed: int = option(13, "Random seed.", most=LARGEST_SEED)
    device: str = option("auto", "auto, cpu, cuda or cuda:N.")
    dtype: Literal["auto", "fp32", "bf16"] = option(
        "auto", "Number format of the layers; bf16 is autocast, weights stay fp32."
    )
    log_steps: int = option(10, "Steps between logs of the loss.", least=1)
    save_steps: int = option(25, "Steps between checkpoints.", least=1)
    report_to: str = option(
        "tensorboard",
        f"Loggers of losses and dev measures: {', '.join(REPORTERS)}, several joined by commas, or "
        "none.",
    )

    @property
    def reporters(self) -> tuple[str, ...]:
        """The libraries of `report_to`."""
        names = dict.fromkeys(name.strip() for name in self.report_to.split(","))
        return tuple(name for name in names if name != "none")

    def problems(self) -> Iterator[str]:
        """Yield what is wrong although each value alone is fine."""
        for name in self.reporters:
            if name not in REPORTERS:
                yield f"report_to has {name!r} ({nearest(name, [*REPORTERS, 'none'])})"
            elif find_spec(name) is None:
                yield f"report_to has {name!r}, and {missing(name)}"
        if self.steps == 0 and self.epochs == 0:
            yield "steps or epochs must be above 0"


@dataclass(frozen=True)
@_overruling(variants.Variant, variants.CHOICES, after="revision")
class TrainSettings(RunSettings):
    """One training: the fields below, those of `Variant`, and those of `RunSettings`.

    A field of `Variant` that is None follows the variant's row. Other fields that are None follow
    the backbone or the corpus. Every number that changes a result is a setting.
    """

    variant: str = option("plain", f"The recipe: {', '.join(variants.VARIANTS)}.")
    corpus: str = option("pydocs", "Training data, as for `m2dr index corpus`.")
    split: str = option("train", "Split to train on.")
    dev: str = option("dev", "Split that picks the best checkpoint, if the corpus has it.")
    backbone: str = option("minilm", "Hugging Face id or folder; minilm is built in.")
    revision: str = option("", "Branch, tag or commit of an id. Default: its main branch.")
    # Here stand the fields of Variant, m2dr/core/variants.py.
    refit: bool | None = option(
        None, "Fit exits for every layer after the last step. Default: only for variant plain."
    )
    exits: Literal["", "model"] = option(
        "",
        "Default of --exits for this model: model (its own exits, which papers measured). Default: "
        "those of the index for untrained layers.",
    )
    layers: tuple[int, ...] = option(
        (),
        "Shallow layers to train; for variant separate, layers to cut to. Default: all.",
        "--layers",
        "--layer",
    )
    dims: tuple[int, ...] = option(
        (), "Prefixes to train. Default: those of the variant.", "--dims", "--dim", least=1
    )
    checkpoints: tuple[str, ...] = option(
        (), "Cuts of a staircase or of MIPIC's chain, such as L2D32. Default: evenly spread."
    )
    loss: variants.Loss | None = option(
        None,
        "Base loss. Default: contrastive for documents, angle for scored pairs, simcse for "
        "sentences.",
    )
    loss_weights: tuple[float, ...] = option(
        (1.0, 1.0, 1.0), "Weights of the parts of loss angle: cosine, in-batch, angle."
    )
    neutral: bool = option(True, "Train on neutral pairs of NLI too; AnglE leaves them out.")
    term_weights: tuple[float, ...] = option(
        (1.0, 1.0, 1.0, 1.0),
        "Weights of the base loss at L and H, l and H, L and k, l and k (2DMSE, eq. 7); alignment "
        "has align_weight.",
    )
    candidates: variants.Candidates | None = option(
        None,
        "Candidates of the in-batch part of loss angle: second sentences, or all texts. Default: "
        "second; all with faithful.",
    )
    relations_temperature: float = option(
        1.0,
        "Temperature of MIPIC's token relations (products over the root of the width); published: "
        "0.05.",
        above=0,
    )
    relations_layers: tuple[int, ...] = option(
        (), "Layers of MIPIC's token relations. Default: those of its chain.", least=1
    )
    relations_self: bool = option(
        True, "Let the pooled token, such as [CLS], attend to itself in MIPIC's relations."
    )
    chain_temperature: float = option(0.05, "Temperature of the cosines in MIPIC's chain.", above=0)
    faithful: bool = option(False, "Compute the recipe as its public code does.")

    distill: variants.Distill = option(
        "none", "Loss on a teacher's scores, at every cut that retrieves."
    )
    teacher_scores: str = option("", "File of the teacher's scores. Default: the corpus.")
    distill_weight: float = option(1.0, "Weight of the loss on the teacher's scores.", above=0)
    contrastive_weight: float = option(
        1.0, "Weight of the base loss beside distillation; may be 0."
    )
    distill_temperature: float = option(1.0, "Temperature of the teacher's scores.", above=0)

    attention: Attention | None = option(None, "Attention of a decoder. Default: causal.")
    pooling: Pooling | None = option(None, "Pooling. Default: the backbone's.")
    similarity: Similarity | None = option(None, "Similarity. Default: the backbone's.")
    temperature: float | None = option(
        None, "Temperature of the scores. Default: 1 for dot, 0.05 for cosine.", above=0
    )
    query_prefix: str | None = option(None, "Prompt of a query. Default: the backbone's.")
    document_prefix: str | None = option(None, "Prompt of a document. Default: the backbone's.")
    query_length: int | None = option(
        None, "Maximum tokens of a query. Default: the backbone's.", least=1
    )
    document_length: int | None = option(
        None, "Maximum tokens of a document. Default: the backbone's.", least=1
    )

    batch_size: int = option(32, "Queries per step and process.", least=1)
    negatives: int = option(0, "Negatives per query, beside in-batch negatives.")
    negative_source: Literal["auto", "given", "random"] = option(
        "auto",
        "Negatives: given (by the corpus), random, or auto (given if there are any). Training "
        "prints which.",
    )
    gradient_cache: int = option(
        0, "Maximum tokens in memory at a time, for large batches; 0: the whole batch."
    )
    gradient_checkpointing: bool = option(
        False, "Recompute activations inside layers instead of keeping them."
    )
    lora_rank: int = option(0, "Rank of LoRA matrices, merged at the end; 0: train all weights.")
    lora_alpha: int = option(32, "Scale of LoRA.", least=1)
    lora_dropout: float = option(0.1, "Dropout of LoRA.", below=1)
    evaluate_steps: int = option(30, "Steps between evaluations on dev; 0: none.")
    early_stopping: int = option(
        0, "Evaluations without a better mean on dev before training stops; 0: never."
    )
    dev_queries: int = option(100, "Maximum queries of dev.", least=1)
    dev_documents: int = option(500, "Maximum documents of dev, relevant ones first.", least=1)

    @property
    def refits(self) -> bool:
        """Whether exits are fitted after the last step."""
        return self.variant == "plain" if self.refit is None else self.refit

    @property
    def row(self) -> variants.Variant:
        """The variant's row; that of its public code where `faithful`."""
        published = variants.FAITHFUL.get(self.variant, {}) if self.faithful else {}
        return replace(variants.VARIANTS[self.variant], **published)

    def recipe(self) -> variants.Variant:
        """Return the row with the fields that these settings overrule."""
        given = {name: getattr(self, name) for name in variants.CHOICES}
        return replace(self.row, **{n: value for n, value in given.items() if value is not None})

    def problems(self) -> Iterator[str]:
        """Yield what is wrong although each value alone is fine."""
        yield from super().problems()
        if self.variant not in variants.VARIANTS:
            meant = meant_by(self.variant.lower(), variants.VARIANTS)
            known = f"Did you mean {meant}?" if meant else nearest("", variants.VARIANTS)
            yield f"unknown variant {self.variant!r} ({known})"
        if len(self.loss_weights) != 3:
            yield "loss_weights are three numbers: by cosine, in the batch, by angle"
        if len(self.term_weights) != 4:
            yield "term_weights are four numbers: full model, l and H, L and k, l and k"
        if self.early_stopping and not self.evaluate_steps:
            yield "early_stopping needs a score on dev, and evaluate_steps = 0"
        if self.distill != "none" and self.negatives == 0:
            yield f"distill = {self.distill} compares a query's documents, and negatives = 0"
        if self.distill != "none" and self.negative_source == "random":
            yield f"distill = {self.distill}, and random negatives have no scores"
        yield from _checkpoint_problems(self.checkpoints)


@dataclass(frozen=True)
class PretrainSettings(RunSettings):
    """One pre-training. Every number that changes a result is a setting."""

    corpus: str = option(
        "pydocs", "Documents: as for `m2dr train`, or a .txt file, one text per line."
    )
    backbone: str = option("minilm", "Hugging Face id or folder; minilm is built in.")
    revision: str = option("", "Branch, tag or commit of an id. Default: its main branch.")
    checkpoints: tuple[str, ...] = option(
        (), "Cuts to train below the full model, such as L2D32. Default: evenly spread."
    )
    encoder_mask: float = option(0.2, "Share of masked tokens for the encoder.", above=0, below=1)
    decoder_mask: float = option(
        0.4,
        "Share of masked tokens for the decoder, which also reads the embedding.",
        above=0,
        below=1,
    )
    length: int = option(128, "Maximum tokens of a text.", least=8)
    batch_size: int = option(32, "Texts per step and process.", least=1)

    def problems(self) -> Iterator[str]:
        """Yield what is wrong although each value alone is fine."""
        yield from super().problems()
        yield from _checkpoint_problems(self.checkpoints)


@dataclass(frozen=True)
class FitSettings:
    """One fit of exits. Every number that changes a result is a setting."""

    backbone: str = option("minilm", "Hugging Face id or folder; a trained model too.")
    corpus: str = option(
        "pydocs", "Texts: as for `m2dr train`, or .txt files; several joined by commas."
    )
    texts: int = option(0, "Maximum texts; 0: 20,000.")
    length: int = option(64, "Maximum tokens of a text.", least=1)
    rotation: Rotation = option("learned", "Rotation of the embedding, for better prefixes.")
    language: str = option(
        "", "Snowball language for stemming, or none. Default: detected from the texts."
    )
    queries: str = option("", "Query log (unlabelled): topics, or a .txt file, one query per line.")
    query_weight: float | None = option(
        None, "Weight of --queries in the fit of words; texts have weight 1. Default: 0.2."
    )
    seed: int = option(13, "Random seed.", most=LARGEST_SEED)
    device: str = option("auto", "auto, cpu, cuda or cuda:N.")
    dtype: Literal["auto", "fp32", "bf16"] = option("auto", "Number format of the layers.")
    revision: str = option("", "Branch, tag or commit of an id. Default: its main branch.")

    def problems(self) -> Iterator[str]:
        """Yield what is wrong although each value alone is fine: nothing."""
        yield from ()


def read_settings(
    kind: type[Settings],
    path: Path | None = None,
    words: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> Settings:
    """Read settings from a TOML file; words overrule it, and options overrule both.

    Args:
        kind: the dataclass whose fields are the keys.
        path: a file of `key = value` lines; None: no file.
        words: `key=value` each; the value is TOML, or a bare word, whose spaces count in a text.
        options: values by name; None is not given.

    Raises:
        UserError: a file or word cannot be read, or settings are wrong; names all of these.
    """
    hints, table, typed = get_type_hints(kind), read_table(path), dict[str, Any]()
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise UserError(f"--set takes key=value, such as steps=50; found {word!r}.")
        typed[key.strip()] = _parsed(text, hints.get(key.strip()))
    typed |= {name: value for name, value in (options or {}).items() if value is not None}
    if typed.get("steps") and "epochs" not in typed:
        table.pop("epochs", None)  # of a file, which would count in place of the steps
    settings = request_of(kind, table | typed, str(path or "Settings"))
    problems = list(settings.problems())
    if problems:
        raise UserError(f"{path or 'Settings'}: {'; '.join(problems)}.")
    return settings


def read_table(path: Path | None) -> dict[str, Any]:
    """Return the settings of a file, and beneath them those of the file that its `extends` names.

    Raises:
        UserError: a file cannot be read.
    """
    if path is None:
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:  # TOML and UTF-8 mistakes
        raise UserError(f"{path} is not TOML: {error}.") from error
    base = table.pop("extends", None)
    return read_table(base and path.with_name(str(base))) | table


# Names that other libraries have for an option, and those that it may have here.
_USUAL = {
    "lr": ("learning_rate",), "model": ("backbone",), "model_name": ("backbone", "model"),
    "truncate_dim": ("dim",), "model_name_or_path": ("backbone", "model"), "output_dir": ("out",),
    "eval_dataset": ("dev",), "train_dataset": ("corpus",), "num_train_epochs": ("epochs",),
    "max_steps": ("steps",), "matryoshka_dims": ("dims",), "n_layers": ("layers",),
    "top_k": ("k", "depth"), "topk": ("k", "depth"), "hits": ("k",), "metrics": ("measures",),
    "per_device_train_batch_size": ("batch_size",), "max_length": ("length", "document_length"),
    "matryoshka": ("mrl",), "matryoshkaloss": ("mrl",), "matryoshka2dloss": ("2dmse-st",),
}  # fmt: skip


def meant_by(name: str, known: Iterable[str]) -> str:
    """Return the option that a person may mean by a name; empty where none is near.

    >>> meant_by("lr", ["learning_rate", "layer"])
    'learning_rate'
    """
    words = list(known)
    usual = [each for each in _USUAL.get(name, ()) if each in words]
    return (usual or difflib.get_close_matches(name, words, n=1) or [""])[0]


def request_of(
    kind: type[Class],
    options: Mapping[str, Any],
    where: str = "Options",
    base: Class | None = None,
) -> Class:
    """Return a dataclass of options, each converted to the type of its field.

    A path may stand for a text, one value for several, and numbers of numpy for those of Python.

    Args:
        kind: the dataclass, such as `EvaluateRequest`.
        options: by name of the field or of its option; None is not given.
        where: they come from, for messages.
        base: what has the values that are not given; the defaults of `kind` when None.

    Raises:
        UserError: an option is unknown, or its value is of another type or out of its range; names
            all of these.

    >>> from m2dr.core.requests import FuseRequest
    >>> request_of(FuseRequest, {"runs": ["a", "b"], "out": "c", "rrf_k": 1}).rrf_k
    1.0
    """
    hints, described, own = _fields_of(kind)  # type: ignore[arg-type]  # a class is hashable
    values, problems = {}, list[str]()
    for name, value in options.items():
        name = own.get(name, name)
        if value is None:
            continue
        if name not in hints:
            meant = meant_by(name, hints)
            problems.append(f"unknown setting {name!r}" + f" (Did you mean {meant}?)" * bool(meant))
            continue
        try:
            values[name] = _converted(value, hints[name], described[name])
        except (ValueError, msgspec.ValidationError) as error:
            why = str(error).rstrip(".")
            if hasattr(value, "save_pretrained"):
                why = "a model in memory; save_pretrained(FOLDER) writes it, and FOLDER is its name"
            problems.append(f"{name} = {quoted(value).partition(chr(10))[0]}: {why}")
    if problems:
        raise UserError(f"{where}: {'; '.join(problems)}.")
    return replace(base, **values) if base else kind(**values)  # type: ignore[type-var]


@cache  # a search of .3 ms asks for some
def _fields_of(kind: type[Any]) -> tuple[dict[str, Any], dict[str, Option], dict[str, str]]:
    """Return the types and the options of fields by name, and names by those of options."""
    described = {each.name: option_of(each) or Option() for each in fields(kind)}
    own = {row.name.replace("-", "_"): name for name, row in described.items() if row.name}
    return get_type_hints(kind), described, own


def show_fields(kind: type[Any], *without: str) -> Callable[[Function], Function]:
    """Have `help` and `inspect` show the fields of a dataclass as keywords of a function."""

    def shown(function: Function) -> Function:
        own = inspect.signature(function)
        known = {n: p for n, p in own.parameters.items() if p.kind is not p.VAR_KEYWORD}
        for each in [each for each in fields(kind) if each.name not in without]:
            default = own.empty if each.default is MISSING else each.default
            known.setdefault(
                each.name,
                inspect.Parameter(
                    each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=each.type
                ),
            )
        signature = own.replace(parameters=list(known.values()))
        function.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect alone
        return function

    return shown


def find_config(name: str | PathLike[str] | None) -> Path | None:
    """Return the path of a file of settings, or of the built-in one of that name.

    Raises:
        UserError: there is none; names those that are built in.
    """
    if name is None or Path(name).exists():
        return None if name is None else Path(name)
    known = {path.stem: path for path in CONFIGS.glob("*.toml")}
    if Path(name).name.removesuffix(".toml") in known:
        return known[Path(name).name.removesuffix(".toml")]
    raise UserError(f"There is no file {name}; built in are {', '.join(sorted(known))}.")


def _parsed(text: str, hint: object) -> Any:  # a value of TOML
    """Return the value of a word: TOML, or else the text itself."""
    is_text = hint in (str, str | None)
    try:
        # TOML has no number without a digit before its point, and people write .5.
        number = text if is_text else re.sub(r"(?<![\w.\"'])\.(?=\d)", "0.", text)
        table = tomllib.loads(f"value = {number}")
    except (ValueError, RecursionError):
        table = {}
    if len(table) != 1 or is_text and not isinstance(table["value"], str):
        return text if is_text else text.strip()
    return table["value"]


def _converted(value: Any, hint: Any, described: Option) -> Any:  # what `hint` says
    """Return a value of TOML or Python as the type of a setting; lists take one value too."""
    is_list = get_origin(hint) is tuple
    if isinstance(value, bool) and described.bare is not None:
        value = described.bare if value else 0.0
    value = fspath(value) if isinstance(value, PathLike) else value
    if described.read and (hint is str or isinstance(value, str)):
        value = described.read(str(value))  # which checks a number of Python too
    value = value.tolist() if hasattr(value, "tolist") else value
    if is_list and not isinstance(value, list | tuple):
        several = isinstance(value, Iterable) and not isinstance(value, str)
        parts = value.split(",") if isinstance(value, str) else [value]
        value = list(value) if several else parts
    if is_list:
        value = [fspath(part) if isinstance(part, PathLike) else part for part in value]
    forms = [part for part in (hint, *get_args(hint)) if get_origin(part) is Literal]
    choices = [choice for part in forms for choice in get_args(part)]
    given = value if is_list else [value]
    if choices and value is not None and not all(each in choices for each in given):
        raise ValueError(f"not one of {', '.join(choices)}")
    typed = msgspec.convert(value, hint, strict=not is_list, dec_hook=lambda kind, word: kind(word))
    for one in typed if is_list else (typed,):
        is_number = isinstance(one, int | float) and not isinstance(one, bool)
        if is_number and not described.takes(one):
            raise ValueError(f"not {described.range}")
        if isinstance(one, str | Path) and as_utf8(str(one)) != str(one):
            raise ValueError("not UTF-8")
    return typed


def _checkpoint_problems(words: Sequence[str]) -> Iterator[str]:
    """Say what is wrong with a list of cuts such as L2D32."""
    try:
        cuts = [Cut.parse(word) for word in words]
    except UserError as error:
        yield f"checkpoints: {str(error).rstrip('.')}"
        return
    if any(cut.layer < 1 for cut in cuts):
        yield "checkpoints count layers from 1"
    if not all(a.layer < b.layer and a.dim <= b.dim for a, b in pairwise(cuts)):
        yield "checkpoints go from small to large, layer by layer"
