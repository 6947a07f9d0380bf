"""How much is multiplied at once, on a processor and on a card."""

from dataclasses import dataclass, replace

from m2dr.index.exact.gathered import RUN

_MANY = 2048  # queries, of which the scores with a tile would leave any cache


@dataclass(frozen=True)
class Sizes:
    """Scores should stay in a cache, and calls be worth their cost."""

    queries: int  # of a chunk, at most
    few: int  # queries for each thread: fewer than these are not divided among threads
    scores: int  # of a chunk with a tile, about
    tile: range  # of documents: the fewest and the most; multiples of RUN
    span: int  # documents, at most, whose scores are kept until the best are picked out

    def are_few(self, queries: int, threads: int) -> bool:
        """Whether threads had better divide documents than queries."""
        return queries < min(self.few * threads, _MANY)

    def within(self, rows: int) -> "Sizes":
        """The same, with tiles of at most so many rows, as far as the fewest allow."""
        start, stop = self.tile.start, self.tile.stop
        return replace(self, tile=range(start, max(start, min(stop, rows))))

    def of_tile(self, queries: int) -> int:
        """Rows of a tile for a chunk of so many queries."""
        rows = self.scores // max(queries, 1) // RUN * RUN
        return min(max(rows, self.tile.start), self.tile.stop)


PROCESSOR = Sizes(queries=1024, few=192, scores=2**20, tile=range(1024, 4096), span=2**16)
CARD = Sizes(queries=4096, few=0, scores=2**26, tile=range(2**14, 2**24), span=2**16)


def sizes(device: str) -> Sizes:
    """What suits a device, as torch names it."""
    return PROCESSOR if device == "cpu" else CARD
