"""Test and measure m2dr on a GPU, part by part, and write a page of each part.

    scripts/on_a_gpu                          all parts, at most nine minutes each
    scripts/on_a_gpu training search          some of them
    scripts/on_a_gpu --device cpu --tiny      all of it on tiny sizes, without a GPU

`tests` runs the tests marked gpu; `training`, `encoding` and `search` measure the cases of
benchmarks/gpu_cases.py. Every part runs in a process of its own and writes each row as soon as it
is measured, so that a part that is stopped at its limit keeps what it has, and after a case that
takes its process down the rest goes on in a new one. What failed stands on the page with the last
lines of what it said, and the exit code is then 1.
"""

import argparse
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from timing import spread, table_head, table_row

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("tests", "training", "encoding", "search")
LIMIT = 540.0  # seconds of one part
TOLD = 12  # last lines of what a failure said
# Without these nothing runs; without the others, the parts that need them.
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
WANTED = {
    "tests": ("pytest", "pytest_timeout", "faiss", "ir_measures", "tensorboard"),
    "training": ("sentence_transformers",),
    "encoding": ("sentence_transformers",),
    "search": ("faiss",),
}
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
    for part in parts:
        absent = [name for name in WANTED[part] if find_spec(name) is None]
        if absent:
            print(f"{part}: what needs {', '.join(absent)} is left out: not installed", flush=True)
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
    from gpu_cases import cases

    skipped = set(asked.skip.read_text().splitlines())
    with asked.rows.open("a", encoding="utf-8") as file:

        def write(row: Row) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        for part in asked.parts:
            for name, case in cases(part, asked.device, asked.tiny, asked.work).items():
                if name not in skipped:
                    own = {"part": part, "case": name}
                    write({"table": "begun", **own})
                    for row in rows_of(case):
                        write(own | row)
                        if "CUDA error" in str(row.get("told")):  # nothing works here any more
                            os._exit(3)


def rows_of(case: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """Yield the rows of a case as they come; whatever it raises is a row too."""
    from gpu_cases import MissingError

    try:
        yield from case()
    except MissingError as error:
        yield {"table": "left out", "told": str(error)}
    except Exception as error:  # whatever it is, the other cases go on
        yield {"table": "failed", "told": last_lines_of(error)}


def last_lines_of(error: BaseException) -> str:
    """The end of a traceback."""
    import traceback

    return "\n".join("".join(traceback.format_exception(error)).splitlines()[-TOLD:])


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
    """Run the tests marked gpu, and yield a row for each."""
    if find_spec("pytest") is None:
        yield {
            "table": "left out",
            "part": "tests",
            "case": "all",
            "told": "pytest is not installed",
        }
        return
    # Only files that have such tests: the others may need what this machine has not.
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text()]
    words = ["-m", "pytest", *(str(path.relative_to(ROOT)) for path in sorted(files))]
    words += ["-m", "gpu and not slow" if asked.tiny else "gpu", "-v", "--tb=short", "--color=no"]
    words += ["-W", "default", "-p", "no:cacheprovider"]
    if find_spec("pytest_timeout") is None:  # its line in setup.cfg would be refused
        words += ["-o", "addopts=--import-mode=importlib", "-c", os.devnull, "--rootdir", "."]
    environment = {**os.environ, "M2DR_TEST_DEVICE": asked.device}
    deadline = time.monotonic() + asked.limit
    code, told = ended([sys.executable, *words], deadline, environment, keep=10**6)
    lines = re.findall(r"^(tests/\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)\b", told, re.MULTILINE)
    for name, state in lines:
        yield {"table": "tests", "part": "tests", "case": name, "state": state.lower()}
        if state in ("FAILED", "ERROR"):
            yield failure(name, _said_of(name, told))
    if code is None or not lines or (code and not any(s in ("FAILED", "ERROR") for _, s in lines)):
        what = f"was stopped after {asked.limit:g} s" if code is None else f"ended with {code}"
        end = "\n".join(told.splitlines()[-TOLD:])
        yield failure("pytest", f"{end}\nIt {what}.")


def failure(case: str, told: str) -> Row:
    """A row of a test that failed."""
    return {"table": "failed", "part": "tests", "case": case, "told": told}


def _said_of(name: str, told: str) -> str:
    """What pytest said of a test that failed: the section below its name."""
    title = re.escape(name.split("::", 1)[1].replace("::", "."))
    found = re.search(rf"^_+ (?:ERROR at \w+ of )?{title} _+$(.*?)^[_=]+ ", told, re.M | re.S)
    return "\n".join((found[1] if found else told).splitlines()[-TOLD:])


def ended(
    words: Sequence[str],
    deadline: float,
    environment: dict[str, str] | None = None,
    keep: int = TOLD,
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
        return code, "\n".join(told.read().splitlines()[-keep:])


def _python_path() -> str:
    """This repository first: another m2dr may be installed."""
    own = [str(ROOT), str(ROOT / "tests")]
    return os.pathsep.join(filter(None, [*own, os.environ.get("PYTHONPATH", "")]))


def page_of(part: str, asked: argparse.Namespace, rows: list[Row], seconds: float) -> str:
    """The page of a part."""
    command = ["scripts/on_a_gpu", part, *(["--tiny"] if asked.tiny else [])]
    command += [] if asked.device == "cuda" else ["--device", asked.device]
    command += [] if asked.limit == LIMIT else ["--limit", f"{asked.limit:g}"]
    body = [*PAGES[part](rows), *notes(rows)]
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


def table(title: str, columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table; none without rows."""
    if not cells:
        return
    yield f"\n## {title}\n"
    yield table_head(*columns)
    yield from (table_row(*line) for line in cells)


def of(rows: Sequence[Row], name: str) -> list[Row]:
    """The rows of a table."""
    return [row for row in rows if row["table"] == name]


def tests_tables(rows: list[Row]) -> Iterator[str]:
    """How many passed, and each with what became of it."""
    found = of(rows, "tests")
    counts = {state: sum(r["state"] == state for r in found) for state in ("passed", "failed")}
    others = len(found) - sum(counts.values())
    yield f"\n{counts['passed']} passed, {counts['failed']} failed, {others} skipped or broken."
    cells = [[f"`{row['case']}`", str(row["state"])] for row in found]
    yield from table("Each", ["test", "state"], cells)


def training_tables(rows: list[Row]) -> Iterator[str]:
    """Tokens per second and memory of each step, and each recipe against its peer."""
    found = of(rows, "training")
    cells = [
        [
            str(row["shape"]), str(row["step"]), spread(row["tokens/s"], 0),
            spread(row["tokens/s with tokenising"], 0), spread(row["ms"], 1),
            f"{row['peak GB']:.2f}", f"{row['loss']:.3f}",
        ]
        for row in found
    ]  # fmt: skip
    columns = ["model", "step", "tokens/s", "with tokenising", "ms", "peak GB", "loss"]
    told = next((str(row["told"]) for row in found), "")
    yield f"\n{told}"
    yield from table("Each step", columns, cells)
    by_name = {(row["shape"], row["step"]): row for row in found}
    cells = []
    for row in found:
        peer = by_name.get((row["shape"], row["peer"]))
        if peer is not None:
            times = median(row["tokens/s"]) / median(peer["tokens/s"])
            less = row["peak GB"] / peer["peak GB"]
            names = [str(row[key]) for key in ("shape", "step", "peer")]
            cells.append([*names, f"{times:.2f}", f"{less:.2f}"])
    columns = ["model", "m2dr", "sentence-transformers", "times its tokens/s", "times its memory"]
    yield from table("Against sentence-transformers", columns, cells)
    cells = [
        [str(row["of"]), str(row["way"]), spread(row["ms"], 1), f"{row['error']:.1e}"]
        for row in of(rows, "decomposition")
    ]
    yield from table(
        "The decomposition of full-dim's targets",
        ["matrices", "by", "ms", "farthest from float64"],
        cells,
    )


def encoding_tables(rows: list[Row]) -> Iterator[str]:
    """Documents per second of each way, and the share of the matrix rate."""
    for row in of(rows, "matrix rate"):
        rate, size = spread(row["TFLOP/s"], 2), f"{row['size']:,}"
        yield f"\nA bf16 product of {size} × {size} runs at {rate} TFLOP/s."
    cells = [
        [str(row["shape"]), str(row["way"]), spread(row["documents/s"], 0), f"{row['times']:.2f}"]
        for row in of(rows, "encoding")
    ]
    columns = ["model", "texts to vectors by", "documents/s", "m2dr is so many times as fast"]
    yield from table("Texts to vectors", columns, cells)
    cells = [
        [
            str(row["shape"]), spread(row["tokens/s"], 0), spread(row["TFLOP/s"], 2),
            spread(row["of the matrix rate"], 3), f"{row['padding']:.1%}",
        ]
        for row in of(rows, "rate")
    ]  # fmt: skip
    columns = ["model", "tokens/s", "TFLOP/s", "of the matrix rate", "padding"]
    yield from table("Token ids to vectors (padding is not counted as work)", columns, cells)
    for row in of(rows, "agreement"):
        yield f"\n{row['shape']}: cosine to sentence-transformers in fp32, least {row['least']:.5f}"


def search_tables(rows: list[Row]) -> Iterator[str]:
    """Seconds of each engine, dim and k, and what it found."""
    for row in of(rows, "corpus"):
        yield (
            f"\n{row['documents']:,} × {row['width']}: clustered vectors, written as float16 in "
            f"{row['seconds']:.1f} s; {row['queries']:,} queries, cosine."
        )
    cells = [
        [str(row["corpus"]), str(row["dim"]), str(row["engine"]), f"{row['seconds']:.2f}",
         f"{row['gpu seconds']:.2f}", str(row["reason"])]
        for row in of(rows, "built")
    ]  # fmt: skip
    columns = ["corpus", "dim", "engine", "built, s", "to the gpu, s", "where"]
    yield from table("Indexes", columns, cells)
    cells = [
        [str(row["corpus"]), str(row["dim"]), f"{row['k']:,}", str(row["engine"]),
         spread(row["seconds"], 4), f"{row['queries'] / median(row['seconds']):,.0f}",
         f"{row['recall']:.4f}"]
        for row in of(rows, "batch")
    ]  # fmt: skip
    columns = ["corpus", "dim", "k", "engine", "s", "queries/s", "recall"]
    yield from table("All queries at once", columns, cells)
    cells = [
        [str(row["corpus"]), str(row["dim"]), str(row["k"]), str(row["engine"]),
         spread(row["ms"], 2)]
        for row in of(rows, "single")
    ]  # fmt: skip
    yield from table("One query at a time", ["corpus", "dim", "k", "engine", "ms"], cells)
    yield (
        "\nRecall is against float64 for the exact engine, on a few queries, and against the "
        "exact engine for the others; equal scores count as found."
    )


def notes(rows: list[Row]) -> Iterator[str]:
    """What was left out, and what failed."""
    left = [f"- {row['case']}: {row['told']}" for row in of(rows, "left out")]
    if left:
        yield "\n## Left out\n"
        yield from left
    for row in of(rows, "failed"):
        yield f"\n## Failed: {row['case']}\n\n```\n{row['told']}\n```"


PAGES: dict[str, Callable[[list[Row]], Iterator[str]]] = {
    "tests": tests_tables,
    "training": training_tables,
    "encoding": encoding_tables,
    "search": search_tables,
}

if __name__ == "__main__":
    main()
