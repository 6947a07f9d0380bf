"""Tables and figures of what `recipes.py` measured.

    python benchmarks/recipes_table.py RESULTS/retrieval benchmarks/recipes_retrieval_DATE
    python benchmarks/recipes_table.py RESULTS/sentences benchmarks/recipes_sentences_DATE
    python benchmarks/recipes_table.py RESULTS/alignment benchmarks/recipes_alignment_DATE
    python benchmarks/recipes_table.py RESULTS/mipic benchmarks/recipes_mipic_DATE
    python benchmarks/recipes_table.py RESULTS/budgets benchmarks/recipes_budgets_DATE

writes DATE.tables.md, and DATE.png of the first two. Every figure is of the JSON files of RESULTS;
nothing is typed.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from timing import table_head, table_row

LAYERS, DIMS = range(1, 7), (8, 16, 32, 64, 128, 256, 384)
DIAGONAL = ("L1D16", "L2D32", "L3D64", "L4D128", "L5D256")
WHOLE = "L6D384"


@dataclass(frozen=True)
class Results:
    """name -> seed -> cut -> mean over the tasks, in points of 100."""

    cells: dict[str, dict[int, dict[str, float]]]
    tasks: tuple[str, ...]

    def mean(self, name: str, cuts: Sequence[str]) -> str:
        """The mean over some cuts, and its spread over seeds."""
        return told([fmean(cells[cut] for cut in cuts) for cells in self.cells[name].values()])


def read(folder: Path, task: str = "") -> Results:
    """All JSON files of a folder, of all tasks or one."""
    cells: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
    tasks: tuple[str, ...] = ()
    for path in sorted(folder.glob("*-*.json")):
        table = json.loads(path.read_text(encoding="utf-8"))
        settings = table["settings"]
        means = {
            cut: 100 * (values[task] if task else fmean(values.values()))
            for cut, values in table["cells"].items()
        }
        cells[settings["name"]][settings["seed"]] = means
        tasks = tuple(next(iter(table["cells"].values())))
    return Results(dict(cells), tasks)


def told(values: Sequence[float]) -> str:
    """Mean and spread over seeds."""
    if not values:
        return "–"
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{spread}"


def gap(results: Results, name: str, cuts: Sequence[str]) -> str:
    """Mean difference to the models trained for one cut alone, of each seed that has them all."""
    found = []
    for seed, cells in results.cells[name].items():
        alone = [
            results.cells.get("plain" if cut == WHOLE else f"separate {cut}", {}).get(seed, {})
            for cut in cuts
        ]
        if all(alone):
            pairs = zip(cuts, alone, strict=True)
            found.append(fmean(cells[cut] - bar[cut] for cut, bar in pairs))
    return told(found)


def grid(layers: Iterable[int], dims: Iterable[int] = DIMS) -> list[str]:
    """All cuts of some layers and dims."""
    return [f"L{layer}D{dim}" for layer in layers for dim in dims]


def means_table(results: Results, columns: Mapping[str, Sequence[str]]) -> list[str]:
    """One row per recipe: the mean over the cuts of each column."""
    lines = [table_head("recipe", "seeds", *columns)]
    for name, seeds in results.cells.items():
        means = (results.mean(name, cuts) for cuts in columns.values())
        lines.append(table_row(name, len(seeds), *means))
    return lines


def retrieval_table(results: Results) -> list[str]:
    """One row per recipe: gaps to the separate models, and means of the grid."""
    gaps = {"gap to separate, diagonal": DIAGONAL, "gap to plain, whole": [WHOLE]}
    means = {"whole": [WHOLE], "layers 1–3, all dims": grid((1, 2, 3)), "all 42 cuts": grid(LAYERS)}
    lines = [table_head("recipe", "seeds", *gaps, *means)]
    for name, seeds in results.cells.items():
        if not name.startswith("separate"):
            cells = [gap(results, name, cuts) for cuts in gaps.values()]
            cells += [results.mean(name, cuts) for cuts in means.values()]
            lines.append(table_row(name, len(seeds), *cells))
    return lines


def diagonal_table(results: Results) -> list[str]:
    """Each cut of the diagonal: the separate model, and every recipe there."""
    lines = [table_head("recipe", *DIAGONAL, WHOLE)]
    alone = {cut: f"separate {cut}" for cut in DIAGONAL} | {WHOLE: "plain"}
    known = ((cut, name) for cut, name in alone.items() if name in results.cells)
    lines.append(table_row("**separate**", *(results.mean(name, [cut]) for cut, name in known)))
    for name in results.cells:
        if not name.startswith("separate"):
            lines.append(table_row(name, *(results.mean(name, [cut]) for cut in alone)))
    return lines


def sentence_table(results: Results) -> list[str]:
    """One row per recipe: the last layer and the shallow ones, at full width and short prefixes."""
    columns = {
        "whole": [WHOLE],
        "last layer, dims 8–64": grid([6], (8, 16, 32, 64)),
        "layers 1–5, full width": grid(range(1, 6), [384]),
        "layers 1–5, all dims": grid(range(1, 6)),
        "all 42 cuts": grid(LAYERS),
    }
    return means_table(results, columns)


def cuts_table(results: Results, cuts: Sequence[str]) -> list[str]:
    """One row per recipe: some cuts, and the mean of the grid."""
    measured = next(iter(next(iter(results.cells.values())).values()))
    every = [cut for cut in measured if not cut.startswith("L0")]
    return means_table(results, {cut: [cut] for cut in cuts} | {f"all {len(every)} cuts": every})


BUDGETS = ("L1D128", "L2D32", "L2D128", "L4D128", "L6D32", "L6D128", WHOLE)
KINDS = {" + index": "Exits of an index", " + fit": "Exits of a fit", "": "As it was trained"}
CUTS = {"alignment": ("L6D128", WHOLE), "mipic": ("L6D16", "L6D64", WHOLE, "L3D384")}
CLAIMS = {
    "retrieval": (
        ("mrl without shallow training collapses there: L2D128", "mrl", "2dmse", "L2D128", -1),
        ("full-dim beats 2dmse at shallow full width: L2D384", "full-dim", "2dmse", "L2D384", 1),
        ("full-dim costs 2dmse nothing at its prefix: L2D128", "full-dim", "2dmse", "L2D128", 0),
        ("dims is worse than 2dmse at shallow L2D128", "dims", "2dmse", "L2D128", -1),
        ("dims is better than 2dmse at short L6D16", "dims", "2dmse", "L6D16", 1),
        ("fixed-doc beats separate where trained", "fixed-doc", "separate L4D128", "L4D128", 1),
        ("fixed-doc falls behind 2dmse at untrained L2D384", "fixed-doc", "2dmse", "L2D384", -1),
        ("2dmse costs the whole encoder a little", "2dmse", "plain", WHOLE, -1),
        ("exit heads lift full-dim at L1D384", "full-dim + heads", "full-dim", "L1D384", 1),
        ("elastic beats full-dim at L1D16", "elastic", "full-dim", "L1D16", 1),
    ),
    "sentences": (
        ("2dmse-v1 beats mrl at shallow L3D384", "2dmse-v1", "mrl", "L3D384", 1),
        ("2dmse-v1 keeps the whole", "2dmse-v1", "mrl", WHOLE, 1),
        ("its alignment helps the whole", "2dmse-v1", "2dmse-v1, no alignment", WHOLE, 1),
        ("its last layer helps the whole", "2dmse-v1", "2dmse-v1, no last layer", WHOLE, 1),
        ("ese beats mrl at shallow L3D384", "ese", "mrl", "L3D384", 1),
        ("its PCA of dependencies beats PCA", "ese", "ese, PCA of embeddings", "L3D128", 1),
        ("and max-k, L3D128", "ese", "ese, max-k", "L3D128", 1),
        ("and no compression, L3D384", "ese", "ese, no compression", "L3D384", 1),
        ("log weights beat uniform ones at L1D128", "ese", "ese, uniform weights", "L1D128", 1),
        ("mipic beats mrl at L6D16", "mipic", "mrl", "L6D16", 1),
        ("mipic beats ese at L6D16", "mipic", "ese", "L6D16", 1),
        ("SIA helps at L6D16", "mipic", "mipic, no SIA", "L6D16", 1),
        ("PIC helps at L6D16", "mipic", "mipic, no PIC", "L6D16", 1),
        ("growing checkpoints beat full", "mipic", "mipic, full checkpoints", "L6D16", 1),
    ),
}  # fmt: skip


def budgets_tables(folder: Path, tasks: tuple[str, ...]) -> list[list[str]]:
    """Each collection by where its exits come from, and beside plain."""
    results = read(folder)
    cut = {
        name: cells for name, cells in results.cells.items() if name.split()[0] in ("plain", "mrl")
    }
    last = [name for name in next(iter(cut.values()))[13] if name.startswith("L6")]
    at_the_end = [
        ["## Dims that are cut off at the last layer, mean of the collections"],
        cuts_table(Results(cut, tasks), last),
    ]
    parts: list[list[str]] = []
    if not {"L6D128", WHOLE} <= {*last}:
        return at_the_end  # of --dims
    for kind, title in KINDS.items():
        for task in tasks:
            results = read(folder, task)
            cells = {name: results.cells[name + kind] for name in named(results, kind)}
            parts += [[f"## {title}: {task}"], cuts_table(Results(cells, tasks), BUDGETS)]
    for task in tasks:
        parts += [[f"## Against plain, each with an index of its own: {task}"]]
        parts += [pairs_table(folder, task, " + index", "plain")]
    return [*parts, *at_the_end]


def named(results: Results, kind: str) -> list[str]:
    """Recipes that were measured with exits of a kind."""
    names = [name.removesuffix(kind) for name in results.cells if name.endswith(kind)]
    return sorted(name for name in names if " + " not in name)


def pairs_table(folder: Path, task: str, kind: str, base: str) -> list[str]:
    """Points above a recipe ± half of the 95 % interval over queries, in the mean of seeds."""
    asked: dict[str, dict[str, dict[int, dict[str, float]]]] = {}
    for path in sorted(folder.glob(f"*{kind.replace(' ', '_')}-*.json")):
        table = json.loads(path.read_text(encoding="utf-8"))
        name = table["settings"]["name"].removesuffix(kind)
        for cut in BUDGETS:
            seeds = asked.setdefault(name, {}).setdefault(cut, {})
            seeds[table["settings"]["seed"]] = table["queries"][cut][task]
    lines = [table_head("recipe", *BUDGETS)]
    for name in sorted({*asked} - {base}):
        cells = []
        for cut in BUDGETS:
            ours, theirs = asked[name][cut], asked[base][cut]
            found = [
                100 * fmean(ours[seed][query] - theirs[seed][query] for seed in ours)
                for query in next(iter(ours.values()))
            ]
            half = 1.96 * stdev(found) / len(found) ** 0.5
            told_ = f"{fmean(found):+.1f} ± {half:.1f}"
            cells.append(f"**{told_}**" if abs(fmean(found)) > half else told_)
        lines.append(table_row(name, *cells))
    return lines


def claims(results: Results, which: str) -> list[str]:
    """The sign of each published effect, seed by seed."""
    lines = [table_head("published effect", "here, points by seed", "seen")]
    for text, ours, theirs, cut, sign in CLAIMS[which]:
        if ours not in results.cells or theirs not in results.cells:
            continue
        seeds = sorted({*results.cells[ours]} & {*results.cells[theirs]})
        found = [results.cells[ours][s][cut] - results.cells[theirs][s][cut] for s in seeds]
        if not found:
            continue
        if sign == 0:
            seen = "yes" if abs(fmean(found)) < 1 else "no"
        else:
            agree = sum(sign * value > 0 for value in found)
            seen = "yes" if agree == len(found) else "no" if agree == 0 else "mixed"
        values = ", ".join(f"{value:+.1f}" for value in found)
        lines.append(table_row(text, values, seen))
    return lines


def figure(results: Results, names: Sequence[str], label: str, path: Path) -> None:
    """Quality over dims, a panel per layer, a line per recipe."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
    shown, axes = plt.subplots(2, 3, figsize=(11, 6.5), sharex=True, sharey=True)
    for layer, axis in zip(LAYERS, axes.flat, strict=True):
        for place, name in enumerate(names):
            cuts = grid([layer])
            seeds = results.cells[name].values()
            values = [fmean(cells[cut] for cells in seeds) for cut in cuts]
            style = {"marker": "osD^vPX"[place % 7], "color": colours[place % 7]}
            axis.plot(range(len(DIMS)), values, label=name, markersize=4, linewidth=1.4, **style)
        cut = next((cut for cut in DIAGONAL if cut.startswith(f"L{layer}D")), None)
        if cut and (alone := results.cells.get(f"separate {cut}")):
            height = fmean(cells[cut] for cells in alone.values())
            place = DIMS.index(int(cut.split("D")[1]))
            axis.plot(
                place, height, "*", color="#999999", markersize=13, label="separate", zorder=1
            )
        axis.set_title(f"layer {layer}", fontsize=10)
        axis.set_xticks(range(len(DIMS)), [str(dim) for dim in DIMS], fontsize=8)
        axis.grid(alpha=0.3)
    for axis in axes[:, 0]:
        axis.set_ylabel(label)
    for axis in axes[-1]:
        axis.set_xlabel("dim")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    shown.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False, fontsize=9)
    shown.tight_layout(rect=(0, 0.05, 1, 1))
    shown.savefig(path, dpi=150)


def main() -> None:
    """Read the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    results, which = read(arguments.folder), arguments.folder.name
    wanted: Sequence[str] = ()
    label = "Spearman × 100" if which in ("sentences", "mipic") else "nDCG@10 × 100"
    if which == "budgets":
        parts = budgets_tables(arguments.folder, results.tasks)
        parts.append(claims(results, "retrieval"))
    elif which in CUTS:
        parts = [cuts_table(results, CUTS[which])]
    elif which == "retrieval":
        wanted = ("untrained", "plain", "full-dim", "dims", "starbucks", "elastic")
        parts = [retrieval_table(results), diagonal_table(results), claims(results, which)]
    else:
        wanted = ("untrained", "plain", "mrl", "2dmse-v1", "ese", "mipic")
        parts = [sentence_table(results), claims(results, which)]
    names = [name for name in wanted if name in results.cells]
    if names:
        figure(results, names, label, arguments.out.with_suffix(".png"))
    over = "" if which == "budgets" else f", mean over {', '.join(results.tasks)}"
    head = f"{label}{over}; mean ± standard deviation over seeds."
    text = "\n\n".join([head, *("\n".join(part) for part in parts)]) + "\n"
    arguments.out.with_suffix(".tables.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
