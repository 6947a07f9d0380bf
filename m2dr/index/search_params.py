"""Parameters that are chosen at search time: nprobe, efSearch and rescore."""

from collections.abc import Mapping
from typing import Any

from m2dr.core.errors import UserError, nearest
from m2dr.index.faiss_library import BinaryIndex, load_faiss

Handle = Any  # a faiss.Index, which has no type stubs, or BinaryIndex

LEAST = {"nprobe": 1, "efSearch": 1, "rescore": 0}


def available(index: Handle, exact: bool) -> tuple[str, ...]:
    """Return the names of the parameters that have an effect in `index`, sorted."""
    names = [] if exact else ["rescore"]
    inner = _core(index)
    if hasattr(inner, "nprobe"):
        names.append("nprobe")
        inner = _downcast(inner.quantizer)
    if hasattr(inner, "hnsw"):
        names.append("efSearch")
    return tuple(sorted(names))


def checked(engine: str, params: Mapping[str, int], names: tuple[str, ...]) -> dict[str, int]:
    """Return `params`, refusing those that the engine does not have.

    Raises:
        UserError: a name is not in `names`, or a value is too small.
    """
    for name, value in params.items():
        if name not in names:
            hint = nearest(name, names) if names else "It has none."
            raise UserError(f"Engine {engine} has no search-time setting {name!r}. {hint}")
        if value < LEAST[name]:
            raise UserError(f"{name} is {LEAST[name]} at least, and {value} was given.")
    return dict(params)


def faiss_parameters(index: Handle, params: Mapping[str, int], selector: Handle = None) -> Handle:
    """Return FAISS's SearchParameters for the params, or None where there is nothing to set.

    They are given with each search and not set on the index, so that two searchers may share one.

    Args:
        index: that is searched.
        params: by name; others than nprobe and efSearch are left out.
        selector: of the rows that may be found, a faiss.IDSelector; None for all.
    """
    wanted = {name: params[name] for name in ("nprobe", "efSearch") if name in params}
    return _parameters(index, wanted, selector) if wanted or selector is not None else None


def _parameters(index: Handle, params: Mapping[str, int], selector: Handle) -> Handle:
    faiss = load_faiss()
    index = _downcast(index)
    chosen = {} if selector is None else {"sel": selector}
    if isinstance(index, faiss.IndexPreTransform):
        inner = _parameters(index.index, params, selector)
        return faiss.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, faiss.IndexRefine):
        inner = _parameters(index.base_index, params, selector)
        return faiss.IndexRefineSearchParameters(k_factor=index.k_factor, base_index_params=inner)
    if hasattr(index, "nprobe"):
        graph = _parameters(index.quantizer, params, None) if "efSearch" in params else None
        return faiss.SearchParametersIVF(
            nprobe=params.get("nprobe", index.nprobe), quantizer_params=graph, **chosen
        )
    if hasattr(index, "hnsw"):
        ef = params.get("efSearch", index.hnsw.efSearch)
        return faiss.SearchParametersHNSW(efSearch=ef, **chosen)
    return faiss.SearchParameters(**chosen)


def _core(index: Handle) -> Handle:
    """Return the index behind rotations and refinements."""
    faiss = load_faiss()
    index = _downcast(index)
    if isinstance(index, faiss.IndexPreTransform):
        return _core(index.index)
    if isinstance(index, faiss.IndexRefine):
        return _core(index.base_index)
    return index


def _downcast(index: Handle) -> Handle:
    faiss = load_faiss()
    if isinstance(index, BinaryIndex):
        return faiss.downcast_IndexBinary(index.binary)
    return faiss.downcast_index(index) if isinstance(index, faiss.Index) else index
