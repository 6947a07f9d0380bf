"""MIPIC, tables 1 to 4, 8 and 9, on sentence similarity: short prefixes of the last layer."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from catalogue import CUT_AS_IT_COMES, MIPIC, STS, STS7
from claims import Cell, Claim, Experiment, Model
from common import main
from published import cell, grids, source

PAPER = "Huy et al., MIPIC, arXiv:2604.24374"
OTHERS = ("alpha=1.0", "checkpoints=[]", "head_learning_rate=1e-3")  # not of MIPIC's own parts
BASELINES = {  # method -> what it changes in the file of MIPIC
    "SimCSE": (*CUT_AS_IT_COMES, *OTHERS),
    "MRL": ("variant=mrl", *OTHERS),
    "ESE": ("variant=ese", "dims=[128]", *OTHERS),  # 128 is ESE's own
}
BACKBONES = {  # name in the tables -> model of MIPIC, last layer, width
    "BERT": (MIPIC, 12, 768),
    "TinyBERT": (Model("mipic-tiny", "mipic-tinybert", paper_only=True), 6, 768),
    "BGE-M3": (Model("mipic-bge", "mipic-bge-m3", paper_only=True), 24, 1024),
    "Qwen3": (Model("mipic-qwen", "mipic-qwen3-0.6b", paper_only=True), 28, 1024),
}
LARGE = ("BGE-M3", "Qwen3")  # tables 8 and 9, which have no SimCSE
DATASETS = {  # sets of published.json -> files of DATA/sts
    "STS-B": "stsb-test",
    "SICK": "sick-test",
    **{f"STS{year}": task for year, task in zip(range(12, 17), STS, strict=True)},
    "SickR": "sick-train+sick-dev+sick-test",
}


def baseline(backbone: str, method: str) -> Model:
    """What MIPIC is compared with, trained on the same sentences."""
    model = BACKBONES[backbone][0]
    return replace(model, name=f"{model.name}-{method.lower()}", changes=BASELINES[method])


MODELS = {
    (backbone, method): baseline(backbone, method)
    for backbone, method in product(BACKBONES, BASELINES)
    if not (backbone in LARGE and method == "SimCSE")
}
EVERY = (*(model for model, _, _ in BACKBONES.values()), *MODELS.values())
NO_SIA = Model("mipic-no-sia", "mipic-bert-base", changes=("sia=false",))
NO_PIC = Model("mipic-no-pic", "mipic-bert-base", changes=("pic=false",))
FULL = Model("mipic-full", "mipic-bert-base", changes=("full_checkpoints=true",))


def compared(dataset: str, on: str) -> Iterator[Claim]:
    """MIPIC against each method on one data set, at 16, 128 and all dims, as the tables order them.

    Of tables 1 and 2 the names on the right are read off tables 8 and 9, which go the same way.
    """
    table = f"mipic-{dataset}"
    for (backbone, method), model in MODELS.items():
        ours, last, width = BACKBONES[backbone]
        for dim in (16, 128, width):
            cut, recipes = f"L{last}D{dim}", (f"MIPIC, {backbone}", f"{method}, {backbone}")
            if any(cut not in grids(table)[recipe] for recipe in recipes):
                continue  # the row is not in the copy that the numbers are from
            pairs = zip((ours.name, model.name), recipes, ("MIPIC", method), strict=True)
            cells = [(cell(name, cut, table, recipe), says) for name, recipe, says in pairs]
            (above, more), (below, less) = sorted(cells, key=lambda one: -(one[0].value or 0.0))
            yield Claim(f"{more} is above {less}", above, below, source(table), on=on)


def parts(on: str, tables: Mapping[int, tuple[float, ...]]) -> Iterator[Claim]:
    """Tables 3 and 4: by dim MIPIC, without SIA, without PIC, and the chain at full width."""
    for dim, (whole, no_sia, no_pic, full) in tables.items():
        above = Cell("mipic", f"L12D{dim}", whole)
        rows = (
            ("SIA gives part of it", NO_SIA, no_sia, 3),
            ("PIC gives part of it", NO_PIC, no_pic, 3),
            ("a chain that grows is better than one at full width", FULL, full, 4),
        )
        for says, model, value, table in rows:
            below = Cell(model.name, f"L12D{dim}", value)
            yield Claim(f"{says}, at {dim}", above, below, f"{PAPER}, table {table}", on=on)


STS12 = {
    16: (62.08, 60.12, 61.27, 61.98),
    32: (64.87, 62.39, 63.90, 63.12),
    128: (66.32, 65.34, 65.72, 66.12),
    768: (67.64, 67.12, 67.53, 67.56),
}

EXPERIMENT = Experiment(
    "mipic",
    "MIPIC, what it is compared with and its parts, Spearman of sentence similarity",
    replace(
        STS7,
        name="mipic-sts",
        last=True,
        tasks=(*STS, "stsb-test", "sick-test", DATASETS["SickR"]),
    ),
    (*EVERY, NO_SIA, NO_PIC, FULL),
    (
        *(claim for name, task in DATASETS.items() for claim in compared(name, task)),
        *parts("sts12-test", STS12),
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
