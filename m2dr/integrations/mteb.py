"""Evaluate any cut of a model on the text tasks of MTEB.

Shapes: L layers, N texts, Q queries, H width, D dims of the cut.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from m2dr.core.arrays import Float32
from m2dr.core.errors import UserError, counted, nearest, require
from m2dr.core.files import atomic_path, lock_folder
from m2dr.core.progress import progress
from m2dr.core.records import Cut
from m2dr.core.report import Report, timed
from m2dr.core.requests import MtebRequest
from m2dr.evaluation.grid import Grid, as_json, text_tables, write_grid
from m2dr.index.vectors import prefixes
from m2dr.model.checkpoint import read_card
from m2dr.tasks.encoder import Encoder
from m2dr.tasks.models import cuts_of, names_of, newest_model
from m2dr.tasks.query import document_layer


class _Cache:
    """The vectors of the texts of a task at all layers of a grid; each text is encoded once.

    They stay in memory: 4 bytes × layers × texts × width.
    """

    def __init__(self, cuts: Sequence[Cut], document_layers: Iterable[int]) -> None:
        self.documents, self.others = sorted(set(document_layers)), sorted({c.layer for c in cuts})
        # Of a kind of text and a prompt: text -> row, and the vectors [L, n, H].
        self.rows: dict[tuple[str, str | None], dict[str, int]] = defaultdict(dict)
        self.vectors: dict[tuple[str, str | None], Float32] = {}


class MtebEncoder(Encoder):
    """One cut of a grid, which shares the vectors of texts with the others."""

    _cache: _Cache

    def grid(self, cuts: Sequence[Cut]) -> "dict[Cut, MtebEncoder]":
        """Return an encoder of each cut, none deeper than this one; they share their vectors."""
        cache = _Cache(cuts, (document_layer(self.card, cut.layer) for cut in cuts))
        self.__dict__.pop("mteb_model_meta", None)
        return {cut: self._with(layer=cut.layer, dim=cut.dim, _cache=cache) for cut in cuts}  # type: ignore[misc]  # of this class

    def encode(  # type: ignore[override]  # as MTEB calls it
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any = None,  # mteb's TaskMetadata
        prompt_type: str | None = None,
        **_: object,
    ) -> Float32:
        """Return the vectors of the texts of all batches, [N, D], in their order.

        Args:
            inputs: batches, each with a list of texts under `text`.
            task_metadata: of the task, which decides the prompt.
            prompt_type: query, document or None.

        Raises:
            UserError: a batch holds no text.
        """
        texts, side, prompt = self.of_mteb(inputs, task_metadata, prompt_type)
        cache, kind = self._cache, str(getattr(prompt_type, "value", prompt_type))
        layers = cache.documents if kind == "document" else cache.others
        rows = cache.rows[kind, prompt]
        new = [text for text in dict.fromkeys(texts) if text not in rows]
        if new or (kind, prompt) not in cache.vectors:
            # At full width, so that the cuts of a grid can share it.
            parts = [self.vectors(new, side, layers, dim=self.card.width, prompt=prompt)]
            if (kind, prompt) in cache.vectors:
                parts.insert(0, cache.vectors[kind, prompt])
            rows.update((text, number) for number, text in enumerate(new, start=len(rows)))
            cache.vectors[kind, prompt] = np.concatenate(parts, axis=1)
        layer = layers.index(self.document_layer if kind == "document" else self.layer)
        vectors = cache.vectors[kind, prompt][layer, [rows[text] for text in texts]]
        return prefixes(vectors, self.dim, self.card.similarity)


@dataclass(frozen=True)
class MtebScore:
    """The main score of a task on one of its splits, the mean over its subsets."""

    task: str
    split: str
    measure: str
    value: float


@dataclass(frozen=True)
class MtebReport(Report):
    """The scores of a grid of cuts, and the folder of MTEB's result files."""

    model: str
    scores: Mapping[Cut, Sequence[MtebScore]]
    grids: tuple[Grid, ...]  # one for each task and split
    folder: Path

    def __str__(self) -> str:
        cuts = tuple(self.scores)
        parts = [f"{text_tables([grid], grid.measures[:1])}\n" for grid in self.grids]
        if len(cuts) == 1:
            parts = [
                f"{score.value:.4f}  {score.measure} of {score.task}, split {score.split}"
                for score in self.scores[cuts[0]]
            ]
        measured = str(cuts[0]) if len(cuts) == 1 else counted(len(cuts), "cuts")
        end = f"{measured} of {self.model}, {self.seconds:,.0f} s; all in {self.folder}"
        return "\n".join([*parts, end])

    def record(self) -> dict[str, object]:
        """Return the grids with the names that their files have, and the scores of each cut."""
        scores = [
            {"layer": cut.layer, "dim": cut.dim, **asdict(score)}
            for cut, of_cut in self.scores.items()
            for score in of_cut
        ]
        report = {"model": self.model, "folder": self.folder, "seconds": self.seconds}
        return {"grids": [as_json(grid) for grid in self.grids], "scores": scores, **report}


@timed
def evaluate_mteb(request: MtebRequest) -> MtebReport:
    """Run tasks of MTEB at every asked cut of a model; write MTEB's result of each, and grids.

    The texts of a task are encoded once, at all layers.

    Raises:
        UserError: mteb is not installed, a task is unknown, its data cannot be loaded, or the
            model has no such cut.
    """
    require("mteb")  # whose import takes ten seconds
    model = request.model or newest_model()
    card = read_card(model)
    layers, dims = request.layers or (card.full.layer,), request.dims or (card.full.dim,)
    cuts = cuts_of(card, layers, dims)  # before mteb loads
    tasks = [_task(name) for name in request.tasks]
    how: dict[str, Any] = {"device": request.device, "dtype": request.dtype}
    encoder = MtebEncoder(model, max(cuts).layer, **how)
    (name,) = names_of([model])
    folder = request.out / "mteb" / name
    scores: dict[Cut, list[MtebScore]] = {cut: [] for cut in cuts}
    grids: list[Grid] = []
    with lock_folder(folder):
        for task in tasks:
            encoders = encoder.grid(cuts)
            with progress(f"{task.metadata.name} of MTEB", len(cuts), "cuts") as advance:
                by_cut = {}
                for cut, one in encoders.items():
                    by_cut[cut] = run_task(one, task, folder / str(cut))
                    scores[cut] += by_cut[cut]
                    advance(1)
            cache = encoders[cuts[0]]._cache
            assert cache is not None  # `grid` has set it
            texts = len({text for rows in cache.rows.values() for text in rows})
            for place in sorted({(s.task, s.split) for of_cut in by_cut.values() for s in of_cut}):
                cells = {
                    cut: {s.measure: s.value for s in of_cut if s.split == place[1]}
                    for cut, of_cut in by_cut.items()
                }
                grids.append(Grid(name, *place, texts, cells, unit="texts"))
        for grid in grids:
            write_grid(grid, request.out / grid.corpus / grid.split / grid.model)
    return MtebReport(name, scores, tuple(grids), folder)


def run_task(encoder: Encoder, task: Any, folder: Path) -> list[MtebScore]:  # mteb's AbsTask
    """Evaluate on a task whose data are loaded, and write MTEB's result as `folder/TASK.json`."""
    import mteb

    model: Any = encoder  # of no class of mteb's
    results = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False)
    (result,) = results.task_results
    with atomic_path(folder / f"{result.task_name}.json") as unfinished:
        result.to_disk(unfinished)
    measure = task.metadata.main_score
    means = {
        split: float(np.mean([subset["main_score"] for subset in subsets]))
        for split, subsets in result.scores.items()
    }
    return [MtebScore(result.task_name, split, measure, mean) for split, mean in means.items()]


def _task(name: str) -> Any:  # mteb's AbsTask
    """Return a task of MTEB and load its data."""
    import mteb

    try:
        task = mteb.get_task(name)
    except KeyError:
        known = sorted(task.metadata.name for task in mteb.get_tasks(exclude_superseded=False))
        raise UserError(f"MTEB has no task {name!r}. {nearest(name, known)}") from None
    try:
        task.load_data()
    except Exception as error:  # whatever the hub, the network or the disk may raise
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(f"The data of MTEB's {name} cannot be loaded ({reason}).") from error
    return task
