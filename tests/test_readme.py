"""What the README promises parses here, and runs in the walk and by hand."""

import re
import shlex
from pathlib import Path

import pytest

from m2dr.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^m2dr (.+)$", README, flags=re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_of_the_readme_parses(line: str) -> None:
    import click

    group: click.Command = main
    words = shlex.split(line)
    while isinstance(group, click.Group):
        group = group.commands[words.pop(0)]
    group.make_context("m2dr", words)


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)]+)\)", README))
def test_each_link_of_the_readme_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


@pytest.mark.parametrize("path", re.findall(r"`(m2dr/[a-z_/]+\.py)`", README))
def test_each_file_of_the_readme_is_there(path: str) -> None:
    assert (ROOT / path).is_file()
