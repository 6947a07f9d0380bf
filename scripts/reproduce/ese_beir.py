"""ESE, figure 9: shallow and last layers on three collections of BEIR."""

from catalogue import ESE
from claims import Cell, Claim, Evaluation, Experiment
from common import main
from ese_grid import MRL, RAW

FIGURE = "Li et al., ESE, arXiv:2402.14776, figure 9 and appendix B, in words"
COLLECTIONS = ("scifact", "scidocs", "nfcorpus")
# The figure does not name its measure; nDCG@10 is that of BEIR.
EVALUATION = Evaluation(
    "ese-beir",
    "nDCG@10",
    unit=100.0,
    tasks=tuple(f"beir/{name}" for name in COLLECTIONS),
    small=COLLECTIONS,
)

EXPERIMENT = Experiment(
    "ese_beir",
    "the backbone as it comes, MRL and ESE, nDCG@10 on SciFact, SciDocs and NFCorpus",
    EVALUATION,
    (RAW, MRL, ESE),
    tuple(
        Claim(
            f"ESE is above {says}, {layers}", Cell("ese", word), Cell(other, word), FIGURE, on=name
        )
        for name in COLLECTIONS
        for word, layers in (("shallow", "shallow layers"), ("whole", "last layer"))
        for other, says in (("ese-raw", "the backbone"), ("ese-mrl", "MRL"))
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
