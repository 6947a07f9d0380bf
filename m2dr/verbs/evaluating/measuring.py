"""One model on one corpus: what is missing is ranked and measured, and joined with what is not."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from m2dr.errors import Interrupted, counted
from m2dr.evaluate.alarms import (
    depth_alarms,
    grid_alarms,
    model_alarms,
    query_alarms,
    ranking_alarms,
)
from m2dr.evaluate.grid import Grid
from m2dr.evaluate.measures import overall
from m2dr.evaluate.parts import Part, PartFile, joined
from m2dr.evaluate.runfiles import write_qrels, write_run
from m2dr.evaluate.scores import QueryScores, write_scores
from m2dr.model import checkpoint
from m2dr.records.card import ModelCard
from m2dr.records.cut import Cut
from m2dr.records.run import Run
from m2dr.verbs.evaluating.pairing import Pairing
from m2dr.verbs.evaluating.ranking import Ranker, Task
from m2dr.verbs.models import document_layer, label_of
from m2dr.verbs.progress import say

Runs = Literal["whole", "all", "none"]


@dataclass(frozen=True)
class Measuring:
    """Measures grids of one model on one corpus, whose documents are encoded."""

    ranker: Ranker
    runs: Runs  # which cuts' runs are written
    again: bool  # what was measured before is measured again

    def grid(self, name: str, pairing: Pairing, folder: Path) -> Grid:
        """Measure what of a pairing was not measured before; write runs and scores.

        Raises:
            Interrupted: Ctrl-C; the layers measured so far are kept.
        """
        files = {pair: self._file(pair, folder) for pair in pairing.layers.items()}
        known = {} if self.again else self._known(files, folder)
        missing = [pair for pair in files if pair not in known]
        if known:
            done = ", ".join(str(layer) for layer, _ in known)
            say(f"{name}: layers {done} were measured before; --again measures them again")
        try:
            for pair, part in self._measured(missing, files, folder, name):
                known[pair] = part
        except KeyboardInterrupt:
            raise Interrupted(
                f"Measuring stopped after {len(known)} of {counted(len(files), 'layers')}; the "
                "same command goes on from there."
            ) from None
        parts = [known[pair] for pair in files]
        scores = joined(parts)
        write_scores(list(scores.values()), folder)
        return self._joined(name, pairing, scores, parts)

    def _file(self, pair: tuple[int, int], folder: Path) -> PartFile:
        return PartFile(folder, *pair, self.ranker.question(*pair))

    def _known(
        self, files: Mapping[tuple[int, int], PartFile], folder: Path
    ) -> dict[tuple[int, int], Part]:
        """The parts that are there with the runs that are wanted."""
        found = {}
        for pair, file in files.items():
            cuts = [Cut(pair[0], dim) for dim in self.ranker.dims]
            wanted = [cut for cut in cuts if self._keeps(cut, files)]
            part = file.read()
            if part and all(_run(folder, cut).exists() for cut in wanted):
                found[pair] = part
        return found

    def _measured(
        self,
        pairs: Sequence[tuple[int, int]],
        files: Mapping[tuple[int, int], PartFile],
        folder: Path,
        name: str,
    ) -> Iterator[tuple[tuple[int, int], Part]]:
        def keep(cut: Cut, run: Callable[[], Run]) -> None:
            if self._keeps(cut, files):
                write_qrels(self.ranker.task.judgements, _run(folder, cut).with_name("qrels.tsv"))
                write_run(run(), _run(folder, cut), tag=_tag(name))

        for pair in pairs:
            files[pair].forget()
        for pair, part in self.ranker.parts(pairs, keep) if pairs else ():
            files[pair].write(part)
            yield pair, part

    def _keeps(self, cut: Cut, files: Mapping[tuple[int, int], PartFile]) -> bool:
        whole = Cut(max(layer for layer, _ in files), max(self.ranker.dims))
        return self.runs == "all" or (self.runs == "whole" and cut == whole)

    def _joined(
        self,
        name: str,
        pairing: Pairing,
        scores: Mapping[str, QueryScores],
        parts: Sequence[Part],
    ) -> Grid:
        cuts = next(iter(scores.values())).cuts
        cells = {
            cut: {
                measure: overall(measure, one.at(cut).tolist()) for measure, one in scores.items()
            }
            for cut in cuts
        }
        task, card = self.ranker.task, self.ranker.card
        queries = len(next(iter(scores.values())).query_ids)
        place = (name, task.dataset.name, task.split, queries, cells)
        notes = tuple(_notes(task, card, pairing))
        alarms = [*grid_alarms(Grid(*place)), *self._alarms(parts, cuts, tuple(scores), queries)]
        return Grid(*place, notes, alarms=tuple(alarms))

    def _alarms(
        self, parts: Sequence[Part], cuts: Sequence[Cut], measures: Sequence[str], queries: int
    ) -> Iterator[str]:
        ranker, store = self.ranker, next(iter(self.ranker.stores.values()))
        facts = parts[0].facts
        tied = {cut: count for part in parts for cut, count in part.tied.items()}
        empty = {cut: count for part in parts for cut, count in part.empty.items()}
        depth = min(ranker.depth, store.documents - ranker.task.dataset.drops_own_document)
        yield from ranking_alarms(tied, empty, queries - facts["unanswered"])
        yield from depth_alarms(measures, depth, store.documents)
        yield from query_alarms(queries, **facts)
        card = checkpoint.read_card(ranker.model) if ranker.exits else ranker.card
        differences = store.manifest.label.differences(label_of(card, ranker.model))
        yield from model_alarms(ranker.card, cuts, differences)


def _notes(task: Task, card: ModelCard, pairing: Pairing) -> Iterator[str]:
    if task.dataset.drops_own_document:
        yield "the query's own document is dropped from its ranking"
    if set(pairing.layers.values()) != set(pairing.layers) and pairing.is_fixed:
        yield f"documents are encoded by layer {pairing.documents} whatever the query's layer"
    if any(document_layer(card, own) != other for own, other in pairing.layers.items()):
        yield (
            "the model was trained with documents of "
            f"{'the last layer' if card.documents == 'last' else 'the same layer as the query'}"
        )


def _run(folder: Path, cut: Cut) -> Path:
    return folder / "runs" / f"{cut}.trec"


def _tag(name: str) -> str:
    return "".join(char if char.isalnum() or char in "-_." else "-" for char in name)
