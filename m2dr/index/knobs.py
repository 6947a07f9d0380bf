"""What can be chosen at search time: nprobe, efSearch and rescore."""

from collections.abc import Mapping
from typing import Any

from m2dr.errors import UserError, nearest
from m2dr.index.library import load_faiss
from m2dr.index.signs import Signs

LEAST = {"nprobe": 1, "efSearch": 1, "rescore": 0}
Handle = Any  # a faiss.Index, which has no type stubs, or Signs


def available(index: Handle, exact: bool) -> tuple[str, ...]:
    """Names of the knobs that change anything in `index`."""
    names = [] if exact else ["rescore"]
    inner = _core(index)
    if hasattr(inner, "nprobe"):
        names.append("nprobe")
        inner = _downcast(inner.quantizer)
    if hasattr(inner, "hnsw"):
        names.append("efSearch")
    return tuple(sorted(names))


def checked(engine: str, knobs: Mapping[str, int], names: tuple[str, ...]) -> dict[str, int]:
    """Return `knobs`, refusing those that the engine has not.

    Raises:
        UserError: a name is not in `names`, or a value is too small.
    """
    for name, value in knobs.items():
        if name not in names:
            hint = nearest(name, names) if names else "It has none."
            raise UserError(f"Engine {engine} has no search-time setting {name!r}. {hint}")
        if value < LEAST[name]:
            raise UserError(f"{name} is {LEAST[name]} at least, and {value} was given.")
    return dict(knobs)


def parameters(index: Handle, knobs: Mapping[str, int]) -> Handle:
    """SearchParameters of FAISS for the knobs, or None where there is nothing to set.

    Given with each search and not set on the index, so that two searchers may share one.
    """
    wanted = {name: knobs[name] for name in ("nprobe", "efSearch") if name in knobs}
    return _parameters(index, wanted) if wanted else None


def _parameters(index: Handle, knobs: Mapping[str, int]) -> Handle:
    faiss = load_faiss()
    index = _downcast(index)
    if isinstance(index, faiss.IndexPreTransform):
        return faiss.SearchParametersPreTransform(index_params=_parameters(index.index, knobs))
    if isinstance(index, faiss.IndexRefine):
        inner = _parameters(index.base_index, knobs)
        return faiss.IndexRefineSearchParameters(k_factor=index.k_factor, base_index_params=inner)
    if hasattr(index, "nprobe"):
        graph = _parameters(index.quantizer, knobs) if "efSearch" in knobs else None
        return faiss.SearchParametersIVF(
            nprobe=knobs.get("nprobe", index.nprobe), quantizer_params=graph
        )
    return faiss.SearchParametersHNSW(efSearch=knobs["efSearch"])


def _core(index: Handle) -> Handle:
    """What lies behind rotations and refinements."""
    faiss = load_faiss()
    index = _downcast(index)
    if isinstance(index, faiss.IndexPreTransform):
        return _core(index.index)
    if isinstance(index, faiss.IndexRefine):
        return _core(index.base_index)
    return index


def _downcast(index: Handle) -> Handle:
    faiss = load_faiss()
    if isinstance(index, Signs):
        return faiss.downcast_IndexBinary(index.binary)
    return faiss.downcast_index(index) if isinstance(index, faiss.Index) else index
