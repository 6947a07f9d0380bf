"""A thin subclass of transformers.Trainer: schedules, checkpoints and processes are its own."""

import logging
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from m2dr.errors import UserError
from m2dr.train.plan import BEST, Example, Examples, Plan

FRESH = ("objective.", "exit_heads.", "head.")  # names of what begins untrained


class Trainer(transformers.Trainer):
    """Trains a learner: a module that gives the loss of a batch and its parts, detached, by name.

    Args:
        learner: what is trained, saved in checkpoints and resumed.
        plan: how.
        examples: the training as one long list.
        batch: examples to the learner's arguments, `step` excepted.
        quality: what a better model has more of; None: the last checkpoint is kept.
        on_step: told each step and what was logged last, with the `step` of the last loss.
    """

    def __init__(
        self,
        learner: nn.Module,
        plan: Plan,
        examples: Examples[Example],
        batch: Callable[[Sequence[Example]], Mapping[str, object]],
        quality: Callable[[], float] | None,
        on_step: Callable[[int, Mapping[str, float]], None],
    ) -> None:
        logging.getLogger("transformers").setLevel(logging.ERROR)
        self._plan, self._learner = plan, learner
        super().__init__(
            model=learner,
            args=plan.arguments(),
            train_dataset=examples,
            eval_dataset=examples if quality else None,  # never read: `evaluate` asks `quality`
            data_collator=lambda examples: dict(batch(examples)),
            callbacks=[_Reporter(on_step, plan.save_steps)],
        )
        if self.is_fsdp_enabled:
            _settle_sharding(self.accelerator.state.fsdp_plugin)
        if self.is_world_process_zero():
            self.add_callback(_tensorboard(plan.logs))
        self.remove_callback(transformers.trainer_callback.PrinterCallback)
        self.loss_is_scaled_for_ga = False
        self._quality = quality
        self._parts: dict[str, list[Tensor]] = defaultdict(list)

    def compute_loss(
        self, model: nn.Module, inputs: Mapping[str, Any], *_: object, **__: object
    ) -> Tensor:
        """Loss of one batch."""
        loss, parts = model(**inputs, step=self.state.global_step)
        for name, part in parts.items():
            self._parts[name].append(part)
        total: Tensor = loss
        return total

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """What begins untrained has a learning rate of its own, and norms and biases no decay."""
        if self.optimizer is None:
            learner: Any = model or self.model
            kind, options = self.get_optimizer_cls_and_kwargs(self.args, learner)
            self.optimizer = kind(_groups(self, learner, self._plan), **options)
        optimizer: torch.optim.Optimizer = self.optimizer
        return optimizer

    def assemble(self) -> None:
        """Give the first process all weights, where each held a share of them (FSDP)."""
        if not self.is_fsdp_enabled:
            return
        weights = self.accelerator.get_state_dict(self.model)  # every process takes part
        if not self.is_world_process_zero():
            return
        for name, share in list(self._learner.named_parameters()):
            owner, _, own_name = name.rpartition(".")
            whole = nn.Parameter(weights[name], requires_grad=share.requires_grad)
            setattr(self._learner.get_submodule(owner), own_name, whole)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the mean of each part of the loss since the last log."""
        means = {name: float(torch.stack(parts).mean()) for name, parts in self._parts.items()}
        self._parts.clear()
        super().log({**logs, **means}, start_time)

    def evaluate(self, *_: object, **__: object) -> dict[str, float]:
        """Quality on the dev split, as the verb measures it."""
        if self._quality is None:
            return {}
        self._learner.eval()
        metrics = {f"eval_{BEST}": self._quality()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics


def _settle_sharding(plugin: Any) -> None:  # noqa: ANN401  # accelerate's, which has no stubs
    """Make checkpoints of FSDP whole, and bf16 what it is in one process: autocast alone.

    transformers waits forever to load the best of checkpoints that are shared. With bf16 accelerate
    would round the weights of exit heads and losses, and the vectors between encoder and loss.
    """
    if plugin.fsdp_version == 1:
        raise UserError("FSDP 1 was asked for; its successor shards here. Set FSDP_VERSION=2.")
    plugin.set_state_dict_type("FULL_STATE_DICT")
    plugin.mixed_precision_policy = MixedPrecisionPolicy()


def _groups(trainer: Trainer, learner: nn.Module, plan: Plan) -> list[dict[str, object]]:
    """Parameters by learning rate and decay; without empty groups."""
    decaying = set(trainer.get_decay_parameter_names(learner))
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in learner.named_parameters():
        if parameter.requires_grad:
            groups[any(word in name for word in FRESH), name in decaying].append(parameter)
    rates = {True: plan.head_learning_rate, False: plan.learning_rate}
    decays = {True: plan.weight_decay, False: 0.0}
    return [
        {"params": group, "lr": rates[fresh], "weight_decay": decays[decays_too]}
        for (fresh, decays_too), group in sorted(groups.items())
    ]


class _Reporter(TrainerCallback):
    """Tells the caller each step and what was logged last; saves between evaluations too."""

    def __init__(
        self, on_step: Callable[[int, Mapping[str, float]], None], save_steps: int
    ) -> None:
        self._on_step, self._save_steps = on_step, save_steps
        self._last: Mapping[str, float] = {}

    def on_log(
        self,
        args: TrainingArguments,  # noqa: ARG002  # transformers passes these by position
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        logs: Mapping[str, float] | None = None,
        **_: object,
    ) -> None:
        step = {"step": state.global_step} if logs and "loss" in logs else {}
        self._last = {**self._last, **(logs or {}), **step}

    def on_step_end(
        self,
        args: TrainingArguments,  # noqa: ARG002  # transformers passes these by position
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **_: object,
    ) -> None:
        # transformers ties saving to evaluating when the best checkpoint is to be kept.
        control.should_save |= state.global_step % self._save_steps == 0
        control.should_log |= state.global_step >= state.max_steps  # whatever log_steps is
        if control.should_save and model is not None:
            _refuse_broken(model, state.global_step)
        self._on_step(state.global_step, self._last)


def _refuse_broken(model: nn.Module, step: int) -> None:
    """No checkpoint of weights that are no numbers: it would take the place of a good one."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise UserError(
                f"The weights {name} are not numbers after step {step}, though the loss was: its "
                "gradient was too large. Lower learning_rate, and begin again with --overwrite."
            )


def _tensorboard(folder: Path) -> TrainerCallback:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tensorboard's imports warn of numpy's and protobuf's own
        from torch.utils.tensorboard import SummaryWriter
        from transformers.integrations.integration_utils import TensorBoardCallback

        return TensorBoardCallback(SummaryWriter(str(folder)))  # type: ignore[no-untyped-call]  # transformers does not annotate it
