"""Terms to their weighted sum: nothing here asks which variant it is."""

# Shapes in this room:
#   L layers, B queries, N documents, H width, K prefix lengths.

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from m2dr.errors import UserError
from m2dr.records.card import Similarity
from m2dr.records.cut import Cut
from m2dr.records.variant import Compression, Distill, Loss
from m2dr.train.base import Weights, base_losses
from m2dr.train.chain import Chain
from m2dr.train.compress import compressed_all, compressed_by_lottery
from m2dr.train.losses import alignment, imitation, margin_mse, score_alignment
from m2dr.train.scores import own_scores, prefix_scores
from m2dr.train.terms import Asked, Term
from m2dr.train.tokenwise import TokenRelations


@dataclass(frozen=True)
class Setting:
    """How terms are computed, whatever they are."""

    similarity: Similarity
    temperature: float
    loss: Loss = "contrastive"
    loss_weights: Weights = (1.0, 1.0, 1.0)
    squares: bool = True
    compress: Compression = "dependencies"
    faithful: bool = False
    learned: tuple[int, ...] = ()  # layers whose weight is learned
    relations_temperature: float = 1.0  # of token relations, which are products over √H
    chain_temperature: float = 0.05  # of the chain, which compares cosines
    seed: int = 0  # of what a step draws
    distill: Distill = "none"  # how a teacher's scores are learned
    distill_temperature: float = 1.0  # divides them


@dataclass(frozen=True)
class Sides:
    """The vectors and what is known of them, in one step."""

    queries: Tensor  # [L, B, H], one per layer asked
    documents: Tensor  # [L, N, H], the same; the positive of query b is document b
    excluded: Tensor  # [B, N], True where a document must not count as a negative
    labels: Tensor | None = field(default=None)  # [B] how alike, from 0 to 1, of sentence pairs
    # [B, 1 + n] a teacher's scores of a query's own documents, its positive first; the n negatives
    # of query b stand from B + b · n on.
    teacher: Tensor | None = field(default=None)


class Objective(nn.Module):
    """The terms of a variant, computed on a batch.

    Its parameters serve the training alone: learned weights, and the projectors of MIPIC.

    Args:
        choices: what a step may ask, all equally likely.
        whole: the last layer and the full width.
        setting: how terms are computed.
        relations: MIPIC's token relations, if they are trained.
        chain: MIPIC's chain of checkpoints, if it is trained.
        extra: weight of these two.
    """

    def __init__(
        self,
        choices: Sequence[Asked],
        whole: Cut,
        setting: Setting,
        relations: TokenRelations | None = None,
        chain: Chain | None = None,
        extra: float = 0.0,
    ) -> None:
        super().__init__()
        self.choices, self.whole, self.setting = tuple(choices), whole, setting
        self.relations, self.chain, self._extra = relations, chain, extra
        # s of exp(-s) · loss + s, a weight that is learned and cannot win by becoming 0
        # (Kendall et al. 2018).
        self.doubts = nn.Parameter(torch.zeros(len(setting.learned))) if setting.learned else None

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """The cuts that are trained to retrieve."""
        return tuple(sorted({cut for asked in self.choices for cut in asked.cuts}))

    def at(self, step: int) -> Asked:
        """What a step asks: a draw that depends on the seed and the step alone."""
        if len(self.choices) == 1:
            return self.choices[0]
        generator = np.random.default_rng([self.setting.seed, 2, step])
        return self.choices[int(generator.integers(len(self.choices)))]

    def forward(self, asked: Asked, sides: Sides) -> tuple[Tensor, dict[str, Tensor]]:
        """Weighted sum of the terms on one batch; without the token relations, which need states.

        Computed in the precision of the vectors, under autocast too: in bf16 a score has three
        digits, and a temperature of .05 multiplies its error by twenty. Scores of pooled vectors
        cost little beside the encoder.

        Returns:
            [] nats per query, and its part of each layer and kind, detached, for the log.

        Raises:
            UserError: a part is not a number.
        """
        with torch.autocast(sides.queries.device.type, enabled=False):
            return self._total(asked, sides)

    def _total(self, asked: Asked, sides: Sides) -> tuple[Tensor, dict[str, Tensor]]:
        groups = list(_Step(asked, self.setting, sides).values())
        terms = [term for group, _ in groups for term in group]
        values = torch.cat([value for _, value in groups])  # one per term
        counted = values * self._weights(terms, values)
        parts = _summed(counted.detach(), [self._name(term) for term in terms])
        beside: dict[str, Tensor] = {}
        if self.doubts is not None:
            # Of the layers that this step asks: any other would sink for nothing.
            beside["doubt"] = self.doubts[self._doubted(asked)].sum()
        if self.chain is not None:
            beside["chain"] = self._extra * self.chain(*self._texts(asked, sides))
        total = torch.stack([counted.sum(), *beside.values()]).sum()
        parts |= {name: part.detach() for name, part in beside.items()}
        if not torch.isfinite(total.detach()):
            raise not_a_number(parts)
        return total, parts

    def related(self, losses: Tensor) -> Tensor:
        """The weighted mean of the token relations of each text: [B] to []."""
        return self._extra * losses.mean()

    def _texts(self, asked: Asked, sides: Sides) -> tuple[dict[int, Tensor], Tensor | None]:
        """Every text of the batch once, at each layer [B + N, H], and which say the same."""
        texts, same = sides.queries, None
        if self.setting.loss == "simcse":  # the documents are the same texts again
            same = sides.excluded
        elif not asked.documents_from_last:  # else their shallow layers are never asked anything
            texts = torch.cat([texts, sides.documents], dim=1)
        return dict(zip(asked.layers, texts, strict=True)), same

    def _doubted(self, asked: Asked) -> list[int]:
        trained = {term.cut.layer for term in asked.terms}
        return [i for i, layer in enumerate(self.setting.learned) if layer in trained]

    def _weights(self, terms: Sequence[Term], values: Tensor) -> Tensor:
        """What each term counts: one number per term."""
        weights = values.new_tensor([term.weight for term in terms])
        if self.doubts is None:
            return weights
        # Layers whose weight is not learned look up the 0 that is appended.
        place = {layer: i for i, layer in enumerate(self.setting.learned)}
        doubts = torch.cat([self.doubts, self.doubts.new_zeros(1)])
        return weights * torch.exp(-doubts[[place.get(term.cut.layer, -1) for term in terms]])

    def _name(self, term: Term) -> str:
        own = {"retrieve": self.setting.loss, "distill": self.setting.distill}
        return f"layer-{term.cut.layer:02d}/{own.get(term.kind) or term.kind.split()[0]}"


def _summed(values: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """The sum of the values of each name, [] each."""
    order = {name: i for i, name in enumerate(dict.fromkeys(names))}
    places = torch.tensor([order[name] for name in names], device=values.device)
    sums = values.new_zeros(len(order)).index_add(0, places, values)
    return dict(zip(order, sums, strict=True))


def not_a_number(parts: Mapping[str, Tensor]) -> UserError:
    """What to say of a loss with parts that are no numbers."""
    broken = [name for name, part in parts.items() if not torch.isfinite(part)]
    return UserError(
        f"The loss is not a number: its part {', '.join(broken) or 'total'} is "
        f"{', '.join(f'{float(parts[name]):g}' for name in broken) or 'too large'}. Lower "
        "learning_rate, or raise temperature, and begin again with --overwrite."
    )


@dataclass(frozen=True)
class _Step:
    """One step: what its terms share is computed once."""

    asked: Asked
    setting: Setting
    sides: Sides

    def values(self) -> Iterator[tuple[Sequence[Term], Tensor]]:
        """Terms of one kind together, with the value of each before weighting."""
        asked, setting, sides = self.asked, self.setting, self.sides
        sources = [asked.layers.index(layer) for layer in asked.document_layers]
        documents = sides.documents[sources]
        scores = prefix_scores(sides.queries, documents, asked.dims, setting.similarity)
        kinds: dict[tuple[str, int], list[Term]] = defaultdict(list)
        for term in asked.terms:
            # Vectors of one prefix length are stacked over layers; scores over all cuts.
            of_scores = term.kind in ("retrieve", "distill", "align scores")
            kinds[term.kind, 0 if of_scores else term.cut.dim].append(term)
        targets = self._targets()
        for (kind, _), terms in kinds.items():
            if kind == "retrieve":
                surprise = base_losses(
                    setting.loss,
                    setting.loss_weights,
                    scores,
                    (sides.queries, documents, asked.dims),
                    sides.excluded,
                    sides.labels,
                    setting.temperature,
                )  # [L, K]
                yield terms, surprise[self._places(term.cut for term in terms)]
            elif kind == "distill":
                yield terms, self._distillation(scores[self._places(term.cut for term in terms)])
            elif kind == "align scores":
                taught = scores[self._places(term.cut for term in terms)]  # [n, B, N]
                teaching = scores.detach()[self._places(_teacher(term) for term in terms)]
                yield terms, self._score_alignment(taught, teaching)
            else:
                yield terms, self._alignment(terms, targets)

    def _distillation(self, scores: Tensor) -> Tensor:
        """[n, B, N] to [n]: both sides divided by their temperatures."""
        if self.sides.teacher is None:
            raise ValueError("a step that distils needs the teacher's scores")
        target = self.sides.teacher.to(scores.dtype) / self.setting.distill_temperature
        own = own_scores(scores, target.shape[-1] - 1) / self.setting.temperature
        return (margin_mse if self.setting.distill == "margin-mse" else imitation)(own, target)

    def _places(self, cuts: Iterable[Cut]) -> tuple[list[int], list[int]]:
        """Rows and columns of some cuts in [L, K, …]."""
        places = [(self.asked.layers.index(c.layer), self.asked.dims.index(c.dim)) for c in cuts]
        return [row for row, _ in places], [column for _, column in places]

    def _alignment(
        self, terms: Sequence[Term], targets: Mapping[tuple[str, int], Tensor]
    ) -> Tensor:
        """Of terms of one kind and one prefix length: one value each."""
        kind, dim = terms[0].kind, terms[0].cut.dim
        students = torch.stack([self._vectors(kind, term.cut.layer)[:, :dim] for term in terms])
        above = [
            self._vectors(kind, term.teacher.layer)
            if term.teacher
            else targets[kind, term.cut.layer]
            for term in terms
        ]
        teachers = torch.stack([vectors.detach()[:, :dim] for vectors in above])
        if self.setting.squares:
            return alignment(students, teachers)
        return imitation(students, teachers)

    def _score_alignment(self, students: Tensor, teachers: Tensor) -> Tensor:
        """[n, B, N] twice to [n]."""
        tau = self.setting.temperature
        if not self.setting.squares:
            return imitation(students / tau, teachers / tau)
        values = score_alignment(students, teachers, tau)
        # The public code of the score-focused recipe divides by B · N once more.
        return values / students[0].numel() if self.setting.faithful else values

    def _vectors(self, kind: str, layer: int) -> Tensor:
        """[B, H] of the side that a kind names, at a layer."""
        queries, documents = self._by_layer
        side = kind.split()[1]
        if side == "texts":
            place = self.asked.layers.index(layer)
            return torch.cat([queries[place], documents[place]])
        return (queries if side == "queries" else documents)[self.asked.layers.index(layer)]

    @cached_property
    def _by_layer(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        # Taken apart at once, so that the gradient is put together at once: indexing would make a
        # tensor of all layers for each.
        return self.sides.queries.unbind(), self.sides.documents.unbind()

    def _targets(self) -> dict[tuple[str, int], Tensor]:
        """The compressed target of every side and layer that is aligned with one."""
        keys = list(
            dict.fromkeys(
                (term.kind, term.cut.layer)
                for term in self.asked.terms
                if term.kind.startswith("align") and term.teacher is None
            )
        )
        batches = [self._vectors(*key) for key in keys]
        dim, how = self.asked.longest_aligned, self.setting.compress
        if self.setting.faithful and how == "dependencies":
            return dict(zip(keys, (compressed_by_lottery(b, dim) for b in batches), strict=True))
        return dict(zip(keys, compressed_all(batches, dim, how), strict=True))


def _teacher(term: Term) -> Cut:
    return term.teacher or term.cut
