"""How a training runs: its length, its optimiser, and which example stands where."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset
from transformers import TrainingArguments

Example = TypeVar("Example")
BEST = "quality"  # what the dev measure is called in the trainer's state


@dataclass(frozen=True)
class Plan:
    """How a training runs; what it trains is the objective's business."""

    folder: Path  # checkpoints go here
    logs: Path  # TensorBoard events go here
    steps: int
    batch_queries: int  # per step and process, each with its documents
    accumulate: int  # batches per step; each has negatives of its own
    learning_rate: float
    head_learning_rate: float  # of what begins untrained: exit heads, projectors, learned weights
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
    all_used: bool = True  # every step trains every parameter; False costs a search for the others

    @property
    def examples(self) -> int:
        """Examples that one process reads."""
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
            ddp_find_unused_parameters=not self.all_used,
            disable_tqdm=True,
            report_to=[],
        )
        if arguments.n_gpu > 1:
            # nn.DataParallel would join the cards' [L, b, H] along L; torchrun uses every card.
            arguments._n_gpu = 1
        return arguments


class Examples(Dataset[Example], Generic[Example]):
    """A training as one long list: what stands at a position depends on the position alone.

    Position i is in epoch i // n, and its example is the one at place i % n of that epoch's own
    shuffle. There is no epoch counter to go stale, and a resumed run reads what it would have read.
    """

    def __init__(
        self, count: int, example: Callable[[int, int], Example], total: int, seed: int
    ) -> None:
        """Args: `count` examples per epoch, `example(epoch, place)`, `total` positions, a seed."""
        self._count, self._example, self._total, self._seed = count, example, total, seed
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, position: int) -> Example:
        epoch, place = divmod(position, self._count)
        if self._order[0] != epoch:
            generator = np.random.default_rng([self._seed, epoch])
            self._order = (epoch, generator.permutation(self._count))
        return self._example(epoch, int(self._order[1][place]))
