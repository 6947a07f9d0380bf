"""What a filter costs: a search with and without one, the first time and again, by engine.

    python benchmarks/filters.py --documents 100000 > benchmarks/filters_HOST.md

Random vectors of 384 dims; fields are a whole number, a word and a date. `first` reads the fields
from their file, `again` searches with a filter that is open. Each is the median of its rounds, with
the smallest beside it: other programs of the machine only add to a time.
"""

import argparse
import time
from collections.abc import Callable
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from common import machine
from timing import table_head, table_row, timed

from m2dr.core.records import Label
from m2dr.index.exact import ExactIndex
from m2dr.index.faiss import build_index, open_index
from m2dr.index.filters import FIELDS, Filter, write_fields
from m2dr.index.manifest import StorePlan
from m2dr.index.searchable import Searchable
from m2dr.index.store import Store, begin_store, open_store

WIDTH, ROWS, K = 384, 65_536, 10
LABEL = Label(
    fingerprint="f" * 64, similarity="cosine", pooling="mean", query_length=32, documents="last"
)
FILTERS = {  # with the share of documents that fit
    "year >= 1990 (all)": "year >= 1990",
    "lang = en (1/2)": "lang = en",
    "year = 2000 and lang = de (1/60)": "year = 2000 and lang = de",
    "day >= 2024-12-30 (1/183)": 'day >= "2024-12-30"',
}


def make_store(folder: Path, documents: int) -> Store:
    """Write a store with vectors and fields."""
    draw = np.random.default_rng(13)
    writer = begin_store(folder, StorePlan("random", 6, WIDTH, LABEL, shard_rows=ROWS))
    for number, start in enumerate(range(0, documents, ROWS)):
        rows = min(ROWS, documents - start)
        vectors = draw.normal(size=(rows, WIDTH)).astype(np.float32)
        writer.write(number, [f"d{start + row}" for row in range(rows)], vectors, b"")
    begun = time.perf_counter()
    writer.finish(write_fields(folder / FIELDS, map(fields_of, range(documents))))
    print(
        f"{documents:,} documents; fields written in {time.perf_counter() - begun:.1f} s, ", end=""
    )
    print(f"{(folder / FIELDS).stat().st_size / 1e6:.1f} MB.\n")
    return open_store(folder)


def fields_of(row: int) -> tuple[tuple[str, str], ...]:
    """Return the fields of a document."""
    day = date(2024, 1, 1) + timedelta(days=row % 366)
    word = ("en", "de")[row // 7 % 2]
    return ("year", str(1990 + row % 30)), ("lang", word), ("day", day.isoformat())


def milliseconds(work: Callable[[], object], rounds: int) -> str:
    """Return the median and the smallest time."""
    times = [1000 * timed(work) for _ in range(rounds)]
    return f"{median(times):.1f} ({min(times):.1f})"


def rows_of(name: str, index: Searchable, rounds: int) -> None:
    """Print the rows of an engine."""
    query = np.random.default_rng(7).normal(size=(1, WIDTH)).astype(np.float32)

    def search(one: Searchable) -> object:
        return one.ranked(["q"], query, K)

    def anew(text: str) -> object:
        return search(index.where(Filter.parse(text)))

    search(index)
    print(table_row(name, "none", "", milliseconds(partial(search, index), rounds)))
    for told, text in FILTERS.items():
        opened = index.where(Filter.parse(text))
        search(opened)
        first = milliseconds(partial(anew, text), rounds)
        again = milliseconds(partial(search, opened), rounds)
        print(table_row(name, told, first, again), flush=True)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    print(f"# Filters\n\n{machine()}; one query, k = {K}.")
    with TemporaryDirectory() as place:
        store = make_store(Path(place) / "random" / "ffffffffffff" / "layer-06", asked.documents)
        print(table_head("engine", "filter", "first, ms", "again, ms"))
        for engine in ("flat", "ivf"):
            rows_of(engine, open_index(build_index(store, WIDTH, engine)), asked.rounds)
        rows_of("exact", ExactIndex(store, WIDTH), asked.rounds)


if __name__ == "__main__":
    main()
