"""ESE, tables 1 and 5 and figure 3: the last layer, those below it, and BERT cut to small sizes."""

from collections.abc import Iterator

from catalogue import ESE, STS7, TASKS7
from claims import Cell, Claim, Experiment, Model
from common import main
from v1_grid import SMALL, TINY

PAPER = "Li et al., ESE, arXiv:2402.14776"
TABLE = f"{PAPER}, table 1"
RAW = Model("ese-raw", "ese-bge-base-nli", raw=True)
MRL = Model("ese-mrl", "ese-bge-base-nli", changes=("variant=mrl", "dims=[]"))
UAE_RAW = Model("ese-uae-raw", "ese-uae-large-nli", raw=True, paper_only=True)
UAE = Model("ese-uae", "ese-uae-large-nli", paper_only=True)
QWEN_RAW = Model("ese-qwen-raw", "ese-qwen1.5-0.5b-nli", raw=True, paper_only=True)
UAE_MRL = Model(
    "ese-uae-mrl", "ese-uae-large-nli", changes=("variant=mrl", "dims=[]"), paper_only=True
)
QWEN_MRL = Model(
    "ese-qwen-mrl", "ese-qwen1.5-0.5b-nli", changes=("variant=mrl", "dims=[]"), paper_only=True
)
QWEN = Model("ese-qwen", "ese-qwen1.5-0.5b-nli", paper_only=True)
BERT = "backbone=bert-base-uncased"
ESE_BERT = Model("ese-bert", "ese-bge-base-nli", changes=(BERT,), paper_only=True)
BY_TASK = {  # table 1, last layer: STS12 to 16, STS-B, SICK-R
    "ese-raw": (78.03, 84.18, 82.27, 87.96, 85.47, 86.41, 79.88),
    "ese-mrl": (75.90, 87.87, 83.97, 88.92, 85.07, 87.17, 79.18),
    "ese": (77.70, 86.97, 83.57, 89.43, 86.16, 87.27, 80.32),
    "ese-uae-raw": (79.09, 89.62, 85.02, 89.51, 86.61, 89.06, 82.10),
    "ese-uae-mrl": (78.26, 90.19, 84.91, 89.48, 86.17, 88.49, 79.28),
    "ese-uae": (79.64, 90.40, 85.76, 90.33, 86.64, 88.54, 81.09),
    "ese-qwen-raw": (75.91, 83.77, 80.04, 86.05, 82.91, 85.32, 78.98),
    "ese-qwen-mrl": (76.30, 85.04, 80.68, 86.15, 83.12, 85.65, 79.45),
    "ese-qwen": (76.43, 85.70, 81.75, 86.30, 83.67, 85.76, 80.16),
}


def by_task() -> Iterator[Claim]:
    """ESE against the backbone as it comes and against MRL, task by task."""
    for name in ("ese", "ese-uae", "ese-qwen"):
        for other in (f"{name}-raw", f"{name}-mrl"):
            for place, task in enumerate(TASKS7):
                cells = [Cell(each, "whole", BY_TASK[each][place]) for each in (name, other)]
                above, below = sorted(cells, key=lambda one: -(one.value or 0.0))
                says = f"{above.model} is above {below.model}"
                yield Claim(says, above, below, TABLE, on=task)


EXPERIMENT = Experiment(
    "ese_grid",
    "the backbone as it comes, MRL and ESE, Spearman of STS12 to 16, STS-B and SICK-R",
    STS7,
    (RAW, MRL, ESE, UAE_RAW, UAE_MRL, UAE, QWEN_RAW, QWEN_MRL, QWEN, ESE_BERT, SMALL, TINY),
    (
        *by_task(),
        Claim(
            "ESE lifts the shallow layers of the backbone",
            Cell("ese", "shallow", 66.27),
            Cell("ese-raw", "shallow", 45.60),
            TABLE,
        ),
        Claim(
            "which MRL does not",
            Cell("ese", "shallow", 66.27),
            Cell("ese-mrl", "shallow", 46.18),
            TABLE,
        ),
        Claim(
            "ESE's last layer is above the backbone's",
            Cell("ese", "whole", 84.49),
            Cell("ese-raw", "whole", 83.46),
            TABLE,
        ),
        Claim(
            "and above MRL's",
            Cell("ese", "whole", 84.49),
            Cell("ese-mrl", "whole", 84.01),
            TABLE,
        ),
        Claim(
            "the same of UAE-Large: shallow",
            Cell("ese-uae", "shallow", 59.12),
            Cell("ese-uae-raw", "shallow", 44.80),
            TABLE,
        ),
        Claim(
            "and last",
            Cell("ese-uae", "whole", 86.06),
            Cell("ese-uae-raw", "whole", 85.86),
            TABLE,
        ),
        Claim(
            "the same of Qwen1.5-0.5B: shallow",
            Cell("ese-qwen", "shallow", 59.99),
            Cell("ese-qwen-raw", "shallow", 56.59),
            TABLE,
        ),
        Claim(
            "and last",
            Cell("ese-qwen", "whole", 82.82),
            Cell("ese-qwen-raw", "whole", 81.85),
            TABLE,
        ),
        Claim(
            "which MRL of UAE-Large does not reach, shallow",
            Cell("ese-uae", "shallow", 59.12),
            Cell("ese-uae-mrl", "shallow", 44.97),
            TABLE,
        ),
        Claim(
            "nor MRL of Qwen1.5-0.5B",
            Cell("ese-qwen", "shallow", 59.99),
            Cell("ese-qwen-mrl", "shallow", 58.22),
            TABLE,
        ),
        Claim(
            "below the last layer ESE is above MRL in the mean over all dims",
            Cell("ese", "below"),
            Cell("ese-mrl", "below"),
            f"{PAPER}, figure 3 and section 4.1, in words",
        ),
        Claim(
            "and above the backbone",
            Cell("ese", "below"),
            Cell("ese-raw", "below"),
            f"{PAPER}, figure 3 and section 4.1, in words",
        ),
        Claim(
            "two layers of ESE are above nine of MRL",
            Cell("ese", "L2D768"),
            Cell("ese-mrl", "L9D768"),
            f"{PAPER}, figure 3 and section 4.1, in words: 60 after two layers, MRL after ten",
        ),
        Claim(
            "a cut of ESE, from BERT, is above BERT small, trained alone",
            Cell("ese-bert", "L4D512", 74.46),
            Cell("v1-bert-small", "L4D512", 74.01),
            f"{PAPER}, table 5",
        ),
        Claim(
            "and above BERT tiny",
            Cell("ese-bert", "L2D128", 71.64),
            Cell("v1-bert-tiny", "L2D128", 69.85),
            f"{PAPER}, table 5",
        ),
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
