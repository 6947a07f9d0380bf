"""The label on vectors: what documents and queries must share to be comparable."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from m2dr.errors import UserError
from m2dr.index.layout import DIGITS
from m2dr.index.remedies import Origin, origin_of, store_remedy
from m2dr.jsontext import LATER
from m2dr.records.card import Similarity
from m2dr.records.cut import Cut
from m2dr.records.variant import DocumentLayer


@dataclass(frozen=True)
class Label:
    """How texts became vectors. Queries and documents are comparable when their labels agree."""

    fingerprint: str  # sha256 of the model's weights, tokenizer and config.json, in hex
    similarity: Similarity  # cosine: vectors are normalised after they are cut
    pooling: str
    query_prefix: str
    document_prefix: str
    query_length: int  # tokens, at most
    document_length: int  # tokens, at most
    document_layer: DocumentLayer  # which layer encodes documents for a shallow query
    cuts: tuple[tuple[int, int], ...] = ()  # (layer, dim) pairs that were trained
    model: str = ""  # where the model was found: a hint for people, never compared
    # What m2dr was given as the corpus, the same kind of hint; empty for imported vectors.
    source: str = field(default="", metadata=LATER)

    def differences(self, other: "Label") -> dict[str, tuple[str | int, str | int]]:
        """Name each field that makes vectors incomparable, with both values."""
        mine, theirs = asdict(self), asdict(other)
        compared = sorted(mine.keys() - {"cuts", "model", "source"})
        return {name: (mine[name], theirs[name]) for name in compared if mine[name] != theirs[name]}

    def accept(self, queries: "Label", corpus: str, store: Path | None = None) -> None:
        """Refuse queries that were encoded unlike the documents of `corpus`.

        Args:
            queries: their label.
            corpus: its name.
            store: the folder of the documents' store, whose records complete the command to run.

        Raises:
            UserError: another model, or the same one with other prefixes, pooling, lengths or
                similarity.
        """
        if queries.fingerprint != self.fingerprint:
            remedy = replace(self.origin(store), model=queries.model).remedy()
            raise UserError(
                f"The documents of {corpus} were encoded by model {self._name()}, and the queries "
                f"come from model {queries._name()}. Search with the first model, or let the "
                f"second encode the documents, {remedy}"
            )
        found = self.differences(queries)
        if found:
            told = ", ".join(f"{name} {a!r} against {b!r}" for name, (a, b) in found.items())
            raise UserError(
                f"The documents of {corpus} and the queries were encoded differently by the same "
                f"model: {told}. Restore the model's m2dr.json, or encode the documents again "
                f"{store_remedy(store, overwrite=True) if store else self.origin().remedy()}"
            )

    def origin(self, store: Path | None = None) -> Origin:
        """Return how these vectors were made: as the records of a store say, else as known here."""
        known = origin_of(store) if store else Origin()
        return known if known.source else Origin(self.source, self.model)

    def warnings(
        self, query: Cut, documents: Cut, store: Path | None = None, dim: int = 0
    ) -> list[str]:
        """Say, one sentence each, why rankings may be worse than this model can do.

        Args:
            query: the cut of the queries.
            documents: the cut of the documents.
            store: as `accept` takes it.
            dim: of the indexes that are searched; 0: that of the documents.
        """
        found = [
            self._untrained(cut) for cut in dict.fromkeys((query, documents)) if self._knows(cut)
        ]
        if query.layer != documents.layer and self.document_layer == "same":
            found.append(
                f"Queries of layer {query.layer} search documents of layer {documents.layer}, but "
                f"this model trained each layer against documents of its own: the two spaces are "
                f"not aligned, so expect much worse or near random rankings. Index that layer "
                f"{self.origin(store).remedy(layer=query.layer, dim=dim or documents.dim)}"
            )
        last = max((layer for layer, _ in self.cuts), default=documents.layer)
        if self.document_layer == "last" and documents.layer != last:
            found.append(
                f"Documents come from layer {documents.layer}, but this model trained queries "
                f"against documents of layer {last}: expect much worse rankings. Index that layer "
                f"{self.origin(store).remedy(layer=last, dim=dim or documents.dim)}"
            )
        return found

    def _knows(self, cut: Cut) -> bool:
        """Whether it is known that `cut` was not trained."""
        return (cut.layer, cut.dim) not in self.cuts

    def _untrained(self, cut: Cut) -> str:
        dims = sorted(dim for layer, dim in self.cuts if layer == cut.layer)
        layers = sorted({layer for layer, _ in self.cuts})
        if not layers:
            worse, trained = "near random rankings", "no cut of this model was"
        elif dims:
            worse, trained = "worse rankings", f"dims {_list(dims)} of that layer were"
        else:
            worse, trained = "near random rankings", f"layers {_list(layers)} were"
        return f"Cut {cut} was not trained ({trained}): expect {worse}."

    def _name(self) -> str:
        short = self.fingerprint[:DIGITS]
        return f"{short} ({self.model})" if self.model else short


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
