"""What layers and recipes take: 2DMSE, figure 4a; ESE, figures 6a and 10; MIPIC, table 5.

python scripts/reproduce/speed.py --data DATA --out OUT [--small] [--only encoding,training]

A time says something about one machine: published ratios are compared, not seconds. Each is
measured several times, in shuffled order, and the standard error is over these times.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median, variance

import small
import torch
from accelerate.utils import send_to_device
from claims import EXPERIMENTS, MODELS
from run import CLOSE, ERRORS, NOT_SEEN, SEEN, end, names, parser, scale_of, tell
from training import Scale, settings_of, write

from m2dr.core.errors import UserError, nearest
from m2dr.core.settings import TrainSettings
from m2dr.data.sentences import open_scored_pairs
from m2dr.model.checkpoint import open_model, read_card
from m2dr.tasks.evaluating.costs import document_speeds
from m2dr.tasks.query import QueryEncoders, plan_of_model
from m2dr.tasks.training.train import prepare

ROUNDS = 5
TASKS7 = EXPERIMENTS["v1_grid"].evaluation.tasks
STEPS = 4
PAPERS = {
    "layers": "Li et al. 2024, arXiv:2402.14776v1, figure 4a and section 5.3; Li et al., ESE, "
    "arXiv:2402.14776, figures 6a and 10, in words",
    "recipes": "Huy et al., MIPIC, arXiv:2604.24374, table 5",
}


@dataclass(frozen=True)
class Ratio:
    """How much faster one thing is than another: what was published, and what was found."""

    says: str
    source: str
    expected: float | None
    found: float
    error: float  # standard error of the ratio found
    verdict: str  # of being above 1


def ratio(
    says: str, source: str, expected: float | None, fast: Sequence[float], slow: Sequence[float]
) -> Ratio:
    """The ratio of two mean rates, which are measured several times each.

    >>> ratio("twice", "arXiv", 2.0, [4.0, 4.0], [2.0, 2.0]).found
    2.0
    """
    found = fmean(fast) / fmean(slow)
    shares = [variance(rates) / len(rates) / fmean(rates) ** 2 for rates in (fast, slow)]
    error = found * math.sqrt(sum(shares))
    close = abs(found - 1) <= ERRORS * error
    verdict = CLOSE if close else SEEN if found > 1 else NOT_SEEN
    return Ratio(says, source, expected, found, error, verdict)


def encoding(scale: Scale) -> list[Ratio]:
    """Sentences per second through half of the layers against all of them."""
    model = settings_of(MODELS["2dmse-v1"], scale).backbone if not scale.small else "minilm"
    last = read_card(model).layers
    texts = _sentences(scale)
    opened, how = QueryEncoders(), ("torch", scale.device, "auto")
    encoders = {n: opened.of(plan_of_model(open_model(model), n), *how) for n in (last, last // 2)}
    rates: dict[int, list[float]] = {last // 2: [], last: []}
    for _ in range(ROUNDS):
        for layer, rate in document_speeds(encoders, texts, 1).items():
            rates[layer].append(rate)
    says = f"layer {last // 2} encodes faster than layer {last}"
    return [ratio(says, PAPERS["layers"], 1.46, rates[last // 2], rates[last])]


def _sentences(scale: Scale) -> list[str]:
    """The sentences of the STS sets that are here."""
    if scale.small:
        paths = [small.sts_task("stsb-test", scale.data, scale.samples)]
    else:
        folder = scale.data / "sts"
        paths = [str(path) for task in TASKS7 if (path := folder / f"{task}.tsv").exists()]
    if not paths:
        raise UserError(
            f"Sentences are read from {', '.join(TASKS7)} of {scale.data / 'sts'}, of which none "
            "is there; put one there as TASK.tsv: score, sentence1, sentence2."
        )
    pairs = [pair for path in paths for pair in open_scored_pairs(path).pairs]
    return [text for pair in pairs for text in (pair.first, pair.second)]


def _step_seconds(settings: TrainSettings) -> float:
    """Median seconds of a few real steps, optimiser included; the first one is not counted."""
    setup = prepare(settings, Path())
    device = next(setup.module.parameters()).device
    trained = [weights for weights in setup.module.train().parameters() if weights.requires_grad]
    optimiser, seconds = torch.optim.AdamW(trained, lr=settings.learning_rate, fused=True), []
    for step in range(STEPS):
        begun = time.perf_counter()
        places = range(step * setup.plan.batch, (step + 1) * setup.plan.batch)
        batch = setup.batch([setup.examples[place] for place in places])
        with torch.autocast(device.type, torch.bfloat16, enabled=setup.plan.bf16):
            loss, _ = setup.module(**send_to_device(batch, device), step=step)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        seconds.append(time.perf_counter() - begun)
    return median(seconds[1:])


def training(scale: Scale) -> list[Ratio]:
    """Steps per second of MRL, ESE and MIPIC on the same sentences."""
    models = {
        name: MODELS[model]
        for name, model in (("MRL", "mipic-mrl"), ("ESE", "mipic-ese"), ("MIPIC", "mipic"))
    }
    published = {"MRL": 7.61, "ESE": 5.24, "MIPIC": 2.88}
    rates: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(2 if scale.small else ROUNDS):
        for name, model in models.items():
            rates[name].append(1 / _step_seconds(settings_of(model, scale)))
    return [
        ratio(
            f"{fast} trains faster than {slow}",
            PAPERS["recipes"],
            published[fast] / published[slow],
            rates[fast],
            rates[slow],
        )
        for fast, slow in (("MRL", "ESE"), ("ESE", "MIPIC"), ("MRL", "MIPIC"))
    ]


PARTS: Mapping[str, Callable[[Scale], list[Ratio]]] = {"encoding": encoding, "training": training}


def run(words: Sequence[str] | None = None) -> None:
    """Time what was asked; print it, and write OUT/speed.json.

    Raises:
        UserError: a part is unknown, or what it reads is not there.
    """
    given = parser("Time layers and recipes.").parse_args(words)
    scale, asked = scale_of(given), names(given.only)
    for name in asked:
        if name not in PARTS:
            raise UserError(f"There is no part {name!r}. {nearest(name, PARTS)}")
    found: list[Ratio] = []
    for name in asked or PARTS:
        for one in PARTS[name](scale):
            expected = "–" if one.expected is None else f"{one.expected:.2f}"
            tell(f"{one.says} ({one.source})")
            tell(
                f"   expected {expected}, found {one.found:.2f}, {one.verdict} "
                f"(standard error {one.error:.2f})"
            )
            found.append(one)
    write(scale.out / "speed.json", {"ratios": [asdict(one) for one in found]})


def main(words: Sequence[str] | None = None) -> None:
    """Do what the command line (or `words`) asks."""
    try:
        run(words)
    except Exception as error:  # told in a sentence where a person can mend it
        end(error)


if __name__ == "__main__":
    main()
