"""The retrieval paper, figure 3: the same models on BEIR, without training on it."""

from catalogue import BEIR, MRL, PLAIN, TWO_D
from claims import Cell, Claim, Experiment
from common import main

FIGURE = "Wang et al. 2024, arXiv:2411.17299, figure 3"

EXPERIMENT = Experiment(
    "retrieval_beir",
    "plain and elastic models, mean nDCG@10 on 13 sets of BEIR",
    BEIR,
    (PLAIN, MRL, TWO_D),
    (
        Claim(
            "2DMSE lifts shallow layers above Matryoshka training of the last",
            Cell("2dmse", "L2D128", 0.2976),
            Cell("mrl", "L2D128", 0.0021),
            FIGURE,
        ),
        Claim(
            "2DMSE lifts shallow layers above plain training, at full width too",
            Cell("2dmse", "L4D768", 0.3339),
            Cell("plain", "L4D768", 0.065),
            FIGURE,
        ),
        Claim(
            "elasticity costs the whole encoder",
            Cell("plain", "L12D768", 0.3844),
            Cell("2dmse", "L12D768", 0.37),
            FIGURE,
        ),
        Claim(
            "Matryoshka training keeps the prefix of the last layer",
            Cell("mrl", "L12D128", 0.3462),
            Cell("plain", "L12D128", 0.1421),
            FIGURE,
        ),
        Claim(
            "above the trained dim 2DMSE falls, in layers below the last",
            Cell("2dmse", "L10D128", 0.3437),
            Cell("2dmse", "L10D512", 0.2414),
            FIGURE,
        ),
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
