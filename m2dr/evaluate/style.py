"""How every figure looks: inks on light and dark paper, strokes that grey print tells apart."""

import re
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from io import StringIO
from itertools import pairwise
from math import log2
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from m2dr.errors import UserError, nearest
from m2dr.evaluate.html import legal
from m2dr.io import aside

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 200
FORMATS = ("png", "svg")
# Names come from users: a dollar sign in one is a dollar sign, never the start of a formula.
PLAIN: dict[str, Any] = {"parse_math": False}
# Colours run from one end of viridis to the other as layers go deeper, so that grey print keeps
# the order. It is made for colour-blind readers; its ends are lost on the paper they resemble.
PALETTE, _FAR = "viridis", 0.75
_NEAR = 0.85  # of the palette turned round on dark paper, whose darkest quarter is lost there
# Each model has a marker and a dash of its own: no figure needs its colours to be read.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
_SHADE = re.compile(r"(stroke|fill): (#[0-9a-f]{6})")
_LEGEND_WIDTH = 34  # letters of a name before it folds


@dataclass(frozen=True)
class Look:
    """The inks of a figure. Every one is told apart from the paper by 3 to 1, text by 4.5 to 1."""

    name: str
    paper: str
    ink: str  # text, axes, frontiers
    muted: str  # what others published, thin lines that must still be seen
    rule: str  # of the grid, which carries nothing
    models: tuple[str, ...]  # far apart for colour-blind readers, after Okabe and Ito


LIGHT = Look(
    "light",
    paper="#ffffff",
    ink="#1b1f24",
    muted="#68707b",
    rule="#e4e7eb",
    models=("#0a62a9", "#c04c00", "#007a5c", "#a8327c", "#7a6200", "#4d4fc4", "#9c1f1f", "#30363d"),
)
DARK = Look(
    "dark",
    paper="#14181d",
    ink="#e8ebef",
    muted="#98a2ae",
    rule="#2c333b",
    models=("#62b0f5", "#ff9650", "#45cfa4", "#f095d0", "#dcc94f", "#aba8ff", "#ff9292", "#d5dae0"),
)
LOOKS = {look.name: look for look in (LIGHT, DARK)}


def stroke(look: Look, place: int) -> dict[str, Any]:
    """Colour, marker and dash of the model at this place of the legend; sizes in points."""
    return {
        "color": look.models[place % len(look.models)],
        "marker": _MARKERS[place % len(_MARKERS)],
        "linestyle": _DASHES[place % len(_DASHES)],
        "markersize": 4.5,
        "linewidth": 1.5,
    }


def faint_stroke(look: Look, place: int) -> dict[str, Any]:
    """The same for what others published: hollow markers on thin dotted lines."""
    return {
        "color": look.muted,
        "marker": _MARKERS[place % len(_MARKERS)],
        "linestyle": (0, (1, 1.6)),
        "markersize": 4.5,
        "linewidth": 1.0,
        "markerfacecolor": look.paper,
    }


def layer_colours(layers: Collection[int], look: Look) -> dict[int, Any]:
    """Layer -> colour, deepest first, which differs most from the paper."""
    from matplotlib import colormaps

    step = _FAR / max(len(layers) - 1, 1)
    places = [step * i for i in range(len(layers))]
    if look is DARK:
        places = [1 - _NEAR * place for place in places]
    return {
        layer: colormaps[PALETTE](place)
        for layer, place in zip(sorted(layers, reverse=True), places, strict=True)
    }


def new_figure(width: float, height: float, look: Look) -> "Figure":
    """An empty figure, in inches, that belongs to no global list and opens no window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor=look.paper)


def dress(axes: "Axes", look: Look) -> None:
    """Ink and paper of one panel; thin rules behind the lines, no frame above or beside."""
    axes.set_facecolor(look.paper)
    axes.grid(color=look.rule, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color(look.ink)
    axes.tick_params(which="both", colors=look.ink)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set_color(look.ink)


def name_panel(axes: "Axes", name: str, width: float, look: Look) -> None:
    """A name above its panel of `width` inches, on as many lines as it takes."""
    axes.set_title(fill(name, int(width / 0.1)), fontsize=10, color=look.ink, **PLAIN)


def dims_axis(axes: "Axes", dims: Sequence[int], width: float) -> None:
    """The dims themselves on a scale where each doubling is one step, in a panel `width` wide.

    Labels lean where two would touch, such as 1024 and 1536; a digit is 0.085 inches wide.
    """
    axes.set_xscale("log", base=2)
    axes.set_xticks(dims, labels=[str(dim) for dim in dims])
    axes.minorticks_off()
    doubling = (width - 0.7) / (1.1 * max(log2(dims[-1] / dims[0]), 1))  # inches, without margins
    gaps = [(log2(right / left) * doubling, len(str(right))) for left, right in pairwise(dims)]
    touching = any(gap < 0.085 * digits + 0.04 for gap, digits in gaps)
    axes.tick_params(axis="x", rotation=45 if touching else 0)


def legend_below(
    figure: "Figure", handles: Sequence[Any], names: Sequence[str], look: Look
) -> None:
    """Under all panels, in as many columns as fit, with room made for its rows."""
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
        labelcolor=look.ink,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def head(figure: "Figure", title: str, look: Look, rows: int = 1) -> None:
    """Put `title` above the `rows` of panels; what folds makes the figure higher, not the panels.

    Each further line is 0.18 inches.
    """
    width = int(figure.get_figwidth() / 0.1)
    lines = [fill(line, width) for line in title.split("\n")]
    figure.suptitle("\n".join(lines), fontsize=11, color=look.ink, **PLAIN)
    folds = rows * max(axes.get_title().count("\n") for axes in figure.axes)
    more = folds + figure.get_suptitle().count("\n")
    figure.set_figheight(figure.get_figheight() + 0.18 * more)


def save(figure: "Figure", path: Path) -> Path:
    """Write a figure as its suffix says, whole or not at all, the same bytes each time.

    Raises:
        UserError: the suffix is neither .png nor .svg.
    """
    kind = path.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise UserError(
            f"{path.name} was to be drawn as {kind or 'no format at all'}. {nearest(kind, FORMATS)}"
        )
    with aside(path) as unfinished:
        if kind == "png":
            _draw(figure, unfinished, format="png", metadata={"Software": None})
        else:
            unfinished.write_text(svg_text(figure), encoding="utf-8", newline="")
    return path


def svg_text(figure: "Figure") -> str:
    """A figure as SVG whose words stay words: they can be read out, searched and copied."""
    from matplotlib import rc_context

    out = StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "m2dr"}):
        _draw(figure, out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format")))
    return out.getvalue()


def inline_svg(figure: "Figure", key: str, title: str) -> str:
    """An SVG to stand inside a page: it follows the page's light or dark, and asks for nothing.

    Args:
        figure: drawn in the light look, whose inks become CSS variables.
        key: letters that no other figure of the page has; each id begins with it.
        title: what the picture shows, for those who hear it; escaped already.
    """
    text = svg_text(figure)
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    # Only between < and >, which no name contains here: names are text, and stay as they are.
    text = re.sub(r"<[^>]*>", lambda tag: _inlined(tag[0], key), text[text.index("<svg") :])
    label = f'role="img" aria-labelledby="{key}-title"'
    first, rest = text.split(">", 1)
    return f'{first} {label}><title id="{key}-title">{title}</title>{rest}'


def _inlined(tag: str, key: str) -> str:
    """One tag without name spaces, which HTML knows, with its own ids and with inks by name."""
    tag = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", tag)
    tag = re.sub(r'(\sid=")', rf"\1{key}-", tag)
    tag = _SHADE.sub(_in_both, tag)
    tag = re.sub(r'\s(?:xlink:)?href="#', f' href="#{key}-', tag).replace("url(#", f"url(#{key}-")
    for name, colour in inks(LIGHT).items():
        tag = tag.replace(colour, f"var({name})")
    return tag


def _in_both(shade: re.Match[str]) -> str:
    """A colour of a layer, and after it, for browsers that know how, one for either paper.

    On dark paper the palette is turned round: what differs most from the paper stays so.
    """
    name, colour = shade[1], shade[2]
    dark = _turned().get(colour)
    return f"{name}: {colour}; {name}: light-dark({colour}, {dark})" if dark else shade[0]


@cache
def _turned() -> dict[str, str]:
    """Each colour of the palette on light paper -> the one in its place on dark paper."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    shades = [to_hex(colormaps[PALETTE](place)) for place in range(256)]
    return {shade: shades[255 - round(_NEAR * place)] for place, shade in enumerate(shades)}


def inks(look: Look) -> dict[str, str]:
    """CSS variable -> colour; the same variables for every look."""
    models = {f"--figure-{place}": colour for place, colour in enumerate(look.models)}
    return {
        "--figure-paper": look.paper,
        "--figure-ink": look.ink,
        "--figure-muted": look.muted,
        "--figure-rule": look.rule,
        **models,
    }


def _draw(figure: "Figure", target: Any, **options: Any) -> None:  # noqa: ANN401  # as savefig takes them
    from matplotlib.text import Text

    for words in figure.findobj(Text):
        words.set_text(legal(words.get_text()))  # names come from users: an escape is no SVG
    with warnings.catch_warnings():
        # A model may be called by letters that the font has not; a box in their place will do.
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure.savefig(target, **options)
