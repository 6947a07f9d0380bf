"""Several processes of this machine encode the shards of one job; what one leaves, others take."""

import os
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from threading import Lock, Thread

from m2dr.errors import UserError, counted
from m2dr.model.devices import share_of_machine, use_threads
from m2dr.verbs.indexing.pipeline import AHEAD, Done, Job, ShardEncoder
from m2dr.verbs.indexing.tally import Tally
from m2dr.verbs.progress import say

Message = Done | tuple[int, int] | str  # written; documents of a shard just run; why it gave up


@dataclass
class _Worker:
    """A process, and the shards that it has been given and has not written."""

    process: SpawnProcess
    pipe: "Connection[int | None, Message]"
    doing: list[int] = field(default_factory=list)

    def give(self, number: int) -> None:
        """Ask for a shard; one that has ended is found out when it is waited for."""
        self.doing.append(number)
        try:
            self.pipe.send(number)
        except OSError:
            return

    def messages(self) -> Iterator[Message]:
        """What it has said and nobody has heard."""
        try:
            while self.pipe.poll():
                yield self.pipe.recv()
        except (EOFError, OSError):
            return


def encode_with_workers(job: Job, numbers: Sequence[int], workers: int, tally: Tally) -> None:
    """Write these shards by that many processes.

    Raises:
        UserError: a worker refuses for a reason that another would refuse for too, or all have
            ended.
    """
    crew = [_started(job, number, workers) for number in range(min(workers, len(numbers)))]
    try:
        _share_out(crew, deque(numbers), tally)
        for worker in crew:
            worker.process.join()
    finally:
        for worker in crew:
            worker.process.kill()  # nothing half-written counts
            worker.process.join()
            worker.pipe.close()


def _started(job: Job, number: int, workers: int) -> _Worker:
    device, threads = share_of_machine(job.device, number, workers)
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (replace(job, device=device), threads, theirs)
    process = context.Process(target=_work, args=arguments, name=f"encode-{number}", daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _share_out(crew: Sequence[_Worker], todo: deque[int], tally: Tally) -> None:
    """Keep every worker busy until all shards are written."""
    alive = list(crew)
    while todo or any(worker.doing for worker in alive):
        _give(alive, todo)
        wait([place for worker in alive for place in (worker.pipe, worker.process.sentinel)])
        for worker in list(alive):
            ended = not worker.process.is_alive()
            for message in worker.messages():
                _hear(worker, message, tally)
            if ended:
                alive.remove(worker)
                _leave(worker, alive, todo, tally)
    for worker in alive:
        worker.pipe.send(None)


def _give(alive: Sequence[_Worker], todo: deque[int]) -> None:
    """One shard to run for each worker, and then those that it reads meanwhile."""
    for turn in range(AHEAD + 1):
        for worker in alive:
            if todo and len(worker.doing) <= turn:
                worker.give(todo.popleft())


def _hear(worker: _Worker, message: Message, tally: Tally) -> None:
    if isinstance(message, str):
        raise UserError(message)
    if isinstance(message, Done):
        worker.doing.remove(message.number)
        tally.told(message)
    else:
        tally.ticked(*message)


def _leave(worker: _Worker, alive: Sequence[_Worker], todo: deque[int], tally: Tally) -> None:
    """Hand on what a worker that ended had been given."""
    for number in sorted(worker.doing, reverse=True):
        tally.lost(number)
        todo.appendleft(number)
    how = _how_ended(worker.process.exitcode)
    if alive:
        say(f"Warning: a worker ended ({how}); its shards go to {counted(len(alive), 'others')}.")
    elif todo:
        raise UserError(
            f"All workers ended, the last one {how}, with {counted(len(todo), 'shards')} left to "
            "write. What is written stays; run the same command again, with fewer --workers if "
            "memory is short."
        )


def _how_ended(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "by kill -9, as a system does that is out of memory"
    return f"by signal {-code}" if code and code < 0 else f"with exit code {code}"


def _work(job: Job, threads: int, pipe: "Connection[Message, int | None]") -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this one
    Thread(target=_end_with_parent, daemon=True).start()
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # of the tokenizer
    use_threads(threads)
    try:
        ShardEncoder(job).encode(iter(pipe.recv, None), _Reporter(pipe))
    except UserError as error:
        pipe.send(str(error))
    except (EOFError, BrokenPipeError):  # the parent has ended
        return


def _end_with_parent() -> None:
    """Leave nobody behind who writes into a folder that another may hold by now."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@dataclass
class _Reporter:
    """Tells the parent; its methods are called from two threads."""

    pipe: "Connection[Message, int | None]"
    _one: Lock = field(default_factory=Lock)

    def told(self, done: Done) -> None:
        with self._one:
            self.pipe.send(done)

    def ticked(self, number: int, documents: int) -> None:
        with self._one:
            self.pipe.send((number, documents))
