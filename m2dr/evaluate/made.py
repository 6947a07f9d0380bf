"""How results were made: the command, what it named, and the versions that ran it."""

import json
import platform
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from m2dr.errors import UserError
from m2dr.io import write_text
from m2dr.jsontext import load_json

MADE = "made.json"
_PACKAGES = ("m2dr", "torch", "transformers", "faiss-cpu", "faiss-gpu", "numpy", "ir-measures")


@dataclass(frozen=True)
class Made:
    """What a person needs to make the results of a folder again."""

    command: str  # as a shell reads it; empty when results were made from Python
    model: str  # folder or id
    corpus: str  # as --corpus names it
    split: str
    fingerprint: str  # sha256 of the model's weights, tokenizer and config.json
    versions: dict[str, str] = field(default_factory=dict)  # package -> version


def write_made(made: Made, folder: Path) -> None:
    """Write made.json beside a grid."""
    write_text(folder / MADE, json.dumps(asdict(made), indent=2) + "\n")


def read_made(folder: Path) -> Made | None:
    """Read it back; None where an older evaluation kept none.

    Raises:
        UserError: the file is not what `write_made` writes.
    """
    path = folder / MADE
    try:
        return Made(**load_json(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{path} does not say how these results were made ({error}); measure them again with "
            f"--again."
        ) from error


def remake(folder: Path, measures: Sequence[str] = ()) -> str:
    """Return how to make the results of a folder again: "with: " and the command, where it is kept.

    Args:
        folder: of one model's results.
        measures: what is to be measured in place of what was.
    """
    try:
        made = read_made(folder)
    except UserError:
        made = None
    if made is None or not made.command:
        asked = "".join(f" --measure {name}" for name in measures)
        return f"by evaluating that model again{' with' if asked else ''}{asked}"
    words = shlex.split(made.command)
    for name in measures:
        given = zip(words, words[1:], strict=False)
        if ("--measure", name) not in given and f"--measure={name}" not in words:
            words += ["--measure", name]
    return f"with: {shlex.join(words)}"


def package_versions() -> dict[str, str]:
    """Python and the installed packages that a number may depend on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
