"""Models and evaluations that several scripts share, so that one --out trains each once."""

from dataclasses import replace

from claims import Evaluation, Model

from m2dr.tasks.evaluate import SUITES

# Plain training as the papers do it: no exits are fitted behind it, which m2dr does otherwise.
CUT_AS_IT_COMES = ("variant=plain", "refit=false")

# Half the layers of a cut, and of the diagonal of Starbucks half the dims too.
SMALL_CUTS = {"L2D32": "L1D16"}
SMALL_SEPARATE = ("L2D32", "L2D128", "L2D768", "L6D128", "L6D768", "L10D512", "L12D128")

# The retrieval paper: configs/retrieval-paper-*.toml.
PLAIN = Model("plain", "retrieval-paper-plain", published="BERT")
MRL = Model("mrl", "retrieval-paper-mrl", published="MSE")
TWO_D = Model("2dmse", "retrieval-paper-2dmse", published="2DMSE")
FULL_DIM = Model("full-dim", "retrieval-paper-full-dim", published="FULL-DIM")
SCORE = Model("score", "retrieval-paper-score", published="SCORE")
FIXED_DOC = Model("fixed-doc", "retrieval-paper-fixed-doc", published="fixed-doc")
DIMS = Model("dims", "retrieval-paper-dims", published="+DIMS")
DIMS_8 = Model(
    "dims-8-32-128-512", "retrieval-paper-dims-8-32-128-512", published="+DIMS8,32,128,512"
)
DIMS_32 = Model("dims-32-128", "retrieval-paper-dims-32-128", published="+DIMS32,128")
DIMS_FULL = Model(
    "dims-full-dim", "retrieval-paper-dims-full-dim", published="+DIMS8,16,32,64,128,512+FULL-DIM"
)


def separate(cut: str) -> Model:
    """The model that is trained for one cut alone; some cuts are tried at small scale too."""
    return Model(
        f"separate-{cut}",
        "retrieval-paper-separate",
        cut=cut,
        small_cut=SMALL_CUTS.get(cut, ""),
        paper_only=cut not in SMALL_SEPARATE,
        published="BERT-S",
    )


# Sentences. Each paper trains its baselines with its own settings.
V1 = Model("2dmse-v1", "2dmse-v1-nli", published="2DMSE")
ESE = Model("ese", "ese-bge-base-nli")
MIPIC = Model("mipic", "mipic-bert-base")

MSMARCO = Evaluation(
    "msmarco",
    "RR@10",
    tasks=("msmarco",),
    small=("msmarco",),
    split="dev.small",
    even=True,
    published="msmarco",
)
BEIR = Evaluation(
    "beir13",
    "nDCG@10",
    tasks=tuple(f"beir/{name}" for name in SUITES["beir13"]),
    small=("nfcorpus", "scifact"),
    even=True,
    published="beir13",
)
STS = ("sts12-test", "sts13-test", "sts14-test", "sts15-test", "sts16-test")
TASKS7 = (*STS, "stsb-test", "sick-test")
STS7 = Evaluation(
    "sts7",
    "Spearman",
    unit=100.0,
    kind="sts",
    tasks=TASKS7,
    small=("sts12-test", "sts13-test", "stsb-test", "sick-test"),
)
STS7_SHARES = replace(STS7, name="sts7-even", unit=1.0, even=True)
