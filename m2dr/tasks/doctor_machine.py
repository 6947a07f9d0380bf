"""Checks of `m2dr doctor` on the machine: devices, threads, number formats, folders and memory."""

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from m2dr.core.errors import UserError, command, install
from m2dr.core.fault import Fault, fault_of
from m2dr.index import gpu
from m2dr.index.faiss_library import load_faiss
from m2dr.model.devices import DTYPE_VARIABLE, Machine, describe_machine
from m2dr.tasks.doctor_install import DRIVER, FAISS, installed

WAIT = "OMP_WAIT_POLICY"
REPRODUCIBLE = "MKL_CBWR"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_LIMIT = Path("/sys/fs/cgroup/memory.max")
_USED = Path("/sys/fs/cgroup/memory.current")
_MEMORY = Path("/proc/meminfo")


def machine_faults(device: str, folders: Iterable[Path]) -> Iterator[Fault]:
    """Yield the faults of devices, variables of the environment and folders.

    Args:
        device: as --device has it.
        folders: that commands write to; they need not exist.
    """
    try:
        machine = describe_machine(device)
        yield from _device_faults(machine)
        yield from _bf16_faults(machine)
    except UserError as error:
        is_dtype = str(error).startswith(DTYPE_VARIABLE)
        mend = f"unset {DTYPE_VARIABLE}" if is_dtype else command("doctor", device="auto")
        yield fault_of(error, DTYPE_VARIABLE if is_dtype else "device", mend)
    for folder in folders:
        yield from _folder_faults(folder)
    yield from _thread_faults()


def _device_faults(machine: Machine) -> Iterator[Fault]:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if DRIVER.exists() and not machine.gpus and not hidden:
        problem = "There is a driver for an NVIDIA GPU, and torch finds no GPU"
        if machine.cuda:
            yield Fault("warning", "torch", f"{problem}: the driver refuses.", "nvidia-smi")
        else:
            again = _reinstall("torch")
            yield Fault("warning", "torch", f"{problem}: it is built for processors.", again)
    try:
        faiss = load_faiss()
    except UserError as error:
        if find_spec("faiss"):  # else it is a fault of the install
            again = _reinstall(*filter(installed, FAISS))
            yield Fault("error", "faiss", f"FAISS cannot be loaded: {error.__cause__}.", again)
        return
    if machine.gpus and hasattr(faiss, "StandardGpuResources") and (reason := gpu.refusal()):
        problem = f"FAISS cannot use the GPU: {reason}. Indexes are searched on the processor."
        again = f"pip uninstall -y faiss-gpu && {install('cpu')}"
        yield Fault("error", "faiss-gpu", problem, again)


def _reinstall(*packages: str) -> str:
    return shlex.join(["pip", "install", "--force-reinstall", "--no-deps", *packages])


def _bf16_faults(machine: Machine) -> Iterator[Fault]:
    if machine.bf16 == "emulated" and machine.dtype == "bf16":
        problem = (
            f"{DTYPE_VARIABLE}=bf16 is set, and this device has no unit for bf16: its products are "
            "emulated, and up to a hundred times slower than fp32."
        )
        yield Fault("warning", DTYPE_VARIABLE, problem, f"unset {DTYPE_VARIABLE}")


def _thread_faults() -> Iterator[Fault]:
    """Yield the faults of variables that threads read when they start."""
    limit = cores()
    for name in THREADS:
        word = os.environ.get(name, "").partition(",")[0].strip()
        if word and not (word.isdecimal() and 0 < int(word) <= limit):
            more = f"starts more threads than the {limit} cores here, which wait for each other"
            wrong = more if word.isdecimal() and int(word) else "is no number of threads"
            problem = f"{name}={word} {wrong}."
            yield Fault("warning", name, problem, f"export {name}={limit}")
    starts = os.cpu_count() or 1
    if not os.environ.get(THREADS[0]) and limit < min(starts, _affine()):
        problem = f"This process may use {limit} cores, and {starts} threads would share them."
        yield Fault("warning", THREADS[0], problem, f"export {THREADS[0]}={limit}")
    if os.environ.get(WAIT, "PASSIVE").upper() != "PASSIVE":
        problem = f"{WAIT}={os.environ[WAIT]} lets waiting threads take the cores of others."
        yield Fault("warning", WAIT, problem, f"export {WAIT}=PASSIVE")
    if "STRICT" not in os.environ.get(REPRODUCIBLE, "STRICT"):
        problem = (
            f"{REPRODUCIBLE}={os.environ[REPRODUCIBLE]} lets the number of threads decide the last "
            "bit of a vector, and so the checksums of stores."
        )
        yield Fault("warning", REPRODUCIBLE, problem, f"export {REPRODUCIBLE}=AUTO,STRICT")


def _folder_faults(folder: Path) -> Iterator[Fault]:
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    quoted = shlex.quote(str(there))
    if not there.is_dir():
        problem = f"{there} is no folder, and m2dr writes into one there."
        yield Fault("error", str(folder), problem, f"mv {quoted} {shlex.quote(f'{there}.old')}")
    elif not os.access(there, os.W_OK | os.X_OK):
        problem = f"{there} cannot be written to, and m2dr writes there."
        yield Fault("error", str(folder), problem, f"chmod u+wx {quoted}")


def machine_facts(device: str) -> Mapping[str, str]:
    """Return what is found of devices, threads, FAISS and memory."""
    facts = {"cores": str(cores())}
    with suppress(UserError):  # which is a fault
        machine = describe_machine(device)
        facts["gpus"] = ", ".join(machine.gpus) or "none"
        facts["bf16"] = f"{machine.bf16}; --dtype auto is {machine.dtype}"
        facts["threads"] = f"{machine.threads} of torch, {WAIT}={os.environ.get(WAIT, '')}"
    with suppress(UserError):
        faiss = load_faiss()
        least = faiss.cvar.distance_compute_blas_threshold
        where = "gpu and processor" if hasattr(faiss, "StandardGpuResources") else "processor"
        facts["faiss"] = f"for {where}, BLAS from {least} queries"
    facts["free memory"] = f"{free_memory() / 1e9:,.1f} GB"
    return facts


def cores() -> int:
    """Return the number of cores that this process may use: of its affinity and its container."""
    try:
        share, period = _QUOTA.read_text().split()
        quota = -(-int(share) // int(period))
    except (OSError, ValueError):  # there is no container, or "max"
        quota = _affine()
    return max(1, min(quota, _affine()))


def _affine() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory() -> int:
    """Return the bytes of memory that a new process may take; a large number if not known."""
    found = [2**62]
    with suppress(OSError, ValueError, KeyError):
        lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    with suppress(OSError, ValueError):  # there is no container, or "max"
        found.append(int(_LIMIT.read_text()) - int(_USED.read_text()))
    return max(0, min(found))
