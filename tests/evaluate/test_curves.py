from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.evaluate.comparison import published, published_sets
from m2dr.evaluate.costs import Cost, Costs
from m2dr.evaluate.figures import (
    DARK,
    LIGHT,
    draw_gap_to,
    draw_gap_to_whole,
    draw_quality,
    draw_tradeoff,
)
from m2dr.evaluate.grid import Grid
from m2dr.evaluate.pick import BYTES, LATENCY

LAYERS, DIMS = (2, 4, 6), (8, 32, 128)


def grid(model: str, scale: float = 0.1, measure: str = "RR@10", queries: int = 9) -> Grid:
    cuts = [Cut(layer, dim) for layer in LAYERS for dim in DIMS]
    cells = {cut: {measure: scale * cut.layer * cut.dim / (cut.dim + 30)} for cut in cuts}
    return Grid(model, "pydocs", "test", queries, cells)


def costs(model: str, slow: float = 1.0) -> Costs:
    cells = {
        Cut(layer, dim): Cost(slow * layer + dim / 1e4, 2 * slow * layer, 100.0, 4 * dim, 10, 10)
        for layer in LAYERS
        for dim in DIMS
    }
    return Costs(model, "f", "c", Cut(6, 128), "same", 9, 9, 7.0, "f32", "here", cells)


def drawn(figure: Figure, panel: int, line: int) -> list[tuple[float, float]]:
    found = figure.axes[panel].lines[line]
    return list(zip(map(float, found.get_xdata()), map(float, found.get_ydata()), strict=True))


def test_each_layer_has_a_panel_and_each_model_a_line_with_the_values_of_its_grid() -> None:
    grids = [grid("one"), grid("two", 0.05)]

    figure = draw_quality(grids, "RR@10")

    assert [axes.get_title() for axes in figure.axes] == ["layer 2", "layer 4", "layer 6"]
    for place, layer in enumerate(LAYERS):
        for line, held in enumerate(grids):
            expected = [(dim, held.cells[Cut(layer, dim)]["RR@10"]) for dim in DIMS]
            assert drawn(figure, place, line) == expected
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two"]


def test_gaps_to_the_whole_are_differences_to_the_largest_cut() -> None:
    one = grid("one")

    figure = draw_gap_to_whole([one], "RR@10")

    whole = one.cells[Cut(6, 128)]["RR@10"]
    expected = [(dim, one.cells[Cut(2, dim)]["RR@10"] - whole) for dim in DIMS]
    assert drawn(figure, 0, 1) == expected  # line 0 is where nothing is gained or lost


def test_gaps_to_a_reference_are_differences_cut_by_cut() -> None:
    figure = draw_gap_to([grid("one")], grid("separate", 0.2), "RR@10")

    expected = {dim: (0.1 - 0.2) * 4 * dim / (dim + 30) for dim in DIMS}
    assert dict(drawn(figure, 1, 1)) == pytest.approx(expected)
    assert "Gap to separate" in figure.get_suptitle()


def test_published_curves_are_drawn_where_the_measure_is_the_same_and_named_as_such() -> None:
    beside = published(["msmarco:FULL-DIM", "beir13:2DMSE"])

    figure = draw_quality([grid("one")], "RR@10", beside)

    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["one", "FULL-DIM (published; MS MARCO dev)"]
    assert dict(drawn(figure, 0, 1))[768] == 0.2681  # printed for layer 2
    assert "arXiv 2411.17299" in figure.get_suptitle().replace("\n", " ")
    assert [axes.get_title() for axes in figure.axes] == ["layer 2", "layer 4", "layer 6"]


def test_published_sets_hold_what_their_sources_print() -> None:
    held = {name: {one.recipe: one for one in some} for name, some in published_sets().items()}

    assert held["beir13"]["2DMSE"].cells[Cut(12, 768)] == 0.37
    assert held["starbucks-msmarco"]["srl"].cells[Cut(6, 128)] == 0.2983
    assert held["starbucks-sts"]["separate"].cells[Cut(2, 32)] == 0.6948
    assert all(len(one.cells) == 48 for one in held["msmarco"].values())


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("msmarko", "There are no published scores 'msmarko'. Did you mean msmarco?"),
        ("beir13:FULL-DIM", "have no recipe 'FULL-DIM'"),
    ],
)
def test_published_scores_that_are_not_there_are_refused(asked: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence.replace("?", r"\?")):
        published([asked])


def test_one_cell_is_a_figure_too() -> None:
    one = Grid("one", "c", "s", 9, {Cut(6, 384): {"RR@10": 0.5}})

    for figure in (draw_quality([one], "RR@10"), draw_gap_to_whole([one], "RR@10")):
        assert len(figure.axes) == 1
        assert figure.axes[0].lines


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("models", [1, 3, 9])
def test_nothing_to_read_overlaps_or_leaves_the_picture(models: int, look) -> None:
    grids = [grid(f"a model with quite a long name {i}", 0.1 / (i + 1)) for i in range(models)]

    figure = draw_quality(grids, "RR@10", published(["msmarco"]), look)

    figure.draw_without_rendering()
    (legend,) = figure.legends
    below = legend.get_window_extent()
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= figure.get_figwidth()
    assert box.y1 <= figure.get_figheight()
    for axes in figure.axes:
        assert not axes.get_tightbbox().overlaps(below)
        assert axes.get_window_extent().height > 0.9 * figure.dpi


@pytest.mark.parametrize("price", [LATENCY, BYTES])
def test_every_cut_is_a_point_and_the_frontier_passes_the_best(price: str) -> None:
    one, held = grid("one"), costs("one")

    figure = draw_tradeoff([one], {"one": held}, "RR@10", price)

    points = set(drawn(figure, 0, 0))
    expected = {
        (
            held.cells[cut].latency_p50_ms
            if price == LATENCY
            else held.cells[cut].bytes_per_document,
            one.cells[cut]["RR@10"],
        )
        for cut in one.cuts
    }
    assert points == expected
    best = {
        (x, y) for x, y in points
        if not any(a <= x and b >= y and (a, b) != (x, y) for a, b in points)
    }  # fmt: skip
    assert set(drawn(figure, 0, 1)) >= best


def test_a_model_without_costs_is_left_out_and_keeps_no_place() -> None:
    figure = draw_tradeoff([grid("one"), grid("two")], {"two": costs("two")}, "RR@10", LATENCY)

    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["two", "frontier"]


def test_costs_of_no_model_are_refused() -> None:
    with pytest.raises(UserError, match="costs of none of these models"):
        draw_tradeoff([grid("one")], {}, "RR@10", LATENCY)


@pytest.mark.parametrize(
    ("low", "high"),
    [(1.31, 1.42), (2.1, 4.4), (0.031, 0.034), (11, 19), (0.9, 1.1), (3, 3), (5, 900), (1, 2e6)],
)
def test_an_axis_of_prices_has_three_ticks_with_names_at_least(low: float, high: float) -> None:
    one = grid("one")
    at = dict(zip(one.cuts, np.linspace(low, high, len(one.cuts)), strict=True))
    cells = {cut: Cost(value, 2 * value, 9.0, 8, 10, 10) for cut, value in at.items()}

    figure = draw_tradeoff([one], {"one": replace(costs("one"), cells=cells)}, "RR@10", LATENCY)

    figure.draw_without_rendering()
    (axes,) = figure.axes
    left, right = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if left <= tick <= right]
    labels = [text for text in axes.get_xticklabels() if text.get_text()]
    assert len(ticks) >= 3
    assert len({text.get_text() for text in labels}) == len(ticks)  # none is rounded to another
    boxes = [text.get_window_extent() for text in labels]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_names_of_cuts_do_not_touch() -> None:
    near = {dim: 0.5 + dim / 1e5 for dim in range(8, 20)}  # twelve cuts all but on one spot
    near |= {4: 0.1, 900: 0.9}  # and two far from it
    one = Grid("one", "c", "s", 9, {Cut(2, dim): {"RR@10": value} for dim, value in near.items()})
    cells = {
        Cut(2, dim): Cost(0.5 + (dim > 4) + dim / 1e4 + 2 * (dim == 900), 2.0, 9.0, dim, 10, 10)
        for dim in near
    }

    figure = draw_tradeoff([one], {"one": replace(costs("one"), cells=cells)}, "RR@10", LATENCY)

    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert boxes
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


@pytest.mark.parametrize("quality", [0.05, 0.45])
def test_layer_0_is_named_far_left_of_the_layers(quality: float) -> None:
    values = {Cut(0, 64): quality, **{Cut(layer, 64): 0.5 + layer / 20 for layer in range(1, 7)}}
    fitted = Grid("one", "c", "s", 9, {cut: {"RR@10": value} for cut, value in values.items()})
    cells = {
        cut: Cost(cut.layer or 0.03, 2.0 * (cut.layer or 0.03), 9.0, 256, 10, 10) for cut in values
    }

    figure = draw_tradeoff([fitted], {"one": replace(costs("one"), cells=cells)}, "RR@10", LATENCY)

    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert "L0D64" in [text.get_text() for text in axes.texts]
    panel = axes.get_window_extent().padded(2)
    for box in (text.get_window_extent() for text in axes.texts):
        assert panel.x0 <= box.x0
        assert panel.y0 <= box.y0
        assert box.y1 <= panel.y1


def test_grids_of_different_queries_are_refused() -> None:
    with pytest.raises(UserError, match="cannot be compared"):
        draw_quality([grid("one"), grid("two", queries=10)], "RR@10")
