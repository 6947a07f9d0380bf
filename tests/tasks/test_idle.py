"""A setting changes what is computed, or is refused: every field of every row is tried."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch

from m2dr.core.errors import UserError
from m2dr.core.trainings import TrainSettings, read_train_settings
from m2dr.core.variants import CHOICES, VARIANTS, Variant
from m2dr.tasks.recipe import Kind, Recipe, recipe_of, settle
from m2dr.tasks.unused_settings import COMPARED, COUNTS_WITH
from m2dr.train.objective import EncodedBatch, Objective

TEXTS, TOKENS = 4, 7
BESIDE = {
    "faithful": (True,),
    "loss_weights": ((0.5, 2.0, 3.0),),
    "candidates": ("second", "all"),
    "relations_temperature": (0.3,),
    "chain_temperature": (0.3,),
    "distill": ("margin-mse", "kl"),
    "distill_weight": (0.3,),
    "contrastive_weight": (0.3, 0.0),
    "distill_temperature": (0.3,),
}
OF_SENTENCES = ("loss_weights", "candidates", "squares", "compress", "align", "average")
Computed = tuple[object, ...]


def values(name: str) -> tuple[object, ...]:
    """Every value of a field of a recipe, or some numbers."""
    if name in BESIDE:
        return BESIDE[name]
    hint = get_type_hints(Variant)[name]
    if hint is bool:
        return (True, False)
    return (0.5, 0.25) if hint is float else get_args(hint)


def computed(recipe: Recipe) -> Computed:
    """The losses on random vectors and token states, and how large their gradients are, with what
    an encoder must be for them."""
    width, draw = recipe.full.dim, np.random.default_rng(7)
    layers = range(recipe.full.layer + 1)
    pairs = recipe.setting.loss == "angle"
    columns = TEXTS if pairs else 2 * TEXTS  # a positive and a negative of each query
    sides = draw.normal(size=(len(layers), TEXTS + columns, width)).astype(np.float32)
    texts = torch.from_numpy(sides).requires_grad_()
    queries, documents = texts.split([TEXTS, columns], dim=1)
    labels = torch.tensor([1.0, 0.9, 0.3, 0.0]) if pairs else None
    objective = recipe.objective()
    for name, parameter in objective.named_parameters():  # what begins as 0 would hide
        parameter.data += 0.1 if name == "doubts" else 0.2
    losses = [
        (
            objective(
                step,
                EncodedBatch(
                    queries[list(step.layers)],
                    documents[list(step.layers)],
                    torch.zeros(TEXTS, columns, dtype=torch.bool),
                    labels,
                    torch.tensor([[8.0, -1.0], [5.0, 6.0], [7.0, 3.0], [9.0, -4.0]]),
                ),
            )[0]
        )
        for step in recipe.choices
    ]
    last = recipe.full.layer
    shallow = any(t.cut.layer < last for step in recipe.choices for t in step.terms)
    pulls = [torch.autograd.grad(loss, texts, retain_graph=True)[0] for loss in losses]
    return (
        np.round([float(loss.detach()) for loss in losses], 5).tolist(),
        np.round([float(pull.norm()) for pull in pulls], 4).tolist(),
        tokens(objective, width, draw),
        recipe.card.exit_head,
        recipe.card.documents if shallow else "",
    )


@torch.no_grad()
def tokens(objective: Objective, width: int, draw: np.random.Generator) -> float:
    """What the token relations cost, over all of their layers."""
    if objective.relations is None:
        return 0.0
    states = torch.from_numpy(draw.normal(size=(TEXTS, TOKENS, width)).astype(np.float32))
    mask = torch.ones(TEXTS, TOKENS, dtype=torch.long)
    found = objective.relations
    total = sum(float(objective.related(found(layer, states, mask))) for layer in found.layers)
    return round(total, 4)


def tried(backbone: str) -> Iterator[tuple[str, TrainSettings, str]]:
    for row, variant in VARIANTS.items():
        base = TrainSettings(variant=row, backbone=backbone)
        for name in COMPARED:
            usual = getattr(variant, name, None)
            for value in values(name):
                if value != usual:
                    yield row, replace(base, **{name: value}), name


def refusal(settings: TrainSettings, kind: Kind) -> str:
    try:
        recipe_of(settings, kind)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", ["documents", "scored pairs"])
def test_each_value_of_each_field_of_each_row_changes_what_is_computed_or_is_refused(
    kind: Kind, tiny_backbone
) -> None:
    rows = {
        row: computed(settle(TrainSettings(variant=row, backbone=str(tiny_backbone)), kind))
        for row in VARIANTS
    }
    counts, taken = {"changes": 0, "idle": 0}, []
    for row, settings, name in tried(str(tiny_backbone)):
        if kind != "documents" and name not in OF_SENTENCES:
            continue  # computed alike whatever the corpus holds
        try:
            there = settle(settings, kind)
        except UserError:
            continue  # it trains nothing, or lacks what it needs, and says so
        same = computed(there) == rows[row]
        counts["idle" if same else "changes"] += 1
        if not same:
            if refusal(settings, kind):
                taken.append((row, name, getattr(settings, name), "refused"))
            continue
        told = refusal(settings, kind)
        if not (told.startswith(f"{name} = ") and COUNTS_WITH.get(name, "?") in told):
            taken.append((row, name, getattr(settings, name), told))
    assert not taken, "These compute what the row computes, and are taken."
    assert min(counts.values()) > (100 if kind == "documents" else 10)


def test_every_field_of_a_row_is_tried_and_has_a_reason() -> None:
    assert set(CHOICES) | set(BESIDE) == set(COMPARED)
    assert set(COMPARED) - set(COUNTS_WITH) == {"alpha"}  # it always counts
    assert set(COUNTS_WITH) <= {field.name for field in fields(TrainSettings)}


@pytest.mark.parametrize(
    ("words", "kind", "sentence"),
    [
        (["variant=full-dim", "teacher=depth"], "documents", "teacher = depth .*align=score"),
        (["variant=plain", "squares=false"], "documents", "squares = false .*imitate"),
        (["variant=plain", "draw=step"], "documents", "draw = step .*to draw from"),
        (["variant=plain", "average=true"], "documents", "average = true .*several"),
        (
            ["variant=mrl", "distill_weight=2.0"],
            "documents",
            "distill_weight = 2.0 .*distill=margin-mse or kl",
        ),
        (["contrastive_weight=0.0"], "documents", "contrastive_weight = 0.0 .*distill=margin-mse"),
        (["distill_temperature=2.0"], "documents", "distill_temperature = 2.0 .*distill=margin"),
        (["distill=kl", "negatives=1"], "sentences", "distill = kl .*a corpus of queries"),
        (["variant=plain", "head_learning_rate=1e-2"], "documents", "parts that begin untrained"),
        (["negatives=2"], "scored pairs", "negatives = 2 .*a corpus of queries and documents"),
        (["dev_queries=7"], "sentences", "dev_queries = 7 .*a corpus of queries"),
        (["split=test"], "sentences", "split = test .*a corpus of queries"),
    ],
)
def test_a_setting_beside_the_row_that_changes_nothing_is_refused(
    words: list[str], kind: Kind, sentence: str, tiny_backbone
) -> None:
    with pytest.raises(UserError, match=sentence):
        recipe_of(read_train_settings(None, [f'backbone="{tiny_backbone}"', *words]), kind)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["lora_alpha=8"], "lora_alpha = 8 changes nothing while lora_rank = 0"),
        (["lora_dropout=0.2"], "lora_dropout = 0.2 changes nothing while lora_rank = 0"),
        (["negative_source=random"], "negative_source = random changes nothing while negatives"),
        (["dev_queries=9", "evaluate_steps=0"], "dev_queries = 9 changes nothing while evaluate"),
        (["teacher_scores=a.trec"], "teacher_scores = a.trec changes nothing while distill = none"),
        (["distill=kl"], "distill = kl compares .*negatives = 0 leaves one; set negatives=1"),
        (
            ["distill=kl", "negatives=1", "negative_source=random"],
            "distill = kl needs scores .*negative_source = random have none",
        ),
        (["distill=kl", "negatives=1", "distill_weight=0"], "distill_weight must be above 0"),
        (["distill=kl", "negatives=1", "contrastive_weight=-1"], "contrastive_weight cannot be"),
        (["distill=mse"], "distill = 'mse' is not one of none, margin-mse, kl"),
        (["steps=9", "epochs=2"], "steps = 9 changes nothing while epochs = 2"),
    ],
)
def test_a_setting_whose_switch_is_off_is_refused_as_it_is_read(
    words: list[str], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        read_train_settings(None, words)


@pytest.mark.parametrize(
    "words",
    [
        ["variant=elastic", "head_learning_rate=1e-2"],
        ["variant=mipic", "head_learning_rate=1e-2", "relations_temperature=2.0"],
        ["variant=2dmse", "weights=dynamic", "head_learning_rate=1e-2"],
        ["variant=mrl", "dims=[8]"],
        ["distill=kl", "negatives=1", "contrastive_weight=0", "distill_temperature=2.0"],
        ["lora_rank=2", "lora_alpha=8", "negatives=1", "negative_source=random"],
    ],
)
def test_a_setting_that_counts_is_taken(words: list[str], tiny_backbone) -> None:
    assert recipe_of(read_train_settings(None, [f'backbone="{tiny_backbone}"', *words]))
