"""ESE, table 2: other compressions, other weights of the layers."""

from catalogue import ESE, STS7
from claims import Cell, Claim, Experiment, Model
from common import main

TABLE = "Li et al., ESE, arXiv:2402.14776, table 2"


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
    ),
    (
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
