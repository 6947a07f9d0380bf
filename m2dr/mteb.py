"""An m2dr model in MTEB: any cut of it runs any of its text tasks. The library's only door."""

# Shapes in this file:
#   N texts, Q queries, D coordinates of the cut.

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
from m2dr.io import aside, locked
from m2dr.model import checkpoint
from m2dr.records.arguments import mappings, path_or_name, strings
from m2dr.records.cut import Cut
from m2dr.verbs.evaluating.cutencoder import CutEncoder, asked_cut
from m2dr.verbs.evaluating.evaluate import RESULTS
from m2dr.verbs.models import newest_model

Vectors = NDArray[np.float32]


class Encoder:
    """One cut of a model, as MTEB's EncoderProtocol wants it.

    Texts that MTEB calls queries get the model's own query prefix and length, documents those of
    documents; all others, such as both sentences of a pair, are encoded as documents by the layer
    of the cut, as `m2dr evaluate sts` does. Prompts of MTEB's tasks are not used.

        mteb.evaluate(Encoder("models/full-dim", layer=4, dim=128), mteb.get_task("STS12"))
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
        """Load the model; layer and dim are all of it when None.

        Raises:
            UserError: no such model, or it has no such cut.
        """
        self.encoder = CutEncoder(path_or_name("model", model), layer, dim, device, dtype)

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        prompt_type: str | None = None,
        **_: object,
    ) -> Vectors:
        """Vectors [N, D] of the texts of all batches, in their order.

        Args:
            inputs: batches, each with a list of texts under `text`.
            prompt_type: query, document, or nothing.

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
        sides = {"query": self.encoder.queries, "document": self.encoder.documents}
        # MTEB's prompt type is a str of its own kind; only its value is one of these words.
        side = str(getattr(prompt_type, "value", prompt_type))
        return sides.get(side, self.encoder.texts)(texts)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Vectors:  # noqa: ANN401  # arrays or tensors
        """All scores [Q, N] by the model's own similarity: vectors [Q, D] against [N, D]."""
        scores: Vectors = _rows(embeddings1) @ _rows(embeddings2).T
        return scores

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Vectors:  # noqa: ANN401  # arrays or tensors
        """The score [N] of each row of one with the same row of the other, both [N, D]."""
        scores: Vectors = (_rows(embeddings1) * _rows(embeddings2)).sum(axis=1)
        return scores

    @cached_property
    def mteb_model_meta(self) -> Any:  # noqa: ANN401  # mteb's ModelMeta, which is not imported here
        """What MTEB writes beside the scores; its revision is the sha256 of the weights."""
        card, cut = self.encoder.card, self.encoder.cut
        meta = library().models.ModelMeta.create_empty().model_dump()
        return library().models.ModelMeta(
            **meta
            | {
                "name": f"m2dr/{self.encoder.name}-{cut}",
                "revision": card.fingerprint,
                "n_parameters": self.encoder.parameters,
                "embed_dim": cut.dim,
                "max_tokens": max(card.query_length, card.document_length),
                "similarity_fn_name": card.similarity,
                "framework": ["PyTorch"],
                "use_instructions": bool(card.query_prefix or card.document_prefix),
            }
        )


@dataclass(frozen=True)
class MtebRequest:
    """What `m2dr evaluate mteb` was asked."""

    tasks: tuple[str, ...]  # as MTEB calls them
    model: str = ""  # empty: the newest trained one
    layer: int | None = None
    dim: int | None = None
    out: Path = RESULTS
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True)
class Score:
    """The main score of a task on one of its splits, the mean over its subsets."""

    task: str
    split: str
    measure: str
    value: float


@dataclass(frozen=True)
class MtebReport:
    """What was found, and where MTEB's own files of it lie."""

    model: str
    cut: Cut
    scores: tuple[Score, ...]
    folder: Path
    seconds: float


def evaluate_mteb(request: MtebRequest) -> MtebReport:
    """Run tasks of MTEB at one cut of a model, and keep all that MTEB says of each.

    Raises:
        UserError: mteb is absent, a task is unknown or its data cannot be had, or the model has no
            such cut.
    """
    begun = time.monotonic()
    require_mteb()
    model = request.model or newest_model()
    card = checkpoint.read_card(model)
    asked_cut(card, request.layer, request.dim, model)  # before mteb loads
    tasks = [_task(name) for name in request.tasks]
    for task in tasks:
        _load(task)
    encoder = Encoder(model, request.layer, request.dim, device=request.device, dtype=request.dtype)
    cut = encoder.encoder.cut
    folder = request.out / "mteb" / encoder.encoder.name / str(cut)
    with locked(folder, "give another --out"):
        scores = [score for task in tasks for score in run_task(encoder, task, folder)]
    return MtebReport(encoder.encoder.name, cut, tuple(scores), folder, time.monotonic() - begun)


def run_task(encoder: Encoder, task: Any, folder: Path) -> list[Score]:  # noqa: ANN401  # mteb's AbsTask
    """Evaluate on a task that has its data, and write MTEB's result as `folder/TASK.json`."""
    results = library().evaluate(
        encoder, task, cache=None, co2_tracker=False, show_progress_bar=False
    )
    (result,) = results.task_results
    with aside(folder / f"{result.task_name}.json") as unfinished:
        result.to_disk(unfinished)
    return [
        Score(
            result.task_name,
            split,
            task.metadata.main_score,
            float(np.mean([subset["main_score"] for subset in subsets])),
        )
        for split, subsets in result.scores.items()
    ]


def library() -> Any:  # noqa: ANN401  # a module without stubs
    """The library mteb.

    Raises:
        UserError: it is not installed.
    """
    require_mteb()
    import mteb

    return mteb


def require_mteb() -> None:
    """Raise UserError where mteb is absent; at once, while loading it takes ten seconds."""
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
    """Fetch the data of a task before any of them is run."""
    try:
        task.load_data()
    except Exception as error:  # whatever the hub, the network or the disk may raise
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(
            f"The data of MTEB's {task.metadata.name} could not be had ({reason}). It comes from "
            f"the Hugging Face hub; run the command once with a network."
        ) from error


def _rows(vectors: Any) -> Vectors:  # noqa: ANN401  # an array, or a tensor on any device
    array = vectors.cpu() if hasattr(vectors, "cpu") else vectors
    return np.atleast_2d(np.asarray(array, np.float32))
