"""scripts/on_a_gpu on tiny sizes without a gpu, so that it works where there is one."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
COLUMNS = {  # of each page, tables that must have rows, and how many at least
    "training": {"Each step": 7, "Against sentence-transformers": 4, "The decomposition": 3},
    "encoding": {"Texts to vectors": 4, "Token ids to vectors": 1},
    "search": {"Indexes": 3, "All queries at once": 18, "One query at a time": 5},
    "tests": {"Each": 40},
}


def test_every_part_runs_and_writes_its_page(tmp_path: Path) -> None:
    words = ["--no-install", "--python", sys.executable, "--device", "cpu", "--tiny"]
    done = subprocess.run(
        [ROOT / "scripts" / "on_a_gpu", *words, "--out", tmp_path],
        capture_output=True, text=True, timeout=570, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    for part, tables in COLUMNS.items():
        page = (tmp_path / f"gpu_{part}.md").read_text()
        assert f"`scripts/on_a_gpu {part} --tiny --device cpu`" in page
        assert "torch 2." in page
        for title, least in tables.items():
            section = page.split(f"\n## {title}", 1)[1].split("\n## ")[0]
            rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
            assert len(rows) >= least, page
            assert all(re.search(r"\d", row) or part == "tests" for row in rows), section
        assert "nan" not in page
        assert "Failed" not in page
    encoding, search = (
        (tmp_path / f"gpu_{part}.md").read_text() for part in ("encoding", "search")
    )
    cosine = float(re.search(r"in fp32, least (\S+)", encoding)[1])
    assert cosine > 0.999
    recalls = [float(row.split("|")[-2]) for row in search.splitlines() if "m2dr exact" in row and
               row.count("|") == 8]  # fmt: skip
    assert len(recalls) == 9
    assert min(recalls) == 1.0


@pytest.fixture
def driver() -> ModuleType:
    """benchmarks/gpu.py."""
    spec = importlib.util.spec_from_file_location("gpu", ROOT / "benchmarks" / "gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CHILD = """
import json, os, sys, time
words = sys.argv
rows, skip = words[words.index("--rows") + 1], words[words.index("--skip") + 1]
skipped = open(skip).read().splitlines()
with open(rows, "a") as file:
    for name in ("good", "kills", "late", "hangs", "never"):
        if name in skipped:
            continue
        print(json.dumps({"table": "begun", "part": "search", "case": name}), file=file, flush=True)
        if name == "kills":
            print("an assertion of a library", flush=True)
            os.abort()
        if name == "hangs":
            time.sleep(60)
        row = {"table": "single", "part": "search", "case": name}
        print(json.dumps(row), file=file, flush=True)
"""


def test_a_case_that_ends_its_process_or_hangs_costs_itself_alone(
    driver: ModuleType, tmp_path: Path
) -> None:
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    driver.__file__ = str(child)
    asked = driver.arguments(["search", "--device", "cpu", "--limit", "2"])

    rows = list(driver.run_parts(["search"], asked))

    assert [(row["table"], row["case"]) for row in rows] == [
        ("single", "good"),
        ("failed", "kills"),
        ("single", "late"),
        ("failed", "hangs"),
    ]
    assert "an assertion of a library" in rows[1]["told"]
    assert "ended with -6" in rows[1]["told"]
    assert "stopped after 2 s" in rows[3]["told"]
    page = driver.page_of("search", asked, [], 1.0)
    assert "Failed" not in page


def test_what_a_case_raises_and_what_it_lacks_are_rows(driver: ModuleType, monkeypatch) -> None:
    class MissingError(Exception):
        pass

    monkeypatch.setitem(sys.modules, "gpu_cases", ModuleType("gpu_cases"))
    sys.modules["gpu_cases"].MissingError = MissingError
    rows: list[dict[str, object]] = []

    def raising(error: Exception) -> object:
        def case() -> object:
            yield {"table": "single"}
            raise error

        return case

    driver.run_case(raising(MissingError("faiss is not installed")), rows.append)
    driver.run_case(raising(RuntimeError("out of memory")), rows.append)

    assert [row["table"] for row in rows] == ["single", "left out", "single", "failed"]
    assert str(rows[3]["told"]).splitlines()[-1] == "RuntimeError: out of memory"
    assert "Failed: x" in "\n".join(driver.notes([{**rows[3], "case": "x"}]))


def test_a_part_that_is_not_there_is_refused(driver: ModuleType, capsys) -> None:
    with pytest.raises(SystemExit):
        driver.arguments(["encodings"])

    assert "there is no part 'encodings'; name some of tests, training" in capsys.readouterr().err
