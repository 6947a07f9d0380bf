"""2dmse-st beside Matryoshka2dLoss of sentence-transformers: the same draws, the same losses."""

import json
import random
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    Matryoshka2dLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from world import WORDS, make_model

from m2dr.core.settings import TrainSettings
from m2dr.model.folder import ModelFolder
from m2dr.tasks.training.train import prepare

STEPS, BATCH, DIMS = 12, 6, (8, 16, 32)


@pytest.mark.parametrize("normalised", [True, False], ids=["Normalize", "no Normalize"])
def test_twelve_steps_have_the_losses_of_sentence_transformers(
    normalised: bool, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread = ModelFolder.read(make_model(tiny_backbone, tmp_path / "spread")).inner
    transformer = Transformer(str(spread))
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), "mean")]
    theirs = SentenceTransformer(modules=modules + [Normalize()] * normalised, device="cpu")
    theirs.save_pretrained(str(tmp_path / "backbone"))
    draw = random.Random(3)
    rows = [
        {side: " ".join(draw.choices(WORDS, k=6)) for side in ("query", "positive")}
        for _ in range(40)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    settings = TrainSettings(
        variant="2dmse-st", backbone=str(tmp_path / "backbone"), dims=DIMS, dropout=0.0,
        corpus=str(tmp_path / "pairs.jsonl"), batch_size=BATCH, steps=STEPS, device="cpu", dtype="fp32",
    )  # fmt: skip
    setup = prepare(settings, tmp_path / "model")
    full, down = setup.recipe.full, sorted(DIMS, reverse=True)
    loss = Matryoshka2dLoss(theirs, MultipleNegativesRankingLoss(theirs), DIMS)
    sides = [torch.optim.AdamW(side.parameters(), 1e-3) for side in (setup.module, theirs)]
    seen, traces = set(), ([], [])

    for step in range(STEPS):
        asked = setup.module.objective.at(step)
        cuts = {term.cut for term in asked.terms if term.kind == "retrieve"}
        (above,) = (cut.dim for cut in cuts if cut.layer == full.layer)
        (below,) = (cut for cut in cuts if cut.layer < full.layer)
        seen.add(below.layer)
        draws = iter([[down.index(above)], [below.layer], [down.index(below.dim)]])
        monkeypatch.setattr(random, "sample", lambda *_, draws=draws: next(draws))
        groups = [setup.examples[step * BATCH + place] for place in range(BATCH)]
        texts = [[g.query.text for g in groups], [g.positive.content for g in groups]]
        values = (
            setup.module(**setup.batch(groups), step=step)[0],
            loss([theirs.preprocess(side) for side in texts], None),
        )
        for value, optimiser, trace in zip(values, sides, traces, strict=True):
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            trace.append(value.item())

    assert seen == set(range(full.layer))  # the embeddings among them
    assert traces[0] == pytest.approx(traces[1], rel=1e-4)
