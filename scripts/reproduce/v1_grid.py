"""2DMSE, first version, tables 1, 3 and 4: shallow layers on sentence similarity."""

from catalogue import STS7, V1
from claims import Cell, Claim, Experiment, Model
from common import main

TABLE = "Li et al. 2024, arXiv:2402.14776v1, table 4"
ANGLE = Model("v1-plain", "2dmse-v1-nli", changes=("variant=plain",))
MRL = Model("v1-mrl", "2dmse-v1-nli", changes=("variant=mrl",))

EXPERIMENT = Experiment(
    "v1_grid",
    "AnglE, MRL and 2DMSE, mean Spearman of STS12 to 16, STS-B and SICK-R",
    STS7,
    (ANGLE, MRL, V1),
    (
        Claim(
            "2DMSE lifts the first layer",
            Cell("2dmse-v1", "L1D768", 70.09),
            Cell("v1-mrl", "L1D768", 49.33),
            TABLE,
        ),
        Claim(
            "at a short prefix too",
            Cell("2dmse-v1", "L1D16", 65.36),
            Cell("v1-mrl", "L1D16", 48.14),
            TABLE,
        ),
        Claim(
            "tiny: two layers, 128 dims",
            Cell("2dmse-v1", "L2D128", 71.64),
            Cell("v1-mrl", "L2D128", 54.90),
            f"{TABLE}; table 3",
        ),
        Claim(
            "small: four layers, 512 dims",
            Cell("2dmse-v1", "L4D512", 74.46),
            Cell("v1-mrl", "L4D512", 54.91),
            f"{TABLE}; table 3",
        ),
        Claim(
            "half of the layers, against AnglE alone",
            Cell("2dmse-v1", "L6D768", 75.50),
            Cell("v1-plain", "L6D768", 48.96),
            TABLE,
        ),
        Claim(
            "the last layer is no worse for it",
            Cell("2dmse-v1", "L12D768", 82.65),
            Cell("v1-plain", "L12D768", 82.43),
            TABLE,
        ),
        Claim(
            "MRL keeps the prefix of the last layer",
            Cell("v1-mrl", "L12D16", 75.65),
            Cell("v1-plain", "L12D16", 71.30),
            TABLE,
        ),
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
