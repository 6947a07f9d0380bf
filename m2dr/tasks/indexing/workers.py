"""Several processes that encode shards: on this machine, or as tasks of Ray."""

import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from m2dr.core.errors import UserError, counted, missing
from m2dr.core.progress import say
from m2dr.model.devices import share_of_machine, use_threads

if TYPE_CHECKING:
    from m2dr.tasks.indexing.encode import EncodingJob, ShardEncoder, WrittenShard

CHUNKS = 4  # of the shards, per worker
RETRIES = 3  # of a shard whose Ray worker was lost
CPUS = 4  # of a Ray task, where the number of workers is not given
# Environment that Ray's workers need from the command; m2dr.cli sets it.
INHERITED = ("MKL_CBWR", "OMP_WAIT_POLICY", "TOKENIZERS_PARALLELISM", "M2DR_DATA")

Advance = Callable[[int], None]


def encode_locally(
    job: "EncodingJob", numbers: Sequence[int], count: int, advance: Advance
) -> "Iterator[WrittenShard]":
    """Encode shards by processes of this machine; those of one that is killed are given to others.

    Args:
        job: what to encode.
        numbers: of the shards.
        count: of processes.
        advance: told how many more documents are written.

    Raises:
        UserError: a worker refuses, or they end without having written a shard.
    """
    left = list(numbers)
    while left:
        try:
            yield from _encode_in_pool(job, left, min(count, len(left)), advance)
        except BrokenProcessPool:
            done = len(left)
            left = [number for number in left if job.lacks(number)]
            if len(left) == done:
                raise UserError("Workers ended early, as when memory is short.") from None
            say(f"Warning: a worker ended; {counted(len(left), 'shards')} are given to others.")
        else:
            return


def _encode_in_pool(
    job: "EncodingJob", numbers: Sequence[int], count: int, advance: Advance
) -> "Iterator[WrittenShard]":
    context = get_context("spawn")
    started = context.Value("i", 0)
    pool = ProcessPoolExecutor(count, context, _begin, (job, started, count))
    size = -(-len(numbers) // (CHUNKS * count))
    try:
        chunks = [numbers[first : first + size] for first in range(0, len(numbers), size)]
        for future in as_completed(pool.submit(_encode_chunk, chunk) for chunk in chunks):
            for shard in future.result():
                advance(shard.documents)
                yield shard
    finally:
        for process in list((pool._processes or {}).values()):  # noqa: SLF001  # public in 3.14
            process.kill()  # nothing half-written counts
        pool.shutdown(cancel_futures=True)


_job: "EncodingJob | None" = None  # of this worker


def _begin(job: "EncodingJob", started: Any, count: int) -> None:  # multiprocessing's Synchronized
    """Begin a worker process of this machine."""
    global _job  # noqa: PLW0603  # a pool gives its workers no other place
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this one
    Thread(target=_end_with_parent, daemon=True).start()
    with started.get_lock():
        number = started.value
        started.value += 1
    device, threads = share_of_machine(job.device, number, count)
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # of the tokenizer
    use_threads(threads)
    _job = replace(job, device=device)


def _encode_chunk(numbers: Sequence[int]) -> "list[WrittenShard]":
    if _job is None:
        raise AssertionError("a worker begins with its job")
    return list(_encoder(_job).encode(numbers))


def _end_with_parent() -> None:
    """End this process with its parent: another command may hold the folder afterwards."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


@lru_cache(maxsize=1)
def _encoder(job: "EncodingJob") -> "ShardEncoder":
    from m2dr.tasks.indexing.encode import ShardEncoder

    return ShardEncoder(job)


# Ray


def encode_on_ray(
    job: "EncodingJob", numbers: Sequence[int], count: int, advance: Advance
) -> "Iterator[WrittenShard]":
    """Encode shards by Ray tasks, `count` at a time, or as many as there is room for.

    All machines must see the corpus, the model and the folder of indexes under the same paths.

    Raises:
        UserError: Ray is not installed, no cluster answers, a task refuses, or Ray has lost the
            worker of a shard again and again.
    """
    with _ray() as ray:
        there = ray.cluster_resources()
        gpus, cores = there.get("GPU", 0), int(there.get("CPU", 1))
        nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
        largest = int(max(nodes, default=1))  # a task runs on one node
        threads = max(1, min(largest, cores // count if count > 1 else CPUS))
        task = ray.remote(_encode_shard).options(
            max_retries=RETRIES,
            runtime_env={"env_vars": {n: os.environ[n] for n in INHERITED if n in os.environ}},
            num_cpus=1 if gpus else threads,
            num_gpus=1 if gpus else 0,
        )
        coming, waiting = list(numbers)[::-1], list[object]()
        while coming or waiting:
            while coming and (count == 1 or len(waiting) < count):
                waiting.append(task.remote(coming.pop(), job, threads, str(Path.cwd())))
            ready, waiting = ray.wait(waiting)
            for reference in ready:
                try:
                    shard: WrittenShard = ray.get(reference)
                except ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None)
                    told = f"The worker of a shard was lost again and again ({error})."
                    raise UserError(str(cause) if isinstance(cause, UserError) else told) from error
                advance(shard.documents)
                yield shard


def _encode_shard(number: int, job: "EncodingJob", threads: int, folder: str) -> "WrittenShard":
    """Encode one shard; a process of Ray does many, and loads the model once."""
    if Path(folder).is_dir():
        os.chdir(folder)
    use_threads(threads)
    return next(_encoder(job).encode([number]))


@contextmanager
def _ray() -> Iterator[Any]:
    """Join the Ray cluster at RAY_ADDRESS, or start one on this machine; leave it at the end."""
    try:
        import ray
    except ImportError as error:
        raise missing("ray", "ray") from error
    if ray.is_initialized():
        yield ray
        return
    address = "auto" if os.environ.get("RAY_ADDRESS") else "local"
    try:
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"No Ray cluster answers at {address} ({error}).") from error
    try:
        yield ray
    finally:
        ray.shutdown()
