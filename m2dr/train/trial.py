"""A few real steps, to know what a training would take."""

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from m2dr.train.plan import Example, Examples, Plan

TRIED = 4  # steps at most; the first one allocates and does not count


@dataclass(frozen=True)
class Trial:
    """What a step took, as the median over those that were measured."""

    seconds: float
    tokens: float  # of one process, without padding
    padded: float  # the same with padding
    memory: int  # bytes of this process, or of the card, at the highest
    parameters: int
    trained: int  # of them
    loss: float  # of the last step


def try_steps(
    learner: nn.Module,
    plan: Plan,
    examples: Examples[Example],
    batch: Callable[[Sequence[Example]], Mapping[str, Any]],
    advance: Callable[[int], None],
) -> Trial:
    """Run the first steps of a training, optimiser included, and write nothing."""
    device = next(learner.parameters()).device
    trained = [p for p in learner.train().parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=plan.learning_rate, fused=True)
    times, sizes, loss = [], [], 0.0
    for step in range(min(TRIED, plan.steps)):
        begun, real, padded, loss = time.perf_counter(), 0, 0, 0.0
        for part in range(plan.accumulate):
            start = (step * plan.accumulate + part) * plan.batch_queries
            chosen = [examples[start + i] for i in range(plan.batch_queries)]
            made = batch(chosen)
            masks = [mask for _, mask, _ in made["texts"]] if "texts" in made else [made["mask"]]
            real += sum(int(mask.sum()) for mask in masks)
            padded += sum(mask.numel() for mask in masks)
            mixed = torch.autocast(device.type, torch.bfloat16) if plan.bf16 else nullcontext()
            with mixed:
                total, _ = learner(**_moved(made, device), step=step)
            (total / plan.accumulate).backward()
            loss += float(total.detach()) / plan.accumulate
        optimiser.step()
        optimiser.zero_grad()
        times.append(time.perf_counter() - begun)
        sizes.append((real, padded))
        advance(1)
    return Trial(
        seconds=median(times[1:] or times),
        tokens=median(real for real, _ in sizes),
        padded=median(padded for _, padded in sizes),
        memory=_memory(device),
        parameters=sum(p.numel() for p in learner.parameters()),
        trained=sum(p.numel() for p in trained),
        loss=loss,
    )


def _moved(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    moved: dict[str, Any] = {
        key: value.to(device) for key, value in batch.items() if isinstance(value, torch.Tensor)
    }
    if "texts" in batch:
        moved["texts"] = [[tensor.to(device) for tensor in part] for part in batch["texts"]]
    return {**batch, **moved}


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_memory()


def peak_memory() -> int:
    """Return the most bytes of memory that this process has held at once.

    On Linux `ru_maxrss` begins with what the parent held when it started this process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        fields = (line.split() for line in status.read_text(encoding="utf-8").splitlines())
        return next(1024 * int(words[1]) for words in fields if words[:1] == ["VmHWM:"])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # of macOS, in bytes
