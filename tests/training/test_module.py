"""The whole loss of MIPIC, and batches in parts, on an encoder of a few lines."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from formulas import DIMS, PATH, RELATIONS_TAU, TAU, H, L, Paper, token_relations
from recipes import mipic
from referee import CLOSE, WHOLE, WORDS, Toy, same_gradients
from torch import Tensor, nn

from m2dr.core.records import Cut
from m2dr.core.variants import VARIANTS
from m2dr.training.mipic import Chain, TokenRelations, shares_of
from m2dr.training.module import TrainingModule
from m2dr.training.objective import Objective, Setting
from m2dr.training.terms import possible_steps

LENGTHS = [5, 12, 1, 9, 14, 10, 3]  # of the 3 queries, then of the 4 documents
QUERIES = 3


def texts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(WORDS, (length,), generator=generator) for length in LENGTHS]


def part(rows: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Padded ids and mask of some texts, and which they are."""
    chosen = [texts()[row] for row in rows]
    longest = max(map(len, chosen))
    ids = torch.stack([nn.functional.pad(text, (0, longest - len(text))) for text in chosen])
    mask = torch.stack([(torch.arange(longest) < len(text)).long() for text in chosen])
    return ids, mask, torch.tensor(rows)


PARTS = [part([4, 1]), part([5, 3, 0]), part([6, 2])]
NOTHING = torch.zeros(QUERIES, len(LENGTHS) - QUERIES, dtype=torch.bool)


def mipic_objective(sia: bool = True, pic: bool = True) -> Objective:
    variant = replace(VARIANTS["mipic"], sia=sia, pic=pic)
    layers = [layer for layer, _ in PATH]
    relations = TokenRelations(layers, DIMS, H, RELATIONS_TAU, shares_of(len(DIMS))).double()
    noise = torch.randn(relations.projections.shape, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        relations.projections += 0.3 * noise.double()  # no longer what they began as
    chain = Chain([Cut(*cut) for cut in PATH], RELATIONS_TAU).double()
    choices = possible_steps(variant, (), DIMS, WHOLE, more_layers=layers)
    setting = Setting("cosine", TAU, relations_temperature=RELATIONS_TAU)
    return Objective(
        choices,
        WHOLE,
        setting,
        relations if sia else None,
        chain if pic else None,
        1 - variant.alpha,
    )


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(("sia", "pic"), [(True, True), (True, False), (False, True)])
def test_mipic_is_its_papers_formula_from_token_ids_on(sia: bool, pic: bool, cached: bool) -> None:
    module = TrainingModule(Toy(), mipic_objective(sia, pic), cached)

    loss, parts = module(PARTS, QUERIES, NOTHING)

    states = [module.encoder.states_of(text) for text in texts()]
    pooled = torch.stack([torch.stack([text[n][0] for text in states]) for n in range(L)])
    paper = Paper(pooled[:, :QUERIES], pooled[:, QUERIES:], NOTHING, similarity="cosine")
    if pic:
        paper.projectors = list(module.objective.chain.projectors)
    expected = mipic(paper)
    if sia:
        projections = module.objective.relations.projections.split(list(DIMS))
        related = [
            token_relations(text[layer - 1], projections) for text in states for layer, _ in PATH
        ]
        expected = expected + 0.6 * sum(related) / len(states)
    torch.testing.assert_close(loss, expected, **CLOSE)
    torch.testing.assert_close(sum(parts.values()), expected.detach(), **CLOSE)
    same_gradients(loss, expected, list(module.parameters()))
