"""The model card after an evaluation: metadata that the hub reads, tables, and kept texts."""

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from mteb.results import TaskResult
from shell import m2dr
from world import make_backbone, make_model

from m2dr.cli import main
from m2dr.core.records import Cut
from m2dr.evaluate.grid import read_grid
from m2dr.model.card_results import metric_name
from m2dr.model.folder import read_card
from m2dr.model.readme import BEGIN, END

pytestmark = pytest.mark.usefixtures("place")
HOSTILE = "a|b ```\n# not a title <script>x</script>"


def run(*words: str | Path) -> Result:
    done = CliRunner().invoke(main, list(map(str, words)))
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture(scope="module")
def evaluated(
    tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path, tiny_corpus: Path
) -> Path:
    """A folder with a model, in models/, that was evaluated on two corpora, in results/."""
    place = tmp_path_factory.mktemp("evaluated")
    cuts = (Cut(2, 8), Cut(2, 32), Cut(4, 8), Cut(4, 32))
    model = make_model(tiny_backbone, place / "models" / "own", cuts=cuts, variant="full-dim")
    make_model(make_backbone(place / "backbone", seed=5), place / "models" / "other")
    (model / "settings.json").write_text(
        json.dumps({"corpus": "irds:beir/scifact/train", "split": "train", "steps": 3, "dev": ""})
    )
    shutil.copytree(tiny_corpus, place / "scifact")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for corpus in ("scifact", tiny_corpus):
            run(
                "evaluate", "beir", "--corpus", corpus, "--model", "models/own", "--model",
                "models/other", "--dims", "8,32", "--device", "cpu",
            )  # fmt: skip
    return place


@pytest.fixture
def place(evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = Path(shutil.copytree(evaluated, tmp_path / "place"))
    monkeypatch.chdir(copy)
    return copy


def test_the_hub_reads_the_results_as_it_reads_those_of_mteb() -> None:
    run("card", "models/own")

    data = ModelCard.load("models/own/README.md").data
    assert data.base_model is None
    assert data.datasets == ["BeIR/scifact"]
    assert data.license is None
    assert {"m2dr", "sentence-transformers", "feature-extraction"} <= set(data.tags)
    assert data.model_name == "own"
    grid = read_grid(Path("results/scifact/test/own/grid.json"))
    found = {one.metric_type: one for one in data.eval_results if one.dataset_name == "scifact"}
    assert {name: one.metric_value for name, one in found.items()} == {
        metric_name(name): round(value, 5) for name, value in grid.cells[Cut(4, 32)].items()
    }
    theirs = mteb_result()
    ours = found["ndcg_at_10"]
    for name in ("task_type", "task_name", "dataset_split", "metric_type"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.metric_name == "nDCG@10 of L4D32"
    assert ours.dataset_type == "BeIR/scifact"


def mteb_result():  # noqa: ANN201  # the hub's
    """What MTEB itself would put on the card for SciFact."""
    scores = {"test": [{"hf_subset": "default", "languages": ["eng-Latn"], "main_score": 0.5}]}
    result = TaskResult(
        dataset_revision="1", task_name="SciFact", mteb_version="2", scores=scores,
        evaluation_time=1.0,
    )  # fmt: skip
    with pytest.warns(DeprecationWarning, match="EvalResults"):
        return result.get_hf_eval_results()[0]


def test_the_tables_of_the_card_hold_the_grid() -> None:
    done = run("card", "models/own", "--results", "results")

    text = ModelCard.load("models/own/README.md").text
    html = MarkdownIt("commonmark").enable("table").render(text)
    for corpus in ("scifact", "tiny"):
        grid = read_grid(Path(f"results/{corpus}/test/own/grid.json"))
        assert f"<h3>{corpus} test: 8 queries</h3>" in html
        assert f"{corpus} test: {', '.join(grid.measures)} of 8 cuts" in done.stdout
        part = html.split(f"<h3>{corpus} test")[1].split("<h3>")[0]
        tables = re.findall(r"<table>(.*?)</table>", part, re.DOTALL)
        assert len(tables) == len(grid.measures)
        for measure, table in zip(grid.measures, tables, strict=True):
            cells = re.findall(r"<t[dh]>(?:<strong>)?(.*?)(?:</strong>)?</t[dh]>", table)
            rows = [cells[start : start + 3] for start in range(0, len(cells), 3)]
            assert rows[0] == ["layers", "8", "32"]
            assert {(int(row[0]), d): float(row[i]) for row in rows[1:] for i, d in ((1, 8), (2, 32))} == {
                (cut.layer, cut.dim): round(held[measure], 4) for cut, held in grid.cells.items()
            }  # fmt: skip
            assert "<strong>" in table
        (image,) = re.findall(r'<img src="(.*?)"', part)
        assert (Path("models/own") / image).read_bytes()[:4] == b"\x89PNG"
        assert "evaluate beir" not in part or "m2dr evaluate beir" in part
    assert "other" not in text
    assert html.count("<h1>") == 1
    assert '"steps": 3' in text
    assert '"dev"' not in text


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
    before = read_card("models/own")
    for _ in range(2):
        run("card", "models/own")

    card = ModelCard.load(path)
    assert card.text.count(f"{BEGIN}\n{mine}{END}") == 1
    assert (card.data.license, card.data.language) == ("mit", ["en"])
    assert card.data.tags.count("shops") == card.data.tags.count("m2dr") == 1
    assert "This sentence was changed" not in card.text
    assert len({one.dataset_name for one in card.data.eval_results}) == 2
    assert read_card("models/own") == before


def test_without_results_the_card_says_what_was_trained() -> None:
    shutil.rmtree("results")

    done = run("card", "models/own")

    card = ModelCard.load("models/own/README.md")
    assert "There are no results in results/" in done.stderr
    assert card.data.eval_results is None
    assert "## Results" not in card.text
    assert "Made from the corpus irds:beir/scifact/train, split train." in card.text


def test_results_of_other_models_are_not_shown_and_a_name_may_change() -> None:
    shutil.copytree("models/own", "models/twin")  # other vectors, of the same weights
    path = Path("models/twin/m2dr.json")
    path.write_text(path.read_text().replace('"dot"', '"cosine"'))
    shutil.move("models/other", "models/renamed")

    told = CliRunner().invoke(main, ["card", "models/twin", "--results", "results/tiny"])

    assert told.exit_code == 2
    assert "none of models/twin as it is now. Measure it with: m2dr evaluate" in told.stderr
    assert "tiny test" not in run("card", "models/twin").stdout
    assert "tiny test" in run("card", "models/renamed").stdout


def test_results_without_a_record_are_taken_by_their_name() -> None:
    for made in Path("results").rglob("made.json"):
        made.unlink()

    done = run("card", "models/own")

    assert "2 grids without made.json taken by the name own" in done.stderr
    assert "scifact test" in done.stdout


def test_texts_of_others_cannot_break_the_card() -> None:
    folder = Path("results/tiny/test/own")
    for name, change in (
        ("grid.json", {"corpus": HOSTILE, "notes": [HOSTILE]}),
        ("made.json", {"command": f"m2dr evaluate '{HOSTILE}'"}),
    ):
        table = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**table, **change}))
    settings = {"corpus": HOSTILE, "query_prefix": "```\n# x"}
    Path("models/own/settings.json").write_text(json.dumps(settings))
    made = Path("models/own/m2dr.json")
    made.write_text(json.dumps({**json.loads(made.read_text()), "variant": f"{HOSTILE}\n\n# x"}))

    run("card", "models/own")

    card = ModelCard.load("models/own/README.md")
    html = MarkdownIt("commonmark").enable("table").render(card.text)
    assert html.count("<h1>") == 1
    assert "<script" not in html
    headings = re.findall(r"<h([23])>(.*?)</h", html)
    assert [text for level, text in headings if level == "2"] == ["Training", "Results", "Use"]
    assert {one.dataset_name for one in card.data.eval_results} == {"scifact", HOSTILE}


@pytest.mark.parametrize("text", ["# Somebody's own card\n", "---\nlicense: mit\n---\n# Own\n"])
def test_a_card_that_m2dr_did_not_write_is_not_lost(text: str) -> None:
    path = Path("models/own/README.md")
    path.write_text(text)

    told = CliRunner().invoke(main, ["card", "models/own"])

    assert told.exit_code == 2
    assert "was not written by m2dr, and would be lost" in told.stderr
    assert path.read_text() == text


def test_a_text_to_keep_has_both_its_comments() -> None:
    path = Path("models/own/README.md")
    path.write_text(text := path.read_text().replace(END, "My text"))

    told = CliRunner().invoke(main, ["card", "models/own"])

    assert told.exit_code == 2
    assert "One of the two comments" in told.stderr
    assert path.read_text() == text


def test_metadata_that_is_no_yaml_is_named() -> None:
    path = Path("models/own/README.md")
    path.write_text(path.read_text().replace("---\n", "---\nlicense: [mit\n", 1))

    told = CliRunner().invoke(main, ["card", "models/own"])

    assert told.exit_code == 2
    assert "The metadata of README.md, between its lines ---, cannot be read" in told.stderr


def test_a_folder_without_a_model_has_no_card(tiny_backbone: Path, tmp_path: Path) -> None:
    for folder, sentence in ((tiny_backbone, "is no model that m2dr wrote"), ("x", "is not there")):
        done = m2dr("card", folder, cwd=tmp_path, cold=folder == "x")
        assert done.returncode == 2
        assert sentence in done.stderr
    assert not (tiny_backbone / "README.md").exists()
