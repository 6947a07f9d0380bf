"""Train, measure and compare; print and write what was found.

    python scripts/reproduce/run.py [NAME ...] --data DATA --out OUT [--small] [--only MODEL,MODEL]
        [--seeds 1,2,3] [--steps N] [--set KEY=VALUE ...] [--backbone NAME]

Each NAME is an experiment of experiments.json, which has the tables and claims of one or more
published tables and figures; without one all are run, on models trained once. A table is printed
as in the paper, each cell as published and as found here; with several seeds the mean ± the
standard deviation. At the scale of the paper the files of configs/ are taken as they are. With
--small the settings shrink to minutes on two cores, and only the signs of the claims are expected.
A sign that is not seen is reported, and no failure: the exit code is 0 when all of it ran, and 2
when something was missing, which is told. What is done is not done again: after an end, or with
more data, run again.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, variance
from typing import Any, NoReturn

from claims import EXPERIMENTS, Claim, Evaluation, Experiment, Model, checkable, chosen, grids
from errors import error_of_difference
from measuring import Found, Measured, measured, places
from tables import Results, text_of
from training import Scale, Trained, settings_of, trained, write

from m2dr.core.errors import Interrupted, UserError, nearest, sentence_of

SEEN, NOT_SEEN, CLOSE = "seen", "not seen", "too close to tell"
NOISE = 0.005  # where no standard error is known: what another seed may change, at small scale
ERRORS = 2.0  # standard errors within which a difference says nothing


@dataclass(frozen=True)
class Outcome:
    """One claim, and what was found. All numbers in the unit of the evaluation."""

    claim: Claim
    cuts: tuple[str, str]
    expected: tuple[float | None, float | None]
    found: tuple[float, float]
    error: float | None  # standard error of the difference found
    verdict: str

    @property
    def wanted(self) -> float | None:
        """The difference that was published."""
        above, below = self.expected
        return None if above is None or below is None else above - below

    @property
    def difference(self) -> float:
        """The difference found."""
        return self.found[0] - self.found[1]

    @property
    def drift(self) -> float | None:
        """How far the two are apart."""
        return None if self.wanted is None else self.difference - self.wanted


@dataclass(frozen=True)
class Report:
    """What a script found, and what it went on without."""

    outcomes: tuple[Outcome, ...]
    left: int = 0  # claims that were not tried
    missing: tuple[str, ...] = ()  # a sentence each


def tell(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def judge(claim: Claim, measures: Results, evaluation: Evaluation, small: bool) -> Outcome:
    """Look at the two cells of a claim: their means over seeds, whose spread is error."""
    cuts = (claim.above.at(small), claim.below.at(small))
    sides, measure = pairs_of(claim, measures), claim.measure or evaluation.measure
    each = [
        tuple(one.value(cut, measure, claim.on) for one, cut in zip(pair, cuts, strict=True))
        for pair in sides
    ]
    found = fmean(above for above, _ in each), fmean(below for _, below in each)
    errors = [
        error_of_difference((above, cuts[0]), (below, cuts[1]), measure, claim.on)
        for above, below in sides
    ]
    squares = [error**2 for error in errors if error is not None]
    apart = found[0] - found[1]
    spread = variance([above - below for above, below in each]) / len(each) if each[1:] else 0.0
    error = math.sqrt(fmean(squares) + spread) if squares else None
    noise = ERRORS * error if error is not None else NOISE * small
    verdict = CLOSE if abs(apart) <= noise else SEEN if apart > 0 else NOT_SEEN
    unit = evaluation.unit
    return Outcome(
        claim,
        cuts,
        (claim.above.value, claim.below.value),
        (found[0] * unit, found[1] * unit),
        None if error is None else error * unit,
        verdict,
    )


def pairs_of(claim: Claim, measures: Results) -> list[tuple[Measured, Measured]]:
    """Both models of a claim, seed by seed; a backbone as it comes has no seeds."""
    above, below = measures[claim.above.model], measures[claim.below.model]
    count = max(len(above), len(below))
    return [(above[i % len(above)], below[i % len(below)]) for i in range(count)]


def table(outcomes: Sequence[Outcome], small: bool) -> str:
    """Expected, found and drift of every claim.

    At small scale another model was measured on other data, so that the cells of the two columns
    are not of one kind: only the sign of the difference is compared.
    """
    lines = [f"{'':42}{'expected':>10}{'found':>10}{'drift':>10}"]
    for number, one in enumerate(outcomes, start=1):
        about = ", ".join(word for word in (one.claim.on, one.claim.measure) if word)
        says = f"{one.claim.says}, {about}" if about else one.claim.says
        lines.append(f"{number}. {says} ({one.claim.source})")
        cells = zip(
            (one.claim.above, one.claim.below), one.cuts, one.expected, one.found, strict=True
        )
        for cell, cut, expected, found in cells:
            name = f"{cell}, here {cut}" if cut != cell.cut else str(cell)
            drift = None if small or expected is None else found - expected
            lines.append(_line(name, (expected, found), drift))
        end = f"   {one.verdict}"
        if one.error is not None:
            end += f" (standard error {one.error:.4f})"
        signed = [_signed(one.wanted), _signed(one.difference), _signed(one.drift)]
        lines.append(f"   {'difference':39}{''.join(f'{word:>10}' for word in signed)}{end}")
    return "\n".join(lines)


def _line(name: str, values: tuple[float | None, float], drift: float | None) -> str:
    words = ["–" if value is None else f"{value:.4f}" for value in values]
    return f"   {name:39}" + "".join(f"{word:>10}" for word in (*words, _signed(drift)))


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.4f}"


def reproduce(experiment: Experiment, scale: Scale, only: tuple[str, ...] = ()) -> Report:
    """Train, measure and compare; print it, and write OUT/NAME.json.

    What is missing is told, and the rest goes on without it.

    Raises:
        UserError: there is nothing to measure on, or no model could be trained.
    """
    begun = time.monotonic()
    models = chosen(experiment, only, scale.small)
    tell(f"{experiment.name}: {experiment.title}{' (small scale)' if scale.small else ''}")
    made, found, missing = _measured(experiment, models, scale)
    measured_ones = tuple(model for model in models if model.name in found)
    claims = [
        claim
        for claim in checkable(experiment, measured_ones, scale.small)
        if _has_cells(claim, found, experiment.evaluation, scale.small)
    ]
    outcomes = tuple(judge(claim, found, experiment.evaluation, scale.small) for claim in claims)
    seconds = time.monotonic() - begun
    for each in experiment.tables:
        if text := text_of(each, experiment, found, scale.small):
            tell(f"{text}\n")
    if outcomes:
        tell(table(outcomes, scale.small))
    for model in () if scale.small else measured_ones:
        tell_grid(model, experiment.evaluation, found[model.name][0])
    left = len(experiment.claims) - len(claims)
    for sentence in missing:
        tell(f"Missing: {sentence}")
    tell(f"{summary(outcomes, left)}; {seconds:.0f} s")
    _write(experiment, scale, outcomes, made, found, seconds, missing)
    return Report(outcomes, left, missing)


def _has_cells(claim: Claim, found: Results, evaluation: Evaluation, small: bool) -> bool:
    """Whether all was measured that a claim is about."""
    return all(
        one.holds(cell.at(small), claim.measure or evaluation.measure, claim.on)
        for cell in (claim.above, claim.below)
        for one in found[cell.model]
    )


def of_seeds(model: Model, scale: Scale) -> list[Model]:
    """A model of each seed, or the model alone."""
    seeds = () if model.raw else scale.seeds
    return [
        replace(model, name=f"{model.name}-seed{n}", changes=(*model.changes, f"seed={n}"))
        for n in seeds
    ] or [model]


def _measured(
    experiment: Experiment, models: Sequence[Model], scale: Scale
) -> tuple[dict[str, list[Trained]], dict[str, list[Measured]], tuple[str, ...]]:
    """Each model that can be trained, measured on all that is here; and what is missing."""
    refusals: dict[str, None] = {}
    able = [model for model in models if not _refused(partial(settings_of, model, scale), refusals)]
    on: list[Found] = []
    _refused(lambda: on.append(places(experiment.evaluation, scale)), refusals)
    if not able or not on:
        raise UserError(" ".join(refusals))
    refusals |= dict.fromkeys([on[0].missing] if on[0].missing else [])
    if scale.small:
        tell(
            "  from the built-in backbone, its last two layers drawn anew, which training improves"
        )
    made: dict[str, list[Trained]] = {}
    found: dict[str, list[Measured]] = {}

    def do(name: str, model: Model) -> None:
        one = trained(model, scale)
        values = measured(model, one.path, experiment.evaluation, scale, on[0].places)
        made.setdefault(name, []).append(one)
        found.setdefault(name, []).append(values)
        tell(_times(model.name, one, values))

    for model in able:
        for each in of_seeds(model, scale):
            _refused(partial(do, model.name, each), refusals)
    if not found:
        raise UserError(" ".join(refusals))
    return made, found, tuple(refusals)


def _refused(step: Callable[[], object], refusals: dict[str, None]) -> bool:
    """Whether a step was refused; the sentence is kept."""
    try:
        step()
    except Interrupted:
        raise
    except UserError as error:
        refusals[str(error)] = None
        return True
    return False


def tell_grid(model: Model, evaluation: Evaluation, found: Measured) -> None:
    """How far a whole grid is from the published one, where one is held."""
    grid = grids(evaluation.published).get(model.published, {})
    cuts = next(iter(found.values.values()))[evaluation.measure]
    drifts = {
        cut: evaluation.unit * found.value(cut, evaluation.measure) - value
        for cut, value in grid.items()
        if cut in cuts and value is not None
    }
    if drifts:
        mean = fmean(abs(drift) for drift in drifts.values())
        worst = max(drifts, key=lambda cut: abs(drifts[cut]))
        tell(
            f"  {model.name}: {len(drifts)} published cells, drift {mean:.4f} in the mean, "
            f"{drifts[worst]:+.4f} at most, at {worst}"
        )


def _times(name: str, made: Trained, found: Measured) -> str:
    training = f"trained in {made.seconds:.0f} s" if made.seconds else "as it comes"
    training += "" if made.now or not made.seconds else " before"
    return f"  {name}: {training}, measured in {found.seconds:.0f} s" + (
        "" if found.now else " before"
    )


def summary(outcomes: Sequence[Outcome], left: int = 0) -> str:
    """How many claims ended how.

    >>> summary([], left=2)
    'Of 0 published signs 0 seen, 0 not seen, 0 too close to tell; 2 not tried'
    """
    counts = [f"{sum(o.verdict == v for o in outcomes)} {v}" for v in (SEEN, NOT_SEEN, CLOSE)]
    tried = f"Of {len(outcomes)} published signs {', '.join(counts)}"
    return f"{tried}; {left} not tried" if left else tried


def _write(
    experiment: Experiment,
    scale: Scale,
    outcomes: Sequence[Outcome],
    made: Mapping[str, Sequence[Trained]],
    found: Results,
    seconds: float,
    missing: Sequence[str],
) -> None:
    models = {
        name: {"training": [*map(asdict, made[name])], "measured": [*map(asdict, seeds)]}
        for name, seeds in found.items()
    }
    claims = [
        {**asdict(o), "difference": o.difference, "wanted": o.wanted, "drift": o.drift}
        for o in outcomes
    ]
    head = {"name": experiment.name, "title": experiment.title, "small": scale.small}
    rest: dict[str, Any] = {
        "measure": experiment.evaluation.measure,
        "unit": experiment.evaluation.unit,
    }
    rest |= {"seconds": seconds, "missing": missing}
    table = {**head, **rest, "claims": claims, "models": models}
    write(scale.out / f"{experiment.name}.json", table)


def parser(description: str) -> argparse.ArgumentParser:
    """The options that all scripts have."""
    made = argparse.ArgumentParser(description=description)
    data = Path(os.environ.get("M2DR_DATA", "data"))
    made.add_argument("--data", type=Path, default=data, help="folder of collections and tasks")
    made.add_argument("--out", type=Path, default=Path("reproduced"), help="models and results")
    made.add_argument("--small", action="store_true", help="minutes on two cores; signs alone")
    made.add_argument("--only", default="", help="names, joined by commas")
    made.add_argument(
        "--steps", type=int, default=0, help="of each training; 16 at small scale, else the file's"
    )
    made.add_argument("--batch", type=int, default=32, help="queries per step, at small scale")
    made.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    return made


def scale_of(given: argparse.Namespace) -> Scale:
    """What was asked; models and results of the two scales never share a folder.

    Raises:
        UserError: there is no such folder of data.
    """
    if not given.data.is_dir():
        raise UserError(f"There is no folder of data {given.data}; name it with --data.")
    out = given.out / ("small" if given.small else "paper")
    asked = vars(given)
    seeds = tuple(int(seed) for seed in names(asked.get("seeds", "")))
    return Scale(
        given.small, given.data, out, given.steps, given.batch, given.device,
        tuple(asked.get("set", ())), seeds,
    )  # fmt: skip


def names(words: str) -> tuple[str, ...]:
    """Names joined by commas."""
    return tuple(word for word in words.split(",") if word)


def end(error: Exception) -> NoReturn:
    """Say in a sentence what a person can fix, and end; any other error goes on."""
    sentence = sentence_of(error)
    if not sentence:
        raise error
    sys.stderr.write(f"Error: {sentence}\n")
    sys.exit(1 if isinstance(error, Interrupted) else 2)


def run(words: Sequence[str] | None = None) -> int:
    """Run the experiments that were asked for; return the number of those that lacked something."""
    options = parser("Reproduce the published tables and figures that docs/papers.md names.")
    options.add_argument("names", nargs="*", help=f"of {', '.join(EXPERIMENTS)}; all by default")
    options.add_argument("--seeds", default="", help="several trainings of each model: 1,2,3")
    options.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every model"
    )
    options.add_argument("--backbone", default="", help="an id or a folder, of every model")
    given = options.parse_args(words)
    given.set += [f"backbone={given.backbone}"] * bool(given.backbone)
    scale, begun, lines, failed = scale_of(given), time.monotonic(), list[str](), 0
    for name in given.names:
        if name not in EXPERIMENTS:
            raise UserError(f"There is no experiment {name!r}. {nearest(name, EXPERIMENTS)}")
    outcomes: list[Outcome] = []
    every = [name for name, one in EXPERIMENTS.items() if not (scale.small and one.paper_only)]
    for name in given.names or every:
        start = time.monotonic()
        try:
            report = reproduce(EXPERIMENTS[name], scale, names(given.only))
        except Interrupted:
            raise
        except UserError as error:
            if len(given.names) == 1:
                raise
            failed += 1
            lines.append(f"{name}: {error}")
            continue
        finally:
            tell("")
        outcomes += report.outcomes
        failed += bool(report.missing)
        found = summary(report.outcomes, report.left)
        lines.append(f"{name}: {found}; {time.monotonic() - start:.0f} s")
        lines += [f"  missing: {sentence}" for sentence in report.missing]
    if len(given.names) != 1:
        tell("\n".join(lines))
        tell(f"All: {summary(outcomes)}; {time.monotonic() - begun:.0f} s")
    return failed


def main(words: Sequence[str] | None = None) -> None:
    """Exit code 0 when all of it ran, whatever signs were seen."""
    try:
        sys.exit(2 if run(words) else 0)
    except Exception as error:  # told in a sentence where a person can mend it
        end(error)


if __name__ == "__main__":
    main()
