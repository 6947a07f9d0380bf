"""The module that is trained: an encoder and its objective, from token ids to one number.

Shapes: L layers, B queries and N documents of one process, W processes, H width, T tokens, b texts
of a part of the batch.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from m2dr.core.arrays import Bools, Float32, Int64
from m2dr.training.objective import EncodedBatch, Objective, not_a_number

Small = TypeVar("Small")
TokenPart = tuple[Int64, Int64, Int64]  # ids, mask [b, T], rows
Encode = Callable[[Tensor, Tensor, Sequence[int]], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class TokenBatch:
    """Token ids of one process' share of a step, in parts of similar length.

    Attributes:
        texts: of the B queries and then the N documents of this process; the rows [b] of a part
            say which texts it holds.
        queries: B.
        excluded: [W · B, W · N], True where a document must not count as a negative.
        labels: [W · B], of sentence pairs.
        teacher: [W · B, 1 + n], a teacher's scores of each query's own documents.
    """

    texts: Sequence[TokenPart]
    queries: int
    excluded: Bools
    labels: Float32 | None = None
    teacher: Float32 | None = None

    def tensors(self) -> dict[str, object]:
        """Return the arguments of `TrainingModule.forward`, but `step` and `batch`."""
        return {
            "texts": [[torch.from_numpy(array) for array in part] for part in self.texts],
            "queries": self.queries,
            "excluded": torch.from_numpy(self.excluded),
            "labels": None if self.labels is None else torch.from_numpy(self.labels),
            "teacher": None if self.teacher is None else torch.from_numpy(self.teacher),
        }


class TrainingModule(nn.Module):
    """The encoder together with its objective, so that both are trained, saved and resumed.

    With `cached`, activations of one part of the batch are kept at a time: a part is encoded, only
    its [L, b, H] are kept, and its activations are computed again, with the same random state, when
    its gradient is due (Gao et al. 2021, gradient caching; here by torch's checkpointing of the
    whole encoder). The gradients are those of the whole batch; the memory is that of the largest
    part.

    Args:
        encoder: (ids [b, T], mask [b, T], layers) to [L, b, H]; with `tokens`, see Encoder.
        objective: of the training.
        cached: encode each part twice, to keep the activations of one part only.
    """

    def __init__(self, encoder: nn.Module, objective: Objective, cached: bool = False) -> None:
        super().__init__()
        self.encoder, self.objective, self._cached = encoder, objective, cached
        # What FSDP gathers at a time: a layer; and the encoder, which is called by itself to be
        # evaluated. By the names of their classes, as transformers and accelerate have it.
        blocks = getattr(getattr(encoder, "transformer", None), "_no_split_modules", None)
        self._no_split_modules = [type(encoder).__name__, *(blocks or [])]

    def forward(
        self,
        texts: Sequence[Sequence[Tensor]],
        queries: int,
        excluded: Tensor,
        labels: Tensor | None = None,
        teacher: Tensor | None = None,
        step: int = 0,
        batch: int = 0,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch, [] nats per query, and its parts, detached.

        Args:
            texts: parts as in `TokenBatch`.
            queries: B of this process.
            excluded: [W · B, W · N]; the documents of all processes are the W · B positives and
                then the other documents, by rank.
            labels: [W · B], of sentence pairs.
            teacher: [W · B, 1 + n], a teacher's scores of each query's own documents.
            step: of the optimiser; with `batch` it decides what a recipe that draws draws.
            batch: of the step, where it accumulates several.
        """
        chosen = self.objective.at(step, batch)
        # With activations of one part at a time, each part looks its words up.
        once = nullcontext if self._cached else self.encoder.looking_up_once
        with once([ids for ids, *_ in texts]):  # type: ignore[operator]  # `Encoder` has it
            vectors, related = embed(self._encode, texts, chosen.layers)
        positives, others = vectors[:, queries : 2 * queries], vectors[:, 2 * queries :]
        documents = torch.cat([all_gather(positives), all_gather(others)], dim=1)
        asking, draw = all_gather(vectors[:, :queries]), (step << 20) + batch
        encoded = EncodedBatch(asking, documents, excluded, labels, teacher, draw)
        total, parts = self.objective(chosen, encoded)
        if self.objective.relations is not None:
            tokens = self.objective.related(all_gather(related[None])[0])
            total = total + tokens
            parts = {**parts, "tokens": tokens.detach()}
            if not torch.isfinite(tokens.detach()):
                raise not_a_number(parts)
        return total, parts

    def _encode(self, ids: Tensor, mask: Tensor, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the vectors [L, b, H] of a part, and the token relations of its texts [b]."""
        if not self._cached:
            return self._run(ids, mask, layers)
        found: tuple[Tensor, Tensor] = checkpoint(self._run, ids, mask, layers, use_reentrant=False)
        return found

    def _run(self, ids: Tensor, mask: Tensor, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        relations = self.objective.relations
        if relations is None:
            vectors: Tensor = self.encoder(ids, mask, layers)
            return vectors, vectors.new_zeros(len(ids))
        found: list[Tensor] = []
        vectors = self.encoder(
            ids,
            mask,
            layers,
            tokens=lambda _, states: found.append(relations(states, mask)),
            token_layers=relations.layers,
        )
        return vectors, torch.stack(found).sum(dim=0)


def embed(
    encode: Encode, parts: Sequence[Sequence[Tensor]], layers: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Encode a batch that comes in parts: [L, B, H] and [B], in the order of the batch."""
    found = [encode(ids, mask, layers) for ids, mask, _ in parts]
    order = torch.argsort(torch.cat([rows for *_, rows in parts]))
    vectors = torch.cat([vectors for vectors, _ in found], dim=1)
    return vectors[:, order], torch.cat([related for _, related in found])[order]


def world_size() -> int:
    """Return W, the number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def all_gather_objects(own: Small) -> list[Small]:
    """Return the object of each process, by rank; for small objects."""
    if world_size() == 1:
        return [own]
    found: list[Any] = [None] * world_size()
    dist.all_gather_object(found, own)
    return found


def all_gather(vectors: Tensor) -> Tensor:
    """Join [L, n, H] of each process to [L, W · n, H], by rank; every process has the same n.

    The gradient of the own part comes back times W. Each process computes the whole batch's loss
    and lets only its own vectors pass gradient, so the gradients of W processes sum up to that of
    the batch; averaging over processes, as DistributedDataParallel does, would divide it by W.
    """
    if world_size() == 1:
        return vectors
    everyone: Tensor = _AllGather.apply(vectors)  # type: ignore[no-untyped-call]  # torch does not annotate it
    return everyone


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:  # torch's own context
        parts = [torch.empty_like(vectors) for _ in range(world_size())]
        dist.all_gather(parts, vectors.contiguous())
        ctx.count = vectors.shape[1]
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # torch's own context
        start = dist.get_rank() * ctx.count
        return gradient[:, start : start + ctx.count] * world_size()
