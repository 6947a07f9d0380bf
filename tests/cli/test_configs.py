"""Every file of configs/ is valid, gives the recipe that its header describes, and can be tried."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from world import make_shape

from m2dr.core.records import Cut
from m2dr.core.settings import PretrainSettings, TrainSettings, read_settings
from m2dr.tasks.training.recipe import Kind, explain, recipe_of
from m2dr.tasks.training.train import of_cut, separate_cuts

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = {path.stem: path for path in sorted(CONFIGS.glob("*.toml"))}
PRETRAIN = "starbucks-smae"
TRAIN = [name for name in FILES if name != PRETRAIN]

BERT, MINILM = (12, 768), (6, 384)
SHAPES = {
    "minilm": MINILM,
    "bert-base-uncased": BERT,
    "BAAI/bge-base-en-v1.5": BERT,
    "WhereIsAI/UAE-Large-V1": (24, 1024),
    "Qwen/Qwen1.5-0.5B": (24, 1024),
    "huawei-noah/TinyBERT_General_6L_768D": (6, 768),
    "BAAI/bge-m3": (24, 1024),
    "Qwen/Qwen3-Embedding-0.6B": (28, 1024),
    "Qwen/Qwen3-0.6B": (28, 1024),
}  # layers and width
KINDS: dict[str, Kind] = {"nli": "scored pairs", "mipic": "sentences"}
Shape = Callable[[tuple[int, int]], str]


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Shape:
    """Return the folder of a backbone with some layers and width."""
    made: dict[tuple[int, int], Path] = {}

    def get(size: tuple[int, int]) -> str:
        if size not in made:
            made[size] = make_shape(tmp_path_factory.mktemp("shape"), *size)
        return str(made[size])

    return get


def kind_of(name: str) -> Kind:
    """What the corpus of a file holds; triples are queries and documents."""
    if read_settings(TrainSettings, FILES[name]).negatives:
        return "documents"
    return next((kind for word, kind in KINDS.items() if word in name.split("-")), "documents")


@pytest.mark.parametrize("name", TRAIN)
def test_each_file_makes_the_recipe_that_its_head_tells_of(name: str, shape: Shape) -> None:
    settings = read_settings(TrainSettings, FILES[name])
    settings = replace(settings, backbone=shape(SHAPES[settings.backbone]))

    cuts = separate_cuts(settings)
    if cuts:
        settings = of_cut(settings, cuts[-1])
    recipe_of(settings, kind_of(name)).objective()

    told = re.search(
        r"^# --explain: (?:(\d+) models, each of )?(.+)\.$", FILES[name].read_text(), re.M
    )
    if told is None:
        assert "# Source:" not in FILES[name].read_text(), "an experiment tells its number of terms"
        return
    assert explain(settings, kind_of(name)).splitlines()[-1] == told[2]
    assert len(cuts) == int(told[1] or 0)


def test_the_published_checkpoints_of_mipic_are_those_of_the_code(shape: Shape) -> None:
    for name in (name for name in TRAIN if name.startswith("mipic") and "tiny" not in name):
        settings = read_settings(TrainSettings, FILES[name])
        if settings.faithful:  # the chain of notebooks
            continue
        settings = replace(settings, backbone=shape(SHAPES[settings.backbone]))

        named = recipe_of(settings, "sentences").path
        usual = recipe_of(replace(settings, checkpoints=()), "sentences").path

        assert named == usual


def test_starbucks_trains_the_cuts_that_it_was_pretrained_for() -> None:
    tuned = read_settings(TrainSettings, FILES["starbucks-srl-msmarco"])
    pretrained = read_settings(PretrainSettings, FILES[PRETRAIN])

    assert tuned.checkpoints == pretrained.checkpoints
    assert Cut.parse(tuned.checkpoints[-1]) == Cut(*BERT)
