"""How far a prefix of an embedding lies from the full vector, in the plane and in all dims."""

# Shapes in this file:
#   N texts, H dims of the full vector.

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, counted, install, nearest
from m2dr.evaluate.theme import LIGHT, Theme, dress, head, name_panel, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
_ACROSS = 3  # panels side by side
_SEED = 13
_PERPLEXITY = 30.0  # default of t-SNE; it must be below the number of points


@dataclass(frozen=True, eq=False)
class Overlap:
    """The same texts as full vectors and as prefixes, projected to a plane."""

    model: str
    layer: int
    dim: int  # of the prefix
    width: int  # of the full vectors, H
    full: Floats  # [N, 2] in the plane
    prefix: Floats  # [N, 2] in the same plane
    in_plane: float  # mean distance of a text's two points, both clouds being centred
    in_space: float  # mean distance of its two unit vectors, from 0 to √2
    method: str  # of the projection: a key of METHODS


def overlap(
    model: str, layer: int, vectors: NDArray[np.float32], dim: int, method: str = "pca"
) -> Overlap:
    """Project full vectors and their first `dim` dims to one plane.

    Both are normalised, and prefixes are padded with zeros, so that both are points of one space;
    after figure 7 of Li et al. 2024 (ESE, arXiv:2402.14776), which projects them by t-SNE and
    prints the mean distance. Each of the two clouds is centred: an offset that all texts share
    changes no ranking, and would hide all else in the figure.

    Args:
        model: its name in the figure.
        layer: of the vectors.
        vectors: [N, H], not normalised, N at least 3.
        dim: of the prefix, below H.
        method: a key of METHODS.

    Raises:
        UserError: there are too few texts, no such prefix or method, or t-SNE is asked for without
            scikit-learn.
    """
    count, width = vectors.shape
    if not 0 < dim < width:
        raise UserError(
            f"A prefix of {dim} of {width} dims was asked for; ask for 1 to {width - 1}."
        )
    if count < 3:
        raise UserError(
            f"An overlap cannot be drawn of {counted(count, 'texts')}; give a corpus of 3 or more."
        )
    if method not in METHODS:
        raise UserError(f"There is no projection {method!r}. {nearest(method, METHODS)}")
    full = _unit(vectors.astype(np.float64))
    prefix = np.zeros_like(full)
    prefix[:, :dim] = _unit(vectors[:, :dim].astype(np.float64))
    plane = METHODS[method](np.concatenate([full - full.mean(0), prefix - prefix.mean(0)]))
    return Overlap(
        model,
        layer,
        dim,
        width,
        plane[:count],
        plane[count:],
        _mean_distance(plane[:count], plane[count:]),
        _mean_distance(full, prefix),
        method,
    )


def draw_overlap(overlaps: Sequence[Overlap], title: str, theme: Theme = LIGHT) -> "Figure":
    """Draw a panel per model and prefix: filled points are full vectors, hollow ones prefixes."""
    rows = ceil(len(overlaps) / _ACROSS)
    columns = ceil(len(overlaps) / rows)
    figure = new_figure(3.3 * columns, 3.6 * rows + 0.4, theme)
    for place, one in enumerate(overlaps):
        axes = figure.add_subplot(rows, columns, place + 1)
        x, y = one.full.T
        axes.scatter(x, y, s=12, color=theme.models[0], linewidths=0, label=str(one.width))
        x, y = one.prefix.T
        axes.scatter(
            x,
            y,
            s=14,
            facecolors="none",
            edgecolors=theme.models[1],
            marker="^",
            linewidths=0.7,
            label=f"first {one.dim}",
        )
        dress(axes, theme)
        axes.grid(visible=False)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_aspect("equal", adjustable="datalim")
        name_panel(axes, f"{one.model}, layer {one.layer}", 3.3, theme)
        caption = (
            f"mean distance {one.in_plane:.3g} in the plane,\n{one.in_space:.3f} of unit vectors"
        )
        axes.set_xlabel(caption, fontsize=9)
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False,
            fontsize=9, labelcolor=theme.ink, handletextpad=0.2,
        )  # fmt: skip
    head(figure, title, theme, rows)
    return figure


def _unit(vectors: Floats) -> Floats:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    found: Floats = vectors / np.where(norms > 0, norms, 1)
    return found


def _mean_distance(first: Floats, second: Floats) -> float:
    return float(np.linalg.norm(first - second, axis=1).mean())


def _pca(points: Floats) -> Floats:
    """Project to the plane of largest variance; each axis points where its sum is positive."""
    centred = points - points.mean(axis=0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
    axes = axes * np.where(axes.sum(axis=1, keepdims=True) < 0, -1.0, 1.0)
    found: Floats = centred @ axes.T
    return found


def _tsne(points: Floats) -> Floats:
    """Project by t-SNE (van der Maaten and Hinton 2008) from a fixed seed, starting with PCA."""
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise UserError(
            f"t-SNE needs scikit-learn. Draw by pca, or install it with: {install('tasks')}"
        ) from None
    perplexity = min(_PERPLEXITY, (len(points) - 1) / 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about future versions of scikit-learn
        points = TSNE(2, perplexity=perplexity, init="pca", random_state=_SEED).fit_transform(
            points
        )
    found: Floats = np.asarray(points, dtype=np.float64)
    return found


METHODS: dict[str, Callable[[Floats], Floats]] = {"pca": _pca, "tsne": _tsne}
