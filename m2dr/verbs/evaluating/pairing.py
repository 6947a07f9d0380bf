"""Which layer's documents the queries of each layer search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from m2dr.errors import UserError
from m2dr.records.card import ModelCard
from m2dr.records.cut import Cut
from m2dr.verbs.models import document_layer

WAYS = ("trained", "same", "last", "cross")


@dataclass(frozen=True)
class Pairing:
    """One way to pair layers, which makes one grid."""

    suffix: str  # of the model's name in tables and folders; empty as the model was trained
    layers: Mapping[int, int]  # of the queries -> of the documents

    @property
    def documents(self) -> int:
        """The deepest layer of the documents; the only one, of a pairing with fixed documents."""
        return max(self.layers.values())

    @property
    def is_fixed(self) -> bool:
        """Whether queries of several layers search the same documents."""
        return len(set(self.layers.values())) == 1 and len(self.layers) > 1


def pairings(card: ModelCard, layers: Sequence[int], documents: str) -> tuple[Pairing, ...]:
    """The pairings that `documents` asks for.

    Args:
        card: says how the model was trained.
        layers: of the queries.
        documents: trained; same, last or the number of a layer; or cross, for each of `layers`.

    Raises:
        UserError: it is none of these, or the encoder has no such layer.
    """
    if documents == "cross":
        return tuple(_fixed(card, layers, layer) for layer in layers)
    if documents == "same":
        return (_named(card, ".documents-same", {layer: layer for layer in layers}),)
    if documents == "last":
        return (_fixed(card, layers, card.layers),)
    if documents == "trained":
        return (Pairing("", _trained(card, layers)),)
    if not documents.isdecimal():
        raise UserError(
            f"--documents {documents} names no layer of documents; it is {', '.join(WAYS)} or the "
            f"number of a layer from {card.lowest_layer} to {card.layers}."
        )
    return (_fixed(card, layers, card.check(Cut(int(documents), 1)).layer),)


def _fixed(card: ModelCard, layers: Sequence[int], documents: int) -> Pairing:
    return _named(card, f".documents-{documents:02d}", dict.fromkeys(layers, documents))


def _named(card: ModelCard, suffix: str, layers: dict[int, int]) -> Pairing:
    return Pairing("" if layers == _trained(card, layers) else suffix, layers)


def _trained(card: ModelCard, layers: Sequence[int] | Mapping[int, int]) -> dict[int, int]:
    return {layer: document_layer(card, layer) for layer in layers}
