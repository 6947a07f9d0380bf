"""Evaluate any cut of a model on the text tasks of MTEB.

Shapes: N texts, Q queries, D dims of the cut.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.core.arguments import mappings, strings
from m2dr.core.errors import UserError, install, nearest
from m2dr.core.files import atomic_path, lock_folder, read_json
from m2dr.core.progress import progress
from m2dr.core.records import Cut, Side
from m2dr.core.requests import MtebRequest
from m2dr.evaluate.grid import GRID, Grid, grid_record, write_csv, write_grid
from m2dr.index.vectors import prefixes
from m2dr.model.folder import read_card
from m2dr.model.hub import find_folder
from m2dr.model.sentence_transformers import MODEL_SETTINGS
from m2dr.tasks.encoder import Encoder, cuts_of, document_layer, names_of, newest_model

Vectors = NDArray[np.float32]
SIDES = ("query", "document")  # what MTEB calls a text, where it calls it anything
SLOT = "{instruction}"

_Side = tuple[str, str | None]  # query, document or None as a word, and the prompt
_Embed = Callable[[Sequence[str], Sequence[int]], Vectors]  # of texts at layers, [L, N, H]


class _Kept:
    """The vectors of the texts of a task at all layers of a grid; each text is encoded once.

    They stay in memory: 4 bytes × layers × texts × width.
    """

    def __init__(self, layers: Sequence[int], document_layers: Sequence[int]) -> None:
        """Take the layers of queries and other texts, and those of documents."""
        self._layers = {"document": tuple(document_layers)}
        self._other = tuple(layers)
        self._rows: dict[_Side, dict[str, int]] = defaultdict(dict)
        self._vectors: dict[_Side, Vectors] = {}  # [L, n, H]

    def vectors(self, side: _Side, texts: Sequence[str], layer: int, embed: _Embed) -> Vectors:
        """Return the vectors [N, H] of texts at one layer; `embed` encodes those that are new."""
        layers, rows = self._layers.get(side[0], self._other), self._rows[side]
        new = [text for text in dict.fromkeys(texts) if text not in rows]
        if new or side not in self._vectors:
            parts = [embed(new, layers)]
            parts = [self._vectors[side], *parts] if side in self._vectors else parts
            rows.update((text, number) for number, text in enumerate(new, start=len(rows)))
            self._vectors[side] = np.concatenate(parts, axis=1)
        found: Vectors = self._vectors[side][layers.index(layer), [rows[text] for text in texts]]
        return found

    @property
    def texts(self) -> int:
        """Number of distinct texts."""
        return len({text for rows in self._rows.values() for text in rows})


class MtebEncoder(Encoder):
    """One cut of a model, with the interface of MTEB's EncoderProtocol.

    Texts that MTEB calls queries get the query prefix and length of the model, documents those of
    documents. All others, such as both sentences of a pair, are encoded as documents by the layer
    of the cut, as in `m2dr evaluate sts`.

    A prompt of the model for the task takes the place of the prefix: of the `prompts` in its
    config_sentence_transformers.json the one that MTEB chooses, by the name of the task, by its
    type, or by these and `-query` or `-document`. With an `instruction`, as "Instruct:
    {instruction} Query: ", what MTEB says of the task stands before all texts but documents.

        mteb.evaluate(MtebEncoder("models/full-dim", layer=4, dim=128), mteb.get_task("STS12"))
    """

    def __init__(
        self,
        model: str,
        layer: int | None = None,
        dim: int | None = None,
        *,
        instruction: str = "",
        device: str = "auto",
        dtype: str = "auto",
    ) -> None:
        """Load the layers that the cut needs; arguments and errors as `Encoder`.

        Args:
            model: folder or id.
            layer: layers that queries run through.
            dim: dims to keep.
            instruction: what stands before a text, with {instruction} where the task's own goes;
                empty: instructions of tasks are not used.
            device: auto, cpu, cuda or cuda:N.
            dtype: auto, fp32 or bf16.
        """
        _check_instruction(instruction)
        super().__init__(model, layer, dim, device=device, dtype=dtype)
        self._instruction, self._prompts = instruction, _prompts_of(model)
        self._kept: _Kept | None = None

    def grid(self, cuts: Sequence[Cut]) -> "dict[Cut, MtebEncoder]":
        """Return an encoder of each cut, none deeper than this one; they share their vectors."""
        documents = {document_layer(self.card, cut.layer) for cut in cuts}
        kept = _Kept(sorted({cut.layer for cut in cuts}), sorted(documents))
        found = {}
        for cut in cuts:
            other = copy(self)
            other.__dict__.pop("mteb_model_meta", None)
            other.layer, other.dim, other._kept = cut.layer, cut.dim, kept
            found[cut] = other
        return found

    @property
    def texts_kept(self) -> int:
        """Number of distinct texts that the encoders of a grid have encoded."""
        return self._kept.texts if self._kept else 0

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
        batches = mappings(inputs, "batches")
        if any("text" not in batch for batch in batches):
            raise UserError(
                "The task has inputs without a text, and m2dr encodes text alone; choose a task "
                "whose modality is text."
            )
        texts = [text for batch in batches for text in strings(batch["text"], "texts")]
        # MTEB's prompt type is an enum whose value is one of these words.
        kind = str(getattr(prompt_type, "value", prompt_type))
        return self._encoded(texts, kind, self._prompt(task_metadata, kind))

    def _encoded(self, texts: Sequence[str], kind: str, prompt: str | None) -> Vectors:
        """Return vectors [N, D] of queries, documents or other texts; None: the model's prefix."""
        side: Side = "query" if kind == "query" else "document"
        layer = self.document_layer if kind == "document" else self.layer
        whole = copy(self)  # at full width, so that the cuts of a grid can share it
        whole.dim = self.card.width
        if prompt is not None:
            whole.card = replace(self.card, query_prefix=prompt, document_prefix=prompt)

        def embed(texts: Sequence[str], layers: Sequence[int]) -> Vectors:
            return whole.vectors(texts, side, layers)

        if self._kept is None:
            vectors = embed(texts, [layer])[0]
        else:
            vectors = self._kept.vectors((kind, prompt), texts, layer, embed)
        return prefixes(vectors, self.dim, self.card.similarity)

    def _prompt(self, task: Any, kind: str) -> str | None:  # mteb's TaskMetadata
        """Return what stands before the texts of a task; None for the prefix of the model."""
        if task is None or not (self._prompts or self._instruction):
            return None
        library()
        from mteb.models.abs_encoder import AbsEncoder, get_prompt_name
        from mteb.types import PromptType

        type_ = PromptType(kind) if kind in SIDES else None
        name = get_prompt_name(self._prompts, task, type_)
        if name is not None and name not in SIDES:  # those are the prefixes of the model
            return self._prompts[name]
        if not self._instruction or kind == "document":
            return None
        asks: Any = SimpleNamespace(prompts_dict=None, prompt_priority=AbsEncoder.prompt_priority)
        own = AbsEncoder.get_instruction(asks, task, type_)
        return self._instruction.replace(SLOT, own) if own else None

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

    def _parameters(self) -> int:
        """Return the number of weights that encode queries and documents of the cut."""
        from m2dr.model.checkpoint import load
        from m2dr.model.encoder import parameters_of

        deepest = max(self.layer, self.document_layer)
        return parameters_of(load(self.name, deepest)[0], deepest)

    @cached_property
    def mteb_model_meta(self) -> Any:  # mteb's ModelMeta, which is not imported here
        """Metadata that MTEB writes with scores; the revision is the sha256 of the weights."""
        card, cut = self.card, Cut(self.layer, self.dim)
        meta = library().models.ModelMeta.create_empty().model_dump()
        return library().models.ModelMeta(
            **meta
            | {
                "name": f"m2dr/{names_of([self.name])[0]}-{cut}",
                "revision": card.fingerprint,
                "n_parameters": self._parameters(),
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


def record_of(report: MtebReport) -> dict[str, object]:
    """Return the grids with the names that their files have, and the scores of each cut."""
    scores = [
        {"layer": cut.layer, "dim": cut.dim, **asdict(score)}
        for cut, found in report.scores.items()
        for score in found
    ]
    return {
        "model": report.model,
        "grids": [grid_record(grid) for grid in report.grids],
        "scores": scores,
        "folder": report.folder,
        "seconds": report.seconds,
    }


def evaluate_mteb(request: MtebRequest) -> MtebReport:
    """Run tasks of MTEB at every asked cut of a model; write MTEB's result of each, and grids.

    The texts of a task are encoded once, at all layers.

    Raises:
        UserError: mteb is not installed, a task is unknown, its data cannot be loaded, or the
            model has no such cut.
    """
    begun = time.monotonic()
    require_mteb()
    _check_instruction(request.instruction)
    model = request.model or newest_model()
    card = read_card(model)
    full = card.full
    layers, dims = request.layers or (full.layer,), request.dims or (full.dim,)
    cuts = cuts_of(card, layers, dims, model)  # before mteb loads
    tasks = [_task(name) for name in request.tasks]
    for task in tasks:
        _load(task)
    encoder = MtebEncoder(
        model,
        max(cuts).layer,
        instruction=request.instruction,
        device=request.device,
        dtype=request.dtype,
    )
    (name,) = names_of([model])
    folder = request.out / "mteb" / name
    scores: dict[Cut, list[MtebScore]] = {cut: [] for cut in cuts}
    grids: list[Grid] = []
    with lock_folder(folder):
        for task in tasks:
            found, texts = _run_grid(encoder, task, cuts, folder)
            for cut in cuts:
                scores[cut] += found[cut]
            grids += _grids(name, found, texts)
        for grid in grids:
            home = request.out / grid.corpus / grid.split / grid.model
            write_grid(grid, home / GRID)
            write_csv([grid], home / "grid.csv")
    return MtebReport(name, scores, tuple(grids), folder, time.monotonic() - begun)


def _run_grid(
    encoder: MtebEncoder,
    task: Any,  # mteb's AbsTask
    cuts: Sequence[Cut],
    folder: Path,
) -> tuple[dict[Cut, list[MtebScore]], int]:
    """Return the scores of each cut on a task, and the number of texts that were encoded."""
    encoders = encoder.grid(cuts)
    found: dict[Cut, list[MtebScore]] = {}
    with progress(f"{task.metadata.name} of MTEB", len(cuts), "cuts") as advance:
        for cut, one in encoders.items():
            found[cut] = run_task(one, task, folder / str(cut))
            advance(1)
    return found, encoders[cuts[0]].texts_kept


def _grids(model: str, found: Mapping[Cut, Sequence[MtebScore]], texts: int) -> list[Grid]:
    """Return a grid for each split of a task."""
    places = {(score.task, score.split) for scores in found.values() for score in scores}
    return [
        Grid(
            model,
            task,
            split,
            texts,
            {
                cut: {s.measure: s.value for s in scores if s.split == split}
                for cut, scores in found.items()
            },
            unit="texts",
        )
        for task, split in sorted(places)
    ]


def run_task(encoder: MtebEncoder, task: Any, folder: Path) -> list[MtebScore]:  # mteb's AbsTask
    """Evaluate on a task whose data are loaded, and write MTEB's result as `folder/TASK.json`."""
    results = library().evaluate(
        encoder, task, cache=None, co2_tracker=False, show_progress_bar=False
    )
    (result,) = results.task_results
    with atomic_path(folder / f"{result.task_name}.json") as unfinished:
        result.to_disk(unfinished)
    return [
        MtebScore(
            result.task_name,
            split,
            task.metadata.main_score,
            float(np.mean([subset["main_score"] for subset in subsets])),
        )
        for split, subsets in result.scores.items()
    ]


def _prompts_of(model: str) -> dict[str, str]:
    """Return the prompts of a model by the names that MTEB looks for; empty without any."""
    path = find_folder(model) / MODEL_SETTINGS
    found = read_json(path).get("prompts") if path.is_file() else None
    return {name: text for name, text in (found or {}).items() if isinstance(text, str)}


def _check_instruction(template: str) -> None:
    if template and SLOT not in template:
        raise UserError(
            f"--instruction {template!r} has no {SLOT}, where what MTEB says of a task goes; write "
            f"it as 'Instruct: {SLOT} Query: '."
        )


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
        raise UserError(f"MTEB is not installed. Install it with: {install('mteb')}")


def _task(name: str) -> Any:  # mteb's AbsTask
    try:
        return library().get_task(name)
    except KeyError:
        known = sorted(task.metadata.name for task in library().get_tasks(exclude_superseded=False))
        hint = nearest(name, known)
        more = hint if hint.startswith("Did") else "mteb.get_tasks() lists them."
        raise UserError(f"MTEB has no task {name!r}. {more}") from None


def _load(task: Any) -> None:  # mteb's AbsTask
    """Load the data of a task, before any task runs."""
    try:
        task.load_data()
    except Exception as error:  # whatever the hub, the network or the disk may raise
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(
            f"The data of MTEB's {task.metadata.name} cannot be loaded ({reason}). They come from "
            "the Hugging Face hub; run the command once with a network."
        ) from error


def _rows(vectors: Any) -> Vectors:  # an array, or a tensor on any device
    array = vectors.cpu() if hasattr(vectors, "cpu") else vectors
    return np.atleast_2d(np.asarray(array, np.float32))
