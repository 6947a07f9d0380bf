"""How far a prefix lies from the whole vector, in the plane and in all coordinates."""

# Shapes in this file:
#   N texts, H coordinates of the whole vector.

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError, counted, install, nearest
from m2dr.evaluate.style import LIGHT, Look, dress, head, name_panel, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
_ACROSS = 3
_SEED = 13
_PERPLEXITY = 30.0  # the usual one of t-SNE; it must be below the number of points


@dataclass(frozen=True, eq=False)
class Overlap:
    """The same texts by their whole vectors and by a prefix of them."""

    model: str
    layer: int
    dim: int  # of the prefix
    width: int  # of the whole
    whole: Floats  # [N, 2] in the plane
    prefix: Floats  # [N, 2] in the same plane
    in_plane: float  # mean distance of a text's two points, of centred clouds
    in_space: float  # mean distance of its two unit vectors, from 0 to √2
    way: str  # how the plane was found: a key of WAYS


def overlap(
    model: str, layer: int, vectors: NDArray[np.float32], dim: int, way: str = "pca"
) -> Overlap:
    """Put whole vectors and their first `dim` coordinates into one plane.

    Both are of unit length, the prefix cut first and then filled up with zeros, so that the two
    are points of one space; after figure 7 of Li et al. 2024 (ESE, arXiv:2402.14776), which draws
    them by t-SNE and prints the mean distance. In the plane each of the two clouds is centred: what
    all texts share moves no document above another, and would be all that one could see.

    Args:
        model: how the figure calls it.
        layer: that the vectors are of.
        vectors: [N, H], not normalised, N at least 3.
        dim: below H.
        way: a key of WAYS.

    Raises:
        UserError: too few texts, no such prefix or way, or t-SNE without scikit-learn.
    """
    count, width = vectors.shape
    if not 0 < dim < width:
        raise UserError(f"A prefix of {dim} of {width} coordinates was asked for; ask for fewer.")
    if count < 3:
        raise UserError(
            f"No picture of an overlap can be made of {counted(count, 'texts')}; give a corpus of "
            "3 or more."
        )
    if way not in WAYS:
        raise UserError(f"No plane is found by {way!r}. {nearest(way, WAYS)}")
    whole = _unit(vectors.astype(np.float64))
    prefix = np.zeros_like(whole)
    prefix[:, :dim] = _unit(vectors[:, :dim].astype(np.float64))
    plane = WAYS[way](np.concatenate([_centred(whole), _centred(prefix)]))
    return Overlap(
        model,
        layer,
        dim,
        width,
        plane[:count],
        plane[count:],
        _mean_distance(plane[:count], plane[count:]),
        _mean_distance(whole, prefix),
        way,
    )


def draw_overlap(overlaps: Sequence[Overlap], title: str, look: Look = LIGHT) -> "Figure":
    """Draw a panel per model and prefix: filled points are whole vectors, hollow ones prefixes."""
    rows = ceil(len(overlaps) / _ACROSS)
    columns = ceil(len(overlaps) / rows)
    figure = new_figure(3.3 * columns, 3.6 * rows + 0.4, look)
    for place, one in enumerate(overlaps):
        axes = figure.add_subplot(rows, columns, place + 1)
        x, y = one.whole.T
        axes.scatter(x, y, s=12, color=look.models[0], linewidths=0, label=str(one.width))
        x, y = one.prefix.T
        axes.scatter(
            x,
            y,
            s=14,
            facecolors="none",
            edgecolors=look.models[1],
            marker="^",
            linewidths=0.7,
            label=f"first {one.dim}",
        )
        dress(axes, look)
        axes.grid(visible=False)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_aspect("equal", adjustable="datalim")
        name_panel(axes, f"{one.model}, layer {one.layer}", 3.3, look)
        told = f"mean distance {one.in_plane:.3g} in the plane,\n{one.in_space:.3f} of unit vectors"
        axes.set_xlabel(told, fontsize=9)
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False,
            fontsize=9, labelcolor=look.ink, handletextpad=0.2,
        )  # fmt: skip
    head(figure, title, look, rows)
    return figure


def _unit(vectors: Floats) -> Floats:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    found: Floats = vectors / np.where(norms > 0, norms, 1)
    return found


def _centred(vectors: Floats) -> Floats:
    found: Floats = vectors - vectors.mean(axis=0)
    return found


def _mean_distance(first: Floats, second: Floats) -> float:
    return float(np.linalg.norm(first - second, axis=1).mean())


def _pca(points: Floats) -> Floats:
    """The plane of largest variance; of its two ways to point, the one that adds up above 0."""
    centred = points - points.mean(axis=0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
    axes = axes * np.where(axes.sum(axis=1, keepdims=True) < 0, -1.0, 1.0)
    found: Floats = centred @ axes.T
    return found


def _tsne(points: Floats) -> Floats:
    """Van der Maaten and Hinton 2008, from a fixed seed and from the plane of PCA."""
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise UserError(
            f"t-SNE needs scikit-learn. Draw by pca, or install it with: {install('tasks')}"
        ) from None
    perplexity = min(_PERPLEXITY, (len(points) - 1) / 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of versions to come, which change no point of this one
        made = TSNE(2, perplexity=perplexity, init="pca", random_state=_SEED).fit_transform(points)
    found: Floats = np.asarray(made, dtype=np.float64)
    return found


WAYS: dict[str, Callable[[Floats], Floats]] = {"pca": _pca, "tsne": _tsne}
