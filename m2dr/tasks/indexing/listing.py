"""`m2dr index list`: what is encoded and built."""

from dataclasses import dataclass
from typing import Any

from m2dr.core.report import Report
from m2dr.core.requests import ListRequest
from m2dr.evaluation.grid import aligned
from m2dr.index.store import ListedStore, list_stores

_COLUMNS = (
    "corpus", "model", "fingerprint", "layer", "documents", "dtype", "MB", "dims and engines", ""
)  # fmt: skip


@dataclass(frozen=True)
class ListReport(Report):
    """The stores below a folder."""

    stores: tuple[ListedStore, ...]

    def record(self) -> Any:  # a list
        """Return a row per store."""
        return super().record()["stores"]


def list_indexes(request: ListRequest) -> ListReport:
    """List what is encoded and built below a folder, and what is half-written or damaged."""
    stores = list_stores(request.root)
    rows = [
        (
            store.corpus, store.model or "-", store.fingerprint, str(store.layer),
            f"{store.documents:,}", store.dtype,
            f"{store.bytes / 1e6:,.1f}", ", ".join(store.indexes) or "-",
            "" if store.finished else "half-written",
        )
        for store in stores
        if not store.problem
    ]  # fmt: skip
    lines = aligned([_COLUMNS, *rows], left=range(len(_COLUMNS)))
    lines += [store.problem for store in stores if store.problem]
    text = "\n".join(lines) if stores else f"{request.root}/ holds no store."
    return ListReport(tuple(stores), text=text)
