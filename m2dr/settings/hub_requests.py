"""Requests of `m2dr card` and `m2dr push`.

Neither torch nor numpy is imported here: `--help` is made from these classes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m2dr.records.option import REQUIRED, option


def _model() -> Any:  # noqa: ANN401  # a field
    return option(REQUIRED, "Folder of a model that m2dr wrote.", is_argument=True)


@dataclass(frozen=True)
class CardRequest:
    """What `m2dr card` is asked."""

    model: Path = _model()
    results: tuple[Path, ...] = option(
        (), "Folder of results, of one model or of several; results by default.", "--results"
    )


@dataclass(frozen=True)
class PushModelRequest:
    """What `m2dr push` is asked."""

    model: Path = _model()
    id: str = option(REQUIRED, "Name of the model on the hub: OWNER/NAME.", is_argument=True)
    private: bool = option(False, "Make a new model private.")
    revision: str = option("", "Branch to write to, made where it is missing; main by default.")
    message: str = option("", "Message of the commit.")
    token: str = option("", "Token of the hub; $HF_TOKEN or that of hf auth login by default.")
    dry_run: bool = option(False, "List the files and their sizes; contact nobody.")
