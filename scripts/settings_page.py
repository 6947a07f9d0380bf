"""Write docs/settings.md from the code: python scripts/settings_page.py."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import click

from m2dr.cli import main
from m2dr.cli.options import NamedArgument
from m2dr.core.option import Option, option_of
from m2dr.core.reading import describe
from m2dr.core.trainings import FitSettings, PretrainSettings, TrainSettings
from m2dr.core.variants import CHOICES

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
RUNS: dict[str, type[Any]] = {
    "train": TrainSettings,
    "pretrain": PretrainSettings,
    "fit": FitSettings,
}
INTRODUCTION = """# Settings

Every setting of every command, written from the code by `python scripts/settings_page.py`.

`m2dr train`, `m2dr pretrain` and `m2dr fit` read settings from a TOML file (`--config FILE`), then
from `--set NAME=VALUE` and from options, which overrule the file; `--learning-rate 2e-5` means what
`--set learning_rate=2e-5` does, and the two cannot differ. All other commands have options alone.
An option that takes a list may be repeated, and numbers may be separated by commas.
"""


def page() -> str:
    """Return the page."""
    return INTRODUCTION + "".join(_sections(main, "m2dr"))


def _sections(group: click.Group, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _sections(command, f"{path} {name}")
            continue
        told = (" ".join(part.split()) for part in (command.help or "").split("\n\n"))
        yield f"\n## {path} {name}\n" + "".join(f"\n{part}\n" for part in told)
        options = command.params
        if name in RUNS and path == "m2dr":
            kind = RUNS[name]
            yield _table("setting", _settings(kind))
            known = {each.name for each in fields(kind)}
            options = [each for each in options if each.name not in known]
        yield _table("option", map(_option, (each for each in options if _is_shown(each))))


def _table(first: str, rows: Any) -> str:  # rows of four cells
    head = (first, "type", "default", "meaning")
    lines = [head, ("---",) * 4, *rows]
    cells = (tuple(cell.replace("|", "\\|") for cell in line) for line in lines)
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _settings(kind: type[Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the row of each setting, with the name of its option where that is another."""
    hints = get_type_hints(kind)
    for each in fields(kind):
        described = option_of(each) or Option()
        own = f"--{each.name}"
        flag = (
            f" (`{described.flags[0]}`)" if described.flags and own not in described.flags else ""
        )
        is_recipe = kind is TrainSettings and each.name in CHOICES
        default = "the variant's" if is_recipe else _value(each.default)
        yield f"`{each.name}`{flag}", describe(hints[each.name]), default, described.help


def _is_shown(param: click.Parameter) -> bool:
    return not (isinstance(param, click.Option) and param.hidden)


def _option(param: click.Parameter) -> tuple[str, str, str, str]:
    """Return the row of an option or an argument."""
    if not isinstance(param, click.Option):
        told = param.told if isinstance(param, NamedArgument) else "The query."
        return f"`{param.human_readable_name}`", _type(param), "", told
    spelled = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
    default = param.show_default if isinstance(param.show_default, str) else _value(param.default)
    required = "required" if param.required else default
    return spelled, _type(param), required, param.help or ""


def _type(param: click.Parameter) -> str:
    if isinstance(param, click.Option) and param.is_flag:
        return "flag"
    if isinstance(param.type, click.Choice):
        return f"one of {', '.join(map(str, param.type.choices))}"
    if isinstance(param.type, click.IntRange):
        least, most = param.type.min, param.type.max
        return f"a whole number from {least}" + (f" to {most}" if most is not None else "")
    if isinstance(param.type, click.Path):
        return "a file" if param.type.file_okay else "a folder"
    names = {"N,…": "whole numbers", "X,…": "numbers", "float": "a number"}
    return names.get(param.metavar or param.type.name, "a text")


def _value(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    if value is True:
        return "yes"
    return "" if value is None or value is False or "Sentinel" in str(type(value)) else str(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
