"""What was measured so far, layer by layer, so that a killed evaluation goes on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from m2dr.errors import UserError
from m2dr.evaluate.ranks import Floats
from m2dr.evaluate.scores import QueryScores, load_scores, save_scores
from m2dr.records.cut import Cut

PARTS = "parts"
FORMAT = 1  # raise it when a measure or an alarm is computed otherwise than yesterday
_DIGITS = 16  # of the digest, in file names


@dataclass(frozen=True, eq=False)
class Part:
    """The cuts of one query layer against documents of one layer."""

    scores: Mapping[str, QueryScores]  # by measure
    tied: Mapping[Cut, int]  # queries to which all documents of the ranking are equally alike
    empty: Mapping[Cut, int]  # queries that found nothing
    facts: Mapping[str, int]  # of the split: what alarms are made of

    @classmethod
    def of(
        cls,
        query_ids: Sequence[str],
        values: Mapping[Cut, Mapping[str, Floats]],
        tied: Mapping[Cut, int],
        empty: Mapping[Cut, int],
        facts: Mapping[str, int],
    ) -> "Part":
        """Join the cuts.

        Args:
            query_ids: Q of them.
            values: cut -> measure -> [Q].
            tied: see Part.
            empty: see Part.
            facts: see Part.
        """
        cuts = tuple(sorted(values))
        measures = values[cuts[0]]
        scores = {
            name: QueryScores(
                name, cuts, tuple(query_ids), np.stack([values[cut][name] for cut in cuts])
            )
            for name in measures
        }
        return cls(scores, tied, empty, facts)


@dataclass(frozen=True)
class PartFile:
    """Where a part lies, under a name that only the same question has."""

    folder: Path  # of the grid
    layer: int  # of the queries
    document_layer: int
    question: Mapping[str, object]  # all that the numbers depend on, as JSON holds it

    @property
    def path(self) -> Path:
        """Its name ends in a digest of the question, so another question never finds it."""
        text = json.dumps({**self.question, "format": FORMAT}, sort_keys=True)
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
        return self.folder / PARTS / f"{self._stem}-{digest}.npz"

    @property
    def _stem(self) -> str:
        return f"queries-{self.layer:02d}-documents-{self.document_layer:02d}"

    def read(self) -> Part | None:
        """The part, or None where it must be measured (again)."""
        try:
            scores, facts = load_scores(self.path)
            cuts = next(iter(scores.values())).cuts
            tied, empty = (dict(zip(cuts, facts[key], strict=True)) for key in ("tied", "empty"))
            return Part(scores, tied, empty, facts["split"])
        except (UserError, KeyError, ValueError, TypeError, StopIteration):
            return None

    def forget(self) -> None:
        """Remove what answers this layer to any question, before files beside it change."""
        for path in (self.folder / PARTS).glob(f"{self._stem}-*.npz"):
            path.unlink(missing_ok=True)

    def write(self, part: Part) -> None:
        """Write the part, whole or not at all."""
        scores = list(part.scores.values())
        facts = {
            "tied": [part.tied[cut] for cut in scores[0].cuts],
            "empty": [part.empty[cut] for cut in scores[0].cuts],
            "split": dict(part.facts),
        }
        save_scores(scores, self.path, facts)


def joined(parts: Sequence[Part]) -> dict[str, QueryScores]:
    """Measure -> scores at the cuts of all parts, which share no cut and have the same queries."""
    found = {}
    for name, first in parts[0].scores.items():
        held = [part.scores[name] for part in parts]
        cuts = [cut for one in held for cut in one.cuts]
        order = sorted(range(len(cuts)), key=cuts.__getitem__)
        values = np.concatenate([one.values for one in held])[order]
        found[name] = QueryScores(name, tuple(cuts[i] for i in order), first.query_ids, values)
    return found
