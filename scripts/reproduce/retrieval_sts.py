"""The retrieval paper, figure 1: both versions of 2DMSE on sentence similarity.

The figure's axis says Spearman. The one table of its numbers, in ielab/2DMSE-Reproduce, says
Pearson. So numbers are compared with Pearson here, and what the figure shows with Spearman, by its
sign alone.
"""

from collections.abc import Iterator

from catalogue import CUT_AS_IT_COMES, STS7_SHARES
from claims import Cell, Claim, Experiment, Model
from common import main
from published import cell

FIGURE = "Wang et al. 2024, arXiv:2411.17299, figure 1 and section 4.1"
TABLE = "ielab/2DMSE-Reproduce, README"
SETS = {"V1": "sts-v1", "V2": "sts-v2"}  # of published.json
CONFIGS = {"V1": "2dmse-paper-nli-v1", "V2": "2dmse-paper-nli-v2"}
# At small scale there are pairs with a score and no triples; mnr trains on those of .8 and more.
PAIRS = {"V1": ("loss=mnr",), "V2": ()}
MRL = {
    "V1": ("variant=mrl", "dims=[]"),  # MatryoshkaLoss over all eight dims
    # loss(x_L) + loss(x_L[:128]) + al(x_L): the code's apply_mrl is its ESE without shallow layers.
    "V2": ("shallow=false",),
}
PLAIN = {"V1": (), "V2": ("faithful=false",)}  # what no baseline has of the file
SEPARATE = (2, 4, 6, 8, 10)  # one model per layer, at full width; at layer 12 it is BERT
SMALL = {"V1": (2,), "V2": (2, 6, 10)}  # of them


def model(version: str, name: str, recipe: str, changes: tuple[str, ...] = ()) -> Model:
    """A model of one version, with the name that the table gives it."""
    return Model(
        f"nli-{version.lower()}-{name}",
        CONFIGS[version],
        changes=changes,
        small=PAIRS[version],
        published=recipe,
    )


def separate(version: str, layer: int) -> Model:
    """The model of one layer, trained at full width as the public code trains it."""
    return Model(
        f"nli-{version.lower()}-separate-L{layer}",
        CONFIGS[version],
        changes=("variant=separate", "dims=[]", *PLAIN[version]),
        small=PAIRS[version],
        cut=f"L{layer}D768",
        prefixes=True,
        paper_only=layer not in SMALL[version],
        published="BERT-S",
    )


TWO_D = {version: model(version, "2dmse", "2DMSE") for version in SETS}
BERT = {
    version: model(version, "plain", "BERT", (*CUT_AS_IT_COMES, "dims=[]", *PLAIN[version]))
    for version in SETS
}
MSE = {version: model(version, "mrl", "MSE", MRL[version]) for version in SETS}
ALONE = {(version, layer): separate(version, layer) for version in SETS for layer in SEPARATE}


Side = tuple[str, Model]  # a version, and a model of it


def both(says: str, above: Side, below: Side, cut: str) -> tuple[Claim, Claim]:
    """One claim in numbers, as the table labels them, and one by its sign, as the figure does."""
    first, second = (
        cell(one.name, cut, SETS[version], one.published) for version, one in (above, below)
    )
    more, less = (Cell(one.name, cut) for _, one in (above, below))
    return (
        Claim(says, first, second, f"{TABLE}; labelled Pearson", measure="Pearson"),
        Claim(says, more, less, f"{FIGURE}; labelled Spearman", measure="Spearman"),
    )


def within(version: str, says: str, above: Model, below: Model, cut: str) -> tuple[Claim, Claim]:
    """The same of two models of one version."""
    return both(f"{version}: {says}", (version, above), (version, below), cut)


def rows() -> Iterator[tuple[Claim, Claim]]:
    """The claims of section 4.1."""
    for version in SETS:
        for name, other in (("BERT", BERT[version]), ("MSE", MSE[version])):
            for cut in ("L2D128", "L6D768"):
                yield within(version, f"2DMSE is above {name}", TWO_D[version], other, cut)
        for layer in SEPARATE:
            says = "a model of that layer alone is above 2DMSE"
            alone = ALONE[version, layer]
            yield within(version, says, alone, TWO_D[version], f"L{layer}D128")
    one, two = ("V1", TWO_D["V1"]), ("V2", TWO_D["V2"])
    yield within("V1", "2DMSE is above the model alone at dim 8", one[1], ALONE["V1", 2], "L2D8")
    yield within("V2", "2DMSE keeps a prefix of the last layer", two[1], BERT["V2"], "L12D128")
    yield within("V2", "so does MSE, which trains it", MSE["V2"], BERT["V2"], "L12D128")
    yield both("V2 is above V1 in most cells: a third of the layers", two, one, "L4D128")
    yield both("the whole encoder", two, one, "L12D768")
    yield both("V1 is above V2 at dim 8", one, two, "L2D8")


EXPERIMENT = Experiment(
    "retrieval_sts",
    "2DMSE V1 and V2, mean of STS12 to 16, STS-B and SICK-R",
    STS7_SHARES,
    (*TWO_D.values(), *BERT.values(), *MSE.values(), *ALONE.values()),
    tuple(claim for pair in rows() for claim in pair),
)

if __name__ == "__main__":
    main(EXPERIMENT)
