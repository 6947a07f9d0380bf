"""Trainings of the tiny world that several processes share, or one process does alone.

Run by torchrun with a folder to work in, how many queries a batch has, and which cases to train.
It ends by kill -9 of all processes, in the middle of a training. With ACCELERATE_USE_FSDP it only
trains twice, each process with a share of the weights: in fp32 and in bf16.
"""

import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from accelerate.state import DistributedType, PartialState
from safetensors.torch import save_file
from torch import Tensor
from transformers import TrainingArguments
from world import WORDS

from m2dr import cli
from m2dr.core.settings import TrainSettings
from m2dr.tasks.training import train as verb
from m2dr.training.module import TrainingModule
from m2dr.training.objective import EncodedBatch
from m2dr.training.trainer import Plan, Trainer, _StepCallback

STEPS = 3
# What a log holds that is another one for another batch size, or at another time.
CLOCKS = ("epoch", "train_runtime", "train_samples_per_second", "train_steps_per_second")
CASES: dict[str, dict[str, Any]] = {
    "mipic": {"variant": "mipic", "learning_rate": 1e-2, "head_learning_rate": 1e-2},
    "margin-mse": {
        "corpus": "taught.jsonl", "variant": "fixed-doc", "dims": (8,), "distill": "margin-mse",
        "negatives": 2, "learning_rate": 1e-5,
    },
    "angle": {
        "corpus": "scored.tsv", "variant": "ese", "dims": (8,), "loss": "angle",
        "learning_rate": 1e-4,
    },
    "dynamic": {
        "variant": "dims", "weights": "dynamic", "dims": (8, 16), "accumulate": 2,
        "learning_rate": 1e-4,
    },
    "2dmse-v1": {
        "variant": "2dmse-v1", "negatives": 1, "gradient_cache": 64, "gradient_checkpointing": True,
        "exit_head": "linear", "learning_rate": 1e-2,
    },
}  # fmt: skip


def settings_of(case: str, place: Path, batch_size: int) -> TrainSettings:
    fields = {"corpus": "tiny", **CASES[case]}
    fields["corpus"] = str(place / fields["corpus"])
    return TrainSettings(
        backbone=str(place / "backbone"), batch_size=batch_size, steps=STEPS, log_steps=1,
        save_steps=2, evaluate_steps=0, dropout=0.0, warmup=0.0, max_grad_norm=1e9, device="cpu",
        dtype="fp32", **fields,
    )  # fmt: skip


def undisturbed_settings(place: Path) -> tuple[str | Path, ...]:
    """As words of `m2dr train`: with dropout, a look at the dev split, and steps of AdamW."""
    return (
        "--variant", "elastic", "--corpus", place / "tiny", "--backbone", place / "backbone",
        "--steps", "12", "--batch-size", "4", "--device", "cpu", "--set", "save_steps=2",
        "--set", "evaluate_steps=4", "--set", "dropout=0.3", "--dtype", "fp32",
    )  # fmt: skip


def make_pairs(path: Path) -> Path:
    """Forty pairs of sentences with scores from 0 to 5."""
    draw = random.Random(13)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) for _ in range(80)]
    rows = [f"{texts[i]}\t{texts[i + 40]}\t{i % 6}" for i in range(40)]
    path.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    return path


def make_groups(path: Path) -> Path:
    """Forty groups with the scores of a teacher, of one positive and three negatives each."""
    draw = random.Random(13)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) for _ in range(160)]
    rows = [
        {
            "query": " ".join(texts[i].split()[:3]),
            "pos": [texts[i]],
            "neg": texts[40 + 3 * i : 43 + 3 * i],
            "pos_scores": [draw.uniform(4, 9)],
            "neg_scores": [draw.uniform(-6, 4) for _ in range(3)],
        }
        for i in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def trained(case: str, place: Path, folder: Path, batch_size: int) -> None:
    """Train a case as `m2dr train` does, and write what became of it into `folder`.

    The optimiser is plain gradient descent, whose steps are the gradients: Adam's would be the same
    for gradients that are wrong by a factor.
    """
    logs: list[dict[str, float]] = []
    setups: list[verb.Setup] = []

    class Told(Trainer):
        def log(self, entry: dict[str, float], start_time: float | None = None) -> None:
            super().log(entry, start_time)
            logs.append({k: v for k, v in self.state.log_history[-1].items() if k not in CLOCKS})

    usual_arguments, usual_prepare = Plan.arguments, verb.prepare

    def descending(plan: Plan) -> TrainingArguments:
        arguments = usual_arguments(plan)
        arguments.optim = "sgd"
        return arguments

    def prepared(*settings: Any) -> verb.Setup:
        setups.append(usual_prepare(*settings))
        return setups[-1]

    with (
        patch.object(verb, "Trainer", Told),
        patch.object(verb, "prepare", prepared),
        patch.object(Plan, "arguments", descending),
    ):
        verb.train(settings_of(case, place, batch_size), folder)
    (folder / "logs.json").write_text(json.dumps(logs))
    state = {n: p.detach().clone() for n, p in setups[0].module.named_parameters()}
    save_file(state, folder / "module.safetensors")


def stopped(folder: Path, step: int) -> None:
    """Go on with a training, or begin it, and kill this process as that step ends."""

    usual = _StepCallback.on_step_end

    def on_step_end(self: _StepCallback, *given: Any, **named: Any) -> None:
        usual(self, *given, **named)
        if given[1].global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    with patch.object(_StepCallback, "on_step_end", on_step_end):
        begin(folder)


def begin(folder: Path, *more: str) -> None:
    """As a person would, without anything of this file: in two processes one folder."""
    words = ("train", *undisturbed_settings(folder.parent), *more, "--out", folder)
    cli.main([str(word) for word in words], standalone_mode=False)


def begin_in_bf16(folder: Path) -> None:
    """Train two steps, and write the dtypes that the loss is computed in."""
    usual, seen = TrainingModule.forward, set()

    def forward(self: TrainingModule, *arguments: Any, **options: Any) -> Any:  # as TrainingModule
        def see(
            _: object, inputs: tuple[object, EncodedBatch], found: tuple[Tensor, object]
        ) -> None:
            heads = [head.weight.dtype for head in self.encoder.exit_heads.values()]
            seen.update({inputs[1].queries.dtype, found[0].dtype, *heads})

        handle = self.objective.register_forward_hook(see)
        found = usual(self, *arguments, **options)
        handle.remove()
        return found

    with patch.object(TrainingModule, "forward", forward):
        begin(folder, "--dtype", "bf16", "--steps", "2", "--set", "evaluate_steps=0")
    (folder / "dtypes.json").write_text(json.dumps(sorted(map(str, seen))))


def shard_on_cpu() -> None:
    """accelerate shards on accelerators alone, and leaves FSDP out elsewhere without a word.

    The processor is passed off as one; what is sharded, gathered and reduced is torch's own.
    """
    usual = PartialState.__init__

    def disguised(self: PartialState, *arguments: Any, **options: Any) -> None:  # accelerate's
        usual(self, *arguments, **options)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_XPU

    PartialState.__init__ = disguised


def main(words: Sequence[str]) -> None:
    """Each process trains each case in a folder of its own, so that what it writes is seen."""
    place, batch_size, cases = Path(words[0]), int(words[1]), words[2:]
    if "ACCELERATE_USE_FSDP" in os.environ:
        shard_on_cpu()
        begin(place / "sharded")
        begin_in_bf16(place / "sharded-bf16")
        return
    for case in cases:
        trained(case, place, place / f"rank-{os.environ['RANK']}" / case, batch_size)
    begin(place / "undisturbed")
    stopped(place / "killed", step=7)


if __name__ == "__main__":
    main(sys.argv[1:])
