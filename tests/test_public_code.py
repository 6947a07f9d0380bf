"""The referees of tests/public_code.py, held against torch, numpy and sentence-transformers."""
# ruff: noqa: E741 - l and L are the papers' letters

import random
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import public_code as public
import pytest
import torch
from torch import Tensor
from torch.nn import Module

B, WIDTH, L = 3, 8, 4
LABELS = [0.0, 1.0, 0.4]


def texts(rows: int, seed: int, width: int = WIDTH) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    return x.requires_grad_()


def layers(rows: int, seed: int) -> list[Tensor]:
    return [texts(rows, seed + l) for l in range(L + 1)]


def triples(x: Tensor) -> Tensor:
    """A loss of a pooled batch: anchors, positives and negatives below each other."""
    return public.mnr(x[:B], x[B : 2 * B], x[2 * B :])


def same(ours: Tensor, theirs: Tensor, wrt: Sequence[Tensor]) -> None:
    """Equal values and equal gradients."""
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    mine = torch.autograd.grad(
        ours, wrt, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    other = torch.autograd.grad(
        theirs, wrt, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_the_target_is_an_exact_decomposition_of_the_dependencies() -> None:
    x = texts(6, 1)
    raw = x.detach().numpy()
    e = np.exp(raw.T @ raw / np.sqrt(WIDTH))
    a = e / e.sum(axis=1, keepdims=True)

    whole = public.ese_target(x, WIDTH).numpy()

    np.testing.assert_allclose(whole @ whole.T, raw @ a @ a.T @ raw.T, rtol=1e-10)
    u = np.linalg.svd(a)[0]
    u = u * np.sign(u[np.abs(u).argmax(axis=0), range(WIDTH)])
    np.testing.assert_allclose(whole, raw @ u @ np.diag(np.linalg.svd(a)[1]), atol=1e-12)
    np.testing.assert_allclose(public.ese_target(x, 3).numpy(), whole[:, :3])
    assert not public.ese_target(x, 3).requires_grad


def model_of(modules: ModuleType) -> Module:
    """A SentenceTransformer whose blocks emit the states that each column of a batch brings."""
    from sentence_transformers import SentenceTransformer

    base: Any = modules.Transformer

    class Blocks(base):  # type: ignore[misc]
        def __init__(self) -> None:
            Module.__init__(self)
            self.model = Module()
            self.model.config = type("Config", (), {"output_hidden_states": False})()

        def forward(self, features: dict[str, Any]) -> dict[str, Any]:
            features["all_layer_embeddings"] = features["states"]
            features["token_embeddings"] = features["states"][-1]
            return features

    class Pooling(Module):
        def forward(self, features: dict[str, Any]) -> dict[str, Any]:
            return features | {"sentence_embedding": features["token_embeddings"]}

        def get_embedding_dimension(self) -> int:
            return WIDTH

    model: Module = SentenceTransformer(modules=[Blocks(), Pooling()])
    return model


@pytest.fixture(scope="module")
def library() -> ModuleType:
    losses: ModuleType = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    return losses


@pytest.fixture(scope="module")
def model(library: ModuleType) -> Module:  # noqa: ARG001  # it skips where there is none
    return model_of(pytest.importorskip("sentence_transformers.base.modules"))


def columns(states: Sequence[Tensor], count: int) -> list[dict[str, Any]]:
    """Features of each column."""
    rows = len(states[0]) // count
    return [{"states": [x[c * rows : (c + 1) * rows] for x in states]} for c in range(count)]


def pairs_loss(part: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: part(x[:B], x[B:], LABELS, 20.0)


def test_cosent_angle_and_ranking_are_those_of_sentence_transformers(
    library: ModuleType, model: Module
) -> None:
    x, y, n = texts(B, 1), texts(B, 2), texts(B, 3)
    labels = torch.tensor(LABELS)
    ranking = library.MultipleNegativesRankingLoss(model)

    cosent = library.CoSENTLoss(model).compute_loss_from_embeddings([x, y], labels)
    angle = library.AnglELoss(model).compute_loss_from_embeddings([x, y], labels)

    same(public.cosent_part(x, y, labels, 20.0), cosent, [x, y])
    same(public.angle_part(x, y, LABELS, 20.0), angle, [x, y])
    for columns in ([x, y], [x, y, n]):
        theirs = ranking.compute_loss_from_embeddings(columns, None)
        negatives = columns[2] if len(columns) > 2 else None
        same(public.mnr(x, y, negatives), theirs, columns)
        same(public.triples_part(x, y, negatives, 20.0), theirs, columns)


def test_matryoshka_is_that_of_sentence_transformers(library: ModuleType, model: Module) -> None:
    states = layers(2 * B, 1)
    for name, part in (("CoSENTLoss", public.cosent_part), ("AnglELoss", public.angle_part)):
        base = getattr(library, name)(model)
        theirs = library.MatryoshkaLoss(model, base, [2, 4, WIDTH], [0.5, 2.0, 3.0])

        value = theirs(columns(states, 2), torch.tensor(LABELS))

        ours = public.matryoshka(states[-1], [2, 4, WIDTH], pairs_loss(part), [0.5, 2.0, 3.0])
        same(ours, value, states)


def test_two_dimensional_matryoshka_is_that_of_sentence_transformers(
    library: ModuleType,
    model: Module,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = layers(3 * B, 1)
    base = library.MultipleNegativesRankingLoss(model)

    draws = iter([[1], [2], [2]])  # dims fall: 8, 4, 2; last layer's, the layer, its dim
    monkeypatch.setattr(random, "sample", lambda *_: next(draws))

    theirs = library.Matryoshka2dLoss(model, base, [2, 4, WIDTH])(columns(states, 3), None)

    same(public.matryoshka_2d(states, 2, 4, 2, triples), theirs, states)
