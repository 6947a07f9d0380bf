"""Documents per second of `m2dr.Encoder`, against SentenceTransformer of the same weights.

    python benchmarks/encode_api.py --rounds 5 --only 500 --corpus DATA/beir/scifact

It needs `pip install "m2dr[compare,quickstart]"`. Both encode the same strings in fp32, cut at 256
tokens, with their defaults: sentence-transformers in batches of 32 texts, m2dr in batches of as
many tokens as suit the device. Each round runs both in turn, and the order changes from round to
round, so that what else the machine does falls on both; ratios are within a round. Prints Markdown.
"""

import argparse
import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch, as the command m2dr does

import numpy as np
import torch
from common import built_in, cosines, machine
from sentence_transformers import SentenceTransformer
from timing import in_turn, ratios, spread, table_head, table_row

import m2dr
from m2dr.data.loaders import open_dataset

OURS, PEER = "m2dr.Encoder.encode_documents", "SentenceTransformer.encode"


def main() -> None:
    asked = _arguments()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    texts = _texts(asked.corpus, asked.only)
    ours = m2dr.Encoder.from_pretrained(asked.model or "minilm", device=asked.device, dtype="fp32")
    device = None if asked.device == "auto" else asked.device
    peer = SentenceTransformer(asked.model or built_in(), device=device)
    few = texts[:32]
    same = cosines(ours.encode_documents(few), np.asarray(peer.encode(few)))
    rivals = {OURS: lambda: ours.encode_documents(texts), PEER: lambda: peer.encode(texts)}
    seconds = in_turn(rivals, asked.rounds)

    print(f"{machine()}, {peer.device}, fp32, {asked.model or 'minilm'}\n")
    print(f"{len(texts):,} documents of {asked.corpus}, {asked.rounds} rounds\n")
    print(table_head("documents per second", "median (lowest–highest)"))
    for name, spent in seconds.items():
        print(table_row(name, spread((len(texts) / s for s in spent), 1)))
    print(table_row("ratio", spread(ratios(seconds[PEER], seconds[OURS]))))
    print(f"\nCosines of {len(few)} documents: least {same.min():.5f}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", type=int, default=500, help="documents, evenly spread; 0: all")
    parser.add_argument("--corpus", default="pydocs")
    parser.add_argument("--model", default="", help="folder; the built-in MiniLM by default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    return parser.parse_args()


def _texts(corpus: str, only: int) -> list[str]:
    """Every nth document, so that a short trial has documents of all parts."""
    found = [document.content for document in open_dataset(corpus).documents()]
    return found[:: max(1, len(found) // only)][:only] if only else found


if __name__ == "__main__":
    main()
