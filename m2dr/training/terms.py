"""Variant to terms: what each cut is trained for, and with what weight."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import log, sqrt
from typing import Literal, cast

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.core.variants import Variant

TermKind = Literal[
    "retrieve",  # the base loss
    "distill",  # the scores of a teacher model
    "align queries",  # to their compressed full width
    "align documents",
    "align texts",  # both sides as one batch
    "imitate queries",  # the dims of the last layer's
    "imitate documents",
    "imitate texts",
    "align scores",  # to the scores of another cut
]
_Drawn = tuple[Sequence[int], Sequence[int], Sequence[Cut]]  # layers, dims and stairs of a batch


@dataclass(frozen=True)
class Term:
    """One summand of the loss."""

    cut: Cut
    kind: TermKind
    weight: float
    teacher: Cut | None = None  # what the cut imitates, where that is another cut


@dataclass(frozen=True)
class StepTerms:
    """The terms of a step, and the layers and dims that they need."""

    terms: tuple[Term, ...]
    documents_from_last: bool = False
    more_layers: tuple[int, ...] = ()  # that are needed beside those of the terms

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Layers whose queries are needed, increasing."""
        return tuple(sorted({cut.layer for cut in self._all_cuts} | set(self.more_layers)))

    @cached_property
    def document_layers(self) -> tuple[int, ...]:
        """Layers whose documents are scored, increasing."""
        return self.layers[-1:] if self.documents_from_last else self.layers

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """Prefix lengths to score, increasing."""
        return tuple(sorted({cut.dim for cut in self._all_cuts}))

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """The cuts that are trained to retrieve."""
        return tuple(sorted({t.cut for t in self.terms if t.kind in ("retrieve", "distill")}))

    @cached_property
    def longest_aligned(self) -> int:
        """The longest prefix that has a compressed target; 0 when none has."""
        dims = (term.cut.dim for term in self.terms if term.kind.startswith("align"))
        return max(dims, default=0)

    @cached_property
    def _all_cuts(self) -> set[Cut]:
        teachers = {term.teacher for term in self.terms if term.teacher is not None}
        return {term.cut for term in self.terms} | teachers


def possible_steps(
    variant: Variant,
    layers: Sequence[int],
    dims: Sequence[int],
    full: Cut,
    stairs: Sequence[Cut] = (),
    joint_batch: bool = False,
    more_layers: Sequence[int] = (),
) -> tuple[StepTerms, ...]:
    """Return the terms of each possible step, all equally likely: one unless the variant draws.

    Args:
        variant: the recipe.
        layers: shallow layers of a recipe that trains them, all below the last.
        dims: prefixes of a recipe that trains them, all below the full width.
        full: the cut of the full model.
        stairs: cuts of a staircase, below the full model.
        joint_batch: whether both sides of a pair are aligned as one batch.
        more_layers: layers whose vectors are needed beside those of the terms.

    Raises:
        UserError: a step trains no cut to retrieve.
    """
    if joint_batch:
        variant = replace(variant, joint_batch=True)
    last = variant.documents == "last"
    # Documents come from the last layer even where no term is about that layer.
    needed = (*more_layers, full.layer) if last else tuple(more_layers)
    shallow = sorted({cut.layer for cut in stairs} if variant.staircase else set(layers))
    places = {layer: place for place, layer in enumerate(shallow, start=1)}
    dim_weights = _dim_weights(variant, {full.dim, *dims, *(cut.dim for cut in stairs)})

    def all_terms(drawn: _Drawn) -> tuple[Term, ...]:
        some, short, steps = drawn
        found = terms(variant, some, short, full, steps, places)
        return tuple(replace(t, weight=t.weight * dim_weights[t.cut.dim]) for t in found)

    found = tuple(
        StepTerms(all_terms(drawn), last, needed)
        for drawn in _draws(variant, layers, dims, full, stairs)
    )
    if not all(any(cut.layer for cut in step.cuts) for step in found):
        raise UserError(f"Variant {variant.name}, as it is set, trains no cut to retrieve.")
    return found


def weighed(
    choices: Sequence[StepTerms], weights: Sequence[float], full: Cut
) -> tuple[StepTerms, ...]:
    """Return the same steps with a factor for each kind of cut that retrieves (2DMSE, eq. 7).

    Args:
        choices: the possible steps.
        weights: of the full model, shallow layers at full width, prefixes of the last layer, and
            prefixes of shallow layers.
        full: the cut of the full model.

    Raises:
        UserError: a step trains no cut to retrieve.
    """

    def weight(term: Term) -> float:
        kind = (term.cut.layer < full.layer) + 2 * (term.cut.dim < full.dim)
        return term.weight * (weights[kind] if term.kind == "retrieve" else 1)

    steps = tuple(
        replace(s, terms=tuple(replace(t, weight=weight(t)) for t in s.terms if weight(t)))
        for s in choices
    )
    if not all(step.cuts for step in steps):
        raise UserError(f"term_weights = {list(weights)} trains no cut to retrieve.")
    return steps


def with_teacher(
    choices: Sequence[StepTerms], contrastive: float, distill: float
) -> tuple[StepTerms, ...]:
    """Return the same steps where each cut that retrieves learns a teacher's scores too.

    Args:
        choices: the possible steps.
        contrastive: factor of the base loss; 0: the teacher's scores alone.
        distill: weight of the distillation, in units of the base loss.
    """

    def taught(term: Term) -> Iterator[Term]:
        if term.kind != "retrieve":
            yield term
            return
        if contrastive:
            yield replace(term, weight=contrastive * term.weight)
        yield Term(term.cut, "distill", distill * term.weight)

    return tuple(
        replace(step, terms=tuple(part for term in step.terms for part in taught(term)))
        for step in choices
    )


def terms(
    variant: Variant,
    layers: Sequence[int],
    dims: Sequence[int],
    full: Cut,
    stairs: Sequence[Cut] = (),
    places: Mapping[int, int] | None = None,
) -> tuple[Term, ...]:
    """Return the summands of one batch: read this to know what a variant does.

    Args as `possible_steps`; `places` numbers all shallow layers that some batch trains, from 1;
    by default those of this batch.
    """
    if variant.single_cut:
        dim = dims[0] if dims and variant.prefixes != "none" else full.dim
        return (Term(Cut(full.layer, dim), "retrieve", variant.alpha),)
    by_stairs = variant.staircase or variant.draw == "exit"
    cuts = list(stairs) if by_stairs else _grid(variant, layers, dims, full)
    if variant.freeze:  # the last layer has no parameter that is trained
        cuts = [cut for cut in cuts if cut.layer < full.layer]
    full_too = variant.whole and not variant.freeze
    if full_too:
        cuts = [cut for cut in cuts if cut != full]  # a draw may be the full width
    each = 1 / len(cuts) if variant.average and cuts else 1.0
    below = sorted({cut.layer for cut in cuts} - {full.layer})
    places = places or {layer: place for place, layer in enumerate(below, start=1)}
    weights = {cut.layer: layer_weight(variant, cut.layer, full.layer, places) for cut in cuts}
    whole = variant.alpha * layer_weight(variant, full.layer, full.layer, places)
    found = [Term(full, "retrieve", whole)] if full_too else []
    found += [
        Term(cut, "retrieve", each * variant.alpha * variant.share * weights[cut.layer])
        for cut in cuts
    ]
    found += [
        Term(
            cut,
            kind,
            each * variant.align_weight * (weights[cut.layer] if variant.align_by_layer else 1.0),
            teacher,
        )
        for cut, kind, teacher in _alignments(variant, cuts, full)
    ]
    return tuple(term for term in found if term.weight)


def layer_weight(
    variant: Variant, layer: int, last: int, places: Mapping[int, int] | None = None
) -> float:
    """Return the weight of layer l; that of the last one, L, is 1 unless all have the same.

    log: 1 / (1 + ln l) (Wang et al. 2024, eq. 8; ESE, eq. 2). log-position: the same of the place
    among the shallow layers that are trained, as in public code; log-position-mean: divided by
    their number too. inverse: 1 / l (sentence-transformers). linear: falls evenly from 1 at the
    first layer to 2 / L at the one before the last. dynamic: 1; the Objective learns a factor.
    mean: 1 over the number of layers that are trained, L among them.

    Args:
        variant: the recipe.
        layer: from 1, or 0 for the embeddings where weights go by position.
        last: L.
        places: the place of each shallow layer, from 1; by default that of layers 1, 2 and so on.
    """
    if places is None:
        places = {number: number for number in range(1, last)}
    if variant.weights == "mean":
        return 1 / (len(places) + 1)
    if layer == last:
        return 1.0
    if variant.weights.startswith("log-position"):
        share = len(places) if variant.weights == "log-position-mean" else 1
        return 1 / (1 + log(places.get(layer, layer))) / share
    if variant.weights in ("uniform", "dynamic"):
        return 1.0
    if layer == 0:  # the embeddings weigh as much as the first layer
        layer = 1
    table = {"log": 1 / (1 + log(layer)), "inverse": 1 / layer, "linear": 1 - (layer - 1) / last}
    return table[variant.weights]


def _dim_weights(variant: Variant, dims: Collection[int]) -> dict[int, float]:
    """Return the weight of each trained dim; root-rank: √(k / H) / rank (ML-Embed, its code)."""
    ranked = sorted(dims, reverse=True)
    if variant.prefix_weights == "uniform":
        return dict.fromkeys(ranked, 1.0)
    return {dim: sqrt(dim / ranked[0]) / rank for rank, dim in enumerate(ranked, start=1)}


def _draws(
    variant: Variant, layers: Sequence[int], dims: Sequence[int], full: Cut, stairs: Sequence[Cut]
) -> list[_Drawn]:
    """Return the layers, dims and stairs of each possible batch; one batch of all without a draw.

    step: one stair, or one shallow layer and one prefix. exit: one shallow layer, a dim for it and
    one for the last layer; full width is among those of the last, and among the others where the
    recipe trains it there.
    """
    if variant.draw == "none":
        return [(layers, dims, stairs)]
    if variant.staircase:
        return [((), (), (stair,)) for stair in stairs] or [((), (), ())]
    some: list[Sequence[int]] = [(layer,) for layer in layers if variant.shallow]
    if variant.draw == "exit":
        prefixes = tuple(dims) if variant.prefixes != "none" else ()
        wide = (*prefixes, full.dim) if variant.full_dim or not prefixes else prefixes
        return [
            (layer, (), (*(Cut(one, below) for one in layer), Cut(full.layer, above)))
            for layer in some or [()]
            for below in (wide if layer else wide[:1])
            for above in (*prefixes, full.dim)
        ]
    short: list[Sequence[int]] = [(dim,) for dim in dims if variant.prefixes != "none"]
    return [(layer, dim, ()) for layer, dim in product(some or [()], short or [()])]


def _grid(variant: Variant, layers: Sequence[int], dims: Sequence[int], full: Cut) -> list[Cut]:
    """Return the cuts that are trained to retrieve; the full model is not among them."""
    dims = tuple(dims) if variant.prefixes != "none" else ()
    shallow = tuple(layers) if variant.shallow else ()
    cuts = []
    for layer in (*shallow, full.layer):
        wide = (full.dim,) if variant.full_dim and layer < full.layer else ()
        cuts += [Cut(layer, dim) for dim in (*dims, *wide)]
    return cuts


def _alignments(
    variant: Variant, cuts: Sequence[Cut], full: Cut
) -> Iterator[tuple[Cut, TermKind, Cut | None]]:
    """Yield the cuts that imitate something, with what they imitate."""
    if variant.align == "embedding":
        yield from _imitations(variant, cuts, full)
        return
    for cut in cuts:
        if variant.align == "pca" and cut.dim < full.dim and variant.compress != "none":
            yield from ((cut, kind, None) for kind in _sides("align", variant, cut, full))
        elif variant.align == "score":
            teacher = {
                "width": Cut(cut.layer, full.dim),
                "depth": Cut(full.layer, cut.dim),
                "whole": full,
            }[variant.teacher]
            if teacher != cut:
                yield cut, "align scores", teacher


def _imitations(
    variant: Variant, cuts: Sequence[Cut], full: Cut
) -> Iterator[tuple[Cut, TermKind, Cut]]:
    """Yield the cuts that imitate the dims of the last layer: all, or one per layer."""
    below = [cut for cut in cuts if cut.layer < full.layer]
    if variant.align_width == "full":
        below = [Cut(layer, full.dim) for layer in dict.fromkeys(cut.layer for cut in below)]
    for cut in below:
        for kind in _sides("imitate", variant, cut, full):
            yield cut, kind, Cut(full.layer, cut.dim)


def _sides(
    verb: Literal["align", "imitate"], variant: Variant, cut: Cut, full: Cut
) -> tuple[TermKind, ...]:
    """Return the sides whose vectors are aligned, as kinds of terms."""
    sides = ["texts"] if variant.joint_batch else ["queries", "documents"]
    if variant.documents == "last" and cut.layer < full.layer:
        sides = ["queries"]  # documents of shallow layers are never used, so never taught
    return tuple(cast(TermKind, f"{verb} {side}") for side in sides)
