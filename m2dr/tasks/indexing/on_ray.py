"""Ray: shards as tasks of a cluster."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from m2dr.core.errors import UserError, require
from m2dr.model.devices import use_threads
from m2dr.tasks.indexing.workers import Output, Work

RETRIES = 3  # of a shard whose worker was lost
CPUS = 4  # of a task, where the number of workers is not given
# Environment that workers need from the command; m2dr.cli sets it.
INHERITED = ("MKL_CBWR", "OMP_WAIT_POLICY", "TOKENIZERS_PARALLELISM", "M2DR_DATA")


def map_on_ray(work: Work[Output], numbers: Sequence[int], count: int) -> Iterator[Output]:
    """Yield shards as tasks of Ray give them: `count` at a time, or as many as there is room for.

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
        task = ray.remote(_run).options(
            max_retries=RETRIES,
            runtime_env={"env_vars": {n: os.environ[n] for n in INHERITED if n in os.environ}},
            num_cpus=1 if gpus else threads,
            num_gpus=1 if gpus else 0,
        )
        coming, waiting = list(numbers)[::-1], list[object]()
        while coming or waiting:
            while coming and (count == 1 or len(waiting) < count):
                one = (work.run, work.device, coming.pop(), threads, str(Path.cwd()))
                waiting.append(task.remote(*one))
            ready, waiting = ray.wait(waiting)
            for reference in ready:
                try:
                    yield from ray.get(reference)
                except ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None)
                    told = f"The worker of a shard was lost again and again ({error})."
                    raise UserError(str(cause) if isinstance(cause, UserError) else told) from error


def _run(
    run: Callable[[str, Sequence[int]], list[Output]],
    device: str,
    number: int,
    threads: int,
    folder: str,
) -> list[Output]:
    """Make one shard in a process of Ray, which does many."""
    if Path(folder).is_dir():
        os.chdir(folder)
    use_threads(threads)
    return run(device, [number])


@contextmanager
def _ray() -> Iterator[Any]:
    """Join the Ray cluster at RAY_ADDRESS, or start one on this machine; leave it at the end."""
    require("ray")
    import ray

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
