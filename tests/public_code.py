"""What the public code of the papers computes: float64, a loop per sum, nothing fused.

| name | repository@commit |
|---|---|
| AnglE | SeanLee97/AnglE@5155458; A34 = @74e5ba2 (v0.3.4), A38 = @347bbb6 (v0.3.8), A40 = @830e7bc |
| R | ielab/2DMSE-Reproduce@c7467c2; V1, V2 = its dense_2d_matryoshka.py and ..._v2.py |
| T | UKPLab/sentence-transformers@85ec6455, sentence_transformers/losses |
| S | ielab/Starbucks@2a3b24f |
| M | codefuse-ai/CodeFuse-Embeddings@f0abe7c, ML-Embed |
| N | duncan-nguyen/embedding-mrl@e210789, notebooks/MIPIC: authorship unproven |

Rows are texts, `states[l]` is the pooled state after l blocks (0 = embeddings), `x[:, :k]` the
first k coordinates, a `loss` maps a pooled batch to a scalar. Only what says detached is.
"""
# ruff: noqa: E741, N803 - l, K, T and W are the papers' letters

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

Loss = Callable[[Tensor], Tensor]
States = Mapping[int, Tensor]  # layer -> pooled states
Cut = tuple[int, int]  # layer, dim
Labels = Sequence[float] | Tensor


class Parts(NamedTuple):
    """One number for each part of AnglE's loss: a weight or a tau."""

    cosine: float
    ibn: float
    cln: float
    angle: float


def add(terms: Iterable[Tensor]) -> Tensor:
    """The sum of scalars, zero of none."""
    total = torch.zeros((), dtype=torch.float64)
    for term in terms:
        total = total + term
    return total


def ln_softmax(row: Tensor) -> Tensor:
    """The logarithm of the softmax of one row."""
    return row - torch.logsumexp(row, dim=0)


def mse(x: Tensor, y: Tensor) -> Tensor:
    """The mean over all entries."""
    return (x - y).square().mean()


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(softmax(teacher) || softmax(student)) of each row, the mean over rows ("batchmean")."""
    rows = []
    for t, s in zip(teacher, student, strict=True):
        rows.append((ln_softmax(t).exp() * (ln_softmax(t) - ln_softmax(s))).sum())
    return add(rows) / len(rows)


def cosine(x: Tensor, y: Tensor) -> Tensor:
    """The cosine of two vectors."""
    score: Tensor = (x @ y) / (x.norm() * y.norm())
    return score


def norm(x: Tensor) -> Tensor:
    """Every row divided by its length."""
    return torch.stack([row / row.norm() for row in x])


# 1. AnglE: parts


def ordered_pairs(scores: Sequence[Tensor], labels: Labels, tau: float) -> Tensor:
    """LSE0{ tau (s_i - s_j) : g_i < g_j }, AnglE (loss.py:36-44, 59-93)."""
    g = [float(label) for label in labels]
    terms = [scores[0] * 0]
    for i in range(len(g)):
        for j in range(len(g)):
            if g[i] < g[j]:
                terms.append(tau * (scores[i] - scores[j]))
    return torch.logsumexp(torch.stack(terms), dim=0)


def cosent_part(x: Tensor, y: Tensor, labels: Labels, tau: float) -> Tensor:
    """The CoSENT part, AnglE (loss.py:36-44)."""
    return ordered_pairs([cosine(a, b) for a, b in zip(x, y, strict=True)], labels, tau)


def angle_score(x: Tensor, y: Tensor) -> Tensor:
    """|x.y + b.c - a.d| / (|x||y|) of the halves x = (a, b), y = (c, d), AnglE (loss.py:59-93)."""
    half = len(x) // 2
    a, b = x[:half], x[half:]
    c, d = y[:half], y[half:]
    score: Tensor = (x @ y + b @ c - a @ d).abs() / (x.norm() * y.norm())
    return score


def angle_part(x: Tensor, y: Tensor, labels: Labels, tau: float) -> Tensor:
    """The angle part, of an even width, AnglE (loss.py:59-93)."""
    scores = [angle_score(a, b) for a, b in zip(x, y, strict=True)]
    return ordered_pairs(scores, labels, tau)


def in_batch_part(x: Tensor, y: Tensor, labels: Labels, tau: float) -> Tensor:
    """The 2B x 2B in-batch negatives, rows x_0, y_0, x_1, ..., AnglE (loss.py:114-144).

    Labels are truncated to integers; row i matches column j where j g_j = p(i) g_i and both labels
    are not zero, which for labels of 0 and 1 is the partner p(i) alone.
    """
    texts = [text for pair in zip(x, y, strict=True) for text in pair]
    g = [int(label) for label in labels for _ in range(2)]
    rows = [x.sum() * 0]
    for i, text in enumerate(texts):
        logits = [tau * cosine(text, other) for other in texts]
        logits[i] = torch.full_like(logits[i], -1e12 * tau)
        chances = ln_softmax(torch.stack(logits))
        partner = i + 1 if i % 2 == 0 else i - 1
        for j in range(len(texts)):
            if g[i] != 0 and g[j] != 0 and j * g[j] == partner * g[i]:
                rows.append(-chances[j])
    return add(rows) / len(texts)


def triples_part(q: Tensor, p: Tensor, n: Tensor | None, tau: float) -> Tensor:
    """CN(q, P), or CN(q, P then N): a mean cross entropy of tau cos, AnglE (loss.py:163-170).

    Alone and unweighted CN(q, P) is the loss of Format B.
    """
    candidates = [*p] if n is None else [*p, *n]
    rows = []
    for i, query in enumerate(q):
        logits = torch.stack([tau * cosine(query, candidate) for candidate in candidates])
        rows.append(-ln_softmax(logits)[i])
    return add(rows) / len(rows)


# 1. AnglE: base losses


def angle_pairs(x: Tensor, y: Tensor, labels: Labels, taus: Parts, weights: Parts) -> Tensor:
    """Format A, pairs with labels (`cln` has no part in it), AnglE (angle.py:581-664)."""
    return (
        weights.cosine * cosent_part(x, y, labels, taus.cosine)
        + weights.ibn * in_batch_part(x, y, labels, taus.ibn)
        + weights.angle * angle_part(x, y, labels, taus.angle)
    )


def triples_as_pairs(q: Tensor, p: Tensor, n: Tensor) -> tuple[Tensor, Tensor, list[float]]:
    """2B pairs: positives labelled 1, then negatives labelled 0."""
    return torch.cat([q, q]), torch.cat([p, n]), [1.0] * len(p) + [0.0] * len(n)


def angle_triples_051(q: Tensor, p: Tensor, n: Tensor, taus: Parts, weights: Parts) -> Tensor:
    """Triples of AnglE v0.5.1, nothing halved, R (STS_V2_Angle/angle_emb/angle.py:1026-1090)."""
    x, y, labels = triples_as_pairs(q, p, n)
    return (
        weights.ibn * triples_part(q, p, n, taus.ibn)
        + weights.angle * angle_part(x, y, labels, taus.angle)
        + weights.cosine * cosent_part(x, y, labels, taus.cosine)
    )


# 1. AnglE: ESE


def with_signs(u: Tensor) -> Tensor:
    """Columns with a positive entry of the largest magnitude."""
    return torch.stack([c if c[c.abs().argmax()] > 0 else -c for c in u.T], dim=1)


def ese_target(x: Tensor, k: int) -> Tensor:
    """X U Sigma of softmax(X'X / sqrt(H)), detached, AnglE (angle.py:360-382).

    The public code's decomposition is randomised and leaves the signs open, this one is exact.
    """
    x = x.detach()
    gram = x.T @ x / sqrt(x.shape[1])
    dependencies = torch.stack([ln_softmax(row).exp() for row in gram])
    u, sigma, _ = torch.linalg.svd(dependencies)
    return x @ with_signs(u)[:, :k] @ torch.diag(sigma[:k])


def ese_align(x: Tensor, k: int, target: Tensor | None = None) -> Tensor:
    """MSE and KL of a prefix against its target, AnglE (angle.py:360-382) at T = 1."""
    p = ese_target(x, k) if target is None else target.detach()
    return mse(x[:, :k], p) + kl(p, x[:, :k])


def ese(states: Sequence[Tensor], k: int, loss: Loss) -> Tensor:
    """The loss of ESE: embeddings in, layer L-1 out, AnglE (angle.py:465-564)."""
    last = len(states) - 1

    def exit_loss(x: Tensor) -> Tensor:
        return loss(x[:, :k]) + ese_align(x, k)

    shallow = [exit_loss(states[l]) / (1 + log(1 + l)) for l in range(last - 1)]
    return loss(states[last]) + exit_loss(states[last]) + add(shallow) / (last - 1)


def ese_unused_target(x: Tensor, k: int) -> Tensor:
    """U Sigma of X itself, detached, at most as many columns as X has rows; unused in A40."""
    u, sigma, _ = torch.linalg.svd(x.detach(), full_matrices=False)
    return with_signs(u)[:, :k] @ torch.diag(sigma[:k])


# 1. AnglE: 2DMSE before ESE


def v1_a34(states: Sequence[Tensor], l: int, k: int, loss: Loss) -> Tensor:
    """2DMSE of v0.3.4 at T = 1, the teacher attached, A34 (angle.py:775-866)."""
    last, shallow = states[-1], states[l]
    tasks = loss(last) + loss(shallow) + loss(last[:, :k]) + loss(shallow[:, :k])
    return tasks + kl(last, shallow)


# 2. ielab/2DMSE-Reproduce


def cross_entropy(q: Tensor, d: Tensor, tau: float) -> Tensor:
    """The mean over B queries, the positive of query i in column i N/B, R (arguments.py:36-48)."""
    step = len(d) // len(q)
    rows = [-ln_softmax(d @ query / tau)[i * step] for i, query in enumerate(q)]
    return add(rows) / len(rows)


def w_by_position(layers: Sequence[int]) -> dict[int, float]:
    """1 / (1 + ln j) of the j-th layer listed, 1 of the last listed, V2 (158-302)."""
    weights = {layer: 1 / (1 + log(j)) for j, layer in enumerate(layers, start=1)}
    weights[layers[-1]] = 1.0
    return weights


def score_alignment(student: Tensor, teacher: Tensor, tau: float) -> Tensor:
    """MSE of raw scores and KL, the teacher detached, both over B N, V2 (229-282)."""
    teacher = teacher.detach()
    return (mse(student, teacher) + kl(teacher / tau, student / tau)) / student.numel()


def embedding_alignment(x: Tensor, k: int, tau: float) -> Tensor:
    """MSE and KL of a prefix against ESE's target, over the rows, V2 (79-108, 158-169)."""
    p = ese_target(x, k)
    return (mse(x[:, :k], p) + kl(p / tau, x[:, :k] / tau)) / len(x)


def v2(
    q_states: States,
    d_states: States,
    layers: Sequence[int],
    K: Sequence[int],
    tau: float,
    score_align: bool = False,
    sub_layer_full_dim: bool = False,
    embedding_align: bool = False,
    compare_to_last_layer: bool = False,
    passage_to_last_layer: bool = False,
) -> Tensor:
    """The retrieval loss, L = the last layer listed, V2 (158-302).

    Some combinations of switches fail in the committed code; here each adds what its formula says,
    and embeddings are aligned with their own layer's target whatever scores are compared to.
    """
    last, width, w = layers[-1], q_states[layers[-1]].shape[1], w_by_position(layers)

    def passages(l: int) -> Tensor:
        return d_states[last if passage_to_last_layer else l]

    def ce(l: int, k: int) -> Tensor:
        return cross_entropy(q_states[l][:, :k], passages(l)[:, :k], tau)

    def scores(l: int, k: int) -> Tensor:
        return q_states[l][:, :k] @ passages(l)[:, :k].T

    terms = [ce(last, width)]
    for l in layers:
        for k in K:
            terms.append(w[l] * ce(l, k))
            if score_align:
                teacher = scores(last if compare_to_last_layer else l, width)
                terms.append(w[l] * score_alignment(scores(l, k), teacher, tau))
            if embedding_align:
                terms.append(w[l] * embedding_alignment(q_states[l], k, tau))
            if embedding_align and (l == last or not passage_to_last_layer):
                terms.append(w[l] * embedding_alignment(d_states[l], k, tau))
        if sub_layer_full_dim and l != last:
            terms.append(w[l] * ce(l, width))
    return add(terms)


def mse_baseline(q: Tensor, d: Tensor, k: int = 128, tau: float = 1.0) -> Tensor:
    """CE(S(L, H)) + CE(S(L, 128)) of the last layer, R (train_bert_russian_doll_v2_1d.sh:18-36)."""
    return cross_entropy(q, d, tau) + cross_entropy(q[:, :k], d[:, :k], tau)


def bert_s(q: Tensor, d: Tensor, k: int, tau: float) -> Tensor:
    """States of one layer, not normalised, R (dense_seperated.py:50-88)."""
    return cross_entropy(q[:, :k], d[:, :k], tau)


def sts_mse(x_L: Tensor, k: int, loss: Loss) -> Tensor:
    """ESE without its shallow sum, R (STS_V2_Angle/angle_emb/angle.py:985)."""
    return loss(x_L) + loss(x_L[:, :k]) + ese_align(x_L, k)


# 3. sentence-transformers


def mnr(anchor: Tensor, positives: Tensor, negatives: Tensor | None, scale: float = 20.0) -> Tensor:
    """Multiple negatives ranking: cosine, all positives then all negatives as candidates, T."""
    return triples_part(anchor, positives, negatives, scale)


def matryoshka(
    x: Tensor, dims: Sequence[int], loss: Loss, weights: Sequence[float] | None = None
) -> Tensor:
    """Cut, then normalised, summed over `dims` (those drawn), T (MatryoshkaLoss.py:215-271)."""
    weights = weights or [1.0] * len(dims)
    return add([w * loss(norm(x[:, :k])) for k, w in zip(dims, weights, strict=True)])


def matryoshka_2d(
    states: Sequence[Tensor],
    l: int,
    k_last: int,
    k_shallow: int,
    loss: Loss,
    T: float = 0.3,
    older: bool = False,
    unit: bool = False,
) -> Tensor:
    """A prefix for each of two exits, KL of the output at full width, version 6.2.

    The older code, T (Matryoshka2dLoss.py:117-132), divides by the layer and trains the teacher.
    `unit`: a Normalize is the model's last module.
    """
    last, shallow = states[-1], states[l]
    tasks = matryoshka(last, [k_last], loss)
    tasks = tasks + matryoshka(shallow, [k_shallow], loss) / (l if older else 1)
    if unit:
        last, shallow = norm(last), norm(shallow)
    return tasks + T * kl((last if older else last.detach()) / T, shallow / T)


# 4. Starbucks


def starbucks_retrieval(
    q_states: States, d_states: States, cuts: Sequence[Cut], whole: Cut, tau: float, lam: float
) -> Tensor:
    """The whole, then other cuts with KL, teacher detached, S (retrieval/modeling.py:102-146)."""

    def prefixes(cut: Cut) -> tuple[Tensor, Tensor]:
        l, k = cut
        return q_states[l][:, :k], d_states[l][:, :k]

    q, d = prefixes(whole)
    teacher = (q @ d.T).detach()
    terms = [cross_entropy(q, d, tau)]
    for cut in cuts:
        if cut != whole:
            q, d = prefixes(cut)
            terms.append(cross_entropy(q, d, tau) + lam * kl(teacher / tau, q @ d.T / tau))
    return add(terms)


def starbucks_sts(states: Sequence[Tensor], cuts: Sequence[Cut], whole: Cut, loss: Loss) -> Tensor:
    """Normalised prefixes, KL of un-normalised ones, attached, S (sts/starbucks_loss.py:98-176)."""
    last, width = whole
    terms = [loss(norm(states[last][:, :width]))]
    for l, k in cuts:
        if l < last:
            alignment = kl(states[last][:, :k], states[l][:, :k])
            terms.append(loss(norm(states[l][:, :k])) + 0.3 * alignment)
    return add(terms)


def smae_head(
    h: Tensor, W: Tensor, b: Tensor, ln_weight: Tensor, ln_bias: Tensor, k: int, eps: float
) -> Tensor:
    """LN(gelu(W[:, :k] h[:k] + b)) with the exact gelu, S (smae/modeling.py:14-27)."""
    rows = []
    for state in h:
        a = W[:, :k] @ state[:k] + b
        u = a * (1 + torch.erf(a / sqrt(2))) / 2
        variance = (u - u.mean()).square().mean()
        rows.append((u - u.mean()) / torch.sqrt(variance + eps) * ln_weight + ln_bias)
    return torch.stack(rows)


def smae_loss(mlm: Sequence[Tensor], mae: Sequence[Tensor]) -> Tensor:
    """The mean over cuts of (MLM + MAE) / 2, S (smae/modeling.py:96-171)."""
    terms = [(a + b) / 2 for a, b in zip(mlm, mae, strict=True)]
    return add(terms) / len(terms)


# 5. ML-Embed


def ml_embed(
    q_states: States, d_states: States, layers: Sequence[int], K: Sequence[int], tau: float
) -> Tensor:
    """Two cross entropies of cosines at each exit and prefix, M (utils.py:74-171, 229-260).

    Passages are grouped by query, the positive first. The first is over all positives, the second
    over a query's own passages; K has the full width, and the mean is over exits.
    """
    totals = []
    for l in layers:
        q, d = q_states[l], d_states[l]
        own = len(d) // len(q)
        for rank, k in enumerate(sorted(K, reverse=True), start=1):
            rows = []
            for i, query in enumerate(norm(q[:, :k])):
                logits = norm(d[:, :k]) @ query / tau
                group = logits[i * own : (i + 1) * own]
                rows.append(-ln_softmax(logits[::own])[i] - ln_softmax(group)[0])
            totals.append(add(rows) / len(rows) / (rank * sqrt(max(K) / k)))
    return add(totals) / len(layers)


# 6. MIPIC, as notebooks have it


def cka(x: Tensor, y: Tensor) -> Tensor:
    """The linear CKA of the rows of two matrices, N (CKALoss)."""
    x, y = x - x.mean(dim=0), y - y.mean(dim=0)
    scale = (x.T @ x).square().sum().sqrt() * (y.T @ y).square().sum().sqrt()
    return (x.T @ y).square().sum() / scale


def mipic_relations(
    layers: Sequence[Tensor], order: Sequence[Sequence[int]], K: Sequence[int]
) -> Tensor:
    """Mean 1 - CKA of one text, both sides attached; the attention divergence is set to 0, N.

    `layers` are the states [m, H] of its tokens, `order` the tokens of each, best first. The
    notebooks order them for each prefix by an attention of drawn maps that nothing trains.
    """
    losses = []
    for states, best in zip(layers, order, strict=True):
        for k in K:
            kept = best[: max(8, int(k / states.shape[1] * 64))]
            losses.append(1 - cka(states[kept, :k], states[kept]))
    return add(losses) / len(losses)


def mipic_chain(
    views: Sequence[Tensor], cuts: Sequence[int], projectors: Sequence[Loss], tau: float
) -> Tensor:
    """Mean over links of the cross entropy of cosines to a detached target, N.

    `views` are the first tokens [B, H] at the layer of each checkpoint, `cuts` their dims.
    """
    links = []
    for i, project in enumerate(projectors):
        source, target = project(views[i][:, : cuts[i]]), views[i + 1][:, : cuts[i + 1]].detach()
        links.append(triples_part(source, target, None, 1 / tau))
    return add(links) / len(links)
