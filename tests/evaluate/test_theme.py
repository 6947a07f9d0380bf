from pathlib import Path
from xml.etree import ElementTree

import pytest

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.evaluate.figures import THEMES, Theme, draw_quality_over_dims, save, stroke, svg_text
from m2dr.evaluate.grid import Grid

CELLS = {Cut(layer, dim): {"RR@10": 0.01 * layer * dim} for layer in (1, 2) for dim in (8, 16)}
GRID = Grid("mine", "pydocs", "test", 9, CELLS)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    total = 0.0
    for weight, start in ((0.2126, 1), (0.7152, 3), (0.0722, 5)):
        share = int(colour[start : start + 2], 16) / 255
        total += weight * (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4)
    return total


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_every_ink_is_told_apart_from_its_paper(theme: Theme) -> None:
    assert contrast(theme.ink, theme.paper) >= 4.5
    assert contrast(theme.muted, theme.paper) >= 4.5
    assert min(contrast(colour, theme.paper) for colour in theme.models) >= 3


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_no_two_of_eight_models_share_a_marker_so_that_grey_print_tells_them_apart(
    theme: Theme,
) -> None:
    strokes = [stroke(theme, place) for place in range(8)]

    assert len({drawn["marker"] for drawn in strokes}) == 8
    assert len({drawn["color"] for drawn in strokes}) == 8


def test_an_svg_keeps_its_words_and_is_the_same_each_time(tmp_path: Path) -> None:
    path = save(draw_quality_over_dims([GRID], "RR@10"), tmp_path / "a.svg")

    text = path.read_text()
    assert "RR@10 on pydocs test, 9 queries" in text
    assert text == svg_text(draw_quality_over_dims([GRID], "RR@10"))


@pytest.mark.parametrize("name", ["a\x1b[31mb", "nul\x00", "half \ud83d", "\x9b0m", "\ufffe"])
def test_a_figure_of_any_name_is_xml(name: str, tmp_path: Path) -> None:
    grid = Grid(name, name, name, 9, CELLS)

    path = save(draw_quality_over_dims([grid], "RR@10"), tmp_path / "a.svg")

    root = ElementTree.parse(path).getroot()  # our own file
    assert "\ufffd" in "".join(root.itertext())
    assert save(draw_quality_over_dims([grid], "RR@10"), tmp_path / "a.png").exists()


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"was to be drawn as gif. Known: png, svg"):
        save(draw_quality_over_dims([GRID], "RR@10"), tmp_path / "a.gif")
