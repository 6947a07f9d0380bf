"""The retrieval paper, figure 4: three changes of the loss of 2DMSE on MS MARCO."""

from catalogue import DIMS, FULL_DIM, MSMARCO, SCORE, TWO_D
from claims import Cell, Claim, Experiment
from common import main

FIGURE = "Wang et al. 2024, arXiv:2411.17299, figure 4"

EXPERIMENT = Experiment(
    "retrieval_losses",
    "SCORE, FULL-DIM and +DIMS against 2DMSE, RR@10 on MS MARCO",
    MSMARCO,
    (TWO_D, SCORE, FULL_DIM, DIMS),
    (
        Claim(
            "training the full width of every layer lifts it",
            Cell("full-dim", "L2D768", 0.2681),
            Cell("2dmse", "L2D768", 0.2476),
            FIGURE,
        ),
        Claim(
            "and mends what 2DMSE loses above the trained dim",
            Cell("full-dim", "L10D512", 0.3158),
            Cell("2dmse", "L10D512", 0.1937),
            FIGURE,
        ),
        Claim(
            "SCORE keeps effectiveness above the trained dim",
            Cell("score", "L10D512", 0.3135),
            Cell("2dmse", "L10D512", 0.1937),
            FIGURE,
        ),
        Claim(
            "SCORE does worse than embeddings below the trained dim",
            Cell("2dmse", "L4D64", 0.1233),
            Cell("score", "L4D64", 0.0068),
            FIGURE,
        ),
        Claim(
            "more dims lift the short prefixes of the last layer",
            Cell("dims", "L12D16", 0.1305),
            Cell("2dmse", "L12D16", 0.0005),
            FIGURE,
        ),
        Claim(
            "and those of shallow layers",
            Cell("dims", "L2D16", 0.016),
            Cell("2dmse", "L2D16", 0.0009),
            FIGURE,
        ),
        Claim(
            "more dims cost shallow layers their trained dim",
            Cell("2dmse", "L2D128", 0.2447),
            Cell("dims", "L2D128", 0.0661),
            FIGURE,
        ),
        Claim(
            "and cost the whole encoder",
            Cell("2dmse", "L12D768", 0.3262),
            Cell("dims", "L12D768", 0.3014),
            FIGURE,
        ),
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
