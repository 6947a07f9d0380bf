"""What a corpus of any size costs, from rates measured on one machine: bytes, hours, machines.

    python benchmarks/scaling.py --documents-per-second 40 --scan-rate 5e9 > table.md

Encoding hours are documents over the measured rate, on one such machine and shared by several; a
scan's latency is documents × dim over the measured multiply-adds per second of one query alone.
Hours of a GPU, never measured here, come from arithmetic: the multiply-adds of a document over a
share of the rate of the GPU, both of which are printed.
"""

import argparse
from collections.abc import Iterator

from timing import table_head, table_row

CORPORA = {
    "1 M": 1_000_000,
    "8.8 M (MS MARCO)": 8_841_823,
    "100 M": 100_000_000,
    "1 B": 1_000_000_000,
}
BITS = {"flat": 32, "flat-f16": 16, "int8": 8, "bits1": 1}  # of a dim
WIDTH = 384  # dims of the store
MULTIPLY_ADDS = 1.52e9  # of one document of 256 tokens
GPU_RATE, GPU_SHARE = 990, 0.3  # bf16 TFLOP/s, and how much of it an encoder reaches


def size(count: float) -> str:
    """Bytes as people say them."""
    for unit, one in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= one:
            return f"{count / one:,.1f} {unit}"
    return f"{count:,.0f} B"


def hours(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 120:
        return f"{seconds:,.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:,.0f} min"
    return f"{seconds / 3600:,.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:,.0f} days"


def rows(arguments: argparse.Namespace) -> Iterator[str]:
    """The tables, line by line."""
    per_second = GPU_RATE * 1e12 * GPU_SHARE / (2 * MULTIPLY_ADDS)
    yield (
        f"Measured: {arguments.documents_per_second:,.0f} documents/s, cut at 256 tokens; a scan "
        f"for one query: {arguments.scan_rate:.3g} multiply-adds/s."
    )
    yield (
        f"Arithmetic: {MULTIPLY_ADDS / 1e9:.2f} G multiply-adds per document, so a GPU of "
        f"{GPU_RATE:,} TFLOP/s at {GPU_SHARE:.0%} would encode {per_second:,.0f} documents/s, if "
        "texts can be read and tokenised as fast."
    )
    yield ""
    machines = ("encode, this machine", "16 of them", "one GPU", "8 GPUs")
    yield table_head("documents", "store, f16", *machines)
    for name, count in CORPORA.items():
        here = count / arguments.documents_per_second
        there = count / per_second
        cells = (hours(here), hours(here / 16), hours(there), hours(there / 8))
        yield table_row(name, size(2 * WIDTH * count), *cells)
    yield ""
    yield table_head("documents", "dim", *BITS, "one scan by this machine")
    for name, count in CORPORA.items():
        for dim in (384, 128, 32):
            sizes = [size(count * dim * bits / 8) for bits in BITS.values()]
            scan = 1000 * count * dim / arguments.scan_rate
            shown = f"{scan:,.0f} ms" if scan < 10_000 else hours(scan / 1000)
            yield table_row(name, dim, *sizes, shown)


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents-per-second", type=float, required=True)
    parser.add_argument("--scan-rate", type=float, required=True, help="multiply-adds per second")
    for line in rows(parser.parse_args()):
        print(line)


if __name__ == "__main__":
    main()
