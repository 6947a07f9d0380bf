"""Where the processes that torchrun started tell each other a few words."""

from datetime import timedelta

from torch.distributed.rendezvous import rendezvous

from m2dr.errors import UserError

JOIN = 600.0  # seconds in which all processes must have begun


class Meeting:
    """Short texts under names, that any process puts down and the others wait for.

    Attributes:
        rank: of this process.
        size: how many there are.
    """

    def __init__(self) -> None:
        try:
            found = next(iter(rendezvous("env://", timeout=timedelta(seconds=JOIN))))
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"The processes did not find each other ({str(error).splitlines()[0]}). Start them "
                "with torchrun."
            ) from error
        self._store, self.rank, self.size = found

    def put(self, name: str, text: str) -> None:
        """Tell the others."""
        self._store.set(f"m2dr/{name}", text)

    def get(self, name: str, seconds: float = JOIN) -> str:
        """Wait for what another process puts down.

        Raises:
            UserError: it did not come in time, or that process has ended.
        """
        try:
            self._store.wait([f"m2dr/{name}"], timedelta(seconds=seconds))
            text: str = self._store.get(f"m2dr/{name}").decode()
        except RuntimeError as error:
            raise UserError(
                f"Process {self.rank} of {self.size} waited {seconds:,.0f} s for the others in "
                "vain. Look at what they said, then start all of them again."
            ) from error
        return text

    def all_here(self, name: str) -> None:
        """Wait until every process has come to this place.

        Raises:
            UserError: as `get` does.
        """
        self.put(f"{name}/{self.rank}", "here")
        for rank in range(self.size):
            self.get(f"{name}/{rank}")

    def agree(self, name: str, text: str) -> str:
        """Return what the first process says; the texts of the others are not looked at."""
        if self.rank == 0:
            self.put(name, text)
        return self.get(name)
