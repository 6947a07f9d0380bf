from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from world import configurations

from m2dr.core.records import Cut
from m2dr.core.requests import EvaluateRequest
from m2dr.data.loaders import open_dataset
from m2dr.evaluation.costs import read_costs
from m2dr.model.backbones import BACKBONES
from m2dr.model.checkpoint import load, open_model
from m2dr.model.encoder import DualEncoder
from m2dr.model.hub import WORDS
from m2dr.model.words import WordTable
from m2dr.tasks.evaluating.costs import measure_costs, query_times
from m2dr.tasks.query import open_queries, plan_of_model, shape_of


@pytest.mark.parametrize("model_type", BACKBONES)
def test_multiply_adds_are_those_that_the_matrices_of_the_encoder_do(
    model_type: str, backbone: Callable[[str], Path]
) -> None:
    encoder, _ = load(backbone(model_type))
    tokens = 7

    config = configurations()[model_type]
    heads, size = config.num_attention_heads, getattr(config, "head_dim", None) or 8
    attention = 4 * 2 * tokens * tokens * heads * size  # four blocks: scores, and weighted sums
    positions = 4 * 2 * tokens * 2 * 8 * heads * size if model_type == "deberta-v2" else 0
    expected = products(encoder, 4, tokens) + attention + positions
    assert shape_of(encoder).encode(4, tokens) == expected


def products(encoder: DualEncoder, layer: int, tokens: int) -> int:
    """Multiply-adds of all matrices that a text runs through at a layer, counted as it runs."""
    done = []

    def count(module: torch.nn.Linear, inputs: tuple[torch.Tensor, ...], _: object) -> None:
        done.append(inputs[0].numel() * module.out_features)

    linears = [module for module in encoder.modules() if isinstance(module, torch.nn.Linear)]
    hooks = [module.register_forward_hook(count) for module in linears]
    encoder.embed(np.full((1, tokens), 5), np.ones((1, tokens), np.int64), [layer])
    for hook in hooks:
        hook.remove()
    return sum(done)


def test_fitted_exits_cost_what_their_matrices_and_tables_do(tiny_fitted: Path) -> None:
    tokens, attention = 7, 2 * 7 * 7 * 32  # of one block: scores, and weighted sums

    for layer in range(5):
        encoder = load(tiny_fitted, layer)[0]
        expected = layer * attention + (tokens * 32 if layer < 4 else 0)  # rows of words
        expected += 32 * 32 if 0 < layer < 4 else 0  # their vector to what is added to the exit
        expected += products(encoder, layer, tokens) if layer else 0
        assert shape_of(encoder).encode(layer, tokens) == expected
        assert shape_of(load(tiny_fitted)[0]).encode(layer, tokens) == expected


def test_a_fitted_model_is_measured_from_layer_0_on_and_its_costs_are_kept(
    tiny_fitted: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    asked = EvaluateRequest(
        (str(tiny_corpus),), (str(tiny_fitted),), "test", dims=(8, 32), root=tmp_path / "indexes"
    )

    costs = measure_costs(asked, tmp_path / "results", 4, 6, 2)

    assert read_costs(tmp_path / "results") == costs
    assert costs.cuts == tuple(Cut(layer, dim) for layer in range(5) for dim in (8, 32))
    assert (costs.documents, costs.queries, costs.whole) == (40, 4, Cut(4, 32))
    assert ((costs.corpus,), (costs.model,)) == (asked.corpora, asked.models)
    assert costs.query_tokens == 5  # three words, and two special tokens
    assert all(cell.latency_p50_ms <= cell.latency_p95_ms for cell in costs.cells.values())
    words, table = load_file(tiny_fitted / WORDS), WordTable.open(tiny_fitted)
    queries = open_dataset(str(tiny_corpus)).queries("test")
    spread = [queries[place].text for place in (0, 2, 4, 7)]
    known = np.mean([len({*table.tokenize(text)}) for text in spread])
    for dim in (8, 32):
        cell = costs.cells[Cut(0, dim)]
        assert (
            cell.multiply_adds == round(known * 32) + 40 * dim
        )  # a row per known word, and the scan
        assert cell.parameters == words["table"].numel() + words["weights"].numel()
        assert cell.latency_p50_ms < costs.cells[Cut(4, dim)].latency_p50_ms
        assert cell.documents_per_second == costs.cells[Cut(4, dim)].documents_per_second


def test_a_query_costs_its_encoding_and_its_search(
    tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = {
        ("encode", 1): 0.001,
        ("encode", 2): 0.002,
        ("search", (8, "f32")): 0.01,
        ("search", (16, "f32")): 0.02,
    }
    monkeypatch.setattr(
        "m2dr.tasks.evaluating.costs._seconds",
        lambda step, of, query: spent[step.__name__, of] * (query + 1),
    )
    index = SimpleNamespace(ranked=lambda *_, **__: None)
    plans = {layer: plan_of_model(open_model(tiny_backbone), layer) for layer in (1, 2)}
    encoders = {n: open_queries(plan, device="cpu") for n, plan in plans.items()}

    times = query_times(
        encoders, {(8, "f32"): index, (16, "f32"): index}, ["read", "write"], rounds=3
    )

    assert {cut: row.tolist() for cut, row in times.items()} == {
        Cut(1, 8): pytest.approx([11, 22]),
        Cut(1, 16): pytest.approx([21, 42]),
        Cut(2, 8): pytest.approx([12, 24]),
        Cut(2, 16): pytest.approx([22, 44]),
    }
