"""Exchange small objects between the ranks of a torchrun job."""

import time
from datetime import timedelta

from torch.distributed.rendezvous import rendezvous

from m2dr.core.errors import UserError

JOIN_TIMEOUT = 600.0  # seconds in which all ranks must have started
WORK_TIMEOUT = 86400.0  # seconds in which all ranks must have done their share of some work
_LONGEST_PAUSE = 1.0  # seconds between two looks at the store; a waiting rank can be stopped


class RankGroup:
    """The ranks of a job, and a store of short texts by key that all of them read and write.

    Attributes:
        rank: number of this process, from 0.
        size: how many ranks there are.
    """

    def __init__(self) -> None:
        try:
            found = next(iter(rendezvous("env://", timeout=timedelta(seconds=JOIN_TIMEOUT))))
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"The processes did not find each other ({str(error).splitlines()[0]}). Start them "
                "with torchrun."
            ) from error
        self._store, self.rank, self.size = found

    def put(self, name: str, text: str) -> None:
        """Store a text under a name."""
        self._store.set(f"m2dr/{name}", text)

    def get(self, name: str, seconds: float = JOIN_TIMEOUT) -> str:
        """Wait for the text that some rank stores under a name, and return it.

        Raises:
            UserError: it was not stored in time, or the rank that holds the store has ended.
        """
        begun = time.monotonic()
        try:
            self._wait(f"m2dr/{name}", seconds)
            text: str = self._store.get(f"m2dr/{name}").decode()
        except (RuntimeError, TimeoutError) as error:
            spent = time.monotonic() - begun
            raise self._alone(f"waited {spent:,.0f} s for the others in vain") from error
        return text

    def take(self, name: str) -> str | None:
        """Return and remove the text under a name, or None where there is none yet.

        Raises:
            UserError: the rank that holds the store has ended.
        """
        key = f"m2dr/{name}"
        try:
            if not self._store.check([key]):
                return None
            text: str = self._store.get(key).decode()
            self._store.delete_key(key)
        except RuntimeError as error:
            raise self._alone("has lost the others") from error
        return text

    def barrier(self, name: str) -> None:
        """Wait until every rank has called this with the same name.

        Raises:
            UserError: as `get` does.
        """
        self.put(f"{name}/{self.rank}", "here")
        for rank in range(self.size):
            self.get(f"{name}/{rank}", WORK_TIMEOUT)

    def broadcast(self, name: str, text: str) -> str:
        """Return the text of rank 0; those of the other ranks are ignored.

        Raises:
            UserError: as `get` does.
        """
        if self.rank == 0:
            self.put(name, text)
        return self.get(name, WORK_TIMEOUT)

    def _alone(self, what: str) -> UserError:
        return UserError(
            f"Process {self.rank} of {self.size} {what}. Read the messages of the others, then "
            "start all of them again."
        )

    def _wait(self, key: str, seconds: float) -> None:
        """Poll the store for a key: no signal would reach a process that waits inside the store."""
        until, pause = time.monotonic() + seconds, _LONGEST_PAUSE / 100
        while not self._store.check([key]):
            if time.monotonic() > until:
                raise TimeoutError
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
