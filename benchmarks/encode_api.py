"""Documents per second of `m2dr.Encoder`, against SentenceTransformer of the same weights.

    python benchmarks/encode_api.py --rounds 5 --only 500 --corpus DATA/beir/scifact

It needs `pip install "m2dr[compare,quickstart]"`. Both encode the same strings in fp32, cut at 256
tokens, with their defaults: sentence-transformers in batches of 32 texts, m2dr in batches of as
many tokens as suit the device. Each round runs both in turn, and the order changes from round to
round, so that what else the machine does falls on both; ratios are within a round. Prints Markdown.
"""

import argparse
import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from encoding import built_in, timed
from sentence_transformers import SentenceTransformer

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
    cosines = (ours.encode_documents(few) * peer.encode(few, normalize_embeddings=True)).sum(axis=1)
    rivals = {OURS: lambda: ours.encode_documents(texts), PEER: lambda: peer.encode(texts)}
    seconds = timed(asked.rounds, rivals)

    print(f"{torch.get_num_threads()} threads, {peer.device}, fp32, {asked.model or 'minilm'}\n")
    print(f"{len(texts):,} documents of {asked.corpus}, {asked.rounds} rounds\n")
    print("| documents per second | median | lowest - highest |\n|---|---:|---:|")
    for name, spent in seconds.items():
        _row(name, len(texts) / np.array(spent), 1)
    _row("ratio", np.array(seconds[PEER]) / np.array(seconds[OURS]), 2)
    print(f"\nCosines of {len(few)} documents: least {cosines.min():.5f}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
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


def _row(name: str, values: np.ndarray, digits: int) -> None:
    low, middle, high = values.min(), np.median(values), values.max()
    print(f"| {name} | {middle:,.{digits}f} | {low:,.{digits}f} - {high:,.{digits}f} |")


if __name__ == "__main__":
    main()
