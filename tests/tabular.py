"""The same rows in each kind of file that holds tables."""

import csv
import gzip
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

Rows = Sequence[Mapping[str, object]]

ARROW = (".parquet", ".pq", ".arrow", ".feather")


def write_rows(path: Path, rows: Rows) -> Path:
    """Write rows as the suffix of a path says; a name without one is a folder of `datasets`."""
    import pyarrow as pa
    from pyarrow import feather, ipc, parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".gz", ".zst"):
        inner = write_rows(path.with_suffix(""), rows)
        data = inner.read_bytes()
        inner.unlink()
        packed = pa.compress(data, "zstd", asbytes=True) if path.suffix == ".zst" else b""
        path.write_bytes(packed or gzip.compress(data))
        return path
    if path.suffix == ".json":
        path.write_text(json.dumps([dict(row) for row in rows]))
        return path
    if path.suffix == ".jsonl":
        path.write_bytes("".join(f"{json.dumps(dict(row))}\n" for row in rows).encode())
        return path
    if path.suffix in (".csv", ".tsv"):
        cells = [list(rows[0]), *([row[name] for name in rows[0]] for row in rows)]
        path.write_bytes((as_csv(cells) if path.suffix == ".csv" else as_tsv(cells)).encode())
        return path
    table = pa.Table.from_pylist([dict(row) for row in rows])
    if path.suffix in (".parquet", ".pq"):
        parquet.write_table(table, path, row_group_size=3)
    elif path.suffix == ".feather":
        feather.write_feather(table, path)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as file, ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table, 2)
    else:
        save_to_disk(path, rows)
    return path


def save_to_disk(path: Path, rows: Rows, shards: int = 1) -> Path:
    """Write a folder as `datasets.Dataset.save_to_disk` does."""
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_list([dict(row) for row in rows]).save_to_disk(path, num_shards=shards)
    return path


def as_csv(cells: Sequence[Sequence[object]], delimiter: str = ",") -> str:
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter).writerows(cells)
    return out.getvalue()


def as_tsv(cells: Sequence[Sequence[object]]) -> str:
    return as_csv(cells, "\t")
