"""Draw the sentences that MIPIC is trained on.

    python scripts/reproduce/mipic_sentences.py --data DATA --out DATA/mipic-sentences.txt

As the paper has it (A.1): 3,000 texts of each task of classification and both sentences of 1,500
pairs of each other task. It counts 24,000 unique sentences, and these come to 18,000 at most; what
is lacking is named. `--pairs 2250` draws 24,000. The file beside the public notebooks has sentences
of SciTail too: `--scitail`.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from small import SEED

from m2dr.core.errors import UserError
from m2dr.core.progress import say
from m2dr.core.records import SentencePair
from m2dr.data.sentences import (
    open_binary_pairs,
    open_labelled_texts,
    open_scored_pairs,
    split_file,
)

TEXTS = ("classification/banking77", "classification/tweeteval")
SCORED = ("sts/stsb-train.tsv", "sts/sick-train.tsv")
BINARY = ("pair-classification/mrpc", "pair-classification/wic")


def main() -> None:
    """Read the command line, draw and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=3_000, help="Of a task of classification.")
    parser.add_argument("--pairs", type=int, default=1_500, help="Of another task.")
    parser.add_argument("--scitail", action="store_true", help="SciTail too, as notebooks have it.")
    arguments = parser.parse_args()
    draw, kept = random.Random(SEED), dict[str, None]()

    def add(name: str, count: int, read: Callable[[Path], Sequence[tuple[str, ...]]]) -> None:
        path = arguments.data / name
        if not path.exists():
            say(f"{name}: not there")
            return
        rows = read(path)
        rows = draw.sample(rows, min(count, len(rows)))
        kept.update(dict.fromkeys(" ".join(text.split()) for row in rows for text in row))
        say(f"{name}: {len(rows):,} rows, {len(kept):,} sentences so far")

    for name in TEXTS:
        add(name, arguments.texts, lambda p: [(row.text,) for row in open_labelled_texts(p).train])
    for name in SCORED:
        add(name, arguments.pairs, lambda p: _both(open_scored_pairs(str(p)).pairs))
    for name in BINARY + ("pair-classification/scitail",) * arguments.scitail:
        add(
            name,
            arguments.pairs,
            lambda p: _both(open_binary_pairs(str(split_file(p, "train"))).pairs),
        )
    if not kept:
        raise UserError(f"None of the six data sets is in {arguments.data}.")
    arguments.out.write_text("".join(f"{text}\n" for text in kept), encoding="utf-8")


def _both(pairs: Sequence[SentencePair]) -> list[tuple[str, str]]:
    return [(pair.first, pair.second) for pair in pairs]


if __name__ == "__main__":
    main()
