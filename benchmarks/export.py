"""What an exported cut weighs and how fast it is, beside the full model.

    python benchmarks/export.py --model models/fitted > benchmarks/export_HOST.md

Exports cuts of a model as a folder and as graphs of fp32 and int8 weights, and times one query at a
time and a batch of 32 texts. A folder runs in sentence-transformers, a graph in its runtime with
`tokenizers`, both from the text to the vector. All candidates take turns, so that what else the
machine does meanwhile hits all of them; figures are medians. Needs the extras quickstart, onnx,
openvino and compare; the columns of int8 need a corpus with judged queries.
"""

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from m2dr.core.records import Cut, ExportRecord
from m2dr.core.requests import ExportRequest
from m2dr.model import graphs
from m2dr.model.checkpoint import read_card, read_exported
from m2dr.tasks.publish import export_model

QUERY = "read a file line by line and close it"
DOCUMENT = " ".join(["Return the lines of an open file one by one, without their ends."] * 6)
WARM_UP = 3
FORMS = ("", "onnx", "openvino")
Run = Callable[[Sequence[str]], object]


def by_folder(folder: Path) -> Run:
    """Encode by sentence-transformers."""
    model = SentenceTransformer(str(folder), device="cpu")
    return lambda texts: model.encode(list(texts), show_progress_bar=False)


def by_graph(folder: Path, form: str, length: int) -> Run:
    """Encode by a runtime of graphs, with the settings that m2dr gives it."""
    opens = {"onnx": graphs.open_onnx, "openvino": graphs.open_openvino}
    graph = opens[form](folder, None, "fp32")  # type: ignore[arg-type]  # the card is not read
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding()

    def encode(texts: Sequence[str]) -> object:
        rows = tokenizer.encode_batch(list(texts))
        ids = np.array([row.ids for row in rows], np.int64)
        return graph.run(ids, np.array([row.attention_mask for row in rows], np.int64))

    return encode


def size(folder: Path) -> float:
    """Return the megabytes of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def in_turn(ways: dict[str, Run], texts: Sequence[str], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each way."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + WARM_UP):
        for name, run in ways.items():
            begun = time.perf_counter()
            run(texts)
            if number >= WARM_UP:
                found[name].append(1000 * (time.perf_counter() - begun))
    return {name: median(each) for name, each in found.items()}


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--cut", action="append", default=None, help="repeatable")
    parser.add_argument("--rounds", type=int, default=100, help="of a query; a tenth of a batch")
    options = parser.parse_args()
    card = read_card(options.model)
    cuts = [Cut.parse(word) for word in options.cut or ("L2D128", "L4D128")]
    ways: dict[str, Run] = {}
    sizes: dict[str, float] = {}
    records: dict[str, ExportRecord | None] = {}
    with tempfile.TemporaryDirectory() as place:
        for cut in [card.full, *cuts]:
            for form in FORMS:
                name = f"{cut} | {form or 'folder'}"
                out = Path(place, name.replace(" | ", "-").replace(" ", "-"))
                asked = ExportRequest(
                    out=out, cut=cut, model=options.model, format=form, force=True,
                )  # fmt: skip
                export_model(asked)
                ways[name] = by_graph(out, form, card.query_length) if form else by_folder(out)
                sizes[name], records[name] = size(out), read_exported(out)
        query = in_turn(ways, [QUERY], options.rounds)
        batch = in_turn(ways, [DOCUMENT] * 32, max(options.rounds // 10, 1))
    report(sizes, records, query, batch)


def report(
    sizes: dict[str, float],
    records: dict[str, ExportRecord | None],
    query: dict[str, float],
    batch: dict[str, float],
) -> None:
    """Print the machine and a row for each export."""
    load = os.getloadavg()[0]
    print(
        f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}; "
        f"{os.cpu_count()} cores, load {load:.1f} while it was measured.\n"
    )
    print("| cut | export | MB | ms of a query | ms of 32 documents | cosine |")
    print("|---|---|---|---|---|---|")
    for name, megabytes in sizes.items():
        record = records[name]
        lowest = record.lowest_cosine if record else None
        cosine = f"{lowest:.6f}" if lowest else ""
        times = f"{query[name]:.1f} | {batch[name]:.0f}"
        print(f"| {name} | {megabytes:.1f} | {times} | {cosine} |")


if __name__ == "__main__":
    main()
