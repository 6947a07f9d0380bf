import builtins
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from m2dr.index.exact.topk import TieOrder, TopK
from m2dr.index.exact.topk_numba import NumbaTopK

from m2dr.core.errors import UserError
from m2dr.index.exact import prefix_top_k
from m2dr.index.exact import scan as scanning

TILE = 256
SCORES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 3e38, -3e38, math.inf, -math.inf])


@settings(max_examples=150, deadline=None)
@given(
    k=st.integers(1, 70),
    queries=st.integers(1, 4),
    tiles=st.lists(st.integers(1, TILE), min_size=1, max_size=3),
    scales=st.lists(st.sampled_from([0.0, 1e-30, 0.3, 1.0, 1e30]), min_size=8, max_size=8),
    odd=st.lists(SCORES, max_size=20),
    levels=st.integers(1, 1000),
    placed=st.booleans(),
    divided=st.booleans(),
    seed=st.integers(0, 999),
)
def test_both_selections_keep_the_same_documents(
    k, queries, tiles, scales, odd, levels, placed, divided, seed
) -> None:
    rng = np.random.default_rng(seed)
    documents = sum(tiles)
    k = min(k, documents)
    ties = TieOrder.of(rng.permutation(documents) if placed else None, "cpu")
    # A scale is one, or one over the query's length: it makes no finite score endless. And no endless
    # score meets a scale of zero, with which its product is no number.
    largest = np.finfo(np.float32).max / max(*scales, 1)
    odd = [s for s in odd if (abs(s) < largest if math.isfinite(s) else min(scales) > 0)]
    of_queries = torch.tensor(scales).view(2, 4)[:, :queries].contiguous()
    both = [selection(k, of_queries, ties) for selection in (TopK, NumbaTopK)]
    start = 0
    for rows in tiles:
        inverse = torch.from_numpy(rng.uniform(0.5, 1, rows).astype("f")) if divided else None
        for prefix in range(2):
            # Of few levels, so that many tie.
            scores = (rng.integers(-levels, levels + 1, size=(queries, rows)) / levels).astype("f")
            scores[0, rng.integers(0, rows, size=len(odd))] = odd
            for one in both:
                one.add(prefix, torch.from_numpy(scores), inverse, start)
        start += rows

    for prefix in range(2):
        for one, other in zip(*(some.found(prefix) for some in both), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("selection", [TopK, NumbaTopK])
def test_what_is_not_a_number_is_not_ranked(selection: type[TopK]) -> None:
    scores = torch.zeros(1, 2**16)
    scores[0, 7] = math.nan
    best = selection(3, torch.ones(1, 1), TieOrder())

    with pytest.raises(UserError, match="not a number"):
        best.add(0, scores, None, 0)


@pytest.mark.parametrize("order", ["rising", "falling", "equal", "random"])
@pytest.mark.parametrize("k", [1, 2, 17, 100])
def test_the_best_come_first_in_any_order(order: str, k: int) -> None:
    keys = np.arange(3_000, dtype=np.float32)
    scores = {
        "rising": keys,
        "falling": -keys,
        "equal": np.zeros_like(keys),
        "random": np.random.default_rng(k).permutation(keys),
    }[order]
    best = NumbaTopK(k, torch.ones(1, 1), TieOrder())

    best.add(0, torch.from_numpy(scores)[None], None, 0)

    rows = best.found(0)[1][0]
    assert rows.tolist() == np.lexsort((np.arange(len(scores)), -scores))[:k].tolist()


def test_without_numba_the_same_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    queries, vectors = rng.normal(size=(400, 8)), rng.normal(size=(3_000, 8))
    monkeypatch.setattr(scanning, "COMPILED_SCORES", 0)
    compiled = prefix_top_k(queries.astype("f"), vectors.astype("f"), [4, 8], 9, "cosine")
    imported = builtins.__import__
    refused: list[str] = []

    def without(name: str, *others: object) -> object:
        if name.startswith("m2dr.index.exact.topk_numba"):
            refused.append(name)
            raise ImportError("No module named 'numba'")
        return imported(name, *others)

    monkeypatch.setattr(builtins, "__import__", without)
    found = prefix_top_k(queries.astype("f"), vectors.astype("f"), [4, 8], 9, "cosine")

    assert refused
    for dim, parts in found.items():
        for one, other in zip(parts, compiled[dim], strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_process_that_goes_on_scanning_selects_by_compiled_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scanning, "COMPILED_SCORES", 3 * 40)
    monkeypatch.setattr(scanning, "_SCORES", Counter[str]())
    chosen: list[str] = []
    selection = scanning._selection

    def seen(scores: int, device: str) -> type[TopK]:
        chosen.append(selection(scores, device).__name__)
        return selection(0, device)

    monkeypatch.setattr(scanning, "_selection", seen)
    for _ in range(4):
        prefix_top_k(np.ones((2, 4), "f"), np.ones((20, 4), "f"), [4], 3, "dot")

    assert chosen == ["TopK", "TopK", "NumbaTopK", "NumbaTopK"]


def test_what_is_compiled_is_kept_on_disk_and_small_scans_do_not_load_it(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np, torch\n"
        "torch.set_num_threads(1)\n"
        "from m2dr.index.exact import prefix_top_k\n"
        "ones = np.ones((400, 4), 'f')\n"
        "prefix_top_k(ones, ones, [4], 1, 'dot')\n"
        "assert 'numba' not in sys.modules\n"
        "from m2dr.index.exact import scan\n"
        "scan.COMPILED_SCORES = 0\n"
        "prefix_top_k(ones, ones, [4], 1, 'dot')\n"
        "from m2dr.index.exact import topk_numba\n"
        "print(sum(topk_numba._enter.stats.cache_hits.values()))\n"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}

    hits = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]

    assert hits == ["0", "1"]
