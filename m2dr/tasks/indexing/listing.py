"""`m2dr index list`: what is encoded and built."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m2dr.core.errors import UserError
from m2dr.core.records import DIGITS
from m2dr.core.report import Report
from m2dr.core.requests import ListRequest
from m2dr.evaluation.grid import aligned
from m2dr.index.manifest import STORE, StoreManifest, begun_plan, built_indexes, store_folders
from m2dr.index.store import StoreWriter

_COLUMNS = (
    "corpus", "model", "fingerprint", "layer", "documents", "dtype", "MB", "dims and engines", ""
)  # fmt: skip


@dataclass(frozen=True)
class ListReport(Report):
    """The stores below a folder: a row each, which says of a damaged one why it cannot be read."""

    stores: tuple[dict[str, Any], ...]

    def record(self) -> Any:  # a list
        """Return a row per store."""
        return super().record()["stores"]


def list_indexes(request: ListRequest) -> ListReport:
    """List what is encoded and built below a folder, and what is half-written or damaged."""
    stores = tuple(map(_row, store_folders(request.root)))
    sound = [store for store in stores if not store["problem"]]
    rows = [
        (
            store["corpus"], store["model"] or "-", store["fingerprint"], str(store["layer"]),
            f"{store['documents']:,}", store["dtype"], f"{store['bytes'] / 1e6:,.1f}",
            ", ".join(store["indexes"]) or "-", "" if store["finished"] else "half-written",
        )
        for store in sound
    ]  # fmt: skip
    lines = aligned([_COLUMNS, *rows], left=range(len(_COLUMNS)))
    lines += filter(None, (store["problem"] for store in stores))
    text = "\n".join(lines) if stores else f"{request.root}/ holds no store."
    return ListReport(stores, text=text)


def _row(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"folder": folder, "finished": (folder / STORE).exists(), "problem": ""}
    try:
        plan = begun_plan(folder)
        assert plan is not None, "folders of stores have one"
        shards = (
            StoreManifest.read(folder).shards
            if row["finished"]
            else StoreWriter(folder, plan).shards()
        )
    except UserError as error:
        return row | {"problem": str(error)}
    built = built_indexes(folder)
    files = [*folder.glob(f"vectors-*.{plan.dtype}")]
    files += [path for index in built for path in index.folder.iterdir()]
    return (
        row
        | {
            "corpus": plan.corpus,
            "model": plan.label.model,  # where it was found when the store was begun
            "fingerprint": plan.label.fingerprint[:DIGITS],
            "layer": plan.layer,
            "documents": sum(shard.rows for shard in shards),  # written so far
            "dtype": plan.dtype,
            "bytes": sum(path.stat().st_size for path in files),
            "indexes": [str(b.dim) if b.engine == "flat" else f"{b.dim} {b.engine}" for b in built],
        }
    )
