"""Run the commands of the documentation in order, and print how long each takes.

A page is Markdown. What is run of it:

- the lines of ```console blocks that begin with "$ ", a line that ends with a backslash with the
  next one; the other lines are what it prints, and `--write` replaces them with what it prints now;
- the lines of plain blocks that begin with "m2dr ", "pip " or "./scripts/", in README.md;
- blocks with a title, such as ```python title="search.py", are files that the reader writes.

A command that ends with " &" goes on in the background until its page ends. The comment
<!-- show 5 lines --> above a block shortens what it shows of each command, and
<!-- copy results/figure.png to figures/name.png --> keeps a picture of the run beside the page.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import dropwhile
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/tutorial.md",
    "docs/how-to/own-model.md",
    "docs/how-to/own-data.md",
    "docs/how-to/reproduce.md",
    "docs/how-to/scale.md",
)
BLOCK = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')
SHOW = re.compile(r"<!-- show (\d+) lines? -->\n$")
COPY = re.compile(r"<!-- copy (\S+) to (\S+) -->")
RUN = ("m2dr ", "pip ", "./scripts/")  # lines of a plain block that are run
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\r")
LIMIT = 3600  # seconds of a command


@dataclass
class Step:
    """A command, or a file that the reader writes."""

    text: str
    file: str = ""  # the name of the file; empty for a command
    end: int = 0  # place in the page behind the command's line
    output: tuple[int, int] | None = None  # place in the page of what the command printed
    lines: int = 0  # of the output to show; 0 for all

    @property
    def in_background(self) -> bool:
        """Whether the command goes on while the next ones run."""
        return self.text.endswith(" &")


def steps(page: str) -> Iterator[Step]:
    """Yield what a reader of a page does, in order."""
    for block in BLOCK.finditer(page):
        info, body, start = block["info"].strip(), block["body"], block.start("body")
        title = TITLE.search(info)
        if title:
            yield Step(body, title[1])
        elif info == "console":
            shown = SHOW.search(page[: block.start()])
            yield from _console(body, start, int(shown[1]) if shown else 0)
        elif not info:
            for line in body.splitlines():
                if line.startswith(RUN):
                    yield Step(line)


def _console(body: str, start: int, lines: int) -> Iterator[Step]:
    """Yield the commands of a block, with the places of what they printed."""
    found = list(re.finditer(r"^\$ ((?:.*\\\n)*.*)\n?", body, flags=re.MULTILINE))
    ends = [each.start() for each in found[1:]] + [len(body)]
    for each, end in zip(found, ends, strict=True):
        place = (start + each.end(), start + end)
        yield Step(each[1], end=start + each.end(), output=place, lines=lines)


@dataclass
class Run:
    """A page that is being run in a folder."""

    folder: Path
    environment: dict[str, str]
    background: list[subprocess.Popen[str]] = field(default_factory=list)

    def do(self, step: Step) -> tuple[float, str]:
        """Do a step; return its seconds and what it printed on standard output."""
        begun = time.perf_counter()
        if step.file:
            path = self.folder / step.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text, encoding="utf-8")
            return 0.0, ""
        words = ["bash", "-c", step.text.removesuffix(" &")]
        given = {"cwd": self.folder, "env": self.environment, "text": True}
        if step.in_background:
            with (self.folder / "background.log").open("a") as log:
                streams = {"stdout": log, "stderr": log, "start_new_session": True}
                self.background.append(subprocess.Popen(words, **given, **streams))
            return time.perf_counter() - begun, ""
        done = subprocess.run(words, **given, capture_output=True, timeout=LIMIT, check=False)
        if done.returncode:
            log = self.folder / "background.log"
            told = log.read_text() if log.exists() else ""
            raise click.ClickException(
                f"{step.text} ended with {done.returncode} in {self.folder}.\n"
                f"{done.stdout}{done.stderr}{told}"
            )
        return time.perf_counter() - begun, done.stdout

    def check(self) -> None:
        """Refuse to go on where a background command has ended by itself."""
        for process in self.background:
            if process.poll() is not None:
                told = (self.folder / "background.log").read_text()
                raise click.ClickException(f"{process.args} ended in {self.folder}.\n{told}")

    def stop(self) -> None:
        """End what runs in the background."""
        for process in self.background:
            if process.poll() is not None:
                continue
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def written(page: str, outputs: list[tuple[Step, str]]) -> str:
    """Return a page with what its commands print now."""
    for step, output in reversed(outputs):
        if step.output is None:
            continue
        lines = [line.rstrip() for line in ANSI.sub("", output).rstrip().splitlines()]
        if step.lines and len(lines) > step.lines:
            lines = [*lines[: step.lines], "…"]
        text = "".join(f"{line}\n" for line in lines)
        page = page[: step.output[0]] + text + page[step.output[1] :]
    return page


def run_page(
    name: str, folder: Path, environment: dict[str, str], write: bool, start: str = ""
) -> list[list[str]]:
    """Run a page in a folder; return a row per command: page, command, seconds."""
    path = ROOT / name
    page = path.read_text("utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    run, rows, outputs = Run(folder, environment), [], []
    try:
        for step in _from(start, steps(page)):
            if step.text.startswith(("pip ", "./scripts/")) and not (folder / "scripts").exists():
                click.echo(f"{name:28}  not run  {step.text}  (--fresh runs it)")
                continue
            seconds, output = run.do(step)
            run.check()
            outputs.append((step, output))
            if not step.file:
                told = " ".join(step.text.replace("\\\n", " ").split())
                rows.append([name, told, f"{seconds:.1f}"])
                click.echo(f"{name:28}  {seconds:6.1f} s  {told}")
    finally:
        run.stop()
    if write:
        path.write_text(written(page, outputs), encoding="utf-8")
        for source, target in COPY.findall(page):
            shutil.copyfile(folder / source, path.parent / target)
    return rows


def _from(start: str, found: Iterator[Step]) -> Iterator[Step]:
    """Yield the steps from the first one that begins so."""
    return dropwhile(lambda step: not step.text.startswith(start), found)


def fresh(place: Path) -> tuple[Path, float]:
    """Install a copy of the repository in a folder; return the folder of its programs."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "venv", place / ".venv"], check=True)
    python = place / ".venv" / "bin" / "python"
    extras = ".[cpu,quickstart,compare,filter,serve]"
    install = [python, "-m", "pip", "install", "-q", "-c", "constraints.txt", extras]
    subprocess.run(install, cwd=place, check=True)
    return python.parent, time.perf_counter() - begun


def table(rows: list[list[str]]) -> str:
    """Return the times as a page of Markdown."""
    total = sum(float(row[2]) for row in rows) / 60
    cores = os.cpu_count()
    head = (
        "# Every command of the documentation, with its time\n\n"
        f"`scripts/run_docs --times FILE`, {datetime.now(UTC):%Y-%m-%d}, {cores} cores. Each page "
        f"ran in an empty folder, from top to bottom; {len(rows)} commands took "
        f"{total:.0f} minutes.\n\n"
        "| page | command | seconds |\n|---|---|---|\n"
    )
    cells = (f"| {page} | `{told.replace('|', chr(92) + '|')}` | {s} |\n" for page, told, s in rows)
    return head + "".join(cells)


@click.command()
@click.argument("pages", nargs=-1)
@click.option("--write", is_flag=True, help="Put what the commands print into the pages.")
@click.option("--fresh", "is_fresh", is_flag=True, help="Install a copy of the repository first.")
@click.option("--folder", type=click.Path(path_type=Path), help="Folder to work in, kept.")
@click.option("--from", "start", default="", help="Begin at the command that begins so.")
@click.option("--times", type=click.Path(path_type=Path), help="File for the table of times.")
def main(
    pages: tuple[str, ...],
    write: bool,
    is_fresh: bool,
    folder: Path | None,
    start: str,
    times: Path | None,
) -> None:
    """Run the commands of PAGES; of all pages by default."""
    place = (folder or Path(tempfile.mkdtemp(prefix="m2dr-docs-"))).resolve()
    programs, rows = Path(sys.executable).parent, []
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    if is_fresh:
        programs, seconds = fresh(place / "README")
        rows.append(["–", "python -m venv .venv, and pip install m2dr there", f"{seconds:.1f}"])
        environment.pop("PYTHONPATH", None)
    else:
        environment["PYTHONPATH"] = str(ROOT)
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    for name in pages or PAGES:
        name = Path(name).resolve().relative_to(ROOT).as_posix() if Path(name).exists() else name
        rows += run_page(name, place / Path(name).stem, environment, write, start)
        if times:  # what is measured stays where a later page fails
            times.write_text(table(rows), encoding="utf-8")
    click.echo(f"{len(rows)} commands in {sum(float(row[2]) for row in rows):.0f} s; {place}")
    if folder is None:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
