"""ESE, table 1: the last layer, and the mean of those below it."""

from catalogue import ESE, STS7
from claims import Cell, Claim, Experiment, Model
from common import main

TABLE = "Li et al., ESE, arXiv:2402.14776, table 1"
RAW = Model("ese-raw", "ese-bge-base-nli", raw=True)
MRL = Model("ese-mrl", "ese-bge-base-nli", changes=("variant=mrl", "dims=[]"))
UAE_RAW = Model("ese-uae-raw", "ese-uae-large-nli", raw=True, paper_only=True)
UAE = Model("ese-uae", "ese-uae-large-nli", paper_only=True)
QWEN_RAW = Model("ese-qwen-raw", "ese-qwen1.5-0.5b-nli", raw=True, paper_only=True)
QWEN = Model("ese-qwen", "ese-qwen1.5-0.5b-nli", paper_only=True)

EXPERIMENT = Experiment(
    "ese_grid",
    "the backbone as it comes, MRL and ESE, mean Spearman of STS12 to 16, STS-B and SICK-R",
    STS7,
    (RAW, MRL, ESE, UAE_RAW, UAE, QWEN_RAW, QWEN),
    (
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
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
