"""MIPIC, tables 1, 2, 8 and 9, on pairs of sentences: MRPC, WiC and SciTail.

The accuracy is that of the best threshold on the cosine. DATA/pair-classification holds of each a
table of sentence1, sentence2 and label, or a folder of such tables of which one is named test:
mrpc, wic, scitail.
"""

from claims import Evaluation, Experiment
from common import main
from mipic import EVERY, compared

DATASETS = {"MRPC": "mrpc", "WiC": "wic", "SciTail": "scitail"}

EXPERIMENT = Experiment(
    "mipic_pairs",
    "MIPIC and what it is compared with, accuracy on pairs of two classes",
    Evaluation(
        "mipic-pairs",
        "cosine-Accuracy",
        unit=100.0,
        kind="pairs",
        tasks=tuple(DATASETS.values()),
        small=tuple(DATASETS.values()),
        last=True,
    ),
    EVERY,
    tuple(claim for name, task in DATASETS.items() for claim in compared(name, task)),
)

if __name__ == "__main__":
    main(EXPERIMENT)
