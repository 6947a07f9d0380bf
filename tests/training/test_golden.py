"""The losses and scores of every recipe have not moved: golden.toml, measured on the tiny world."""

import tomllib
from collections.abc import Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import Any

import pytest
from world import WORDS, make_backbone, make_model

from m2dr.core.settings import PretrainSettings, TrainSettings, read_settings
from m2dr.core.variants import FAITHFUL, VARIANTS
from m2dr.tasks.training.pretrain import pretrain
from m2dr.tasks.training.train import train

GOLDEN = tomllib.loads(Path(__file__).with_name("golden.toml").read_text())
RUN = ("steps=3", "log_steps=1", "learning_rate=1e-3", "dropout=0.0", "dtype=fp32", "device=cpu")
TRAIN = (*RUN, "batch_size=4", "query_length=8", "document_length=16")
ROWS = {
    **{name: (f"variant={name}",) for name in VARIANTS},
    **{f"{name} faithful": (f"variant={name}", "faithful=true") for name in FAITHFUL},
    "full-dim undivided": ("variant=full-dim", "align_reduction=mean"),
    "2dmse-st older": ("variant=2dmse-st", "embeddings=false", "weights=inverse", "detach=false"),
    "dims dynamic": ("variant=dims", "weights=dynamic"),
    "ese angle": ("variant=ese", "loss=angle", "negatives=1"),
}
PAIRS = {f"{name} pairs": (f"variant={name}",) for name in ("mrl", "2dmse-v1", "ese")}
Numbers = Mapping[str, Sequence[float]]
Golden = Mapping[str, Any]  # the numbers of a row, and perhaps its drift


def moved(expected: Golden, found: Numbers) -> list[str]:
    """Return a sentence for each number that has moved by more than its drift."""
    return [
        f"{kind}: expected {expected[kind]}, found {found[kind]}"
        for kind, drift in expected.get("drift", GOLDEN["drift"]).items()
        if not all(
            isclose(a, b, rel_tol=drift, abs_tol=drift)
            for a, b in zip(expected[kind], found[kind], strict=True)
        )
    ]


def trained(backbone: Path, corpus: Path, words: Sequence[str], folder: Path) -> Numbers:
    """Return the first and the last loss of a training, and its score on dev, if it has one."""
    paths = (f'backbone="{backbone}"', f'corpus="{corpus}"')
    report = train(read_settings(TrainSettings, None, [*TRAIN, *paths, *words]), folder)
    scores = [] if report.quality is None else [report.quality]
    return {"losses": [report.first_loss, report.last_loss], "scores": scores}


@pytest.fixture(scope="module")
def spread_backbone(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backbone whose vectors differ from one text to the next, so that losses do too."""
    return make_model(tiny_backbone, tmp_path_factory.mktemp("spread") / "model")


@pytest.mark.parametrize("name", ROWS)
def test_a_recipe_has_the_losses_and_scores_that_it_had(
    name: str, spread_backbone: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    words = ("evaluate_steps=3", *ROWS[name])

    assert moved(GOLDEN[name], trained(spread_backbone, tiny_corpus, words, tmp_path)) == []


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentence pairs, each with a score."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    rows = [
        f"{' '.join(WORDS[i % 9 : i % 9 + 4])}\t{' '.join(WORDS[i % 7 : i % 7 + 4])}\t{i % 6}\n"
        for i in range(40)
    ]
    path.write_text("sentence1\tsentence2\tscore\n" + "".join(rows))
    return path


@pytest.mark.parametrize("name", PAIRS)
def test_a_recipe_has_the_losses_on_sentence_pairs_that_it_had(
    name: str, spread_backbone: Path, pairs: Path, tmp_path: Path
) -> None:
    words = ("evaluate_steps=0", *PAIRS[name])

    assert moved(GOLDEN[name], trained(spread_backbone, pairs, words, tmp_path)) == []


def test_pretraining_has_the_losses_that_it_had(tiny_corpus: Path, tmp_path: Path) -> None:
    paths = (
        f'backbone="{make_backbone(tmp_path / "bert", masks=True)}"',
        f'corpus="{tiny_corpus}"',
    )
    settings = read_settings(PretrainSettings, None, [*RUN, *paths, "batch_size=4", "length=16"])

    report = pretrain(settings, tmp_path / "model")

    found = {"losses": [report.first_loss, report.last_loss], "scores": []}
    assert moved(GOLDEN["smae"], found) == []
