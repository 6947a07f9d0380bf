"""Several processes train the model that one would; one that is lost stops all, and nothing else."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from processes import CASES, STEPS, make_groups, make_pairs, trained
from safetensors.torch import load_file
from shell import ENVIRONMENT
from torch import Tensor
from world import make_backbone, make_corpus

from m2dr.core.errors import UserError
from m2dr.core.settings import TrainSettings
from m2dr.model.checkpoint import load
from m2dr.tasks.training.run_folder import begin, read_training

TESTS = Path(__file__).parent
B = 4  # queries per step and process
LAUNCH = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ALONE = {**ENVIRONMENT, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backbone, a corpus, pairs, and what two processes made of them.

    That is each case, in rank-0 and rank-1; a training that was left alone, in undisturbed; and the
    same one up to its seventh step, when both processes were killed, in killed.
    """
    place = tmp_path_factory.mktemp("processes")
    make_backbone(place / "backbone")
    make_corpus(place / "tiny")
    make_pairs(place / "scored.tsv")
    make_groups(place / "taught.jsonl")
    launch(place, place / "told.txt", B, *CASES)
    assert (place / "killed" / "checkpoints").exists(), (place / "told.txt").read_text()
    return place


def launch(place: Path, told: Path, *words: str | int, **variables: str) -> None:
    """tests/processes.py in two processes."""
    with told.open("w") as err, told.with_name("said.txt").open("w") as out:
        subprocess.run(
            [*LAUNCH, str(TESTS / "processes.py"), str(place), *map(str, words)],
            env={**ALONE, **variables}, stdout=out, stderr=err, timeout=300, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, place: Path) -> str:
    """A case that one process has trained alone, too, on batches twice as large."""
    name: str = request.param
    trained(name, place, place / "alone" / name, 2 * B)
    return name


def learned(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "module.safetensors")


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Between the weights that both have."""
    gaps = [(one[name] - other[name]).square().sum() for name in one.keys() & other.keys()]
    return float(torch.stack(gaps).sum().sqrt())


def test_two_processes_learn_what_one_does_from_batches_twice_as_large(
    case: str, place: Path
) -> None:
    alone, first, second = (learned(place / who / case) for who in ("alone", "rank-0", "rank-1"))
    begun = {f"encoder.{n}": value for n, value in load(place / "backbone")[0].state_dict().items()}

    assert alone.keys() == first.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    rounding = 1e-5 * max(1.0, CASES[case]["learning_rate"])  # a step is the gradient times that
    for name, value in alone.items():
        torch.testing.assert_close(first[name], value, rtol=0, atol=rounding, msg=name)
    assert distance(alone, begun) > 1e-3  # far enough for the next steps to be of another model
    assert distance(first, alone) < 1e-3 * distance(alone, begun)


def test_the_loss_that_is_told_is_that_of_the_whole_batch(case: str, place: Path) -> None:
    alone, together = (
        json.loads((place / who / case / "logs.json").read_text()) for who in ("alone", "rank-0")
    )

    assert len(together) == len(alone) >= STEPS
    for found, expected in zip(together, alone, strict=True):
        assert found == pytest.approx({**expected, "seconds": found["seconds"]}, rel=1e-4, abs=1e-6)


def test_of_two_processes_the_first_one_writes(place: Path) -> None:
    by_second = {path.name for path in (place / "rank-1").rglob("*") if path.is_file()}

    # The last two are written by this test's own script.
    own = {"module.safetensors", "logs.json"}
    assert by_second == {"rng_state_1.pth"} | own


@contextmanager
def torchrun(*words: str | Path, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """`m2dr` in two processes; what each of them tells is in a file of its own below `cwd`/told."""
    launch = [*LAUNCH, "--redirects", "3", "--log-dir", str(cwd / "told"), "-m", "m2dr"]
    process = subprocess.Popen(
        [*launch, *map(str, words)], cwd=cwd, env=ALONE, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with process:
        yield process


def told(cwd: Path) -> str:
    """On the standard errors of all processes."""
    return "".join(path.read_text() for path in sorted((cwd / "told").rglob("stderr.log")))


def fingerprint_of(folder: Path) -> str:
    found: str = json.loads((folder / "m2dr.json").read_text())["fingerprint"]
    return found


def test_a_training_survives_the_loss_of_both_processes(place: Path) -> None:
    model, cwd = place / "killed", place
    checkpoints = {path.name for path in (model / "checkpoints").iterdir()}
    assert checkpoints == {"checkpoint-4", "checkpoint-6"}

    with torchrun("train", "--resume", "--out", model, cwd=cwd) as process:
        assert process.wait(timeout=200) == 0, told(cwd)
    assert "Resuming after step 6" in told(cwd)
    assert fingerprint_of(model) == fingerprint_of(place / "undisturbed")


@pytest.mark.slow  # torch starts and compiles its sharding twice
def test_processes_that_share_the_weights_train_the_same_model(place: Path, tmp_path: Path) -> None:
    sharing = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    by_block = {"FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"}

    launch(place, tmp_path / "told.txt", B, **sharing, **by_block)

    assert (place / "sharded" / "m2dr.json").exists(), (tmp_path / "told.txt").read_text()
    for file in ("model.safetensors", "exit_heads.safetensors"):
        found, expected = (load_file(place / who / file) for who in ("sharded", "undisturbed"))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5, msg=name)
    # As in one process: bf16 is for the products inside the encoder, and for nothing behind it.
    assert (place / "sharded-bf16" / "m2dr.json").exists(), (tmp_path / "told.txt").read_text()
    assert json.loads((place / "sharded-bf16" / "dtypes.json").read_text()) == ["torch.float32"]


def test_another_number_of_processes_does_not_go_on_with_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("WORLD_SIZE", "2"),
        ("RANK", "0"),
        ("MASTER_ADDR", "localhost"),
        ("MASTER_PORT", "1"),
    ):
        monkeypatch.setenv(name, value)
    begin(tmp_path, TrainSettings(steps=7), resume=False, overwrite=False)

    arguments = (TrainSettings, "", None, (), {}, tmp_path, True)
    assert read_training(*arguments)[0].steps == 7

    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(UserError, match="begun by 2 processes and cannot go on with 1"):
        read_training(*arguments)
