"""A query at layer 0 is answered from a cold start, without torch and transformers."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import done
from http_serving import Server
from shell import COMMAND, ENVIRONMENT, python

from m2dr.cli import main
from m2dr.index.folder import IndexFolder
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
def place(tmp_path_factory: pytest.TempPathFactory, tiny_fitted: Path, tiny_corpus: Path) -> Path:
    """A folder with models/tiny, fitted, and an index of the tiny corpus, as commands look there."""
    folder = tmp_path_factory.mktemp("cold")
    shutil.copytree(tiny_fitted, folder / "models" / "tiny")
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


# No package is found but those of a file of requirements, and those that these need.
ONLY = r"""
import sys
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions, requires
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
words = [line.strip() for line in open(sys.argv[1]) if line[0] != "#"]
names = set()
while words:
    wanted = Requirement(words.pop())
    name = canonicalize_name(wanted.name)
    if name not in names and (not wanted.marker or wanted.marker.evaluate({"extra": ""})):
        names.add(name)
        words += requires(name) or []
here = packages_distributions()
gone = {top for top, of in here.items() if not names & set(map(canonicalize_name, of))} - {"m2dr"}
class Some:
    find_spec = lambda name, *place: None if name in gone else PathFinder.find_spec(name, *place)
sys.meta_path[sys.meta_path.index(PathFinder)] = Some
for name in [name for name in sys.modules if name.partition(".")[0] in gone]:
    del sys.modules[name]
if len(sys.argv) == 2:
    exec(sys.stdin.read())
else:
    from m2dr.cli import main
    main(sys.argv[2:])
"""
REQUIREMENTS = Path(__file__).parents[2] / "requirements-search.txt"
LITE = (sys.executable, "-c", ONLY, REQUIREMENTS)
NEEDS = "needs torch, and layer 0 does not: torch is not installed; install it with: pip install"


def lite(*words: object, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, LITE), *map(str, words)], cwd=cwd, env=ENVIRONMENT, input=stdin,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_search_at_layer_0_needs_what_its_requirements_name(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("search", QUERY, "--corpus", "corpus", "--dim", "8", "-k", "3", "--device", "cpu")

    told = lite(*asked, "--query-layer", 0, cwd=place)
    monkeypatch.chdir(place)
    rest = ("--query-layer", 0, "--hybrid", "--explain")
    hybrid = lite(*asked, *rest, cwd=place)
    deeper = lite(*asked, "--query-layer", 2, cwd=place)
    encoding = lite("index", "corpus", "--corpus", "corpus", "--overwrite", cwd=place)

    assert re.findall(r"  (d\d+)$", told.stdout, flags=re.MULTILINE) == best(place, 8, 3)
    assert hybrid.stdout == done("search", *asked[1:], *rest)
    assert (deeper.returncode, deeper.stderr.count("\n")) == (2, 1)
    assert deeper.stderr.startswith("Error: Layer 2 of ")
    assert NEEDS in deeper.stderr
    assert (encoding.returncode, encoding.stderr.splitlines()[-1]) == (
        2, "Error: torch is not installed; install it with: pip install 'm2dr'"
    )  # fmt: skip


def test_python_explains_hits_of_layer_0_without_torch(place: Path) -> None:
    code = f"""
import m2dr
print(all(hasattr(m2dr, name) for name in dir(m2dr)))
index = m2dr.Index.open("corpus", layer=0, dim=8)
hits = index.search({QUERY!r}, k=3).hits
print(*(hit.docid for hit in hits))
print(*(abs(sum(hit.explain().values()) - hit.score) < 1e-5 for hit in hits))
for ask in (
    lambda: index.search("read", layer=2),
    lambda: index.add({{"new": "a text"}}),
    lambda: index.delete("d1"),
    lambda: m2dr.Index.build("models/tiny", ["a text"]),
    lambda: m2dr.fit("corpus", backbone="models/tiny"),
    lambda: m2dr.evaluate("models/tiny", "corpus"),
    lambda: m2dr.export(out="out"),
):
    try:
        ask()
    except m2dr.UserError as error:
        print(error)
"""
    ended = lite(cwd=place, stdin=code)

    attributes, docids, adds_up, refused, *others = ended.stdout.splitlines() or [ended.stderr]
    assert attributes == "True"
    assert docids.split() == best(place, 8, 3)
    assert adds_up.split() == ["True"] * 3
    assert NEEDS in refused
    assert len(others) == 6, ended.stderr
    assert all("is not installed; install it with: pip install" in other for other in others)


def test_a_server_of_layer_0_needs_what_its_requirements_name(place: Path) -> None:
    home = folder_of(place).parents[1]
    with Server("--index", home, cwd=place, command=LITE) as server:
        assert "torch is not installed" in server.log.read_text()
        (model,) = server.get("/models").json["indexes"]
        assert (model["layers"], model["full"]) == ([0], "L0D32")
        assert server.hits(query=QUERY, k=3, dim=8) == best(place, 8, 3)
        assert server.hits(query=QUERY, k=3, dim=16) == best(place, 16, 3)  # of no index
        (found,) = server.search(query=QUERY, hybrid=True, explain=True, compare=True)["results"]
        for hit in found["hits"]:
            assert sum(hit["explain"].values()) == pytest.approx(hit["score"], abs=1e-5)
        asked = {"input": QUERY, "model": "corpus"}
        vectors = server.post("/v1/embeddings", asked | {"side": "query"})
        assert vectors.json["data"][0]["embedding"] == pytest.approx(vector_of(place, 32).tolist())
        for path, body in (
            ("/search", {"query": QUERY, "layer": 2}),
            ("/v1/embeddings", asked),
            ("/v1/embeddings", asked | {"side": "query", "layer": 4}),
        ):
            reply = server.post(path, body)
            assert (reply.status, NEEDS in reply.message) == (422, True), reply.data
        store = place / home / "layer-04" / "store.json"
        shutil.copy2(store, place / "again")
        (place / "again").replace(store)  # another file: the index has changed
        while "has changed" not in server.log.read_text():
            assert server.hits(query=QUERY, k=3, dim=8) == best(place, 8, 3)
        assert "Traceback" not in server.log.read_text()
        assert server.stop() == 0


def test_layer_0_needs_no_folder_of_the_model(place: Path) -> None:
    home, model = folder_of(place).parents[1], place / "models" / "tiny"
    model.rename(place / "elsewhere")
    try:
        asked = ("search", "--dim", 8, "-k", 3, "--index", home, QUERY)
        by_folder = lite(*asked, "--query-layer", 0, cwd=place)
        by_corpus = lite(
            "search", "--dim", 8, "-k", 3, "--corpus", "corpus", "--query-layer", 0, QUERY,
            cwd=place,
        )  # fmt: skip
        deeper = lite(*asked, cwd=place)
        (place / home / "exits").rename(place / "exits")
        without = lite(*asked, "--query-layer", 0, cwd=place)
        (place / "exits").rename(place / home / "exits")
    finally:
        (place / "elsewhere").rename(model)

    for told in (by_folder, by_corpus):
        assert re.findall(r"  (d\d+)$", told.stdout, flags=re.MULTILINE) == best(place, 8, 3)
    missing = f"There is no model folder {model}"
    assert deeper.stderr == f"Error: {missing}; {home} answers at layer 0 without it.\n"
    assert without.stderr == f"Error: {missing}.\n"


def best(place: Path, dim: int, k: int, exits: str = "index") -> list[str]:
    """The documents nearest to the query, by numpy."""
    store = open_store(place / folder_of(place).parent)
    documents = np.concatenate([block for _, block in store.blocks()]).astype(np.float64)[:, :dim]
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    fitted = IndexFolder.holding(store.folder).exits if exits == "index" else None
    query = WordTable.open(fitted or place / "models" / "tiny").embed([QUERY], dim)[0]
    return store.docids.take(np.argsort(-(documents @ query))[:k])


def vector_of(place: Path, dim: int) -> np.ndarray:
    """The vector of the query by the words of the index, of length one."""
    vector = WordTable.open(place / folder_of(place).parents[1] / "exits").embed([QUERY], dim)[0]
    return vector / np.linalg.norm(vector)


def seconds_of(*words: str, cwd: Path | None = None) -> float:
    """Seconds of the processor that a command takes, whatever else the machine does meanwhile."""
    from resource import RUSAGE_CHILDREN, getrusage

    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run(words, cwd=cwd, env=ENVIRONMENT, capture_output=True, check=True)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_no_help_loads_a_library() -> None:
    names = ["", *main.commands, "index corpus", "evaluate retrieval"]
    code = (
        "import sys; from click.testing import CliRunner; from m2dr.cli import main\n"
        f"for name in {names}: assert not CliRunner().invoke(main, [*name.split(), '--help']).exit_code\n"
        f"print(*{HEAVY | {'numpy', 'faiss'}} & set(sys.modules))"
    )
    assert not python("-c", code).split()


@pytest.mark.parametrize("name", ["", "train", "index corpus"])
def test_help_answers_in_a_third_of_a_second(name: str) -> None:
    slowness = max(1.0, seconds_of(sys.executable, "-c", YARDSTICK) / 0.1)  # of a busy machine
    assert any(seconds_of(*COMMAND, *name.split(), "--help") < 0.3 * slowness for _ in range(5))
