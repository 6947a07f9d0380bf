"""Which processor runs the encoder, and in which number format."""

import os

import torch
from torch import nn

from m2dr.errors import UserError, counted, nearest

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
DTYPE_VARIABLE = "M2DR_DTYPE"  # environment variable: what `--dtype auto` means on this machine


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one; anything else is what torch calls a device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        hint = nearest(name, ["auto", "cpu", "cuda"])
        raise UserError(f"--device {name} names no device. {hint}") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"--device {name} is not supported. {nearest(name, ['cpu', 'cuda'])}")
    if device.type == "cpu" and device.index is not None:
        raise UserError(f"--device {name} has a number, and cpu means all of it. Use --device cpu.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda was asked for; torch finds no CUDA card. Use --device cpu.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        cards = torch.cuda.device_count()
        raise UserError(
            f"--device {name} was asked for; torch finds {counted(cards, 'cards')}, from cuda:0."
        )
    return device


def choose_training_device(name: str) -> torch.device:
    """The same for training, which transformers' Trainer always puts on the first card.

    Of several processes that torchrun starts, each has the card of its own number.
    """
    device = choose_device(name)
    if device.index:
        raise UserError(
            f"--device {name}: training takes the first card it sees; choose another with "
            f"CUDA_VISIBLE_DEVICES={device.index} and --device cuda."
        )
    if device.type == "cuda" and "LOCAL_RANK" in os.environ:
        return choose_device(f"cuda:{os.environ['LOCAL_RANK']}")
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the number format that `name` stands for.

    `auto` is what the environment variable M2DR_DTYPE names; without it, bf16 where the processor
    multiplies it natively, else fp32.

    Raises:
        UserError: `name`, or the value of M2DR_DTYPE, is not a dtype.
    """
    asked = f"--dtype {name}"
    if name == "auto":
        name = os.environ.get(DTYPE_VARIABLE) or "auto"
        asked = f"{DTYPE_VARIABLE}={name}"
    if name == "auto":
        return torch.bfloat16 if multiplies_bf16(device) else torch.float32
    if name not in DTYPES:
        raise UserError(f"{asked} is no dtype. {nearest(name, ['auto', *DTYPES])}")
    return DTYPES[name]


def multiplies_bf16(device: torch.device) -> bool:
    """Whether bf16 products run on the processor's own bf16 unit.

    Without one they are emulated: on an AVX2 machine a hundred times slower than fp32, on an
    AMX machine four times faster.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return any(capabilities.get(unit, False) for unit in ("amx_bf16", "avx512_bf16"))


def trains_in_bf16(name: str, device: torch.device) -> bool:
    """Whether a training with `--dtype name` multiplies in bf16; its weights stay fp32."""
    return choose_dtype(name, device) is torch.bfloat16


def set_dropout(encoder: nn.Module, share: float | None) -> None:
    """Drop that share of activations in training; None leaves the backbone as it is."""
    if share is None:
        return
    for module in encoder.modules():
        name = "p" if isinstance(module, nn.Dropout) else "attention_dropout"
        if isinstance(getattr(module, name, None), float):
            setattr(module, name, share)


def drops_out(encoder: nn.Module) -> bool:
    """Whether two passes of one text in training differ."""
    return any(
        getattr(module, name, 0.0) > 0
        for module in encoder.modules()
        for name in (("p",) if isinstance(module, nn.Dropout) else ("attention_dropout",))
        if isinstance(getattr(module, name, None), float)
    )


def share_of_machine(name: str, number: int, workers: int) -> tuple[str, int]:
    """What one of several processes on this machine may use: a device, and threads of a CPU.

    Args:
        name: the device that was asked for; on `auto` and `cuda` each process has a card.
        number: of the process, from 0.
        workers: how many there are.
    """
    threads = max(1, torch.get_num_threads() // workers)
    if choose_device(name).type == "cuda" and ":" not in name:
        return f"cuda:{number % torch.cuda.device_count()}", threads
    return name, threads


def use_threads(count: int) -> None:
    """Let torch, in this process, use that many threads of the CPU."""
    torch.set_num_threads(count)


def own_device(name: str) -> str:
    """The device of this process: of several that torchrun started, each has a card of its own."""
    if "LOCAL_RANK" in os.environ and ":" not in name and choose_device(name).type == "cuda":
        return f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    return name
