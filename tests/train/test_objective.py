"""The papers' formulas, written with loops over layers and dims, referee every variant."""

from dataclasses import replace
from math import log

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, mse_loss

from m2dr.records.cut import Cut
from m2dr.records.variant import VARIANTS, Variant
from m2dr.train.compress import compressed
from m2dr.train.losses import contrastive, imitation
from m2dr.train.objective import Objective, Term, terms

L, B, N, H = 3, 4, 6, 16
SHALLOW, DIMS, WHOLE = (1, 2), (2, 4, 8), Cut(L, H)
TAU = 0.5


def batch(seed: int = 13) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [L, B, H], documents [L, N, H] and exclusions [B, N]."""
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(L, B, H, generator=generator, dtype=torch.float64).requires_grad_()
    documents = torch.randn(L, N, H, generator=generator, dtype=torch.float64).requires_grad_()
    excluded = torch.rand(B, N, generator=generator) < 0.2
    excluded[torch.arange(B), torch.arange(B)] = False
    return queries, documents, excluded


def naive_scores(q: Tensor, d: Tensor, k: int, similarity: str) -> Tensor:
    q, d = q[:, :k], d[:, :k]
    if similarity == "cosine":
        q, d = q / q.norm(dim=1, keepdim=True), d / d.norm(dim=1, keepdim=True)
    return q @ d.T


def ce(scores: Tensor, excluded: Tensor) -> Tensor:
    """Query by query, over the documents that count."""
    losses = []
    for b in range(B):
        kept = [n for n in range(N) if not excluded[b, n]]
        logits = scores[b, kept] / TAU
        losses.append(cross_entropy(logits[None], torch.tensor([kept.index(b)])))
    return torch.stack(losses).mean()


def naive_target(x: Tensor, k: int) -> Tensor:
    """X · U Σ from the eigenvectors of A Aᵀ, component by component."""
    x = x.detach()
    a = torch.softmax(x.T @ x / H**0.5, dim=-1)
    squares, u = torch.linalg.eigh(a @ a.T)
    columns = []
    for j in range(k):
        component = u[:, H - 1 - j]
        if component[component.abs().argmax()] < 0:
            component = -component
        columns.append(x @ component * squares[H - 1 - j].clamp(min=0).sqrt())
    return torch.stack(columns, dim=1)


def naive_align(x: Tensor, k: int, target: Tensor) -> Tensor:
    student = torch.log_softmax(x[:, :k], dim=1)
    teacher = torch.softmax(target, dim=1)
    return mse_loss(x[:, :k], target) + kl_div(student, teacher, reduction="batchmean")


def naive_loss(variant: Variant, q: Tensor, d: Tensor, excluded: Tensor, similarity: str) -> Tensor:
    """ALGORITHMS: 2dmse and its variants as one formula per field, no work shared."""
    dims = {"none": (), "one": (4,), "many": DIMS}[variant.prefixes]

    def s(layer: int, k: int) -> Tensor:
        source = L if variant.documents == "last" else layer
        return naive_scores(q[layer - 1], d[source - 1], k, similarity)

    def w(layer: int) -> float:
        return 1.0 if layer == L or variant.weights == "uniform" else 1 / (1 + log(layer))

    if variant.alone:
        return ce(s(L, 4), excluded)
    layers = (*SHALLOW, L) if variant.shallow else (L,)
    loss = ce(s(L, H), excluded)
    for layer in layers:
        for k in dims:
            loss = loss + w(layer) * ce(s(layer, k), excluded)
            if variant.align == "pca":
                x = q[layer - 1]
                loss = loss + w(layer) * naive_align(x, k, naive_target(x, k))
                if variant.documents == "same" or layer == L:
                    y = d[layer - 1]
                    loss = loss + w(layer) * naive_align(y, k, naive_target(y, k))
            elif variant.align == "score":
                teacher = s(layer, H).detach()
                kl = kl_div(
                    torch.log_softmax(s(layer, k) / TAU, dim=1),
                    torch.softmax(teacher / TAU, dim=1),
                    reduction="batchmean",
                )
                loss = loss + w(layer) * (mse_loss(s(layer, k), teacher) + kl)
        if variant.full_dim and layer < L:
            loss = loss + w(layer) * ce(s(layer, H), excluded)
    return loss


ROWS = {
    **VARIANTS,
    "fixed-doc and full-dim": replace(VARIANTS["fixed-doc"], full_dim=True),
    "fixed-doc and dims": replace(VARIANTS["fixed-doc"], prefixes="many"),
    "fixed-doc and score": replace(VARIANTS["fixed-doc"], align="score"),
    "dims, full-dim, uniform, no alignment": replace(
        VARIANTS["dims"], full_dim=True, weights="uniform", align="none"
    ),
    "mrl and score": replace(VARIANTS["mrl"], align="score"),
}


def objective_of(variant: Variant, similarity: str) -> Objective:
    dims = (4,) if variant.prefixes == "one" else DIMS
    asked = terms(variant, SHALLOW, dims, WHOLE)
    return Objective(asked, WHOLE, variant.documents == "last", similarity, TAU)


def stacks(objective: Objective, q: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    queries = q[[layer - 1 for layer in objective.layers]]
    documents = d[[layer - 1 for layer in objective.document_layers]]
    return queries, documents


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("variant", ROWS.values(), ids=list(ROWS))
def test_loss_and_gradient_are_those_of_the_papers_formula(
    variant: Variant, similarity: str
) -> None:
    q, d, excluded = batch()
    objective = objective_of(variant, similarity)

    loss, parts = objective(*stacks(objective, q, d), excluded)

    expected = naive_loss(variant, q, d, excluded, similarity)
    torch.testing.assert_close(loss, expected, atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(sum(parts.values()), expected.detach(), atol=1e-8, rtol=1e-8)
    ours = torch.autograd.grad(loss, (q, d), allow_unused=True)
    theirs = torch.autograd.grad(expected, (q, d), allow_unused=True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-8)


def test_full_dim_adds_one_term_per_shallow_layer() -> None:
    base = terms(VARIANTS["2dmse"], SHALLOW, (4,), WHOLE)
    full = terms(VARIANTS["full-dim"], SHALLOW, (4,), WHOLE)

    assert set(full) - set(base) == {
        Term(Cut(layer, H), "contrastive", 1 / (1 + log(layer))) for layer in SHALLOW
    }


def test_documents_of_shallow_layers_get_no_gradient_when_documents_are_fixed() -> None:
    q, d, excluded = batch()
    objective = objective_of(VARIANTS["fixed-doc"], "dot")

    loss, _ = objective(*stacks(objective, q, d), excluded)
    loss.backward()

    assert d.grad[:-1].abs().sum() == 0
    assert d.grad[-1].abs().sum() > 0


def test_the_full_width_learns_nothing_from_being_imitated() -> None:
    student = torch.tensor([[0.1, 0.9]], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([[0.8, 0.2]], dtype=torch.float64, requires_grad=True)

    imitation(student, teacher).backward()

    assert teacher.grad is None
    assert student.grad.abs().sum() > 0
    assert imitation(student, student).item() == pytest.approx(0, abs=1e-12)


def test_scores_that_say_nothing_cost_log_n() -> None:
    nothing = torch.zeros(2, 3, B, N)

    loss = contrastive(nothing, torch.zeros(B, N, dtype=torch.bool), 0.05)

    torch.testing.assert_close(loss, torch.full((2, 3), log(N)))


def test_an_excluded_document_is_no_negative() -> None:
    scores, excluded = torch.zeros(B, N), torch.zeros(B, N, dtype=torch.bool)
    excluded[:, -1] = True
    scores[:, -1] = 100.0

    torch.testing.assert_close(contrastive(scores, excluded, 1.0), torch.tensor(log(N - 1)))


def test_the_compressed_target_is_the_same_at_each_call_and_for_each_shorter_prefix() -> None:
    x = torch.randn(5, H, generator=torch.Generator().manual_seed(1))

    first = compressed(x, 8)

    torch.testing.assert_close(compressed(x, 8), first, atol=0, rtol=0)
    torch.testing.assert_close(compressed(x, 3), first[:, :3])
    assert not first.requires_grad
