"""MIPIC, tables 2 to 4: short prefixes of the last layer on STS12, and what each part gives."""

from catalogue import MIPIC, MIPIC_MRL, STS12
from claims import Cell, Claim, Experiment, Model
from common import main

PAPER = "Huy et al., MIPIC, arXiv:2604.24374"
SIMCSE = Model(
    "mipic-simcse", "mipic-bert-base", changes=("variant=plain", "alpha=1.0", "checkpoints=[]")
)
MRL = Model("mipic-mrl", "mipic-bert-base", changes=MIPIC_MRL)
NO_SIA = Model("mipic-no-sia", "mipic-bert-base", changes=("sia=false",))
NO_PIC = Model("mipic-no-pic", "mipic-bert-base", changes=("pic=false",))
FULL = Model("mipic-full", "mipic-bert-base", changes=("full_checkpoints=true",))
TINY = Model("mipic-tiny", "mipic-tinybert", paper_only=True)
TINY_MRL = Model("mipic-tiny-mrl", "mipic-tinybert", changes=MIPIC_MRL, paper_only=True)

EXPERIMENT = Experiment(
    "mipic",
    "MIPIC, what it is compared with and its parts, Spearman on STS12",
    STS12,
    (SIMCSE, MRL, MIPIC, NO_SIA, NO_PIC, FULL, TINY, TINY_MRL),
    (
        Claim(
            "MIPIC is above MRL at the shortest prefix",
            Cell("mipic", "L12D16", 62.08),
            Cell("mipic-mrl", "L12D16", 55.13),
            f"{PAPER}, table 2",
        ),
        Claim(
            "and above unsupervised SimCSE",
            Cell("mipic", "L12D16", 62.08),
            Cell("mipic-simcse", "L12D16", 47.88),
            f"{PAPER}, table 2",
        ),
        Claim(
            "in the middle too",
            Cell("mipic", "L12D128", 66.32),
            Cell("mipic-mrl", "L12D128", 62.34),
            f"{PAPER}, table 2",
        ),
        Claim(
            "and at full width",
            Cell("mipic", "L12D768", 67.64),
            Cell("mipic-mrl", "L12D768", 64.84),
            f"{PAPER}, table 2",
        ),
        Claim(
            "SIA gives part of it",
            Cell("mipic", "L12D16", 62.08),
            Cell("mipic-no-sia", "L12D16", 60.12),
            f"{PAPER}, table 3",
        ),
        Claim(
            "PIC gives part of it",
            Cell("mipic", "L12D16", 62.08),
            Cell("mipic-no-pic", "L12D16", 61.27),
            f"{PAPER}, table 3",
        ),
        Claim(
            "a chain that grows is better than one at full width",
            Cell("mipic", "L12D32", 64.87),
            Cell("mipic-full", "L12D32", 63.12),
            f"{PAPER}, table 4",
        ),
        Claim(
            "the same of TinyBERT, six layers",
            Cell("mipic-tiny", "L6D16", 59.34),
            Cell("mipic-tiny-mrl", "L6D16", 51.48),
            f"{PAPER}, table 2",
        ),
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
