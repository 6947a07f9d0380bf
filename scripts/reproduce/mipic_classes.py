"""MIPIC, tables 1 to 4, 8 and 9, on classification: Banking77, TweetEval and Emotion.

A logistic regression reads frozen vectors, and macro F1 is told. DATA/classification holds a
folder of train.csv and test.csv, with columns text and label, of each: banking77, tweeteval,
emotion. The paper does not say which task of TweetEval it means; it counts 3,434 tested texts.
"""

from claims import Claim, Evaluation, Experiment
from common import main
from mipic import EVERY, FULL, NO_PIC, NO_SIA, compared, parts

DATASETS = {"Banking77": "banking77", "TweetEval": "tweeteval", "Emotion": "emotion"}
TWEETEVAL = {  # MIPIC, without SIA, without PIC, the chain at full width
    16: (60.38, 57.12, 59.13, 58.99),
    32: (62.30, 59.32, 61.87, 61.97),
    128: (68.24, 67.35, 67.92, 67.92),
    256: (70.45, 69.54, 70.12, 70.08),
}
CLAIMS: tuple[Claim, ...] = (
    *(claim for name, task in DATASETS.items() for claim in compared(name, task)),
    *parts("tweeteval", TWEETEVAL),
)

EXPERIMENT = Experiment(
    "mipic_classes",
    "MIPIC, what it is compared with and its parts, F1 of classification",
    Evaluation(
        "mipic-classes",
        "F1",
        unit=100.0,
        kind="classification",
        tasks=tuple(DATASETS.values()),
        small=tuple(DATASETS.values()),
        last=True,
    ),
    (*EVERY, NO_SIA, NO_PIC, FULL),
    CLAIMS,
)

if __name__ == "__main__":
    main(EXPERIMENT)
