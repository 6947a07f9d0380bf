"""Each recipe's loss as ALGORITHMS and the papers write it, term by term."""

from collections.abc import Callable, Sequence

from formulas import DIM, DIMS, LAYERS, SHALLOW, STAIRS, H, L, Paper, log_weight
from torch import Tensor

Formula = Callable[[Paper], Tensor]
Weight = Callable[[int], float]
GRID = [(layer, k) for layer in SHALLOW for k in (*DIMS, H)] + [(L, k) for k in DIMS]


def uniform(_: int) -> float:
    return 1.0


def plain(p: Paper) -> Tensor:
    return p.ce(L, H)


def separate(p: Paper) -> Tensor:
    return p.ce(L, DIM)


def mrl(p: Paper) -> Tensor:
    return p.ce(L, H) + sum(p.ce(L, k) for k in DIMS)


def express(p: Paper, dims: Sequence[int] = (DIM,), w: Weight = log_weight) -> Tensor:
    """The base loss of every layer at some prefixes: ESE, eq. 2; Wang et al. 2024, eq. 9."""
    return sum(w(layer) * p.ce(layer, k) for layer in LAYERS for k in dims)


def compress(p: Paper, dims: Sequence[int] = (DIM,), w: Weight = log_weight) -> Tensor:
    """ESE, eq. 6; Wang et al. 2024, eq. 10."""
    return sum(w(layer) * p.pca(layer, k) for layer in LAYERS for k in dims)


def wide(p: Paper, w: Weight = log_weight) -> Tensor:
    """Full width of the shallow layers."""
    return sum(w(layer) * p.ce(layer, H) for layer in SHALLOW)


def scores_to_width(p: Paper, dims: Sequence[int] = (DIM,)) -> Tensor:
    return sum(
        log_weight(layer) * p.score_align((layer, k), (layer, H)) for layer in LAYERS for k in dims
    )


def two_dmse(p: Paper) -> Tensor:
    return p.ce(L, H) + express(p) + compress(p)


def full_dim(p: Paper) -> Tensor:
    return two_dmse(p) + wide(p)


def many_dims(p: Paper) -> Tensor:
    return p.ce(L, H) + express(p, DIMS) + compress(p, DIMS)


def score(p: Paper) -> Tensor:
    return p.ce(L, H) + express(p) + scores_to_width(p)


def starbucks(p: Paper) -> Tensor:
    return p.ce(L, H) + sum(starbuck(p, stair) for stair in STAIRS)


def starbuck(p: Paper, stair: tuple[int, int]) -> Tensor:
    return p.ce(*stair) + p.score_align(stair, (L, H), add_mse=False)


def ese(p: Paper) -> Tensor:
    return express(p) + compress(p)


def elastic(p: Paper) -> Tensor:
    below = sum(0.3 * p.ce(*cut) + 0.3 * p.score_align(cut, (L, H), add_mse=False) for cut in GRID)
    return p.ce(L, H) + below / len(GRID)


def exits(p: Paper) -> Tensor:
    """Nothing at the last layer, which is frozen."""
    cuts = [cut for cut in GRID if cut[0] < L]
    terms = [p.ce(*cut) + p.score_align(cut, (L, H), add_mse=False) for cut in cuts]
    return sum(terms) / len(cuts)


def mipic(p: Paper) -> Tensor:
    """Without the token relations, which need states."""
    return 0.4 * mrl(p) + 0.6 * p.chain()


ROWS: dict[str, Formula] = {
    "plain": plain,
    "separate": separate,
    "mrl": mrl,
    "2dmse": two_dmse,
    "full-dim": full_dim,
    "dims": many_dims,
    "score": score,
    "fixed-doc": two_dmse,
    "starbucks": starbucks,
    "ese": ese,
    "mipic": mipic,
    "elastic": elastic,
    "exits": exits,
}


def four(p: Paper, layer: int, k: int) -> Tensor:
    """2DMSE v1, eq. 2 to 5, of one draw."""
    return p.ce(L, H) + p.ce(L, k) + p.ce(layer, H) + p.ce(layer, k)


def first_two_dmse(p: Paper, layer: int, k: int) -> Tensor:
    """2DMSE v1, eq. 7, of one draw."""
    return four(p, layer, k) + p.embedding((layer, H)) + p.embedding((layer, k))
