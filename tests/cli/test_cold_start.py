"""A query at layer 0 is answered from a cold start, without torch and transformers."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import done
from shell import COMMAND, ENVIRONMENT, python
from world import make_fitted, make_model

from m2dr.cli import main
from m2dr.index.exit_files import exits_folder
from m2dr.index.store import open_store
from m2dr.model.words import WordTable

HEAVY = {
    "torch",
    "pandas",
    "transformers",
    "scipy",
    "sklearn",
    "matplotlib",
    "huggingface_hub",
    "tqdm",
}
QUERY = "read a line of text"
# What starts in a tenth of a second where a help does in a sixth.
YARDSTICK = "import asyncio, dataclasses, decimal, http.client, importlib.metadata, unittest"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path, tiny_corpus: Path) -> Path:
    """A folder with models/tiny, fitted, and an index of the tiny corpus, as commands look there."""
    folder = tmp_path_factory.mktemp("cold")
    model = make_model(tiny_backbone, folder / "plain", similarity="cosine")
    (folder / "models").mkdir()
    make_fitted(model, folder / "models" / "tiny")
    (folder / "corpus").symlink_to(tiny_corpus)
    what = ["--corpus", str(folder / "corpus"), "--model", str(folder / "models/tiny")]
    what += ["--indexes", str(folder / "indexes"), "--device", "cpu"]
    for words in (["corpus", "--dim", "8", "--dim", "32"], ["fit"]):
        done("index", *words, *what)
    return folder


def cold(place: Path, *words: str) -> tuple[str, set[str]]:
    """What a command prints, and the packages that a new interpreter loads for it."""
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", *COMMAND[1:], *words],
        cwd=place, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    loaded = re.findall(r"^import time:.*\| +(\w+)[\w.]*$", ended.stderr, flags=re.MULTILINE)
    assert {"numpy", "m2dr"} <= set(loaded)
    return ended.stdout, set(loaded)


def folder_of(place: Path) -> Path:
    (found,) = place.glob("indexes/*/*/layer-04/dim-8")
    return found.relative_to(place)


@pytest.mark.parametrize("exits", ["index", "model"])
def test_a_query_at_layer_0_is_answered_without_torch(exits: str, place: Path) -> None:
    asked = ("--corpus", "corpus", "--query-layer", "0", "-k", "3", "--exits", exits)

    answers, loaded = cold(place, "search", *asked, "--dim", "8", QUERY)

    assert not loaded & HEAVY
    docids = re.findall(r"^ +\d+ +-?\d\.\d+  (d\d+)$", answers, flags=re.MULTILINE)
    assert docids == best(place, 8, 3, exits)


# No package can be imported but those of a file of requirements.
ONLY = r"""
import sys
from importlib.metadata import packages_distributions
names = {line.split(">")[0].strip().lower() for line in open(sys.argv[1]) if line[0] != "#"}
here = packages_distributions()
gone = {top for top, of in here.items() if not names & {name.lower() for name in of}} - {"m2dr"}
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in gone:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nowhere())
from m2dr.cli import main
main(sys.argv[2:])
"""
REQUIREMENTS = Path(__file__).parents[2] / "requirements-search.txt"


def test_a_search_at_layer_0_needs_what_its_requirements_name(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("search", QUERY, "--corpus", "corpus", "--dim", "8", "-k", "3", "--device", "cpu")

    told = python("-c", ONLY, REQUIREMENTS, *asked, "--query-layer", 0, cwd=place)
    monkeypatch.chdir(place)
    hybrid = python("-c", ONLY, REQUIREMENTS, *asked, "--query-layer", 0, "--hybrid", cwd=place)
    deeper = subprocess.run(
        [sys.executable, "-c", ONLY, REQUIREMENTS, *asked, "--query-layer", "2"],
        cwd=place, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert re.findall(r"  (d\d+)$", told, flags=re.MULTILINE) == best(place, 8, 3)
    assert hybrid == done("search", *asked[1:], "--query-layer", 0, "--hybrid")
    assert (deeper.returncode, deeper.stderr) == (
        2, "Error: This needs torch, and no such package is installed.\n"
    )  # fmt: skip


def best(place: Path, dim: int, k: int, exits: str = "index") -> list[str]:
    """The documents nearest to the query, by numpy."""
    store = open_store(place / folder_of(place).parent)
    documents = np.concatenate([block for _, block in store.blocks()]).astype(np.float64)[:, :dim]
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    fitted = exits_folder(store.folder) if exits == "index" else None
    query = WordTable.open(fitted or place / "models" / "tiny").embed([QUERY], dim)[0]
    return store.docids.take(np.argsort(-(documents @ query))[:k])


def seconds_of(*words: str, cwd: Path | None = None) -> float:
    """Seconds of the processor that a command takes, whatever else the machine does meanwhile."""
    from resource import RUSAGE_CHILDREN, getrusage

    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run(words, cwd=cwd, env=ENVIRONMENT, capture_output=True, check=True)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("name", ["", *main.commands, "index corpus", "evaluate retrieval"])
def test_help_answers_in_a_third_of_a_second_without_a_library(name: str) -> None:
    words = (*name.split(), "--help")
    code = (
        "import sys; from click.testing import CliRunner; from m2dr.cli import main; "
        f"done = CliRunner().invoke(main, {words}); assert done.exit_code == 0; "
        f"print(*{HEAVY | {'numpy', 'faiss'}} & set(sys.modules))"
    )
    assert not python("-c", code).split()
    slowness = max(1.0, seconds_of(sys.executable, "-c", YARDSTICK) / 0.1)  # of a busy machine
    assert any(seconds_of(*COMMAND, *words) < 0.3 * slowness for _ in range(5))


@pytest.mark.parametrize(
    "way", [("--engine", "exact"), ("--funnel", "4:40,8"), ("--device", "cpu")]
)
def test_every_way_to_search_takes_queries_of_layer_0(way: tuple[str, str], place: Path) -> None:
    words = ["--corpus", str(place / "corpus"), "--indexes", str(place / "indexes")]
    words += ["--model", str(place / "models" / "tiny"), "--query-layer", "0", "--dim", "8"]

    told = done("search", QUERY, *words, "-k", "3", *way)

    assert re.findall(r"  (d\d+)$", told, flags=re.MULTILINE) == best(place, 8, 3)
