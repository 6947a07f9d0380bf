"""Evaluate any cut of a model on the text tasks of MTEB.

Shapes: L layers, N texts, Q queries, H width, D dims of the cut.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, counted, missing, nearest
from m2dr.core.files import atomic_path, lock_folder, read_json
from m2dr.core.progress import progress
from m2dr.core.records import Cut, Side
from m2dr.core.requests import MtebRequest
from m2dr.evaluate.grid import Grid, as_json, text_table, write_grid
from m2dr.index.vectors import prefixes
from m2dr.model.checkpoint import read_card
from m2dr.model.hub import find_folder
from m2dr.model.st_folder import MODEL_SETTINGS
from m2dr.tasks.encoder import Encoder, cuts_of, document_layer, names_of, newest_model

Vectors = NDArray[np.float32]
SIDES = ("query", "document")  # what MTEB calls a text, where it calls it anything


class _Cache:
    """The vectors of the texts of a task at all layers of a grid; each text is encoded once.

    They stay in memory: 4 bytes × layers × texts × width.
    """

    def __init__(self, cuts: Sequence[Cut], document_layers: Iterable[int]) -> None:
        self.documents, self.others = sorted(set(document_layers)), sorted({c.layer for c in cuts})
        # Of a kind of text and a prompt: text -> row, and the vectors [L, n, H].
        self.rows: dict[tuple[str, str | None], dict[str, int]] = defaultdict(dict)
        self.vectors: dict[tuple[str, str | None], Vectors] = {}


class MtebEncoder(Encoder):
    """One cut of a model, with the interface of MTEB's EncoderProtocol.

    Texts that MTEB calls queries get the query prefix and length of the model, documents those of
    documents. All others, such as both sentences of a pair, are encoded as documents by the layer
    of the cut, as in `m2dr evaluate sts`.

    A prompt of the model for the task takes the place of the prefix: of the `prompts` in its
    config_sentence_transformers.json the one that MTEB chooses, by the name of the task, by its
    type, or by these and `-query` or `-document`.

        mteb.evaluate(MtebEncoder("models/full-dim", layer=4, dim=128), mteb.get_task("STS12"))
    """

    def __init__(
        self,
        model: str,
        layer: int | None = None,
        dim: int | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
    ) -> None:
        """Load the layers that the cut needs; arguments and errors as `Encoder`.

        Args:
            model: folder or id.
            layer: layers that queries run through.
            dim: dims to keep.
            device: auto, cpu, cuda or cuda:N.
            dtype: auto, fp32 or bf16.
        """
        super().__init__(model, layer, dim, device=device, dtype=dtype)
        path = find_folder(model) / MODEL_SETTINGS
        prompts = (read_json(path).get("prompts") if path.is_file() else None) or {}
        self._prompts = {name: text for name, text in prompts.items() if isinstance(text, str)}
        self._cache: _Cache | None = None

    def grid(self, cuts: Sequence[Cut]) -> "dict[Cut, MtebEncoder]":
        """Return an encoder of each cut, none deeper than this one; they share their vectors."""
        cache = _Cache(cuts, (document_layer(self.card, cut.layer) for cut in cuts))
        encoders = {}
        for cut in cuts:
            encoders[cut] = copy(self)
            encoders[cut].__dict__.pop("mteb_model_meta", None)
            encoders[cut].layer, encoders[cut].dim = cut.layer, cut.dim
            encoders[cut]._cache = cache
        return encoders

    def encode(  # type: ignore[override]  # as MTEB calls it
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any = None,  # mteb's TaskMetadata
        prompt_type: str | None = None,
        **_: object,
    ) -> Vectors:
        """Return the vectors of the texts of all batches, [N, D], in their order.

        Args:
            inputs: batches, each with a list of texts under `text`.
            task_metadata: of the task, which decides the prompt.
            prompt_type: query, document or None.

        Raises:
            UserError: a batch holds no text.
        """
        batches = list(inputs)
        if any("text" not in batch for batch in batches):
            raise UserError("The task has inputs without a text, and m2dr encodes text alone.")
        texts = [text for batch in batches for text in batch["text"]]
        # MTEB's prompt type is an enum whose value is one of these words.
        kind = str(getattr(prompt_type, "value", prompt_type))
        prompt = self._prompt(task_metadata, kind)
        cache = self._cache or _Cache([Cut(self.layer, self.dim)], [self.document_layer])
        layers = cache.documents if kind == "document" else cache.others
        rows = cache.rows[kind, prompt]
        new = [text for text in dict.fromkeys(texts) if text not in rows]
        if new or (kind, prompt) not in cache.vectors:
            whole = copy(self)  # at full width, so that the cuts of a grid can share it
            whole.dim = self.card.width
            if prompt is not None:
                whole.card = replace(self.card, query_prefix=prompt, document_prefix=prompt)
            side: Side = "query" if kind == "query" else "document"
            parts = [whole.vectors(new, side, layers)]
            if (kind, prompt) in cache.vectors:
                parts.insert(0, cache.vectors[kind, prompt])
            rows.update((text, number) for number, text in enumerate(new, start=len(rows)))
            cache.vectors[kind, prompt] = np.concatenate(parts, axis=1)
        layer = layers.index(self.document_layer if kind == "document" else self.layer)
        vectors = cache.vectors[kind, prompt][layer, [rows[text] for text in texts]]
        return prefixes(vectors, self.dim, self.card.similarity)

    def _prompt(self, task: Any, kind: str) -> str | None:  # mteb's TaskMetadata
        """Return what stands before the texts of a task; None for the prefix of the model."""
        if task is None or not self._prompts:
            return None
        library()
        from mteb.models.abs_encoder import get_prompt_name
        from mteb.types import PromptType

        type_ = PromptType(kind) if kind in SIDES else None
        name = get_prompt_name(self._prompts, task, type_)
        # Those of SIDES are the prefixes of the model.
        return None if name is None or name in SIDES else self._prompts[name]

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Vectors:  # arrays or tensors
        """Return the scores [Q, N] of all pairs of vectors, [Q, D] and [N, D]."""
        scores: Vectors = _rows(embeddings1) @ _rows(embeddings2).T
        return scores

    def similarity_pairwise(
        self, embeddings1: Any, embeddings2: Any
    ) -> Vectors:  # arrays or tensors
        """Return the score [N] of each pair of rows of two arrays, both [N, D]."""
        scores: Vectors = (_rows(embeddings1) * _rows(embeddings2)).sum(axis=1)
        return scores

    @cached_property
    def mteb_model_meta(self) -> Any:  # mteb's ModelMeta, which is not imported here
        """Metadata that MTEB writes with scores; the revision is the sha256 of the weights."""
        from m2dr.model.checkpoint import load
        from m2dr.model.encoder import parameters_of

        card, cut = self.card, Cut(self.layer, self.dim)
        deepest = max(self.layer, self.document_layer)
        meta = library().models.ModelMeta.create_empty().model_dump()
        return library().models.ModelMeta(
            **meta
            | {
                "name": f"m2dr/{names_of([self.name])[0]}-{cut}",
                "revision": card.fingerprint,
                "n_parameters": parameters_of(load(self.name, deepest)[0], deepest),
                "embed_dim": cut.dim,
                "max_tokens": max(card.query_length, card.document_length),
                "similarity_fn_name": card.similarity,
                "framework": ["PyTorch"],
                "use_instructions": bool(card.query_prefix or card.document_prefix),
            }
        )


@dataclass(frozen=True)
class MtebScore:
    """The main score of a task on one of its splits, the mean over its subsets."""

    task: str
    split: str
    measure: str
    value: float


@dataclass(frozen=True)
class MtebReport:
    """The scores of a grid of cuts, and the folder of MTEB's result files."""

    model: str
    scores: Mapping[Cut, Sequence[MtebScore]]
    grids: tuple[Grid, ...]  # one for each task and split
    folder: Path
    seconds: float

    def __str__(self) -> str:
        cuts = tuple(self.scores)
        parts = [f"{text_table(grid, grid.measures[0])}\n" for grid in self.grids]
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


def evaluate_mteb(request: MtebRequest) -> MtebReport:
    """Run tasks of MTEB at every asked cut of a model; write MTEB's result of each, and grids.

    The texts of a task are encoded once, at all layers.

    Raises:
        UserError: mteb is not installed, a task is unknown, its data cannot be loaded, or the
            model has no such cut.
    """
    begun = time.monotonic()
    require_mteb()
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
    return MtebReport(name, scores, tuple(grids), folder, time.monotonic() - begun)


def run_task(encoder: MtebEncoder, task: Any, folder: Path) -> list[MtebScore]:  # mteb's AbsTask
    """Evaluate on a task whose data are loaded, and write MTEB's result as `folder/TASK.json`."""
    results = library().evaluate(
        encoder, task, cache=None, co2_tracker=False, show_progress_bar=False
    )
    (result,) = results.task_results
    with atomic_path(folder / f"{result.task_name}.json") as unfinished:
        result.to_disk(unfinished)
    measure = task.metadata.main_score
    means = {
        split: float(np.mean([subset["main_score"] for subset in subsets]))
        for split, subsets in result.scores.items()
    }
    return [MtebScore(result.task_name, split, measure, mean) for split, mean in means.items()]


def library() -> Any:  # a module without stubs
    """Import mteb.

    Raises:
        UserError: it is not installed.
    """
    require_mteb()
    import mteb

    return mteb


def require_mteb() -> None:
    """Raise UserError if mteb is not installed, without importing it, which takes ten seconds."""
    if find_spec("mteb") is None:
        raise missing("mteb", "mteb")


def _task(name: str) -> Any:  # mteb's AbsTask
    """Return a task of MTEB and load its data."""
    try:
        task = library().get_task(name)
    except KeyError:
        known = sorted(task.metadata.name for task in library().get_tasks(exclude_superseded=False))
        raise UserError(f"MTEB has no task {name!r}. {nearest(name, known)}") from None
    try:
        task.load_data()
    except Exception as error:  # whatever the hub, the network or the disk may raise
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(f"The data of MTEB's {name} cannot be loaded ({reason}).") from error
    return task


def _rows(vectors: Any) -> Vectors:  # an array, or a tensor on any device
    array = vectors.cpu() if hasattr(vectors, "cpu") else vectors
    return np.atleast_2d(np.asarray(array, np.float32))
