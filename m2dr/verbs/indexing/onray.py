"""Shards as tasks of Ray, on this machine or on a cluster that is there."""

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from m2dr.errors import UserError, install
from m2dr.model.devices import use_threads
from m2dr.verbs.indexing.pipeline import Done, Job, ShardEncoder
from m2dr.verbs.indexing.tally import Tally

RETRIES = 3  # of a shard whose worker was lost
# What a cluster that was started elsewhere must be told; see m2dr.cli.
INHERITED = ("MKL_CBWR", "OMP_WAIT_POLICY", "TOKENIZERS_PARALLELISM", "M2DR_DATA")
CPUS = 4  # of a task, where it is not said how many workers there are to be


def encode_on_ray(job: Job, numbers: Sequence[int], workers: int, tally: Tally) -> None:
    """Write these shards by tasks, `workers` at a time, or as many as there is room for.

    All machines must see the corpus, the model and the folder of indexes under the same paths.

    Raises:
        UserError: Ray is not installed, no cluster answers, a task refuses, or the worker of one
            was lost again and again.
    """
    ray = _ray()
    ours = not ray.is_initialized()
    if ours:
        _begin(ray)
    try:
        _encode(ray, job, numbers, workers, tally)
    finally:
        if ours:
            ray.shutdown()


def _encode(ray: Any, job: Job, numbers: Sequence[int], workers: int, tally: Tally) -> None:  # noqa: ANN401  # Ray has no stubs
    there = ray.cluster_resources()
    cards, cores = there.get("GPU", 0), max(1, int(there.get("CPU", 1)))
    each = max(1, cores // workers if workers > 1 else min(CPUS, cores))
    options = {"num_cpus": 1 if cards else each, "num_gpus": 1 if cards else 0}
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    task = ray.remote(_shard).options(
        max_retries=RETRIES, runtime_env={"env_vars": kept}, **options
    )
    waiting = [task.remote(job, number, each, str(Path.cwd())) for number in numbers]
    while waiting:
        ready, waiting = ray.wait(waiting)
        for reference in ready:
            tally.told(_result(ray, reference))


def _result(ray: Any, reference: object) -> Done:  # noqa: ANN401  # Ray has no stubs
    try:
        done: Done = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise UserError(str(error.cause)) from None
        raise
    except (ray.exceptions.RayError, ray.exceptions.RaySystemError) as error:
        raise UserError(
            f"The worker of a shard was lost {RETRIES + 1} times ({type(error).__name__}). What is "
            "written stays; look at the memory of the machines, then run the same command again."
        ) from error
    return done


def _begin(ray: Any) -> None:  # noqa: ANN401  # Ray has no stubs
    address = "auto" if os.environ.get("RAY_ADDRESS") else "local"
    try:
        ray.init(
            address=address, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"No Ray cluster answers at {os.environ.get('RAY_ADDRESS', address)} "
            f"({(str(error).splitlines() or ['no reason given'])[0]}). Start one with ray start, "
            "or unset RAY_ADDRESS to have one on this machine."
        ) from error


def _shard(job: Job, number: int, threads: int, place: str) -> Done:
    """Encode one shard; a process of Ray does many, and loads the model once."""
    if Path(place).is_dir():
        os.chdir(place)
    use_threads(threads)
    heard = _Heard()
    _encoder(job).encode([number], heard)
    return heard.done


@lru_cache(maxsize=1)
def _encoder(job: Job) -> ShardEncoder:
    return ShardEncoder(job)


class _Heard:
    """Keeps what the pipeline tells of one shard."""

    done: Done

    def told(self, done: Done) -> None:
        self.done = done

    def ticked(self, number: int, documents: int) -> None:
        """A task is told as a whole."""


def _ray() -> Any:  # noqa: ANN401  # Ray has no stubs
    try:
        import ray
    except ImportError as error:
        raise UserError(
            f"--on ray was asked for, and Ray is not installed. Install it with: {install('ray')}"
        ) from error
    return ray
