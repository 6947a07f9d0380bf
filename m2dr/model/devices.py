"""Devices and number formats that encoders run in, and the share of each process of them."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.overrides import TorchFunctionMode

from m2dr.core.errors import UserError, counted, nearest

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
DTYPE_VARIABLE = "M2DR_DTYPE"  # environment variable that `--dtype auto` stands for


def choose_device(name: str) -> torch.device:
    """Return the device that `name` stands for; `auto` is CUDA where there is a gpu.

    Raises:
        UserError: torch knows no such device, or this machine has none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        hint = nearest(name, ["auto", "cpu", "cuda"])
        raise UserError(f"--device {name} names no device. {hint}") from error
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name != "cpu" and (device.type != "cuda" or (device.index or 0) >= gpus):
        raise UserError(f"Device {name} was asked for; there are cpu and {counted(gpus, 'gpus')}.")
    return device


def choose_training_device(name: str) -> torch.device:
    """Return the device of a training, which transformers' Trainer always puts on the first gpu.

    Each process that torchrun starts has the gpu of its local rank.

    Raises:
        UserError: as for `choose_device`, or another gpu than the first was asked for.
    """
    device = choose_device(name)
    if device.index:
        visible = f"CUDA_VISIBLE_DEVICES={device.index}"
        raise UserError(f"Training takes the first gpu it sees; set {visible} for {name}.")
    if device.type == "cuda" and "LOCAL_RANK" in os.environ:
        return choose_device(f"cuda:{os.environ['LOCAL_RANK']}")
    return device


def share_of_machine(name: str, number: int, workers: int) -> tuple[str, int]:
    """Return the device and the number of CPU threads of one of several processes on a machine.

    Args:
        name: the device that was asked for; with `auto` and `cuda` each process has a gpu.
        number: of the process, from 0.
        workers: how many processes there are.
    """
    threads = max(1, torch.get_num_threads() // workers)
    if choose_device(name).type == "cuda" and ":" not in name:
        return f"cuda:{number % torch.cuda.device_count()}", threads
    return name, threads


def use_threads(count: int) -> None:
    """Set the number of CPU threads that torch uses in this process."""
    torch.set_num_threads(count)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the number format that `name` stands for.

    `auto` is what the environment variable M2DR_DTYPE names; without it, bf16 where the device is
    faster in it, else fp32.

    Raises:
        UserError: `name`, or the value of M2DR_DTYPE, is not a dtype.
    """
    if name == "auto":
        name = os.environ.get(DTYPE_VARIABLE) or "auto"
    if name == "auto":
        return torch.bfloat16 if is_faster_in_bf16(device) else torch.float32
    if name not in DTYPES:
        raise UserError(f"{name} is no dtype. {nearest(name, ['auto', *DTYPES])}")
    return DTYPES[name]


def trains_in_bf16(name: str, device: torch.device) -> bool:
    """Return whether a training with `--dtype name` multiplies in bf16; its weights stay fp32."""
    return choose_dtype(name, device) is torch.bfloat16


def is_faster_in_bf16(device: torch.device) -> bool:
    """Return whether a device encodes faster in bf16 than in fp32.

    Gpus and processors with AMX do, and those of AMD with bf16 in AVX-512; an Intel Xeon with bf16
    in AVX-512 and no AMX does not, and without a unit for it products are emulated, a hundred times
    slower on AVX2. Measured in docs/decisions/0030-dtype-auto.md.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    unit = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    is_amd = str(unit.get("cpu_name", "")).startswith("AMD")
    return bool(unit.get("amx_bf16") or (unit.get("avx512_bf16") and is_amd))


class MadeIn(TorchFunctionMode):
    """Makes weights in a number format within a `with` block, in this thread alone.

    `torch.set_default_dtype` changes what every other thread computes meanwhile.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(
        self,
        func: Callable[..., Any],
        _: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # what the function of torch returns
        """Call a function of torch, with the number format where it makes weights."""
        given = dict(kwargs or {})
        if func in _MAKERS and given.get("dtype") is None:
            given["dtype"] = self._dtype
        return func(*args, **given)


_MAKERS = {torch.empty, torch.zeros, torch.ones}  # of weights, in the modules of torch


def device_names() -> list[str]:
    """Return what an option for a device may name here, with what each is."""
    gpus = range(torch.cuda.device_count())
    return [
        f"cpu, {os.cpu_count()} cores",
        *(f"cuda:{number}, {torch.cuda.get_device_name(number)}" for number in gpus),
    ]


def set_dropout(encoder: nn.Module, share: float | None) -> None:
    """Set the dropout probability of an encoder; None leaves the backbone's own."""
    if share is None:
        return
    for module, name in _dropouts(encoder):
        setattr(module, name, share)


def drops_out(encoder: nn.Module) -> bool:
    """Return whether any dropout is above 0, so that two passes of a text in training differ."""
    return any(getattr(module, name) > 0 for module, name in _dropouts(encoder))


def _dropouts(encoder: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield the modules that drop activations, each with the name of its probability."""
    for module in encoder.modules():
        # An attention keeps its own as a number; T5 names it as other backbones name a module.
        names = ("p",) if isinstance(module, nn.Dropout) else ("attention_dropout", "dropout")
        for name in names:
            if isinstance(getattr(module, name, None), float | int):
                yield module, name


def as_tensor(array: NDArray[np.generic]) -> torch.Tensor:
    """Return an array as a tensor on the processor, which shares its memory."""
    return torch.from_numpy(array)
