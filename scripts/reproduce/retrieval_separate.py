"""The retrieval paper, figure 2: separate models against elastic ones on MS MARCO."""

from catalogue import MRL, MSMARCO, PLAIN, TWO_D, separate
from claims import Cell, Claim, Experiment
from common import main

FIGURE = "Wang et al. 2024, arXiv:2411.17299, figure 2"

EXPERIMENT = Experiment(
    "retrieval_separate",
    "separate models and elastic ones, RR@10 on MS MARCO",
    MSMARCO,
    (PLAIN, MRL, TWO_D, separate("L2D128"), separate("L6D128")),
    (
        Claim(
            "2DMSE lifts shallow layers above Matryoshka training of the last",
            Cell("2dmse", "L2D128", 0.2447),
            Cell("mrl", "L2D128", 0.0),
            FIGURE,
        ),
        Claim(
            "the same in the middle",
            Cell("2dmse", "L6D128", 0.2812),
            Cell("mrl", "L6D128", 0.0),
            FIGURE,
        ),
        Claim(
            "2DMSE lifts shallow layers above plain training",
            Cell("2dmse", "L2D128", 0.2447),
            Cell("plain", "L2D128", 0.0),
            FIGURE,
        ),
        Claim(
            "a separate model is better than the elastic one, shallow",
            Cell("separate-L2D128", "L2D128", 0.2596),
            Cell("2dmse", "L2D128", 0.2447),
            FIGURE,
        ),
        Claim(
            "a separate model is better than the elastic one, in the middle",
            Cell("separate-L6D128", "L6D128", 0.2935),
            Cell("2dmse", "L6D128", 0.2812),
            FIGURE,
        ),
        Claim(
            "elasticity costs the whole encoder",
            Cell("plain", "L12D768", 0.3341),
            Cell("2dmse", "L12D768", 0.3262),
            FIGURE,
        ),
        Claim(
            "Matryoshka training keeps the prefix of the last layer",
            Cell("mrl", "L12D128", 0.3149),
            Cell("plain", "L12D128", 0.1117),
            FIGURE,
        ),
        Claim(
            "below the trained dim effectiveness falls abruptly",
            Cell("2dmse", "L12D128", 0.3128),
            Cell("2dmse", "L12D64", 0.1515),
            FIGURE,
        ),
        Claim(
            "above the trained dim it falls too, in layers below the last",
            Cell("2dmse", "L10D128", 0.3085),
            Cell("2dmse", "L10D512", 0.1937),
            FIGURE,
        ),
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
