"""Help, examples, and options made of requests."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner
from commands import done, parsed, refused

from m2dr.cli import main


def walk(group: click.Group = main, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from walk(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


ALL = dict(walk())


def shown(path: str) -> str:
    ended = CliRunner().invoke(main, [*path.split(), "--help"], terminal_width=80)
    assert ended.exit_code == 0, ended.output
    return ended.output


@pytest.mark.parametrize("path", ALL)
def test_help_ends_in_two_examples_that_parse(path: str) -> None:
    lines = shown(path).rstrip().splitlines()
    examples = [line.strip() for line in lines[-2:]]

    for line in examples:
        assert line.startswith(f"m2dr {path}")
        assert parsed(line).params
    assert max(map(len, lines)) <= 80


def test_version_lists_libraries_and_devices() -> None:
    told = done("--version")

    assert re.search(r"^m2dr [\d.]+\n", told)
    assert "\ntorch " in told
    assert "\ncpu, " in told
    assert told.count("m2dr ") == 1


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("index corpus --dim 16 --dim 8", "dims", (8, 16)),
        ("index corpus --dims 16,8", "dims", (8, 16)),
        ("index corpus --no-exits", "exits", False),
        ("search x --search-param nprobe=4", "search_params", (("nprobe", 4),)),
        ("search --dim 8 -- --layer", "text", "--layer"),
        ("pick r --latency 0.1s", "latency_ms", 100.0),
        ("pick r --at-least nDCG@10=.3", "at_least", ("nDCG@10", 0.3)),
    ],
)
def test_value_of_an_option(words: str, name: str, value: object) -> None:
    assert parsed(f"m2dr {words}").params[name] == value


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("bm25", "--run"),
        ("index corpus --dims x", "'x'"),
        ("trian", "train"),
        ("encode t.txt --out v.npy --cut L2D8 --dim 4", "--dim"),
    ],
)
def test_refusal(words: str, told: str) -> None:
    assert told in " ".join(refused(*shlex.split(words)).split())
