"""Starbucks, table A2: the diagonal of cuts on sentence similarity."""

from dataclasses import replace

from catalogue import STS7_SHARES
from claims import Claim, Experiment, Model
from common import main
from published import cell
from starbucks import DIAGONAL

TABLE = "ielab/Starbucks, README, table A2"
SET = "starbucks-sts"  # of the package
CONFIG = "starbucks-srl-nli"
PAIRS = ("loss=mnr",)  # at small scale there are pairs with a score and no triples
HALF = dict(zip(DIAGONAL[:-1], ("L1D16", "L2D32", "L3D64", "L4D128", "L5D256"), strict=True))
SRL = Model("starbucks-sts", CONFIG, small=PAIRS, published="srl")
SMAE = Model(
    "starbucks-sts-smae",
    CONFIG,
    changes=("backbone=ielabgroup/bert-base-uncased-fineweb100bt-smae",),
    paper_only=True,
    published="smae-srl",
)
TWO_D = Model(
    "starbucks-sts-2dmse",
    CONFIG,
    changes=("variant=2dmse-st", "checkpoints=[]"),
    small=PAIRS,
    published="2dmse",
)


def alone(cut: str) -> Model:
    """The model that is trained for one cut alone."""
    return Model(
        f"starbucks-sts-separate-{cut}",
        CONFIG,
        changes=("variant=separate", "checkpoints=[]"),
        small=PAIRS,
        cut=cut,
        small_cut=HALF.get(cut, ""),
        paper_only=cut not in ("L2D32", "L6D128", "L12D768"),
        published="separate",
    )


def claims(cut: str) -> tuple[Claim, ...]:
    """Starbucks against what it is compared with at one cut, as the table orders them."""
    found = []
    others = [(TWO_D, "2DMSE"), (alone(cut), "the separate model"), (SMAE, "Starbucks with SMAE")]
    for model, name in others:
        cells = [cell(m.name, cut, SET, m.published, HALF.get(cut, "")) for m in (SRL, model)]
        above, below = sorted(cells, key=lambda one: -(one.value or 0.0))
        words = ("Starbucks", name) if above.model == SRL.name else (name, "Starbucks")
        found.append(Claim(f"{words[0]} is above {words[1]}", above, below, TABLE))
    return tuple(found)


EXPERIMENT = Experiment(
    "starbucks_sts",
    "the diagonal from L2D32 to L12D768, mean Spearman of STS12 to 16, STS-B and SICK-R",
    replace(STS7_SHARES, published=SET),
    (SRL, SMAE, TWO_D, *map(alone, DIAGONAL)),
    tuple(claim for cut in DIAGONAL for claim in claims(cut)),
)

if __name__ == "__main__":
    main(EXPERIMENT)
