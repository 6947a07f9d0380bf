"""Each block of sentence-transformers and m2dr in docs/coming-from.md runs, and both find the same."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hub_server import TOKEN, running_hub
from shell import ENVIRONMENT
from world import WORDS, make_backbone, make_corpus, make_model

import m2dr
from m2dr.core.records import Cut

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "coming-from.md").read_text()
TOOLS = ["sentence-transformers", "PyLate", "Tevatron", "Pyserini", "m2dr"]
TASKS = {"encode": "load and encode", "train": "train", "evaluate": "evaluate",
         "search": "search", "share": "share a model"}  # fmt: skip
MODEL = Path("sentence-transformers/all-MiniLM-L6-v2")
CLOSE = {"atol": 1e-5, "rtol": 0}


def block(tool: str, task: str) -> str:
    """The first block under a tool's heading; empty where there is none."""
    section = PAGE.partition(f"\n### {tool}: {task}\n")[2]
    found = re.search(r"^```\w+\n(.*?)^```", re.split(r"^##", section, flags=re.MULTILINE)[0],
                      flags=re.MULTILINE | re.DOTALL)  # fmt: skip
    return found[1] if found else ""


def run(tool: str, task: str, **names: object) -> dict[str, object]:
    """Run a block, and return its names."""
    code = block(tool, task)
    assert code
    exec(compile(code, f"<{tool}: {task}>", "exec"), names)  # that is the test
    return names


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page reads: a model of the shape of MiniLM, a BEIR folder, and pairs."""
    import torch
    import transformers as hf
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize

    place = tmp_path_factory.mktemp("coming-from")
    backbone = make_backbone(place / "backbone")
    torch.manual_seed(13)
    shape = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12}
    config = hf.BertConfig(vocab_size=64, intermediate_size=64, **shape)
    hf.BertModel(config).save_pretrained(backbone)
    made = make_model(backbone, place / "made", similarity="cosine")
    modules = [*SentenceTransformer(str(made)), Normalize()]  # as MiniLM has it on the hub
    SentenceTransformer(modules=modules).save_pretrained(str(place / MODEL))
    make_corpus(place / "data" / "scifact")
    names = [f"{WORDS[i % 8]} {WORDS[i // 8 + 5]}" for i in range(64)]
    pairs = [{"query": name, "positive": f"{name} {WORDS[i % 13]}"} for i, name in enumerate(names)]
    (place / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return place


@pytest.fixture
def place(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own where the page's names are found."""
    for name in ("sentence-transformers", "data", "pairs.jsonl"):
        (tmp_path / name).symlink_to(world / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("place")
def test_vectors_and_scores_are_those_of_sentence_transformers() -> None:
    theirs, ours = run("sentence-transformers", "encode"), run("m2dr", "encode")

    for name in ("queries", "documents", "scores"):
        np.testing.assert_allclose(ours[name], np.asarray(theirs[name]), **CLOSE)
    assert abs(ours["scores"][0, 0] - ours["scores"][0, 1]) > 1e-3


@pytest.mark.filterwarnings("ignore")  # of the other tool, which is not ours to mend
def test_both_train_models_that_sentence_transformers_opens(place: Path) -> None:
    from sentence_transformers import SentenceTransformer

    run("sentence-transformers", "train")
    run("m2dr", "train")

    before = SentenceTransformer(str(MODEL)).encode("read a file")
    for folder in ("models/st", "models/m2dr"):
        theirs = SentenceTransformer(str(place / folder), device="cpu")
        opened = theirs.encode("read a file")  # of length one, by its last module
        ours = m2dr.Encoder.from_pretrained(folder, dtype="fp32").encode_queries("read a file")
        np.testing.assert_allclose(ours, opened, **CLOSE)
        assert np.abs(opened - before).max() > 1e-4  # it has learned something


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files of beir
def test_the_quality_of_prefixes_is_what_sentence_transformers_measures(place: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    theirs = run("sentence-transformers", "evaluate")
    again = InformationRetrievalEvaluator(*(theirs[n] for n in ("queries", "texts", "relevant")))
    cut = again(SentenceTransformer(str(place / MODEL), truncate_dim=32))["cosine_ndcg@10"]
    found = run("m2dr", "evaluate")["grid"].values("nDCG@10")

    expected = {Cut(6, 32): cut, Cut(6, 384): theirs["results"]["cosine_ndcg@10"]}
    assert {at: found[at] for at in expected} == pytest.approx(expected, abs=1e-5)
    assert 0 < found[Cut(6, 384)] != found[Cut(6, 32)] < 1


@pytest.mark.usefixtures("place")
def test_rankings_are_those_of_sentence_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    given: dict[str, object] = {}
    exec(re.search(r"^## Search\n.*?```python\n(.*?)```", PAGE, re.M | re.S)[1], given)

    told = []
    for tool in ("sentence-transformers", "m2dr"):
        run(tool, "search", documents=given["documents"], queries=given["queries"])
        told.append([line.split(" ", 1) for line in capsys.readouterr().out.splitlines()])

    theirs, ours = told
    assert len(ours) == 4
    assert [text for _, text in ours] == [text for _, text in theirs]
    np.testing.assert_allclose(*([float(s) for s, _ in found] for found in told), **CLOSE)


def test_what_one_tool_shares_the_other_opens(place: Path) -> None:
    blocks = block("sentence-transformers", "share") + block("m2dr", "share")
    check = """if True:
        import numpy
        for folder in ("shared/st", "shared/m2dr", "me/st", "me/m2dr"):
            theirs = SentenceTransformer(folder, device="cpu").encode_query(["a list"])
            ours = m2dr.Encoder.from_pretrained(folder, dtype="fp32").encode_queries(["a list"])
            numpy.testing.assert_allclose(ours, theirs, atol=1e-5)
            print(folder)"""
    with running_hub() as hub:
        environment = {
            **ENVIRONMENT, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN,
            "HF_HOME": str(place / "home"), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", blocks + check], env=environment, cwd=place,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-4:] == ["shared/st", "shared/m2dr", "me/st", "me/m2dr"]


@pytest.mark.parametrize("task", TASKS)
def test_the_table_counts_the_lines_of_the_blocks(task: str) -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| [{TASKS[task]}]("))

    counts = [sum(bool(line.strip()) for line in block(tool, task).split("\n")) for tool in TOOLS]

    assert row.split(" | ")[1:] == [str(n or "–") for n in counts[:-1]] + [f"{counts[-1]} |"]


def test_the_page_names_the_version_that_the_tests_run() -> None:
    pins = (DOCS.parent / "constraints.txt").read_text()
    version = re.search(r"^sentence-transformers==(\S+)", pins, flags=re.MULTILINE)

    assert version
    assert f"| sentence-transformers | {version[1]} |" in PAGE


@pytest.mark.parametrize("tool", ["PyLate", "Pyserini"])
@pytest.mark.parametrize("task", TASKS)
def test_a_block_that_is_not_run_is_python_at_least(tool: str, task: str) -> None:
    code = block(tool, task)

    if not code.startswith("python -m"):
        compile(code, f"<{tool}: {task}>", "exec")


@pytest.mark.parametrize("tool", TOOLS)
def test_each_tool_has_its_place_in_each_task(tool: str) -> None:
    assert [task for task in TASKS if f"\n### {tool}: {task}\n" not in PAGE] == []


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)]+)\)", PAGE))
def test_each_link_of_the_page_leads_somewhere(link: str) -> None:
    file, _, anchor = link.partition("#")

    text = (DOCS / file).read_text() if file else PAGE
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    assert not anchor or anchor in anchors
