"""Requests of `m2dr init` and `doctor`.

Neither torch nor numpy is imported here: `--help` is made from these classes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from m2dr.records.option import option
from m2dr.settings.index_requests import INDEXES, device_option

Configured = Literal["train", "fit", "pretrain"]  # commands that read a file of settings


@dataclass(frozen=True)
class InitRequest:
    """What `m2dr init` is asked."""

    file: Path | None = option(
        None,
        "TOML file to write; train.toml by default, or as the command is called.",
        is_argument=True,
        is_file=True,
    )
    command: Configured = option("train", "Command that is to read the file.", "--for")
    variant: str = option("", "Recipe of a training; full-dim by default.")
    overwrite: bool = option(False, "Replace the file.")


@dataclass(frozen=True)
class DoctorRequest:
    """What `m2dr doctor` is asked."""

    model: str = option("", "Folder or id of a model; all in models/ by default.")
    index: Path | None = option(
        None, "Folder of an index or a store, or one above; that of --indexes by default."
    )
    corpus: str = option("", "Corpus that indexes are of; what they record by default.")
    root: Path = option(  # a file in its place is a fault that is found, and not refused
        INDEXES, "Folder of the indexes.", "--indexes", read=Path, metavar="DIRECTORY"
    )
    device: str = device_option()
    thorough: bool = option(
        False, "Compare the checksums of all files, and the texts of all documents."
    )
