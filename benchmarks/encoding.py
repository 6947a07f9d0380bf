"""How fast a corpus becomes vectors, what of that is matrix products, and how much memory it takes.

    python benchmarks/encoding.py --what a,b,c,d,e --rounds 5 --documents 20000 --data DATA

`a` and `e` need `pip install "m2dr[compare,quickstart]"`, and `--runtimes torch,openvino` the extra
openvino. DATA is a folder with beir/scifact and beir/nfcorpus; --pool names a corpus of MS MARCO
passages, such as DATA/msmarco/passage-pool. Each round of `a`, `b`, `c` and `e` runs its rivals
one after the other, so that what else the machine does falls on all alike; the tables hold medians,
and the lowest and highest. `e` encodes the same strings by `m2dr.Encoder` and SentenceTransformer,
both in fp32 with their defaults. Prints Markdown.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch, as the command m2dr does

import numpy as np
import torch
from common import built_in, cosines, machine
from numpy.typing import NDArray
from timing import (
    Rivals,
    Times,
    in_turn,
    peak_memory,
    process,
    ratios,
    spread,
    table_head,
    table_row,
)

import m2dr
from m2dr.core.files import cache_folder
from m2dr.core.requests import IndexRequest
from m2dr.data.loaders import open_dataset
from m2dr.model import checkpoint
from m2dr.model.checkpoint import open_model, read_card
from m2dr.model.devices import DTYPES, choose_device, choose_dtype
from m2dr.model.embed import tokens_per_batch
from m2dr.model.encoder import DualEncoder
from m2dr.model.graphs import OPENVINO, DocumentSource
from m2dr.model.tokens import buckets
from m2dr.tasks.indexing.index import encode_corpus

LARGE = 1024  # rows and columns of a product at the processor's full rate
TOKENS = 256
Vectors = dict[str, NDArray[np.float32]]  # that each way made


def main() -> None:
    asked = _arguments()
    model = asked.model or built_in()
    device = choose_device(asked.device)
    dtype = choose_dtype(asked.dtype, device)
    print(f"{machine()}, {device.type}, {dtype}, {model}\n")
    texts = _texts(asked) if set(asked.what) & set("abce") else []
    parts = {"a": _against, "b": _products, "c": _layers}
    for what in asked.what:
        if what in parts:
            parts[what](asked, model, texts, device, dtype)
        elif what == "d":
            _memory(asked, model)
        else:
            _objects(asked, model, texts)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", type=lambda text: text.split(","), default=list("abcde"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--documents", type=int, default=20_000, help="of the pool")
    parser.add_argument("--only", type=int, default=0, help="of all texts, at most; 0 for all")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("M2DR_DATA", "data")))
    parser.add_argument("--pool", default="", help="corpus of MS MARCO passages")
    parser.add_argument("--model", default="")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--runtimes", type=lambda text: text.split(","), default=["torch"])
    parser.add_argument("--sizes", type=int, nargs=2, default=(50_000, 500_000), help="of d")
    parser.add_argument("--words", type=int, default=0, help="of each document of d; 0: all")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        _peak(*asked.child)
        sys.exit()
    return asked


def _texts(asked: argparse.Namespace) -> list[str]:
    """SciFact, NFCorpus and the first documents of the pool, in this order."""
    found = []
    for name in ("scifact", "nfcorpus"):
        dataset = open_dataset(str(asked.data / "beir" / name))
        found += [document.content for document in dataset.documents()]
    if asked.pool:
        documents = islice(open_dataset(asked.pool).documents(), asked.documents)
        found += [document.content for document in documents]
    # Every nth, so that a short trial has documents of each source.
    found = found[:: max(1, len(found) // asked.only)][: asked.only] if asked.only else found
    print(f"{len(found):,} documents, cut at {TOKENS} tokens\n")
    return found


OURS, PEER = "m2dr", "sentence-transformers"
IN_OPENVINO = "m2dr in openvino"


def rivals_of(
    model: str,
    texts: list[str],
    device: torch.device,
    dtype: torch.dtype,
    kept: Vectors,
    runtimes: Sequence[str] = ("torch",),
) -> dict[str, Callable[[], None]]:
    """Ways from texts to vectors, each of which leaves what it made in `kept`."""
    own = {OPENVINO: IN_OPENVINO, "torch": OURS}
    rivals = {
        own[name]: _ours(own[name], name, model, texts, device, dtype, kept) for name in runtimes
    }
    from sentence_transformers import SentenceTransformer

    def loaded(**options: object) -> SentenceTransformer:
        rival = SentenceTransformer(model, device=str(device), model_kwargs=options)
        rival.max_seq_length = TOKENS
        return rival

    rival, same = loaded(), loaded(torch_dtype=dtype)

    def theirs(peer: SentenceTransformer, name: str) -> None:
        kept[name] = np.asarray(peer.encode(texts, show_progress_bar=False))

    rivals[PEER] = lambda: theirs(rival, PEER)
    if dtype is not torch.float32:
        name = f"the same in {dtype}"
        rivals[name] = lambda: theirs(same, name)
    return rivals


def _ours(
    name: str,
    runtime: str,
    model: str,
    texts: list[str],
    device: torch.device,
    dtype: torch.dtype,
    kept: Vectors,
) -> Callable[[], None]:
    """Encoding by shards, as the command does, in a runtime."""
    form = next(form for form, found in DTYPES.items() if found is dtype)
    layer = read_card(model).layers
    source = DocumentSource(open_model(model), layer, str(device), form, cache_folder())
    encoder = source.open(runtime)
    encoder.runtime.card = replace(encoder.card, document_length=TOKENS)

    def ours() -> None:
        shards = [texts[start : start + 4096] for start in range(0, len(texts), 4096)]
        parts = [encoder.vectors(s, "document", [layer])[0] for s in shards]
        kept[name] = np.concatenate(parts)

    return ours


def print_rates(seconds: Times, documents: int) -> None:
    """Print the documents per second of each way."""
    print(table_head("documents per second", "median (lowest–highest)"))
    for name, values in seconds.items():
        print(table_row(name, spread((documents / value for value in values), 1)))


def print_seconds(seconds: Times, title: str, above: Sequence[str], below: str) -> None:
    """Print the seconds of each way, and the ratios of some to one of them."""
    print(table_head(title, "median (lowest–highest)"))
    for name, values in seconds.items():
        print(table_row(f"{name}, s", spread(values)))
    for name in above:
        print(table_row(f"{name} / {below}", spread(ratios(seconds[name], seconds[below]), 3)))


def _against(
    asked: argparse.Namespace,
    model: str,
    texts: list[str],
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    kept: Vectors = {}
    rivals = rivals_of(model, texts, device, dtype, kept, asked.runtimes)
    seconds = in_turn(rivals, asked.rounds)
    print_rates(seconds, len(texts))
    own = [name for name in rivals if name in (OURS, IN_OPENVINO)]
    for ours in own:
        for name in (name for name in rivals if name != ours and name != IN_OPENVINO):
            print(table_row(f"{ours} / {name}", spread(ratios(seconds[name], seconds[ours]))))
    for ours in own:
        same = cosines(kept[ours], kept[PEER])
        low, mean = same.min(), same.mean()
        print(f"\nCosine of {ours} to sentence-transformers: least {low:.5f}, mean {mean:.5f}\n")


def _products(
    asked: argparse.Namespace,
    model: str,
    texts: list[str],
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Products alone, of the shapes that the encoder ran, and of no shape in particular."""
    loaded = checkpoint.load(model, device=device, dtype=dtype)
    encoder, rows = loaded.runtime, loaded.tokens(texts, "document")
    lengths = rows.lengths
    batches = buckets(lengths, tokens_per_batch(encoder.device.type), True)
    shapes = [(len(batch), int(lengths[batch].max())) for batch in batches]
    rivals: Rivals = {
        "products": _same_products(encoder, shapes),
        "encoder": lambda: loaded.of_tokens(rows, [encoder.layers]),
        "limit": _large_products(encoder, shapes),
    }
    print_seconds(in_turn(rivals, asked.rounds), "", ("products", "limit"), "encoder")
    print()


def _weights(encoder: DualEncoder) -> list[torch.Tensor]:
    modules = encoder.transformer.modules()
    return [m.weight.detach() for m in modules if isinstance(m, torch.nn.Linear)]


def _same_products(encoder: DualEncoder, shapes: Sequence[tuple[int, int]]) -> Callable[[], None]:
    """Weights and attention of each batch, [rows, tokens]."""
    weights, config = _weights(encoder), encoder.transformer.config
    heads, width = config.num_attention_heads, config.hidden_size
    made = {
        shape: {
            size: weights[0].new_empty(shape[0] * shape[1], size).normal_()
            for size in {weight.shape[1] for weight in weights}
        }
        for shape in set(shapes)
    }

    @torch.inference_mode()
    def products() -> None:
        for shape in shapes:
            for weight in weights:
                made[shape][weight.shape[1]] @ weight.T
            heads_of = made[shape][width].view(shape[0], shape[1], heads, -1).transpose(1, 2)
            for _ in range(encoder.layers):
                (heads_of @ heads_of.mT) @ heads_of
        wait(encoder.device)

    return products


def multiply_adds(encoder: DualEncoder, shapes: Sequence[tuple[int, int]]) -> int:
    """Of the encoder on batches of some shapes, [rows, tokens]."""
    by_weights = sum(weight.numel() for weight in _weights(encoder))
    attended = 2 * encoder.transformer.config.hidden_size * encoder.layers
    return sum(rows * tokens * (by_weights + tokens * attended) for rows, tokens in shapes)


def _large_products(encoder: DualEncoder, shapes: Sequence[tuple[int, int]]) -> Callable[[], None]:
    """As many multiply-adds in products so large that nothing holds the processor up."""
    needed = multiply_adds(encoder, shapes)
    square = _weights(encoder)[0].new_empty(LARGE, LARGE).normal_()

    @torch.inference_mode()
    def products() -> None:
        for _ in range(round(needed / LARGE**3)):
            square @ square
        wait(encoder.device)

    return products


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _layers(
    asked: argparse.Namespace,
    model: str,
    texts: list[str],
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    loaded = checkpoint.load(model, device=device, dtype=dtype)
    encoder, rows = loaded.runtime, loaded.tokens(texts, "document")
    every = list(range(1, encoder.layers + 1))
    rivals: Rivals = {
        "the last layer": lambda: loaded.of_tokens(rows, every[-1:]),
        "all layers": lambda: loaded.of_tokens(rows, every),
    }
    seconds = in_turn(rivals, asked.rounds)
    print_seconds(seconds, "one pass for", ["all layers"], "the last layer")
    print()


def _objects(asked: argparse.Namespace, model: str, texts: list[str]) -> None:
    """`m2dr.Encoder` beside SentenceTransformer."""
    from sentence_transformers import SentenceTransformer

    ours = m2dr.Encoder.from_pretrained(model, device=asked.device, dtype="fp32")
    peer = SentenceTransformer(model, device=None if asked.device == "auto" else asked.device)
    same = cosines(ours.encode_documents(texts[:32]), np.asarray(peer.encode(texts[:32])))
    rivals = {
        "m2dr.Encoder.encode_documents": lambda: ours.encode_documents(texts),
        "SentenceTransformer.encode": lambda: peer.encode(texts, show_progress_bar=False),
    }
    seconds = in_turn(rivals, asked.rounds)
    print_rates(seconds, len(texts))
    mine, theirs = seconds.values()
    print(table_row("ratio", spread(ratios(theirs, mine))))
    print(f"\nCosines of the first 32: least {same.min():.5f}\n")


def _memory(asked: argparse.Namespace, model: str) -> None:
    """Peak memory of the whole command at the first layer, in a process of its own per size."""
    print(table_head("documents", "peak memory, MB"))
    peaks = []
    for size in asked.sizes:
        with tempfile.TemporaryDirectory() as place:
            _repeated(Path(place) / "corpus", asked, size)
            printed = process(__file__, "--child", place, model, asked.device)
        peaks.append(float(printed.split()[-1]))
        print(table_row(f"{size:,}", f"{peaks[-1]:,.0f}"))
    print(f"\nDifference: {peaks[-1] - peaks[0]:,.0f} MB\n")


def _repeated(folder: Path, asked: argparse.Namespace, size: int) -> None:
    """Documents of NFCorpus over and over, each time with ids of their own."""
    documents = list(open_dataset(str(asked.data / "beir" / "nfcorpus")).documents())
    folder.mkdir()
    with (folder / "corpus.jsonl").open("w") as file:
        for number in range(size):
            words = documents[number % len(documents)].text.split(" ")
            text = " ".join(words[: asked.words or None])
            file.write(json.dumps({"_id": f"MED-{number}", "text": text}) + "\n")


def _peak(place: str, model: str, device: str) -> None:
    root = Path(place) / "indexes"
    request = IndexRequest(
        str(Path(place) / "corpus"), model, layers=(1,), root=root, device=device
    )
    encode_corpus(request, open_model(model), request.layers)
    print(peak_memory() / (1 << 20))


if __name__ == "__main__":
    main()
