"""Threads that share a scan: one makes tiles ready, the others compare their queries with each."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache, partial
from queue import SimpleQueue
from threading import Barrier, Condition, Lock
from typing import TypeVar

import torch

Thing = TypeVar("Thing")

SLOTS = 3  # one is filled while others are read
_SUBMITTING = Lock()


def shared(
    things: Iterable[Thing],
    fill: Callable[[int, Thing], None],
    read: Callable[[int, int], None],
    readers: int,
) -> Iterator[Thing]:
    """Fill slots with things and let every reader read each, all at the same time.

    Torch would divide every call among its threads, which then wait for one another. These divide
    the readers' work, and only wait when the slowest is more than all slots behind.

    Args:
        things: to fill slots with, in turn.
        fill: told a slot, below SLOTS, and a thing.
        read: told a slot and the reader's number; one reader's calls come in order.
        readers: how many; a single one works in the calling thread.

    Yields:
        Things, when they were filled in. When there are no more, all were read.

    Raises:
        Exception: what `things`, `fill` or `read` raised.
    """
    if readers == 1:
        for thing in things:
            fill(0, thing)
            read(0, 0)
            yield thing
    else:
        yield from _threaded(things, fill, read, readers)


def _threaded(
    things: Iterable[Thing],
    fill: Callable[[int, Thing], None],
    read: Callable[[int, int], None],
    readers: int,
) -> Iterator[Thing]:
    """As `shared`, with a thread for filling and one for each reader."""
    ring = _Ring(readers)
    news: SimpleQueue[Thing | None] = SimpleQueue()

    @torch.inference_mode()  # each thread has its own
    def filling() -> None:
        try:
            for slot, thing in zip(ring.free(), things, strict=False):
                fill(slot, thing)
                news.put(thing)
        finally:
            ring.end()
            news.put(None)

    @torch.inference_mode()
    def reading(reader: int) -> None:
        try:
            for slot in ring.filled(reader):
                read(slot, reader)
        finally:
            ring.end()

    running = _submitted([filling, *(partial(reading, number) for number in range(readers))])
    try:
        yield from iter(news.get, None)  # up to the first None
    finally:
        ring.end()
        wait(running)
    for future in running:
        future.result()


class _Ring:
    """Slots that one thread fills in turn; none is filled anew before all readers have read it."""

    def __init__(self, readers: int) -> None:
        self._filled = 0  # how many times a slot was
        self._read = [0] * readers  # how many of these
        self._ended = False
        self._changed = Condition()

    def free(self) -> Iterator[int]:
        """Slots to fill; each counts as filled when the next is asked for."""
        while self._until(lambda: self._filled - min(self._read) < SLOTS) and not self._ended:
            yield self._filled % SLOTS
            with self._changed:
                self._filled += 1
                self._changed.notify_all()

    def filled(self, reader: int) -> Iterator[int]:
        """Slots to read; each counts as read when the next is asked for."""
        while self._until(lambda: self._read[reader] < self._filled):
            yield self._read[reader] % SLOTS
            with self._changed:
                self._read[reader] += 1
                self._changed.notify_all()

    def end(self) -> None:
        """Fill no more; readers read what was filled."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _until(self, holds: Callable[[], bool]) -> bool:
        """Wait for a condition, or for the end; whether it holds."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or holds())
            return holds()


def _submitted(tasks: list[Callable[[], None]]) -> list[Future[None]]:
    """Start tasks which wait for one another, so none may lack a thread."""
    with _SUBMITTING:  # all tasks of an earlier call have theirs before any of this one
        pool = _pool(len(tasks))
        return [pool.submit(task) for task in tasks]


@cache
def _pool(count: int) -> ThreadPoolExecutor:
    """Threads for which torch divides no call."""
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, thread_name_prefix="m2dr-scan")
    ready = Barrier(count)

    def alone() -> None:
        torch.get_num_threads()  # or the first call begins with what all threads begin with
        torch.set_num_threads(1)
        ready.wait()

    for future in [pool.submit(alone) for _ in range(count)]:
        future.result()
    torch.set_num_threads(before)  # also what threads that start later begin with
    return pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
