"""An encoder and what is asked of it: token ids in, one number out."""

# Shapes in this room:
#   L layers, B queries, N documents, H width, T tokens, b texts of a part.

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from m2dr.train.gather import gathered
from m2dr.train.objective import Objective, Sides, not_a_number

Part = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]  # ids, mask [b, T], rows [b]


@dataclass(frozen=True)
class Batch:
    """Token ids of one process' share of a step, in parts of like length; masks of all shares."""

    texts: Sequence[Part]  # of the B queries and then the N documents of this process
    queries: int  # B
    excluded: NDArray[np.bool_]  # [W · B, W · N]
    labels: NDArray[np.float32] | None = None  # [W · B], of sentence pairs
    teacher: NDArray[np.float32] | None = None  # [W · B, 1 + n], of groups that a teacher scored

    def tensors(self) -> dict[str, object]:
        """As a data loader hands it on."""
        return {
            "texts": [[torch.from_numpy(array) for array in part] for part in self.texts],
            "queries": self.queries,
            "excluded": torch.from_numpy(self.excluded),
            "labels": None if self.labels is None else torch.from_numpy(self.labels),
            "teacher": None if self.teacher is None else torch.from_numpy(self.teacher),
        }


class Learner(nn.Module):
    """The encoder together with its objective, so that both are trained, saved and resumed.

    With `cached`, no activation of one part is kept while another runs: a part is encoded, only
    its [L, b, H] are kept, and its activations are made again, with the random state that they
    were made with, when its gradient is due (Gao et al. 2021, gradient caching; here by torch's
    own checkpointing over the whole encoder). The gradients are those of the whole batch, and the
    memory is that of the largest part.

    Args:
        encoder: (ids [b, T], mask [b, T], layers) to [L, b, H]; with `tokens`, see Encoder.
        objective: of the run.
        cached: trade a second pass of each part for the memory of all but one.
    """

    def __init__(self, encoder: nn.Module, objective: Objective, cached: bool = False) -> None:
        super().__init__()
        self.encoder, self.objective, self._cached = encoder, objective, cached
        # What FSDP gathers at a time: a block; and the encoder, which is called by itself to be
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
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of a batch: [] nats per query, and its parts, detached.

        Args:
            texts: parts as in `Batch`.
            queries: B of this process.
            excluded: [W · B, W · N]; the documents of all processes are the W · B positives and
                then the other documents, by rank.
            labels: [W · B], of sentence pairs.
            teacher: [W · B, 1 + n], a teacher's scores of each query's own documents.
            step: of the optimiser; decides what a recipe that draws draws.
        """
        asked = self.objective.at(step)
        vectors, related = embed(self._encode, texts, asked.layers)
        positives, others = vectors[:, queries : 2 * queries], vectors[:, 2 * queries :]
        documents = torch.cat([gathered(positives), gathered(others)], dim=1)
        sides = Sides(gathered(vectors[:, :queries]), documents, excluded, labels, teacher)
        total, parts = self.objective(asked, sides)
        if self.objective.relations is not None:
            tokens = self.objective.related(gathered(related[None])[0])
            total = total + tokens
            parts = {**parts, "tokens": tokens.detach()}
            if not torch.isfinite(tokens.detach()):
                raise not_a_number(parts)
        return total, parts

    def _encode(self, ids: Tensor, mask: Tensor, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """One part: its vectors [L, b, H] and the token relations of its texts [b]."""
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

        def take(layer: int, states: Tensor) -> None:
            found.append(relations(layer, states, mask))

        vectors = self.encoder(ids, mask, layers, tokens=take, token_layers=relations.layers)
        return vectors, torch.stack(found).sum(dim=0)


Encode = Callable[[Tensor, Tensor, Sequence[int]], tuple[Tensor, Tensor]]


def embed(
    encode: Encode, parts: Sequence[Sequence[Tensor]], layers: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """[L, B, H] and [B] of a batch that comes in parts, in the batch's own order."""
    found = [encode(ids, mask, layers) for ids, mask, _ in parts]
    order = torch.argsort(torch.cat([rows for *_, rows in parts]))
    vectors = torch.cat([vectors for vectors, _ in found], dim=1)
    return vectors[:, order], torch.cat([related for _, related in found])[order]
