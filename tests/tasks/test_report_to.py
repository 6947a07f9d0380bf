"""A training logs its losses, and its dev measure at every cut, to the libraries it is told."""

import sys
from collections.abc import Callable
from importlib import util
from importlib.machinery import ModuleSpec
from pathlib import Path
from statistics import fmean
from types import ModuleType, SimpleNamespace

import pytest
from click.testing import CliRunner
from shell import ENVIRONMENT, m2dr
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from m2dr.cli import main
from m2dr.core.errors import UserError
from m2dr.core.trainings import read_train_settings
from m2dr.tasks.train import TrainReport, train

WORDS = (
    "batch_queries=4", "steps=2", "evaluate_steps=1", "document_length=16", "query_length=16",
    "dims=[16]",
)  # fmt: skip
CUTS = {f"L{layer}D{dim}" for layer in (1, 2, 3, 4) for dim in (16, 32)}
Logged = list[tuple[int, dict[str, float]]]  # a step, and what was logged of it


@pytest.fixture
def trained(tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path) -> Callable[[str], TrainReport]:
    """Train into tmp_path/model, and report to these libraries."""

    def run(report_to: str) -> TrainReport:
        options = {"backbone": str(tiny_backbone), "corpus": str(tiny_corpus), "device": "cpu"}
        settings = read_train_settings(None, WORDS, {**options, "report_to": report_to})
        return train(settings, tmp_path / "model")

    return run


def module(name: str, **contents: object) -> ModuleType:
    found = ModuleType(name)
    found.__spec__ = ModuleSpec(name, None)
    vars(found).update(contents)
    return found


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What transformers calls of mlflow, and what it was called with."""
    seen = SimpleNamespace(runs=[], params={}, logged=[])

    def log_metrics(metrics: dict[str, float], step: int, synchronous: bool) -> None:
        assert not synchronous
        seen.logged.append((step, metrics))

    validation = SimpleNamespace(MAX_PARAM_VAL_LENGTH=6000, MAX_PARAMS_TAGS_PER_BATCH=100)
    fake = module(
        "mlflow",
        __version__="3.17.2",
        utils=SimpleNamespace(validation=validation),
        is_tracking_uri_set=lambda: False,
        active_run=lambda: None,
        start_run=lambda run_name, **_: seen.runs.append(run_name),
        log_params=lambda params, **_: seen.params.update(params),
        log_metrics=log_metrics,
        end_run=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    fake.active_run = lambda: (
        SimpleNamespace(info=SimpleNamespace(run_id="1")) if seen.runs else None
    )
    return seen


@pytest.fixture
def trackio(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What transformers calls of trackio, and what it was called with."""
    seen = SimpleNamespace(runs=[], params={}, logged=[], finished=0)

    class Config(dict[str, object]):
        def update(self, table: dict[str, object], **_: object) -> None:
            seen.params.update(table)

    def finish() -> None:
        seen.finished += 1

    space = SimpleNamespace(get=lambda: None)
    fake = module(
        "trackio",
        init=lambda name, **_: seen.runs.append(name),
        config=Config(),
        context_vars=SimpleNamespace(current_space_id=space),
        log=lambda metrics: seen.logged.append((int(metrics["train/global_step"]), metrics)),
        finish=finish,
    )
    monkeypatch.setitem(sys.modules, "trackio", fake)
    return seen


def evaluations(logged: Logged, prefix: str) -> dict[int, dict[str, float]]:
    """The dev measures, by step and by cut; that of no cut is their mean."""
    found: dict[int, dict[str, float]] = {}
    for step, values in logged:
        own = {n[len(prefix) :]: v for n, v in values.items() if n.startswith(prefix)}
        if own:
            found[step] = {name.lstrip("_"): value for name, value in own.items()}
    return found


def check(found: dict[int, dict[str, float]], report: TrainReport) -> None:
    assert set(found) == {1, 2}
    for values in found.values():
        assert set(values) == {"", *CUTS}
        assert values[""] == pytest.approx(fmean(values[cut] for cut in CUTS), rel=1e-5)
    assert max(values[""] for values in found.values()) == pytest.approx(report.quality, rel=1e-5)


def test_tensorboard_has_the_dev_measure_of_every_cut_without_being_asked(
    trained: Callable[[str], TrainReport], tmp_path: Path
) -> None:
    report = trained(read_train_settings(None).report_to)

    events = EventAccumulator(str(tmp_path / "model" / "tensorboard"))
    events.Reload()
    logged = [
        (event.step, {name: event.value})
        for name in events.Tags()["scalars"]
        for event in events.Scalars(name)
    ]
    by_step: dict[int, dict[str, float]] = {}
    for step, values in logged:
        by_step.setdefault(step, {}).update(values)
    check(evaluations(list(by_step.items()), "eval/quality"), report)
    assert all("train/loss" in by_step[step] for step in (1, 2))


def test_mlflow_has_the_dev_measure_of_every_cut_and_the_settings(
    mlflow: SimpleNamespace, trained: Callable[[str], TrainReport], tmp_path: Path
) -> None:
    report = trained("mlflow")

    check(evaluations(mlflow.logged, "eval_quality"), report)
    assert mlflow.runs == [str(tmp_path / "model")]
    assert mlflow.params["variant"] == "full-dim"
    assert not (tmp_path / "model" / "tensorboard").exists()


def test_several_libraries_have_the_same_numbers(
    mlflow: SimpleNamespace, trackio: SimpleNamespace, trained: Callable[[str], TrainReport],
    tmp_path: Path,
) -> None:  # fmt: skip
    report = trained("tensorboard, mlflow,trackio")

    check(evaluations(trackio.logged, "eval/quality"), report)
    assert evaluations(trackio.logged, "eval/quality") == evaluations(mlflow.logged, "eval_quality")
    assert trackio.finished == 1
    assert list((tmp_path / "model" / "tensorboard").glob("events.*"))


def test_none_logs_nowhere(trained: Callable[[str], TrainReport], tmp_path: Path) -> None:
    assert trained("none").quality is not None

    assert not (tmp_path / "model" / "tensorboard").exists()


def test_a_run_of_wandb_that_the_caller_began_is_used_and_left_open(
    trained: Callable[[str], TrainReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", exc_type=ImportError)
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=tmp_path, project="mine") as run:
        report = trained("wandb")

        assert wandb.run is run
        found = {name: value for name, value in dict(run.summary).items() if "quality" in name}
        assert set(found) == {"eval/quality", *(f"eval/quality_{cut}" for cut in CUTS)}
        assert found["eval/quality"] == pytest.approx(
            fmean(found[f"eval/quality_{c}"] for c in CUTS)
        )
        assert run.config["variant"] == "full-dim"
    assert found["eval/quality"] <= (report.quality or 0)


def test_a_run_of_wandb_is_written_by_the_command_line(
    tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", exc_type=ImportError)
    monkeypatch.setitem(ENVIRONMENT, "WANDB_MODE", "offline")
    sets = [part for word in WORDS for part in ("--set", word)]

    done = m2dr(
        "train", "--backbone", tiny_backbone, "--corpus", tiny_corpus, "--device", "cpu", "--out",
        "model", "--report-to", "wandb", *sets, cwd=tmp_path, cold=True,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    (written,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    content = written.read_bytes()
    assert all(f"eval/quality_{cut}".encode() in content for cut in CUTS)


@pytest.mark.parametrize(
    ("name", "how"), [("wandb", "pip install 'm2dr[wandb]'"), ("tensorboard", "pip install m2dr\n")]
)
def test_an_absent_library_is_a_sentence_with_the_command_that_installs_it(
    name: str, how: str, tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    find = util.find_spec

    def absent(word: str, package: str | None = None) -> ModuleSpec | None:
        return None if word == name else find(word, package)

    monkeypatch.setattr("m2dr.train.reporters.find_spec", absent)
    words = ["train", "--backbone", str(tiny_backbone), "--corpus", str(tiny_corpus)]

    done = CliRunner().invoke(main, [*words, "--out", str(tmp_path), "--report-to", name])

    assert done.exit_code == 2
    assert f"--report-to {name} was asked for, and {name} is not installed" in done.stderr
    assert how in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("mlflow")
def test_a_library_that_refuses_to_begin_is_a_sentence(
    trained: Callable[[str], TrainReport],
) -> None:
    def refuse(**_: object) -> None:
        raise OSError("The server does not answer.\nMore of it.")

    sys.modules["mlflow"].start_run = refuse  # type: ignore[attr-defined]  # the stand-in

    with pytest.raises(
        UserError, match="mlflow could not begin a run: The server does not answer. "
    ):
        trained("mlflow")


def test_a_misspelt_library_is_named() -> None:
    with pytest.raises(UserError, match="report_to has 'wandbb' .Did you mean wandb."):
        read_train_settings(None, ["report_to=wandbb"])
