"""Models and evaluations that several scripts share, so that one --out trains each once."""

from claims import Evaluation, Model

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


def separate(cut: str, small_cut: str = "") -> Model:
    """The model that is trained for one cut alone."""
    name = f"separate-{cut}"
    return Model(name, "retrieval-paper-separate", cut=cut, small_cut=small_cut, published="BERT-S")


# Sentences. Each paper trains its baselines with its own settings.
V1 = Model("2dmse-v1", "2dmse-v1-nli")
ESE = Model("ese", "ese-bge-base-nli")
MIPIC = Model("mipic", "mipic-bert-base")
MIPIC_MRL = ("variant=mrl", "alpha=1.0", "checkpoints=[]")

MSMARCO = Evaluation(
    "msmarco",
    "RR@10",
    corpus="msmarco",
    split="dev.small",
    small=("msmarco",),
    even=True,
    published="msmarco",
)
BEIR = Evaluation(
    "beir13",
    "nDCG@10",
    suite="beir13",
    small=("nfcorpus", "scifact"),
    even=True,
    published="beir13",
)
STS = ("sts12-test", "sts13-test", "sts14-test", "sts15-test", "sts16-test")
STS7 = Evaluation(
    "sts7",
    "Spearman",
    unit=100.0,
    tasks=(*STS, "stsb-test", "sick-test"),
    small=("sts12-test", "sts13-test", "stsb-test", "sick-test"),
)
STS7_SHARES = Evaluation("sts7-even", "Spearman", tasks=STS7.tasks, small=STS7.small, even=True)
STS12 = Evaluation("sts12", "Spearman", unit=100.0, tasks=STS[:1], small=STS[:1])
