"""A page of documentation per command: what `--help` prints."""

from collections.abc import Iterator

import click

from m2dr.cli import main

FOLDER = "commands"


def commands(group: click.Group = main, path: str = "m2dr") -> Iterator[tuple[str, click.Command]]:
    """Yield each command, not the groups, with its path, such as "m2dr index corpus"."""
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def uri(path: str) -> str:
    """Return where the page of a command is.

    >>> uri("m2dr index corpus")
    'commands/m2dr-index-corpus.md'
    """
    return f"{FOLDER}/{path.replace(' ', '-')}.md"


def overview() -> str:
    """Return the page that lists all commands."""
    rows = (
        f"| [`{path}`]({uri(path).removeprefix(f'{FOLDER}/')}) | {command.short_help} |\n"
        for path, command in commands()
    )
    return "# Commands\n\n| command | what it does |\n| --- | --- |\n" + "".join(rows)


def page(path: str, command: click.Command) -> str:
    """Return the page of a command."""
    context = click.Context(command, info_name=path, max_content_width=100)
    return f"# {path}\n\n```text\n{command.get_help(context)}\n```\n"
