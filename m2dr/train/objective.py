"""Variant to terms to their weighted sum: nothing here asks which variant it is."""

# Shapes in this room:
#   L layers, B queries, N documents, H width, K prefix lengths.

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Literal

import torch
from torch import Tensor

from m2dr.records.card import Similarity
from m2dr.records.cut import Cut
from m2dr.records.variant import Variant
from m2dr.train.compress import compressed
from m2dr.train.losses import alignment, contrastive, score_alignment
from m2dr.train.scores import prefix_scores

Kind = Literal["contrastive", "align queries", "align documents", "align scores"]


@dataclass(frozen=True)
class Term:
    """One summand of the loss: what a cut is asked, and with what weight."""

    cut: Cut
    kind: Kind
    weight: float


def terms(
    variant: Variant, layers: Sequence[int], dims: Sequence[int], whole: Cut
) -> tuple[Term, ...]:
    """The summands of one step: read this to know what a variant does.

    Args:
        variant: the recipe.
        layers: the shallow layers that a recipe with shallow layers trains, all below the last.
        dims: the prefixes that a recipe with prefixes trains, all below the full width.
        whole: the last layer and the full width.
    """
    dims = tuple(dims) if variant.prefixes != "none" else ()
    if variant.alone:
        return (Term(Cut(whole.layer, dims[0] if dims else whole.dim), "contrastive", 1.0),)
    shallow = tuple(layers) if variant.shallow else ()
    asked = [Term(whole, "contrastive", 1.0)]
    for layer in (*shallow, whole.layer):
        weight = layer_weight(variant, layer, whole.layer)
        wide = (whole.dim,) if variant.full_dim and layer < whole.layer else ()
        asked += [Term(Cut(layer, dim), "contrastive", weight) for dim in (*dims, *wide)]
    if variant.align != "none":
        asked += [
            Term(Cut(layer, dim), kind, layer_weight(variant, layer, whole.layer))
            for layer in (*shallow, whole.layer)
            for kind in _alignments(variant, layer, whole)
            for dim in dims
        ]
    return tuple(asked)


def layer_weight(variant: Variant, layer: int, last: int) -> float:
    """1 / (1 + ln l) below the last layer, 1 at it (Wang et al. 2024, eq. 8); or 1 for all."""
    return 1.0 if layer == last or variant.weights == "uniform" else 1 / (1 + log(layer))


def _alignments(variant: Variant, layer: int, whole: Cut) -> tuple[Kind, ...]:
    if variant.align == "score":
        return ("align scores",)
    if variant.documents == "last" and layer < whole.layer:
        return ("align queries",)  # documents of shallow layers are never used, so never taught
    return ("align queries", "align documents")


@dataclass(frozen=True)
class Objective:
    """The terms of a variant, ready to be computed on a batch."""

    terms: tuple[Term, ...]
    whole: Cut
    documents_from_last: bool
    similarity: Similarity
    temperature: float

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Layers whose queries are needed, increasing."""
        return tuple(sorted({term.cut.layer for term in self.terms}))

    @cached_property
    def document_layers(self) -> tuple[int, ...]:
        """Layers whose documents are needed, increasing."""
        return self.layers[-1:] if self.documents_from_last else self.layers

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """Prefix lengths to score, increasing; the full width when a term compares with it."""
        found = {term.cut.dim for term in self.terms}
        if any(term.kind == "align scores" for term in self.terms):
            found.add(self.whole.dim)
        return tuple(sorted(found))

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """The cuts that are trained to retrieve."""
        return tuple(sorted({term.cut for term in self.terms if term.kind == "contrastive"}))

    def __call__(
        self, queries: Tensor, documents: Tensor, excluded: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Weighted sum of the terms on one batch.

        Args:
            queries: [L, B, H], one per layer of `layers`.
            documents: [L, N, H], one per layer of `document_layers`; the positive of query b is
                document b.
            excluded: [B, N], True where a document must not count as a negative.

        Returns:
            [] nats per query, and its part of each layer and kind, detached, for the log.
        """
        scores = prefix_scores(queries, documents, self.dims, self.similarity)
        surprise = contrastive(scores, excluded, self.temperature)  # [L, K]
        parts: dict[str, Tensor] = defaultdict(lambda: surprise.new_zeros(()))
        for term, value in self._values(scores, surprise, queries, documents):
            kind = term.kind.split()[0]
            name = f"layer-{term.cut.layer:02d}/{kind}"
            parts[name] = parts[name] + term.weight * value
        total = torch.stack(list(parts.values())).sum()
        return total, {name: part.detach() for name, part in parts.items()}

    def _values(
        self, scores: Tensor, surprise: Tensor, queries: Tensor, documents: Tensor
    ) -> Iterator[tuple[Term, Tensor]]:
        """Each term with its value before weighting."""
        row = {layer: i for i, layer in enumerate(self.layers)}
        column = {dim: i for i, dim in enumerate(self.dims)}
        sides = {
            "align queries": dict(zip(self.layers, queries, strict=True)),
            "align documents": dict(zip(self.document_layers, documents, strict=True)),
        }
        targets: dict[tuple[str, int], Tensor] = {}
        for term in self.terms:
            layer, dim = term.cut.layer, term.cut.dim
            if term.kind == "contrastive":
                yield term, surprise[row[layer], column[dim]]
            elif term.kind == "align scores":
                student, teacher = scores[row[layer], [column[dim], column[self.whole.dim]]]
                yield term, score_alignment(student, teacher, self.temperature)
            else:
                vectors, key = sides[term.kind][layer], (term.kind, layer)
                if key not in targets:
                    targets[key] = compressed(vectors, self._longest_aligned)
                yield term, alignment(vectors[:, :dim], targets[key][:, :dim])

    @cached_property
    def _longest_aligned(self) -> int:
        return max((term.cut.dim for term in self.terms if term.kind != "contrastive"), default=0)
