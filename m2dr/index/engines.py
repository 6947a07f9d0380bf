"""Engines: what FAISS builds for a corpus and a dim, by name; empty indexes, and their training."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt, log2

import numpy as np

from m2dr.core.arrays import Float32, Int64
from m2dr.core.errors import UserError, counted, nearest
from m2dr.index.library import Handle, load_faiss, refusing, threads

SearchParams = tuple[tuple[str, int], ...]  # name and value of what is chosen at search time

# FAISS asks for 39 documents to learn one centroid of an inverted list from; it warns below.
PER_LIST = 39
TRAIN_ROWS = 65536  # documents to learn from, at most; more only where lists ask for them
PER_CENTROID = 64  # documents to learn one list from, at most
TRAIN_SEED = 13  # of the documents to learn from
CODE_ROUNDS = 10  # of k-means for codes of few bits; FAISS's own 25 take twice as long, rank alike
OPQ_ROUNDS = 10  # FAISS's own 50 take five times as long for 1 % of the error
LINKS = 80  # efConstruction of a graph; FAISS's own 40 loses recall at a thousand documents


@dataclass(frozen=True)
class FaissRecipe:
    """What to build for one corpus and dim."""

    factory: str  # as faiss.index_factory reads it
    train_rows: int = 0  # documents to learn from, at most; 0: nothing is learnt
    search_params: SearchParams = ()  # the defaults of a search
    notes: tuple[str, ...] = ()  # what differs from the engine's default, and why


Engine = Callable[[int, int], FaissRecipe]  # of the number of documents and the dim


def engine_of(name: str, factory: str = "") -> tuple[str, Engine]:
    """Return an engine and its name; that of a factory string of the user's, if there is one.

    Raises:
        UserError: there is no such engine.
    """
    if factory:
        lists = re.search(r"IVF(\d+)", factory)
        rows = _train_rows(int(lists[1]) if lists else 0)
        return factory_name(factory), _constant(factory, rows)
    if name not in ENGINES:
        hint = f"{nearest(name, ENGINES)} Others have a factory string, for --factory."
        raise UserError(f"There is no engine {name!r}. {hint}")
    return name, ENGINES[name]


def factory_name(factory: str) -> str:
    """Return a name for the index that a factory string makes, fit for a folder.

    >>> factory_name("OPQ32_128,IVF1024,PQ32")
    'opq32-128-ivf1024-pq32-11407fd9'
    """
    readable = re.sub(r"[^a-z0-9]+", "-", factory.lower()).strip("-")[:40]
    return f"{readable}-{hashlib.sha256(factory.encode()).hexdigest()[:8]}".lstrip("-")


def _constant(factory: str, train_rows: int = 0, search_params: SearchParams = ()) -> Engine:
    """Return a recipe that is the same for every corpus and dim."""
    return lambda _documents, _dim: FaissRecipe(factory, train_rows, search_params)


def _ivf(documents: int, _dim: int) -> FaissRecipe:
    lists, notes = _lists(documents)
    params = (("nprobe", _probes(lists)),)
    return FaissRecipe(f"IVF{lists},Flat", _train_rows(lists), params, notes)


def _pq(documents: int, dim: int) -> FaissRecipe:
    """`np`: not polysemous, which costs minutes of annealing for a filter that is not used."""
    code, notes = _code(documents, dim)
    return FaissRecipe(f"PQ{code}np", TRAIN_ROWS, notes=notes)


def _ivf_pq(documents: int, dim: int) -> FaissRecipe:
    lists, codes = _ivf(documents, dim), _pq(documents, dim)
    factory = lists.factory.replace("Flat", codes.factory)
    notes = lists.notes + codes.notes
    return FaissRecipe(factory, lists.train_rows, lists.search_params, notes)


def _bits(bits: int) -> Engine:
    """Return a recipe of `bits` per dim: 16 centroids for 4 / bits dims, scanned in registers.

    A random rotation spreads what principal axes gather in the first dims, and fills whole bytes.
    """

    def recipe(documents: int, dim: int) -> FaissRecipe:
        width = -(-dim // 8) * 8
        # Registers hold 32 documents, and of very few the scan misses the lowest score.
        scan = "fs" if documents >= 32 else "np"
        factory = f"RR{width},PQ{width * bits // 4}x4{scan}"
        return FaissRecipe(factory, TRAIN_ROWS, (("rescore", 10),))

    return recipe


def _lists(documents: int) -> tuple[int, tuple[str, ...]]:
    """Return the number of inverted lists, about 4 √documents as a power of two, and notes."""
    default = 2 ** round(log2(4 * max(1, isqrt(documents))))
    most = max(1, documents // PER_LIST)
    if default <= most:
        return default, ()
    return most, (
        f"{most} inverted lists instead of {default}: each needs {PER_LIST} documents to learn "
        f"from, and there are {documents}.",
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
        f"{2**bits} centroids per part instead of 256, as there are only "
        f"{counted(documents, 'documents')} to learn them from."
    )
    return f"{parts}x{bits}", tuple(notes)


FLAT = "flat"  # the only engine that is exact: it agrees with a full scan, score for score

# A new engine is a row, and the tests run over all rows.
ENGINES: dict[str, Engine] = {
    FLAT: _constant("Flat"),
    "flat-f16": _constant("SQfp16"),
    "int8": _constant("SQ8", TRAIN_ROWS),
    "ivf": _ivf,  # the nearest of some inverted lists
    "hnsw": _constant("HNSW32", 0, (("efSearch", 64),)),
    "bits4": _bits(4),
    "bits2": _bits(2),
    "bits1": _bits(1),
    "pq": _pq,  # one byte for four dims
    "ivf-pq": _ivf_pq,
}


def check_engine(engine: str, factory: str, dim: int) -> None:
    """Refuse an engine that cannot be made, before anything is encoded for it.

    Raises:
        UserError: there is no such engine, or FAISS cannot make it at that dim.
    """
    _, recipe = engine_of(engine, factory)
    empty_index(recipe(10**6, dim).factory, dim)


def empty_index(factory: str, dim: int) -> Handle:
    """Return an index of vectors [n, dim] that holds none yet, with what no factory string says."""
    faiss = load_faiss()
    with refusing(f"make {factory!r} at dim {dim}"):
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    inner = faiss.downcast_index(getattr(index, "index", index))
    parts: list[Handle] = [inner, getattr(inner, "pq", None)]
    for part in parts:
        if hasattr(part, "cp"):
            # We know how few documents there are; FAISS would warn of it on the terminal.
            part.cp.min_points_per_centroid = 1
    if hasattr(inner, "hnsw"):
        inner.hnsw.efConstruction = LINKS
    return index


def sample_rows(documents: int, most: int = TRAIN_ROWS) -> Int64:
    """Return the rows of the documents that an index learns from, drawn at random, increasing."""
    generator = np.random.default_rng(TRAIN_SEED)
    return np.sort(generator.choice(documents, min(most, documents), replace=False))


def train_index(index: Handle, sample: Float32, factory: str) -> None:
    """Let an index learn from documents [n, dim], prepared as `prefixes` does."""
    if index.is_trained:
        return
    faiss, (count, dim) = load_faiss(), sample.shape
    inner: Handle = faiss.downcast_index(getattr(index, "index", index))
    few_bits = isinstance(inner, faiss.IndexPQFastScan)
    if few_bits:  # hundreds of small k-means, and to divide each costs more than it saves
        inner.pq.cp.niter = CODE_ROUNDS
    # OPQ learns in fewer rounds, without warnings, with as many centroids as the codes have.
    rotations, bits = [], inner.pq.nbits if hasattr(inner, "pq") else 8
    for number in range(index.chain.size() if hasattr(index, "chain") else 0):
        rotation = faiss.downcast_VectorTransform(index.chain.at(number))
        if isinstance(rotation, faiss.OPQMatrix):
            quantizer = faiss.ProductQuantizer(rotation.d_out, rotation.M, bits)
            quantizer.cp.min_points_per_centroid = 1
            rotation.niter, rotation.pq = OPQ_ROUNDS, quantizer
            rotations.append((rotation, quantizer))
    learning = refusing(f"train {factory!r} on {counted(count, 'documents')}")
    try:
        with learning, threads(int(few_bits)):
            # Repeated where there are few: OPQ writes beyond its memory below `dim` rows, and no
            # more centroids than documents are learned.
            index.train(np.resize(sample, (max(16, dim, count), dim)))
    finally:
        for rotation, _ in rotations:
            rotation.pq = None  # FAISS neither owns nor copies it
