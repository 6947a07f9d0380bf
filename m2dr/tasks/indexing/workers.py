"""Several processes of this machine that make shards; those of one that is killed go to others."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection, get_context, parent_process
from threading import Thread
from typing import Any, Generic, TypeVar

from m2dr.core.errors import UserError, counted
from m2dr.core.progress import say
from m2dr.model.devices import share_of_machine, use_threads

CHUNKS = 4  # of the shards, per worker

Output = TypeVar("Output")


@dataclass(frozen=True)
class Work(Generic[Output]):
    """What workers do, wherever they run.

    Attributes:
        run: makes shards, by the device and their numbers; it can be pickled.
        device: that was asked for.
        lacks: whether a shard is not yet made.
    """

    run: Callable[[str, Sequence[int]], list[Output]]
    device: str
    lacks: Callable[[int], bool]


def map_locally(work: Work[Output], numbers: Sequence[int], count: int) -> Iterator[Output]:
    """Yield shards as `count` processes of this machine make them.

    Raises:
        UserError: a worker refuses, or they end without having made a shard.
    """
    left = list(numbers)
    while left:
        try:
            yield from _map_in_pool(work, left, min(count, len(left)))
        except BrokenProcessPool:
            done = len(left)
            left = [number for number in left if work.lacks(number)]
            if len(left) == done:
                raise UserError("Workers ended early, as when memory is short.") from None
            say(f"Warning: a worker ended; others take its {counted(len(left), 'shards')}.")
        else:
            return


def _map_in_pool(work: Work[Output], numbers: Sequence[int], count: int) -> Iterator[Output]:
    context = get_context("spawn")
    started = context.Value("i", 0)
    pool = ProcessPoolExecutor(count, context, _begin, (work.device, started, count))
    size = -(-len(numbers) // (CHUNKS * count))
    chunks = [numbers[first : first + size] for first in range(0, len(numbers), size)]
    run = partial(_run, work.run)
    try:
        for future in as_completed(pool.submit(run, chunk) for chunk in chunks):
            yield from future.result()
    finally:
        for process in list((pool._processes or {}).values()):  # noqa: SLF001  # public in 3.14
            process.kill()  # nothing half-written counts
        pool.shutdown(cancel_futures=True)


_device = ""  # of this worker


def _begin(device: str, started: Any, count: int) -> None:  # multiprocessing's Synchronized
    """Begin a worker process of this machine."""
    global _device  # noqa: PLW0603  # a pool gives its workers no other place
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this one
    Thread(target=_end_with_parent, daemon=True).start()
    with started.get_lock():
        number = started.value
        started.value += 1
    _device, threads = share_of_machine(device, number, count)
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # of the tokenizer
    use_threads(threads)


def _run(run: Callable[[str, Sequence[int]], list[Output]], numbers: Sequence[int]) -> list[Output]:
    return run(_device, numbers)


def _end_with_parent() -> None:
    """End this process with its parent: another command may hold the folder afterwards."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
