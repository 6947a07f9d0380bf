"""The whole loss of MIPIC, and batches in parts, on an encoder of a few lines."""

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from formulas import DIMS, PATH, RELATIONS_TAU, TAU, H, L, Paper, token_relations
from recipes import mipic
from referee import CLOSE, WHOLE, WORDS, Toy, same_gradients
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from m2dr.core.records import Cut
from m2dr.core.settings import TrainSettings
from m2dr.core.variants import VARIANTS
from m2dr.model.checkpoint import load
from m2dr.model.devices import set_dropout
from m2dr.tasks.training.recipe import Kind, recipe_of
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


# Gradient caching: the gradients of the whole batch, in the memory of one part of it


B, N = 6, 10  # queries, documents: their positives and four more
CASES: dict[str, tuple[Kind, dict[str, Any]]] = {
    "full-dim": ("documents", {"variant": "full-dim", "dims": (8,)}),
    "elastic": ("documents", {"variant": "elastic", "dims": (8, 16)}),
    "mipic": ("documents", {"variant": "mipic"}),
    "margin-mse": (
        "documents",
        {"variant": "elastic", "dims": (8,), "distill": "margin-mse", "negatives": 1},
    ),
    "kl": ("documents", {"variant": "mrl", "distill": "kl", "negatives": 1}),
    "simcse": ("sentences", {"variant": "mrl", "loss": "simcse"}),
    "angle": ("scored pairs", {"variant": "ese", "loss": "angle", "weights": "dynamic"}),
}
Numbers = dict[str, Tensor]


def module(case: str, backbone: Path, cached: bool, dropout: float = 0.0) -> TrainingModule:
    """A recipe's module on the tiny backbone."""
    kind, fields = CASES[case]
    recipe = recipe_of(TrainSettings(backbone=str(backbone), **fields), kind)
    encoder, _ = load(backbone)
    encoder.card = recipe.card
    if recipe.card.exit_head == "linear":
        encoder.add_exit_heads([1, 2, 3])
    set_dropout(encoder, dropout)
    return TrainingModule(encoder, recipe.objective(), cached).train()


def precise(case: str, backbone: Path, cached: bool) -> TrainingModule:
    """The same on an encoder of a few lines, in float64."""
    objective = module(case, backbone, cached).objective
    return TrainingModule(Toy(words=64, width=32), objective, cached).double()


def ragged(count: int, length: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(13)
    lengths = [length or int(torch.randint(3, 14, (), generator=generator)) for _ in range(count)]
    return [torch.randint(4, 40, (length,), generator=generator) for length in lengths]


def parts_of(rows: Sequence[Tensor], size: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Parts of `size` texts each, from long to short; one part alone is in the batch's order."""
    order = list(range(len(rows)))
    if size < len(rows):
        order.sort(key=lambda row: -len(rows[row]))
    parts = []
    for start in range(0, len(rows), size):
        chosen = order[start : start + size]
        ids = nn.utils.rnn.pad_sequence([rows[row] for row in chosen], batch_first=True)
        parts.append((ids, (ids > 0).long(), torch.tensor(chosen)))
    return parts


def batch(case: str, size: int) -> dict[str, Any]:
    """A batch in parts of `size` texts: queries and more documents, or pairs of sentences."""
    kind, fields = CASES[case]
    taught = "distill" in fields  # each query has a positive and one negative
    documents = {True: 2 * B, False: N}[taught] if kind == "documents" else B
    rows = ragged(B + documents)
    if kind == "sentences":
        rows[B:] = rows[:B]
    labels = torch.ones(B) if kind == "sentences" else torch.linspace(0, 1, B)
    excluded = torch.zeros(B, documents, dtype=torch.bool)
    excluded[1, 2] = True
    return {
        "texts": parts_of(rows, size),
        "queries": B,
        "excluded": excluded,
        "labels": None if kind == "documents" else labels,
        "teacher": torch.linspace(9, -4, 2 * B).view(B, 2).cos() if taught else None,
    }


def numbers(made: TrainingModule, inputs: dict[str, Any], seed: int = 13) -> Numbers:
    """The loss, its parts and the gradient of every parameter, by name."""
    torch.manual_seed(seed)
    made.zero_grad()
    loss, parts = made(**inputs)
    loss.backward()
    found = {name: p.grad for name, p in made.named_parameters() if p.grad is not None}
    assert len(found) == sum(1 for _ in made.parameters())
    return {"loss": loss.detach(), **parts, **found}


def assert_same(found: Numbers, expected: Numbers, within: float) -> None:
    """Relative to the largest number of each tensor, or to 1 where that is smaller."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        gap, largest = float((found[name] - value).abs().max()), float(value.abs().max())
        assert gap <= within * max(1, largest), name


@pytest.mark.parametrize("case", CASES)
def test_small_parts_give_the_gradients_of_one_large_part(case: str, tiny_backbone: Path) -> None:
    whole = numbers(precise(case, tiny_backbone, cached=False), batch(case, 99))

    cached = numbers(precise(case, tiny_backbone, cached=True), batch(case, 3))

    assert_same(cached, whole, within=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_what_was_dropped_is_dropped_again_when_a_part_is_run_again(
    case: str, tiny_backbone: Path
) -> None:
    made = module(case, tiny_backbone, True, dropout=0.3)

    cached = numbers(made, batch(case, 3))
    state = torch.get_rng_state()
    kept = numbers(module(case, tiny_backbone, False, dropout=0.3), batch(case, 3))

    # Words are looked up at once where all activations are kept, which rounds their gradient once.
    assert_same(cached, kept, within=1e-6)
    assert torch.equal(torch.get_rng_state(), state)  # the next step draws what it would have
    assert not torch.equal(numbers(made, batch(case, 3), seed=14)["loss"], cached["loss"])


class Live(TorchDispatchMode):
    """Measures the peak bytes of tensors that operations made and that are still held."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.most = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func, _, args=(), kwargs=None) -> object:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, Tensor) and tensor.untyped_storage() not in self._seen:
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        self._seen.add(storage)
        weakref.finalize(storage, self._free, size)
        self.bytes += size
        self.most = max(self.most, self.bytes)

    def _free(self, size: int) -> None:
        self.bytes -= size


def most_bytes(backbone: Path, cached: bool, parts: int, blocks: bool = False) -> int:
    """Return the peak bytes of a step on this many parts of eight texts of 40 tokens each."""
    made = module("elastic", backbone, cached, dropout=0.1)
    made.encoder.checkpoint_layers(on=blocks)
    excluded = torch.zeros(4 * parts, 4 * parts, dtype=torch.bool)
    gc.collect()
    with Live() as live:
        loss, _ = made(parts_of(ragged(8 * parts, length=40), 8), 4 * parts, excluded)
        loss.backward()
    return live.most


def test_the_memory_of_a_cached_batch_is_that_of_one_part(tiny_backbone: Path) -> None:
    one_part = most_bytes(tiny_backbone, cached=False, parts=1)

    assert most_bytes(tiny_backbone, cached=False, parts=8) > 6 * one_part
    assert most_bytes(tiny_backbone, cached=True, parts=2) < 1.2 * one_part
    assert most_bytes(tiny_backbone, cached=True, parts=8) < 1.2 * one_part
