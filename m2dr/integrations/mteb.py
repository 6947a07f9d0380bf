"""Evaluate any cut of a model on the text tasks of MTEB.

Shapes: N texts, Q queries, D dims of the cut.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError, install, nearest
from m2dr.io import atomic_path, lock_folder
from m2dr.model.folder import read_card
from m2dr.pipelines.cut_encoder import CutEncoder
from m2dr.pipelines.models import find_cut, newest_model
from m2dr.records.arguments import mappings, strings
from m2dr.records.cut import Cut
from m2dr.settings.evaluate_requests import MtebRequest

Vectors = NDArray[np.float32]


class MtebEncoder(CutEncoder):
    """One cut of a model, with the interface of MTEB's EncoderProtocol.

    Texts that MTEB calls queries get the query prefix and length of the model, documents those of
    documents. All others, such as both sentences of a pair, are encoded as documents by the layer
    of the cut, as in `m2dr evaluate sts`. The prompts of MTEB's tasks are not used.

        mteb.evaluate(MtebEncoder("models/full-dim", layer=4, dim=128), mteb.get_task("STS12"))
    """

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        prompt_type: str | None = None,
        **_: object,
    ) -> Vectors:
        """Return the vectors of the texts of all batches, [N, D], in their order.

        Args:
            inputs: batches, each with a list of texts under `text`.
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
        sides = {"query": self.queries, "document": self.documents}
        # MTEB's prompt type is an enum whose value is one of these words.
        side = str(getattr(prompt_type, "value", prompt_type))
        return sides.get(side, self.texts)(texts)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Vectors:  # noqa: ANN401  # arrays or tensors
        """Return the scores [Q, N] of all pairs of vectors, [Q, D] and [N, D]."""
        scores: Vectors = _rows(embeddings1) @ _rows(embeddings2).T
        return scores

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Vectors:  # noqa: ANN401  # arrays or tensors
        """Return the score [N] of each pair of rows of two arrays, both [N, D]."""
        scores: Vectors = (_rows(embeddings1) * _rows(embeddings2)).sum(axis=1)
        return scores

    @cached_property
    def mteb_model_meta(self) -> Any:  # noqa: ANN401  # mteb's ModelMeta, which is not imported here
        """Metadata that MTEB writes with scores; the revision is the sha256 of the weights."""
        card, cut = self.card, self.cut
        meta = library().models.ModelMeta.create_empty().model_dump()
        return library().models.ModelMeta(
            **meta
            | {
                "name": f"m2dr/{self.name}-{cut}",
                "revision": card.fingerprint,
                "n_parameters": self.parameters,
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
    """The scores of a cut, and the folder of MTEB's result files."""

    model: str
    cut: Cut
    scores: tuple[MtebScore, ...]
    folder: Path
    seconds: float


def evaluate_mteb(request: MtebRequest) -> MtebReport:
    """Run tasks of MTEB at one cut of a model, and write MTEB's result of each.

    Raises:
        UserError: mteb is not installed, a task is unknown, its data cannot be loaded, or the
            model has no such cut.
    """
    begun = time.monotonic()
    require_mteb()
    model = request.model or newest_model()
    card = read_card(model)
    find_cut(card, request.layer, request.dim, model)  # before mteb loads
    tasks = [_task(name) for name in request.tasks]
    for task in tasks:
        _load(task)
    encoder = MtebEncoder(
        model, request.layer, request.dim, device=request.device, dtype=request.dtype
    )
    cut = encoder.cut
    folder = request.out / "mteb" / encoder.name / str(cut)
    with lock_folder(folder, "give another --out"):
        scores = [score for task in tasks for score in run_task(encoder, task, folder)]
    return MtebReport(encoder.name, cut, tuple(scores), folder, time.monotonic() - begun)


def run_task(encoder: MtebEncoder, task: Any, folder: Path) -> list[MtebScore]:  # noqa: ANN401  # mteb's AbsTask
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


def library() -> Any:  # noqa: ANN401  # a module without stubs
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


def _task(name: str) -> Any:  # noqa: ANN401  # mteb's AbsTask
    try:
        return library().get_task(name)
    except KeyError:
        known = sorted(task.metadata.name for task in library().get_tasks(exclude_superseded=False))
        hint = nearest(name, known)
        more = hint if hint.startswith("Did") else "mteb.get_tasks() lists them."
        raise UserError(f"MTEB has no task {name!r}. {more}") from None


def _load(task: Any) -> None:  # noqa: ANN401  # mteb's AbsTask
    """Load the data of a task, before any task runs."""
    try:
        task.load_data()
    except Exception as error:  # whatever the hub, the network or the disk may raise
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(
            f"The data of MTEB's {task.metadata.name} cannot be loaded ({reason}). They come from "
            "the Hugging Face hub; run the command once with a network."
        ) from error


def _rows(vectors: Any) -> Vectors:  # noqa: ANN401  # an array, or a tensor on any device
    array = vectors.cpu() if hasattr(vectors, "cpu") else vectors
    return np.atleast_2d(np.asarray(array, np.float32))
