"""The pages of docs/: their commands parse and run, their links lead somewhere, and the site builds."""

import ast
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
from click.testing import CliRunner
from commands import parsed
from world import make_backbone

from m2dr.cli import main
from m2dr.model import hub

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
RUN_DOCS = runpy.run_path(str(ROOT / "scripts" / "run_docs.py"))
CODE = re.compile(r"^```.*?^```$", flags=re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^ *```(\w*)([^\n]*)\n(.*?)^ *```$", flags=re.MULTILINE | re.DOTALL)
SHELLS = ("", "bash", "console", "sh")
OUTSIDE = re.compile(r"https?://[^\s)`\"'>]+")
HOSTS = {"127.0.0.1", "localhost", "host"}  # of commands that a reader runs at home


def shell_lines(page: Path) -> Iterator[str]:
    """The commands of a page, each on one line."""
    for language, _, body in BLOCK.findall(page.read_text("utf-8")):
        if language in SHELLS:
            for line in body.replace("\\\n", " ").splitlines():
                if language != "console" or line.startswith("$ "):
                    yield line.strip().removeprefix("$ ").removesuffix(" &").split("  #")[0]


LINES = sorted(
    {
        (str(p.relative_to(ROOT)), line)
        for p in [*PAGES, ROOT / "README.md"]
        for line in shell_lines(p)
    }
)


@pytest.mark.parametrize(
    "line", sorted({line for _, line in LINES if re.match(r"(m2dr|torchrun) ", line)})
)
def test_each_command_of_a_page_parses(line: str) -> None:
    for part in re.split(r" (?:\||&&|;) ", line):
        if part.startswith(("m2dr ", "torchrun ")):
            parsed(part)


@pytest.mark.parametrize(("page", "line"), [x for x in LINES if "scripts/" in x[1].split(" ")[0]])
def test_each_script_of_a_page_is_there(page: str, line: str) -> None:
    assert (ROOT / shlex.split(line)[0]).is_file(), page


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text("utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_each_link_leads_somewhere(page: Path) -> None:
    made = {"first-steps.md", "changelog.md"}  # pages that only the site has

    for link in links(page):
        if not re.match(r"[a-z]+:|#", link):
            path = (page.parent / link.partition("#")[0]).resolve()
            assert path.exists(), link
            assert path.is_relative_to(ROOT), link
            assert path.name not in made


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_an_outside_link_is_well_formed(page: Path) -> None:
    for link in OUTSIDE.findall(page.read_text("utf-8")):
        parts = urlsplit(link.rstrip(".,;:"))
        assert parts.hostname, link
        if parts.hostname not in HOSTS:
            assert parts.scheme == "https", link
            assert "." in parts.hostname, link
            assert not parts.username, link


def steps(text: str) -> list[Any]:
    return list(RUN_DOCS["steps"](text))


TEXT = """# A page

```json title="a.json"
{}
```

<!-- show 1 line -->
```console
$ printf 'one\\ntwo\\nthree\\n'
old
$ echo a \\
  b
$ sleep 60 &
```

```sh
never run
```
"""


def test_a_page_is_run_and_shows_what_it_printed(tmp_path: Path) -> None:
    run = RUN_DOCS["Run"](tmp_path, dict(os.environ))

    outputs = [(step, run.do(step)[1]) for step in steps(TEXT)]
    (asleep,) = run.background
    run.stop()

    assert asleep.wait(5) != 0
    assert (tmp_path / "a.json").read_text() == "{}\n"
    page = RUN_DOCS["written"](TEXT, outputs)
    assert page == TEXT.replace("old\n", "one\n…\n").replace("  b\n", "  b\na b\n")
    assert (
        RUN_DOCS["written"](page, [*zip(steps(page), (o for _, o in outputs), strict=True)]) == page
    )


def test_a_command_that_fails_stops_the_page(tmp_path: Path) -> None:
    run = RUN_DOCS["Run"](tmp_path, dict(os.environ))
    (step,) = steps("```console\n$ echo why >&2; exit 3\n```\n")

    with pytest.raises(click.ClickException, match=r"(?s)exit 3 ended with 3 in .*why"):
        run.do(step)


def test_a_service_that_ends_by_itself_stops_the_page(tmp_path: Path) -> None:
    run = RUN_DOCS["Run"](tmp_path, dict(os.environ))
    (step,) = steps("```console\n$ echo port in use >&2; exit 2 &\n```\n")
    run.do(step)
    run.background[0].wait(10)

    with pytest.raises(click.ClickException, match=r"(?s)exit 2.* ended in .*port in use"):
        run.check()


@pytest.mark.parametrize("name", [name for name in RUN_DOCS["PAGES"] if name != "README.md"])
def test_a_page_shows_what_its_commands_print(name: str) -> None:
    """Else run: scripts/run_docs --write PAGE."""
    text = (ROOT / name).read_text("utf-8")
    quiet = ("cp ", "mkdir ")

    found = steps(text)

    assert len(found) > 3
    for step in found:
        if step.file.endswith(".py"):
            ast.parse(step.text)
        elif not step.file and not step.in_background and not step.text.startswith(quiet):
            assert text[slice(*step.output)].strip(), step.text


@pytest.fixture
def small_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of the shape of minilm in its place."""
    import torch
    import transformers as hf

    folder = make_backbone(tmp_path / "minilm")
    torch.manual_seed(13)
    shape = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12}
    hf.BertModel(hf.BertConfig(vocab_size=64, intermediate_size=64, **shape)).save_pretrained(
        folder
    )
    monkeypatch.setattr(hub, "_built_in", lambda: folder)


@pytest.mark.usefixtures("small_backbone")
@pytest.mark.filterwarnings("ignore")  # a random model was trained for nothing
def test_the_page_of_your_own_data_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    monkeypatch.chdir(folder)
    run = RUN_DOCS["Run"](folder, dict(os.environ))

    for step in steps((DOCS / "how-to" / "own-data.md").read_text("utf-8")):
        if step.text.startswith("m2dr "):
            done = CliRunner().invoke(main, shlex.split(step.text)[1:])
            assert done.exit_code == 0, (step.text, done.output, done.exception)
        else:
            run.do(step)

    assert (folder / "models" / "mine" / "model.safetensors").exists()


@pytest.mark.slow
def test_every_page_runs(tmp_path: Path) -> None:
    words = [sys.executable, ROOT / "scripts" / "run_docs.py", "--folder", tmp_path]

    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built in strict mode."""
    pytest.importorskip("material", reason="pip install '.[docs]' brings mkdocs-material")
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def commands(group: click.Group = main, path: str = "m2dr") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


def test_each_command_has_a_page_with_all_its_options(site: Path) -> None:
    overview = (site / "commands" / "index.html").read_text("utf-8")

    for path, command in commands():
        name = f"{path.replace(' ', '-')}.html"
        text = (site / "commands" / name).read_text("utf-8")
        assert f'href="{name}"' in overview
        for param in command.params:
            if isinstance(param, click.Option) and not param.hidden:
                assert f"<code>{param.opts[0]}</code>" in text, (path, param.name)


def test_a_page_of_the_site_asks_no_other_host(site: Path) -> None:
    asks = re.compile(r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//
                          |<link[^>]*\shref=["']?(?:https?:)?//""", flags=re.VERBOSE)  # fmt: skip
    loads = re.compile(r"""@import|url\(["']?(?:https?:)?//""")

    assert not [p.name for p in site.rglob("*.html") if asks.search(p.read_text("utf-8"))]
    assert not [p.name for p in site.rglob("*.css") if loads.search(p.read_text("utf-8"))]


def test_links_to_files_of_the_repository_lead_to_pages(site: Path) -> None:
    recipes = (site / "recipes.html").read_text("utf-8")

    assert 'href="files/configs.html"' in recipes
    assert 'src="benchmarks/recipes_retrieval_202611.png"' in recipes
    assert (site / "benchmarks" / "recipes_retrieval_202611.png").read_bytes()[:4] == b"\x89PNG"
    assert "retrieval-paper-mrl.toml" in (site / "files" / "configs.html").read_text("utf-8")
