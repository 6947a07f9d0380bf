"""A folder whose training died blocks nothing that there is not something to keep of."""

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from m2dr.core.errors import UserError
from m2dr.core.settings import TrainSettings
from m2dr.model.checkpoint import export_cut, open_model, read_card
from m2dr.tasks.training.train import train
from m2dr.training.module import TrainingModule

Train = Callable[..., object]


@pytest.fixture
def settings(tiny_backbone: Path, tiny_corpus: Path) -> TrainSettings:
    return TrainSettings(
        variant="plain", corpus=str(tiny_corpus), backbone=str(tiny_backbone), batch_size=4,
        steps=3, save_steps=2, evaluate_steps=0, query_length=8, document_length=16, device="cpu",
    )  # fmt: skip


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], pytest.MonkeyPatch]:
    """Let trainings die in a step, as a fault of the program would; undone by `undo`."""

    def at(last: int) -> pytest.MonkeyPatch:
        usual = TrainingModule.forward

        def forward(
            self: nn.Module, *arguments: object, step: int = 0, **options: object
        ) -> object:
            if step == last:
                raise RuntimeError("out of luck")
            return usual(self, *arguments, step=step, **options)

        monkeypatch.setattr(TrainingModule, "forward", forward)
        return monkeypatch

    return at


def dies(command: Train, *words: object) -> None:
    with pytest.raises(RuntimeError, match="out of luck"):
        command(*words)


@pytest.mark.parametrize("resume", [False, True])
def test_a_training_that_died_before_its_first_checkpoint_is_begun_again(
    resume: bool, settings: TrainSettings, dying, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    patched = dying(1)
    dies(train, settings, folder)
    dies(train, settings, folder)
    patched.undo()

    train(settings, folder, resume=resume)

    assert read_card(folder).variant == "plain"
    assert not (folder / "checkpoints").exists()


def test_an_export_that_died_is_written_again_and_is_no_model_before(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("m2dr.model.checkpoint.save_tokenizer", full)
    with pytest.raises(OSError, match="no space left"):
        export_cut(open_model(tiny_backbone), 2, tmp_path / "small")
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"There is no model folder|holds no model"):
        read_card(tmp_path / "small")

    export_cut(open_model(tiny_backbone), 2, tmp_path / "small")

    assert read_card(tmp_path / "small").layers == 2
