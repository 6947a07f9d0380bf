"""Variant to terms: which cut is asked what, and with what weight."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import log
from typing import Literal

from m2dr.errors import UserError
from m2dr.records.cut import Cut
from m2dr.records.variant import Variant

Kind = Literal[
    "retrieve",  # the base loss
    "distill",  # towards the scores of a teacher
    "align queries",  # to their compressed full width
    "align documents",
    "align texts",  # both sides as one batch
    "imitate queries",  # the softmax over the coordinates of the last layer's
    "imitate documents",
    "imitate texts",
    "align scores",
]
SIDES = ("queries", "documents")


@dataclass(frozen=True)
class Term:
    """One summand of the loss: what a cut is asked, and with what weight."""

    cut: Cut
    kind: Kind
    weight: float
    teacher: Cut | None = None  # what the cut imitates, where that is another cut


@dataclass(frozen=True)
class Asked:
    """The terms of a step, and what has to be computed for them."""

    terms: tuple[Term, ...]
    documents_from_last: bool = False
    towards: tuple[int, ...] = ()  # more layers that are needed for other reasons

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Layers whose queries are needed, increasing."""
        return tuple(sorted({cut.layer for cut in self._all_cuts} | set(self.towards)))

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


def asked_of(
    variant: Variant,
    layers: Sequence[int],
    dims: Sequence[int],
    whole: Cut,
    stairs: Sequence[Cut] = (),
    together: bool = False,
    faithful: bool = False,
    towards: Sequence[int] = (),
) -> tuple[Asked, ...]:
    """What each step may ask, all equally likely: one entry unless the variant draws.

    Args:
        variant: the recipe.
        layers: the shallow layers that a recipe with shallow layers trains, all below the last.
        dims: the prefixes that a recipe with prefixes trains, all below the full width.
        whole: the last layer and the full width.
        stairs: the cuts below the whole of a recipe that trains a staircase.
        together: both sides of a pair are one batch of sentences, aligned as one.
        faithful: weigh as ESE's public code does.
        towards: layers whose vectors are needed beside those of the terms.

    Raises:
        UserError: there is a step that trains no cut to retrieve.
    """
    last = variant.documents == "last"
    # Documents come from the last layer even where no term is about that layer.
    needed = (*towards, whole.layer) if last else tuple(towards)
    draws = _draws(variant, layers, dims, stairs) if variant.sampled else [(layers, dims, stairs)]
    found = tuple(
        Asked(terms(variant, some, short, whole, steps, together, faithful), last, needed)
        for some, short, steps in draws
    )
    if not all(asked.cuts for asked in found):
        raise UserError(
            f"Variant {variant.name}, as it is set, trains no cut to retrieve. Set whole=true, or "
            "shallow=true with prefixes=one or full_dim=true; alpha and share must be above 0."
        )
    return found


def with_teacher(choices: Sequence[Asked], contrastive: float, distill: float) -> tuple[Asked, ...]:
    """Return the same steps where each cut that retrieves learns a teacher's scores beside.

    Args:
        choices: what each step may ask.
        contrastive: factor of the base loss; 0: the teacher alone.
        distill: weight of the distillation, in units of that of the base loss.
    """

    def taught(term: Term) -> Iterator[Term]:
        if term.kind != "retrieve":
            yield term
            return
        if contrastive:
            yield replace(term, weight=contrastive * term.weight)
        yield Term(term.cut, "distill", distill * term.weight)

    return tuple(
        replace(asked, terms=tuple(part for term in asked.terms for part in taught(term)))
        for asked in choices
    )


def terms(
    variant: Variant,
    layers: Sequence[int],
    dims: Sequence[int],
    whole: Cut,
    stairs: Sequence[Cut] = (),
    together: bool = False,
    faithful: bool = False,
) -> tuple[Term, ...]:
    """The summands of one step: read this to know what a variant does. Args as `asked_of`."""
    if variant.alone:
        dim = dims[0] if dims and variant.prefixes != "none" else whole.dim
        return (Term(Cut(whole.layer, dim), "retrieve", variant.alpha),)
    cuts = list(stairs) if variant.staircase else _grid(variant, layers, dims, whole)
    if variant.freeze:  # nothing that is trained stands behind the last layer
        cuts = [cut for cut in cuts if cut.layer < whole.layer]
    each = 1 / len(cuts) if variant.average and cuts else 1.0
    weights = {cut.layer: layer_weight(variant, cut.layer, whole.layer, faithful) for cut in cuts}
    whole_too = variant.whole and not variant.freeze
    asked = [Term(whole, "retrieve", variant.alpha)] if whole_too else []
    asked += [
        Term(cut, "retrieve", each * variant.alpha * variant.share * weights[cut.layer])
        for cut in cuts
    ]
    asked += [
        Term(cut, kind, each * variant.align_weight * weights[cut.layer], teacher)
        for cut, kind, teacher in _alignments(variant, cuts, whole, together)
    ]
    return tuple(term for term in asked if term.weight)


def layer_weight(variant: Variant, layer: int, last: int, faithful: bool = False) -> float:
    """How much a layer counts; the last one always 1.

    log: 1 / (1 + ln l) (Wang et al. 2024, eq. 8; ESE, eq. 2). linear: falls evenly from 1 at the
    first layer to 2 / L at the one before the last. dynamic: 1 here; the factor is learned.

    `faithful` is the public code of ESE, which counts the word embeddings as its first layer: the
    weight of layer l is that of l + 1, and the layer before the last gets none.
    """
    if layer == last:
        return 1.0
    if faithful and layer == last - 1:
        return 0.0
    place = layer + 1 if faithful else layer
    table = {"log": 1 / (1 + log(place)), "linear": 1 - (place - 1) / last}
    return table.get(variant.weights, 1.0)


def _draws(
    variant: Variant, layers: Sequence[int], dims: Sequence[int], stairs: Sequence[Cut]
) -> list[tuple[Sequence[int], Sequence[int], Sequence[Cut]]]:
    """What a step may draw: one stair, or one shallow layer and one prefix, where there are any."""
    if variant.staircase:
        return [((), (), (stair,)) for stair in stairs] or [((), (), ())]
    some: list[Sequence[int]] = [(layer,) for layer in layers if variant.shallow]
    short: list[Sequence[int]] = [(dim,) for dim in dims if variant.prefixes != "none"]
    return [(layer, dim, ()) for layer, dim in product(some or [()], short or [()])]


def _grid(variant: Variant, layers: Sequence[int], dims: Sequence[int], whole: Cut) -> list[Cut]:
    """The cuts below the whole that are asked to retrieve."""
    dims = tuple(dims) if variant.prefixes != "none" else ()
    shallow = tuple(layers) if variant.shallow else ()
    cuts = []
    for layer in (*shallow, whole.layer):
        wide = (whole.dim,) if variant.full_dim and layer < whole.layer else ()
        cuts += [Cut(layer, dim) for dim in (*dims, *wide)]
    return cuts


def _alignments(
    variant: Variant, cuts: Sequence[Cut], whole: Cut, together: bool
) -> Iterator[tuple[Cut, Kind, Cut | None]]:
    """Which cut imitates what."""
    for cut in cuts:
        if variant.align == "pca" and cut.dim < whole.dim and variant.compress != "none":
            yield from (
                (cut, kind, None) for kind in _sides("align", variant, cut, whole, together)
            )
        elif variant.align == "embedding" and cut.layer < whole.layer:
            teacher = Cut(whole.layer, cut.dim)
            for kind in _sides("imitate", variant, cut, whole, together):
                yield cut, kind, teacher
        elif variant.align == "score":
            teacher = {
                "width": Cut(cut.layer, whole.dim),
                "depth": Cut(whole.layer, cut.dim),
                "whole": whole,
            }[variant.teacher]
            if teacher != cut:
                yield cut, "align scores", teacher


def _sides(
    verb: Literal["align", "imitate"], variant: Variant, cut: Cut, whole: Cut, together: bool
) -> tuple[Kind, ...]:
    """Whose vectors are taught."""
    if variant.documents == "last" and cut.layer < whole.layer:
        # Documents of shallow layers are never used, so never taught.
        return ("align queries",) if verb == "align" else ("imitate queries",)
    if together:
        return ("align texts",) if verb == "align" else ("imitate texts",)
    if verb == "align":
        return ("align queries", "align documents")
    return ("imitate queries", "imitate documents")
