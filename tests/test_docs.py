"""Commands of the README and of docs/ parse, and their links lead somewhere."""

import json
import random
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from commands import done, parsed

import m2dr

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


# The commands, word for word, where what they name is small: the built-in backbone under the name of
# a model of one's own, 64 made documents, 16 queries, and vectors of both. README and the tutorial
# are what scripts/quickstart runs. Here begin those that are not run:

NOT_RUN = (
    "m2dr index push",  # there is no Milvus; tests/index/test_milvus.py has one of its own
    "m2dr index corpus --corpus /data/",  # eight processes, a cluster; tests/test_encoding_at_scale.py
    "m2dr train --variant full-dim --out",  # hours
    "m2dr export --model checkpoints/plain-bert",  # tests/tasks/test_published_protocol.py has one
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, draw = tmp_path_factory.mktemp("pages"), random.Random(7)
    words = [
        "read",
        "file",
        "line",
        "by",
        "bone",
        "vitamin",
        "D",
        "prevent",
        "keratin",
        "what",
        "is",
        "year",
        "study",
        "of",
        "cell",
    ]
    texts = [" ".join(draw.choices(words, k=12)) for _ in range(64)]
    asked = [" ".join(draw.choices(words, k=4)) for _ in range(16)]
    about = {"year": 2021, "lang": "en", "author": {"name": "Ada Lovelace"}, "status": "final"}

    def lines(path: str, rows: Iterable[object]) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("".join(f"{row}\n" for row in rows))

    documents = [{"_id": f"d{n}", "text": text, **about} for n, text in enumerate(texts)]
    lines("texts.jsonl", map(json.dumps, documents))
    pairs = [{"query": query, "positive": text} for query, text in zip(asked, texts, strict=False)]
    options: dict[str, Any] = {"steps": 1, "batch_size": 8, "device": "cpu", "document_length": 16}
    for name in ("mine", "trained"):
        trained = m2dr.train(pairs, backbone="minilm", out=folder / "models" / name, **options)
    model = trained.model
    queries = [{"_id": f"q{n}", "text": text} for n, text in enumerate(asked)]
    lines("queries.txt", asked)
    for name in ("queries.tsv", "q.tsv"):
        lines(name, (f"{row['_id']}\t{row['text']}" for row in queries))
    for path, ids, vectors in (
        ("vectors.jsonl", documents, model.encode_documents(texts)),
        ("q.jsonl", queries, model.encode_queries(asked)),
    ):
        rows = zip(ids, vectors.tolist(), strict=True)
        lines(path, (json.dumps({"id": row["_id"], "embedding": v}) for row, v in rows))
    for name in ("data", "DATA"):
        lines(f"{name}/scifact/corpus.jsonl", map(json.dumps, documents))
        lines(f"{name}/scifact/queries.jsonl", map(json.dumps, queries))
        judged = [f"q{n}\td{n}\t1" for n in range(16)]
        lines(f"{name}/scifact/qrels/test.tsv", ["query-id\tcorpus-id\tscore", *judged])
    return folder


@pytest.mark.parametrize("page", ["fit", "search", "export", "evaluate"])
def test_commands_run(
    page: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copytree(small, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for line in commands(ROOT / f"docs/{page}.md"):
        if not line.startswith(NOT_RUN):
            done(*shlex.split(line)[1:])


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
