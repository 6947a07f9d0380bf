"""Draw prefixes over full vectors, as figure 7 of ESE (Li et al. 2024, arXiv:2402.14776).

    python scripts/reproduce/overlap.py MODEL... [--corpus pydocs] [--dim 128] [--by pca|tsne]

Each panel shows the same documents by their full vectors (filled) and by a prefix (hollow), both of
length one, the prefix padded with zeros, each cloud centred: an offset that all texts share changes
no ranking. The nearer the two points of a text, the more the prefix keeps.
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.evaluation.figures import MODEL_COLOURS, dress, head, name_panel, new_figure, save_figure
from m2dr.model import checkpoint
from m2dr.model.checkpoint import read_card
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.tasks.corpus import open_corpus

Floats = NDArray[np.float64]
ACROSS, SEED = 3, 13


def unit(vectors: NDArray[np.float32]) -> Floats:
    """Scale vectors [N, D] to length one."""
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    scaled: Floats = vectors / np.where(norms > 0, norms, 1)
    return scaled


def plane(points: Floats, by: str) -> Floats:
    """Project points [N, D] to [N, 2]."""
    if by == "tsne":
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(points) - 1) / 3)
        tsne = TSNE(2, perplexity=perplexity, init="pca", random_state=SEED)
        return np.asarray(tsne.fit_transform(points), np.float64)
    centred = points - points.mean(axis=0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
    axes = axes * np.where(axes.sum(axis=1, keepdims=True) < 0, -1.0, 1.0)
    flat: Floats = centred @ axes.T
    return flat


def main() -> None:
    """Encode a sample of documents with each model, and draw a panel per model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--corpus", default="pydocs")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--layer", type=int)
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--by", choices=("pca", "tsne"), default="pca")
    parser.add_argument("--out", type=Path, default=Path("figures/overlap.png"))
    given = parser.parse_args()
    dataset = open_corpus(given.corpus)
    rows = sorted({i * dataset.document_count // given.texts for i in range(given.texts)})
    texts = [dataset.document_at(row).content for row in rows]
    device = choose_device("auto")
    height = -(-len(given.models) // ACROSS)
    columns = -(-len(given.models) // height)
    figure = new_figure(3.3 * columns, 3.6 * height + 0.4)
    for place, model in enumerate(given.models):
        layer = given.layer or read_card(model).layers
        encoder = checkpoint.load(model, layer, device, choose_dtype("auto", device))
        vectors = encoder.vectors(texts, "document", [layer])[0]
        full = unit(vectors)
        prefix = np.zeros_like(full)
        prefix[:, : given.dim] = unit(vectors[:, : given.dim])
        both = np.concatenate([full - full.mean(0), prefix - prefix.mean(0)])
        whole, short = np.split(plane(both, given.by), 2)
        axes = figure.add_subplot(height, columns, place + 1)
        axes.scatter(
            whole[:, 0], whole[:, 1], s=12, color=MODEL_COLOURS[0], label=str(full.shape[1])
        )
        axes.scatter(
            short[:, 0], short[:, 1], s=14, marker="^", label=f"first {given.dim}",
            facecolors="none", edgecolors=MODEL_COLOURS[1],
        )  # fmt: skip
        dress(axes)
        axes.set(xticks=[], yticks=[])
        axes.set_aspect("equal", adjustable="datalim")
        name_panel(axes, f"{model}, layer {layer}", 3.3)
        flat, space = (
            np.linalg.norm(a - b, axis=1).mean() for a, b in ((whole, short), (full, prefix))
        )
        axes.set_xlabel(f"mean distance {flat:.3g} in the plane, {space:.3f} of unit vectors")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)
    head(figure, f"Prefixes and full vectors: {given.corpus}", height)
    print(save_figure(figure, given.out))  # noqa: T201


if __name__ == "__main__":
    main()
