from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.evaluate import figures, theme
from m2dr.evaluate.figures import Theme, draw_heat_map, quality_over_dims, save
from m2dr.evaluate.grid import Grid

COARSE = 50  # dots per inch
DIMS = (8, 16, 32, 64, 128, 256, 384)


def grid(
    model: str = "mine",
    layers: Sequence[int] = range(1, 7),
    dims: Sequence[int] = DIMS,
    scale: float = 0.1,
) -> Grid:
    cuts = [Cut(layer, dim) for layer in layers for dim in dims]
    cells = {cut: {"nDCG@10": scale * cut.layer * cut.dim / (cut.dim + 30)} for cut in cuts}
    return Grid(model, "pydocs", "test", 2234, cells)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were made, to look at what is in them; coarse, to be quick."""
    made: list[Figure] = []
    monkeypatch.setattr(theme, "DPI", COARSE)

    def keep(make: Callable[[float, float, Theme], Figure]) -> Callable[..., Figure]:
        return lambda width, height, theme: made.append(make(width, height, theme)) or made[-1]

    monkeypatch.setattr(figures, "new_figure", keep(theme.new_figure))
    return made


@pytest.mark.parametrize("models", [1, 3, 4])
def test_each_model_has_a_panel_on_one_scale_and_no_panel_is_empty(
    models: int, drawn: list[Figure], tmp_path: Path
) -> None:
    names = [f"model {i}" for i in range(models)]
    grids = [grid(name, scale=0.1 / (place + 1)) for place, name in enumerate(names)]

    quality_over_dims(grids, "nDCG@10", tmp_path / "figure.png")

    panels = drawn[0].axes
    assert [axes.get_title() for axes in panels] == names
    assert [len(axes.lines) for axes in panels] == [6] * models
    assert {axes.get_ylim() for axes in panels} == {panels[0].get_ylim()}


def test_lines_hold_the_values_and_ticks_are_the_dims(drawn: list[Figure], tmp_path: Path) -> None:
    some = grid(layers=(2, 4))

    quality_over_dims([some], "nDCG@10", tmp_path / "figure.png")

    (axes,) = drawn[0].axes
    assert [label.get_text() for label in axes.get_xticklabels()] == list(map(str, DIMS))
    assert axes.get_xscale() == "log"
    deep = axes.lines[1]
    assert list(deep.get_xdata()) == list(DIMS)
    assert list(deep.get_ydata()) == [some.cells[Cut(4, dim)]["nDCG@10"] for dim in DIMS]


def test_the_legend_names_every_layer_deepest_first_in_the_colour_of_its_lines(
    drawn: list[Figure], tmp_path: Path
) -> None:
    grids = [grid("shallow", layers=(0, 1, 2)), grid("deep", layers=(2, 12))]

    quality_over_dims(grids, "nDCG@10", tmp_path / "figure.png")

    (legend,) = drawn[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["12", "2", "1", "0"]
    colours = [line.get_color() for line in legend.get_lines()]
    assert [line.get_color() for line in drawn[0].axes[0].lines] == colours[:0:-1]
    assert [line.get_color() for line in drawn[0].axes[1].lines] == [colours[1], colours[0]]
    shades = [sum(colour[:3]) for colour in colours]
    assert shades == sorted(set(shades))  # darkest first, and all apart in grey print too


def test_the_title_says_what_was_measured_on_what(drawn: list[Figure], tmp_path: Path) -> None:
    quality_over_dims([grid()], "nDCG@10", tmp_path / "figure.png")

    assert drawn[0].get_suptitle() == "nDCG@10 on pydocs test, 2234 queries"


@pytest.mark.parametrize(
    "dims",
    [(128,), DIMS, (8, 16, 32, 64, 128, 256, 512, 768), (32, 64, 128, 256, 512, 1024, 1536, 2048)],
)
@pytest.mark.parametrize("models", [1, 3])
def test_labels_of_dims_do_not_touch(
    models: int, dims: tuple[int, ...], drawn: list[Figure], tmp_path: Path
) -> None:
    grids = [grid(f"model {i}", dims=dims) for i in range(models)]

    quality_over_dims(grids, "nDCG@10", tmp_path / "figure.png")

    labels = drawn[0].axes[0].get_xticklabels()
    if any(label.get_rotation() for label in labels):
        assert dims[-1] == 2048  # leaning is for what cannot stand
    else:
        boxes = [label.get_window_extent() for label in labels]
        assert all(left.x1 < right.x0 for left, right in zip(boxes, boxes[1:], strict=False))


LONG = "bert-base-uncased trained on everything at every layer and every dim, seed 13, again"


@pytest.mark.parametrize("draw", ["lines", "heat"])
@pytest.mark.parametrize("layers", [(1,), tuple(range(37))], ids=["one layer", "37 layers"])
def test_all_there_is_to_read_lies_inside_the_picture(
    layers: tuple[int, ...], draw: str, drawn: list[Figure], tmp_path: Path
) -> None:
    some, path = grid(LONG, layers=layers, dims=(8, 16)), tmp_path / "figure.png"

    if draw == "lines":
        quality_over_dims([some], "nDCG@10", path)
    else:
        save(draw_heat_map(some, "nDCG@10"), path)

    figure = drawn[0]
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= figure.get_figwidth()
    assert box.y1 <= figure.get_figheight()
    assert figure.axes[0].get_window_extent().height >= 0.3 * COARSE  # one cell is readable


def test_a_picture_is_a_png_fit_for_print(tmp_path: Path) -> None:
    path = tmp_path / "new" / "figure.png"

    quality_over_dims([grid(dims=(8, 16))], "nDCG@10", path)

    height, width, _ = imread(path).shape
    assert (width, height) == (840, 700)  # 4.2 by 3.5 inches at 200 dots per inch


def test_the_same_grid_gives_the_same_picture(tmp_path: Path) -> None:
    quality_over_dims([grid(dims=(8, 16))], "nDCG@10", tmp_path / "a.png")
    quality_over_dims([grid(dims=(8, 16))], "nDCG@10", tmp_path / "b.png")

    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize("name", ["$x^{$", "模型", "a_b\\c", ""])
@pytest.mark.usefixtures("drawn")
def test_a_model_may_be_called_anything(name: str, tmp_path: Path) -> None:
    quality_over_dims([grid(name)], "nDCG@10", tmp_path / "lines.png")
    save(draw_heat_map(grid(name), "nDCG@10"), tmp_path / "heat.png")

    assert len(list(tmp_path.iterdir())) == 2


def test_a_heat_map_shows_every_measured_cut_and_the_best_in_bold(
    drawn: list[Figure], tmp_path: Path
) -> None:
    cells = {Cut(0, 8): {"RR@10": 0.125}, Cut(4, 16): {"RR@10": 0.5}}

    diagonal = Grid("diagonal", "pydocs", "test", 9, cells)
    save(draw_heat_map(diagonal, "RR@10"), tmp_path / "heat.png")

    axes = drawn[0].axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "4"]
    texts = {text.get_text(): text.get_fontweight() for text in axes.texts}
    assert texts == {".1250": "normal", ".5000": "bold"}


def test_a_figure_of_different_queries_is_refused(tmp_path: Path) -> None:
    other = Grid("yours", "nfcorpus", "test", 323, grid().cells)

    with pytest.raises(UserError, match="cannot be compared"):
        quality_over_dims([grid(), other], "nDCG@10", tmp_path / "figure.png")


def test_a_figure_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No grid was given"):
        quality_over_dims([], "nDCG@10", tmp_path / "figure.png")
