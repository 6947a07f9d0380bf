"""Kill -9 and Ctrl-C while training and while encoding: what was done is not lost."""

import hashlib
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from shell import m2dr, stopped_when
from world import make_corpus


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("many") / "many", documents=4000)


def encode(corpus: Path, backbone: Path) -> tuple[str | Path, ...]:
    return (
        "index", "corpus", "--corpus", corpus, "--model", backbone, "--layer", "2", "--layer", "4",
        "--dim", "8", "--shard-rows", "400",
    )  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, tiny_backbone: Path
) -> dict[str, str]:
    place = tmp_path_factory.mktemp("undisturbed")
    done = m2dr(*encode(corpus, tiny_backbone), cwd=place)
    assert done.returncode == 0, done.stderr
    return digests(place / "indexes")


@pytest.mark.parametrize("shards", [1, 4, 8])
def test_encoding_killed_and_resumed_ends_with_the_same_bytes(
    shards: int, corpus: Path, tiny_backbone: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    words = encode(corpus, tiny_backbone)

    def reached() -> bool:
        return len(list(tmp_path.glob("indexes/many/*/layer-02/vectors-*.f16"))) >= shards

    code, _ = stopped_when(reached, *words, cwd=tmp_path)
    assert code == -signal.SIGKILL
    assert not list(tmp_path.glob("indexes/many/*/layer-04/store.json"))
    refused = m2dr("search", "--corpus", corpus, "--model", tiny_backbone, "read", cwd=tmp_path)
    assert refused.returncode == 2
    done = m2dr(*words, "--resume", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "indexes") == undisturbed


TRAIN = (
    "train", "--variant", "dims", "--steps", "40", "--batch-queries", "4", "--set", "save_steps=10",
    "--set", "log_steps=5", "--set", "document_length=16", "--out", "model",
)  # fmt: skip


def train(corpus: Path, backbone: Path) -> tuple[str | Path, ...]:
    return (*TRAIN, "--corpus", corpus, "--backbone", backbone, "--set", "evaluate_steps=0")


@pytest.fixture(scope="module")
def fingerprint(
    tmp_path_factory: pytest.TempPathFactory, tiny_corpus: Path, tiny_backbone: Path
) -> str:
    place = tmp_path_factory.mktemp("whole")
    done = m2dr(*train(tiny_corpus, tiny_backbone), cwd=place)
    assert done.returncode == 0, done.stderr
    return fingerprint_of(place)


def fingerprint_of(place: Path) -> str:
    found: str = json.loads((place / "model" / "m2dr.json").read_text())["fingerprint"]
    return found


def after(step: int, place: Path) -> Callable[[], bool]:
    """Whether a checkpoint of that step has begun to be written."""
    return (place / "model" / "checkpoints" / f"checkpoint-{step}").exists


@pytest.mark.parametrize("step", [10, 20, 30])
def test_training_killed_and_resumed_ends_with_the_same_weights(
    step: int, tiny_corpus: Path, tiny_backbone: Path, fingerprint: str, tmp_path: Path
) -> None:
    words = train(tiny_corpus, tiny_backbone)

    code, _ = stopped_when(after(step, tmp_path), *words, cwd=tmp_path)
    assert code == -signal.SIGKILL
    refused = m2dr(*words, cwd=tmp_path)
    assert refused.returncode == 2
    assert "interrupted training; go on with --resume" in refused.stderr
    done = m2dr("train", "--resume", "--out", "model", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert fingerprint_of(tmp_path) == fingerprint


def test_ctrl_c_says_how_to_go_on(tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    words = train(tiny_corpus, tiny_backbone)

    code, told = stopped_when(after(10, tmp_path), *words, cwd=tmp_path, how=signal.SIGINT)

    assert code == 1
    assert "go on with: m2dr train --resume --out model" in told
    assert "Traceback" not in told


def test_resuming_with_other_settings_is_refused(
    tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    words = train(tiny_corpus, tiny_backbone)
    stopped_when(after(10, tmp_path), *words, cwd=tmp_path)

    refused = m2dr("train", "--resume", "--out", "model", "--seed", "14", cwd=tmp_path)

    assert refused.returncode == 2
    assert "seed differ from the training begun in model" in refused.stderr


def test_two_processes_of_torchrun_train_one_model(
    tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    import subprocess
    import sys

    from shell import ENVIRONMENT

    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m"]
    done = subprocess.run(
        [*launch, *map(str, ("m2dr", *train(tiny_corpus, tiny_backbone)))],
        cwd=tmp_path, env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert {"config.json", "m2dr.json", "model.safetensors"} <= {
        path.name for path in (tmp_path / "model").iterdir()
    }
    assert done.stdout.count("40 steps") == 1
    assert len(list((tmp_path / "model" / "tensorboard").iterdir())) == 1
