"""Whether a model trained for one cut alone beats a fitted one there, by budget of training.

    python benchmarks/recipes.py retrieval --data DATA --out RESULTS-200 --seeds 1 --steps 200 \\
        --only fit, --only separate --only plain
    python benchmarks/separate.py "fit, 24,000 texts" RESULTS-48/retrieval RESULTS-200/retrieval
    python benchmarks/separate.py --square "fit, 24,000 texts" RESULTS-200/retrieval

Each row is a cut; each column is a folder of results, in which the separate model of that cut is
compared with a fitted one: the difference of nDCG@10 x 100, mean over the tasks, with the 95 %
interval of a paired bootstrap over the queries of each task. `--square` has a row per layer and a
column per dim, of one folder.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from recipes import ALL_CUTS, result_file

DRAWS, CONFIDENCE = 10_000, 95


def differences(folder: Path, fitted: str, cut: str, seed: int) -> list[np.ndarray] | None:
    """By task, what the fitted model has more than the separate one, query by query."""
    paths = [result_file(folder, fitted, seed), result_file(folder, f"separate {cut}", seed)]
    if not all(path.exists() for path in paths):
        return None
    ours, theirs = (json.loads(path.read_text(encoding="utf-8"))["queries"][cut] for path in paths)
    return [
        100 * np.array([ours[task][query] - theirs[task][query] for query in ours[task]])
        for task in ours
    ]


def interval(tasks: list[np.ndarray]) -> tuple[float, float, float]:
    """Mean over tasks and its 95 % interval, queries drawn anew within each task."""
    generator = np.random.default_rng(13)
    means = np.zeros(DRAWS)
    for values in tasks:
        drawn = generator.integers(0, len(values), (DRAWS, len(values)))
        means += values[drawn].mean(axis=1) / len(tasks)
    low, high = np.percentile(means, [50 - CONFIDENCE / 2, 50 + CONFIDENCE / 2])
    return float(np.mean([values.mean() for values in tasks])), float(low), float(high)


def steps_of(folder: Path, cut: str, seed: int) -> int | None:
    """How long the separate model of a cut was trained."""
    path = result_file(folder, f"separate {cut}", seed)
    if not path.exists():
        return None
    steps: int = json.loads(path.read_text(encoding="utf-8"))["settings"]["steps"]
    return steps


def cell(folder: Path, fitted: str, cut: str, seed: int) -> str:
    """The difference at a cut with its interval, or a dash where it was not measured."""
    tasks = differences(folder, fitted, cut, seed)
    return "–" if tasks is None else "{:+.1f} ({:+.1f} to {:+.1f})".format(*interval(tasks))


def square(folder: Path, fitted: str, seed: int) -> str:
    """A row per layer and a column per dim."""
    layers, dims = (
        [*dict.fromkeys(part)] for part in zip(*(c.split("D") for c in ALL_CUTS), strict=True)
    )
    lines = [f"| {fitted}, less separate | {' | '.join(dims)} |", "|---" * (len(dims) + 1) + "|"]
    for layer in layers:
        cells = (cell(folder, fitted, f"{layer}D{dim}", seed) for dim in dims)
        lines.append(f"| layer {layer[1:]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fitted", help="Name of the fitted recipe, as recipes.py has it.")
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--square", action="store_true", help="Layers by dims, of one folder.")
    arguments = parser.parse_args()
    if arguments.square:
        print(square(arguments.folders[0], arguments.fitted, arguments.seed))
        return
    heads = []
    for folder in arguments.folders:
        steps = {steps_of(folder, cut, arguments.seed) for cut in ALL_CUTS} - {None}
        heads.append(f"{'/'.join(map(str, sorted(steps)))} steps")
    print(f"| {arguments.fitted} less separate | " + " | ".join(heads) + " |")
    print("|---" * (len(heads) + 1) + "|")
    for cut in ALL_CUTS:
        if not any(steps_of(folder, cut, arguments.seed) for folder in arguments.folders):
            continue
        cells = [cell(one, arguments.fitted, cut, arguments.seed) for one in arguments.folders]
        print(f"| {cut} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
