"""Test and measure m2dr on a GPU, part by part, and write a page of each part.

    scripts/on_a_gpu                          all parts, at most nine minutes each
    scripts/on_a_gpu training search          some of them
    scripts/on_a_gpu --device cpu --tiny      all of it on tiny sizes, without a GPU

`tests` runs the tests marked gpu; `training` and `search` measure the cases of
benchmarks/gpu_cases.py; encoding is measured by `encoding.py --device cuda`. Every part runs in a
process of its own and writes each row as soon as it is measured, so that a part that is stopped at
its limit keeps what it has, and after a case that takes its process down the rest goes on in a new
one. What failed stands on the page with the last lines of what it said, and the exit code is
then 1.
"""

import argparse
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from timing import table_head, table_row

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("tests", "training", "search")
LIMIT = 540.0  # seconds of one part
TOLD = 12  # last lines of what a failure said
# Without these nothing runs; a case says what else it needs.
NEEDED = (
    "torch",
    "transformers",
    "accelerate",
    "safetensors",
    "numpy",
    "click",
    "msgspec",
    "scipy",
)
SHOWN = ("torch", "transformers", "sentence-transformers", "faiss-gpu", "faiss-cpu", "numpy")
Row = dict[str, Any]


def main() -> None:
    """Run the parts that were asked for; exit with 1 when anything failed."""
    asked = arguments()
    if asked.rows:
        run_cases(asked)
        return
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(f"{sys.executable} lacks {', '.join(missing)}: nothing can run.")
    asked.out.mkdir(parents=True, exist_ok=True)
    parts = [part for part in PARTS if part in (asked.parts or PARTS)]
    failed = sum(run_together(parts_, asked) for parts_ in groups(parts, asked.tiny))
    sys.exit(1 if failed else 0)


def groups(parts: Sequence[str], tiny: bool) -> list[list[str]]:
    """Which parts share a process: none, but tiny ones, of which most is the loading of torch."""
    if not tiny:
        return [[part] for part in parts]
    measured = [part for part in parts if part != "tests"]
    return [["tests"]] * ("tests" in parts) + [measured] * bool(measured)


def run_together(parts: Sequence[str], asked: argparse.Namespace) -> int:
    """Run some parts in one process, and write the page of each; how much failed."""
    begun = time.monotonic()
    rows = list(run_tests(asked) if "tests" in parts else run_parts(parts, asked))
    seconds = time.monotonic() - begun
    for part in parts:
        own = [row for row in rows if row["part"] == part]
        page = asked.out / f"gpu_{part}.md"
        page.write_text(page_of(part, asked, own, seconds), encoding="utf-8")
        broken = [row for row in own if row["table"] == "failed"]
        print(f"{part}: {len(own)} rows, {len(broken)} failed, in {page}", flush=True)
        for row in broken:
            print(f"  {row['case']}: {str(row['told']).splitlines()[-1]}", flush=True)
    return sum(row["table"] == "failed" for row in rows)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="scripts/on_a_gpu", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="Sizes that take seconds on a CPU.")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks", help="Where pages go.")
    parser.add_argument("--limit", type=float, default=LIMIT, help="Seconds of each part.")
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)  # this is the process of one
    parser.add_argument("--skip", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    if unknown := [part for part in asked.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; name some of {', '.join(PARTS)}")
    return asked


def run_cases(asked: argparse.Namespace) -> None:
    """In a process of its own: measure the cases of parts, except those that are to be skipped."""
    from gpu_cases import MissingError, cases

    skipped = set(asked.skip.read_text().splitlines())
    with asked.rows.open("a", encoding="utf-8") as file:

        def write(row: Row) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        for part in asked.parts:
            for name, case in cases(part, asked.device, asked.tiny, asked.work).items():
                if name in skipped:
                    continue
                own = {"part": part, "case": name}
                write({"table": "begun", **own})
                try:
                    for row in case():
                        write(own | row)
                except MissingError as error:
                    write({"table": "left out", "told": str(error), **own})
                except Exception as error:  # whatever it is, the other cases go on
                    told = "".join(traceback.format_exception(error))
                    write({"table": "failed", "told": last_lines(told), **own})
                    if "CUDA error" in told:  # nothing works here any more
                        os._exit(3)


def last_lines(told: str) -> str:
    """The end of what was said."""
    return "\n".join(told.splitlines()[-TOLD:])


def run_parts(parts: Sequence[str], asked: argparse.Namespace) -> Iterator[Row]:
    """Measure parts in another process, in one more after each that ends early; yield all rows."""
    deadline = time.monotonic() + asked.limit
    done: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        rows, skip = Path(folder) / "rows.jsonl", Path(folder) / "skip"
        words = [sys.executable, __file__, *parts, "--device", asked.device, "--rows", str(rows)]
        words += ["--skip", str(skip), "--work", folder, *(["--tiny"] if asked.tiny else [])]
        while True:
            skip.write_text("\n".join(str(row["case"]) for row in done))
            rows.write_text("")
            code, told = ended(words, deadline)
            found = [json.loads(line) for line in rows.read_text().splitlines()]
            yield from (row for row in found if row["table"] != "begun")
            begun = [row for row in found if row["table"] == "begun"]
            done += begun
            if code == 0:
                return
            last = begun[-1] if begun else {"part": parts[0], "case": "its process"}
            if not any(r["table"] == "failed" and r["case"] == last["case"] for r in found):
                what = f"stopped after {asked.limit:g} s" if code is None else f"ended with {code}"
                yield {**last, "table": "failed", "told": f"{told}\nThe process {what}."}
            if code is None or not begun:
                return


def run_tests(asked: argparse.Namespace) -> Iterator[Row]:
    """Run the tests marked gpu; yield how many passed, and a row for each that did not."""
    if find_spec("pytest") is None:
        yield {"table": "left out", "part": "tests", "case": "all", "told": "pytest is missing"}
        return
    # Only files that have such tests: the others may need what this machine has not.
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text()]
    words = ["-m", "pytest", *(str(path.relative_to(ROOT)) for path in sorted(files))]
    words += ["-m", "gpu and not slow" if asked.tiny else "gpu", "-q", "--tb=short", "--color=no"]
    words += ["-W", "default", "-p", "no:cacheprovider"]
    if find_spec("pytest_timeout") is None:  # its line in setup.cfg would be refused
        words += ["-o", "addopts=--import-mode=importlib", "-c", os.devnull, "--rootdir", "."]
    environment = {**os.environ, "M2DR_TEST_DEVICE": asked.device}
    deadline = time.monotonic() + asked.limit
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.xml"
        words += ["--junitxml", str(report)]
        code, told = ended([sys.executable, *words], deadline, environment)
        tests = [*ET.parse(report).iter("testcase")] if report.exists() else []
    said = {state: 0 for state in ("passed", "failure", "error", "skipped")}
    for test in tests:
        found = next((one for one in test if one.tag in said), None)
        said[found.tag if found is not None else "passed"] += 1
        if found is not None and found.tag != "skipped":
            name = f"{test.get('classname')}::{test.get('name')}"
            yield failure(name, last_lines(found.text or ""))
    counts = ", ".join(f"{count} {state}" for state, count in said.items())
    yield {"table": "told", "part": "tests", "case": "all", "told": f"Tests: {counts}."}
    if code is None or not tests or code > 1:
        what = f"was stopped after {asked.limit:g} s" if code is None else f"ended with {code}"
        yield failure("pytest", f"{told}\nIt {what}.")


def failure(case: str, told: str) -> Row:
    """A row of a test that failed."""
    return {"table": "failed", "part": "tests", "case": case, "told": told}


def ended(
    words: Sequence[str],
    deadline: float,
    environment: dict[str, str] | None = None,
) -> tuple[int | None, str]:
    """Run a process and all that it starts until the deadline; its code, None when stopped."""
    with tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(  # ourselves
            words, cwd=ROOT, stdout=told, stderr=subprocess.STDOUT, start_new_session=True,
            env={**(environment or os.environ), "PYTHONPATH": _python_path()},
        )  # fmt: skip
        code: int | None = None
        try:
            code = process.wait(max(deadline - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        told.seek(0)
        return code, last_lines(told.read())


def _python_path() -> str:
    """This repository first: another m2dr may be installed."""
    own = [str(ROOT), str(ROOT / "tests")]
    return os.pathsep.join(filter(None, [*own, os.environ.get("PYTHONPATH", "")]))


def page_of(part: str, asked: argparse.Namespace, rows: list[Row], seconds: float) -> str:
    """The page of a part."""
    command = ["scripts/on_a_gpu", part, *(["--tiny"] if asked.tiny else [])]
    command += [] if asked.device == "cuda" else ["--device", asked.device]
    command += [] if asked.limit == LIMIT else ["--limit", f"{asked.limit:g}"]
    titles = dict.fromkeys(row["table"] for row in rows)
    body = [line for title in sorted(titles, key="failed".__eq__) for line in shown(title, rows)]
    title = {"tests": "The tests marked gpu"}.get(part, part.capitalize())
    return "\n".join(
        [
            f"# {title} on {device_name(asked.device)}\n",
            f"`{shlex.join(command)}`, {seconds:,.0f} s. {versions()}. Figures are medians of "
            "repeated runs, with the least and the most in parentheses.",
            *body,
            "",
        ]
    )


def device_name(device: str) -> str:
    """What the machine calls its GPU, or its processor."""
    if device.startswith("cuda"):
        import torch

        size = torch.cuda.get_device_properties(device).total_memory / 2**30
        return f"{torch.cuda.get_device_name(device)}, {size:.0f} GiB, CUDA {torch.version.cuda}"
    return f"{platform.machine()}, {os.cpu_count()} cores, no GPU"


def versions() -> str:
    """What was installed."""
    found = [f"Python {platform.python_version()}"]
    for name in SHOWN:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def shown(title: str, rows: Sequence[Row]) -> Iterator[str]:
    """Lines of the rows of one title: a table, sentences, or what was left out or failed."""
    own = [row for row in rows if row["table"] == title]
    if title == "told":
        yield from (f"\n{row['told']}" for row in own)
    elif title == "left out":
        yield "\n## Left out\n"
        yield from (f"- {row['case']}: {row['told']}" for row in own)
    elif title == "failed":
        yield from (f"\n## Failed: {row['case']}\n\n```\n{row['told']}\n```" for row in own)
    else:
        yield f"\n## {title}\n\n{table_head(*own[0]['cells'])}"
        yield from (table_row(*row["cells"].values()) for row in own)


if __name__ == "__main__":
    main()
