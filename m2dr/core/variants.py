"""The training recipes: one row per recipe, one field per setting of a recipe."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from m2dr.core.option import option

DocumentLayer = Literal["same", "last"]
Prefixes = Literal["none", "one", "many"]
Alignment = Literal["none", "pca", "embedding", "score"]
Teacher = Literal["width", "depth", "whole"]
Compression = Literal[
    "dependencies", "text-dependencies", "randomised", "embeddings", "max-k", "none"
]
Weights = Literal[
    "log", "log-position", "log-position-mean", "inverse", "uniform", "linear", "dynamic", "mean"
]
PrefixWeights = Literal["uniform", "root-rank"]
LayerChoice = Literal["all", "sparse"]
Draw = Literal["none", "step", "exit"]
AlignWidth = Literal["cut", "full"]
AlignReduction = Literal["mean", "batch"]
ExitHead = Literal["none", "linear", "fitted"]
Loss = Literal["contrastive", "mnr", "simcse", "cosent", "angle"]
Candidates = Literal["second", "all"]
Distill = Literal["none", "margin-mse", "kl"]
Mipic = Literal["paper", "code"]


@dataclass(frozen=True)
class Variant:
    """A recipe: what a training step asks of the shallow layers and of the short prefixes.

    Every field but the name, the summary and `single_cut` is a setting of `m2dr train`, which takes
    its name, type, default and description from here. Formulas: docs/recipes.md.
    """

    name: str
    summary: str

    # Which cuts are trained to retrieve.
    whole: bool = option(True, "Train the full model: the last layer at full width.")
    shallow: bool = option(False, "Train the layers below the last one.")
    layer_choice: LayerChoice = option(
        "all", "Shallow layers where none is named: all, or 1, 2, 4, 8, 16, 24, 32 and so on."
    )
    prefixes: Prefixes = option("none", "Train no prefix, one short prefix, or all of them.")
    full_dim: bool = option(False, "Train shallow layers at full width too.")
    staircase: bool = option(False, "Train one dim per layer, both growing, instead of a grid.")
    embeddings: bool = option(
        False,
        "Count the shallow layers from 0 to L - 2, as AnglE does, not 1 to L - 1; with draw=exit "
        "from 0 to L - 1, as sentence-transformers does.",
    )
    draw: Draw = option(
        "none", "Draw for each batch: one shallow layer and one prefix, or a prefix per exit."
    )
    single_cut: bool = False  # cut the backbone first and train that one cut, nothing else
    own_softmax: bool = option(
        False, "A query's own negatives are in a softmax of their own, not in that of the batch."
    )
    documents: DocumentLayer = option("same", "Layer of the documents for a shallow query.")

    # What a cut imitates.
    align: Alignment = option(
        "none", "What cuts imitate: their compressed full width, the last layer's dims, or scores."
    )
    teacher: Teacher = option(
        "width",
        "Whose scores are imitated: the layer's full width, the last layer, or the full model.",
    )
    add_mse: bool = option(True, "Add the squared error to the divergence.")
    compress: Compression = option("dependencies", "How the target of align=pca is computed.")
    detach: bool = option(True, "Stop the gradient of what align=embedding imitates.")
    joint_batch: bool = option(False, "Align queries and documents as one batch.")
    align_width: AlignWidth = option(
        "cut", "What align=embedding compares: the dims of each cut, or all dims of its layer."
    )
    align_output: bool = option(
        False, "Align vectors as the model gives them: of length one if its last module says so."
    )
    align_temperature: float = option(1.0, "Divides the dims inside the softmax.", above=0)
    align_reduction: AlignReduction = option(
        "mean", "Mean over the rows; batch: divided by their number once more, as released."
    )

    # Weights of the terms.
    weights: Weights = option("log", "Weight of layer l below the last, L; docs/recipes.md.")
    prefix_weights: PrefixWeights = option(
        "uniform", "Weight of dim k: 1, or the root of k / H over its rank, the full width first."
    )
    align_by_layer: bool = option(True, "Apply the weights of layers to alignment too.")
    average: bool = option(False, "Average over the cuts below the full model instead of summing.")
    share: float = option(1.0, "Weight of retrieval at the cuts below the full model.")
    align_weight: float = option(1.0, "Weight of alignment.")
    alpha: float = option(
        1.0, "Weight of retrieval; 1 - alpha is the weight of sia and pic.", most=1
    )

    # Token relations (SIA) and the chain of checkpoints (PIC) of MIPIC.
    sia: bool = option(False, "Train prefixes to keep the relations of a text's tokens (MIPIC).")
    pic: bool = option(False, "Train a chain of growing checkpoints (MIPIC).")
    sia_weight: float = option(1.0, "Weight of the token relations beside the chain.")
    pic_weight: float = option(1.0, "Weight of the chain beside the token relations.")
    relations: Mipic = option(
        "paper", "Attention and CKA, the full width detached; code: the mean CKA, both trained."
    )
    chain: Mipic = option(
        "paper", "GELU, both ends trained; code: ReLU, the deeper end detached, a mean over links."
    )
    full_checkpoints: bool = option(False, "Give every checkpoint of the chain the full width.")

    # What maps a shallow state to its embedding.
    exit_head: ExitHead = option("none", "Map of a shallow state: none, trained, or fitted.")
    freeze: bool = option(False, "Keep the encoder as it is, and train its exit heads alone.")


CHOICES = tuple(f.name for f in fields(Variant) if f.name not in ("name", "summary", "single_cut"))

# What rows share: those of Wang et al. 2024, and those that the full model's scores teach.
_WANG: dict[str, Any] = {
    "shallow": True, "prefixes": "one", "align": "pca", "align_reduction": "batch"
}  # fmt: skip
_BY_SCORES: dict[str, Any] = {
    "shallow": True, "align": "score", "teacher": "whole", "add_mse": False, "weights": "uniform"
}  # fmt: skip
VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("plain", "The full model alone."),
        Variant(
            "separate",
            "One cut alone: the baseline of the other recipes.",
            prefixes="one",
            single_cut=True,
        ),
        Variant("mrl", "The last layer at every prefix.", prefixes="many"),
        Variant(
            "2dmse-v1",
            "Each step one shallow layer and one prefix, taught by the last layer.",
            shallow=True,
            prefixes="many",
            full_dim=True,
            draw="step",
            align="embedding",
            teacher="depth",
            add_mse=False,
            weights="uniform",
        ),
        Variant(
            "2dmse", "Every layer at one prefix, aligned with its compressed full width.", **_WANG
        ),
        Variant("full-dim", "2dmse, and shallow layers at full width.", full_dim=True, **_WANG),
        Variant("dims", "2dmse at every prefix.", **_WANG | {"prefixes": "many"}),
        Variant(
            "score",
            "2dmse, but prefixes imitate the scores of their layer's full width.",
            shallow=True,
            prefixes="one",
            align="score",
        ),
        Variant(
            "fixed-doc",
            "2dmse with shallow queries against documents of the last layer.",
            documents="last",
            **_WANG,
        ),
        Variant(
            "starbucks",
            "A few growing cuts, each taught by the scores of the full model.",
            staircase=True,
            **_BY_SCORES,
        ),
        Variant(
            "ese",
            "2dmse without a term for the full model.",
            whole=False,
            shallow=True,
            prefixes="one",
            align="pca",
        ),
        Variant(
            "2dmse-st",
            "2dmse-v1 of sentence-transformers: a drawn shallow layer, and a prefix for each exit.",
            whole=False,
            shallow=True,
            prefixes="many",
            full_dim=True,
            embeddings=True,
            draw="exit",
            align="embedding",
            add_mse=False,
            joint_batch=True,
            align_width="full",
            align_output=True,
            align_temperature=0.3,
            weights="uniform",
            align_by_layer=False,
            align_weight=0.3,
        ),
        Variant(
            "starbucks-sts",
            "starbucks as its code trains sentences: cuts imitate the last layer's dims.",
            shallow=True,
            staircase=True,
            align="embedding",
            add_mse=False,
            detach=False,
            joint_batch=True,
            weights="uniform",
            align_weight=0.3,
        ),
        Variant(
            "mipic",
            "mrl, with token relations kept in prefixes and a chain of growing checkpoints.",
            prefixes="many",
            alpha=0.4,
            sia=True,
            pic=True,
        ),
        Variant(
            "ml-embed",
            "Layers 1, 2, 4, 8, 16, … at every prefix; own negatives in a softmax of their own.",
            shallow=True,
            layer_choice="sparse",
            prefixes="many",
            full_dim=True,
            own_softmax=True,
            weights="mean",
            prefix_weights="root-rank",
        ),
        Variant(
            "elastic",
            "Every layer at every prefix, taught by the full model's scores, through exit heads.",
            prefixes="many",
            full_dim=True,
            average=True,
            share=0.3,
            align_weight=0.3,
            exit_head="linear",
            **_BY_SCORES,
        ),
        Variant(
            "exits",
            "The encoder stays as it is; its fitted exits alone are trained, taught by its scores.",
            whole=False,
            prefixes="many",
            full_dim=True,
            documents="last",
            average=True,
            exit_head="fitted",
            freeze=True,
            **_BY_SCORES,
        ),
    )
}

# What public code computes where it differs from the paper's formula, as fields of the row.
# Sources, formula by formula: docs/recipes.md.
_TEVATRON: dict[str, Any] = {"weights": "log-position", "compress": "randomised"}
FAITHFUL: dict[str, dict[str, Any]] = {
    "2dmse-v1": {"detach": False, "joint_batch": True, "align_width": "full"},  # AnglE 0.3.4
    "2dmse": _TEVATRON,
    "full-dim": _TEVATRON,
    "dims": _TEVATRON,
    "fixed-doc": _TEVATRON,
    "score": {"weights": "log-position", "align_reduction": "batch"},
    "mipic": {  # notebooks that are published as MIPIC's; nobody vouches for it
        "alpha": 0.6,
        "sia_weight": 0.4,
        "pic_weight": 0.2,
        "relations": "code",
        "chain": "code",
    },
    "ese": {  # AnglE
        "whole": True,
        "embeddings": True,
        "joint_batch": True,
        "weights": "log-position-mean",
        "compress": "randomised",
    },
}
