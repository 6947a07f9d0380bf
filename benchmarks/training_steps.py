"""What a training step costs: the loss alone, and whole steps against a peer.

    python benchmarks/training_steps.py loss --rounds 3 > benchmarks/training_loss_HOST.md
    python benchmarks/training_steps.py objective > benchmarks/training_objective_HOST.md
    python benchmarks/training_steps.py cache > benchmarks/training_cache_HOST.md
    python benchmarks/training_steps.py same --corpus PAIRS --dtype bf16

`loss` runs each case in a process of its own, so that its peak memory is its own. `objective` times
the loss and its gradient on given vectors, which is what differs between recipes. `cache` trains on
a large batch in a process that may not have more than 4 GiB. `same` takes the losses that are the
peer's step for step, in turn, and their peak memory, each in a process of its own. Needs the extras
quickstart and compare.
"""

import argparse
import json
import resource
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from accelerate.utils import send_to_device
from common import machine
from timing import (
    in_turn,
    peak_memory,
    process,
    quartiled,
    ratios,
    table_head,
    table_row,
    timed,
)
from torch import Tensor

from m2dr.core.settings import TrainSettings, read_settings
from m2dr.tasks.training.recipe import recipe_of
from m2dr.tasks.training.train import Setup, prepare
from m2dr.training.losses import contrastive
from m2dr.training.objective import EncodedBatch, Objective
from m2dr.training.scores import prefix_scores
from m2dr.training.terms import StepTerms

LAYERS, WIDTH, DIMS = 12, 768, (32, 64, 128, 256, 512, 768)
DOCUMENTS = 8  # of each query: one positive, seven negatives
CORPUS = "pydocs:stdlib"


def ours(queries: Tensor, documents: Tensor, excluded: Tensor) -> Tensor:
    """Every prefix from one product, block by block."""
    return contrastive(prefix_scores(queries, documents, DIMS, "dot"), excluded, 1.0).sum()


def naive(queries: Tensor, documents: Tensor, excluded: Tensor) -> Tensor:
    """The product of every coordinate, [L, B, N, H], summed up to each prefix."""
    products = queries[:, :, None, :] * documents[:, None, :, :]
    total = queries.new_zeros(())
    for dim in DIMS:
        total = total + contrastive(products[..., :dim].sum(dim=-1), excluded, 1.0).sum()
    return total


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"ours": ours, "naive": naive}


def run_loss(way: str, batch: int, times: int) -> dict[str, float]:
    """Seconds of forward and backward, and bytes at the peak above what was there before."""
    torch.manual_seed(13)
    queries = torch.randn(LAYERS, batch, WIDTH, requires_grad=True)
    documents = torch.randn(LAYERS, DOCUMENTS * batch, WIDTH, requires_grad=True)
    excluded = torch.zeros(batch, DOCUMENTS * batch, dtype=torch.bool)
    small = (queries[:, :2].detach().requires_grad_(), documents[:, :4].detach())
    WAYS[way](*small, excluded[:2, :4]).backward()  # the libraries' own memory is not the loss's
    before = peak_memory()
    losses = []

    def step() -> None:
        queries.grad = documents.grad = None
        loss = WAYS[way](queries, documents, excluded)
        loss.backward()
        losses.append(float(loss.detach()))

    found = [timed(step) for _ in range(times)]
    peak = peak_memory() - before
    return {"seconds": median(found), "mib": peak / (1 << 20), "loss": losses[-1]}


def loss_table(times: int, batches: Sequence[int]) -> None:
    """Each case in a process of its own, in turn."""
    print(
        f"# The loss at {LAYERS} layers × {len(DIMS)} dims of {WIDTH}\n\n{machine()}. Forward and"
    )
    print(f"backward of the contrastive loss at every cut; the median of {times} processes each.\n")
    costs = ("seconds", "peak MiB", "times slower", "times the memory")
    print(table_head("queries", "documents", "way", *costs))
    for batch in batches:
        rounds = [{way: _alone(way, batch) for way in WAYS} for _ in range(times)]
        best = {way: _medians([one[way] for one in rounds]) for way in WAYS}
        for way, found in best.items():
            times_more = (f"{found[key] / best['ours'][key]:.1f}" for key in ("seconds", "mib"))
            seconds, mib = f"{found['seconds']:.3f}", f"{found['mib']:,.0f}"
            print(table_row(batch, DOCUMENTS * batch, way, seconds, mib, *times_more))
        same = abs(best["ours"]["loss"] - best["naive"]["loss"]) / abs(best["naive"]["loss"])
        print(f"\nLosses differ by {same:.1e} of themselves at {batch} queries.\n")


def _alone(way: str, batch: int) -> dict[str, float]:
    found: dict[str, float] = json.loads(process(__file__, "one", "--way", way, "--batch", batch))
    return found


def _medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: median(row[key] for row in rows) for key in rows[0]}


@dataclass(frozen=True)
class Step:
    """A training step in two parts, which are timed together or apart."""

    make: Callable[[], Any]  # texts to tokens, on the device
    run: Callable[[Any], Tensor]  # forward, backward, optimiser; the loss
    tokens: int  # of the batch, padding not counted

    def __call__(self) -> Tensor:
        """The whole of it."""
        return self.run(self.make())


@dataclass(frozen=True)
class Setting:
    """What all candidates have in common."""

    batch: int
    lengths: tuple[int, int]  # tokens of a query and of a document, at most
    backbone: str = "minilm"
    corpus: str = CORPUS
    device: str = "cpu"
    bf16: bool = False

    def mixed(self) -> AbstractContextManager[object]:
        """Products in bf16, weights in fp32, as transformers' Trainer has it."""
        kind = torch.device(self.device).type
        return torch.autocast(kind, torch.bfloat16) if self.bf16 else nullcontext()

    def prepared(self, **changes: object) -> Setup:
        """What `m2dr train` prepares."""
        table = {
            "corpus": self.corpus,
            "backbone": self.backbone,
            "batch_size": self.batch,
            "dropout": 0.0,
            "evaluate_steps": 0,
            "query_length": self.lengths[0],
            "document_length": self.lengths[1],
            "device": self.device,
            **changes,
        }
        return prepare(read_settings(TrainSettings, None, (), table), Path("nowhere"))


RECIPES = ("plain", "mrl", "full-dim", "dims", "elastic", "ese", "mipic", "2dmse-v1", "2dmse-st")
PLAIN_PEER = "sentence-transformers, plain"
LAYERS_PEER = "sentence-transformers, AdaptiveLayerLoss(n_layers_per_step=-1)"
MRL_PEER = "sentence-transformers, MatryoshkaLoss"
BOTH_PEER = "sentence-transformers, Matryoshka2dLoss"
EVERY_PEER = "sentence-transformers, Matryoshka2dLoss of all layers"
SAME = {"plain": PLAIN_PEER, "mrl": MRL_PEER, "2dmse-st": BOTH_PEER}  # step for step


def tokens_of(setup: Setup, chosen: Sequence[Any]) -> int:
    """Tokens of a batch, padding not counted."""
    texts: Any = setup.batch(chosen)["texts"]
    return sum(int(mask.sum()) for _, mask, _ in texts)


def m2dr_step(variant: str, setting: Setting) -> Step:
    """One whole step: texts to tokens, forward, backward, optimiser."""
    setup = setting.prepared(variant=variant)
    module = setup.module.train()
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-6, fused=True)
    chosen = [setup.examples[i] for i in range(setting.batch)]

    def make() -> dict[str, Any]:
        made: dict[str, Any] = send_to_device(setup.batch(chosen), setting.device)
        return made

    def run(made: dict[str, Any]) -> Tensor:
        with setting.mixed():
            loss, _ = module(**made)
        return _stepped(loss, optimiser)

    return Step(make, run, tokens_of(setup, chosen))


def _stepped(loss: Tensor, optimiser: torch.optim.Optimizer) -> Tensor:
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
    return loss.detach()


def peer_steps(setting: Setting) -> dict[str, Callable[[], Step]]:
    """The same batch through sentence-transformers' losses; each is made when it is called."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import (
        AdaptiveLayerLoss,
        Matryoshka2dLoss,
        MatryoshkaLoss,
        MultipleNegativesRankingLoss,
    )

    from m2dr.model.hub import find_folder

    setup = setting.prepared()
    chosen = [setup.examples[i] for i in range(setting.batch)]
    tokens = tokens_of(setup, chosen)
    sides = (
        ([group.query.text for group in chosen], setting.lengths[0]),
        ([group.positive.content for group in chosen], setting.lengths[1]),
    )
    width = setup.encoder.card.width
    dims = [width, *(dim for dim in (256, 128, 64, 32, 16, 8) if dim < width)]

    def made(wrap: Callable[[SentenceTransformer, torch.nn.Module], torch.nn.Module]) -> Step:
        model = SentenceTransformer(str(find_folder(setting.backbone)), device=setting.device)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        loss = wrap(model, MultipleNegativesRankingLoss(model)).train()
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
        labels = torch.zeros(setting.batch, device=setting.device)

        def make() -> list[dict[str, Any]]:
            features = []
            for texts, length in sides:
                model.max_seq_length = length
                features.append(send_to_device(model.preprocess(texts), setting.device))
            return features

        def run(features: list[dict[str, Any]]) -> Tensor:
            with setting.mixed():  # a loss may add to the features
                value = loss([dict(side) for side in features], labels)
            return _stepped(value, optimiser)

        return Step(make, run, tokens)

    return {
        PLAIN_PEER: lambda: made(lambda _, loss: loss),
        MRL_PEER: lambda: made(
            lambda model, loss: MatryoshkaLoss(model, loss, matryoshka_dims=dims)
        ),
        BOTH_PEER: lambda: made(
            lambda model, loss: Matryoshka2dLoss(model, loss, matryoshka_dims=dims)
        ),
        EVERY_PEER: lambda: made(
            lambda model, loss: Matryoshka2dLoss(
                model, loss, matryoshka_dims=dims, n_layers_per_step=-1, n_dims_per_step=-1
            )
        ),
        LAYERS_PEER: lambda: made(
            lambda model, loss: AdaptiveLayerLoss(model, loss, n_layers_per_step=-1)
        ),
    }


def candidate(name: str, setting: Setting) -> Step:
    """A recipe's step, or a peer's."""
    return m2dr_step(name, setting) if name in RECIPES else peer_steps(setting)[name]()


def same_table(rounds: int, setting: Setting) -> None:
    """Seconds of the peer over m2dr's in each round, and the peaks of processes of their own."""
    words = ["--corpus", setting.corpus, "--batch", str(setting.batch)]
    words += ["--dtype", "bf16"] if setting.bf16 else []
    print(
        f"{machine()}{', autocast to bf16' if setting.bf16 else ''}. MiniLM, {setting.batch} pairs"
    )
    print(
        f"of up to {setting.lengths[0]} tokens; median of {rounds} rounds, ratios within a round.\n"
    )
    head = ("recipe", "peer", "seconds", "its seconds", "times slower", "MiB", "its MiB")
    print(table_head(*head))
    for ours, theirs in SAME.items():
        found = in_turn({n: candidate(n, setting) for n in (ours, theirs)}, rounds, warm_up=2)
        peaks = [float(process(__file__, "peak", *words, "--way", n)) for n in (ours, theirs)]
        cells = [f"{median(found[name]):.3f}" for name in (ours, theirs)]
        slower = quartiled(ratios(found[theirs], found[ours]))
        print(table_row(ours, theirs, *cells, slower, *(f"{peak:,.0f}" for peak in peaks)))


def objective_table(rounds: int, batch: int) -> None:
    """The loss and its gradient on vectors [L, B, H] of MiniLM's shape."""
    print(f"# The loss of each recipe, {batch} pairs, 6 layers of 384\n\n{machine()}. Forward and")
    print(f"backward on given vectors; median of {rounds}, with quartiles.\n")
    print(table_head("recipe", "milliseconds"))
    for name in RECIPES:
        objective = recipe_of(read_settings(TrainSettings, None, (), {"variant": name})).objective()
        asked, shape = objective.at(0), (len(objective.at(0).layers), batch, 384)
        torch.manual_seed(13)
        queries, documents = (torch.randn(shape, requires_grad=True) for _ in range(2))
        sides = EncodedBatch(queries, documents, torch.zeros(batch, batch, dtype=torch.bool))
        step = partial(_backward, objective, asked, sides)
        print(table_row(name, quartiled([1000 * timed(step) for _ in range(rounds)], 1)))


def _backward(objective: Objective, asked: StepTerms, sides: EncodedBatch) -> None:
    objective(asked, sides)[0].backward()


def cache_table(batch: int, steps: int) -> None:
    """The loss curve of a large batch under a memory limit, and without caching and limit."""
    curves = {}
    for name, words in (
        ("cached, 4 GiB", ["--held", 4096, "--limit", 4 << 30]),
        ("all at once, no limit", []),
    ):
        asked = ["--batch", batch, "--steps", steps, *words]
        curves[name] = json.loads(process(__file__, "curve", *asked))
    print(f"# {batch} pairs in one batch\n\n{machine()}. full-dim on MiniLM, no dropout, documents")
    print("of up to 128 tokens.\n")
    print(table_head("way", "peak resident GiB", "loss by step"))
    for name, found in curves.items():
        losses = " ".join(f"{loss:.6f}" for loss in found["losses"])
        print(table_row(name, f"{found['gib']:.2f}", losses))
    a, b = (found["losses"] for found in curves.values())
    print(f"\nLargest difference: {max(abs(x - y) / y for x, y in zip(a, b, strict=True)):.1e}")


def curve(batch: int, steps: int, held: int, limit: int) -> None:
    """Train some steps; prints losses and peak memory."""
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    setup = Setting(batch, (64, 128)).prepared(variant="full-dim", gradient_cache=held)
    optimiser = torch.optim.AdamW(setup.module.train().parameters(), lr=1e-4, fused=True)
    losses = []
    for step in range(steps):
        chosen = [setup.examples[step * batch + i] for i in range(batch)]
        loss, _ = setup.module(**setup.batch(chosen), step=step)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
    peak = peak_memory() / (1 << 30)
    print(json.dumps({"losses": losses, "gib": peak}))


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    modes = ["loss", "objective", "cache", "same", "one", "curve", "peak"]
    parser.add_argument("what", choices=modes)
    parser.add_argument("--way", default="ours")
    parser.add_argument("--corpus", default=CORPUS)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--held", type=int, default=0)
    parser.add_argument("--limit", type=int, default=0)
    a = parser.parse_args()
    setting = Setting(a.batch or 32, (64, 64), corpus=a.corpus, bf16=a.dtype == "bf16")
    if a.what == "same":
        same_table(a.rounds, setting)
    elif a.what == "peak":
        step = candidate(a.way, setting)
        for _ in range(4):
            step()
        print(peak_memory() / (1 << 20))
    elif a.what == "one":
        print(json.dumps(run_loss(a.way, a.batch, times=3 if a.batch < 100 else 1)))
    elif a.what == "curve":
        curve(a.batch, a.steps, a.held, a.limit)
    elif a.what == "loss":
        loss_table(a.rounds, [a.batch] if a.batch else [32, 128])
    elif a.what == "objective":
        objective_table(3 * a.rounds, a.batch or 32)
    else:
        cache_table(a.batch or 512, a.steps)


if __name__ == "__main__":
    main()
