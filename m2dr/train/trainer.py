"""A thin subclass of transformers.Trainer: one pass over queries and documents, one objective."""

# Shapes in this room:
#   L layers, B queries, N documents, H width, T tokens.

import json
import logging
import warnings
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from m2dr.records.texts import Group
from m2dr.train.objective import Objective

Part = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]  # ids, mask [b, T], rows [b]
BEST = "quality"  # what the dev measure is called in the trainer's state


@dataclass(frozen=True)
class Batch:
    """Token ids of a step, in parts of like length so that little is padding."""

    texts: Sequence[Part]  # of the B queries and then the N documents
    queries: int  # B
    excluded: NDArray[np.bool_]  # [B, N]


@dataclass(frozen=True)
class Plan:
    """How a training runs; what it trains is the objective's business."""

    folder: Path  # checkpoints go here
    logs: Path  # TensorBoard events go here
    steps: int
    batch_queries: int  # per step and process, each with its documents
    accumulate: int  # batches per step; each has negatives of its own
    learning_rate: float
    schedule: Literal["linear", "cosine"]
    warmup: float  # share of the steps
    weight_decay: float
    max_grad_norm: float
    seed: int
    bf16: bool
    cpu: bool
    log_steps: int
    save_steps: int
    evaluate_steps: int  # 0: never

    @property
    def examples(self) -> int:
        """Groups that one process reads."""
        return self.steps * self.batch_queries * self.accumulate

    def arguments(self) -> TrainingArguments:
        """The same in the words of transformers."""
        evaluate = self.evaluate_steps > 0
        every = self.evaluate_steps if evaluate else self.save_steps
        arguments = TrainingArguments(
            output_dir=str(self.folder),
            max_steps=self.steps,
            per_device_train_batch_size=self.batch_queries,
            gradient_accumulation_steps=self.accumulate,
            learning_rate=self.learning_rate,
            lr_scheduler_type=self.schedule,
            warmup_steps=round(self.warmup * self.steps),
            weight_decay=self.weight_decay,
            max_grad_norm=self.max_grad_norm,
            seed=self.seed,
            bf16=self.bf16,
            use_cpu=self.cpu,
            logging_steps=self.log_steps,
            logging_first_step=True,
            logging_nan_inf_filter=False,  # a loss that is not a number is told, not hidden
            save_strategy="steps",
            save_steps=every,
            save_total_limit=2,
            eval_strategy="steps" if evaluate else "no",
            eval_steps=every,
            load_best_model_at_end=evaluate,
            metric_for_best_model=BEST if evaluate else None,
            greater_is_better=True,
            train_sampling_strategy="sequential",  # Examples shuffles, by position alone
            remove_unused_columns=False,
            dataloader_pin_memory=not self.cpu,
            disable_tqdm=True,
            report_to=[],
        )
        if arguments.n_gpu > 1:
            # nn.DataParallel would join the cards' [L, b, H] along L; torchrun uses every card.
            arguments._n_gpu = 1
        return arguments


class Examples(Dataset[Group]):
    """A training as one long list: what stands at a position depends on the position alone.

    Position i is in epoch i // n, and its group is the one at place i % n of that epoch's own
    shuffle. There is no epoch counter to go stale, and a resumed run reads what it would have read.
    """

    def __init__(
        self, groups: int, group: Callable[[int, int], Group], total: int, seed: int
    ) -> None:
        self._groups, self._group, self._total, self._seed = groups, group, total, seed
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, position: int) -> Group:
        epoch, place = divmod(position, self._groups)
        if self._order[0] != epoch:
            generator = np.random.default_rng([self._seed, epoch])
            self._order = (epoch, generator.permutation(self._groups))
        return self._group(epoch, int(self._order[1][place]))


class Trainer(transformers.Trainer):
    """Trains an encoder on groups. Schedules, checkpoints and processes are transformers' own."""

    def __init__(
        self,
        encoder: nn.Module,
        objective: Objective,
        plan: Plan,
        examples: Examples,
        batch: Callable[[Sequence[Group]], Batch],
        quality: Callable[[], float] | None,
        on_step: Callable[[int, Mapping[str, float]], None],
    ) -> None:
        logging.getLogger("transformers").setLevel(logging.ERROR)
        super().__init__(
            model=encoder,
            args=plan.arguments(),
            train_dataset=examples,
            eval_dataset=examples if quality else None,  # never read: `evaluate` asks `quality`
            data_collator=lambda groups: _tensors(batch(groups)),
            callbacks=[_Reporter(on_step, plan.save_steps)],
        )
        if self.is_world_process_zero():
            self.add_callback(_tensorboard(plan.logs))
        self.remove_callback(transformers.trainer_callback.PrinterCallback)
        self.loss_is_scaled_for_ga = False
        self._encoder, self._objective, self._quality = encoder, objective, quality
        self._parts: dict[str, list[Tensor]] = defaultdict(list)

    def compute_loss(
        self, model: nn.Module, inputs: Mapping[str, Any], *_: object, **__: object
    ) -> Tensor:
        """Nats per query of one batch."""
        asked, count = self._objective.layers, inputs["queries"]
        vectors = embed(model, inputs["texts"], asked)  # [L, B + N, H]
        sources = [asked.index(layer) for layer in self._objective.document_layers]
        loss, parts = self._objective(
            vectors[:, :count], vectors[sources, count:], inputs["excluded"]
        )
        for name, part in parts.items():
            self._parts[name].append(part)
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the mean of each part of the loss since the last log."""
        means = {name: float(torch.stack(parts).mean()) for name, parts in self._parts.items()}
        self._parts.clear()
        super().log({**logs, **means}, start_time)

    def evaluate(self, *_: object, **__: object) -> dict[str, float]:
        """Quality on the dev split, as the verb measures it."""
        if self._quality is None:
            return {}
        self._encoder.eval()
        metrics = {f"eval_{BEST}": self._quality()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics


def embed(model: nn.Module, parts: Sequence[Sequence[Tensor]], layers: Sequence[int]) -> Tensor:
    """[L, B, H] of a batch that comes in parts, in the batch's own order."""
    vectors = torch.cat([model(ids, mask, layers) for ids, mask, _ in parts], dim=1)
    rows = torch.cat([rows for *_, rows in parts])
    return vectors[:, torch.argsort(rows)]


def last_whole_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end; a half-written one is passed over."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: -int(path.name.split("-")[1]))
    return next(filter(_is_whole, found), None)


def _is_whole(checkpoint: Path) -> bool:
    """The state is written last; weights and optimiser are checked by their own tables."""
    try:
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        weights = checkpoint / "model.safetensors"
        with weights.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            body = weights.stat().st_size - file.tell()
    except (OSError, ValueError):
        return False
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    step = int(checkpoint.name.split("-")[1])
    optimiser = zipfile.is_zipfile(checkpoint / "optimizer.pt")
    return state.get("global_step") == step and body == max(ends) and optimiser


class _Reporter(TrainerCallback):
    """Tells the caller each step and what was logged last, and saves between evaluations too."""

    def __init__(
        self, on_step: Callable[[int, Mapping[str, float]], None], save_steps: int
    ) -> None:
        self._on_step, self._save_steps = on_step, save_steps
        self._last: Mapping[str, float] = {}

    def on_log(
        self,
        args: TrainingArguments,  # noqa: ARG002  # transformers passes these by position
        state: TrainerState,  # noqa: ARG002
        control: TrainerControl,  # noqa: ARG002
        logs: Mapping[str, float] | None = None,
        **_: object,
    ) -> None:
        self._last = {**self._last, **(logs or {})}

    def on_step_end(
        self,
        args: TrainingArguments,  # noqa: ARG002  # transformers passes these by position
        state: TrainerState,
        control: TrainerControl,
        **_: object,
    ) -> None:
        # transformers ties saving to evaluating when the best checkpoint is to be kept.
        control.should_save |= state.global_step % self._save_steps == 0
        self._on_step(state.global_step, self._last)


def _tensorboard(folder: Path) -> TrainerCallback:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tensorboard's imports warn of numpy's and protobuf's own
        from torch.utils.tensorboard import SummaryWriter
        from transformers.integrations.integration_utils import TensorBoardCallback

        return TensorBoardCallback(SummaryWriter(str(folder)))  # type: ignore[no-untyped-call]  # transformers does not annotate it


def _tensors(batch: Batch) -> dict[str, object]:
    return {
        "texts": [[torch.from_numpy(array) for array in part] for part in batch.texts],
        "queries": batch.queries,
        "excluded": torch.from_numpy(batch.excluded),
    }
