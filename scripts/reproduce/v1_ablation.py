"""2DMSE, first version, table 2: without alignment, without the last layer."""

from catalogue import STS7, V1
from claims import Cell, Claim, Experiment, Model
from common import main

TABLE = "Li et al. 2024, arXiv:2402.14776v1, table 2"
NO_ALIGNMENT = Model("v1-no-alignment", "2dmse-v1-nli", changes=("align=none",))
NO_LAST = Model("v1-no-last-layer", "2dmse-v1-nli", changes=("whole=false",))

EXPERIMENT = Experiment(
    "v1_ablation",
    "the parts of 2DMSE, mean Spearman of STS12 to 16, STS-B and SICK-R",
    STS7,
    (V1, NO_ALIGNMENT, NO_LAST),
    (
        Claim(
            "alignment helps a third of the layers",
            Cell("2dmse-v1", "L4D256", 73.93),
            Cell("v1-no-alignment", "L4D256", 73.69),
            TABLE,
        ),
        Claim(
            "and the whole",
            Cell("2dmse-v1", "L12D768", 82.65),
            Cell("v1-no-alignment", "L12D768", 82.57),
            TABLE,
        ),
        Claim(
            "the last layer's loss helps a third of the layers",
            Cell("2dmse-v1", "L4D256", 73.93),
            Cell("v1-no-last-layer", "L4D256", 73.00),
            TABLE,
        ),
        Claim(
            "two thirds",
            Cell("2dmse-v1", "L8D512", 78.02),
            Cell("v1-no-last-layer", "L8D512", 76.52),
            TABLE,
        ),
        Claim(
            "and the whole",
            Cell("2dmse-v1", "L12D768", 82.65),
            Cell("v1-no-last-layer", "L12D768", 81.31),
            TABLE,
        ),
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
