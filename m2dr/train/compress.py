"""The compressed targets of ESE: what a prefix is told to look like."""

# Shapes in this room:
#   B vectors of a batch, H width, D coordinates kept.

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial

import torch
from torch import Tensor

from m2dr.records.variant import Compression


@torch.no_grad()
def compressed(vectors: Tensor, dim: int, how: Compression = "dependencies") -> Tensor:
    """Target of the longest prefix; the target of a shorter one is a prefix of it.

    dependencies: with A = softmax(XᵀX / √H) = U Σ Vᵀ the target is X · U[:, :D] Σ[:D, :D] (ESE,
    eq. 3 to 5). embeddings: X = U Σ Vᵀ itself is decomposed, the target is U[:, :D] Σ[:D, :D].
    max-k: the target is X · M, where row i of M holds the D largest entries of row i of A.

    The decomposition is exact, in float32 or better under autocast too, and each component's
    largest entry is made positive: a randomised, sign-free one gives the same batch another target
    at each call.

    Args:
        vectors: [B, H], not normalised.
        dim: the longest prefix that is to be aligned, D.
        how: what is compressed; "none" has no target and is not asked for.

    Returns:
        [B, D], without gradient.
    """
    x = vectors.detach()
    x = x if x.dtype == torch.float64 else x.float()
    with torch.autocast(x.device.type, enabled=False):
        return _target(x, dim, how)


def _target(x: Tensor, dim: int, how: Compression) -> Tensor:
    """[B, D] of vectors [B, H] in float32 or better."""
    relations = x if how == "embeddings" else _relations(x)
    if not torch.isfinite(relations).all():
        return _no_numbers(x, dim)
    if how == "embeddings":
        target = x @ _signed(_strongest(x.mT, min(x.shape[0], dim))[0])  # X V = U Σ
        return torch.nn.functional.pad(target, (0, dim - target.shape[1]))  # rank is B at most
    if how == "max-k":
        strongest: Tensor = x @ relations.topk(dim, dim=-1).values
        return strongest
    components, strengths = _strongest(relations, dim)
    exact: Tensor = x @ (_signed(components) * strengths)
    return exact


def compressed_all(
    batches: Sequence[Tensor], dim: int, how: Compression = "dependencies"
) -> list[Tensor]:
    """`compressed` of several batches; on a CPU side by side, one thread each, on a gpu together.

    A decomposition of a few hundred columns is quicker on one CPU thread than on two, and every
    layer of both sides has one. One thread each is also what makes a target the same however many
    there are.
    """
    if not batches:
        return []
    if _on_gpu(batches[0]):
        if how == "dependencies":
            return _compressed_together(batches, dim)
        return [compressed(batch, dim, how) for batch in batches]
    return list(
        _workers(torch.get_num_threads()).map(partial(compressed, dim=dim, how=how), batches)
    )


@torch.no_grad()
def _compressed_together(batches: Sequence[Tensor], dim: int) -> list[Tensor]:
    """`compressed` of several batches by one call that decomposes all their dependencies."""
    with torch.autocast(batches[0].device.type, enabled=False):
        wide = [b.detach() if b.dtype == torch.float64 else b.detach().float() for b in batches]
        relations = torch.stack([_relations(x) for x in wide])
        if not torch.isfinite(relations).all():
            return [compressed(batch, dim) for batch in batches]
        components, strengths = _strongest(relations, dim)
        kept = _signed(components) * strengths[:, None, :]
        return [x @ own for x, own in zip(wide, kept, strict=True)]


@lru_cache(maxsize=1)
def _workers(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "compress", initializer=torch.set_num_threads, initargs=(1,))


@torch.no_grad()
def compressed_by_lottery(vectors: Tensor, dim: int) -> Tensor:
    """The target as ESE's public code has it: of a randomised decomposition, signs as they come.

    Args and result as `compressed`; two calls give two targets, from the global random state.
    """
    x = vectors.detach().float()
    with torch.autocast(x.device.type, enabled=False):
        relations = _relations(x)
        if not torch.isfinite(relations).all():
            return _no_numbers(x, dim).to(vectors.dtype)
        components, strengths, _ = torch.svd_lowrank(relations, q=dim)
        target: Tensor = x @ (components * strengths)
    return target.to(vectors.dtype)


def _no_numbers(x: Tensor, dim: int) -> Tensor:
    """For what cannot be decomposed: the loss comes out as no number, and says which part it is."""
    return x.new_full((len(x), dim), torch.nan)


def _relations(x: Tensor) -> Tensor:
    """How much each coordinate depends on each other one: [H, H], rows sum to 1."""
    return torch.softmax(x.mT @ x / x.shape[1] ** 0.5, dim=-1)


def _strongest(matrices: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Left singular vectors [..., n, count] and values [..., count] of [..., n, m], best first.

    On a gpu they are the eigenvectors of A Aᵀ, of all matrices in one call, in float64, whose
    digits make up for the squares; `scripts/on_a_gpu` measures this beside a decomposition of each.
    """
    if not _on_gpu(matrices):
        vectors, values, _ = torch.linalg.svd(matrices, full_matrices=False)
        return vectors[..., :count], values[..., :count]
    wide = matrices.double()
    squares, vectors = torch.linalg.eigh(wide @ wide.mT)  # weakest first
    strongest = vectors[..., -count:].flip(-1).to(matrices.dtype)
    return strongest, squares[..., -count:].flip(-1).clamp(min=0).sqrt().to(matrices.dtype)


def _on_gpu(tensor: Tensor) -> bool:
    return tensor.device.type != "cpu"


def _signed(components: Tensor) -> Tensor:
    """The largest entry of each column made positive."""
    largest = components.abs().argmax(dim=-2, keepdim=True)
    return components * components.gather(-2, largest).sign()
