"""Kill -9 and Ctrl-C while training and while encoding: what was done is not lost."""

import hashlib
import json
import signal
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from shell import m2dr, stopped_when
from transformers import TrainerState
from world import WORDS, make_corpus

from m2dr.core.errors import Interrupted
from m2dr.core.files import LOCK_NAME
from m2dr.core.settings import TrainSettings
from m2dr.tasks import train as verb
from m2dr.train.trainer import _StepCallback


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


@pytest.mark.parametrize("shards", [4])
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
    "train", "--variant", "dims", "--steps", "40", "--batch-size", "4", "--set", "save_steps=10",
    "--set", "log_steps=5", "--set", "document_length=16", "--out", "model",
)  # fmt: skip


def test_locks_of_killed_commands_go_with_the_next_one(tiny_backbone: Path, tmp_path: Path) -> None:
    words = encode(make_corpus(tmp_path / "few", documents=5), tiny_backbone)
    assert m2dr(*words, cwd=tmp_path).returncode == 0
    whole = digests(tmp_path / "indexes")
    home = next(tmp_path.glob("indexes/few/*"))
    for folder in (home, home / "layer-02", home / "layer-04", *home.glob("layer-*/exits")):
        (folder / LOCK_NAME).write_text("1 on a machine that was switched off")

    done = m2dr(*words, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "indexes") == whole


def train(corpus: Path, backbone: Path) -> tuple[str | Path, ...]:
    return (*TRAIN, "--corpus", corpus, "--backbone", backbone, "--set", "evaluate_steps=0")


def fingerprint_of(place: Path) -> str:
    found: str = json.loads((place / "model" / "m2dr.json").read_text())["fingerprint"]
    return found


def after(step: int, place: Path) -> Callable[[], bool]:
    """Whether a checkpoint of that step has begun to be written."""
    return (place / "model" / "checkpoints" / f"checkpoint-{step}").exists


def test_training_killed_and_resumed_ends_with_the_same_weights(
    tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    words = train(tiny_corpus, tiny_backbone)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for place in (whole, killed):
        place.mkdir()
    assert m2dr(*words, cwd=whole).returncode == 0

    code, _ = stopped_when(after(20, killed), *words, cwd=killed)
    assert code == -signal.SIGKILL
    for more in ((), ("--resume", "--seed", "14")):
        refused = m2dr(*words, *more, cwd=killed)
        assert refused.returncode == 2
        assert "resume" in refused.stderr or "seed differ" in refused.stderr
    done = m2dr("train", "--resume", "--out", "model", cwd=killed)

    assert done.returncode == 0, done.stderr
    assert fingerprint_of(killed) == fingerprint_of(whole)


def test_a_batch_system_that_stops_a_training_is_told_how_to_go_on(
    tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    words = train(tiny_corpus, tiny_backbone)

    code, told = stopped_when(after(10, tmp_path), *words, cwd=tmp_path, how=signal.SIGTERM)

    assert code == 1
    assert "go on with --resume --out model" in told
    assert "Traceback" not in told


# Each has more to go on from than weights and moments: draws, heads, projectors, dropout, batches
# of a step that is under way, a best checkpoint.
STATEFUL: dict[str, dict[str, Any]] = {
    "2dmse-v1": {"variant": "2dmse-v1", "negatives": 1},
    "elastic": {"variant": "elastic", "dropout": 0.2},
    "mipic": {"variant": "mipic", "gradient_cache": 64},
    "lora": {"variant": "dims", "lora_rank": 4},
    "simcse": {"variant": "mrl", "corpus": "single.txt", "dropout": 0.2},
    "dynamic": {"variant": "ese", "weights": "dynamic", "accumulate": 2},
    "best": {"variant": "full-dim", "evaluate_steps": 2, "save_steps": 1},
}


@pytest.fixture(scope="module")
def settings_of(
    tmp_path_factory: pytest.TempPathFactory, tiny_corpus: Path, tiny_backbone: Path
) -> Callable[[str], TrainSettings]:
    """Six steps of a case, on the tiny corpus unless it has a file of its own."""
    texts = tmp_path_factory.mktemp("texts") / "single.txt"
    texts.write_text("".join(f"{word} {next_}\n" for word, next_ in pairwise(WORDS)))

    def get(case: str) -> TrainSettings:
        usual = {
            "corpus": str(tiny_corpus), "backbone": str(tiny_backbone), "steps": 6,
            "batch_queries": 4, "save_steps": 2, "evaluate_steps": 0, "document_length": 16,
            "device": "cpu",
        }  # fmt: skip
        fields = {**usual, **STATEFUL[case]}
        if fields["corpus"] == texts.name:
            fields["corpus"] = str(texts)
        return TrainSettings(**fields)

    return get


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, settings_of: Callable[[str], TrainSettings]
) -> Callable[[str], str]:
    """The fingerprint of a case that was left alone."""
    place = tmp_path_factory.mktemp("left-alone")

    @cache
    def get(case: str) -> str:
        return verb.train(settings_of(case), place / case).card.fingerprint

    return get


@pytest.mark.parametrize("case", STATEFUL)
def test_whatever_a_recipe_has_learned_or_drawn_is_gone_on_from(
    case: str,
    settings_of: Callable[[str], TrainSettings],
    whole: Callable[[str], str],
    tmp_path: Path,
) -> None:
    expected = whole(case)

    def stop(_: object, __: object, state: TrainerState, *___: object, **____: object) -> None:
        if state.global_step == 5:
            raise KeyboardInterrupt

    with (
        patch.object(_StepCallback, "on_step_end", stop),
        pytest.raises(Interrupted, match="stopped at step 5 of 6; go on with --resume"),
    ):
        verb.train(settings_of(case), tmp_path)
    done = verb.train(settings_of(case), tmp_path, resume=True)

    assert done.card.fingerprint == expected
