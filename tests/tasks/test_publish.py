"""m2dr export, card and push: cuts elsewhere, cards with what was measured, uploads to a stand-in."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import create_autospec

import numpy as np
import pytest
from commands import done, refused
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.utils import filter_repo_objects
from markdown_it import MarkdownIt
from shell import python
from world import make_backbone, make_model

import m2dr
from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.evaluation.grid import read_grid
from m2dr.model.card import BEGIN, END
from m2dr.model.checkpoint import load
from m2dr.model.words import WordTable

TEXTS = ["open the file", "a list of numbers and a class of text and a line of words", "path"]
# Runs the lines of a graph's README where torch cannot be imported, nor m2dr if they do not name it.
ELSEWHERE = r"""
import json, re, sys
from pathlib import Path
sys.modules["torch"] = None
import numpy as np
texts, found = json.loads(sys.argv[1]), {}
for folder in map(Path, sys.argv[3:]):
    page = (folder / "README.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    block = block.replace("FOLDER", str(folder)).replace('["a question"]', repr(texts))
    block = block.replace('["a text that may answer it"]', repr(texts))
    if "m2dr" not in block:
        sys.modules["m2dr"] = None
    names = {}
    exec(block, names)
    alone = [names["encode"]([text], "", 256)[0] for text in texts]
    found[folder.name] = np.stack([names.get("documents", names["queries"]), alone])
np.savez(sys.argv[2], **found)
"""


# Exports


def test_graphs_give_the_vectors_of_the_cut_without_torch_and_m2dr(
    tiny_fitted: Path, tmp_path: Path
) -> None:
    file, folders = tmp_path / "found.npz", []
    for name in ("onnx", "openvino"):
        for cut in ("L2D8", "L4D8"):
            folders.append(str(tmp_path / f"{name}-{cut}"))
            words = ("export", "--model", tiny_fitted, "--cut", cut, "--format", name)
            told = done(*words, "--out", folders[-1])
            assert ("L2D8 encodes queries that search documents of L4D8" in told) == (cut == "L2D8")
    python("-W", "ignore", "-c", ELSEWHERE, json.dumps(TEXTS), file, *folders)
    encoder = m2dr.Encoder.from_pretrained(tiny_fitted, 2, 8, device="cpu", dtype="fp32")
    scores = encoder.similarity(encoder.encode_queries(TEXTS), encoder.encode_documents(TEXTS))
    for name in ("onnx", "openvino"):
        (queries, alone), (documents, one) = (
            np.load(file)[f"{name}-{c}"] for c in ("L2D8", "L4D8")
        )
        np.testing.assert_allclose([alone, one], [queries, documents], atol=1e-4)
        np.testing.assert_allclose(queries @ documents.T, scores, atol=1e-4)


@pytest.mark.usefixtures("here")
def test_a_folder_shows_the_scores_and_costs_of_its_cut_and_is_a_model(
    tiny_fitted: Path, tiny_corpus: Path
) -> None:
    grid = m2dr.evaluate(tiny_fitted, str(tiny_corpus), layers=[2, 4], dims=[8, 32])
    out = done("export", "--model", tiny_fitted, "--cut", "L2D8", "--out", "small")
    value = grid.values("nDCG@10")
    mine, full = (next(v for c, v in value.items() if str(c) == n) for n in ("L2D8", "L4D32"))
    assert f"nDCG@10 {mine:.4f}, {full:.4f} of L4D32" in out
    for _ in range(2):  # again by `m2dr card`
        page = Path("small", "README.md").read_text()
        assert re.search(rf"nDCG@10 of .* \| {mine:.4f} \| {full:.4f} \|", page)
        assert "| bytes of a document in an index | 32 | 128 |" in page
        done("card", "small")
    small = m2dr.Encoder.from_pretrained("small", device="cpu")
    index = m2dr.Index.build(small, str(tiny_corpus), dims=[8])
    assert len(index.search("open the file", k=3).hits) == 3
    told = refused("export", "--model", "small", "--cut", "L1D8", "--out", "o")
    assert "neither fitted nor trained" in told


@pytest.mark.usefixtures("exits_of_few")
@pytest.mark.usefixtures("here")
def test_exits_of_an_index_are_exported(tiny_backbone: Path, tiny_corpus: Path) -> None:
    model = m2dr.Encoder.from_pretrained(tiny_backbone, device="cpu", dtype="fp32")
    m2dr.Index.build(model, str(tiny_corpus), dims=[32])
    (exits,) = Path("indexes").glob("*/*/exits")
    done("export", "--model", tiny_backbone, "--cut", "L2D8", "--exits", exits, "--out", "small")
    expected = load(tiny_backbone, exits=exits).vectors(TEXTS, "query", (2,))[0][:, :8]
    again = m2dr.Encoder.from_pretrained("small", device="cpu", dtype="fp32")
    if again.card.similarity == "cosine":
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(again.encode_queries(TEXTS), expected, atol=1e-5)
    done("export", "--model", tiny_backbone, "--layers", 0, "--exits", exits, "--out", "table")
    assert "documents of the index of" in Path("table", "README.md").read_text()
    words = ("export", "--model", tiny_backbone, "--cut", "L4D8")
    assert "--exits takes an index's exits" in refused(*words, "--out", "documents")
    done(*words, "--exits", exits, "--out", "documents")  # its prefix, as the index has it
    found = load("documents").vectors(TEXTS, "document", (4,))[0]
    expected = load(tiny_backbone).vectors(TEXTS, "document", (4,))[0][:, :8]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    make_backbone(Path("other"), seed=5)
    error = refused("export", "--model", "other", "--cut", "L4D8", "--exits", exits, "--out", "o")
    assert "are of model" in error


def test_layer_0_is_exported_as_words(tiny_fitted: Path, tmp_path: Path) -> None:
    out = done(
        "export", "--model", tiny_fitted, "--layers", 0, "--dim", 8, "--out", tmp_path / "words"
    )
    block = re.search(r"```python\n(.*?)```", (tmp_path / "words" / "README.md").read_text(), re.S)
    assert block is not None
    names: dict[str, np.ndarray] = {}
    lines = block[1].replace("FOLDER", str(tmp_path / "words"))
    exec(lines.replace('["a question"]', repr(TEXTS)), names)
    np.testing.assert_allclose(names["queries"], WordTable.open(tiny_fitted).embed(TEXTS, 8))
    assert "words, 8 dims" in out
    assert "WordTable.open reads" in out
    with pytest.raises(UserError, match=r"words of layer 0 and no full model; .*WordTable\.open"):
        load(tmp_path / "words")
    ModelCard.load(tmp_path / "words" / "README.md")


# Cards


@pytest.fixture(scope="module")
def evaluated(
    tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path, tiny_corpus: Path
) -> Path:
    """A folder with a model, in models/, that was evaluated on two corpora, in results/."""
    place = tmp_path_factory.mktemp("evaluated")
    cuts = (Cut(2, 8), Cut(2, 32), Cut(4, 8), Cut(4, 32))
    model = make_model(tiny_backbone, place / "models" / "own", cuts=cuts, variant="full-dim")
    make_model(make_backbone(place / "backbone", seed=5), place / "models" / "other")
    settings = {"corpus": "irds:beir/scifact/train", "split": "train", "steps": 3, "dev": ""}
    (model / "settings.json").write_text(json.dumps(settings))
    shutil.copytree(tiny_corpus, place / "scifact")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for corpus in ("scifact", tiny_corpus):
            done(
                "evaluate", "retrieval", "--corpus", corpus, "--model", "models/own", "--model",
                "models/other", "--dims", "8,32", "--device", "cpu",
            )  # fmt: skip
    return place


@pytest.fixture
def place(evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = Path(shutil.copytree(evaluated, tmp_path / "place"))
    monkeypatch.chdir(copy)
    return copy


@pytest.mark.usefixtures("place")
def test_the_tables_of_the_card_hold_the_grid() -> None:
    shutil.move("models/own", "models/renamed")
    out = done("card", "models/renamed", "--results", "results")
    text = ModelCard.load("models/renamed/README.md").text
    html = MarkdownIt("commonmark").enable("table").render(text)
    for corpus in ("scifact", "tiny"):
        grid = read_grid(Path(f"results/{corpus}/test/own/grid.json"))
        assert f"{corpus} test: {', '.join(grid.measures)} of 8 cuts" in out
        part = html.split(f"<h3>{corpus} test: 8 queries")[1].split("<h3>")[0].split("<h2>")[0]
        tables = re.findall(r"<table>(.*?)</table>", part, re.DOTALL)
        for measure, table in zip(grid.measures, tables, strict=True):
            cells = re.findall(r"<t[dh]>(.*?)</t[dh]>", table)
            rows = [cells[start : start + 3] for start in range(0, len(cells), 3)]
            assert rows[0] == ["layers", "8", "32"]
            assert {(int(r[0]), d): float(r[i]) for r in rows[1:] for i, d in ((1, 8), (2, 32))} == {
                (cut.layer, cut.dim): round(held[measure], 4) for cut, held in grid.cells.items()
            }  # fmt: skip
    assert "other" not in text
    assert '"steps": 3' in text


@pytest.mark.usefixtures("place")
def test_what_a_person_wrote_is_kept() -> None:
    path = Path("models/own/README.md")
    mine = "\nTrained for **my shop**.\n\n## Limits\n\nEnglish only.\n"
    path.write_text(
        path.read_text()
        .replace(f"{BEGIN}\n", f"{BEGIN}\n{mine}")
        .replace("---\nlibrary", "---\nlicense: mit\nlanguage:\n- en\nlibrary", 1)
        .replace("- m2dr\n", "- m2dr\n- shops\n", 1)
        .replace("A dual encoder", "This sentence was changed and is not kept. A dual encoder")
    )
    for _ in range(2):
        done("card", "models/own")
    card = ModelCard.load(path)
    assert card.text.count(f"{BEGIN}\n{mine}{END}") == 1
    assert (card.data.license, card.data.language) == ("mit", ["en"])
    assert card.data.tags.count("shops") == card.data.tags.count("m2dr") == 1
    assert "This sentence was changed" not in card.text
    path.write_text(own := "---\nlicense: mit\n---\n# Somebody's own card\n")
    assert "would be lost" in refused("card", "models/own")
    assert path.read_text() == own


@pytest.mark.usefixtures("place")
def test_results_of_other_models_are_not_shown() -> None:
    shutil.copytree("models/own", "models/twin")  # other vectors, of the same weights
    path = Path("models/twin/m2dr.json")
    path.write_text(path.read_text().replace('"dot"', '"cosine"'))
    error = refused("card", "models/twin", "--results", "results/tiny")
    assert "No results are of models/twin as it is now" in error
    assert "tiny test" not in done("card", "models/twin")
    shutil.rmtree("results")
    assert "without results" in done("card", "models/own")
    assert "is no model that m2dr wrote" in refused("card", "backbone")


# Uploads

OWN = {
    "1_Pooling/config.json", "README.md", "config.json", "config_sentence_transformers.json",
    "m2dr.json", "model.safetensors", "modules.json", "sentence_bert_config.json", "settings.json",
    "tokenizer.json", "tokenizer_config.json",
}  # fmt: skip
OTHERS = (
    "checkpoints.old/optimizer.pt", "tensorboard/events.1", ".cache/x", ".m2dr.lock", "train.log",
    "optimizer.bin", "pytorch_model.bin", "notes.json", "1_Pooling/x.bin", "onnx/model.safetensors",
)  # fmt: skip


@pytest.fixture
def model(tiny_backbone: Path, tmp_path: Path) -> Path:
    """A model with files that are its own, and files that are not."""
    folder = make_model(tiny_backbone, tmp_path / "tiny-model", cuts=(Cut(2, 8), Cut(4, 32)))
    for name in ("settings.json", *OTHERS):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(f"{name} of a test".encode())
    return folder


def own(model: Path) -> dict[str, bytes]:
    return {name: (model / name).read_bytes() for name in OWN}


class Hub:
    """Repositories in memory, behind the calls of the hub's client that m2dr makes."""

    def __init__(self) -> None:
        self.heads: dict[tuple[str, str], dict[str, bytes]] = {}  # of a repository and a branch
        self.private: dict[str, bool] = {}
        self.messages: list[str] = []

    def create_repo(self, name: str, private: bool | None, **_: object) -> None:
        if name not in self.private:
            self.private[name], self.heads[name, "main"] = bool(private), {".gitattributes": b""}

    def model_info(self, name: str) -> object:
        return SimpleNamespace(private=self.private[name])

    def create_branch(self, name: str, branch: str, **_: object) -> None:
        self.heads.setdefault((name, branch), self.heads[name, "main"])

    def list_repo_files(self, name: str, revision: str) -> list[str]:
        return [*self.heads[name, revision]]

    def upload_folder(
        self, repo_id: str, folder_path: Path, revision: str, commit_message: str,
        allow_patterns: list[str], delete_patterns: list[str],
    ) -> object:  # fmt: skip
        head = self.heads[repo_id, revision]
        files = [str(p.relative_to(folder_path)) for p in folder_path.rglob("*") if p.is_file()]
        sent = filter_repo_objects(files, allow_patterns=allow_patterns)
        kept = filter_repo_objects(head, ignore_patterns=delete_patterns)
        self.heads[repo_id, revision] = {name: head[name] for name in kept} | {
            name: (folder_path / name).read_bytes() for name in sent
        }
        self.messages.append(commit_message)
        return SimpleNamespace(commit_url=f"hub/{repo_id}/{revision}", oid="0")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub, client = Hub(), create_autospec(HfApi, instance=True)
    for name in ("create_repo", "model_info", "create_branch", "list_repo_files", "upload_folder"):
        getattr(client, name).side_effect = getattr(hub, name)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda **_: client)
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
    return hub


def test_the_hub_receives_exactly_the_files_listed(hub: Hub, model: Path) -> None:
    listed = done("push", model, "me/tiny", "--dry-run")
    assert not hub.heads
    assert "nothing was sent" in listed
    told = done("push", model, "me/tiny", "--private", "--message", "First one")
    files = hub.heads["me/tiny", "main"]
    assert {n: data for n, data in files.items() if n[0] != "."} == own(model)
    assert {line.split()[1] for line in listed.splitlines()[:-1]} == OWN
    assert told.splitlines()[:-1] == listed.splitlines()[:-1]
    assert "hub/me/tiny/main" in told
    assert (hub.private, hub.messages) == ({"me/tiny": True}, ["First one"])


def test_a_model_goes_to_a_branch_and_comes_back(
    hub: Hub, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(name: str, revision: str, **_: object) -> str:
        for file, data in hub.heads[name, revision].items():
            (tmp_path / "copy" / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "copy" / file).write_bytes(data)
        return str(tmp_path / "copy")

    done("push", model, "me/tiny", "--private")
    before = hub.heads["me/tiny", "main"]
    sent = m2dr.Encoder.from_pretrained(model, layer=2, dtype="fp32", device="cpu")

    url = sent.push_to_hub("me/tiny", revision="v2", private=True)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    again = m2dr.Encoder.from_pretrained("me/tiny", revision="v2", dtype="fp32", device="cpu")
    np.testing.assert_allclose(again.encode_queries(TEXTS), sent.encode_queries(TEXTS), atol=1e-6)
    assert (again.card.layers, url) == (2, "hub/me/tiny/v2")
    assert hub.heads["me/tiny", "main"] == before
    # Settings of the earlier model, which this one does not have, are gone.
    assert set(before) - set(hub.heads["me/tiny", "v2"]) == {"settings.json"}


def test_a_public_repository_is_not_sent_what_should_be_private(hub: Hub, model: Path) -> None:
    hub.create_repo("me/tiny", private=False)
    assert "me/tiny was to be private and is public" in refused(
        "push", model, "me/tiny", "--private"
    )
    assert set(hub.heads["me/tiny", "main"]) == {".gitattributes"}
