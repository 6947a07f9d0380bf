"""What each choice of a row makes of its formula, and what two rows make together."""

from formulas import DIM, DIMS, LAYERS, PATH, SHALLOW, STAIRS, H, L, Paper, log_weight
from recipes import (
    GRID,
    Formula,
    Weight,
    compress,
    elastic,
    express,
    full_dim,
    many_dims,
    mipic,
    mrl,
    score,
    scores_to_width,
    starbuck,
    starbucks,
    uniform,
    wide,
)
from torch import Tensor

Changes = dict[str, object]


def falling(layer: int) -> float:
    """Evenly from 1 at the first layer; the last one counts 1."""
    return 1.0 if layer == L else 1 - (layer - 1) / L


def towards(p: Paper, teacher: str, cuts: list[tuple[int, int]], w: Weight = log_weight) -> Tensor:
    """Scores imitate the last layer's at the same width, or the whole encoder's."""
    return sum(
        w(layer) * p.score_align((layer, k), (L, k) if teacher == "depth" else (L, H))
        for layer, k in cuts
        if (layer, k) != (L, k) or teacher == "whole"
    )


def embeddings(p: Paper, add_mse: bool = True) -> Tensor:
    return sum(log_weight(layer) * p.embedding((layer, DIM), add_mse) for layer in SHALLOW)


def doubted(p: Paper) -> Tensor:
    """ESE's learned weights: the last layer has none."""
    return (
        p.ce(L, DIM)
        + p.pca(L, DIM)
        + sum(
            (-log_variance).exp() * (p.ce(layer, DIM) + p.pca(layer, DIM)) + log_variance
            for layer, log_variance in zip(SHALLOW, p.log_variances, strict=True)
        )
    )


ONE = [(layer, DIM) for layer in LAYERS]

CASES: dict[str, tuple[str, Changes, Formula]] = {
    # What is imitated.
    "no alignment": ("2dmse", {"align": "none"}, lambda p: p.ce(L, H) + express(p)),
    "embeddings": (
        "2dmse",
        {"align": "embedding"},
        lambda p: p.ce(L, H) + express(p) + embeddings(p),
    ),
    "embeddings without add_mse": (
        "2dmse",
        {"align": "embedding", "add_mse": False},
        lambda p: p.ce(L, H) + express(p) + embeddings(p, add_mse=False),
    ),
    "pca without add_mse": (
        "2dmse",
        {"add_mse": False},
        lambda p: (
            p.ce(L, H)
            + express(p)
            + sum(log_weight(n) * p.pca(n, DIM, add_mse=False) for n in LAYERS)
        ),
    ),
    "scores of the last layer": (
        "score",
        {"teacher": "depth"},
        lambda p: p.ce(L, H) + express(p) + towards(p, "depth", ONE),
    ),
    "scores of the whole": (
        "score",
        {"teacher": "whole"},
        lambda p: p.ce(L, H) + express(p) + towards(p, "whole", ONE),
    ),
    "scores of the width at full width too": (
        "score",
        {"full_dim": True, "prefixes": "many"},
        lambda p: p.ce(L, H) + express(p, DIMS) + wide(p) + scores_to_width(p, DIMS),
    ),
    # What counts how much.
    "every layer alike": (
        "2dmse",
        {"weights": "uniform"},
        lambda p: p.ce(L, H) + express(p, w=uniform) + compress(p, w=uniform),
    ),
    "evenly falling": (
        "full-dim",
        {"weights": "linear"},
        lambda p: p.ce(L, H) + express(p, w=falling) + wide(p, w=falling) + compress(p, w=falling),
    ),
    "learned": ("ese", {"weights": "dynamic"}, doubted),
    "learned, of one layer": ("mrl", {"weights": "dynamic"}, mrl),
    "beta": ("ese", {"align_weight": 0.25}, lambda p: express(p) + 0.25 * compress(p)),
    "alpha": ("2dmse", {"alpha": 0.7}, lambda p: 0.7 * (p.ce(L, H) + express(p)) + compress(p)),
    "share": (
        "2dmse",
        {"share": 0.5},
        lambda p: p.ce(L, H) + 0.5 * express(p) + compress(p),
    ),
    "no whole": ("dims", {"whole": False}, lambda p: express(p, DIMS) + compress(p, DIMS)),
    "elastic without averaging": (
        "elastic",
        {"average": False},
        lambda p: p.ce(L, H) + (elastic(p) - p.ce(L, H)) * len(GRID),
    ),
    "the mean of both sides' alignment": (
        "full-dim",
        {"average": True},
        lambda p: p.ce(L, H) + (express(p) + wide(p) + compress(p)) / (2 * L - 1),
    ),
    # Rows combined.
    "fixed-doc and full-dim": ("fixed-doc", {"full_dim": True}, full_dim),
    "fixed-doc and dims": ("fixed-doc", {"prefixes": "many"}, many_dims),
    "fixed-doc and both": (
        "fixed-doc",
        {"prefixes": "many", "full_dim": True},
        lambda p: many_dims(p) + wide(p),
    ),
    "fixed-doc and score": ("fixed-doc", {"align": "score"}, score),
    "fixed-doc and embeddings": (
        "fixed-doc",
        {"align": "embedding"},
        lambda p: p.ce(L, H) + express(p) + embeddings(p),
    ),
    "fixed-doc and elastic": ("elastic", {"documents": "last"}, elastic),
    "fixed-doc and starbucks": ("starbucks", {"documents": "last"}, starbucks),
    "fixed-doc and a staircase alone": (
        "starbucks",
        {"documents": "last", "align": "none", "whole": False},
        lambda p: sum(p.ce(*stair) for stair in STAIRS),
    ),
    "fixed-doc and mipic": ("mipic", {"documents": "last"}, mipic),
    "score and ese": ("ese", {"align": "score"}, lambda p: express(p) + scores_to_width(p)),
    "dims and ese": ("ese", {"prefixes": "many"}, lambda p: express(p, DIMS) + compress(p, DIMS)),
    "starbucks by weights": (
        "starbucks",
        {"weights": "log"},
        lambda p: p.ce(L, H) + sum(log_weight(s[0]) * starbuck(p, s) for s in STAIRS),
    ),
    # MIPIC.
    "mipic without its chain": ("mipic", {"pic": False}, lambda p: 0.4 * mrl(p)),
    "mipic at full width throughout": (
        "mipic",
        {"full_checkpoints": True},
        lambda p: 0.4 * mrl(p) + 0.6 * p.chain([(layer, H) for layer, _ in PATH]),
    ),
    "mipic and dims": (
        "dims",
        {"pic": True, "alpha": 0.5},
        lambda p: 0.5 * (p.ce(L, H) + express(p, DIMS)) + compress(p, DIMS) + 0.5 * p.chain(),
    ),
}
