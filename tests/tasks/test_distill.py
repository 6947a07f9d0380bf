"""`m2dr train` with the scores of a teacher, from a file to a model that has learned them."""

import json
import random
from collections import Counter
from pathlib import Path

import commands
import numpy as np
import pytest
from click.testing import Result
from numpy.typing import NDArray
from world import WORDS

from m2dr.model.checkpoint import load
from m2dr.model.embed import TextEncoder
from m2dr.model.encoder import DualEncoder

QUERIES, NEGATIVES, T = 40, 3, 2.0
CUTS = [(layer, dim) for layer in (1, 2, 3, 4) for dim in (8, 32)]
SHORT = [
    "query_length=16",
    "document_length=16",
    "evaluate_steps=0",
    "warmup=0",
    "log_steps=5",
    "dropout=0",
]
Scored = tuple[list[str], list[list[str]], NDArray[np.float64]]


def scored_groups() -> Scored:
    """Queries, their documents with the positive first, and scores by the words that they share."""
    draw = random.Random(13)
    queries, documents, scores = [], [], []
    for _ in range(QUERIES):
        words = draw.sample(WORDS, 4)
        group = [" ".join([*words[:4], draw.choice(WORDS)])]
        group += [" ".join([*words[:n], *draw.choices(WORDS, k=5 - n)]) for n in range(2, -1, -1)]
        queries.append(" ".join(words))
        documents.append(group)
        shared = [sum((Counter(words) & Counter(text.split())).values()) for text in group]
        scores.append([3.0 * n - 2 for n in shared])
    return queries, documents, np.array(scores)


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of groups with scores beside the documents, as FlagEmbedding writes it."""
    path = tmp_path_factory.mktemp("groups") / "scored.jsonl"
    rows = [
        {
            "query_id": f"q{n}",
            "query": query,
            "pos": [texts[0]],
            "neg": texts[1:],
            "pos_scores": [values[0]],
            "neg_scores": values[1:],
        }
        for n, (query, texts, values) in enumerate(
            zip(*scored_groups()[:2], scored_groups()[2].tolist(), strict=True)
        )
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(*words: str | Path, sets: str = "") -> Result:
    given = [part for word in [*SHORT, *sets.split()] for part in ("--set", word)]
    return commands.run("train", *words, "--device", "cpu", *given)


def distance(encoder: TextEncoder[DualEncoder], method: str) -> NDArray[np.float64]:
    """What each cut's scores cost by the teacher's, [cuts]: in numpy, by the published formula."""
    queries, documents, teacher = scored_groups()
    layers = [1, 2, 3, 4]
    asked = encoder.vectors(queries, "query", layers).astype(np.float64)
    texts = [text for group in documents for text in group]
    answers = encoder.vectors(texts, "document", layers).astype(np.float64)
    answers = answers.reshape(len(layers), QUERIES, 1 + NEGATIVES, -1)
    found = []
    for layer, dim in CUTS:
        q, d = asked[layer - 1, :, :dim], answers[layer - 1, :, :, :dim]
        scores = np.einsum("qh,qdh->qd", q, d)
        if encoder.card.similarity == "cosine":
            scores /= np.linalg.norm(q, axis=-1)[:, None] * np.linalg.norm(d, axis=-1)
        student, target = scores / encoder.card.temperature, teacher / T
        if method == "kl":
            p, r = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (target, student))
            found.append((p * np.log(p / r)).sum(axis=1).mean())
        else:
            margins, wanted = (x[:, :1] - x[:, 1:] for x in (student, target))
            found.append(((margins - wanted) ** 2).mean())
    return np.array(found)


@pytest.mark.parametrize(
    ("method", "similarity"), [("margin-mse", "dot"), ("margin-mse", "cosine"), ("kl", "cosine")]
)
@pytest.mark.usefixtures("dtype")
def test_a_training_brings_every_cut_nearer_to_the_teacher(
    method: str, similarity: str, groups: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    words = ("--variant", "full-dim", "--corpus", groups, "--backbone", tiny_backbone)
    sizes = ("--steps", "25", "--batch-size", "20", "--negatives", str(NEGATIVES))
    sets = (
        f"distill={method} distill_temperature={T} contrastive_weight=0 similarity={similarity} "
        "learning_rate=3e-3 pooling=mean dims=[8] align=none weights=uniform"
    )

    done = run(*words, *sizes, "--out", model, sets=sets)

    assert done.exit_code == 0, done.output
    trained, untrained = load(model), load(tiny_backbone)
    untrained.runtime.card = trained.card
    before, after = (distance(encoder, method) for encoder in (untrained, trained))
    assert (after < before).all(), f"{before} -> {after}"
    assert after.mean() < 0.6 * before.mean()


@pytest.fixture
def reranked(tmp_path: Path) -> Path:
    """A TREC run of a teacher over the tiny corpus: 20 of its 24 training queries, 4 deep."""
    lines = [
        f"q{i} Q0 d{(i + n) % 40} {n + 1} {9 - 5 * n} ce\n" for i in range(20) for n in range(4)
    ]
    path = tmp_path / "ce.trec"
    path.write_text("".join(lines))
    return path


def test_a_run_of_a_reranker_is_a_teacher_of_its_corpus(
    reranked: Path, tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    words = ("--variant", "plain", "--corpus", tiny_corpus, "--backbone", tiny_backbone)
    sizes = ("--steps", "3", "--batch-size", "10", "--negatives", "3", "--out", tmp_path / "m")

    done = run(*words, *sizes, sets=f"distill=margin-mse teacher_scores={reranked}")

    assert done.exit_code == 0, done.output
    assert "4 of 24 queries left out for lack of a teacher's scores" in done.stderr
    assert "20 queries, 10 per step" in done.stderr
    assert json.loads((tmp_path / "m" / "settings.json").read_text())["distill"] == "margin-mse"
