"""What a collection in Milvus is called, and what it says of itself."""

import hashlib
import re
from dataclasses import dataclass

from m2dr.errors import UserError, nearest
from m2dr.index.label import Label
from m2dr.index.layout import DIGITS
from m2dr.records.cut import Cut

DEEPEST = 16_384  # documents per query that Milvus gives, and rows per answer


@dataclass(frozen=True)
class Kind:
    """One index of Milvus that m2dr asks for. A new one is a row of KINDS, and a test of it."""

    name: str
    index_type: str  # as Milvus calls it
    exact: bool  # agrees with a full scan
    build: tuple[tuple[str, int], ...] = ()
    search: tuple[tuple[str, int], ...] = ()

    def parameters(self, k: int) -> dict[str, int]:
        """How widely to look for `k` documents; a graph must keep at least as many in sight."""
        return {name: max(value, 2 * k if name == "ef" else 0) for name, value in self.search}


KINDS = {
    kind.name: kind
    for kind in (
        Kind("flat", "FLAT", True),
        Kind("hnsw", "HNSW", False, (("M", 32), ("efConstruction", 200)), (("ef", 128),)),
        Kind("ivf", "IVF_FLAT", False, (("nlist", 1024),), (("nprobe", 32),)),
    )
}


def kind_of(name: str) -> Kind:
    """The row of that name.

    Raises:
        UserError: there is none.
    """
    if name not in KINDS:
        raise UserError(f"There is no engine {name!r} for Milvus. {nearest(name, KINDS)}")
    return KINDS[name]


@dataclass(frozen=True)
class Pushed:
    """The label of a collection: the vectors of one layer, cut to one dim."""

    corpus: str
    documents: int  # when all of them are there
    layer: int  # transformer layers that encoded them; 0: a table of tokens
    dim: int  # coordinates kept
    engine: str  # a name in KINDS
    label: Label
    store: str  # digest of the store that they were cut from

    @property
    def name(self) -> str:
        """What the collection is called."""
        return collection_name(self.corpus, self.label.fingerprint, Cut(self.layer, self.dim))

    def refuse_other(self, found: "Pushed", where: str) -> None:
        """Refuse to mix these vectors with those of another label.

        Raises:
            UserError: a field differs; the sentence names it.
        """
        names = ("corpus", "documents", "layer", "dim", "engine", "store")
        differences = {name: (getattr(found, name), getattr(self, name)) for name in names}
        differences |= found.label.differences(self.label)
        told = [f"{name} {a!r}, not {b!r}" for name, (a, b) in differences.items() if a != b]
        if told:
            raise UserError(
                f"The collection {self.name} of {where} was pushed with {', '.join(told)}. "
                f"Repeat the settings it was made with, or replace it with --overwrite."
            )


def collection_name(corpus: str, fingerprint: str, cut: Cut) -> str:
    """Where one cut of a corpus goes: letters, digits and underscores, as Milvus asks.

    >>> collection_name("pydocs", "0123456789abcdef", Cut(6, 128))
    'm2dr_pydocs_0123456789ab_L6D128'
    >>> collection_name("beir/scifact", "0123456789abcdef", Cut(6, 128))
    'm2dr_beir_scifact_3c40cc_0123456789ab_L6D128'
    """
    return f"{_stem(corpus, fingerprint)}_{cut}"


def cut_of(name: str, corpus: str, fingerprint: str) -> Cut | None:
    """The cut that a collection of this corpus and model holds; None for any other collection."""
    found = re.fullmatch(rf"{_stem(corpus, fingerprint)}_(L(?:0|[1-9]\d*)D[1-9]\d*)", name)
    return Cut.parse(found[1]) if found else None


def _stem(corpus: str, fingerprint: str) -> str:
    """Two corpora that differ in other signs alone still have names of their own."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", corpus)[:100]
    if plain != corpus:
        plain += f"_{hashlib.sha256(corpus.encode()).hexdigest()[:6]}"
    return f"m2dr_{plain}_{re.sub(r'[^A-Za-z0-9]', '_', fingerprint[:DIGITS])}"
