"""ENGINES as rows: what FAISS builds of so many documents at some dim, and how it is searched."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt, log2
from typing import Literal

from m2dr.errors import UserError, counted, nearest

Knobs = tuple[tuple[str, int], ...]  # name and value: what is chosen at search time
Kind = Literal["vectors", "signs", "panorama"]

# FAISS asks for 39 documents to learn one centroid of an inverted list from; it warns below.
PER_LIST = 39
TRAIN_ROWS = 65536  # documents to learn from, at most; more only where lists ask for them
PER_CENTROID = 64  # documents to learn one list from, at most


@dataclass(frozen=True)
class Recipe:
    """What to build for one corpus and dim."""

    factory: str  # as faiss.index_factory reads it; for binary engines index_binary_factory
    train_rows: int = 0  # documents to learn from, at most; 0: nothing is learnt
    knobs: Knobs = ()  # what searching starts from
    notes: tuple[str, ...] = ()  # what differs from the usual, and why


@dataclass(frozen=True)
class Engine:
    """One way to search. A new one is a row of ENGINES, and the tests run over all rows."""

    name: str
    summary: str
    recipe: Callable[[int, int], Recipe]  # of (documents, dim)
    exact: bool = False  # agrees with a full scan, score for score
    trains: bool = False  # learns from a sample before documents are added
    kind: Kind = "vectors"  # signs: one bit per coordinate
    l2: bool = False  # scores are squared distances, negated so that higher is better
    user: bool = False  # a factory string of the user's


def engine_of(name: str, factory: str = "") -> Engine:
    """Return the row called `name`, or one for a factory string of the user's.

    Raises:
        UserError: there is no such engine.
    """
    if factory:
        recipe = _of_factory(factory)
        return Engine(factory_name(factory), f"FAISS {factory}", lambda *_: recipe, user=True)
    if name not in ENGINES:
        raise UserError(
            f"There is no engine {name!r}. {nearest(name, ENGINES)} Any other index of FAISS is "
            f"named by its factory string: --factory STRING."
        )
    return ENGINES[name]


def factory_name(factory: str) -> str:
    """A name for the index that a factory string makes, fit for a folder.

    >>> factory_name("OPQ32_128,IVF1024,PQ32")
    'opq32-128-ivf1024-pq32-11407fd9'
    """
    readable = re.sub(r"[^a-z0-9]+", "-", factory.lower()).strip("-")[:40]
    return f"{readable}-{hashlib.sha256(factory.encode()).hexdigest()[:8]}".lstrip("-")


def _plain(factory: str, train_rows: int = 0, knobs: Knobs = ()) -> Callable[[int, int], Recipe]:
    """A recipe that is the same for every corpus and dim."""
    recipe = Recipe(factory, train_rows, knobs)
    return lambda _documents, _dim: recipe


def _ivf(documents: int, dim: int) -> Recipe:
    del dim
    lists, notes = _lists(documents)
    return Recipe(f"IVF{lists},Flat", _sample(lists), (("nprobe", _probes(lists)),), notes)


def _pq(documents: int, dim: int) -> Recipe:
    """`np`: not polysemous, which costs minutes of annealing for a filter that nobody asks for."""
    code, notes = _code(documents, dim)
    return Recipe(f"PQ{code}np", TRAIN_ROWS, notes=notes)


def _opq(documents: int, dim: int) -> Recipe:
    code, notes = _code(documents, dim)
    return Recipe(f"OPQ{code.split('x')[0]},PQ{code}np", TRAIN_ROWS, notes=notes)


def _ivf_pq(documents: int, dim: int) -> Recipe:
    lists, few = _lists(documents)
    code, notes = _code(documents, dim)
    knobs = (("nprobe", _probes(lists)),)
    return Recipe(f"IVF{lists},PQ{code}np", _sample(lists), knobs, few + notes)


def _panorama(documents: int, dim: int) -> Recipe:
    """Levels of 32 coordinates: after each, a document that cannot win any more is dropped."""
    del documents
    return Recipe(f"FlatIPPanorama{max(1, dim // 32)}")


def _of_factory(factory: str) -> Recipe:
    lists = re.search(r"IVF(\d+)", factory)
    return Recipe(factory, _sample(int(lists[1]) if lists else 0))


def _lists(documents: int) -> tuple[int, tuple[str, ...]]:
    """How many inverted lists: about four times the root of the documents, a power of two."""
    usual = 2 ** round(log2(4 * max(1, isqrt(documents))))
    most = max(1, documents // PER_LIST)
    if usual <= most:
        return usual, ()
    return most, (
        f"{most} inverted lists instead of {usual}: each learns from {PER_LIST} documents at "
        f"least, and there are {documents}.",
    )


def _probes(lists: int) -> int:
    """Twice the root of the lists, 8 at least: 32 of 256, 128 of 4,096."""
    return min(lists, max(8, 2 * isqrt(lists)))


def _sample(lists: int) -> int:
    return max(TRAIN_ROWS, PER_CENTROID * lists)


def _code(documents: int, dim: int) -> tuple[str, tuple[str, ...]]:
    """Parts and bits of a product quantizer, as `8` or, with fewer than 8 bits each, `8x5`.

    One byte for four coordinates; where that does not divide dim, the next number that does.
    """
    wanted = -(-dim // 4)
    parts = next(parts for parts in range(wanted, dim + 1) if dim % parts == 0)
    notes = []
    if parts * 4 != dim:
        notes.append(f"Codes of {parts} parts: dim {dim} is not divisible by 4.")
    bits = min(8, max(1, documents.bit_length() - 1))
    if bits == 8:
        return str(parts), tuple(notes)
    notes.append(
        f"{2**bits} centroids per part instead of 256, for {counted(documents, 'documents')} to "
        f"learn them from."
    )
    return f"{parts}x{bits}", tuple(notes)


_EF = (("efSearch", 64),)
_RESCORE = (("rescore", 10),)

ENGINES = {
    engine.name: engine
    for engine in (
        Engine("flat", "Full scan.", _plain("Flat"), exact=True),
        Engine("flat-f16", "Full scan of half-precision numbers.", _plain("SQfp16")),
        Engine(
            "flat-l2", "Full scan by distance, for cosine.", _plain("Flat"), exact=True, l2=True
        ),
        Engine("int8", "One byte per coordinate.", _plain("SQ8", TRAIN_ROWS), trains=True),
        Engine("ivf", "The nearest of some inverted lists.", _ivf, trains=True),
        Engine("hnsw", "A graph of near neighbours.", _plain("HNSW32", knobs=_EF)),
        Engine("pq", "One byte for four coordinates.", _pq, trains=True),
        Engine("opq", "pq after a rotation that suits it.", _opq, trains=True),
        Engine("ivf-pq", "Inverted lists of pq codes.", _ivf_pq, trains=True),
        Engine("binary", "Signs, then rescoring.", _plain("BFlat", knobs=_RESCORE), kind="signs"),
        Engine(
            "binary-hnsw",
            "A graph over signs, then rescoring.",
            _plain("BHNSW32", knobs=(*_EF, *_RESCORE)),
            kind="signs",
        ),
        Engine(
            "panorama",
            "Full scan that stops early, prefix by prefix.",
            _panorama,
            exact=True,
            kind="panorama",
        ),
    )
}
