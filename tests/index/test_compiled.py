import builtins
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from m2dr.errors import UserError
from m2dr.index.exact import prefix_top_k, search, sizes
from m2dr.index.exact.best import TorchBest
from m2dr.index.exact.compiled import CompiledBest
from m2dr.index.exact.keys import Places

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
    floor=st.none() | st.floats(-1, 1, width=32),
    placed=st.booleans(),
    together=st.booleans(),
    seed=st.integers(0, 999),
)
def test_both_kinds_keep_the_same_documents(
    k, queries, tiles, scales, odd, levels, floor, placed, together, seed
) -> None:
    rng = np.random.default_rng(seed)
    documents = sum(tiles)
    places = Places.of(rng.permutation(documents) if placed else None, "cpu")
    # A scale is one, or one over the query's length: it makes no finite score endless. And no endless
    # score meets a scale of zero, with which its product is no number.
    largest = np.finfo(np.float32).max / max(*scales, 1)
    odd = [s for s in odd if (abs(s) < largest if math.isfinite(s) else min(scales) > 0)]
    of_queries = torch.tensor(scales).view(2, 4)[:, :queries].contiguous()
    floors = None if floor is None else torch.full_like(of_queries, floor)
    kinds = [kind(k, of_queries, places, floors) for kind in (TorchBest, CompiledBest)]
    start = 0
    for rows in tiles:
        half = start + min(rows, TILE // 2)
        ranges = [range(start, half), range(half, start + rows)]
        if not together:
            ranges = [range(start, start + rows)]
        for dim in range(2):
            # Of few levels, so that many tie.
            scores = (rng.integers(-levels, levels + 1, size=(queries, TILE)) / levels).astype("f")
            columns = rng.integers(0, TILE, size=len(odd))
            scores[0, columns] = odd
            scores[:, rows:] = -np.inf
            for kind in kinds:
                kind.compare(dim, torch.from_numpy(scores), ranges)
        start += rows
    for kind in kinds:
        kind.finish()

    for dim in range(2):
        full = ~kinds[0].short(documents)
        assert torch.equal(full, ~kinds[1].short(documents))
        for one, other in zip(*(kind.found(dim, documents) for kind in kinds), strict=True):
            assert torch.equal(one[full], other[full])


def test_no_kind_ranks_what_is_not_a_number() -> None:
    scores = torch.zeros(1, TILE)
    scores[0, 7] = math.nan
    best = CompiledBest(3, torch.ones(1, 1), Places.of(None, "cpu"))

    with pytest.raises(UserError, match="not a number"):
        best.compare(0, scores, [range(TILE)])


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
    best = CompiledBest(k, torch.ones(1, 1), Places.of(None, "cpu"))

    best.compare(0, torch.from_numpy(scores)[None], [range(len(scores))])

    rows = best.found(0, len(scores))[1][0]
    assert rows.tolist() == np.lexsort((np.arange(len(scores)), -scores))[:k].tolist()


def test_without_numba_the_same_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    queries, vectors = rng.normal(size=(400, 8)), rng.normal(size=(3_000, 8))
    monkeypatch.setattr(search, "_COMPILED", 0)
    monkeypatch.setattr(sizes, "PROCESSOR", replace(sizes.PROCESSOR, few=0))
    compiled = prefix_top_k(queries.astype("f"), vectors.astype("f"), [4, 8], 9, "cosine")
    imported = builtins.__import__
    refused: list[str] = []

    def without(name: str, *others: object) -> object:
        if name.startswith("m2dr.index.exact.compiled"):
            refused.append(name)
            raise ImportError("No module named 'numba'")
        return imported(name, *others)

    monkeypatch.setattr(builtins, "__import__", without)
    found = prefix_top_k(queries.astype("f"), vectors.astype("f"), [4, 8], 9, "cosine")

    assert refused
    for dim, parts in found.items():
        for one, other in zip(parts, compiled[dim], strict=True):
            np.testing.assert_array_equal(one, other)


def test_what_is_compiled_is_kept_on_disk_and_small_scans_do_not_load_it(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np, torch\n"
        "torch.set_num_threads(1)\n"
        "from m2dr.index.exact import prefix_top_k\n"
        "ones = np.ones((400, 4), 'f')\n"
        "prefix_top_k(ones, ones, [4], 1, 'dot')\n"
        "assert 'numba' not in sys.modules\n"
        "from m2dr.index.exact import search\n"
        "search._COMPILED = 0\n"
        "prefix_top_k(ones, ones, [4], 1, 'dot')\n"
        "from m2dr.index.exact import compiled\n"
        "print(sum(compiled._enter.stats.cache_hits.values()))\n"
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
