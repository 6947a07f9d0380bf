"""A page of documentation per command, made from the code while the site is built."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields

import click
from settings_page import RUNS, _is_shown, _option, _settings

from m2dr.cli import main

FOLDER = "commands"
INTRODUCTION = """# Commands

Each has a page with what it does, examples, and every option with its default.
`m2dr COMMAND --help` prints the same. `m2dr --debug COMMAND` shows the traceback of an error.
"""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield each command and group with its path, such as "m2dr index corpus"."""
    yield from _below(main, "m2dr")


def _below(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from _below(command, f"{path} {name}")


def uri(path: str) -> str:
    """Return where the page of a command is.

    >>> uri("m2dr index corpus")
    'commands/m2dr-index-corpus.md'
    """
    return f"{FOLDER}/{path.replace(' ', '-')}.md"


def overview() -> str:
    """Return the page that lists all commands."""
    return INTRODUCTION + "\n" + _list(commands())


def page(path: str, command: click.Command, pages: Mapping[str, tuple[str, str]]) -> str:
    """Return the page of a command.

    Args:
        path: its name with those of the groups above it.
        command: as click has it.
        pages: by uri, the title and the text of the pages that may show the command in use.
    """
    summary, *rest = (" ".join(part.split()) for part in (command.help or "").split("\n\n"))
    context = click.Context(command, info_name=path)
    usage = re.sub(r"\s+", " ", command.get_usage(context).removeprefix("Usage: "))
    text = f"# {path}\n\n{_as_code(summary)}\n\n```text\n{usage}\n```\n"
    text += "".join(f"\n{_as_code(part)}\n" for part in rest)
    examples = getattr(command, "examples", ())
    if examples:
        text += _heading("Examples") + "```sh\n"
        text += "".join(f"m2dr {line}\n" for line in examples) + "```\n"
    if isinstance(command, click.Group):
        return text + _heading("Commands") + _list(_below(command, path))
    return text + _tables(path, command) + _used_in(path, pages)


def _tables(path: str, command: click.Command) -> str:
    """Return the tables of settings and options."""
    name = path.removeprefix("m2dr ")
    text, options = "", command.params
    if name in RUNS:
        own = {each.name: _spelled(each) for each in options if isinstance(each, click.Option)}
        known = [each.name for each in fields(RUNS[name])]
        rows = [
            (", ".join((f"`{field}`", *own.get(field, ()))), *row[1:])
            for field, row in zip(known, _settings(RUNS[name]), strict=True)
        ]
        options = [each for each in options if each.name not in known]
        told = "By `--config FILE`, by `--set NAME=VALUE`, or by the option named beside it."
        text += _heading("Settings") + f"{told}\n\n{_table('setting', rows)}"
    rows = [_option(each) for each in options if _is_shown(each)]
    return text + _heading("Options") + _table("option", rows)


def _spelled(option: click.Option) -> list[str]:
    return [f"`{name}`" for name in (*option.opts, *option.secondary_opts)]


def _table(first: str, rows: list[tuple[str, str, str, str]]) -> str:
    """Return a table of two columns: narrow screens show no more."""
    text = f'<div class="options" markdown>\n\n| {first} | meaning |\n| --- | --- |\n'
    for name, kind, default, meaning in rows:
        told = f"{kind}; {default}" if default == "required" else kind
        told = f"{kind}; default {default}" if default not in ("", "required") else told
        cells = (_breaking(name), f"{_as_code(meaning)}<br><small>{told}</small>")
        text += f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"
    return text + "\n</div>\n"


def _breaking(names: str) -> str:
    """Put each spelling of an option on a line of its own."""
    return names.replace(", ", "<br>")


def _list(found: Iterator[tuple[str, click.Command]]) -> str:
    rows = [
        f"| [`{path}`]({uri(path).removeprefix(FOLDER + '/')}) | {_as_code(_summary(command))} |\n"
        for path, command in found
    ]
    return "| command | what it does |\n| --- | --- |\n" + "".join(rows)


def _summary(command: click.Command) -> str:
    return " ".join((command.help or "").split("\n\n")[0].split())


def _heading(text: str) -> str:
    return f"\n## {text}\n\n"


def _as_code(sentence: str) -> str:
    """Write options, placeholders and paths as code, and keep what Markdown would read otherwise.

    >>> _as_code("Of --config FILE, as results/NAME.")
    'Of `--config FILE`, as `results/NAME`.'
    """
    told = sentence.replace("<", "&lt;")
    told = re.sub(r"(?<![\w`-])(--[a-z][a-z-]*(?: [A-Z]{3,}\b)?)", r"`\1`", told)
    told = re.sub(r"(?<![\w`/-])((?:[\w{}-]+/)+[\w.@{}-]*[\w}/])(?![\w`])", r"`\1`", told)
    return told.replace("*", r"\*").replace("_", r"\_") if "`" not in told else told


def _used_in(path: str, pages: Mapping[str, tuple[str, str]]) -> str:
    """Return links to the pages that show the command in use."""
    pattern = re.compile(rf"\b{re.escape(path)}(?![\w-])")
    found = [(uri, title) for uri, (title, text) in pages.items() if pattern.search(text)]
    if not found:
        return ""
    links = ", ".join(f"[{title}](../{uri})" for uri, title in found)
    return _heading("In use") + links + "\n"
