"""m2dr.evaluate, m2dr.fit and m2dr.train: what the commands of these names do, from Python."""

import inspect
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses
from transformers import EarlyStoppingCallback, TrainerCallback

import m2dr
from m2dr.api import EvaluatedGrid
from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.core.requests import EvaluateRequest
from m2dr.core.settings import TrainSettings, read_settings
from m2dr.tasks.evaluating.evaluate import evaluate
from m2dr.tasks.training.train import train
from m2dr.training.losses import contrastive

FP32 = {"device": "cpu", "dtype": "fp32"}


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> m2dr.Encoder:
    return m2dr.Encoder(tiny_model, **FP32)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("evaluated")
    return {"folder": folder / "indexes", "out": folder / "results"}


@pytest.fixture(scope="module")
def grid(model: m2dr.Encoder, tiny_corpus: Path, place: dict[str, Path]) -> EvaluatedGrid:
    return m2dr.evaluate(
        model,
        tiny_corpus,
        layers=[2, 4],
        dims=[8, 32],
        measures=["nDCG@10", "RR@10"],
        costs=True,
        **place,
    )


def test_the_grid_is_that_of_the_command(
    grid: EvaluatedGrid, model: m2dr.Encoder, tiny_corpus: Path, tmp_path: Path
) -> None:
    request = EvaluateRequest(
        (str(tiny_corpus),), (model.name,), layers=(2, 4), dims=(8, 32),
        measures=("nDCG@10", "RR@10"), root=tmp_path / "i", out=tmp_path / "r", **FP32,
    )  # fmt: skip

    assert grid.cells == evaluate(request).grids[0].cells
    assert set(grid.cells) == {Cut(layer, dim) for layer in (2, 4) for dim in (8, 32)}
    assert "nDCG@10 on tiny test" in str(grid)
    assert {"grid.json", "grid.csv"} <= {path.name for path in grid.folder.iterdir()}
    assert any(path.suffix == ".png" for path in grid.folder.parent.iterdir())


def test_a_figure_is_drawn(grid: EvaluatedGrid, tmp_path: Path) -> None:
    figure = grid.plot(tmp_path / "grid.png", "RR@10")

    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")
    assert figure._repr_png_().startswith(b"\x89PNG")
    grid.plot(tmp_path / "grid.pdf")
    assert (tmp_path / "grid.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(UserError, match="does not hold RR@5"):
        grid.plot(tmp_path / "grid.png", "RR@5")
    grid.plot(tmp_path / "grid.jpg")
    assert (tmp_path / "grid.jpg").read_bytes().startswith(b"\xff\xd8")


def test_a_notebook_shows_tables(grid: EvaluatedGrid) -> None:
    for shown, text in ((grid, str(grid)), (choice := grid.pick(), str(choice))):
        tables = pandas.read_html(StringIO(shown._repr_html_()))
        cells = {str(cell) for table in tables for cell in table.astype(str).to_numpy().ravel()}
        assert {c for c in cells if c.endswith("*")} == {
            w for w in text.split() if w[:-1] and w.endswith("*")
        }


def test_a_cut_is_picked_and_used(grid: EvaluatedGrid, model: m2dr.Encoder) -> None:
    choice = grid.pick(latency_ms=10_000, bytes_per_document=40, measure="RR@10")

    small = model.cut(choice.chosen.cut)
    assert small.dim == 8
    assert small.encode_queries("open a file").shape == (8,)
    assert choice.chosen.quality == max(
        value for cut, value in grid.values("RR@10").items() if cut.dim == 8
    )
    with pytest.raises(UserError, match="No cut fits the budget"):
        grid.pick(bytes_per_document=1)
    with pytest.raises(m2dr.UserError, match="unknown setting 'bytes'"):
        grid.pick(bytes=1)
    assert grid.pick(quality="95%").chosen == grid.pick(quality=0.95).chosen


def test_a_training_is_that_of_the_command(
    tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    given = {
        "variant": "full-dim", "corpus": str(tiny_corpus), "backbone": str(tiny_backbone),
        "dims": [8], "steps": 2, "batch_size": 4, "evaluate_steps": 0, **FP32,
    }  # fmt: skip
    expected = train(read_settings(TrainSettings, None, (), given), tmp_path / "command").card

    model = m2dr.train(given.pop("corpus"), out=tmp_path / "python", **given).model

    assert model.card.fingerprint == expected.fingerprint
    assert (model.layer, model.dim, model.options["dtype"]) == (4, 32, "fp32")
    with pytest.raises(UserError, match="a finished model"):
        m2dr.train(tiny_corpus, out=tmp_path / "python", **given)
    with pytest.raises(m2dr.UserError, match="unknown setting 'run'"):
        m2dr.fuse(run=1)


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: m2dr.train("pydocs", lr=1e-3), "learning_rate"),
        (lambda: m2dr.evaluate("minilm", "pydocs", metrics=["RR@10"]), "measures"),
    ],
)
def test_a_name_of_another_library_is_guessed(call: Callable[[], object], meant: str) -> None:
    with pytest.raises(UserError, match=rf"Did you mean {meant}\?"):
        call()


def test_arguments_of_a_command_need_no_names(grid: EvaluatedGrid) -> None:
    report = m2dr.compare(grid.folder, f"{grid.folder}@L4D32")

    assert str(report) == str(m2dr.compare(folder=grid.folder, against=[f"{grid.folder}@L4D32"]))
    assert str(report) == str(m2dr.compare(grid, f"{grid.folder}@L4D32"))
    assert m2dr.compare(grid, grid).comparisons == m2dr.compare(grid, [grid]).comparisons
    assert m2dr.pick(grid).chosen == m2dr.pick(grid.folder).chosen == grid.pick().chosen
    with pytest.raises(UserError, match="pick takes 1 value without a name"):
        m2dr.pick(grid.folder, 3)


def test_every_public_name_has_its_arguments() -> None:
    for name in set(m2dr.__all__) - {"__version__", "Interrupted", "UserError"}:
        assert inspect.signature(getattr(m2dr, name)).parameters, name
    shown = inspect.signature(m2dr.train).parameters
    assert (shown["steps"].default, shown["backbone"].default) == (60, "minilm")
    assert str(shown["learning_rate"]).startswith("learning_rate: float")


# Losses and callbacks of one's own


@pytest.fixture
def given(tiny_backbone: Path, tiny_corpus: Path) -> dict[str, Any]:
    return {
        "variant": "full-dim", "corpus": str(tiny_corpus), "backbone": str(tiny_backbone),
        "dims": [8], "steps": 3, "batch_size": 4, "evaluate_steps": 0, "log_steps": 1,
        "report_to": "none", "device": "cpu", "dtype": "fp32",
    }  # fmt: skip


def test_loss_is_a_function_of_scores(given: dict[str, Any], tmp_path: Path) -> None:
    seen = []

    def own(logits: torch.Tensor, excluded: torch.Tensor) -> torch.Tensor:
        seen.append((logits.shape[-2:], excluded.shape))
        return contrastive(logits, excluded, 1.0)

    usual = m2dr.train(out=tmp_path / "usual", **given)
    same = m2dr.train(out=tmp_path / "same", loss=own, **given)
    other = m2dr.train(out=tmp_path / "other", loss=lambda x, _: x.mean(dim=(-2, -1)), **given)

    assert set(seen[1:]) == {((4, 4), (4, 4))}  # the first one is a trial, before anything begins
    assert same.card.fingerprint == usual.card.fingerprint
    assert other.card.fingerprint != usual.card.fingerprint


def test_what_other_libraries_have_as_loss_or_backbone_is_refused_before_a_training(
    given: dict[str, Any], tiny_backbone: Path, tmp_path: Path
) -> None:
    theirs = SentenceTransformer(str(tiny_backbone), device="cpu")
    for loss in (losses.CoSENTLoss, losses.CoSENTLoss(theirs), lambda logits, _: logits.sum()):
        with pytest.raises(UserError, match="loss is a function that takes logits .* is none: "):
            m2dr.train(out=tmp_path / "m", loss=loss, **given)
    with pytest.raises(UserError, match="a model in memory; save_pretrained") as told:
        m2dr.train(out=tmp_path / "m", **given | {"backbone": theirs})
    assert "\n" not in str(told.value)
    assert not (tmp_path / "m").exists()
    with pytest.raises(UserError, match=r"Did you mean mrl\?"):
        m2dr.train(out=tmp_path / "m", **given | {"variant": "MatryoshkaLoss"})


def test_what_cannot_learn_says_so(
    given: dict[str, Any], tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    m2dr.train(out=tmp_path / "one", **given | {"batch_size": 1, "negatives": 0, "variant": "mrl"})
    assert "the loss was 0 throughout, so nothing was learned" in capsys.readouterr().err

    m2dr.fit([f"read a file {n}" for n in range(5)], backbone=tiny_backbone, out=tmp_path / "few")
    assert "an index of fewer than 50 documents gets no exits" in capsys.readouterr().err


@pytest.mark.parametrize("resumed_with", ["nothing", "another", "the same"])
def test_a_resumed_training_asks_for_the_loss_it_was_begun_with(
    resumed_with: str, given: dict[str, Any], tmp_path: Path
) -> None:
    def own(logits: torch.Tensor, excluded: torch.Tensor) -> torch.Tensor:
        return contrastive(logits, excluded, 2.0)

    def other(logits: torch.Tensor, excluded: torch.Tensor) -> torch.Tensor:
        return contrastive(logits, excluded, 3.0)

    class Stop(TrainerCallback):
        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            if state.global_step == 2:
                raise KeyboardInterrupt

    table = given | {"save_steps": 1}
    with pytest.raises(m2dr.Interrupted):
        m2dr.train(out=tmp_path / "m", loss=own, callbacks=[Stop()], **table)
    losses = {"nothing": {}, "another": {"loss": other}, "the same": {"loss": own}}
    if resumed_with == "the same":
        done = m2dr.train(out=tmp_path / "m", resume=True, **table | losses[resumed_with])
        assert done.steps == 3
        return
    with pytest.raises(UserError, match=r"was begun with \S*<locals>.own"):
        m2dr.train(out=tmp_path / "m", resume=True, **table | losses[resumed_with])


def test_a_training_shows_what_it_did(given: dict[str, Any], tmp_path: Path) -> None:
    changes = {"steps": 8, "evaluate_steps": 4, "report_to": "tensorboard", "learning_rate": 1.0}

    done = m2dr.train(out=tmp_path / "m", **given | changes)

    steps = [line["step"] for line in done.history]
    assert steps == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8]
    for line in done.history:
        if "loss" in line:
            assert {"learning_rate", "grad_norm", "seconds"} < {*line}
            assert sum(line["terms"].values()) == pytest.approx(line["loss"], rel=1e-5)
        else:
            assert line["measure"] == "nDCG@10"
            assert sum(line["dev"].values()) / len(line["dev"]) == pytest.approx(line["mean"])
    means = {line["step"]: line["mean"] for line in done.history if "dev" in line}
    assert done.quality == max(means[4], means[8]) == means[done.best_step]
    assert done.start == means[0]
    assert f"nDCG@10 {done.quality:.4f}" in (tmp_path / "m" / "README.md").read_text()


def test_training_stops_early_on_dev(given: dict[str, Any], tmp_path: Path) -> None:
    changes = {"learning_rate": 1e-12, "steps": 9, "evaluate_steps": 1}  # a score that never rises
    stop, steps = EarlyStoppingCallback(early_stopping_patience=2), list[int]()

    class Watch(TrainerCallback):
        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            steps.append(state.global_step)

    m2dr.train(out=tmp_path / "m", callbacks=[stop, Watch()], **given | changes)

    assert steps == [1, 2, 3]
    with pytest.raises(m2dr.UserError, match="evaluate_steps is 0"):
        m2dr.train(out=tmp_path / "none", callbacks=[stop], **given)
