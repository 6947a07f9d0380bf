"""Terms to their weighted sum: nothing here asks which variant it is."""

# Shapes in this room:
#   L layers, B queries, N documents, H width, K prefix lengths.

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from m2dr.errors import UserError
from m2dr.records.card import Similarity
from m2dr.records.cut import Cut
from m2dr.records.variant import Compression, Loss
from m2dr.train.base import Weights, base_losses
from m2dr.train.chain import Chain
from m2dr.train.compress import compressed_all, compressed_by_lottery
from m2dr.train.losses import alignment, imitation, score_alignment
from m2dr.train.scores import prefix_scores
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


@dataclass(frozen=True)
class Sides:
    """The vectors and what is known of them, in one step."""

    queries: Tensor  # [L, B, H], one per layer asked
    documents: Tensor  # [L, N, H], the same; the positive of query b is document b
    excluded: Tensor  # [B, N], True where a document must not count as a negative
    labels: Tensor | None = field(default=None)  # [B] how alike, from 0 to 1, of sentence pairs


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

        Returns:
            [] nats per query, and its part of each layer and kind, detached, for the log.

        Raises:
            UserError: a part is not a number.
        """
        parts: dict[str, Tensor] = defaultdict(lambda: sides.queries.new_zeros(()))
        for term, value in _Step(asked, self.setting, sides).values():
            kind = self.setting.loss if term.kind == "retrieve" else term.kind.split()[0]
            name = f"layer-{term.cut.layer:02d}/{kind}"
            parts[name] = parts[name] + term.weight * self._counted(value, term.cut.layer)
        if self.doubts is not None:
            # Of the layers that this step asks: any other would sink for nothing.
            parts["doubt"] = self.doubts[self._doubted(asked)].sum()
        if self.chain is not None:
            parts["chain"] = self._extra * self.chain(*self._texts(asked, sides))
        total = torch.stack(list(parts.values())).sum()
        found = {name: part.detach() for name, part in parts.items()}
        if not torch.isfinite(total.detach()):
            raise not_a_number(found)
        return total, found

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

    def _counted(self, value: Tensor, layer: int) -> Tensor:
        if self.doubts is None or layer not in self.setting.learned:
            return value
        return value * torch.exp(-self.doubts[self.setting.learned.index(layer)])


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

    def values(self) -> Iterator[tuple[Term, Tensor]]:
        """Each term with its value before weighting."""
        asked, setting, sides = self.asked, self.setting, self.sides
        row = {layer: i for i, layer in enumerate(asked.layers)}
        column = {dim: i for i, dim in enumerate(asked.dims)}
        sources = [row[layer] for layer in asked.document_layers]
        documents = sides.documents[sources]
        scores = prefix_scores(sides.queries, documents, asked.dims, setting.similarity)
        surprise = base_losses(
            setting.loss,
            setting.loss_weights,
            scores,
            (sides.queries, documents, asked.dims),
            sides.excluded,
            sides.labels,
            setting.temperature,
        )  # [L, K]
        targets = self._targets()
        for term in asked.terms:
            at = (row[term.cut.layer], column[term.cut.dim])
            if term.kind == "retrieve":
                yield term, surprise[at]
            elif term.kind == "align scores" and term.teacher is not None:
                teacher = scores[row[term.teacher.layer], column[term.teacher.dim]]
                yield term, self._score_alignment(scores[at], teacher)
            elif term.kind.startswith("imitate") and term.teacher is not None:
                student = self._vectors(term.kind, term.cut.layer)[:, : term.cut.dim]
                above = self._vectors(term.kind, term.teacher.layer)[:, : term.cut.dim]
                yield (
                    term,
                    alignment(student, above) if setting.squares else imitation(student, above),
                )
            else:
                student = self._vectors(term.kind, term.cut.layer)[:, : term.cut.dim]
                target = targets[term.kind, term.cut.layer][:, : term.cut.dim]
                yield (
                    term,
                    alignment(student, target) if setting.squares else imitation(student, target),
                )

    def _score_alignment(self, student: Tensor, teacher: Tensor) -> Tensor:
        tau = self.setting.temperature
        if not self.setting.squares:
            return imitation(student / tau, teacher / tau)
        value = score_alignment(student, teacher, tau)
        # The public code of the score-focused recipe divides by B · N once more.
        return value / student.numel() if self.setting.faithful else value

    def _vectors(self, kind: str, layer: int) -> Tensor:
        """[B, H] of the side that a kind names, at a layer."""
        place = self.asked.layers.index(layer)
        queries, documents = self.sides.queries[place], self.sides.documents[place]
        sides = {"queries": queries, "documents": documents}
        side = kind.split()[1]
        return sides[side] if side in sides else torch.cat([queries, documents])

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
