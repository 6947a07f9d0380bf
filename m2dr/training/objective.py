"""Terms to their weighted sum: nothing here asks which variant it is.

Shapes: L layers, B queries, N documents, H width, K prefix lengths, D dims of a prefix.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from m2dr.core.errors import UserError, quoted
from m2dr.core.records import Cut, Similarity
from m2dr.core.variants import VARIANTS, Candidates, Distill, Loss, Variant
from m2dr.training.losses import (
    alignment,
    angle_similarities,
    compressed_all,
    compressed_randomised,
    contrastive,
    contrastive_apart,
    cosent,
    imitation,
    in_batch,
    in_batch_of_all,
    margin_mse,
)
from m2dr.training.mipic import Chain, TokenRelations
from m2dr.training.scores import own_scores, prefix_scores
from m2dr.training.terms import StepTerms, Term

LossWeights = tuple[float, float, float]  # of AnglE's parts: cosine, in-batch, angle
ScoreLoss = Callable[[Tensor, Tensor], Tensor]  # logits [..., B, N], excluded [B, N] to [...]
POSITIVE = 0.8  # least label of a pair of sentences that is a positive of the batch


@dataclass(frozen=True)
class Setting:
    """How terms are computed: the settings of a training that act on a batch."""

    similarity: Similarity
    temperature: float  # divides scores
    loss: Loss = "contrastive"
    loss_weights: LossWeights = (1.0, 1.0, 1.0)
    candidates: Candidates = "second"  # of the in-batch part of loss angle
    variant: Variant = VARIANTS["plain"]  # its choices for alignment
    unit_output: bool = False  # whether embeddings are aligned as vectors of length one
    learned: tuple[int, ...] = ()  # layers whose weight is learned
    relations_temperature: float = 1.0  # of token relations, which are products over √H
    relations_self: bool = True  # whether the pooled token attends to itself
    chain_temperature: float = 0.05  # of the chain, which compares cosines
    seed: int = 0  # of what a step draws
    distill: Distill = "none"  # loss on a teacher's scores
    distill_temperature: float = 1.0  # divides them
    custom: ScoreLoss | None = None  # in place of `loss`


@dataclass(frozen=True)
class EncodedBatch:
    """A batch after the encoder: pooled vectors, and what is known of the texts.

    Attributes:
        queries: [L, B, H], one row per layer of the step.
        documents: [L, N, H]; the positive of query b is document b.
        excluded: [B, N], True where a document must not count as a negative.
        labels: [B] scores of sentence pairs, from 0 to 1; None: every pair is a positive.
        teacher: [B, 1 + n] a teacher's scores of a query's own documents, its positive first; the
            n negatives of query b stand from B + b · n on.
        draw: another number for each batch of a training, the same in all processes.
    """

    queries: Tensor
    documents: Tensor
    excluded: Tensor
    labels: Tensor | None = None
    teacher: Tensor | None = None
    draw: int = 0


class Objective(nn.Module):
    """The terms of a variant, computed on a batch.

    Its parameters serve the training alone: learned weights, and the projectors of MIPIC.

    Args:
        choices: terms of the possible steps, all equally likely.
        full: the cut of the full model.
        setting: how terms are computed.
        relations: MIPIC's token relations, if they are trained.
        chain: MIPIC's chain of checkpoints, if it is trained.
        extra: weight of these two.
    """

    def __init__(
        self,
        choices: Sequence[StepTerms],
        full: Cut,
        setting: Setting,
        relations: TokenRelations | None = None,
        chain: Chain | None = None,
        extra: float = 0.0,
    ) -> None:
        super().__init__()
        self.choices, self.full, self.setting = tuple(choices), full, setting
        self.relations, self.chain, self._extra = relations, chain, extra
        # s of exp(-s) · loss + s, a weight that is learned and cannot win by becoming 0
        # (Kendall et al. 2018).
        learned = nn.Parameter(torch.zeros(len(setting.learned)))
        self.log_variances = learned if setting.learned else None

    def at(self, step: int, batch: int = 0) -> StepTerms:
        """Return the terms of a batch; a draw depends on the seed and these numbers alone.

        Args:
            step: of the optimiser.
            batch: of the step, where it accumulates several.
        """
        if len(self.choices) == 1:
            return self.choices[0]
        generator = np.random.default_rng([self.setting.seed, 2, step, batch])
        return self.choices[int(generator.integers(len(self.choices)))]

    def forward(self, chosen: StepTerms, batch: EncodedBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted sum of the terms on one batch, without the token relations.

        Computed in the precision of the vectors, under autocast too: in bf16 a score has three
        digits, and a temperature of .05 multiplies its error by twenty. Scores of pooled vectors
        cost little beside the encoder.

        Returns:
            [] nats per query, and its part of each layer and kind, detached, for the log.

        Raises:
            UserError: a part is not a number.
        """
        with torch.autocast(batch.queries.device.type, enabled=False):
            return self._total(chosen, batch)

    def _total(self, chosen: StepTerms, batch: EncodedBatch) -> tuple[Tensor, dict[str, Tensor]]:
        groups = list(_StepLosses(chosen, self.setting, batch).values())
        terms = [term for group, _ in groups for term in group]
        values = torch.cat([value for _, value in groups])  # one per term
        weighted = values * self._weights(terms, values)
        parts = _summed(weighted.detach(), [self._name(term) for term in terms])
        extra_terms: dict[str, Tensor] = {}
        if self.log_variances is not None:
            # Of the layers of this step: the weights of others would fall without end.
            trained = {term.cut.layer for term in chosen.terms}
            own = [i for i, layer in enumerate(self.setting.learned) if layer in trained]
            extra_terms["log-variance"] = self.log_variances[own].sum()
        if self.chain is not None:
            weight = self._extra * self.setting.variant.pic_weight
            extra_terms["chain"] = weight * self.chain(*self._texts(chosen, batch))
        total = torch.stack([weighted.sum(), *extra_terms.values()]).sum()
        parts |= {name: part.detach() for name, part in extra_terms.items()}
        if not torch.isfinite(total.detach()):
            raise not_a_number(parts)
        return total, parts

    def related(self, losses: Tensor) -> Tensor:
        """Return the weighted mean of the token relations of each text: [B] to []."""
        return self._extra * self.setting.variant.sia_weight * losses.mean()

    def _texts(
        self, chosen: StepTerms, batch: EncodedBatch
    ) -> tuple[dict[int, Tensor], Tensor | None]:
        """Return every text once, at each layer [B + N, H], and which texts are the same."""
        texts, same = batch.queries, None
        if self.setting.loss == "simcse":  # the documents are the same texts again
            same = batch.excluded
        elif not chosen.documents_from_last:  # else shallow layers of documents are not trained
            texts = torch.cat([texts, batch.documents], dim=1)
        return dict(zip(chosen.layers, texts, strict=True)), same

    def _weights(self, terms: Sequence[Term], values: Tensor) -> Tensor:
        """Return the weight of each term."""
        weights = values.new_tensor([term.weight for term in terms])
        if self.log_variances is None:
            return weights
        # Layers whose weight is not learned look up the 0 that is appended.
        place = {layer: i for i, layer in enumerate(self.setting.learned)}
        log_variances = torch.cat([self.log_variances, self.log_variances.new_zeros(1)])
        chosen = [place.get(term.cut.layer, -1) for term in terms]
        return weights * torch.exp(-log_variances[chosen])

    def _name(self, term: Term) -> str:
        setting = self.setting
        base = getattr(setting.custom, "__name__", setting.loss)
        own = {"retrieve": base, "distill": setting.distill}
        return f"layer-{term.cut.layer:02d}/{own.get(term.kind) or term.kind.split()[0]}"


def _summed(values: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """Return the sum of the values of each name, [] each."""
    order = {name: i for i, name in enumerate(dict.fromkeys(names))}
    places = torch.tensor([order[name] for name in names], device=values.device)
    sums = values.new_zeros(len(order)).index_add(0, places, values)
    return dict(zip(order, sums, strict=True))


def not_a_number(parts: Mapping[str, Tensor]) -> UserError:
    """Return the error for a loss, some of whose parts are not numbers."""
    broken = [name for name, part in parts.items() if not torch.isfinite(part)]
    which = ", ".join(broken) or "total"
    return UserError(f"The loss is not a number in its part {which}; lower learning_rate.")


@dataclass(frozen=True)
class _StepLosses:
    """The values of a step's terms; what several terms share is computed once."""

    chosen: StepTerms
    setting: Setting
    batch: EncodedBatch

    def values(self) -> Iterator[tuple[Sequence[Term], Tensor]]:
        """Yield the terms of one kind together, with the value of each before weighting."""
        chosen, setting, batch = self.chosen, self.setting, self.batch
        documents = batch.documents[[chosen.layers.index(n) for n in chosen.document_layers]]
        scores = prefix_scores(batch.queries, documents, chosen.dims, setting.similarity)
        kinds: dict[tuple[str, int], list[Term]] = defaultdict(list)
        for term in chosen.terms:
            # Vectors of one prefix length are stacked over layers; scores over all cuts.
            of_scores = term.kind in ("retrieve", "distill", "align scores")
            kinds[term.kind, 0 if of_scores else term.cut.dim].append(term)
        targets = self._targets()
        for (kind, _), terms in kinds.items():
            places = self._places(term.cut for term in terms)
            if kind == "retrieve":
                scored = ScoredBatch(
                    batch.queries, documents, batch.excluded, batch.labels, scores, chosen.dims
                )
                yield terms, base_losses(scored, setting)[places]
            elif kind == "distill":
                yield terms, self._distillation(scores[places])
            elif kind == "align scores":
                students = scores[places]  # [n, B, N]
                teachers = scores.detach()[self._places(t.teacher or t.cut for t in terms)]
                count = students[0].numel()
                yield terms, self._aligned(students, teachers, setting.temperature, count)
            else:
                yield terms, self._alignment(terms, targets)

    def _distillation(self, scores: Tensor) -> Tensor:
        """Return the losses [n] of scores [n, B, N]; both sides are divided by temperatures."""
        if self.batch.teacher is None:
            raise ValueError("a step that distils needs the teacher's scores")
        target = self.batch.teacher.to(scores.dtype) / self.setting.distill_temperature
        own = own_scores(scores, target.shape[-1] - 1) / self.setting.temperature
        return (margin_mse if self.setting.distill == "margin-mse" else imitation)(own, target)

    def _places(self, cuts: Iterable[Cut]) -> tuple[list[int], list[int]]:
        """Return the rows and columns of some cuts in [L, K, …]."""
        found = [(self.chosen.layers.index(c.layer), self.chosen.dims.index(c.dim)) for c in cuts]
        return [row for row, _ in found], [column for _, column in found]

    def _alignment(
        self, terms: Sequence[Term], targets: Mapping[tuple[str, int], Tensor]
    ) -> Tensor:
        """Return the values [n] of alignments of one kind and one prefix length."""
        kind, dim = terms[0].kind, terms[0].cut.dim
        students = torch.stack([self._vectors(kind, term.cut.layer)[:, :dim] for term in terms])
        above = [
            self._vectors(kind, term.teacher.layer)
            if term.teacher
            else targets[kind, term.cut.layer]
            for term in terms
        ]
        teachers = torch.stack([vectors[:, :dim] for vectors in above])
        if self.setting.variant.detach:
            teachers = teachers.detach()
        temperature = self.setting.variant.align_temperature
        return self._aligned(students, teachers, temperature, students.shape[1])

    def _aligned(self, students: Tensor, teachers: Tensor, temperature: float, rows: int) -> Tensor:
        """Return the alignments [n] of two [n, B, D]; `rows` divides them once more, if asked."""
        if self.setting.variant.add_mse:
            values = alignment(students, teachers, temperature)
        else:
            values = imitation(students / temperature, teachers / temperature)
        return values / rows if self.setting.variant.align_reduction == "batch" else values

    def _vectors(self, kind: str, layer: int) -> Tensor:
        """Return the vectors [B, H] of the side that a kind names, at a layer."""
        queries, documents = self._by_layer
        side, place = kind.split()[1], self.chosen.layers.index(layer)
        if side == "texts":
            vectors = torch.cat([queries[place], documents[place]])
        else:
            vectors = (queries if side == "queries" else documents)[place]
        return normalize(vectors, dim=-1) if self.setting.unit_output else vectors

    @cached_property
    def _by_layer(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        # Unbound at once, so that the gradient is stacked at once: each indexing would make a
        # gradient of all layers.
        return self.batch.queries.unbind(), self.batch.documents.unbind()

    def _targets(self) -> dict[tuple[str, int], Tensor]:
        """Return the compressed target of every side and layer that is aligned with one."""
        aligned = (
            term
            for term in self.chosen.terms
            if term.kind.startswith("align") and term.teacher is None
        )
        keys = list(dict.fromkeys((term.kind, term.cut.layer) for term in aligned))
        vectors = [self._vectors(*key) for key in keys]
        dim, method = self.chosen.longest_aligned, self.setting.variant.compress
        if method == "randomised":
            draw = np.random.default_rng([self.setting.seed, 3, self.batch.draw])
            seeds = draw.integers(2**62, size=len(keys)).tolist()
            drawn = zip(vectors, seeds, strict=True)
            found = (compressed_randomised(one, dim, seed) for one, seed in drawn)
            return dict(zip(keys, found, strict=True))
        return dict(zip(keys, compressed_all(vectors, dim, method), strict=True))


@dataclass(frozen=True)
class ScoredBatch:
    """What a base loss reads of a batch."""

    queries: Tensor  # [L, B, H]
    documents: Tensor  # [L or 1, N, H]; the positive of query b is document b
    excluded: Tensor  # [B, N], True where a document must not count as a negative
    labels: Tensor | None  # [B] scores of pairs, from 0 to 1; None: every pair is a positive
    scores: Tensor  # [L, K, B, N] of `prefix_scores`
    dims: Sequence[int]  # the K prefix lengths


def base_losses(batch: ScoredBatch, setting: Setting) -> Tensor:
    """Return the base loss at each layer and prefix.

    contrastive, mnr and simcse: cross entropy of the positive among all documents, over the
    positive pairs (multiple negatives ranking; two dropout views of one sentence).
    cosent: pairs in the order of their labels, by similarity. angle: cosent, mnr and the angle
    between the two sentences as complex vectors, weighted. A corpus of documents has no labels:
    a query and its positive are a pair of 1, and a query and each of its negatives one of 0.

    Args:
        batch: vectors and scores.
        setting: which loss, its weights, candidates, temperature and similarity.

    Returns:
        [L, K] nats.
    """
    scores, excluded, temperature = batch.scores, batch.excluded, setting.temperature
    if setting.custom is not None:
        return setting.custom(scores / temperature, excluded)
    positive = None if batch.labels is None else batch.labels >= POSITIVE

    def ranked() -> Tensor:
        if positive is None:
            loss = contrastive_apart if setting.variant.own_softmax else contrastive
            return loss(scores, excluded, temperature)
        return in_batch(scores, excluded, positive, temperature)

    if setting.loss in ("contrastive", "mnr", "simcse"):
        return ranked()
    similarities, labels, angles = _pairs(batch)
    ordered = cosent(similarities, labels, temperature)
    if setting.loss == "cosent":
        return ordered
    by_cosine, by_batch, by_angle = setting.loss_weights
    total = by_cosine * ordered
    if by_angle:
        total = total + by_angle * cosent(angles(), labels, temperature)
    if not by_batch:
        return total
    if positive is None or setting.candidates == "second":
        return total + by_batch * ranked()
    texts = torch.cat([batch.queries, batch.documents.expand_as(batch.queries)], dim=1)
    every = prefix_scores(texts, texts, batch.dims, setting.similarity)
    return total + by_batch * in_batch_of_all(every, excluded, positive, temperature)


def _pairs(batch: ScoredBatch) -> tuple[Tensor, Tensor, Callable[[], Tensor]]:
    """Return similarities [L, K, P] of the pairs of a batch, their labels [P], and their angles."""
    count = len(batch.excluded)
    second = batch.documents[:, :count] if batch.labels is not None else batch.documents
    second = second.expand(len(batch.queries), -1, -1)
    if batch.labels is not None:
        first, labels = batch.queries, batch.labels
        similarities = batch.scores.diagonal(dim1=-2, dim2=-1)
    else:
        negatives = batch.scores.shape[-1] // count - 1
        # An excluded document is no pair of 0.
        kept = ~own_scores(batch.excluded, negatives).flatten()
        similarities = own_scores(batch.scores, negatives).flatten(-2)[..., kept]
        rows = torch.arange(count, device=second.device)
        others = count + negatives * rows[:, None] + torch.arange(negatives, device=second.device)
        columns = torch.cat([rows[:, None], others], dim=1).flatten()[kept]
        first = batch.queries.repeat_interleave(1 + negatives, dim=1)[:, kept]
        second = second[:, columns]
        labels = (columns < count).to(similarities.dtype)

    def angles() -> Tensor:
        found = [angle_similarities(first[..., :k], second[..., :k]) for k in batch.dims]
        return torch.stack(found, dim=-2)

    return similarities, labels, angles


def refuse_other_loss(loss: ScoreLoss) -> None:
    """Raise UserError for a loss that does not take scores, such as one that owns a model."""
    try:
        found: Any = loss(torch.zeros(2, 3, 4), torch.zeros(3, 4, dtype=torch.bool))
        why = "" if found.shape == (2,) else f"it gives {quoted(found)}"
    except Exception as error:  # anything that a function of others may raise
        why = quoted(error)
    if why:
        takes = "logits [..., B, N] and excluded documents [B, N] and returns [...]"
        raise UserError(f"loss is a function that takes {takes}; {loss_name(loss)} is none: {why}.")


def loss_name(loss: ScoreLoss) -> str:
    """Return module:name of a loss that is a function or an object."""
    function: Any = loss
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"
