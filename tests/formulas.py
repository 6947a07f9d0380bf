"""The papers' formulas read out naively: float64, a loop per sum, nothing computed twice the same way.

Independent of how m2dr computes them: no field of a Variant is read here, prefixes are sliced one by
one, teachers are detached by hand.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, log, sqrt
from typing import Literal

import torch
from torch import Tensor

L, B, N, H = 4, 4, 6, 16  # layers, queries, documents, width
SHALLOW, LAYERS = (1, 2, 3), (1, 2, 3, 4)
DIMS, DIM = (2, 4, 8), 4
STAIRS = ((1, 2), (2, 4), (3, 8))  # (layer, dim), the whole left out
PATH = ((1, 2), (2, 4), (3, 8), (4, 16))
TAU = 0.5  # of scores
RELATIONS_TAU = 0.4  # of token relations and of the chain

Side = Literal["queries", "documents", "texts"]
Project = Callable[[Tensor], Tensor]


def log_weight(layer: int) -> float:
    """Wang et al. 2024, eq. 8."""
    return 1.0 if layer == L else 1 / (1 + log(layer))


@dataclass
class Paper:
    """One batch, and what the papers compute of it."""

    q: Tensor  # [L, B, H]
    d: Tensor  # [L, N, H]
    excluded: Tensor  # [B, N]
    labels: Sequence[float] | None = None
    similarity: str = "dot"
    loss: str = "contrastive"
    parts: tuple[float, float, float] = (1.0, 1.0, 1.0)  # of AnglE: cosine, in-batch, angle
    documents: str = "same"
    compress: str = "dependencies"
    joint_batch: bool = False  # both sides are one batch of sentences
    lottery: Callable[[Tensor, int], Tensor] | None = None
    log_variances: Sequence[Tensor] = ()  # by shallow layer, learned
    projectors: Sequence[Project] = ()  # of the chain, learned

    def vectors(self, side: Side, layer: int) -> Tensor:
        """[n, H] at this very layer."""
        queries, documents = self.q[layer - 1], self.d[layer - 1]
        if side == "texts":
            return torch.cat([queries, documents])
        return queries if side == "queries" else documents

    def documents_for(self, layer: int) -> Tensor:
        """[N, H] that queries of a layer are scored with."""
        return self.d[(L if self.documents == "last" else layer) - 1]

    # Scores, and what is asked of them.

    def scores(self, layer: int, k: int) -> Tensor:
        """S(l, k): [B, N], cut first and normalised after."""
        x, y = self.q[layer - 1][:, :k], self.documents_for(layer)[:, :k]
        dots = (x[:, None, :] * y[None, :, :]).sum(dim=2)
        if self.similarity == "dot":
            return dots
        return dots / (x.norm(dim=1)[:, None] * y.norm(dim=1)[None, :])

    def ce(self, layer: int, k: int) -> Tensor:
        """The base loss at a cut."""
        if self.loss == "cosent":
            return self.cosent(layer, k)
        if self.loss == "angle":
            by_cosine, in_batch, by_angle = self.parts
            return (
                by_cosine * self.cosent(layer, k)
                + in_batch * self.ranking(layer, k)
                + by_angle * self.angle(layer, k)
            )
        return self.ranking(layer, k)

    def ranking(self, layer: int, k: int) -> Tensor:
        """Each query, or each pair that is alike, over the documents that count."""
        scores, surprises = self.scores(layer, k) / TAU, []
        for b in range(len(scores)):
            if self.labels is None or self.labels[b] >= 0.8:
                counted = [n for n in range(len(scores[b])) if not self.excluded[b, n]]
                surprises.append(scores[b, counted].exp().sum().log() - scores[b, b])
        return sum(surprises) / len(surprises)

    def ordered(self, values: Tensor) -> Tensor:
        """CoSENT over any similarity of the pairs."""
        inside = [torch.ones((), dtype=torch.float64)]
        for i, higher in enumerate(self.labels):
            for j, lower in enumerate(self.labels):
                if higher > lower:
                    inside.append(((values[j] - values[i]) / TAU).exp())
        return torch.stack(inside).sum().log()

    def cosent(self, layer: int, k: int) -> Tensor:
        scores = self.scores(layer, k)
        return self.ordered(torch.stack([scores[b, b] for b in range(len(scores))]))

    def angle(self, layer: int, k: int) -> Tensor:
        """AnglE: the first half of a prefix is real, the second imaginary."""
        x, y = self.q[layer - 1][:, :k], self.documents_for(layer)[:, :k]
        z = torch.complex(x[:, : k // 2], x[:, k // 2 :])
        w = torch.complex(y[:, : k // 2], y[:, k // 2 :])
        quotient = (z / w) * w.abs() ** 2  # z times the conjugate of w
        total = quotient.real.sum(dim=1) + quotient.imag.sum(dim=1)
        return self.ordered((total / (x.norm(dim=1) * y.norm(dim=1))).abs())

    # Imitation.

    def score_align(
        self, cut: tuple[int, int], teacher: tuple[int, int], add_mse: bool = True
    ) -> Tensor:
        """MSE, if asked for, of scores and KL of their softmax, both to the detached teacher."""
        student, above = self.scores(*cut), self.scores(*teacher).detach()
        divergence = kl(above / TAU, student / TAU)
        return mse(student, above) + divergence if add_mse else divergence

    def embedding(self, cut: tuple[int, int], add_mse: bool = False, last: int = L) -> Tensor:
        """2DMSE v1, eq. 6: the softmax over the coordinates, towards the last layer's."""
        layer, k = cut
        total = torch.zeros((), dtype=torch.float64)
        for side in self.sides(layer):
            student = self.vectors(side, layer)[:, :k]
            above = self.vectors(side, last)[:, :k].detach()
            total = total + kl(above, student) + (mse(student, above) if add_mse else 0)
        return total

    def pca(self, layer: int, k: int, add_mse: bool = True) -> Tensor:
        """ESE, eq. 3 to 6, on each side."""
        total = torch.zeros((), dtype=torch.float64)
        for side in self.sides(layer):
            x = self.vectors(side, layer)
            target = (self.lottery or self.target)(x.detach(), k)
            student = x[:, :k]
            total = total + kl(target, student) + (mse(student, target) if add_mse else 0)
        return total

    def sides(self, layer: int) -> tuple[Side, ...]:
        if self.documents == "last" and layer < L:
            return ("queries",)
        return ("texts",) if self.joint_batch else ("queries", "documents")

    def target(self, x: Tensor, k: int) -> Tensor:
        return {
            "dependencies": of_dependencies,
            "embeddings": of_embeddings,
            "max-k": of_strongest,
        }[self.compress](x, k)

    # MIPIC.

    def chain(self, path: Sequence[tuple[int, int]] = PATH) -> Tensor:
        """Eq. 16 and 17: each text's next checkpoint among those of all texts."""
        total = torch.zeros((), dtype=torch.float64)
        views = self.loss == "simcse"  # of the same sentences: one of them is enough
        side: Side = "queries" if views or self.documents == "last" else "texts"
        for link, project in enumerate(self.projectors):
            (here, short), (there, long) = path[link], path[link + 1]
            told = project(self.vectors(side, here)[:, :short])
            known = self.vectors(side, there)[:, :long]
            for i in range(len(told)):
                cosines = (known @ told[i]) / (known.norm(dim=1) * told[i].norm())
                counted = [j for j in range(len(known)) if not (views and self.excluded[i, j])]
                logits = cosines / RELATIONS_TAU
                total = total + (logits[counted].exp().sum().log() - logits[i]) / len(told)
        return total


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(softmax teacher || softmax student), the mean over rows."""
    p = teacher.exp() / teacher.exp().sum(dim=1, keepdim=True)
    r = student.exp() / student.exp().sum(dim=1, keepdim=True)
    return (p * (p / r).log()).sum() / len(teacher)


def mse(student: Tensor, teacher: Tensor) -> Tensor:
    return ((student - teacher) ** 2).sum() / student.numel()


def dependencies(x: Tensor) -> Tensor:
    """ESE, eq. 3: the softmax of each coordinate's products with all coordinates."""
    products = (x.T @ x) / sqrt(x.shape[1])
    strong = (products - products.max()).exp()
    return strong / strong.sum(dim=1, keepdim=True)


def upright(component: Tensor) -> Tensor:
    """With the sign that makes its largest entry positive."""
    return -component if component.max() < -component.min() else component


def of_dependencies(x: Tensor, k: int) -> Tensor:
    """X · U Σ from the eigenvectors of A Aᵀ, component by component."""
    a = dependencies(x)
    squares, u = torch.linalg.eigh(a @ a.T)
    columns = [x @ upright(u[:, -1 - j]) * squares[-1 - j].clamp(min=0).sqrt() for j in range(k)]
    return torch.stack(columns, dim=1)


def of_embeddings(x: Tensor, k: int) -> Tensor:
    """U Σ of X itself, from the eigenvectors of Xᵀ X; nothing beyond its rank."""
    _, v = torch.linalg.eigh(x.T @ x)
    columns = [
        x @ upright(v[:, -1 - j]) if j < min(x.shape) else torch.zeros_like(x[:, 0])
        for j in range(k)
    ]
    return torch.stack(columns, dim=1)


def of_strongest(x: Tensor, k: int) -> Tensor:
    """Each coordinate counts by its k strongest dependencies, the strongest first."""
    strongest = [sorted(row.tolist(), reverse=True)[:k] for row in dependencies(x)]
    return x @ torch.tensor(strongest, dtype=x.dtype)


def token_relations(
    states: Tensor,
    projections: Sequence[Tensor],
    anchor: str = "cls",
    tau: float = RELATIONS_TAU,
    itself: bool = True,
) -> Tensor:
    """MIPIC, eq. 4 to 13, of one text's states [m, H] at one layer, without padding."""
    m, width = states.shape
    full = states.detach()
    scale = sqrt(width) * tau
    vector = {"cls": full[0], "last": full[-1], "mean": full.sum(dim=0) / m}[anchor]
    if not itself and anchor != "mean" and m > 1:
        states = states[1:] if anchor == "cls" else states[:-1]
        m, full = m - 1, states.detach()
    teacher = (full @ vector) / scale
    a_full = teacher.exp() / teacher.exp().sum()
    order = sorted(range(m), key=lambda j: -float(teacher[j]))
    total = torch.zeros((), dtype=states.dtype)
    for place, projection in enumerate(projections):
        dim = len(projection)
        share = Fraction(2, 10) + Fraction(5, 10) * Fraction(place, max(len(projections) - 1, 1))
        student = (states[:, :dim] @ projection) @ vector / scale
        a = student.exp() / student.exp().sum()
        total = total + (a * (a / a_full).log()).sum()
        chosen = order[: min(m, max(8, ceil(share * m)))]
        if len(chosen) > 1:
            total = total + 1 - cka(states[chosen, :dim], full[chosen])
    return total


def cka(short: Tensor, full: Tensor) -> Tensor:
    """MIPIC, eq. 11, with the mean taken from each coordinate."""
    h, t = short - short.mean(dim=0), full - full.mean(dim=0)
    cross = (h.T @ t).square().sum()
    return cross / ((h.T @ h).square().sum().sqrt() * (t.T @ t).square().sum().sqrt())
