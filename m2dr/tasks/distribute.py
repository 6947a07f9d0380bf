"""One scheduler gives shards to the processes that encode them: of this machine, or of Ray."""

import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, NamedTuple, Protocol

from m2dr.core.errors import UserError, counted, install
from m2dr.core.progress import say
from m2dr.model.devices import share_of_machine, use_threads
from m2dr.tasks.encode_store import (
    AHEAD,
    EncodingJob,
    EncodingStats,
    ShardEncoder,
    WrittenShard,
)

RETRIES = 3  # of a shard whose Ray worker was lost
CPUS = 4  # of a Ray task, where the number of workers is not given
# Environment that Ray's workers need from the command; m2dr.cli sets it.
INHERITED = ("MKL_CBWR", "OMP_WAIT_POLICY", "TOKENIZERS_PARALLELISM", "M2DR_DATA")


class Advanced(NamedTuple):
    """More documents of a shard have been encoded."""

    number: int
    documents: int


class Lost(NamedTuple):
    """A worker has ended."""

    how: str


# What a worker reports; it refuses by an error that every other worker would raise too.
Message = WrittenShard | Advanced | Lost | UserError


class WorkerPool(Protocol):
    """A backend of the scheduler: workers from 0 to `count` that encode the shards they get."""

    count: int
    ahead: int  # shards that a worker has at a time

    def give(self, worker: int, number: int) -> None:
        """Ask a worker for a shard."""

    def messages(self) -> Iterable[tuple[int, Message]]:
        """Wait for messages and return them, each with its worker."""


class Scheduler:
    """Keeps workers busy until all shards are written; others get the shards of a lost worker."""

    def __init__(self, pool: WorkerPool, numbers: Iterable[int], stats: EncodingStats) -> None:
        self._pool, self._stats = pool, stats
        self._todo = deque(numbers)
        self._doing: dict[int, list[int]] = {worker: [] for worker in range(pool.count)}

    def run(self) -> None:
        """Return when all shards are written.

        Raises:
            UserError: a worker refuses, or all of them have ended.
        """
        while self._todo or any(self._doing.values()):
            self._give()
            for worker, message in self._pool.messages():
                self._receive(worker, message)

    def _give(self) -> None:
        """Give each worker a shard to encode, and only then those that it reads meanwhile."""
        for held in range(self._pool.ahead if self._todo else 0):
            for worker, doing in self._doing.items():
                if self._todo and len(doing) <= held:
                    doing.append(self._todo.popleft())
                    self._pool.give(worker, doing[-1])

    def _receive(self, worker: int, message: Message) -> None:
        if isinstance(message, UserError):
            raise message
        if isinstance(message, Lost):
            self._reassign(worker, message.how)
        elif isinstance(message, Advanced):
            self._stats.advanced(*message)
        else:
            self._doing[worker].remove(message.number)
            self._stats.written(message)

    def _reassign(self, worker: int, how: str) -> None:
        """Put the shards of a worker that has ended in front of the others."""
        for number in sorted(self._doing.pop(worker), reverse=True):
            self._stats.lost(number)
            self._todo.appendleft(number)
        if self._doing:
            others = counted(len(self._doing), "others")
            say(f"Warning: a worker ended ({how}); its shards go to {others}.")
        elif self._todo:
            raise UserError(
                f"All workers ended, the last one {how}, with {counted(len(self._todo), 'shards')} "
                "left to write. What is written stays; run the same command again, with fewer "
                "--workers if memory is short."
            )


@dataclass(frozen=True)
class MessageListener:
    """Sends the progress of encoding as messages, one at a time."""

    send: Callable[[Message], None]
    _lock: Lock = field(default_factory=Lock)

    def written(self, shard: WrittenShard) -> None:
        """Send a shard that is written."""
        with self._lock:
            self.send(shard)

    def advanced(self, number: int, documents: int) -> None:
        """Send that more documents of a shard have been encoded."""
        with self._lock:
            self.send(Advanced(number, documents))


def _work(job: EncodingJob, pipe: "Connection[Message, int | None]") -> None:
    """Encode the shards whose numbers come through a pipe, until None comes."""
    ended = Event()

    def numbers() -> Iterator[int]:
        while not ended.is_set():
            if pipe.poll(1.0):
                if (number := pipe.recv()) is None:
                    return
                yield number

    given = numbers()
    for first in given:  # without one, the model is not loaded
        listener = MessageListener(pipe.send)
        ShardEncoder(job).encode(chain([first], given), listener, ended.set)


def encode_locally(
    job: EncodingJob, numbers: Sequence[int], workers: int, stats: EncodingStats
) -> None:
    """Encode shards by processes of this machine.

    Raises:
        UserError: a worker refuses, or all of them have ended.
    """
    local = _LocalPool([_started(job, n, workers) for n in range(min(workers, len(numbers)))])
    try:
        Scheduler(local, numbers, stats).run()
        for worker in local.running:
            local.give(worker, None)
        for process, _ in local.running.values():
            process.join()
    finally:
        for process, pipe in local.started:
            process.kill()  # nothing half-written counts
            process.join()
            pipe.close()


_Local = tuple[SpawnProcess, "Connection[int | None, Message]"]


def _started(job: EncodingJob, number: int, workers: int) -> _Local:
    device, threads = share_of_machine(job.device, number, workers)
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (replace(job, device=device), threads, theirs)
    process = context.Process(target=_run, args=arguments, name=f"encode-{number}", daemon=True)
    process.start()
    theirs.close()
    return process, ours


class _LocalPool:
    """Processes that multiprocessing has spawned, each behind a pipe."""

    ahead = AHEAD + 1

    def __init__(self, started: Sequence[_Local]) -> None:
        self.started, self.count = started, len(started)
        self.running = dict(enumerate(started))

    def give(self, worker: int, number: int | None) -> None:
        """Ask a worker for a shard, or with None to end."""
        with suppress(OSError):  # it has ended, which `messages` reports
            self.running[worker][1].send(number)

    def messages(self) -> Iterator[tuple[int, Message]]:
        wait([one for process, pipe in self.running.values() for one in (pipe, process.sentinel)])
        for worker, (process, pipe) in list(self.running.items()):
            ended = not process.is_alive()  # looked at before its last messages are read
            with suppress(EOFError, OSError):
                while pipe.poll():
                    yield worker, pipe.recv()
            if ended:
                del self.running[worker]
                yield worker, Lost(_how_ended(process.exitcode))


def _how_ended(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "by kill -9, as a system does that is out of memory"
    return f"by signal {-code}" if code and code < 0 else f"with exit code {code}"


def _run(job: EncodingJob, threads: int, pipe: "Connection[Message, int | None]") -> None:
    """Run a worker process of this machine."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this one
    Thread(target=_end_with_parent, daemon=True).start()
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # of the tokenizer
    use_threads(threads)
    with suppress(EOFError, BrokenPipeError):  # the parent has ended
        try:
            _work(job, pipe)
        except UserError as error:
            pipe.send(error)


def _end_with_parent() -> None:
    """End this process with its parent: another command may hold the folder afterwards."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def encode_on_ray(
    job: EncodingJob, numbers: Sequence[int], workers: int, stats: EncodingStats
) -> None:
    """Encode shards by Ray tasks, `workers` at a time, or as many as there is room for.

    All machines must see the corpus, the model and the folder of indexes under the same paths.

    Raises:
        UserError: Ray is not installed, no cluster answers, a task refuses, or Ray has lost the
            worker of a shard again and again.
    """
    with _ray() as ray:
        Scheduler(_RayPool(ray, job, workers, len(numbers)), numbers, stats).run()


class _RayPool:
    """A task per shard; Ray queues them, and repeats those whose worker it has lost."""

    count = 1  # the cluster

    def __init__(
        self, ray: Any, job: EncodingJob, workers: int, shards: int
    ) -> None:  # Ray has no stubs
        there = ray.cluster_resources()
        gpus, cores = there.get("GPU", 0), int(there.get("CPU", 1))
        nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
        largest = int(max(nodes, default=1))  # a task runs on one node
        threads = max(1, min(largest, cores // workers if workers > 1 else CPUS))
        kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
        options = {"num_cpus": 1 if gpus else threads, "num_gpus": 1 if gpus else 0}
        self._task = ray.remote(_encode_shard).options(
            max_retries=RETRIES, runtime_env={"env_vars": kept}, **options
        )
        self.ahead = min(workers, shards) if workers > 1 else shards
        self._ray, self._arguments = ray, (job, threads, str(Path.cwd()))
        self._waiting: list[object] = []

    def give(self, worker: int, number: int) -> None:
        del worker
        self._waiting.append(self._task.remote(number, *self._arguments))

    def messages(self) -> list[tuple[int, Message]]:
        ready, self._waiting = self._ray.wait(self._waiting)
        return [(0, self._result(reference)) for reference in ready]

    def _result(self, reference: object) -> Message:
        errors = self._ray.exceptions
        try:
            shard: WrittenShard = self._ray.get(reference)
        except errors.RayTaskError as error:
            if isinstance(error.cause, UserError):
                return UserError(str(error.cause))
            raise
        except (errors.RayError, errors.RaySystemError) as error:
            return UserError(
                f"The worker of a shard was lost {RETRIES + 1} times ({type(error).__name__}). "
                "What is written stays; look at the memory of the machines, then run the same "
                "command again."
            )
        return shard


@contextmanager
def _ray() -> Iterator[Any]:
    """Join the Ray cluster at RAY_ADDRESS, or start one on this machine; leave it at the end."""
    try:
        import ray
    except ImportError as error:
        raise UserError(
            f"--backend ray needs Ray, which is not installed. Install it with: {install('ray')}"
        ) from error
    if ray.is_initialized():
        yield ray
        return
    address = "auto" if os.environ.get("RAY_ADDRESS") else "local"
    try:
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"No Ray cluster answers at {os.environ.get('RAY_ADDRESS', address)} "
            f"({(str(error).splitlines() or ['no reason given'])[0]}). Start one with ray start, "
            "or unset RAY_ADDRESS to have one on this machine."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _encode_shard(number: int, job: EncodingJob, threads: int, folder: str) -> Message:
    """Encode one shard; a process of Ray does many, and loads the model once."""
    if Path(folder).is_dir():
        os.chdir(folder)
    use_threads(threads)
    messages: list[Message] = []
    _encoder(job).encode([number], MessageListener(messages.append))
    return messages[-1]


@lru_cache(maxsize=1)
def _encoder(job: EncodingJob) -> ShardEncoder:
    return ShardEncoder(job)
