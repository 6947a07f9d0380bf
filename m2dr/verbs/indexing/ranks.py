"""Processes that torchrun started, on one machine or many, share out the shards of one job."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace

from m2dr.errors import UserError
from m2dr.model.meeting import Meeting
from m2dr.verbs.indexing.pipeline import Job, ShardEncoder
from m2dr.verbs.indexing.tally import Tally

PATIENCE = 600.0  # seconds without a new shard, after which the others are given up
LOOK_EVERY = 1.0  # seconds between looks at the folder

_REFUSED = "refused"


def lead(meeting: Meeting, job: Job, numbers: Sequence[int], tally: Tally) -> None:
    """As rank 0: tell the others what there is to do, do a share, and wait for theirs.

    Raises:
        UserError: the shards of some ranks do not come.
    """
    layers = [plan.layer for _, plan in job.stores]
    meeting.put("shards", json.dumps([list(numbers), layers]))
    mine = numbers[:: meeting.size]
    if mine:
        ShardEncoder(job).encode(mine, tally)
    wait_for(job, [number for number in numbers if number not in set(mine)], numbers, meeting.size)


def refuse(meeting: Meeting) -> None:
    """As rank 0: send the others home, because there is nothing to do or nothing can be done."""
    meeting.put("shards", _REFUSED)


def follow(meeting: Meeting, job: Job, tally: Tally) -> None:
    """As another rank: do a share of what rank 0 names."""
    told = meeting.get("shards")
    if told == _REFUSED:
        return
    numbers, layers = json.loads(told)
    mine = numbers[meeting.rank :: meeting.size]
    if mine:
        # The other layers are finished, and nobody writes there any more.
        stores = tuple((folder, plan) for folder, plan in job.stores if plan.layer in layers)
        ShardEncoder(replace(job, stores=stores)).encode(mine, tally)


def wait_for(job: Job, missing: Sequence[int], numbers: Sequence[int], size: int) -> None:
    """Wait until other ranks have written these shards.

    Args:
        job: what they write.
        missing: the shards waited for.
        numbers: all shards, in the order in which they were dealt out.
        size: how many ranks there are.

    Raises:
        UserError: no shard came for `PATIENCE` seconds; names whose are missing.
    """
    left, last = list(missing), time.monotonic()
    while left:
        still = [number for number in left if job.lacks(number)]
        if len(still) < len(left):
            left, last = still, time.monotonic()
        elif time.monotonic() - last > PATIENCE:
            raise UserError(_missing(left, numbers, size))
        else:
            time.sleep(LOOK_EVERY)


def _missing(left: Sequence[int], numbers: Sequence[int], size: int) -> str:
    places = {number: place % size for place, number in enumerate(numbers)}
    ranks = sorted({places[number] for number in left})
    told = "; ".join(
        f"rank {rank}: shards {', '.join(str(n) for n in left if places[n] == rank)}"
        for rank in ranks
    )
    return (
        f"No shard of other ranks has come for {PATIENCE:,.0f} s, and some are missing ({told}). "
        "What is written stays; start all ranks again to go on from there."
    )
