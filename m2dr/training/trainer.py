"""The training loop: a thin subclass of transformers.Trainer, and its plan."""

import json
import logging
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.data import Dataset
from transformers.integrations.integration_utils import TensorBoardCallback

from m2dr.core.arrays import Int64
from m2dr.core.errors import UserError
from m2dr.core.files import LOG_FILE, write_bytes
from m2dr.core.settings import RunSettings

Example = TypeVar("Example")
Callbacks = Sequence[transformers.TrainerCallback]
OnStep = Callable[[int, Mapping[str, float]], None]  # of a step and what was logged last
BEST = "quality"  # name of the dev measure in the trainer's state
FRESH = ("objective.", "exit_heads.", "head.")  # parts of the names of what begins untrained


@dataclass(frozen=True)
class Plan:
    """How a training runs: its settings, and what they come to on a machine and for a corpus."""

    settings: RunSettings
    checkpoints: Path
    logs: Path  # of TensorBoard events; LOG_FILE lies beside it
    steps: int
    batch: int  # examples of a batch and process
    bf16: bool
    cpu: bool
    evaluate_steps: int = 0  # 0: never
    all_used: bool = True  # whether every step trains every parameter; False costs a search
    early_stopping: int = 0  # evaluations without a better mean that end it; 0: none
    measure: str = ""  # of dev, for the log

    @property
    def log(self) -> Path:
        """The file of the lines that `lines_of` returns."""
        return self.logs.with_name(LOG_FILE)

    def arguments(self) -> transformers.TrainingArguments:
        """Return the arguments of transformers.Trainer."""
        settings, evaluate = self.settings, self.evaluate_steps > 0
        every = min(self.evaluate_steps, self.steps) if evaluate else settings.save_steps
        constant = settings.schedule == "constant"
        arguments = transformers.TrainingArguments(
            output_dir=str(self.checkpoints),
            max_steps=self.steps,
            per_device_train_batch_size=self.batch,
            gradient_accumulation_steps=settings.accumulate,
            learning_rate=settings.learning_rate,
            lr_scheduler_type="constant_with_warmup" if constant else settings.schedule,
            warmup_steps=round(settings.warmup * self.steps),
            weight_decay=settings.weight_decay,
            max_grad_norm=settings.max_grad_norm,
            seed=settings.seed,
            bf16=self.bf16,
            use_cpu=self.cpu,
            logging_steps=settings.log_steps,
            logging_first_step=True,
            logging_nan_inf_filter=False,  # a loss that is not a number is logged as such
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
            report_to=[name for name in settings.reporters if name != "tensorboard"],
            run_name=str(self.checkpoints.parent),
        )
        if arguments.n_gpu > 1:
            # nn.DataParallel would join the [L, b, H] of gpus along L; torchrun uses every gpu.
            arguments._n_gpu = 1
        return arguments


class Examples(Dataset[Example], Generic[Example]):
    """A training as one long list, whose example at a position depends on the position alone.

    Position i is in epoch i // n, and its example is the one at place i % n of that epoch's own
    shuffle. There is no epoch counter, so a resumed run reads what it would have read.
    """

    def __init__(
        self, count: int, example: Callable[[int, int], Example], total: int, seed: int
    ) -> None:
        """Take the number of examples per epoch, `example(epoch, place)`, and of all positions."""
        self._count, self._example, self._total, self._seed = count, example, total, seed
        self._order: tuple[int, Int64] = (-1, np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, position: int) -> Example:
        epoch, place = divmod(position, self._count)
        if self._order[0] != epoch:
            generator = np.random.default_rng([self._seed, epoch])
            self._order = (epoch, generator.permutation(self._count))
        return self._example(epoch, int(self._order[1][place]))


def stops_early(callbacks: Callbacks) -> bool:
    """Return whether one of them stops a training whose score on dev rises no more."""
    return any(isinstance(callback, transformers.EarlyStoppingCallback) for callback in callbacks)


def lines_of(history: Sequence[Mapping[str, Any]], measure: str) -> list[dict[str, Any]]:
    """Return the lines of a history: of the loss since the line before, or of dev by cut.

    Keys are step, seconds, and either loss in nats, terms by name, learning_rate and grad_norm
    before it is clipped, or measure, mean and dev by cut, at step 0 of the untrained start.
    """
    lines = []
    for entry in history:
        line = {name: entry[name] for name in ("step", "seconds") if name in entry}
        rest = {name: value for name, value in entry.items() if name not in (*line, "epoch")}
        if f"eval_{BEST}" in rest:
            mean = rest.pop(f"eval_{BEST}")
            dev = {name.removeprefix(f"eval_{BEST}_"): value for name, value in rest.items()}
            lines.append({**line, "measure": measure, "mean": mean, "dev": dev})
        elif "loss" in rest:
            whole = ("loss", "learning_rate", "grad_norm")
            own = {name: rest.pop(name) for name in whole if name in rest}
            lines.append({**line, **own, "terms": rest})
    return lines


def stalled_at(lines: Sequence[Mapping[str, Any]], patience: int) -> int | None:
    """Return the step of the evaluation that ends a training of these lines; None where none does.

    The untrained start does not count: its weights are no checkpoint.
    """
    best, waited = float("-inf"), 0
    for line in lines:
        if "dev" in line and line["step"] > 0:
            waited = 0 if line["mean"] > best else waited + 1
            best = max(best, line["mean"])
            if waited == patience > 0:
                return int(line["step"])
    return None


def last_complete_checkpoint(folder: Path, processes: int = 1) -> Path | None:
    """Return the newest complete checkpoint of a folder; None where there is none.

    Each process writes its own random state, and none waits for the others.
    """
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: -step_of(path))
    draws = [f"rng_state_{rank}.pth" for rank in range(processes)]
    draws = ["scheduler.pt", *(draws if processes > 1 else ["rng_state.pth"])]
    complete = (
        p for p in found if _is_complete(p) and all(zipfile.is_zipfile(p / n) for n in draws)
    )
    return next(complete, None)


def step_of(checkpoint: Path) -> int:
    """Return the step after which a checkpoint was written."""
    return int(checkpoint.name.split("-")[1])


def _is_complete(checkpoint: Path) -> bool:
    """Check the state, which is written last, and weights and optimiser by their own tables."""
    try:
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        if state.get("global_step") != step_of(checkpoint):
            return False
        weights = checkpoint / "model.safetensors"
        with weights.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            body = weights.stat().st_size - file.tell()
    except (OSError, ValueError):
        return False
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    beside = (["optimizer.pt"], ["optimizer.bin", "pytorch_model_fsdp.bin"])  # the last of FSDP
    optimiser = any(all(zipfile.is_zipfile(checkpoint / n) for n in names) for names in beside)
    return body == max(ends) and optimiser


class Trainer(transformers.Trainer):
    """transformers.Trainer for a module that returns its loss and the parts of it, by name.

    Args:
        module: trained, saved in checkpoints and resumed.
        plan: of the training.
        examples: of the whole training.
        batch: turns examples into the module's arguments, but `step` and `batch`.
        quality: returns the dev measure of each cut, by name, whose mean decides which checkpoint
            is the best; None: the last checkpoint is kept.
        on_step: called with each step and what was logged last, with the `step` of the last loss.
        callbacks: further ones of transformers.
    """

    def __init__(
        self,
        module: nn.Module,
        plan: Plan,
        examples: Examples[Example],
        batch: Callable[[Sequence[Example]], Mapping[str, object]],
        quality: Callable[[], Mapping[str, float]] | None,
        on_step: OnStep,
        callbacks: Callbacks = (),
    ) -> None:
        logging.getLogger("transformers").setLevel(logging.ERROR)
        self._plan, self._module = plan, module
        arguments = plan.arguments()
        self._steps = _StepCallback(on_step, plan)
        callbacks = [self._steps, *callbacks]
        if "tensorboard" in plan.settings.reporters and arguments.process_index == 0:
            from torch.utils.tensorboard import SummaryWriter

            callbacks.append(TensorBoardCallback(SummaryWriter(str(plan.logs))))  # type: ignore[no-untyped-call]  # not annotated
        super().__init__(
            model=module,
            args=arguments,
            train_dataset=examples,
            eval_dataset=examples if quality else None,  # never read: `evaluate` asks `quality`
            data_collator=lambda examples: dict(batch(examples)),
            callbacks=callbacks,
        )
        if self.is_fsdp_enabled:
            _settle_sharding(self.accelerator.state.fsdp_plugin)
        self.remove_callback(transformers.trainer_callback.PrinterCallback)
        self.loss_is_scaled_for_ga = False
        self._quality = quality
        self._parts: dict[str, list[Tensor]] = defaultdict(list)
        self._batch = (0, 0)  # a step, and the number of its next batch
        self._begun = time.monotonic()
        self._start: Mapping[str, float] | None = None  # dev measures that are not logged yet

    def train(self, resume_from_checkpoint: str | None = None) -> object:  # type: ignore[override]  # nothing else is asked
        """Train; a training that is begun measures the untrained start on dev first."""
        if self._quality is not None and resume_from_checkpoint is None:
            # Before it is wrapped: FSDP's encoder must not be called ahead of the whole module.
            self.args.eval_on_start, self._start = True, self._measured()
        return super().train(resume_from_checkpoint=resume_from_checkpoint)

    def stop(self) -> None:
        """Stop after the step that runs, and write its checkpoint."""
        self._steps.is_stopped = True

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._steps.is_stopped

    def compute_loss(
        self, model: nn.Module, inputs: Mapping[str, Any], *_: object, **__: object
    ) -> Tensor:
        """Return the loss of one batch."""
        step = self.state.global_step
        if step != self._batch[0]:
            self._batch = (step, 0)
        loss, parts = model(**inputs, step=step, batch=self._batch[1])
        self._batch = (step, self._batch[1] + 1)
        for name, part in parts.items():
            self._parts[name].append(part)
        total: Tensor = loss
        return total

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Return AdamW with groups of parameters by learning rate and decay."""
        if self.optimizer is None:
            module: Any = model or self.model
            kind, options = self.get_optimizer_cls_and_kwargs(self.args, module)
            self.optimizer = kind(_groups(self, module, self._plan), **options)
        optimizer: torch.optim.Optimizer = self.optimizer
        return optimizer

    def assemble(self) -> None:
        """Give the first process all weights, where each held a share of them (FSDP)."""
        if not self.is_fsdp_enabled:
            return
        weights = self.accelerator.get_state_dict(self.model)  # every process takes part
        if not self.is_world_process_zero():
            return
        made: dict[nn.Parameter, nn.Parameter] = {}  # a weight may have two names
        for name, share in list(self._module.named_parameters(remove_duplicate=False)):
            owner, _, own_name = name.rpartition(".")
            if share not in made:
                made[share] = nn.Parameter(weights[name], requires_grad=share.requires_grad)
            setattr(self._module.get_submodule(owner), own_name, made[share])

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the mean of each part of the loss since the last log, and seconds of training."""
        means = {name: float(torch.stack(parts).mean()) for name, parts in self._parts.items()}
        self._parts.clear()
        now = time.monotonic()
        before = next((e["seconds"] for e in self.state.log_history[::-1] if "seconds" in e), 0.0)
        seconds = round(before + now - self._begun, 3)  # those of a resumed training go on
        self._begun = now
        super().log({**logs, **means, "seconds": seconds}, start_time)

    def evaluate(self, *_: object, **__: object) -> dict[str, float]:
        """Return and log the quality of the module as it is now: of each cut, and their mean."""
        if self._quality is None:
            return {}
        found, self._start = self._start or self._measured(), None
        metrics = {f"eval_{BEST}": fmean(found.values())}
        metrics |= {f"eval_{BEST}_{cut}": value for cut, value in found.items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def _measured(self) -> Mapping[str, float]:
        self._module.eval()
        return self._quality() if self._quality else {}


def _settle_sharding(plugin: Any) -> None:  # accelerate's, which has no stubs
    """Make FSDP write unsharded checkpoints, and use autocast alone for bf16, as one process does.

    transformers waits forever to load the best of sharded checkpoints. With bf16 accelerate would
    round the weights of exit heads and losses, and the vectors between encoder and loss.
    """
    if plugin.fsdp_version == 1:
        raise UserError("FSDP 1 was asked for, and m2dr trains with FSDP 2. Set FSDP_VERSION=2.")
    plugin.set_state_dict_type("FULL_STATE_DICT")
    plugin.mixed_precision_policy = MixedPrecisionPolicy()


def _groups(trainer: Trainer, module: nn.Module, plan: Plan) -> list[dict[str, object]]:
    """Return the parameters by learning rate and decay; norms and biases have no decay."""
    decaying = set(trainer.get_decay_parameter_names(module))
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            groups[any(word in name for word in FRESH), name in decaying].append(parameter)
    rates = {True: plan.settings.head_learning_rate, False: plan.settings.learning_rate}
    decays = {True: plan.settings.weight_decay, False: 0.0}
    return [
        {"params": group, "lr": rates[fresh], "weight_decay": decays[decays_too]}
        for (fresh, decays_too), group in sorted(groups.items())
    ]


class _StepCallback(transformers.TrainerCallback):
    """Reports each step, writes what is logged, saves between evaluations, and stops early."""

    def __init__(self, on_step: OnStep, plan: Plan) -> None:
        self._on_step, self._plan = on_step, plan
        self._last: Mapping[str, float] = {}
        self._stalled = False  # resumed behind the evaluation that ended it
        self.is_stopped = False

    def on_train_begin(self, _: Any, state: Any, __: Any, **___: Any) -> None:  # type: ignore[override]  # likewise
        self._stalled = self._stalls(state)
        if state.is_world_process_zero:  # as it was at the checkpoint; what came after comes again
            write_bytes(self._plan.log, self._encoded(state.log_history))

    def on_log(  # type: ignore[override]  # transformers passes the first three by position
        self, _: Any, state: Any, __: Any, logs: Mapping[str, float] | None = None, **___: Any
    ) -> None:
        step = {"step": state.global_step} if logs and "loss" in logs else {}
        self._last = {**self._last, **(logs or {}), **step}
        if state.is_world_process_zero:
            with self._plan.log.open("ab") as file:
                file.write(self._encoded(state.log_history[-1:]))

    def on_evaluate(self, _: Any, state: Any, control: Any, **__: Any) -> None:  # type: ignore[override]  # likewise
        control.should_training_stop |= self._stalls(state)

    def on_step_end(  # type: ignore[override]  # likewise
        self, _: Any, state: Any, control: Any, model: nn.Module | None = None, **__: Any
    ) -> None:
        if self._stalled:  # transformers resumes with a step, which is thrown away
            control.should_training_stop = True
            control.should_log = control.should_evaluate = control.should_save = False
            return
        # transformers saves only where it evaluates when the best checkpoint is to be kept.
        control.should_save |= state.global_step % self._plan.settings.save_steps == 0
        control.should_save |= self.is_stopped
        control.should_training_stop |= self.is_stopped
        # What is resumed from a checkpoint has no loss from before it, so it is logged there.
        control.should_log |= control.should_save or control.should_evaluate
        control.should_log |= state.global_step >= state.max_steps  # whatever log_steps is
        if control.should_save and model is not None:
            _refuse_broken(model, state.global_step)
        self._on_step(state.global_step, self._last)

    def _stalls(self, state: Any) -> bool:
        lines = lines_of(state.log_history, self._plan.measure)
        return stalled_at(lines, self._plan.early_stopping) is not None

    def _encoded(self, history: Sequence[Mapping[str, Any]]) -> bytes:
        """Return lines of JSON; what is not a number is null."""
        lines = lines_of(history, self._plan.measure)
        return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def _refuse_broken(model: nn.Module, step: int) -> None:
    """Raise UserError where weights are not finite; their checkpoint would replace a good one."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise UserError(f"{name} is not finite after step {step}; lower learning_rate.")
