"""A teacher's scores at every cut: by the formula, and by sentence-transformers' own losses."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from choices import CASES as CHOICES
from formulas import DIMS, LAYERS, TAU, B, H, L, Paper
from recipes import ROWS, Formula
from referee import CLOSE, WHOLE, batch, draw, encoded_batch, objective_of, same_gradients
from sentence_transformers.sentence_transformer.losses import DistillKLDivLoss, MarginMSELoss
from sentence_transformers.util import pairwise_cos_sim, pairwise_dot_score
from torch import Tensor, nn

from m2dr.core.variants import VARIANTS, Distill
from m2dr.training.objective import EncodedBatch, Objective, Setting
from m2dr.training.terms import possible_steps, with_teacher

NEGATIVES, T = 2, 3.0
CONTRASTIVE, DISTILL = 0.5, 2.0
METHODS = pytest.mark.parametrize("method", ["margin-mse", "kl"])
SIMILARITIES = pytest.mark.parametrize("similarity", ["dot", "cosine"])


def scores_of_teacher(rows: int = B, negatives: int = NEGATIVES) -> Tensor:
    """Logits as cross-encoders give them: positives near 8, negatives near -2."""
    drawn = np.random.default_rng(5).normal(size=(rows, 1 + negatives)) * 4 - 2
    drawn[:, 0] += 10
    return torch.from_numpy(drawn)


@dataclass
class Taught(Paper):
    """The same batch with a teacher: the base loss of a cut is that of both, weighted."""

    method: Distill = "kl"
    teacher: Tensor | None = None
    contrastive: float = CONTRASTIVE

    def ce(self, layer: int, k: int) -> Tensor:
        return self.contrastive * super().ce(layer, k) + DISTILL * self.taught(layer, k)

    def taught(self, layer: int, k: int) -> Tensor:
        """Query by query and document by document."""
        scores, total = self.scores(layer, k) / TAU, torch.zeros((), dtype=torch.float64)
        for b in range(B):
            own = [b, *(B + b * NEGATIVES + j for j in range(NEGATIVES))]
            s, t = scores[b, own], self.teacher[b] / T
            if self.method == "kl":
                p, r = t.exp() / t.exp().sum(), s.exp() / s.exp().sum()
                total = total + (p * (p / r).log()).sum() / B
            else:
                for j in range(1, 1 + NEGATIVES):
                    error = (s[0] - s[j]) - (t[0] - t[j])
                    total = total + error**2 / (B * NEGATIVES)
        return total


def taught_batch(method: Distill, similarity: str, documents: str, contrastive: float) -> Taught:
    plain = batch(similarity, documents=documents)
    columns = B * (1 + NEGATIVES)
    excluded = torch.rand(B, columns, generator=torch.Generator().manual_seed(2)) < 0.2
    excluded.fill_diagonal_(False)
    return Taught(
        plain.q,
        draw((L, columns, H), 14),
        excluded,
        similarity=similarity,
        documents=documents,
        method=method,
        teacher=scores_of_teacher(),
        contrastive=contrastive,
    )


def taught(name: str, paper: Taught, changes: dict[str, object]) -> Objective:
    """The objective of a row with a teacher beside its base loss."""
    made = objective_of(name, paper, changes)
    variant = replace(VARIANTS[name], **changes)
    objective = Objective(
        with_teacher(made.choices, paper.contrastive, DISTILL),
        WHOLE,
        replace(made.setting, distill=paper.method, distill_temperature=T),
        None,
        made.chain,
        1 - variant.alpha,
    )
    if made.log_variances is not None:
        objective.log_variances.data = made.log_variances.data
        paper.log_variances = objective.log_variances
    return objective


EVERY: dict[str, tuple[str, dict[str, object], Formula]] = {
    **{name: (name, {}, formula) for name, formula in ROWS.items() if name != "separate"},
    **CHOICES,
}


@METHODS
@pytest.mark.parametrize("case", EVERY)
def test_every_row_and_choice_learns_the_teacher_at_each_cut_that_retrieves(
    case: str, method: Distill
) -> None:
    name, changes, formula = EVERY[case]
    layer = str(changes.get("documents", VARIANTS[name].documents))
    paper = taught_batch(method, "cosine", layer, CONTRASTIVE)
    objective = taught(name, paper, changes)
    asked = objective.at(0)
    sides = replace(encoded_batch(asked, paper), teacher=paper.teacher)

    loss, parts = objective(asked, sides)

    expected = formula(paper)
    torch.testing.assert_close(loss, expected, **CLOSE)
    assert any(part.endswith(f"/{method}") for part in parts)
    same_gradients(loss, expected, [paper.q, paper.d, *objective.parameters()])


def published(
    method: Distill, similarity: str, tau: float, temperature: float
) -> Callable[[list[Tensor], Tensor], Tensor]:
    """sentence-transformers' loss of columns of embeddings, on the same scale as ours.

    It multiplies KL by the square of the student's temperature, which m2dr does not.
    """
    compare = {"dot": pairwise_dot_score, "cosine": pairwise_cos_sim}[similarity]
    if method == "margin-mse":
        loss = MarginMSELoss(nn.Identity(), lambda a, b: compare(a, b) / tau)
        return lambda vectors, scores: loss.compute_loss_from_embeddings(
            vectors, scores / temperature
        )
    kl = DistillKLDivLoss(
        nn.Identity(), compare, student_temperature=tau, teacher_temperature=temperature
    )
    return lambda vectors, scores: kl.compute_loss_from_embeddings(vectors, scores) / tau**2


@METHODS
@SIMILARITIES
@pytest.mark.parametrize(("negatives", "tau", "temperature"), [(1, 1.0, 1.0), (4, 0.05, 2.0)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_each_cut_costs_what_sentence_transformers_says(
    method: Distill,
    similarity: str,
    negatives: int,
    tau: float,
    temperature: float,
    precision: str,
) -> None:
    scores = scores_of_teacher(B, negatives).float()
    vectors = draw((L, B, H), 3).detach().float() / 4
    documents = draw((L, B * (1 + negatives), H), 4).detach().float() / 4
    variant = replace(VARIANTS["dims"], full_dim=True, align="none", weights="uniform")
    choices = possible_steps(variant, LAYERS[:-1], DIMS, WHOLE)
    (asked,) = with_teacher(choices, 0.0, 1.0)
    reference = published(method, similarity, tau, temperature)
    setting = Setting(similarity, tau, distill=method, distill_temperature=temperature)
    none = torch.zeros(B, B * (1 + negatives), dtype=torch.bool)

    for term in asked.terms:
        one = replace(asked, terms=(term,), more_layers=LAYERS)
        objective = Objective([one], WHOLE, setting)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss, _ = objective(one, EncodedBatch(vectors, documents, none, teacher=scores))
        layer, k = term.cut.layer - 1, term.cut.dim
        own = [documents[layer, :B]] + [
            documents[layer, B + j :: negatives] for j in range(negatives)
        ]
        columns = [vectors[layer][:, :k], *(column[:, :k] for column in own)]
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss, reference(columns, scores), atol=1e-5, rtol=1e-5)
    assert {term.cut.layer for term in asked.terms} == set(LAYERS)
