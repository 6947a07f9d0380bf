"""Documents in int8: how fast, beside what bounds it and sentence-transformers, and what is lost.

    python benchmarks/int8.py speed --data DATA --rounds 5 --only 300 --peer PYTHON
    python benchmarks/int8.py quality DATA/beir/scifact:test DATA/msmarco/passage-pool:dl19,dl20

Needs `pip install "m2dr[compare,quickstart,openvino]"`. PYTHON is that of an environment with
sentence-transformers[openvino] and datasets, which exports its own int8 and encodes with it: other
versions of transformers than here are asked for there. Rivals take turns within a round; tables
hold medians, lowest and highest. Prints Markdown.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the other environment has no m2dr
    from numpy.typing import NDArray

MODES = ("speed", "quality", "peer")
QINT8 = {"file_name": "openvino/openvino_model_qint8_quantized.xml"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=MODES)
    parser.add_argument("names", nargs="*", help="of quality: CORPUS:SPLIT,SPLIT")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("M2DR_DATA", "data")))
    parser.add_argument("--model", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", type=int, default=300, help="documents")
    parser.add_argument("--peer", default="", help="python of the other environment")
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["auto", "int8"])
    parser.add_argument("--indexes", type=Path, default=Path("indexes"))
    asked = parser.parse_intermixed_args()
    {"speed": speed, "quality": quality, "peer": peer}[asked.what](asked)


def peer(asked: argparse.Namespace) -> None:
    """Answer each line of standard input by the seconds that sentence-transformers' int8 takes."""
    from sentence_transformers import SentenceTransformer, export_static_quantized_openvino_model

    folder = Path(asked.names[0])
    texts = json.loads((folder / "texts.json").read_text())
    rival = SentenceTransformer(asked.model, device="cpu", backend="openvino")
    rival.save_pretrained(str(folder / "model"))
    export_static_quantized_openvino_model(
        rival, None, str(folder / "model"), str(folder / "sample"), "default", "train", "text"
    )
    rival = SentenceTransformer(
        str(folder / "model"), device="cpu", backend="openvino", model_kwargs=QINT8
    )
    rival.max_seq_length = 256
    rival.encode(texts)
    for _ in sys.stdin:
        begun = time.perf_counter()
        rival.encode(texts)
        print("seconds", time.perf_counter() - begun, flush=True)


def speed(asked: argparse.Namespace) -> None:
    import numpy as np
    import torch
    from common import built_in, cosines, machine
    from encoding import IN_OPENVINO, PEER, TOKENS, print_rates, rivals_of
    from timing import in_turn, ratios, spread, table_row

    from m2dr.core.files import cache_folder
    from m2dr.data.loaders import open_dataset
    from m2dr.model.checkpoint import load, open_model, read_card
    from m2dr.model.graphs import DocumentSource
    from m2dr.model.int8 import product_rate, quantized

    model = asked.model or built_in()
    every = [each.content for each in open_dataset(str(asked.data / "beir/scifact")).documents()]
    texts = every[:: len(every) // asked.only][: asked.only]
    layer = read_card(model).layers
    kept: dict[str, NDArray[np.float32]] = {}
    source, runtime = quantized(
        DocumentSource(open_model(model), layer, "cpu", "auto", cache_folder()), every
    )
    encoder = source.open(runtime)
    encoder.runtime.card = replace(encoder.card, document_length=TOKENS)

    def in_int8() -> None:
        kept["m2dr in int8"] = encoder.vectors(texts, "document", [layer])[0]

    rivals = {"m2dr in int8": in_int8}
    for kind in dict.fromkeys([torch.float32, source.multiplied]):
        ways = rivals_of(model, texts, torch.device("cpu"), kind, kept, ["openvino"])
        ours = ways.pop(IN_OPENVINO)
        rivals |= {f"m2dr in OpenVINO, {kind}": ours} | ways
    with tempfile.TemporaryDirectory() as scratch:
        other = None
        if asked.peer:
            other = _begun(asked.peer, Path(scratch), model, texts, every[1::5][:300])
            rivals["sentence-transformers in its int8"] = partial(_answer, other)
        seconds = in_turn(rivals, asked.rounds, warm_up=1)
        if other is not None:
            other.communicate()
    print(f"{len(texts)} documents of SciFact, cut at {TOKENS} tokens; {model}; {machine()}\n")
    print_rates(seconds, len(texts))
    for name in list(rivals)[1:]:
        print(table_row(f"int8 / {name}", spread(ratios(seconds[name], seconds["m2dr in int8"]))))
    torch_encoder = load(model).runtime
    lengths = encoder.tokens(texts, "document").lengths
    weights = sum(
        m.weight.numel() for m in torch_encoder.modules() if isinstance(m, torch.nn.Linear)
    )
    attended = 2 * torch_encoder.transformer.config.hidden_size * layer
    needed = 2 * (lengths * weights + lengths**2 * attended).sum()
    kinds = ("int8", source.multiplied_name)
    rates = [product_rate(kind) * torch.get_num_threads() for kind in kinds]
    share = needed / rates[0] / np.median(seconds["m2dr in int8"])
    bare = " and ".join(
        f"{rate / 1e9:,.0f} in {kind}" for rate, kind in zip(rates, kinds, strict=True)
    )
    print(f"\nBare products, billion operations a second on as many threads: {bare}.")
    print(f"At that rate the products of the encoder take {share:.0%} of its time in int8.")
    same = cosines(kept["m2dr in int8"], kept[PEER])
    print(f"Cosine to sentence-transformers: mean {same.mean():.4f}, least {same.min():.4f}.")


def _begun(
    python: str, scratch: Path, model: str, texts: list[str], sample: list[str]
) -> "subprocess.Popen[str]":
    (scratch / "texts.json").write_text(json.dumps(texts))
    (scratch / "sample").mkdir()
    lines = "".join(json.dumps({"text": text}) + "\n" for text in sample)
    (scratch / "sample" / "train.jsonl").write_text(lines)
    command = [python, __file__, "peer", str(scratch), "--model", model]
    return subprocess.Popen(command, stdin=-1, stdout=-1, text=True)


def _answer(other: "subprocess.Popen[str]") -> None:
    """Wait for one round of the peer; its own start and end are those of this call."""
    assert other.stdin is not None
    assert other.stdout is not None
    other.stdin.write("\n")
    other.stdin.flush()
    while line := other.stdout.readline():
        if line.startswith("seconds"):
            return
    raise SystemExit("The peer has ended.")


def quality(asked: argparse.Namespace) -> None:
    from timing import table_head, table_row

    import m2dr
    from m2dr.model.checkpoint import read_card

    model = asked.model or "minilm"
    card = read_card(model)
    print(table_head("collection", *asked.dtypes))
    for name in asked.names:
        corpus, _, splits = name.rpartition(":")
        for split in splits.split(","):
            scores = []
            for dtype in asked.dtypes:
                root = asked.indexes / dtype
                grid = m2dr.evaluate(
                    model, corpus, split=split, layers=[card.layers], dims=[card.width],
                    measures=["nDCG@10"], dtype=dtype, folder=root, out=root / "results",
                )  # fmt: skip
                (values,) = grid.cells.values()
                scores.append(100 * values["nDCG@10"])
            shown = (f"{score:.2f}" for score in scores)
            print(table_row(f"{Path(corpus).name} {split}", *shown), flush=True)


if __name__ == "__main__":
    main()
