"""The table of engines: what FAISS builds for a number of documents and a dim."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt, log2
from typing import Literal

from m2dr.core.errors import UserError, counted, nearest

SearchParams = tuple[tuple[str, int], ...]  # name and value of what is chosen at search time

# FAISS asks for 39 documents to learn one centroid of an inverted list from; it warns below.
PER_LIST = 39
TRAIN_ROWS = 65536  # documents to learn from, at most; more only where lists ask for them
PER_CENTROID = 64  # documents to learn one list from, at most


@dataclass(frozen=True)
class FaissRecipe:
    """What to build for one corpus and dim."""

    factory: str  # as faiss.index_factory reads it; for binary engines index_binary_factory
    train_rows: int = 0  # documents to learn from, at most; 0: nothing is learnt
    search_params: SearchParams = ()  # the defaults of a search
    notes: tuple[str, ...] = ()  # what differs from the engine's default, and why


@dataclass(frozen=True)
class Engine:
    """A way to search. A new one is a row of ENGINES, and the tests run over all rows."""

    name: str
    summary: str
    recipe: Callable[[int, int], FaissRecipe]  # of (documents, dim)
    exact: bool = False  # agrees with a full scan, score for score
    kind: Literal["vectors", "binary", "panorama"] = "vectors"  # binary: one bit per dim
    l2: bool = False  # scores are squared distances, negated so that higher is better


def engine_of(name: str, factory: str = "") -> Engine:
    """Return the engine called `name`, or one for a factory string of the user's.

    Raises:
        UserError: there is no such engine.
    """
    if factory:
        lists = re.search(r"IVF(\d+)", factory)
        recipe = _constant(factory, _train_rows(int(lists[1]) if lists else 0))
        return Engine(factory_name(factory), f"FAISS {factory}", recipe)
    if name not in ENGINES:
        raise UserError(
            f"There is no engine {name!r}. {nearest(name, ENGINES)} Any other index of FAISS is "
            f"named by its factory string: --factory STRING."
        )
    return ENGINES[name]


def factory_name(factory: str) -> str:
    """Return a name for the index that a factory string makes, fit for a folder.

    >>> factory_name("OPQ32_128,IVF1024,PQ32")
    'opq32-128-ivf1024-pq32-11407fd9'
    """
    readable = re.sub(r"[^a-z0-9]+", "-", factory.lower()).strip("-")[:40]
    return f"{readable}-{hashlib.sha256(factory.encode()).hexdigest()[:8]}".lstrip("-")


def _constant(
    factory: str, train_rows: int = 0, search_params: SearchParams = ()
) -> Callable[[int, int], FaissRecipe]:
    """Return a recipe that is the same for every corpus and dim."""
    return lambda _documents, _dim: FaissRecipe(factory, train_rows, search_params)


def _ivf(documents: int, dim: int) -> FaissRecipe:
    del dim
    lists, notes = _lists(documents)
    params = (("nprobe", _probes(lists)),)
    return FaissRecipe(f"IVF{lists},Flat", _train_rows(lists), params, notes)


def _pq(documents: int, dim: int) -> FaissRecipe:
    """`np`: not polysemous, which costs minutes of annealing for a filter that is not used."""
    code, notes = _code(documents, dim)
    return FaissRecipe(f"PQ{code}np", TRAIN_ROWS, notes=notes)


def _opq(documents: int, dim: int) -> FaissRecipe:
    code, notes = _code(documents, dim)
    return FaissRecipe(f"OPQ{code.split('x')[0]},PQ{code}np", TRAIN_ROWS, notes=notes)


def _ivf_pq(documents: int, dim: int) -> FaissRecipe:
    lists, few = _lists(documents)
    code, notes = _code(documents, dim)
    params = (("nprobe", _probes(lists)),)
    return FaissRecipe(f"IVF{lists},PQ{code}np", _train_rows(lists), params, few + notes)


def _panorama(documents: int, dim: int) -> FaissRecipe:
    """Use levels of 32 dims: after each, documents that cannot win any more are dropped."""
    del documents
    return FaissRecipe(f"FlatIPPanorama{max(1, dim // 32)}")


def _lists(documents: int) -> tuple[int, tuple[str, ...]]:
    """Return the number of inverted lists, about 4 √documents as a power of two, and notes."""
    default = 2 ** round(log2(4 * max(1, isqrt(documents))))
    most = max(1, documents // PER_LIST)
    if default <= most:
        return default, ()
    return most, (
        f"{most} inverted lists instead of {default}: each learns from {PER_LIST} documents at "
        f"least, and there are {documents}.",
    )


def _probes(lists: int) -> int:
    """Return 2 √lists, 8 at least: 32 of 256, 128 of 4,096."""
    return min(lists, max(8, 2 * isqrt(lists)))


def _train_rows(lists: int) -> int:
    return max(TRAIN_ROWS, PER_CENTROID * lists)


def _code(documents: int, dim: int) -> tuple[str, tuple[str, ...]]:
    """Return parts and bits of a product quantizer, `8` or, with fewer than 8 bits, `8x5`.

    A part is one byte for four dims; where four does not divide dim, there are as many parts as
    the next number that does.
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
        Engine("flat", "Full scan.", _constant("Flat"), exact=True),
        Engine("flat-f16", "Full scan in half precision.", _constant("SQfp16")),
        Engine(
            "flat-l2", "Full scan by distance, for cosine.", _constant("Flat"), exact=True, l2=True
        ),
        Engine("int8", "One byte per dim.", _constant("SQ8", TRAIN_ROWS)),
        Engine("ivf", "The nearest of some inverted lists.", _ivf),
        Engine("hnsw", "A graph of near neighbours.", _constant("HNSW32", 0, _EF)),
        Engine("pq", "One byte for four dims.", _pq),
        Engine("opq", "pq after a rotation that suits it.", _opq),
        Engine("ivf-pq", "Inverted lists of pq codes.", _ivf_pq),
        Engine(
            "binary",
            "One bit per dim, then rescoring.",
            _constant("BFlat", 0, _RESCORE),
            kind="binary",
        ),
        Engine(
            "binary-hnsw",
            "A graph over one bit per dim, then rescoring.",
            _constant("BHNSW32", 0, (*_EF, *_RESCORE)),
            kind="binary",
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
