"""The retrieval paper, figure 3: the 48 separate models on BEIR, whose numbers are not printed."""

from catalogue import BEIR, TWO_D
from claims import Cell, Claim, Experiment
from common import main
from retrieval_all_separate import MODELS

FIGURE = "Wang et al. 2024, arXiv:2411.17299, figure 3 and section 4.2, in words"

EXPERIMENT = Experiment(
    "retrieval_all_separate_beir",
    "a separate model per cut against 2DMSE, mean nDCG@10 on 13 sets of BEIR",
    BEIR,
    (TWO_D, *MODELS.values()),
    tuple(
        Claim(
            "a separate model is better than the elastic one",
            Cell(model.name, f"L{layer}D{dim}", small_cut=model.small_cut),
            Cell("2dmse", f"L{layer}D{dim}", small_cut=model.small_cut),
            FIGURE,
        )
        for (layer, dim), model in MODELS.items()
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
