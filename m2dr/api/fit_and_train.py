"""`m2dr.train` and `m2dr.fit`: the commands of that name, with their settings as keywords."""

from collections.abc import Iterable
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from m2dr.api.keywords import understood
from m2dr.api.text_encoder import TextEncoder
from m2dr.core.arguments import path_or_name
from m2dr.core.errors import UserError, counted
from m2dr.core.reading import lists_of
from m2dr.core.trainings import (
    FitSettings,
    TrainSettings,
    read_fit_settings,
    read_train_settings,
)
from m2dr.tasks.run_folder import folder_of, resumed

Named = str | PathLike[str]
_SAME = {  # names of sentence-transformers and transformers that mean just the same
    "per_device_train_batch_size": "batch_queries",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
    "gradient_accumulation_steps": "accumulate",
    "warmup_ratio": "warmup",
    "logging_steps": "log_steps",
    "eval_steps": "evaluate_steps",
    "lr": "learning_rate",
    "model": "backbone",
    "dataset": "corpus",
    "output_dir": "out",
}


@understood("m2dr.train", _SAME)
def train(
    *,
    out: Named | None = None,
    config: Named | None = None,
    resume: bool = False,
    overwrite: bool = False,
    **settings: Any,  # each of a type of its own, checked
) -> TextEncoder:
    """Train one encoder whose every layer and every prefix can retrieve, as `m2dr train` does.

        model = m2dr.train(variant="full-dim", corpus="pydocs", dims=[32, 128], steps=500)

    Args:
        out: folder of the model; models/CORPUS-VARIANT by default.
        config: TOML file of settings, which keywords overrule.
        resume: whether to go on with a training that was interrupted.
        overwrite: whether to begin again in a folder that is in use.
        settings: those of docs/settings.md, such as variant, corpus, backbone, steps or dims, or
            as the command line spells them: batch_size is batch_queries.

    Returns:
        The trained model, all layers and dims.

    Raises:
        UserError: a setting is unknown or wrong, or anything else that a person can mend.
        Interrupted: Ctrl-C; what was trained until the last checkpoint is in the folder.
    """
    given, file = _given(settings, TrainSettings), _path("config", config)
    asked = read_train_settings(file, (), given)
    from m2dr.tasks import train as verb

    folder = folder_of(asked.corpus, asked.variant, _path("out", out))
    _refuse_both(resume, overwrite)
    if resume:
        asked = resumed(read_train_settings, folder, file, (), given)
    if verb.asks_for_many(asked):
        many = counted(len(verb.cuts_asked(asked)), "models")
        raise UserError(
            f"variant = {asked.variant} trains {many}, one for each cut, and m2dr.train gives one. "
            "Name one layer and one dim, as in layers=[2], dims=[128]."
        )
    report = verb.train(asked, folder, resume, overwrite)
    return TextEncoder.from_pretrained(report.folder, device=asked.device, dtype=asked.dtype)


@understood("m2dr.fit", {name: _SAME[name] for name in ("model", "dataset", "output_dir")})
def fit(
    *,
    out: Named | None = None,
    config: Named | None = None,
    resume: bool = False,
    overwrite: bool = False,
    **settings: Any,  # each of a type of its own, checked
) -> TextEncoder:
    """Make every layer and prefix of an encoder retrieve, without training, as `m2dr fit` does.

        model = m2dr.fit(backbone="minilm", corpus="pydocs")
        model.cut(0).encode_queries("read a file line by line")

    Args:
        out: folder of the model; models/CORPUS-fitted by default.
        config: TOML file of settings, which keywords overrule.
        resume: whether to go on with a fit that was interrupted.
        overwrite: whether to begin again in a folder that is in use.
        settings: those of docs/settings.md, such as backbone, corpus, texts or inputs.

    Returns:
        The fitted model, all layers and dims.

    Raises:
        UserError: a setting is unknown or wrong, or anything else that a person can mend.
        Interrupted: Ctrl-C; what was read until the last save is in the folder.
    """
    given, file = _given(settings, FitSettings), _path("config", config)
    asked = read_fit_settings(file, (), given)
    from m2dr.tasks import fit as verb

    folder = folder_of(asked.corpus, verb.FITTED, _path("out", out))
    _refuse_both(resume, overwrite)
    if resume:
        asked = resumed(read_fit_settings, folder, file, (), given)
    report = verb.fit(asked, folder, resume, overwrite)
    return TextEncoder.from_pretrained(report.folder, device=asked.device, dtype=asked.dtype)


def _given(settings: dict[str, Any], kind: type) -> dict[str, Any]:
    """Return the settings that are given, as a file would hold them.

    A path, such as that of a corpus, is a text there. A single number or text where several are
    taken stands for itself, and numbers of numpy are those of Python.
    """
    lists = lists_of(kind)
    found = {}
    for name, value in settings.items():
        if value is None:
            continue
        plain = fspath(value) if isinstance(value, PathLike) else value
        if hasattr(plain, "tolist"):
            plain = plain.tolist()
        if name in lists and not isinstance(plain, list | tuple):
            several = isinstance(plain, Iterable) and not isinstance(plain, str)
            plain = list(plain) if several else [plain]
        found[name] = plain
    return found


def _path(name: str, given: Named | None) -> Path | None:
    return None if given is None else Path(path_or_name(name, given))


def _refuse_both(resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise UserError("resume goes on and overwrite begins again; give one of them.")
