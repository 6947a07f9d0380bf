"""Commands of the README and of docs/ parse, and their links lead somewhere."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import parsed

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "configs/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", flags=re.MULTILINE | re.DOTALL)
MADE = {"first-steps.md", "changelog.md"}  # pages that only the site has
IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]


def commands(page: Path) -> Iterator[str]:
    """The lines of shell blocks that run m2dr."""
    for language, body in BLOCK.findall(page.read_text("utf-8")):
        for line in body.replace("\\\n", " ").splitlines() if language != "text" else ():
            words = line.strip().removeprefix("$ ").removesuffix(" &").split(" # ")[0]
            for part in re.split(r" (?:\||&&|;) ", words):
                if part.startswith(("m2dr ", "torchrun ")) and "…" not in part:
                    yield part


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_parse(page: Path) -> None:
    for line in commands(page):
        assert parsed(line).command, line


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_resolve(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text("utf-8"))):
        if not re.match(r"[a-z]+:|#", link) and Path(link).name not in MADE:
            assert (page.parent / link.partition("#")[0]).exists(), link


# The notebook


NOTEBOOK = ROOT / "docs/first-steps.ipynb"


@pytest.mark.usefixtures("here")
def test_notebook_runs(
    capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    names: dict[str, object] = {"__name__": "notebook"}
    for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)  # noqa: S102

    printed = capsys.readouterr().out
    assert "nDCG@10" in printed
    assert printed.count("shutil.disk_usage") == 3  # at each layer
    assert not [each for each in recwarn if each.category is UserWarning]


@pytest.mark.usefixtures("here")
def test_python_of_the_readme_runs(
    capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    [program] = [
        body for kind, body in BLOCK.findall(PAGES[0].read_text("utf-8")) if kind == "python"
    ]
    exec(compile(program, "README.md", "exec"), {})  # noqa: S102

    assert capsys.readouterr().out.split()[1::2] == ["choice"] * 3
    assert not [each for each in recwarn if each.category is UserWarning]
