"""The measured results of a model as its card shows them: Markdown, and metadata of the hub."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import EvalResult

from m2dr.core.records import Cut

_TASKS = {  # by a measure: the tag of the hub and the name in MTEB
    **dict.fromkeys(("Spearman", "Pearson"), ("sentence-similarity", "STS")),
    **dict.fromkeys(("Accuracy", "F1"), ("text-classification", "Classification")),
    **dict.fromkeys(
        (f"{by}-{what}" for by in ("cosine", "dot") for what in ("AP", "Accuracy", "F1")),
        ("text-classification", "PairClassification"),
    ),
}
_RETRIEVAL = ("text-retrieval", "Retrieval")
_METRICS = {  # of ir_measures, as MTEB calls them
    **{"nDCG": "ndcg", "RR": "mrr", "AP": "map", "R": "recall", "P": "precision"},
    **{"Success": "hit_rate", "Spearman": "cosine_spearman", "Pearson": "cosine_pearson"},
}


@dataclass(frozen=True)
class MeasuredGrid:
    """The measures of a model on one corpus, as its card shows them."""

    corpus: str  # its name
    dataset: str  # its id on the hub, or its name
    split: str
    size: str  # such as "323 queries"
    cells: Mapping[Cut, Mapping[str, float]]  # cut -> measure -> mean; all have the same measures
    notes: tuple[str, ...] = ()
    command: str = ""  # that measured it; empty where it is not known
    image: str = ""  # path of a figure in the model folder; empty without one

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the measures."""
        return tuple(next(iter(self.cells.values())))


def hub_dataset(corpus: str) -> str | None:
    """Return the id on the hub of a corpus as it is named to m2dr, None where it is not known.

    >>> hub_dataset("irds:beir/scifact/train"), hub_dataset("data/nfcorpus")
    ('BeIR/scifact', None)
    """
    beir = re.match(r"irds:beir/([\w-]+)", corpus)
    remote = re.match(r"hf:(\w[\w.-]*/\w[\w.-]*)", corpus)
    if beir:
        return f"BeIR/{beir[1]}"
    if re.match(r"irds:msmarco-passage\b", corpus):
        return "microsoft/ms_marco"
    return remote[1] if remote and not Path(remote[1]).exists() else None


def eval_results(grids: Sequence[MeasuredGrid]) -> list[EvalResult]:
    """Return the measures of the largest cut on each corpus and split, in the form of MTEB."""
    found, places = [], set()
    for grid in grids:
        if (grid.dataset, grid.split) in places:  # documents of another layer, for example
            continue
        places.add((grid.dataset, grid.split))
        cut = max(grid.cells)
        for measure in grid.measures:
            tag, task = _TASKS.get(measure, _RETRIEVAL)
            found.append(
                EvalResult(
                    task_type=tag,
                    task_name=task,
                    dataset_type=grid.dataset,
                    dataset_name=grid.corpus,
                    dataset_split=grid.split or None,
                    metric_type=metric_name(measure),
                    metric_name=f"{measure} of {cut}",
                    metric_value=round(grid.cells[cut][measure], 5),
                )
            )
    return found


def metric_name(measure: str) -> str:
    """Return a measure as MTEB names it.

    >>> metric_name("nDCG@10"), metric_name("RR(rel=2)@10"), metric_name("cosine-AP")
    ('ndcg_at_10', 'mrr_at_10', 'cosine_ap')
    """
    found = re.fullmatch(r"(\w+)(\(.*\))?(?:@(\d+))?", measure)
    if found and found[1] in _METRICS:
        return _METRICS[found[1]] + (f"_at_{found[3]}" if found[3] else "")
    return re.sub(r"\W+", "_", measure.lower()).strip("_")


def results_section(grids: Sequence[MeasuredGrid]) -> str:
    """Return the section on what was measured: a table per measure, layers down and dims across."""
    said = ["## Results"]
    for grid in grids:
        said.append(f"### {escaped(f'{grid.corpus} {grid.split}'.strip())}: {grid.size}")
        for measure in grid.measures:
            said.append(
                f"{escaped(measure)} by layers of queries, in rows, and dims, in columns; the best "
                "in bold:"
            )
            said.append(_table(grid, measure))
        if grid.image:
            said.append(f"![{escaped(grid.measures[0])} over layers and dims]({grid.image})")
        if grid.notes:
            said.append("\n".join(f"- {escaped(note)}" for note in grid.notes))
        if grid.command:
            line = " ".join(grid.command.split())
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", line)), default=0))
            said.append(f"Measured with:\n\n{fence}bash\n{line}\n{fence}")
    return "".join(f"\n{part}\n" for part in said) if grids else ""


def _table(grid: MeasuredGrid, measure: str) -> str:
    """Return one measure as a Markdown table."""
    layers, dims = (sorted({cut[i] for cut in map(_pair, grid.cells)}) for i in (0, 1))
    values = {_pair(cut): held[measure] for cut, held in grid.cells.items()}
    top = max(values.values())
    rows = [["layers", *map(str, dims)], ["---"] * (len(dims) + 1)]
    for layer in layers:
        found = [values.get((layer, dim)) for dim in dims]
        shown = ["" if v is None else f"**{v:.4f}**" if v == top else f"{v:.4f}" for v in found]
        rows.append([str(layer), *shown])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _pair(cut: Cut) -> tuple[int, int]:
    return cut.layer, cut.dim


def escaped(text: str) -> str:
    """Return a text of a user on one line, without meaning in Markdown or HTML."""
    line = " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]<>#|!~&])", r"\\\1", line)
