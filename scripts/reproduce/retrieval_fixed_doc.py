"""The retrieval paper, figure 5: shallow queries against documents of the last layer."""

from catalogue import FIXED_DOC, MSMARCO, TWO_D, separate
from claims import Cell, Claim, Experiment
from common import main

FIGURE = "Wang et al. 2024, arXiv:2411.17299, figure 5"

EXPERIMENT = Experiment(
    "retrieval_fixed_doc",
    "one encoder of documents for all encoders of queries, RR@10 on MS MARCO",
    MSMARCO,
    (TWO_D, FIXED_DOC, separate("L2D128")),
    (
        Claim(
            "where it is trained, fix-doc is above paired layers",
            Cell("fixed-doc", "L2D128", 0.2809),
            Cell("2dmse", "L2D128", 0.2447),
            FIGURE,
        ),
        Claim(
            "and above the separate model",
            Cell("fixed-doc", "L2D128", 0.2809),
            Cell("separate-L2D128", "L2D128", 0.2596),
            "the same, and figure 2",
        ),
        Claim(
            "shallow queries at full width do worse with it",
            Cell("2dmse", "L2D768", 0.2476),
            Cell("fixed-doc", "L2D768", 0.2111),
            FIGURE,
        ),
        Claim(
            "and above the trained dim",
            Cell("2dmse", "L4D512", 0.2655),
            Cell("fixed-doc", "L4D512", 0.17),
            FIGURE,
        ),
        Claim(
            "deep queries do better with it",
            Cell("fixed-doc", "L10D512", 0.261),
            Cell("2dmse", "L10D512", 0.1937),
            FIGURE,
        ),
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
