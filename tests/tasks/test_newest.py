"""Which model a command takes that names none, and that it says so."""

import os
import shutil
from pathlib import Path

import pytest
from world import make_backbone, make_fitted, make_model

from m2dr import open_index
from m2dr.core.requests import IndexRequest
from m2dr.model.checkpoint import export_cut, open_model
from m2dr.tasks.indexing.index import index_corpus
from m2dr.tasks.models import newest_model

CHOSEN = "Model: models/trained, the newest in models/"


@pytest.mark.usefixtures("here")
def test_exports_and_pre_trained_backbones_are_passed_over_and_named(
    tiny_backbone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an older model and a newer one, then a cut of the newer and a pre-trained one."""
    models = Path("models")
    for name in ("older", "trained"):
        make_model(tiny_backbone, models / name, variant="plain")
    export_cut(open_model(models / "trained"), 2, models / "cut")
    make_model(tiny_backbone, models / "pretrained", variant="smae")
    for second, name in enumerate(("older", "trained", "cut", "pretrained")):
        os.utime(models / name / "m2dr.json", (1_700_000_000 + second,) * 2)
    capsys.readouterr()

    assert newest_model() == "models/trained"
    assert capsys.readouterr().err == f"{CHOSEN}; --model names another.\n"

    shutil.rmtree("models/trained")
    assert newest_model() == "models/older"


@pytest.mark.usefixtures("here")
def test_an_index_is_searched_by_its_own_model(
    tiny_backbone: Path, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("m2dr.tasks.models.BUILT_IN", str(tiny_backbone))
    assert newest_model() == str(tiny_backbone)  # where nothing was trained
    make_model(tiny_backbone, Path("models/older"), variant="plain")
    make_fitted(Path("models/older"), Path("models/newer"))
    index_corpus(IndexRequest(str(tiny_corpus), "models/older"))

    assert open_index(tiny_corpus).resolved.model.name == "models/older"

    index_corpus(IndexRequest(str(tiny_corpus), "models/newer"))
    assert open_index(tiny_corpus).resolved.model.name == "models/newer"


@pytest.mark.usefixtures("here", "exits_of_few")
def test_of_indexes_by_a_model_that_is_gone_the_newest_answers_at_layer_0(
    tiny_corpus: Path,
) -> None:
    for seed in (1, 2):  # trained again, under the same name
        shutil.rmtree("model", ignore_errors=True)
        make_model(make_backbone(Path(f"b{seed}"), seed=seed), Path("model"), similarity="cosine")
        index_corpus(IndexRequest(str(tiny_corpus), "model", device="cpu"))
    shutil.rmtree("model")
    homes = [path.parents[1] for path in Path("indexes").glob("*/*/exits/exits.json")]
    assert len(homes) == 2
    for newest in homes:
        for home in homes:
            for store in home.glob("layer-*/store.json"):
                os.utime(store, (1_700_000_000 + (home == newest),) * 2)
        assert open_index(tiny_corpus, layer=0).resolved.index.path == newest
