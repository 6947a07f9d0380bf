"""The retrieval paper, figure 2: a separate model for each of the 48 cuts, on MS MARCO."""

from catalogue import MSMARCO, PLAIN, TWO_D, separate
from claims import DIMS, Claim, Experiment, Model
from common import main
from published import cell

FIGURE = "Wang et al. 2024, arXiv:2411.17299, figure 2"
LAYERS = (2, 4, 6, 8, 10, 12)


def alone(layer: int, dim: int) -> Model:
    """The model of one cut; at the whole it is the plain one."""
    cut = f"L{layer}D{dim}"
    return PLAIN if cut == "L12D768" else separate(cut)


MODELS = {(layer, dim): alone(layer, dim) for layer in LAYERS for dim in DIMS}

EXPERIMENT = Experiment(
    "retrieval_all_separate",
    "a separate model per cut against 2DMSE, RR@10 on MS MARCO",
    MSMARCO,
    (TWO_D, *MODELS.values()),
    tuple(
        Claim(
            "a separate model is better than the elastic one",
            cell(model.name, f"L{layer}D{dim}", "msmarco", model.published, model.small_cut),
            cell("2dmse", f"L{layer}D{dim}", "msmarco", "2DMSE", model.small_cut),
            FIGURE,
        )
        for (layer, dim), model in MODELS.items()
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
