"""A fit that is stopped or cannot begin: what it says, and that going on changes nothing."""

import re
import shlex
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from shell import m2dr, stopped_when
from world import WORDS, make_backbone, make_model

from m2dr.cli import main
from m2dr.core.errors import Interrupted, UserError
from m2dr.core.trainings import FitSettings, read_fit_settings
from m2dr.model import checkpoint
from m2dr.model.distributed import JOIN_TIMEOUT, RankGroup
from m2dr.model.folder import read_card
from m2dr.model.hub import EXITS, HEADS, STATIC
from m2dr.tasks import fit as module
from m2dr.tasks.fit import fit
from m2dr.tasks.fit_heads import Sums
from m2dr.tasks.run_folder import open_run_folder, resumed
from m2dr.train.linear_fit import FittedHead, Moments

FILES = (EXITS, STATIC, "m2dr.json", "model.safetensors")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    draw = np.random.default_rng(13)
    path = tmp_path / "many.txt"
    path.write_text("\n".join(f"{' '.join(draw.choice(WORDS, 18))} {i}" for i in range(400)))
    return path


@pytest.fixture
def settings(tiny_backbone: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> FitSettings:
    """Settings of a fit in windows of 16 texts, whose rounds end after 32, 64, 128, 256 and 400."""
    for name in ("m2dr.tasks.fit.WINDOW", "m2dr.tasks.fit_heads.WINDOW"):
        monkeypatch.setattr(name, 16)
    monkeypatch.setattr(module, "FIRST", 32)
    return FitSettings(
        str(tiny_backbone), str(corpus), rotation="pca", device="cpu", dtype="fp32"
    )  # fmt: skip


Stopped = Callable[[int, type[BaseException]], None]


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Stopped:
    """Let the window of a number be the first that is not added; -1: each is again."""
    add = Sums.add

    def at(number: int, error: type[BaseException]) -> None:
        def dies(self: Sums, window: int, *texts: object) -> None:
            if window == number:
                raise error
            add(self, window, *texts)

        monkeypatch.setattr(Sums, "add", dies)

    return at


def same_files(one: Path, other: Path) -> None:
    for name in FILES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, [str(word) for word in words])
    return done.exit_code, done.output


def remedy(told: str) -> list[str]:
    """The words of the last command that a sentence ends with."""
    return shlex.split(re.findall(r": m2dr (.*)$", told.strip(), flags=re.MULTILINE)[-1])


def rising(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Let every round of `most` windows or fewer be worth its texts, and no larger one."""
    usual = module.heads_of

    def heads(sums: Sums, *asked: object) -> list[FittedHead]:
        good = min(len(sums.windows), most) / 100
        return [replace(head, cosine=good) for head in usual(sums, *asked)]

    monkeypatch.setattr(module, "heads_of", heads)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("window", [3, 6, 13])
def test_a_fit_stopped_in_any_round_reads_as_many_texts_as_one_that_was_not(
    window: int,
    error: type[BaseException],
    settings: FitSettings,
    stopped: Stopped,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SAVE_EVERY", -1.0)
    rising(monkeypatch, 8)
    whole = fit(settings, tmp_path / "whole")
    assert whole.texts > 8 * 16  # the round of 16 windows is the first that is no help
    stopped(window, error)
    with pytest.raises((RuntimeError, Interrupted)):
        fit(settings, tmp_path / "stopped")
    stopped(-1, error)

    again = fit(settings, tmp_path / "stopped", resume=True)

    assert again.texts == whole.texts
    same_files(tmp_path / "whole", tmp_path / "stopped")


def test_a_fit_stopped_after_its_last_round_reads_no_more(
    settings: FitSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rising(monkeypatch, 2)
    whole = fit(settings, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(module, "give_fit", lambda *_: exec("raise KeyboardInterrupt"))
        with pytest.raises(Interrupted, match="after 64 texts; go on with: m2dr fit --resume"):
            fit(settings, tmp_path / "stopped")

    assert fit(settings, tmp_path / "stopped", resume=True).texts == whole.texts == 64 - 8
    same_files(tmp_path / "whole", tmp_path / "stopped")


def test_two_rounds_are_compared_on_the_texts_that_both_held_out(
    settings: FitSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held-out texts of a later round that are easier by themselves are no gain."""
    usual = module.heads_of

    def heads(sums: Sums, *asked: object) -> list[FittedHead]:
        easy = len(sums.sample()) / 1000
        return [replace(head, cosine=easy) for head in usual(sums, *asked)]

    monkeypatch.setattr(module, "heads_of", heads)

    assert fit(settings, tmp_path / "model").texts == 64 - 8


def other_texts(settings: FitSettings, _: pytest.MonkeyPatch) -> None:
    path = Path(settings.corpus)
    path.write_text(path.read_text().replace("the", "close"))


def other_weights(settings: FitSettings, _: pytest.MonkeyPatch) -> None:
    encoder, tokenizer = checkpoint.load(settings.backbone)
    with torch.no_grad():
        for weights in encoder.transformer.parameters():
            weights.mul_(1.5)
    checkpoint.save(encoder, tokenizer, encoder.card, Path(settings.backbone))


def other_dtype(_: FitSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "choose_dtype", lambda *_: torch.bfloat16)


@pytest.mark.parametrize("change", [other_texts, other_weights, other_dtype])
def test_a_fit_does_not_go_on_with_other_texts_weights_or_numbers(
    change: Callable[[FitSettings, pytest.MonkeyPatch], None],
    settings: FitSettings,
    stopped: Stopped,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_model(Path(settings.backbone), tmp_path / "my model")
    settings = replace(settings, backbone=str(model), length=32, texts=64)
    monkeypatch.setattr(module, "SAVE_EVERY", -1.0)
    folder = tmp_path / "my fit"
    stopped(2, KeyboardInterrupt)
    with pytest.raises(Interrupted):
        fit(settings, folder)
    stopped(-1, KeyboardInterrupt)
    change(settings, monkeypatch)

    with pytest.raises(UserError, match="begin again with: m2dr fit") as refused:
        fit(settings, folder, resume=True)

    words = remedy(str(refused.value))
    assert "length=32" in words
    code, told = run(*words)
    assert code == 0, told


@pytest.mark.parametrize(
    ("name", "data"),
    [("rounds.json", None), ("rounds.json", b"{}"), ("checkpoint-0.npz", b"PK")],
)
def test_a_fit_whose_leavings_are_damaged_is_begun_again_by_the_command_told(
    name: str,
    data: bytes | None,
    settings: FitSettings,
    stopped: Stopped,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SAVE_EVERY", -1.0)
    folder = tmp_path / "my fit"
    stopped(2, KeyboardInterrupt)
    with pytest.raises(Interrupted):
        fit(replace(settings, texts=64), folder)
    stopped(-1, KeyboardInterrupt)
    (folder / "checkpoints" / name).unlink()
    if data is not None:
        (folder / "checkpoints" / name).write_bytes(data)

    code, told = run("fit", "--resume", "--out", folder)

    assert code == 2, told
    assert name in told
    code, told = run(*remedy(told))
    assert code == 0, told


def test_a_model_is_not_fitted_into_its_own_folder(
    settings: FitSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = make_model(Path(settings.backbone), tmp_path / "my model")
    (tmp_path / "link").symlink_to(model)
    before = {path: path.read_bytes() for path in model.iterdir() if path.is_file()}
    words = ("--corpus", settings.corpus, "--texts", 64, "--rotation", "pca", "--device", "cpu")

    code, told = run("fit", "--backbone", model, *words, "--out", tmp_path / "link", "--overwrite")

    assert code == 2, told
    assert {path: path.read_bytes() for path in model.iterdir() if path.is_file()} == before
    code, told = run(*remedy(told))
    assert code == 0, told


@pytest.mark.parametrize("verb", ["train", "pretrain"])
def test_a_model_is_not_trained_over_its_backbone(
    verb: str, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backbone = make_backbone(tmp_path / "my models" / "bert", masks=True)
    before = {path: path.read_bytes() for path in backbone.iterdir()}
    lengths = ("length",) if verb == "pretrain" else ("query_length", "document_length")
    words = (
        "--backbone", backbone, "--corpus", tiny_corpus, "--steps", 1, "--batch-size", 2,
        "--device", "cpu", *(word for name in lengths for word in ("--set", f"{name}=16")),
    )  # fmt: skip

    for out in (backbone, backbone.parent):
        code, told = run(verb, *words, "--out", out, "--overwrite")
        assert code == 2, told
        assert "where it lies itself" in told
    assert {path: path.read_bytes() for path in backbone.iterdir()} == before
    code, told = run(*remedy(told))
    assert code == 0, told


def test_a_cut_that_ends_in_a_fitted_exit_is_no_backbone(
    settings: FitSettings, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words, whole = ("--corpus", tiny_corpus, "--device", "cpu"), tmp_path / "models" / "whole"
    fit(replace(settings, texts=64, documents="same"), whole)
    for asked in (("--cut", "L2D16"), ("--layers", "2")):
        code, told = run("export", whole, *asked, "--out", "cut")
        assert code == 0, told

        code, told = run("fit", "--backbone", "cut", *words, "--texts", 64, "--out", "fitted")
        assert code == 2, told
        assert "a fitted exit, which would be lost" in told
        code, told = run(*remedy(told), "--overwrite")
        assert code == 0, told
        code, told = run("train", "--backbone", "cut", *words, "--dry-run")
        assert code == 2, told
        code, told = run(*remedy(told), "--explain")
        assert code == 0, told
        code, told = run("pretrain", "--backbone", "cut", *words, "--set", "length=16")
        assert code == 2, told
        assert "has fitted exits" in told
        shutil.rmtree("cut")


def test_what_is_in_the_folder_stays_where_the_model_cannot_be_loaded(
    settings: FitSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(replace(settings, texts=64), tmp_path / "model")
    load, calls = checkpoint.load, []

    def fails(*asked: object) -> object:
        calls.append(asked)
        if len(calls) == 2:
            raise RuntimeError("CUDA is out of luck")
        return load(*asked)

    monkeypatch.setattr(checkpoint, "load", fails)
    with pytest.raises(RuntimeError, match="luck"):
        fit(settings, tmp_path / "model", overwrite=True)
    assert read_card(tmp_path / "model").fit is not None


@pytest.mark.parametrize("words", ["ridge=1e-20", "ridge=1e300", "identity=8193", "identity=65536"])
def test_numbers_that_no_regression_can_have_are_refused(words: str) -> None:
    name = words.partition("=")[0]
    with pytest.raises(UserError, match=f"Settings: {name} is "):
        read_fit_settings(None, (words,))
    assert FitSettings.ridge == 0
    assert read_fit_settings(None, ("ridge=1e-10", "identity=8192")).identity == 8192


def test_a_regression_that_has_no_solution_is_told_in_one_sentence(
    settings: FitSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        raise torch.linalg.LinAlgError("linalg.cholesky: not positive-definite")

    monkeypatch.setattr(torch.linalg, "cholesky", fails)
    code, told = run(
        "fit", "--backbone", settings.backbone, "--corpus", settings.corpus, "--texts", 64,
        "--set", "ridge=1e-9", "--rotation", "pca", "--device", "cpu", "--out", tmp_path / "model",
    )  # fmt: skip
    assert code == 2, told
    assert "layer 0" in told
    assert "1e-09" in told
    monkeypatch.undo()
    code, told = run(*remedy(told))
    assert code == 0, told


class Store:
    """The store of a group in which one process is alone, and a clock that only waiting moves."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.rank, self.now, self.slow = 0, 0.0, 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def set(self, name: str, text: str) -> None:
        self.texts[name] = text

    def check(self, names: list[str]) -> bool:
        return names[0] in self.texts and self.now >= self.slow

    def get(self, name: str) -> bytes:
        return self.texts[name].encode()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    found = Store()
    monkeypatch.setattr(
        "m2dr.model.distributed.rendezvous", lambda *_, **__: iter([(found, found.rank, 1)])
    )
    monkeypatch.setattr("m2dr.model.distributed.time", found)
    return found


def test_processes_wait_a_day_for_work_and_ten_minutes_to_join(store: Store) -> None:
    group = RankGroup()
    store.slow = 40_000.0
    group.barrier("round-0")
    store.slow = 80_000.0
    assert group.broadcast("enough-0", "yes") == "yes"
    with pytest.raises(UserError, match=r"Process 0 of 1 waited 60[01] s for the others in vain"):
        group.get("never")
    assert JOIN_TIMEOUT == 600


@pytest.mark.usefixtures("store")
def test_no_process_reads_what_is_about_to_be_removed(
    settings: FitSettings,
    stopped: Stopped,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "model"
    stopped(2, KeyboardInterrupt)
    with pytest.raises(Interrupted):
        fit(settings, folder)
    stopped(-1, KeyboardInterrupt)
    assert list(folder.glob("checkpoints/*.npz"))
    there: list[int] = []

    class Watched(RankGroup):
        def broadcast(self, name: str, text: str) -> str:
            there.append(len(list(folder.glob("checkpoints/*.npz"))))
            return super().broadcast(name, text)

    monkeypatch.setattr(module, "RankGroup", Watched)
    monkeypatch.setattr(module, "process_count", lambda: 2)
    fit(settings, folder, overwrite=True)
    assert there[0] == 0  # before the first window, when the folder had been emptied


def test_the_others_do_not_wait_for_a_first_process_that_was_refused(
    settings: FitSettings, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "letter.txt").write_text("Dear")
    monkeypatch.setattr(module, "process_count", lambda: 2)
    with pytest.raises(UserError, match="other files"):
        fit(settings, tmp_path / "model")
    monkeypatch.setattr(module, "is_main_process", lambda: False)
    store.rank = 1
    with pytest.raises(UserError, match="The first process could not begin"):
        fit(settings, tmp_path / "model")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_a_fit_is_told_how_to_go_on(
    how: signal.Signals, tiny_backbone: Path, tmp_path: Path
) -> None:
    draw = np.random.default_rng(13)
    (tmp_path / "texts.txt").write_text(
        "\n".join(f"{' '.join(draw.choice(WORDS, 30))} {i}" for i in range(6000))
    )
    words = ("fit", "--backbone", tiny_backbone, "--corpus", "texts.txt", "--rotation", "pca",
             "--device", "cpu", "--dtype", "fp32", "--out", "my model")  # fmt: skip

    code, told = stopped_when(
        (tmp_path / "my model" / "checkpoints" / "checkpoint-0.npz").exists,
        *words, cwd=tmp_path, how=how,
    )  # fmt: skip

    assert code == 1, told
    assert "Traceback" not in told
    assert remedy(told) == ["fit", "--resume", "--out", "my model"]
    refused = m2dr(*words, cwd=tmp_path)
    assert refused.returncode == 2
    assert remedy(refused.stderr) == ["fit", "--resume", "--out", "my model"]
    done = m2dr(*remedy(told), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_what_was_read_is_kept_when_a_fit_is_stopped_and_nothing_by_halves(
    settings: FitSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, texts=96)
    fit(settings, tmp_path / "whole")
    add, calls = Moments.add, []

    def half(self: Moments, *texts: object) -> None:
        calls.append(texts)
        add(self, *texts)
        if len(calls) == 3:
            raise KeyboardInterrupt

    read = module.read_texts

    def reading(*asked: object) -> object:
        if len(calls) == 2:
            raise KeyboardInterrupt
        return read(*asked)

    with monkeypatch.context() as patch:
        patch.setattr(module, "read_texts", reading)
        patch.setattr(Moments, "add", lambda *given: (calls.append(given), add(*given)))
        with pytest.raises(Interrupted, match="after 32 texts"):
            fit(settings, tmp_path / "stopped")
    calls = []
    with monkeypatch.context() as patch:
        patch.setattr(Moments, "add", half)
        with pytest.raises(Interrupted):
            fit(settings, tmp_path / "stopped", resume=True)
    calls = []
    monkeypatch.setattr(Moments, "add", lambda *given: (calls.append(given), add(*given)))
    fit(settings, tmp_path / "stopped", resume=True)
    assert len(calls) == 4  # of six windows, two were kept
    same_files(tmp_path / "whole", tmp_path / "stopped")


def test_a_default_that_was_given_is_compared_with_what_was_begun(tmp_path: Path) -> None:
    open_run_folder(tmp_path / "fit", FitSettings(rotation="none"), resume=False, overwrite=False)
    config = tmp_path / "config.toml"
    config.write_text('rotation = "learned"\n')
    ways = (
        (None, [], {"rotation": "learned"}),
        (None, ["rotation = learned"], {}),
        (config, [], {}),
    )
    for path, words, options in ways:
        with pytest.raises(UserError, match="rotation differ"):
            resumed(read_fit_settings, tmp_path / "fit", path, words, options)
    for given in ({}, {"rotation": None}, {"rotation": "none"}):
        found = resumed(read_fit_settings, tmp_path / "fit", None, [], given)
        assert found.rotation == "none"


@pytest.mark.parametrize("layers", [(1, 2), (1, 4)])
def test_heads_that_a_fit_replaces_are_not_written(
    layers: tuple[int, ...], settings: FitSettings, tmp_path: Path
) -> None:
    encoder, tokenizer = checkpoint.load(settings.backbone)
    encoder.add_exit_heads(layers)
    checkpoint.save(encoder, tokenizer, encoder.card, tmp_path / "linear")

    fit(replace(settings, backbone=str(tmp_path / "linear"), texts=64), tmp_path / "model")

    fitted = checkpoint.load(tmp_path / "model")[0]
    assert list(fitted.exit_heads) == [str(layer) for layer in layers if layer == 4]
    assert (tmp_path / "model" / HEADS).exists() == (4 in layers)
