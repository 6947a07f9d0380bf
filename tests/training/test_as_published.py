"""Every recipe that has public code is what that code computes: loss and gradients in float64."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import public_code as public
import pytest
import torch
from referee import CLOSE, same_gradients
from torch import Tensor

from m2dr.core.records import Cut
from m2dr.core.variants import FAITHFUL, VARIANTS
from m2dr.training.objective import EncodedBatch, Objective, Setting
from m2dr.training.terms import possible_steps

L, H, B = 4, 8, 5
WHOLE = Cut(L, H)
SHALLOW, DIMS, DIM = (1, 2, 3), (2, 4), 4
STAIRS = (Cut(1, 2), Cut(2, 4), Cut(3, 4))
TAU = 0.5
LABELS = [1.0, 0.0, 1.0, 1.0, 0.0]  # the only ones that the public code is defined for
EXACT = {"compress": "dependencies"}  # in place of a randomised decomposition


class Texts:
    """Pooled states of a batch at layers 0 to L."""

    def __init__(self, negatives: int = 0, paired: bool = False) -> None:
        generator = torch.Generator().manual_seed(13)
        self.negatives, columns = negatives, B * (1 + negatives)
        self.q = torch.randn(L + 1, B, H, generator=generator, dtype=torch.float64)
        self.d = torch.randn(L + 1, columns, H, generator=generator, dtype=torch.float64)
        self.q.requires_grad_(), self.d.requires_grad_()
        self.labels = torch.tensor(LABELS, dtype=torch.float64) if paired else None

    @property
    def states(self) -> list[Tensor]:
        """All texts of the batch, stacked: [B + N, H] of each layer."""
        return [torch.cat([q, d]) for q, d in zip(self.q, self.d, strict=True)]

    def by_group(self) -> list[Tensor]:
        """The documents in the order of the public retrieval code: each query's own in a row."""
        n = self.negatives
        order = [i for b in range(B) for i in (b, *range(B + n * b, B + n * b + n))]
        return [documents[order] for documents in self.d]

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Queries, positives and negatives of a batch of all texts."""
        return x[:B], x[B : 2 * B], x[2 * B :] if self.negatives else None

    def mnr(self, x: Tensor) -> Tensor:
        """Multiple negatives ranking of a batch of all texts."""
        return public.mnr(*self.split(x), scale=1 / TAU)


def objective_of(name: str, texts: Texts, faithful: bool = True, **changes: object) -> Objective:
    """Return the objective of a row as published, with some of its fields and settings changed."""
    settings = {key: changes.pop(key) for key in list(changes) if key in SETTINGS}
    layers = changes.pop("layers", None)
    published = FAITHFUL.get(name, {}) if faithful else {}
    variant = replace(VARIANTS[name], **{**published, **changes})
    choices = possible_steps(
        variant,
        layers or (range(L - (variant.draw != "exit")) if variant.embeddings else SHALLOW),
        settings.pop("dims", (DIM,) if variant.prefixes == "one" else DIMS),
        WHOLE,
        STAIRS if variant.staircase else (),
        joint_batch=texts.labels is not None,
    )
    setting = Setting(
        settings.pop("similarity", "cosine"),
        settings.pop("temperature", TAU),
        variant=variant,
        seed=13,
        **settings,
    )
    return Objective(choices, WHOLE, setting)


SETTINGS = (
    *("dims", "similarity", "temperature", "loss", "loss_weights", "candidates", "unit_output"),
)


def agree(objective: Objective, texts: Texts, expected: Tensor, choice: int = 0) -> None:
    """Compare loss and gradients to 1e-8."""
    asked = objective.choices[choice]
    rows = list(asked.layers)
    excluded = torch.zeros(B, texts.d.shape[1], dtype=torch.bool)
    sides = EncodedBatch(texts.q[rows], texts.d[rows], excluded, texts.labels)
    loss, _ = objective(asked, sides)

    torch.testing.assert_close(loss, expected, **CLOSE)
    same_gradients(loss, expected, [texts.q, texts.d])


# AnglE: ESE, and 2DMSE before it.

ANGLE = {"loss": "angle", "loss_weights": (0.3, 2.0, 0.7), "candidates": "all"}
PARTS = public.Parts(cosine=0.3, ibn=2.0, cln=0.0, angle=0.7)
TAUS = public.Parts(*[1 / TAU] * 4)


def angle_of(texts: Texts) -> Callable[[Tensor], Tensor]:
    """AnglE's loss of a batch of all texts: of pairs with labels, or of triples."""

    def loss(x: Tensor) -> Tensor:
        q, p, n = texts.split(x)
        if n is None:
            return public.angle_pairs(q, p, LABELS, TAUS, PARTS)
        return public.angle_triples_051(q, p, n, TAUS, PARTS)

    return loss


KINDS = pytest.mark.parametrize(
    "kind", [{"paired": True}, {"negatives": 1}], ids=["pairs", "triples"]
)


@KINDS
def test_ese(kind: Mapping[str, Any]) -> None:
    texts = Texts(**kind)
    objective = objective_of("ese", texts, **EXACT, **ANGLE)

    agree(objective, texts, public.ese(texts.states, DIM, angle_of(texts)))


def test_ese_compresses_the_embeddings_too() -> None:
    texts = Texts(paired=True)
    objective = objective_of("ese", texts, compress="embeddings", **ANGLE)
    loss = angle_of(texts)

    def exit_loss(layer: int) -> Tensor:
        x = texts.states[layer]
        target = public.ese_unused_target(x, DIM)
        return loss(x[:, :DIM]) + public.ese_align(x, DIM, target=signed_as_ours(x, target))

    weights = public.w_by_position([*range(L - 1), L])
    shallow = sum(weights[layer] * exit_loss(layer) for layer in range(L - 1))
    expected = loss(texts.states[L]) + exit_loss(L) + shallow / (L - 1)

    agree(objective, texts, expected)


def signed_as_ours(x: Tensor, target: Tensor) -> Tensor:
    """U Σ with the sign of each column that makes the largest entry of V positive."""
    v = x.detach().T @ target
    return target * v.gather(0, v.abs().argmax(dim=0, keepdim=True)).sign()


@KINDS
def test_2dmse_before_ese(kind: Mapping[str, Any]) -> None:
    texts = Texts(**kind)
    objective = objective_of("2dmse-v1", texts, **ANGLE)

    for choice, (layer, k) in enumerate(product(SHALLOW, DIMS)):
        expected = public.v1_a34(texts.states, layer, k, angle_of(texts))
        agree(objective, texts, expected, choice)


def test_mse_on_sentences() -> None:
    texts = Texts(paired=True)
    objective = objective_of("mrl", texts, dims=(DIM,), align="pca", **ANGLE)

    agree(objective, texts, public.sts_mse(texts.states[L], DIM, angle_of(texts)))


# The retrieval paper.

V2: dict[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "2dmse": ("2dmse", EXACT, {"embedding_align": True}),
    "full-dim": ("full-dim", EXACT, {"embedding_align": True, "sub_layer_full_dim": True}),
    "dims": ("dims", EXACT, {"embedding_align": True}),
    "fixed-doc": ("fixed-doc", EXACT, {"embedding_align": True, "passage_to_last_layer": True}),
    "score": ("score", {}, {"score_align": True}),
    "score, of the last layer": (
        "score", {"teacher": "whole"}, {"score_align": True, "compare_to_last_layer": True},
    ),
    "no alignment": ("2dmse", {"align": "none"}, {}),
    "some layers": ("2dmse", {**EXACT, "layers": (2, 3)}, {"embedding_align": True}),
    "score and full width": (
        "score", {"full_dim": True}, {"score_align": True, "sub_layer_full_dim": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("temperature", [1.0, TAU])
@pytest.mark.parametrize("case", V2)
def test_the_retrieval_recipes(case: str, temperature: float) -> None:
    name, changes, switches = V2[case]
    texts = Texts(negatives=2)
    both = {"temperature": temperature, "align_temperature": temperature, "similarity": "dot"}
    objective = objective_of(name, texts, **changes, **both)
    layers = [*changes.get("layers", SHALLOW), L]
    dims = DIMS if VARIANTS[name].prefixes == "many" else (DIM,)

    expected = public.v2(
        dict(enumerate(texts.q)), dict(enumerate(texts.by_group())), layers, dims, temperature,
        **switches,
    )  # fmt: skip

    agree(objective, texts, expected)


def retrieval(texts: Texts, layer: int) -> tuple[Tensor, Tensor]:
    return texts.q[layer], texts.by_group()[layer]


def test_the_baselines_of_retrieval() -> None:
    texts = Texts(negatives=2)
    dot = {"similarity": "dot", "temperature": 1.0}

    mse = objective_of("mrl", texts, dims=(DIM,), **dot)
    agree(mse, texts, public.mse_baseline(*retrieval(texts, L), DIM))
    alone = objective_of("separate", texts, dims=(DIM,), **dot)
    agree(alone, texts, public.bert_s(*retrieval(texts, L), DIM, 1.0))


def test_starbucks() -> None:
    texts = Texts(negatives=2)
    objective = objective_of("starbucks", texts, similarity="dot")
    cuts = [(cut.layer, cut.dim) for cut in STAIRS]

    expected = public.starbucks_retrieval(
        dict(enumerate(texts.q)), dict(enumerate(texts.by_group())), cuts, (L, H), TAU, 1.0
    )

    agree(objective, texts, expected)


@pytest.mark.parametrize("negatives", [0, 2])
def test_ml_embed(negatives: int) -> None:
    texts = Texts(negatives=negatives)
    both = dict(enumerate(texts.q)), dict(enumerate(texts.by_group()))

    expected = public.ml_embed(*both, [*SHALLOW, L], [*DIMS, H], TAU)

    agree(objective_of("ml-embed", texts), texts, expected)


@KINDS
def test_starbucks_on_sentences(kind: Mapping[str, Any]) -> None:
    texts = Texts(**kind)
    own = {"loss": "cosent"} if texts.labels is not None else {}

    def loss(x: Tensor) -> Tensor:
        q, p, n = texts.split(x)
        return texts.mnr(x) if n is not None else public.cosent_part(q, p, LABELS, 1 / TAU)

    cuts = [(cut.layer, cut.dim) for cut in STAIRS]
    expected = public.starbucks_sts(texts.states, cuts, (L, H), loss)

    agree(objective_of("starbucks-sts", texts, **own), texts, expected)


# sentence-transformers.


def test_matryoshka() -> None:
    texts = Texts(negatives=1)
    expected = public.matryoshka(texts.states[L], [*DIMS, H], texts.mnr)

    agree(objective_of("mrl", texts), texts, expected)


OLDER = {"embeddings": False, "weights": "inverse", "detach": False}


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("older", [False, True])
def test_two_dimensional_matryoshka_of_sentence_transformers(older: bool, unit: bool) -> None:
    texts = Texts(negatives=1)
    objective = objective_of("2dmse-st", texts, unit_output=unit, **OLDER if older else {})
    drawn = list(product(SHALLOW if older else range(L), (*DIMS, H), (*DIMS, H)))
    assert len(objective.choices) == len(drawn)

    for choice, (layer, below, above) in enumerate(drawn):
        expected = public.matryoshka_2d(
            texts.states, layer, above, below, texts.mnr, older=older, unit=unit
        )
        agree(objective, texts, expected, choice)


@pytest.mark.parametrize("rows", [[1.0, 0.0, 0.0, 0.0, 0.0], [0.0] * 5])
def test_pairs_that_are_not_alike_count_in_the_mean_over_all_texts(rows: Sequence[float]) -> None:
    texts = Texts(paired=True)
    texts.labels = torch.tensor(rows, dtype=torch.float64)
    own = {**ANGLE, "loss_weights": (0.0, 1.0, 0.0)}
    q, p, _ = texts.split(texts.states[L])
    parts = public.Parts(0.0, 1.0, 0.0, 0.0)

    agree(objective_of("plain", texts, **own), texts, public.angle_pairs(q, p, rows, TAUS, parts))
