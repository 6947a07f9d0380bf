import sys

import numpy as np
import pytest

from m2dr.core.errors import UserError
from m2dr.evaluate.overlap import draw_overlap, overlap

VECTORS = np.random.default_rng(7).normal(size=(40, 16)).astype(np.float32)


def test_distances_are_those_of_the_formula() -> None:
    found = overlap("m", 6, VECTORS, 4)

    space = []
    for row in VECTORS.astype(np.float64):
        short = np.zeros(16)
        short[:4] = row[:4] / np.sqrt(sum(x * x for x in row[:4]))
        space.append(np.sqrt(((row / np.sqrt((row * row).sum()) - short) ** 2).sum()))
    assert found.in_space == pytest.approx(np.mean(space))
    plane = [np.hypot(*(a - b)) for a, b in zip(found.full, found.prefix, strict=True)]
    assert found.in_plane == pytest.approx(np.mean(plane))


def test_the_plane_is_that_of_largest_variance() -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    found = overlap("m", 6, VECTORS, 4)

    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    short = np.zeros_like(unit)
    short[:, :4] = VECTORS[:, :4] / np.linalg.norm(VECTORS[:, :4], axis=1, keepdims=True)
    both = np.concatenate([unit - unit.mean(0), short - short.mean(0)])
    theirs = decomposition.PCA(2, svd_solver="full").fit_transform(both)
    ours = np.concatenate([found.full, found.prefix])
    assert np.abs(ours) == pytest.approx(np.abs(theirs), abs=1e-5)


def test_a_prefix_that_holds_everything_lies_on_the_whole() -> None:
    vectors = VECTORS.copy()
    vectors[:, 4:] = 0

    found = overlap("m", 6, vectors, 4)

    assert found.in_space == pytest.approx(0, abs=1e-7)
    assert found.in_plane == pytest.approx(0, abs=1e-7)


def test_each_model_has_a_panel_with_both_clouds_and_their_distances() -> None:
    found = [overlap("one", 6, VECTORS, 4), overlap("two", 6, VECTORS, 8)]

    figure = draw_overlap(found, "title")

    for axes, one in zip(figure.axes, found, strict=True):
        whole, prefix = axes.collections
        assert np.array_equal(whole.get_offsets(), one.full)
        assert np.array_equal(prefix.get_offsets(), one.prefix)
        assert f"{one.in_space:.3f}" in axes.get_xlabel()


def test_t_sne_gives_the_same_picture_each_time() -> None:
    pytest.importorskip("sklearn")

    one, two = (overlap("m", 6, VECTORS, 4, "tsne") for _ in range(2))

    assert np.array_equal(one.full, two.full)
    assert one.full.shape == (40, 2)


def test_t_sne_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)

    with pytest.raises(UserError, match=r"m2dr\[tasks\]"):
        overlap("m", 6, VECTORS, 4, "tsne")


@pytest.mark.parametrize(
    ("count", "dim", "method", "sentence"),
    [
        (40, 16, "pca", "A prefix of 16 of 16"),
        (40, 0, "pca", "A prefix of 0"),
        (2, 4, "pca", "An overlap cannot be drawn of 2 texts"),
        (40, 4, "umap", "There is no projection 'umap'"),
    ],
)
def test_what_makes_no_picture_is_refused(count: int, dim: int, method: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        overlap("m", 6, VECTORS[:count], dim, method)
