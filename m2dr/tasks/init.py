"""`m2dr init`: write a file of settings, commented, with the default of each."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from m2dr.core.errors import UserError, command
from m2dr.core.files import write_text
from m2dr.core.requests import Configured, InitRequest
from m2dr.core.toml_files import settings_text
from m2dr.core.trainings import (
    FitSettings,
    PretrainSettings,
    read_train_settings,
)


@dataclass(frozen=True)
class InitReport:
    """The file that was written."""

    file: Path
    settings: int
    follow: str  # the command that reads it


def write_settings(request: InitRequest) -> InitReport:
    """Write the settings of a command to a TOML file.

    Raises:
        UserError: the file is there already, there is no such variant, or the command has none.
    """
    if str(request.file) in get_args(Configured):
        meant = command("init", **{"for": str(request.file)}, variant=request.variant)
        raise UserError(
            f"{request.file} names the file to write, and is the name of a command. Write the "
            f"settings of that command with: {meant}"
        )
    file = request.file or Path(f"{request.command}.toml")
    if file.is_file() and not request.overwrite:
        again = command(
            "init", file, **{"for": request.command}, variant=request.variant, overwrite=True
        )
        raise UserError(f"{file} is there already. Replace it with: {again}")
    if request.variant and request.command != "train":
        raise UserError(
            f"--variant {request.variant} is a recipe of a training, and a {request.command} has "
            "none. Leave it out."
        )
    settings, followed = _settings(request)
    follow = command(request.command, config=file)
    note = (
        f"Settings of m2dr {request.command}; each has its default. A line such as `# name = 1` "
        f"is not set: it follows {'the variant, ' if followed else ''}the backbone or the corpus. "
        f"Use: {follow}"
    )
    write_text(file, settings_text(settings, note, followed))
    return InitReport(file, len(fields(settings)), follow)


def _settings(request: InitRequest) -> tuple[Any, dict[str, Any]]:
    """Return the settings of a command, and the values that those which are None follow."""
    if request.command == "train":
        given = {"variant": request.variant} if request.variant else {}
        train = read_train_settings(None, (), given)
        return train, vars(train.row)
    return (FitSettings() if request.command == "fit" else PretrainSettings()), {}
