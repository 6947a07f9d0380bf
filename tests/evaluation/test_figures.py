"""Figures hold the values of their grids, and everything in them can be read."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from m2dr.core.records import Cut
from m2dr.evaluation import figures
from m2dr.evaluation.costs import BYTES, LATENCY, Cost, Costs
from m2dr.evaluation.figures import (
    draw_gap_to,
    draw_heat_map,
    draw_quality,
    draw_quality_over_dims,
    draw_tradeoff,
    save_figure,
)
from m2dr.evaluation.grid import Grid

LAYERS, DIMS = (2, 4, 6), (8, 32, 128)
ALL_DIMS = (8, 16, 32, 64, 128, 256, 384)


def grid(
    model: str = "mine",
    scale: float = 0.1,
    layers: Sequence[int] = LAYERS,
    dims: Sequence[int] = DIMS,
    queries: int = 9,
) -> Grid:
    cuts = [Cut(layer, dim) for layer in layers for dim in dims]
    cells = {cut: {"RR@10": scale * cut.layer * cut.dim / (cut.dim + 30)} for cut in cuts}
    return Grid(model, "pydocs", "test", queries, cells)


def costs(model: str, cells: dict[Cut, Cost] | None = None) -> Costs:
    cells = cells or {
        Cut(layer, dim): Cost(layer + dim / 1e4, 2 * layer, 100.0, 4 * dim, 10, 10)
        for layer in LAYERS
        for dim in DIMS
    }
    return Costs(model, "f", "c", Cut(6, 128), "same", 9, 9, 7.0, "f32", "here", cells)


@pytest.fixture(autouse=True)
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "DPI", 50)


def line(figure: Figure, panel: int, number: int) -> list[tuple[float, float]]:
    drawn = figure.axes[panel].lines[number]
    return list(zip(map(float, drawn.get_xdata()), map(float, drawn.get_ydata()), strict=True))


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("models", [1, 4])
def test_each_model_has_a_panel_on_one_scale(models: int) -> None:
    grids = [grid(f"model {i}", 0.1 / (i + 1), dims=ALL_DIMS) for i in range(models)]

    figure = draw_quality_over_dims(grids, "RR@10")

    assert [axes.get_title() for axes in figure.axes] == [one.model for one in grids]
    assert {axes.get_ylim() for axes in figure.axes} == {figure.axes[0].get_ylim()}
    labels = figure.axes[-1].get_xticklabels()
    assert [label.get_text() for label in labels] == list(map(str, ALL_DIMS))
    assert line(figure, 0, 1) == [(dim, grids[0].cells[Cut(4, dim)]["RR@10"]) for dim in ALL_DIMS]
    assert figure.get_suptitle() == "RR@10 on pydocs test, 9 queries"


def test_each_layer_has_a_panel_and_each_model_a_line() -> None:
    grids = [grid("one"), grid("two", 0.05)]

    figure = draw_quality(grids, "RR@10")

    assert [axes.get_title() for axes in figure.axes] == ["layer 2", "layer 4", "layer 6"]
    for place, layer in enumerate(LAYERS):
        for number, one in enumerate(grids):
            expected = [(dim, one.cells[Cut(layer, dim)]["RR@10"]) for dim in DIMS]
            assert line(figure, place, number) == expected
    assert legend(figure) == ["one", "two"]


def test_gaps_are_differences_to_another_model() -> None:
    one = grid("one")

    to_other = draw_gap_to([one], grid("separate", 0.2), "RR@10")

    expected = [(dim, pytest.approx((0.1 - 0.2) * 4 * dim / (dim + 30))) for dim in DIMS]
    assert line(to_other, 1, 0) == expected
    assert "Gap to separate" in to_other.get_suptitle()


def test_a_heat_map_shows_every_measured_cut_and_the_best_in_bold() -> None:
    cells = {Cut(0, 8): {"RR@10": 0.125}, Cut(4, 16): {"RR@10": 0.5}}

    axes = draw_heat_map(Grid("diagonal", "pydocs", "test", 9, cells), "RR@10").axes[0]

    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "4"]
    texts = {text.get_text(): text.get_fontweight() for text in axes.texts}
    assert texts == {".1250": "normal", ".5000": "bold"}


@pytest.mark.parametrize("price", [LATENCY, BYTES])
def test_every_cut_is_a_point_and_the_frontier_passes_the_best(price: str) -> None:
    one, known = grid("one"), costs("one")

    figure = draw_tradeoff([grid("no costs"), one], {"one": known}, "RR@10", price)

    name = "latency_p50_ms" if price == LATENCY else "bytes_per_document"
    points = {(getattr(known.cells[cut], name), one.cells[cut]["RR@10"]) for cut in one.cuts}
    assert set(line(figure, 0, 0)) == points
    best = {
        (x, y) for x, y in points
        if not any(a <= x and b >= y and (a, b) != (x, y) for a, b in points)
    }  # fmt: skip
    assert set(line(figure, 0, 1)) >= best
    assert legend(figure) == ["one", "frontier"]


@pytest.mark.parametrize("name", ["$x^{$", "模型", "a_b\\c", ""])
def test_any_name_can_be_drawn(name: str, tmp_path: Path) -> None:
    some = replace(grid(name), corpus=name)
    figure = draw_quality_over_dims([some], "RR@10")

    save_figure(figure, tmp_path / "new" / "a.png")
    save_figure(draw_heat_map(some, "RR@10"), tmp_path / "b.png")
    ElementTree.parse(save_figure(figure, tmp_path / "a.svg"))  # our own file

    assert imread(tmp_path / "b.png").std() > 0
