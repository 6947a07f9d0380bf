"""The theme of all figures: inks on light and dark paper, strokes, and files of PNG and SVG."""

import re
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from math import log2
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from m2dr.core.errors import UserError, nearest
from m2dr.core.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 200
FORMATS = ("png", "svg")
PLAIN: dict[str, Any] = {"parse_math": False}  # a dollar sign in a user's name starts no formula
# Deeper layers take later colours of viridis, which keeps its order in grey print and for
# colour-blind readers. Its lightest quarter is left out on light paper.
PALETTE, _FAR = "viridis", 0.75
_NEAR = 0.85  # on dark paper the palette is reversed and its darkest 15 % are left out
# Each model has a marker and a dash of its own, so that figures can be read without colours.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
_LEGEND_WIDTH = 34  # characters of a name before it wraps
# Characters that XML cannot hold (control characters, halves of surrogate pairs), and the control
# characters of Latin-1, which browsers read as other letters.
_NO_XML = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Theme:
    """The inks of a figure, with a contrast of 3:1 to the paper at least, and 4.5:1 for text."""

    name: str
    paper: str
    ink: str  # of text, axes and frontiers
    muted: str  # of published scores
    rule: str  # of grid lines, which need no contrast
    models: tuple[str, ...]  # distinct for colour-blind readers, after Okabe and Ito


LIGHT = Theme(
    "light",
    paper="#ffffff",
    ink="#1b1f24",
    muted="#68707b",
    rule="#e4e7eb",
    models=("#0a62a9", "#c04c00", "#007a5c", "#a8327c", "#7a6200", "#4d4fc4", "#9c1f1f", "#30363d"),
)
DARK = Theme(
    "dark",
    paper="#14181d",
    ink="#e8ebef",
    muted="#98a2ae",
    rule="#2c333b",
    models=("#62b0f5", "#ff9650", "#45cfa4", "#f095d0", "#dcc94f", "#aba8ff", "#ff9292", "#d5dae0"),
)
THEMES = {theme.name: theme for theme in (LIGHT, DARK)}


def stroke(theme: Theme, place: int) -> dict[str, Any]:
    """Return colour, marker and dash of the model at a place of the legend; sizes in points."""
    return {
        "color": theme.models[place % len(theme.models)],
        "marker": _MARKERS[place % len(_MARKERS)],
        "linestyle": _DASHES[place % len(_DASHES)],
        "markersize": 4.5,
        "linewidth": 1.5,
    }


def faint_stroke(theme: Theme, place: int) -> dict[str, Any]:
    """Return the same for published scores: hollow markers on thin dotted lines."""
    return {
        "color": theme.muted,
        "marker": _MARKERS[place % len(_MARKERS)],
        "linestyle": (0, (1, 1.6)),
        "markersize": 4.5,
        "linewidth": 1.0,
        "markerfacecolor": theme.paper,
    }


def layer_colours(layers: Collection[int], theme: Theme) -> dict[int, Any]:
    """Return layer -> colour, deepest first, which has the most contrast to the paper."""
    from matplotlib import colormaps

    step = _FAR / max(len(layers) - 1, 1)
    places = [step * i for i in range(len(layers))]
    if theme is DARK:
        places = [1 - _NEAR * place for place in places]
    return {
        layer: colormaps[PALETTE](place)
        for layer, place in zip(sorted(layers, reverse=True), places, strict=True)
    }


def new_figure(width: float, height: float, theme: Theme) -> "Figure":
    """Return an empty figure, sizes in inches, that pyplot does not know."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor=theme.paper)


def dress(axes: "Axes", theme: Theme) -> None:
    """Set the inks of one panel: thin rules behind the lines, no frame at the top and right."""
    axes.set_facecolor(theme.paper)
    axes.grid(color=theme.rule, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color(theme.ink)
    axes.tick_params(which="both", colors=theme.ink)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set_color(theme.ink)


def name_panel(axes: "Axes", name: str, width: float, theme: Theme) -> None:
    """Write a name above its panel of `width` inches, wrapped."""
    axes.set_title(fill(name, int(width / 0.1)), fontsize=10, color=theme.ink, **PLAIN)


def dims_axis(axes: "Axes", dims: Sequence[int], width: float) -> None:
    """Label the x axis of a panel of `width` inches with the dims, on a base-2 logarithmic scale.

    Labels are rotated where two would touch, such as 1024 and 1536; a digit is 0.085 inches wide.
    """
    axes.set_xscale("log", base=2)
    axes.set_xticks(dims, labels=[str(dim) for dim in dims])
    axes.minorticks_off()
    doubling = (width - 0.7) / (1.1 * max(log2(dims[-1] / dims[0]), 1))  # inches, without margins
    gaps = [(log2(right / left) * doubling, len(str(right))) for left, right in pairwise(dims)]
    touching = any(gap < 0.085 * digits + 0.04 for gap, digits in gaps)
    axes.tick_params(axis="x", rotation=45 if touching else 0)


def legend_below(
    figure: "Figure", handles: Sequence[Any], names: Sequence[str], theme: Theme
) -> None:
    """Draw a legend under all panels, in as many columns as fit, and make the figure higher."""
    folded = [fill(name, _LEGEND_WIDTH) for name in names]
    longest = max(len(line) for name in folded for line in name.split("\n"))
    columns = max(1, min(len(folded), int(figure.get_figwidth() / (0.085 * longest + 0.6))))
    rows = [folded[start : start + columns] for start in range(0, len(folded), columns)]
    lines = sum(max(name.count("\n") + 1 for name in row) for row in rows)
    figure.set_figheight(figure.get_figheight() + 0.2 + 0.18 * lines)
    legend = figure.legend(
        handles,
        folded,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9,
        handlelength=3.2,
        labelcolor=theme.ink,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def head(figure: "Figure", title: str, theme: Theme, rows: int = 1) -> None:
    """Write `title` above `rows` of panels; each wrapped line adds 0.18 inches to the figure."""
    width = int(figure.get_figwidth() / 0.1)
    lines = [fill(line, width) for line in title.split("\n")]
    figure.suptitle("\n".join(lines), fontsize=11, color=theme.ink, **PLAIN)
    folds = rows * max(axes.get_title().count("\n") for axes in figure.axes)
    more = folds + figure.get_suptitle().count("\n")
    figure.set_figheight(figure.get_figheight() + 0.18 * more)


def save(figure: "Figure", path: Path) -> Path:
    """Write a figure in the format of the suffix, atomically and reproducibly.

    Raises:
        UserError: the suffix is neither .png nor .svg.
    """
    kind = path.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise UserError(
            f"{path.name} was to be drawn as {kind or 'no format at all'}. {nearest(kind, FORMATS)}"
        )
    with atomic_path(path) as unfinished:
        if kind == "png":
            _draw(figure, unfinished, format="png", metadata={"Software": None})
        else:
            unfinished.write_text(svg_text(figure), encoding="utf-8", newline="")
    return path


def svg_text(figure: "Figure") -> str:
    """Return a figure as SVG whose text is kept as text, for search, copying and screen readers."""
    from matplotlib import rc_context

    out = StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "m2dr"}):
        _draw(figure, out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format")))
    return out.getvalue()


def legal(text: str) -> str:
    r"""Return the text with U+FFFD for each character that a figure cannot hold.

    >>> legal("a\x1b[31mb\x00")
    'a\ufffd[31mb\ufffd'
    """
    return _NO_XML.sub("\ufffd", text)


def _draw(figure: "Figure", target: Any, **options: Any) -> None:  # as savefig takes them
    from matplotlib.text import Text

    for words in figure.findobj(Text):
        words.set_text(legal(words.get_text()))
    with warnings.catch_warnings():
        # Letters that the font lacks, as in the name of a model, are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure.savefig(target, **options)
