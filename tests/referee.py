"""A batch, the objective of a recipe on it, and the verdict: same loss, same gradients."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from formulas import DIM, DIMS, PATH, RELATIONS_TAU, SHALLOW, STAIRS, TAU, B, H, L, N, Paper
from torch import Tensor, nn

from m2dr.core.records import Cut
from m2dr.core.variants import FAITHFUL, VARIANTS
from m2dr.training.mipic import Chain
from m2dr.training.objective import EncodedBatch, Objective, Setting
from m2dr.training.terms import StepTerms, possible_steps

WHOLE = Cut(L, H)
SCORES = [0.9, 0.1, 0.8, 0.45, 0.9]  # of sentence pairs; from .8 on they are alike
CLOSE = {"atol": 1e-8, "rtol": 1e-8}
WORDS = 20


def draw(shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def batch(similarity: str = "dot", loss: str = "contrastive", documents: str = "same") -> Paper:
    """Queries and documents, or sentence pairs with scores; some of them no negatives."""
    pairs = loss != "contrastive"
    rows, columns = (len(SCORES), len(SCORES)) if pairs else (B, N)
    labels = {"contrastive": None, "simcse": [1.0] * rows}.get(loss, SCORES)
    excluded = torch.rand(rows, columns, generator=torch.Generator().manual_seed(2)) < 0.2
    excluded[0, -1] = True
    excluded.fill_diagonal_(False)
    return Paper(
        draw((L, rows, H), 13),
        draw((L, columns, H), 14),
        excluded,
        labels,
        similarity,
        loss,
        parts=(1.0, 0.5, 2.0),
        documents=documents,
        joint_batch=pairs,
    )


def objective_of(
    name: str, paper: Paper, changes: Mapping[str, object] | None = None, faithful: bool = False
) -> Objective:
    """The objective of a row with some of its fields changed; its parameters go to the paper.

    Alignment is a mean over the rows, as papers write it, unless `faithful`.
    """
    published = FAITHFUL.get(name, {}) if faithful else {"align_reduction": "mean"}
    variant = replace(VARIANTS[name], **{**published, **(changes or {})})
    choices = possible_steps(
        variant,
        SHALLOW,
        (DIM,) if variant.prefixes == "one" else DIMS,
        WHOLE,
        [Cut(*stair) for stair in STAIRS] if variant.staircase else (),
        paper.joint_batch,
        [layer for layer, _ in PATH] if variant.pic else (),
    )
    setting = Setting(
        paper.similarity,
        TAU,
        paper.loss,
        paper.parts,
        variant=variant,
        learned=SHALLOW if variant.weights == "dynamic" else (),
        seed=13,
    )
    path = [Cut(layer, H if variant.full_checkpoints else dim) for layer, dim in PATH]
    chain = Chain(path, RELATIONS_TAU).double() if variant.pic else None
    objective = Objective(choices, WHOLE, setting, None, chain, 1 - variant.alpha)
    if objective.log_variances is not None:
        objective.log_variances.data = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
        paper.log_variances = objective.log_variances
    paper.projectors = list(chain.projectors) if chain else ()
    return objective


def encoded_batch(asked: StepTerms, paper: Paper) -> EncodedBatch:
    rows = [layer - 1 for layer in asked.layers]
    labels = None if paper.labels is None else torch.tensor(paper.labels)
    return EncodedBatch(paper.q[rows], paper.d[rows], paper.excluded, labels)


def agree(objective: Objective, asked: StepTerms, paper: Paper, expected: Tensor) -> None:
    """Loss, the sum of its parts and all gradients, to 1e-8."""
    loss, parts = objective(asked, encoded_batch(asked, paper))

    torch.testing.assert_close(loss, expected, **CLOSE)
    torch.testing.assert_close(sum(parts.values()), expected.detach(), **CLOSE)
    same_gradients(loss, expected, [paper.q, paper.d, *objective.parameters()])


def same_gradients(loss: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    ours, theirs = (
        torch.autograd.grad(side, leaves, allow_unused=True, materialize_grads=True)
        for side in (loss, expected)
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


class Toy(nn.Module):
    """An encoder whose tokens see each other's mean; the first token is the embedding."""

    def __init__(self, words: int = WORDS, width: int = H) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)

        def made(*shape: int) -> nn.Parameter:
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            return nn.Parameter(drawn / shape[-1] ** 0.5 * 2)

        self.words = made(words, width)
        self.blocks = nn.ParameterList(made(width, width) for _ in range(L))

    def forward(
        self,
        ids: Tensor,
        mask: Tensor,
        layers: Sequence[int],
        tokens: Callable[[int, Tensor], None] | None = None,
        token_layers: Collection[int] = (),
    ) -> Tensor:
        states, pooled = self.words[ids], []
        real = mask[..., None].to(states.dtype)
        for layer, block in enumerate(self.blocks, start=1):
            mean = (states * real).sum(dim=1, keepdim=True) / real.sum(dim=1, keepdim=True)
            states = torch.tanh(states @ block + mean) + 0.5 * states
            if tokens is not None and layer in token_layers:
                tokens(layer, states)
            if layer in layers:
                pooled.append(states[:, 0])
        return torch.stack(pooled)

    def looking_up_once(self, _: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Look up the words of each part by itself."""
        return nullcontext()

    def states_of(self, ids: Tensor) -> list[Tensor]:
        """One text alone, without padding: [m, H] of each layer."""
        states, found = self.words[ids], []
        for block in self.blocks:
            states = torch.tanh(states @ block + states.mean(dim=0)) + 0.5 * states
            found.append(states)
        return found
