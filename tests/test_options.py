"""Options have the new names; those of earlier versions still work, and say what they are now."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from commands import parsed

from m2dr.cli import main
from m2dr.cli.options import NamedOption
from m2dr.core.requests import IndexRequest, index_command

ROOT = Path(__file__).parents[1]


def commands(group: click.Group = main, path: str = "m2dr") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


ALL = dict(commands())
OLD = [
    (path, param, old)
    for path, command in ALL.items()
    for param in command.params
    if isinstance(param, NamedOption)
    for old in param.old
]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("search x --layer 4", "search x --document-layer 4"),
        ("search x --set nprobe=4", "search x --search-param nprobe=4"),
        ("search x -k 3", "search x --top-k 3"),
        ("mine --out g --layer=2", "mine --out g --query-layer=2"),
        ("mine --out g --with bm25", "mine --out g --retriever bm25"),
        ("export --layer 2 --out m", "export --layers 2 --out m"),
        ("train --batch-queries 4", "train --batch-size 4"),
        ("pretrain --batch-texts 4", "pretrain --batch-size 4"),
        ("index corpus --on here", "index corpus --backend local"),
        ("index corpus --on=ray", "index corpus --backend=ray"),
        ("index corpus --dim 8 --dim 16", "index corpus --dims 8,16"),
        ("evaluate beir --corpus c --dim 8", "evaluate beir --corpus c --dims 8"),
        ("fuse a b --out c --how rrf --k 5", "fuse a b --out c --method rrf --top-k 5"),
        ("bm25 --run r --k 5", "bm25 --run r -k 5"),
    ],
)  # fmt: skip
def test_an_old_spelling_means_what_the_new_one_means(old: str, new: str) -> None:
    assert parsed(f"m2dr {old}").params == parsed(f"m2dr {new}").params


def test_an_old_spelling_says_the_new_one_in_one_line_each() -> None:
    done = CliRunner().invoke(main, ["index", "corpus", "--on", "here", "--dim", "0"])

    assert done.stderr.splitlines()[:2] == [
        "Note: --on is now --backend.",
        "Note: --backend here is now --backend local.",
    ]


def test_what_stands_behind_a_double_dash_is_no_option() -> None:
    assert parsed("m2dr search --dim 8 -- --layer").params["text"] == "--layer"


@pytest.mark.parametrize(("path", "param", "old"), OLD)
def test_no_help_shows_an_old_spelling(path: str, param: NamedOption, old: str) -> None:
    told = ALL[path].get_help(click.Context(ALL[path]))

    assert not re.search(rf"(?<![\w-]){old}(?![\w-])", told)
    assert old not in param.opts


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("bm25", "'--run'"),
        ("fuse a b", "'--out'"),
        ("mine", "'--out'"),
        ("index import", "'--model'"),
        ("index push --to milvus", "'--uri'"),
        ("compare results", "'--against'"),
        ("pick", "'FOLDER'"),
        ("evaluate sts", "'--task'"),
    ],
)
def test_what_must_be_given_is_named(words: str, missing: str) -> None:
    done = CliRunner().invoke(main, words.split())

    assert done.exit_code == 2
    assert missing in done.stderr


@pytest.mark.parametrize(
    ("path", "usage"),
    [
        ("m2dr figures", "[RESULTS]..."),
        ("m2dr fuse", "[RUNS]..."),
        ("m2dr pick", "FOLDER"),
    ],
)
def test_an_argument_has_the_name_that_the_help_explains(path: str, usage: str) -> None:
    told = ALL[path].get_usage(click.Context(ALL[path]))

    assert told.split()[-1] == usage


def test_every_corpus_of_evaluate_is_one_of_retrieval_too() -> None:
    assert {"retrieval", "beir", "msmarco", "irds", "pydocs"} <= set(
        main.commands["evaluate"].commands
    )
    found = parsed("m2dr evaluate retrieval --corpus irds:beir/scifact/test --corpus pydocs").params

    assert found["corpora"] == ("irds:beir/scifact/test", "pydocs")


def test_a_request_and_its_command_say_the_same() -> None:
    request = IndexRequest("my corpus", "m", (8, 16), (2,), exits=False, backend="ray", workers=2)

    found = parsed(index_command(request)).params

    assert {name: found[name] for name in request.__dict__ if found[name]} == {
        name: value
        for name, value in request.__dict__.items()
        if value not in ("", (), None, False)
    }


def test_the_page_of_settings_is_that_of_the_code() -> None:
    """Else run: python scripts/settings_page.py."""
    page = runpy.run_path(str(ROOT / "scripts" / "settings_page.py"))["page"]()

    assert page == (ROOT / "docs" / "settings.md").read_text()


def test_every_setting_and_option_has_a_meaning() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]

    assert len(rows) > 300
    assert not [row for row in rows if row.endswith("|  |")]
