"""Losses of scores and embeddings, and the compressed targets of ESE; functions of tensors alone.

Shapes: … any leading cuts, B queries or pairs, N documents or second sentences, D dims kept,
H width.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from m2dr.core.variants import Compression
from m2dr.training.scores import TINY, own_scores


def contrastive(scores: Tensor, excluded: Tensor, temperature: float) -> Tensor:
    """Return the cross entropy of each query's positive among all documents of the batch.

    Args:
        scores: [..., B, N]; the positive of query b is column b.
        excluded: [B, N], True where a document must not count as a negative: it is, or may be,
            another positive of that query.
        temperature: divides the scores; in their unit.

    Returns:
        [...] nats per query; log N when the scores say nothing and nothing is excluded.
    """
    return _cross_entropies(scores, excluded, temperature).mean(dim=-1)


def contrastive_apart(scores: Tensor, excluded: Tensor, temperature: float) -> Tensor:
    """Return `contrastive` among the positives of the batch, plus that among own documents.

    A query's negatives count in a softmax of their own, beside its positive (ML-Embed, its code).

    Args:
        scores: [..., B, N] as `contrastive`; behind the B positives the negatives of each query.
        excluded: [B, N].
        temperature: divides the scores.

    Returns:
        [...] nats per query; the first part alone where a query has no negatives.
    """
    count = len(excluded)
    among = contrastive(scores[..., :count], excluded[:, :count], temperature)
    negatives = scores.shape[-1] // count - 1
    own = own_scores(scores, negatives) / temperature
    own = own.masked_fill(own_scores(excluded, negatives), -torch.inf)
    return among + (own.logsumexp(dim=-1) - own[..., 0]).mean(dim=-1)


def imitation(student: Tensor, teacher: Tensor) -> Tensor:
    """Return KL(softmax teacher || softmax student) per row, in nats.

    Both get a gradient: a caller detaches the teacher.

    Args:
        student: [..., B, D] logits.
        teacher: the same shape.

    Returns:
        [...] mean over the B rows.
    """
    log_student = torch.log_softmax(student, dim=-1)
    log_teacher = torch.log_softmax(teacher, dim=-1)
    return (log_teacher.exp() * (log_teacher - log_student)).sum(dim=-1).mean(dim=-1)


def margin_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean squared error of margins: each query's first score less every other one.

    Args:
        student: [..., B, 1 + n] scores of a query's own documents, its positive first.
        teacher: [B, 1 + n], the teacher's scores of the same documents.

    Returns:
        [...] (Hofstätter et al. 2020, arXiv:2010.02666).
    """
    margins = student[..., :1] - student[..., 1:]
    return (margins - (teacher[..., :1] - teacher[..., 1:])).square().mean(dim=(-2, -1))


def alignment(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return MSE + KL of a prefix to its target (ESE, eq. 6; Wang et al. 2024, eq. 10).

    Args:
        student: [..., B, D] prefixes of embeddings, or scores of each query with all documents.
        teacher: the same shape.
        temperature: divides both inside the softmax, in their unit.

    Returns:
        [...].
    """
    error = (student - teacher).square().mean(dim=(-2, -1))
    return error + imitation(student / temperature, teacher / temperature)


def cosent(similarities: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the loss of pairs that are not in the order of their labels (CoSENT, Su 2022).

    log(1 + Σ exp((s_j - s_i) / τ)) over all pairs of pairs with label_i > label_j. Only the order
    of the labels counts, and of the similarities only their differences. With the pairs sorted by
    label, the sum over the higher labels is a running sum: the [B, B] differences never exist.

    Args:
        similarities: [..., B].
        labels: [B], higher for pairs that are more similar.
        temperature: divides the similarities; in their unit.

    Returns:
        [...] nats in float32 or better; 0 when all labels are equal, log(1 + ordered pairs) when
        all similarities are.
    """
    similarities = similarities if similarities.dtype == torch.float64 else similarities.float()
    labels, order = labels.sort()
    logits = similarities[..., order] / temperature
    remaining = (-logits.flip(-1)).logcumsumexp(dim=-1).flip(-1)  # log Σ exp(-s_i / τ)
    first_higher = torch.searchsorted(labels, labels, right=True)  # B where none is: exp(-inf)
    higher = pad(remaining, (0, 1), value=-torch.inf)[..., first_higher]
    return pad(logits + higher, (0, 1)).logsumexp(dim=-1)  # the 0 is log 1


def angle_similarities(first: Tensor, second: Tensor) -> Tensor:
    """Return the angle similarity of pairs of complex vectors (AnglE, arXiv:2309.12871).

    The first half of the dims are real parts, the second half imaginary ones. With x = a + bi and
    y = c + di, the public code sums real and imaginary parts of x ȳ / (|x| |y|) over the dims and
    takes the absolute value. All of it is one product, with y turned by 45° and stretched by √2:
    |a·(c - d) + b·(c + d)| / (|x| |y|).

    Args:
        first: [..., B, D], not normalised.
        second: the same shape; exchanging the two changes the number.

    Returns:
        [..., B], from 0 to √2; 1 for equal vectors. The gradient at 0 is taken as zero, so a zero
        vector, which has no angle, learns nothing.
    """
    real, imaginary = second.chunk(2, dim=-1)
    turned = torch.cat([real - imaginary, real + imaginary], dim=-1)
    return ((first * turned).sum(dim=-1) * _inverse_norms(first) * _inverse_norms(second)).abs()


def in_batch(scores: Tensor, excluded: Tensor, positive: Tensor, temperature: float) -> Tensor:
    """Return the cross entropy of each positive pair's second sentence among all of the batch.

    Args:
        scores: [..., B, N]; the second sentence of pair b is column b.
        excluded: [B, N], True where a sentence must not count as a negative.
        positive: [B], True where the pair is a positive. Second sentences of other pairs are
            negatives nevertheless.
        temperature: divides the scores; in their unit.

    Returns:
        [...] nats per positive pair; 0 when there is none.
    """
    found = _cross_entropies(scores, excluded, temperature).where(positive, 0)
    return found.sum(dim=-1) / positive.sum().clamp(min=1)


def in_batch_of_all(
    scores: Tensor, excluded: Tensor, positive: Tensor, temperature: float
) -> Tensor:
    """Return the cross entropy of each text's partner among all other texts, as in AnglE's code.

    Args:
        scores: [..., 2B, 2B] of the first sentences and then the second ones with one another.
        excluded: [B, B], True where two sentences must not count as each other's negatives.
        positive: [B], True where the pair is a positive; the loss of other pairs is 0, and counts
            in the mean.
        temperature: divides the scores; in their unit.

    Returns:
        [...] nats per text.
    """
    count = len(positive)
    masked = torch.zeros(2 * count, 2 * count, dtype=torch.bool, device=scores.device)
    masked[:count, count:], masked[count:, :count] = excluded, excluded.mT
    masked.fill_diagonal_(True)
    logits = (scores / temperature).masked_fill(masked, -torch.inf)
    texts = torch.arange(2 * count, device=scores.device)
    partners = logits[..., texts, texts.roll(count)]
    return (logits.logsumexp(dim=-1) - partners).where(positive.repeat(2), 0).mean(dim=-1)


def _cross_entropies(scores: Tensor, excluded: Tensor, temperature: float) -> Tensor:
    """Return the cross entropy of each query: [..., B, N] to [..., B]."""
    logits = (scores / temperature).masked_fill(excluded, -torch.inf)
    return logits.logsumexp(dim=-1) - logits.diagonal(dim1=-2, dim2=-1)


def _inverse_norms(vectors: Tensor) -> Tensor:
    """Return 1 / length: [..., B, D] to [..., B]."""
    return vectors.square().sum(dim=-1).clamp(min=TINY).rsqrt()


@torch.no_grad()
def compressed(vectors: Tensor, dim: int, method: Compression = "dependencies") -> Tensor:
    """Return the target of the longest prefix; the target of a shorter one is a prefix of it.

    dependencies: with A = softmax(XᵀX / √H) = U Σ Vᵀ the target is X · U[:, :D] Σ[:D, :D] (ESE,
    eq. 3 to 5, of the batch as in its code). text-dependencies: the same of each text alone, as
    written: a decomposition [H, H] per text. embeddings: X = U Σ Vᵀ itself is decomposed, the
    target is U[:, :D] Σ[:D, :D]. max-k: the target is X · M, where row i of M holds the D largest
    entries of row i of A.

    The decomposition is exact, in float32 or better under autocast too, and each component's
    largest entry is made positive: a randomised one without signs gives the same batch another
    target at each call.

    Args:
        vectors: [B, H], not normalised.
        dim: the longest prefix that is to be aligned, D.
        method: what is compressed; "none" has no target and is not called.

    Returns:
        [B, D], without gradient.
    """
    x = vectors.detach()
    x = x if x.dtype == torch.float64 else x.float()
    with torch.autocast(x.device.type, enabled=False):
        return _target(x, dim, method)


def _target(x: Tensor, dim: int, method: Compression) -> Tensor:
    """Return the target [B, D] of vectors [B, H] in float32 or better."""
    if method == "text-dependencies":
        return torch.cat([_target(text[None], dim, "dependencies") for text in x])
    relations = x if method == "embeddings" else _relations(x)
    if not torch.isfinite(relations).all():
        return _no_target(x, dim)
    if method == "embeddings":
        target = x @ _signed(_strongest(x.mT, min(x.shape[0], dim))[0])  # X V = U Σ
        return torch.nn.functional.pad(target, (0, dim - target.shape[1]))  # rank is B at most
    if method == "max-k":
        strongest: Tensor = x @ relations.topk(dim, dim=-1).values
        return strongest
    components, strengths = _strongest(relations, dim)
    exact: Tensor = x @ (_signed(components) * strengths)
    return exact


def compressed_all(
    batches: Sequence[Tensor], dim: int, method: Compression = "dependencies"
) -> list[Tensor]:
    """Return `compressed` of several batches; on a CPU one thread each, on a gpu in one call.

    A decomposition of a few hundred columns is faster on one CPU thread than on two, and every
    layer of both sides has one. With one thread each, a target does not depend on their number.
    """
    if not batches:
        return []
    if _on_gpu(batches[0]):
        if method == "dependencies":
            return _compressed_together(batches, dim)
        return [compressed(batch, dim, method) for batch in batches]
    return list(
        _workers(torch.get_num_threads()).map(partial(compressed, dim=dim, method=method), batches)
    )


@torch.no_grad()
def _compressed_together(batches: Sequence[Tensor], dim: int) -> list[Tensor]:
    """Return `compressed` of several batches by one call that decomposes all dependencies."""
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
def compressed_randomised(vectors: Tensor, dim: int, seed: int) -> Tensor:
    """Return the target of ESE's public code: a randomised decomposition, signs as they come.

    Args and result as `compressed`; another seed gives another target. The state of torch's
    generators is left as it was, and all processes of a training have the same target.
    """
    x = vectors.detach().float()
    gpus = [x.device] if x.device.type == "cuda" else []
    with torch.autocast(x.device.type, enabled=False), torch.random.fork_rng(gpus):
        torch.manual_seed(seed)
        relations = _relations(x)
        if not torch.isfinite(relations).all():
            return _no_target(x, dim).to(vectors.dtype)
        components, strengths, _ = torch.svd_lowrank(relations, q=dim)
        target: Tensor = x @ (components * strengths)
    return target.to(vectors.dtype)


def _no_target(x: Tensor, dim: int) -> Tensor:
    """Return NaN for what cannot be decomposed, so that the loss names the part that is broken."""
    return x.new_full((len(x), dim), torch.nan)


def _relations(x: Tensor) -> Tensor:
    """Return how much each dim depends on each other dim: [H, H], rows sum to 1."""
    return torch.softmax(x.mT @ x / x.shape[1] ** 0.5, dim=-1)


def _strongest(matrices: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return left singular vectors [..., n, count] and values [..., count] of [..., n, m].

    The largest value comes first. On a gpu they are the eigenvectors of A Aᵀ, of all matrices in
    one call, in float64, whose precision makes up for the squares; `scripts/on_a_gpu` compares this
    with a decomposition of each.
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
    """Make the largest entry of each column positive."""
    largest = components.abs().argmax(dim=-2, keepdim=True)
    return components * components.gather(-2, largest).sign()
