"""Help at a terminal of 80 columns: whole sentences, and examples that the commands understand."""

import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner
from commands import parsed

from m2dr.cli import main
from m2dr.cli.options import NamedCommand

COLUMNS = 80


def walk(group: click.Group = main, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield f"{path}{name}", command
        if isinstance(command, click.Group):
            yield from walk(command, f"{path}{name} ")


ALL = dict(walk())
GROUPS = ["", *(path for path, command in ALL.items() if isinstance(command, click.Group))]
LEAVES = [path for path in ALL if path not in GROUPS]


def shown(path: str, columns: int = COLUMNS) -> list[str]:
    done = CliRunner().invoke(main, [*path.split(), "--help"], terminal_width=columns)
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


@pytest.mark.parametrize("path", LEAVES)
def test_a_command_has_two_examples_at_the_end_of_its_help(path: str) -> None:
    command = ALL[path]
    assert isinstance(command, NamedCommand)
    assert len(command.examples) >= 2, (
        f"m2dr {path} --help shows fewer than two examples. Give them where the command is made, "
        "in m2dr/cli: @command(examples=(...)), each a command line without the word m2dr."
    )

    lines = shown(path)

    asked = [f"  m2dr {line}" for line in command.examples]
    assert lines[-len(asked) - 1 :] == ["Examples:", *asked]
    assert max(map(len, lines)) <= COLUMNS


@pytest.mark.parametrize("path", LEAVES)
def test_each_example_is_a_line_that_its_command_reads(path: str) -> None:
    for line in ALL[path].examples:
        assert line.split()[: len(path.split())] == path.split()
        assert parsed(f"m2dr {line}").params
        assert shlex.join(shlex.split(line)).replace("'", '"') == line


@pytest.mark.parametrize("group", GROUPS)
def test_no_summary_is_cut_or_takes_two_lines(group: str) -> None:
    lines = shown(group)
    summaries = lines[lines.index("Commands:") + 1 :]
    commands = {path: one for path, one in ALL.items() if path.rpartition(" ")[0] == group}

    assert len(summaries) == sum(not one.hidden for one in commands.values())
    assert all(line.endswith(".") and not line.endswith("...") for line in summaries)
    assert max(map(len, lines)) <= COLUMNS


def test_a_narrow_terminal_breaks_summaries_and_cuts_none() -> None:
    told = " ".join(" ".join(shown("", 50)).split())

    for path, command in ALL.items():
        if " " not in path:
            assert command.get_short_help_str(1000) in told
