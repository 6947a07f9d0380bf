"""2DMSE, first version, table 2: without alignment, without the last layer."""

from catalogue import STS7, V1
from claims import Cell, Claim, Experiment, Model
from common import main

TABLE = "Li et al. 2024, arXiv:2402.14776v1, table 2"
NO_ALIGNMENT = Model("v1-no-alignment", "2dmse-v1-nli", changes=("align=none",))
NO_LAST = Model("v1-no-last-layer", "2dmse-v1-nli", changes=("whole=false",))

PARTS = (
    ("v1-no-alignment", "alignment helps"),
    ("v1-no-last-layer", "the last layer's loss helps"),
)
PUBLISHED = {  # cut: 2DMSE, without alignment, without the last layer
    "L12D768": (82.65, 82.57, 81.31),
    "L8D512": (78.02, 77.94, 76.52),
    "L6D384": (75.21, 75.08, 74.98),
    "L4D256": (73.93, 73.69, 73.00),
}

EXPERIMENT = Experiment(
    "v1_ablation",
    "the parts of 2DMSE, mean Spearman of STS12 to 16, STS-B and SICK-R",
    STS7,
    (V1, NO_ALIGNMENT, NO_LAST),
    tuple(
        Claim(
            f"{says}, at {cut}",
            Cell("2dmse-v1", cut, whole),
            Cell(name, cut, without),
            TABLE,
        )
        for cut, (whole, *others) in PUBLISHED.items()
        for (name, says), without in zip(PARTS, others, strict=True)
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
