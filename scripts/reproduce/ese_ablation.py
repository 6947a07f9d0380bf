"""ESE, table 2 and figure 5: other compressions, other weights of the layers, other sizes."""

from catalogue import ESE, STS7
from claims import Cell, Claim, Experiment, Model
from common import main
from ese_grid import MRL, RAW

PAPER = "Li et al., ESE, arXiv:2402.14776"
TABLE = f"{PAPER}, table 2"
FIGURE = f"{PAPER}, figure 5, in words"
# The text says that 128 is the best size and names no other; these are the powers of two about it.
SIZES = {
    size: Model(f"ese-k{size}", "ese-bge-base-nli", changes=(f"dims=[{size}]",))
    for size in (32, 64, 256)
}
WIDEST = Model("ese-k512", "ese-bge-base-nli", changes=("dims=[512]",), paper_only=True)


def changed(word: str) -> Model:
    """ESE with one setting of another value."""
    return Model(f"ese-{word.partition('=')[2]}", "ese-bge-base-nli", changes=(word,))


EXPERIMENT = Experiment(
    "ese_ablation",
    "the parts of ESE, mean Spearman of STS12 to 16, STS-B and SICK-R",
    STS7,
    (
        ESE,
        changed("compress=embeddings"),
        changed("compress=max-k"),
        changed("compress=none"),
        changed("weights=uniform"),
        changed("weights=dynamic"),
        MRL,
        RAW,
        *SIZES.values(),
        WIDEST,
    ),
    (
        *(
            Claim(
                f"prefixes of 128 are better than of {size}",
                Cell("ese", "whole"),
                Cell(f"ese-k{size}", "whole"),
                FIGURE,
            )
            for size in (*SIZES, 512)
        ),
        *(
            Claim(
                f"at each size ESE is above {name}: {size}",
                Cell(f"ese-k{size}", "whole"),
                Cell(other.name, "whole"),
                FIGURE,
            )
            for size in (*SIZES, 512)
            for name, other in (("MRL", MRL), ("the backbone", RAW))
        ),
        Claim(
            "compression carries the shallow layers",
            Cell("ese", "shallow", 66.27),
            Cell("ese-none", "shallow", 50.18),
            TABLE,
        ),
        Claim(
            "and helps the last",
            Cell("ese", "whole", 84.49),
            Cell("ese-none", "whole", 84.13),
            TABLE,
        ),
        Claim(
            "components of dependencies are better than of embeddings",
            Cell("ese", "shallow", 66.27),
            Cell("ese-embeddings", "shallow", 65.69),
            TABLE,
        ),
        Claim(
            "and better than the largest dependencies",
            Cell("ese", "shallow", 66.27),
            Cell("ese-max-k", "shallow", 65.47),
            TABLE,
        ),
        Claim(
            "weights that fall with depth help the shallow layers",
            Cell("ese", "shallow", 66.27),
            Cell("ese-uniform", "shallow", 64.56),
            TABLE,
        ),
        Claim(
            "learned weights help them less",
            Cell("ese", "shallow", 66.27),
            Cell("ese-dynamic", "shallow", 65.94),
            TABLE,
        ),
        Claim(
            "and the last layer more",
            Cell("ese-dynamic", "whole", 84.63),
            Cell("ese", "whole", 84.49),
            TABLE,
        ),
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
