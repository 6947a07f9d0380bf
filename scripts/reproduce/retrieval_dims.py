"""The retrieval paper's repository: which dims +DIMS trains, on MS MARCO."""

from catalogue import DIMS, DIMS_8, DIMS_32, DIMS_FULL, MSMARCO, TWO_D
from claims import Cell, Claim, Experiment
from common import main

TABLE = "ielab/2DMSE-Reproduce, results of +DIMS; Wang et al. 2024, arXiv:2411.17299, note 8"

EXPERIMENT = Experiment(
    "retrieval_dims",
    "sets of trained dims, RR@10 on MS MARCO",
    MSMARCO,
    (TWO_D, DIMS, DIMS_8, DIMS_32, DIMS_FULL),
    (
        Claim(
            "a dim that is trained is usable: 32",
            Cell("dims-32-128", "L12D32", 0.2541),
            Cell("2dmse", "L12D32", 0.0106),
            TABLE,
        ),
        Claim(
            "a dim that is not trained is not: 16",
            Cell("dims", "L12D16", 0.1305),
            Cell("dims-32-128", "L12D16", 0.0142),
            TABLE,
        ),
        Claim(
            "nor 8",
            Cell("dims-8-32-128-512", "L12D8", 0.0331),
            Cell("dims-32-128", "L12D8", 0.0004),
            TABLE,
        ),
        Claim(
            "fewer dims cost the whole encoder less",
            Cell("dims-32-128", "L12D768", 0.3129),
            Cell("dims", "L12D768", 0.3014),
            TABLE,
        ),
        Claim(
            "two dims already cost shallow layers the one that 2DMSE trains",
            Cell("2dmse", "L2D128", 0.2447),
            Cell("dims-32-128", "L2D128", 0.0637),
            TABLE,
        ),
        Claim(
            "training the full width beside them helps the whole a little",
            Cell("dims-full-dim", "L12D768", 0.3042),
            Cell("dims", "L12D768", 0.3014),
            TABLE,
        ),
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
