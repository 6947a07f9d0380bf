"""`m2dr figures` on folders as `m2dr evaluate` and `m2dr pick` leave them."""

from pathlib import Path

import numpy as np
import pytest
from commands import refused
from matplotlib.image import imread

from m2dr.core.records import Cut
from m2dr.core.requests import FiguresRequest
from m2dr.evaluation.costs import Cost, Costs, write_costs
from m2dr.evaluation.grid import Grid, write_grid
from m2dr.tasks.evaluating.figures import draw_figures, joined_grid, read_results

LAYERS, DIMS, QUERIES = (2, 4), (8, 16, 32), 12
EVIL = "<script>alert('1')</script>&\"$x^2$"


def left(
    folder: Path, model: str, seed: int = 0, queries: int = QUERIES, priced: bool = True
) -> None:
    """What an evaluation and a measurement of costs leave of one model."""
    cuts = tuple(Cut(layer, dim) for layer in LAYERS for dim in DIMS)
    values = np.random.default_rng(seed).random(len(cuts))
    cells = {cut: {"nDCG@10": float(value)} for cut, value in zip(cuts, values, strict=True)}
    write_grid(Grid(model, "corpus", "test", queries, cells), folder)
    if priced:
        costs = {c: Cost(1.5 * c.layer, 2.0 * c.layer, 90.0, 4 * c.dim, 10**6, 9) for c in cuts}
        place = ("models/none", "abc", "corpus", cuts[-1], "same", 99, 9, 7.5, "f32", "a machine")
        write_costs(Costs(*place, costs), folder)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Three models on one corpus, one with a wild name and without costs."""
    place = tmp_path / "results" / "corpus" / "test"
    left(place / "plain", "plain")
    left(place / "full-dim", "full-dim", 1)
    left(place / "evil", EVIL, 2, priced=False)
    return tmp_path / "results"


def test_every_kind_of_figure_in_every_format(results: Path, tmp_path: Path) -> None:
    files = draw_figures(FiguresRequest((results,), tmp_path / "out", formats=("png", "svg"))).files

    names = {path.name for path in files}
    stems = ("layers", "against-latency", "against-bytes", "models", "heat-plain")
    assert {f"nDCG@10-{stem}.{kind}" for stem in stems for kind in ("png", "svg")} <= names
    assert all(imread(path).std() > 0.01 for path in files if path.suffix == ".png")


def test_a_table_for_latex(results: Path, tmp_path: Path) -> None:
    (file,) = draw_figures(FiguresRequest((results,), tmp_path / "out", formats=("tex",))).files

    lines = file.read_text().splitlines()
    assert lines[1:5] == [
        r"\begin{tabular}{llrrr}", r"\toprule", r"layer & model & 8 & 16 & 32 \\", r"\midrule"
    ]  # fmt: skip
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    cells = [line.removesuffix(r" \\").split(" & ") for line in lines[5:-2]]
    assert cells[0][1] == r"<script>alert('1')</script>\&" + r'"\$x\^{}2\$'
    assert sum(cell.startswith(r"\textbf{.") for row in cells for cell in row) == 6


def test_a_table_for_latex_tells_systems_apart_once(tmp_path: Path) -> None:
    for name, system in (("a", "exact"), ("b", "hnsw")):
        grid = Grid(name, "corpus", "test", 9, {Cut(2, 8): {"RR@10": 0.5}}, system=system)
        write_grid(grid, tmp_path / "results" / name)
    request = FiguresRequest((tmp_path / "results",), tmp_path / "out", formats=("tex",))

    (file,) = draw_figures(request).files

    assert "& b (hnsw) &" in file.read_text()


def test_the_gap_to_separate_takes_one_model_per_cut(results: Path, tmp_path: Path) -> None:
    apart = tmp_path / "apart"
    for seed, cut in enumerate((Cut(2, 8), Cut(4, 32))):
        left(apart / str(cut), str(cut), seed + 7)

    files = draw_figures(FiguresRequest((results,), tmp_path / "out", separate=apart)).files

    joined = joined_grid(apart)
    assert joined.cuts == (Cut(2, 8), Cut(4, 32))
    assert joined.cells[Cut(4, 32)] == read_results([apart / "L4D32"])[0].grid.cells[Cut(4, 32)]
    assert any(path.name == "nDCG@10-gap-to-separate.png" for path in files)


def test_results_of_other_queries_are_not_drawn_together(here: Path) -> None:
    left(here / "mixed" / "one", "one")
    left(here / "mixed" / "two", "two", queries=5)

    assert "cannot be compared" in refused("figures", "mixed")
