"""What encoding has done so far: documents, bytes, and the seconds of each stage."""

from dataclasses import dataclass, field

from m2dr.verbs.indexing.pipeline import Done
from m2dr.verbs.progress import Advance

STAGES = ("tokenise", "run", "write")


@dataclass
class Tally:
    """Sums over the shards that are written, whichever process did so."""

    advance: Advance = lambda _: None
    documents: int = 0
    bytes: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    _ticked: dict[int, int] = field(default_factory=dict)  # documents run of shards under way

    def told(self, done: Done) -> None:
        """A shard is written."""
        self.advance(done.documents - self._ticked.pop(done.number, 0))
        self.documents += done.documents
        self.bytes += done.bytes
        for stage in STAGES:
            self.seconds[stage] += getattr(done, stage)

    def ticked(self, number: int, documents: int) -> None:
        """Some documents of a shard have been run."""
        self._ticked[number] = self._ticked.get(number, 0) + documents
        self.advance(documents)

    def lost(self, number: int) -> None:
        """Whoever had a shard has ended, and it is to be done again."""
        self.advance(-self._ticked.pop(number, 0))

    def written(self) -> str:
        """Bytes so far, for people."""
        return f"{self.bytes / 1e6:,.1f} MB written"

    def summary(self) -> str:
        """Rates by stage and which one the others waited for; stages overlap, so sums exceed."""
        parts = [
            f"{stage} {seconds:,.1f} s ({self.documents / max(seconds, 1e-9):,.0f}/s)"
            for stage, seconds in self.seconds.items()
        ]
        slowest = max(STAGES, key=lambda stage: self.seconds[stage])
        return (
            f"Stages: {', '.join(parts)}; {self.bytes / 1e6:,.1f} MB of vectors. "
            f"The slowest is {slowest}."
        )
