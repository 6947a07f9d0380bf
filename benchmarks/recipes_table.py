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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

LAYERS, DIMS = range(1, 7), (8, 16, 32, 64, 128, 256, 384)
DIAGONAL = ("L1D16", "L2D32", "L3D64", "L4D128", "L5D256")
WHOLE, TABLE = "L6D384", "L0D384"


@dataclass(frozen=True)
class Results:
    """name -> seed -> cut -> mean over the tasks, in points of 100."""

    cells: dict[str, dict[int, dict[str, float]]]
    tasks: tuple[str, ...]

    def seeds(self, name: str) -> list[int]:
        """Seeds of a recipe, in order."""
        return sorted(self.cells[name])

    def each(self, name: str, value: Callable[[dict[str, float], int], float]) -> list[float]:
        """A number of each seed."""
        return [value(self.cells[name][seed], seed) for seed in self.seeds(name)]


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


def bar(results: Results, cut: str, seed: int) -> float | None:
    """What the model trained for this cut alone reaches, with this seed or else in the mean."""
    held = results.cells.get("plain" if cut == WHOLE else f"separate {cut}", {})
    if seed in held:
        return held[seed].get(cut)
    return fmean(cells[cut] for cells in held.values()) if held else None


def gaps(results: Results, name: str, cuts: Sequence[str]) -> list[float]:
    """Mean difference to the separate models on some cuts, of each seed that has them all."""
    found = []
    for seed in results.seeds(name):
        bars = [bar(results, cut, seed) for cut in cuts]
        cells = results.cells[name][seed]
        if None not in bars and all(cut in cells for cut in cuts):
            pairs = zip(cuts, bars, strict=True)
            found.append(fmean(cells[cut] - (alone or 0.0) for cut, alone in pairs))
    return found


def mean_of(cuts: Sequence[str]) -> Callable[[dict[str, float], int], float]:
    """The mean over some cuts."""
    return lambda cells, _: fmean(cells[cut] for cut in cuts)


def retrieval_table(results: Results) -> list[str]:
    """One row per recipe: gaps to the separate models, and means of the grid."""
    lines = [
        "| recipe | seeds | gap to separate, diagonal | gap to plain, whole | whole | "
        "layer 0, 384 dims | layers 1–3, all dims | all 42 cuts |",
        "|---|---|---|---|---|---|---|---|",
    ]
    shallow = [f"L{layer}D{dim}" for layer in (1, 2, 3) for dim in DIMS]
    grid = [f"L{layer}D{dim}" for layer in LAYERS for dim in DIMS]
    for name in results.cells:
        if name.startswith("separate"):
            continue
        trained = name != "untrained"
        lines.append(
            f"| {name} | {len(results.seeds(name))} | "
            f"{told(gaps(results, name, DIAGONAL)) if trained else '–'} | "
            f"{told(gaps(results, name, [WHOLE])) if trained else '–'} | "
            f"{told(results.each(name, lambda cells, _: cells[WHOLE]))} | "
            f"{told([cells[TABLE] for cells in results.cells[name].values() if TABLE in cells])} | "
            f"{told(results.each(name, mean_of(shallow)))} | "
            f"{told(results.each(name, mean_of(grid)))} |"
        )
    return lines


def diagonal_table(results: Results) -> list[str]:
    """Each cut of the diagonal: the separate model, and every recipe there."""
    names = [name for name in results.cells if not name.startswith("separate")]
    lines = [
        "| recipe | " + " | ".join((*DIAGONAL, WHOLE)) + " |",
        "|---" * (len(DIAGONAL) + 2) + "|",
    ]
    alone = [results.cells.get(f"separate {cut}", {}) for cut in DIAGONAL]
    cells = [
        told([c[cut] for c in seeds.values()]) for seeds, cut in zip(alone, DIAGONAL, strict=True)
    ]
    whole = told(results.each("plain", lambda c, _: c[WHOLE])) if "plain" in results.cells else "–"
    lines.append(f"| **separate** | {' | '.join(cells)} | {whole} |")
    for name in names:
        cells = [told([c[cut] for c in results.cells[name].values()]) for cut in (*DIAGONAL, WHOLE)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def sentence_table(results: Results) -> list[str]:
    """One row per recipe: the last layer and the shallow ones, at full width and short prefixes."""
    lines = [
        "| recipe | seeds | whole | last layer, dims 8–64 | layers 1–5, full width | "
        "layers 1–5, all dims | all 42 cuts |",
        "|---|---|---|---|---|---|---|",
    ]
    short = [f"L6D{dim}" for dim in (8, 16, 32, 64)]
    wide = [f"L{layer}D384" for layer in range(1, 6)]
    shallow = [f"L{layer}D{dim}" for layer in range(1, 6) for dim in DIMS]
    grid = [f"L{layer}D{dim}" for layer in LAYERS for dim in DIMS]
    for name in results.cells:
        columns = [
            told(results.each(name, mean_of(c))) for c in ([WHOLE], short, wide, shallow, grid)
        ]
        lines.append(f"| {name} | {len(results.seeds(name))} | {' | '.join(columns)} |")
    return lines


def cuts_table(results: Results, cuts: Sequence[str]) -> list[str]:
    """One row per recipe: some cuts, and the mean of the grid."""
    measured = next(iter(next(iter(results.cells.values())).values()))
    grid = [cut for cut in measured if not cut.startswith("L0")]
    columns = [*([cut] for cut in cuts), grid]
    lines = [
        f"| recipe | seeds | {' | '.join(cuts)} | all {len(grid)} cuts |",
        "|---" * (len(cuts) + 3) + "|",
    ]
    for name in results.cells:
        values = [told(results.each(name, mean_of(column))) for column in columns]
        lines.append(f"| {name} | {len(results.seeds(name))} | {' | '.join(values)} |")
    return lines


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
    lines = [f"| recipe | {' | '.join(BUDGETS)} |", "|---" * (len(BUDGETS) + 1) + "|"]
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
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def claims(results: Results, which: str) -> list[str]:
    """The sign of each published effect, seed by seed."""
    lines = ["| published effect | here, points by seed | seen |", "|---|---|---|"]
    for text, ours, theirs, cut, sign in CLAIMS[which]:
        if ours not in results.cells or theirs not in results.cells:
            continue
        seeds = [s for s in results.seeds(ours) if s in results.cells[theirs]]
        found = [results.cells[ours][s][cut] - results.cells[theirs][s][cut] for s in seeds]
        if not found:
            continue
        if sign == 0:
            seen = "yes" if abs(fmean(found)) < 1 else "no"
        else:
            agree = sum(sign * value > 0 for value in found)
            seen = "yes" if agree == len(found) else "no" if agree == 0 else "mixed"
        values = ", ".join(f"{value:+.1f}" for value in found)
        lines.append(f"| {text} | {values} | {seen} |")
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
            cuts = [f"L{layer}D{dim}" for dim in DIMS]
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
        if any(name.startswith("fit") for name in results.cells):
            wanted = ("untrained", "plain", "fit, 4,000 texts", "plain, refitted", "exits")
        parts = [retrieval_table(results), diagonal_table(results), claims(results, which)]
    else:
        wanted = ("untrained", "plain", "mrl", "2dmse-v1", "ese", "mipic")
        if any(name.startswith("fit") for name in results.cells):
            wanted = ("untrained", "plain", "ese", "fit, 4,000 texts", "plain, refitted")
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
