"""2DMSE, first version, tables 1, 3 and 4 and figures 3 and 4b: shallow layers on sentences."""

from dataclasses import replace

from catalogue import CUT_AS_IT_COMES, STS7, TASKS7, V1
from claims import Cell, Claim, Experiment, Model
from common import main
from published import cell

PAPER = "Li et al. 2024, arXiv:2402.14776v1"
TABLE = f"{PAPER}, table 4"
SET = "2dmse-table-4"  # of published.json
ANGLE = Model("v1-plain", "2dmse-v1-nli", changes=CUT_AS_IT_COMES, published="AnglE")
MRL = Model("v1-mrl", "2dmse-v1-nli", changes=("variant=mrl",), published="MRL")


def trained_alone(name: str, backbone: str) -> Model:
    """A small BERT trained on its own; table 3 names it BERT small or tiny."""
    changes = (*CUT_AS_IT_COMES, f"backbone=google/{backbone}")
    return Model(name, "2dmse-v1-nli", changes=changes, paper_only=True)


SMALL = trained_alone("v1-bert-small", "bert_uncased_L-4_H-512_A-8")
TINY = trained_alone("v1-bert-tiny", "bert_uncased_L-2_H-128_A-2")
TABLE_1 = {  # by task, in their order
    "2dmse-v1": (75.00, 86.69, 82.30, 86.50, 82.09, 85.79, 80.18),
    "v1-mrl": (75.72, 86.79, 81.89, 86.91, 81.74, 85.50, 79.44),
}


def by_task() -> tuple[Claim, ...]:
    """Table 1, task by task, at full capacity; other rows of it are copied from other papers."""
    found = []
    for place, task in enumerate(TASKS7):
        cells = [Cell(name, "L12D768", values[place]) for name, values in TABLE_1.items()]
        above, below = sorted(cells, key=lambda one: -(one.value or 0.0))
        says = f"{'2DMSE' if above.model == V1.name else 'MRL'} is above at full capacity"
        found.append(Claim(says, above, below, f"{PAPER}, table 1", on=task))
    return tuple(found)


EXPERIMENT = Experiment(
    "v1_grid",
    "AnglE, MRL and 2DMSE, Spearman of STS12 to 16, STS-B and SICK-R",
    replace(STS7, published=SET),
    (ANGLE, MRL, V1, SMALL, TINY),
    (
        *by_task(),
        Claim(
            "2DMSE is above MRL in the mean over all layers below the last and all dims",
            cell("2dmse-v1", "below", SET, "2DMSE"),
            cell("v1-mrl", "below", SET, "MRL"),
            f"{TABLE}, which figure 3 draws",
        ),
        Claim(
            "and above AnglE alone",
            cell("2dmse-v1", "below", SET, "2DMSE"),
            cell("v1-plain", "below", SET, "AnglE"),
            f"{TABLE}, which figure 3 draws",
        ),
        Claim(
            "AnglE alone falls from layer 5 to layer 8",
            cell("v1-plain", "L5D768", SET, "AnglE"),
            cell("v1-plain", "L8D768", SET, "AnglE"),
            f"{TABLE}, which figures 3 and 4b draw",
        ),
        Claim(
            "half of the layers lose less by 2DMSE than by MRL",
            cell("2dmse-v1", "L6D768", SET, "2DMSE"),
            cell("v1-mrl", "L6D768", SET, "MRL"),
            f"{TABLE}, which figure 4b draws",
        ),
        Claim(
            "a cut of 2DMSE is above BERT small, trained alone",
            Cell("2dmse-v1", "L4D512", 74.46),
            Cell("v1-bert-small", "L4D512", 74.01),
            f"{PAPER}, table 3",
        ),
        Claim(
            "and above BERT tiny",
            Cell("2dmse-v1", "L2D128", 71.64),
            Cell("v1-bert-tiny", "L2D128", 69.85),
            f"{PAPER}, table 3",
        ),
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
            f"{TABLE}, and table 3",
        ),
        Claim(
            "small: four layers, 512 dims",
            Cell("2dmse-v1", "L4D512", 74.46),
            Cell("v1-mrl", "L4D512", 54.91),
            f"{TABLE}, and table 3",
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
