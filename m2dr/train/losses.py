"""Scores or vectors to nats. Losses take tensors; they never own or wrap a model."""

# Shapes in this room:
#   … any leading cuts, B queries, N documents, D coordinates.

import torch
from torch import Tensor


def contrastive(scores: Tensor, excluded: Tensor, temperature: float) -> Tensor:
    """Surprise at each query's positive document among all documents of the batch.

    Args:
        scores: [..., B, N]; the positive of query b is column b.
        excluded: [B, N], True where a document must not count as a negative: it is, or may be,
            another positive of that query.
        temperature: divides the scores; in their unit.

    Returns:
        [...] nats per query; log N when the scores say nothing and nothing is excluded.
    """
    return surprises(scores, excluded, temperature).mean(dim=-1)


def surprises(scores: Tensor, excluded: Tensor, temperature: float) -> Tensor:
    """The same of each query alone: [..., B, N] to [..., B]."""
    logits = (scores / temperature).masked_fill(excluded, -torch.inf)
    return logits.logsumexp(dim=-1) - logits.diagonal(dim1=-2, dim2=-1)


def imitation(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(softmax teacher || softmax student) per row, in nats.

    The teacher is detached: a short prefix learns from a longer one, never the reverse.

    Args:
        student: [..., B, D] logits.
        teacher: the same shape.

    Returns:
        [...] mean over the B rows.
    """
    log_student = torch.log_softmax(student, dim=-1)
    log_teacher = torch.log_softmax(teacher.detach(), dim=-1)
    return (log_teacher.exp() * (log_teacher - log_student)).sum(dim=-1).mean(dim=-1)


def margin_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared error of margins: each query's first score less every other one.

    Args:
        student: [..., B, 1 + n] scores of a query's own documents, its positive first.
        teacher: [B, 1 + n], the same of the teacher.

    Returns:
        [...] (Hofstätter et al. 2020, arXiv:2010.02666).
    """
    margins = student[..., :1] - student[..., 1:]
    return (margins - (teacher[..., :1] - teacher[..., 1:])).square().mean(dim=(-2, -1))


def alignment(student: Tensor, teacher: Tensor) -> Tensor:
    """MSE + KL of a prefix to its detached target (ESE, eq. 6; Wang et al. 2024, eq. 10).

    Args:
        student: [..., B, D] prefixes of embeddings, or rows of scores.
        teacher: the same shape.

    Returns:
        [...].
    """
    return _squares(student, teacher) + imitation(student, teacher)


def score_alignment(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """MSE of scores + KL of their softmax, to the detached scores of the full width.

    Args:
        student: [..., B, N] scores of a prefix.
        teacher: [..., B, N] scores of the full width of the same layer.
        temperature: divides the scores inside the softmax; in their unit.

    Returns:
        [...].
    """
    error = _squares(student, teacher)
    return error + imitation(student / temperature, teacher / temperature)


def _squares(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared error of each [B, D]."""
    return (student - teacher.detach()).square().mean(dim=(-2, -1))
