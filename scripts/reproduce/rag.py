"""ESE, table 4: what is retrieved at each cut, and what a language model answers from it.

python scripts/reproduce/rag.py --data DATA --generator FOLDER [--small] [--queries N]
python scripts/reproduce/rag.py --data DATA --retrieval-only [--small]

DATA/beir/hotpotqa (or --corpus) is in the layout of BEIR; `metadata.answer` of its queries, a text
or a list, is the answer. --generator is any local causal language model (the paper's: LLaMA2-7B).
"""

import argparse
import json
import math
import random
import re
import string
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from claims import MODELS as TRAINED
from claims import Cell, Claim
from run import CLOSE, ERRORS, NOT_SEEN, SEEN, end, names, parser, scale_of, tell
from training import Scale, trained, write

from m2dr.core.errors import UserError
from m2dr.core.records import Run
from m2dr.core.requests import EvaluateRequest
from m2dr.data.loaders import open_dataset
from m2dr.evaluation.runs import read_run
from m2dr.model.checkpoint import read_card
from m2dr.tasks.evaluating.evaluate import evaluate

TextOf = Callable[[str], str]  # of a docid
Cells = Mapping[str, Mapping[str, Mapping[str, float]]]  # model -> cut -> measure -> share
TABLE = "Li et al., ESE, arXiv:2402.14776, table 4"
RAW, MRL, ESE = (TRAINED[name] for name in ("ese-raw", "ese-mrl", "ese"))
MODELS = (RAW, MRL, ESE)
DIMS = (64, 128, 256, 512, 768)
FOUND = (1, 5, 10)  # ranks within which an answer counts as found
MATCH, RECALL = "EM", "answer recall@1"
PUBLISHED = {  # ×100, by dim: RAW, MRL, ESE
    64: (29.86, 30.48, 32.28),
    128: (38.85, 38.90, 39.28),
    256: (42.05, 42.20, 42.50),
    512: (44.16, 44.20, 44.44),
    768: (45.06, 45.09, 45.31),
}
CLAIMS = tuple(
    Claim(
        f"ESE finds more to answer from than {other.name} at dim {dim}",
        Cell(ESE.name, f"L12D{dim}", values[2]),
        Cell(other.name, f"L12D{dim}", values[place]),
        TABLE,
    )
    for dim, values in PUBLISHED.items()
    for place, other in enumerate((RAW, MRL))
)


@dataclass(frozen=True)
class Question:
    """A query, and what answers it."""

    id: str
    text: str
    right: tuple[str, ...]


# ESE, table 3, with its placeholders.
PROMPT = """As an advanced QA system, your role is to provide accurate and straightforward answers \
based on the provided context. Utilize the following information to answer the given question, \
directly output the straightforward answer, and do not explain it:
Context: {context}.
Question: {question}.
Requirement: For ‘yes/no’ question, directly output ‘yes’ or ‘no’. For the ‘who’ question, \
directly output the people’s names. For the ‘when’ question, directly output the date or time, so \
on and so forth.
Output:"""


class Generator:
    """A causal language model from a folder, decoding greedily."""

    def __init__(self, folder: Path, tokens: int, device: str = "auto") -> None:
        """Load it.

        Args:
            folder: as transformers writes it; nothing is fetched, and no code of it is run.
            tokens: of an answer, at most.
            device: auto, cpu, cuda or cuda:N.

        Raises:
            UserError: the folder holds no causal language model.
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from m2dr.model.devices import choose_device

        self.tokens, self.device = tokens, choose_device(device)
        if not (folder / "config.json").exists():
            raise UserError(
                f"--generator takes a folder with a causal language model; {folder} has no "
                "config.json."
            )
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{folder} opens as no causal language model: {reason}") from error
        self.model = model.to(self.device).eval()
        self.room = int(self.model.config.max_position_embeddings) - tokens

    def answer(self, question: str, contexts: Sequence[str]) -> str:
        """The first line that the model writes."""
        import torch

        ids = self._ids(question, " ".join(contexts))
        batch = torch.tensor([ids], device=self.device)
        end = self.tokenizer.eos_token_id
        with torch.inference_mode():
            written = self.model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                max_new_tokens=self.tokens,
                do_sample=False,
                num_beams=1,
                pad_token_id=self.tokenizer.pad_token_id or end or 0,
            )
        text = self.tokenizer.decode(written[0, len(ids) :], skip_special_tokens=True)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[0] if lines else ""

    def _ids(self, question: str, context: str) -> list[int]:
        """The prompt; where it is too long the context loses its end, never the question."""
        before, after = PROMPT.format(context="\0", question=question).split("\0")
        encode = self.tokenizer.encode
        head = encode(before)
        middle, tail = (encode(text, add_special_tokens=False) for text in (context, after))
        left = max(self.room - len(head) - len(tail), 0)
        return [*head, *middle[:left], *tail][-self.room :]


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_MARKS = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Lower case, without punctuation and articles, one space between words.

    >>> normalised("The  U.S.-based, and a Band")
    'usbased and band'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_MARKS)).split())


def exact_match(answer: str, right: Sequence[str]) -> float:
    """1 where the answer is one of the right ones, once normalised; else 0.

    >>> exact_match("the Beatles!", ["Beatles"])
    1.0
    """
    return float(any(normalised(answer) == normalised(one) for one in right))


def f1(answer: str, right: Sequence[str]) -> float:
    """Harmonic mean of the shares of words in common, of the right answer that fits best.

    >>> f1("New York City", ["New York"])
    0.8
    """
    return max(_f1(normalised(answer).split(), normalised(one).split()) for one in right)


def _f1(found: Sequence[str], wanted: Sequence[str]) -> float:
    common = sum((Counter(found) & Counter(wanted)).values())
    if not common:
        return 0.0  # SQuAD 1.1, and HotpotQA's own script: also where both are empty
    precision, recall = common / len(found), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def holds(text: str, right: Sequence[str]) -> bool:
    """Whether a text has the words of a right answer in a row.

    >>> holds("They moved to New York in 1971.", ["new york"]), holds("Yorkshire", ["York"])
    (True, False)
    """
    words = f" {normalised(text)} "
    wanted = [normalised(one) for one in right]
    return any(one and f" {one} " in words for one in wanted)


def can_be_held(right: Sequence[str]) -> bool:
    """Whether a text could hold the answer: not of questions that are answered by yes or no."""
    return any(normalised(one) not in ("", "yes", "no", "noanswer") for one in right)


def questions(corpus: Path, split: str, count: int) -> list[Question]:
    """Judged queries that have an answer, some of them if `count` is above 0.

    Raises:
        UserError: there are none, or a line is not JSON.
    """
    judged = {judgement.query_id for judgement in open_dataset(str(corpus)).judgements(split)}
    path, found = corpus / "queries.jsonl", []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {number}: not JSON: {error.msg}.") from error
        answer = (row.get("metadata") or {}).get("answer") or row.get("answer") or []
        right = tuple(map(str, [answer] if isinstance(answer, str) else answer))
        if right and str(row["_id"]) in judged:
            found.append(Question(str(row["_id"]), str(row["text"]), right))
    if not found:
        raise UserError(
            f"No judged query of {path} has an answer; answers stand in its metadata.answer."
        )
    return random.Random(13).sample(found, count) if 0 < count < len(found) else found


def runs_of(path: str, corpus: Path, split: str, scale: Scale) -> dict[str, Run]:
    """What the cuts of the middle and of the last layer find."""
    card = read_card(path)
    dims = tuple(sorted({min(dim, card.width) for dim in DIMS}))
    report = evaluate(
        EvaluateRequest(
            corpora=(str(corpus),),
            models=(path,),
            split=split,
            layers=tuple(sorted({max(card.layers // 2, 1), card.layers})),
            dims=dims,
            measures=(f"R@{max(FOUND)}",),
            exits="model",
            runs="all",
            root=scale.out / "indexes",
            out=scale.out / "results-rag",
            device=scale.device,
        )
    )
    folder = report.folder / report.grids[0].model / "runs"
    return {str(cut): read_run(folder / f"{cut}.trec") for cut in report.grids[0].cuts}


def recall(run: Run, asked: Sequence[Question], text_of: TextOf) -> dict[str, float]:
    """Share of questions of which one of the first k documents holds an answer."""
    firsts = []
    for question in asked:
        if not can_be_held(question.right):
            continue
        texts = (text_of(docid) for docid in _first(run, question, max(FOUND)))
        held = (rank for rank, text in enumerate(texts, start=1) if holds(text, question.right))
        firsts.append(next(held, max(FOUND) + 1))
    if not firsts:
        return {}
    return {f"answer recall@{k}": fmean(first <= k for first in firsts) for k in FOUND}


def answered(
    run: Run, asked: Sequence[Question], text_of: TextOf, generator: Generator, contexts: int
) -> dict[str, float]:
    """Exact match and F1 of what the model answers from the first documents."""
    pairs = []
    for question in asked:
        texts = [text_of(docid) for docid in _first(run, question, contexts)]
        answer = generator.answer(question.text, texts)
        pairs.append((exact_match(answer, question.right), f1(answer, question.right)))
    return {MATCH: fmean(match for match, _ in pairs), "F1": fmean(share for _, share in pairs)}


def _first(run: Run, question: Question, count: int) -> tuple[str, ...]:
    ranking = run.rankings.get(question.id)
    return ranking.docids[:count] if ranking else ()


def checked(cells: Cells, measure: str, small: bool, asked: int = 0) -> str:
    """The published signs, as far as their cells are here.

    With the number of questions `asked` each difference has the standard error of two shares of
    independent questions, which is more than the true one.
    """
    lines = []
    for claim in CLAIMS:
        cuts = [(cell.model, cell.at(small)) for cell in (claim.above, claim.below)]
        if not all(measure in cells.get(name, {}).get(cut, {}) for name, cut in cuts):
            continue
        above, below = (100 * cells[name][cut][measure] for name, cut in cuts)
        wanted = (claim.above.value or 0.0) - (claim.below.value or 0.0)
        found = above - below
        spread = above * (100 - above) + below * (100 - below)
        error = math.sqrt(spread / asked) if asked else 0.0
        close = abs(found) <= ERRORS * error
        verdict = CLOSE if close else SEEN if found > 0 else NOT_SEEN
        verdict += f" (standard error {error:.2f})" if asked else ""
        drift = f"drift {found - wanted:+.2f}" if measure == MATCH else "only its sign counts"
        line = f"expected {wanted:+.2f} ({claim.source}), found {found:+.2f}, {drift}: {verdict}"
        lines.append(f"{claim.says}, at {cuts[0][1]}: {line}")
    return "\n".join(lines)


def table(cells: Cells) -> str:
    """Each cut of each model with its measures, as shares."""
    measures = list(dict.fromkeys(m for cuts in cells.values() for v in cuts.values() for m in v))
    lines = [f"{'model':16}{'cut':>10}" + "".join(f"{name:>19}" for name in measures)]
    for model, cuts in cells.items():
        for cut, values in cuts.items():
            numbers = "".join(f"{values[m]:>19.4f}" if m in values else " " * 19 for m in measures)
            lines.append(f"{model:16}{cut:>10}{numbers}")
    return "\n".join(lines)


def run(given: argparse.Namespace) -> None:
    """Retrieve, answer, report.

    Raises:
        UserError: something that it needs is not there.
    """
    begun, scale = time.monotonic(), scale_of(given)
    corpus = given.corpus or given.data / "beir" / "hotpotqa"
    _require(given, corpus)
    asked = questions(corpus, given.split, given.queries)
    reader = None
    if not given.retrieval_only:
        reader = Generator(given.generator, given.max_new_tokens, given.device)
    dataset = open_dataset(str(corpus))

    def text_of(docid: str) -> str:
        return dataset.document(docid).content

    cells: dict[str, dict[str, dict[str, float]]] = {}
    for name, path in _paths(given, scale).items():
        cells[name] = {}
        for cut, found in runs_of(path, corpus, given.split, scale).items():
            values = recall(found, asked, text_of)
            if reader:
                values |= answered(found, asked, text_of, reader, given.contexts)
            cells[name][cut] = values
    told = checked(cells, MATCH if reader else RECALL, scale.small, len(asked))
    tell(f"{len(asked)} questions of {corpus}\n{table(cells)}")
    tell(told or "None of the published cells is among these.")
    seconds = time.monotonic() - begun
    tell(f"{seconds:.0f} s")
    head = {"corpus": str(corpus), "questions": len(asked), "seconds": seconds}
    write(scale.out / "rag.json", {**head, "cells": cells, "told": told.splitlines()})


def _require(given: argparse.Namespace, corpus: Path) -> None:
    if not given.generator and not given.retrieval_only:
        raise UserError(
            "Answers need a language model: give --generator FOLDER, or --retrieval-only to see "
            "how often what is found holds the answer."
        )
    if not (corpus / "queries.jsonl").exists():
        raise UserError(
            f"There is no HotpotQA in {corpus}; put BEIR's there (corpus.jsonl, queries.jsonl with "
            "metadata.answer, qrels), or name a folder of that layout with --corpus."
        )


def _paths(given: argparse.Namespace, scale: Scale) -> dict[str, str]:
    """Models by name: those that were asked for, or the paper's, trained unless they are there."""
    if given.model:
        return {Path(path).name: path for path in given.model}
    only = names(given.only)
    strange = [name for name in only if name not in {model.name for model in MODELS}]
    if strange:
        known = ", ".join(model.name for model in MODELS)
        raise UserError(f"--only asks for {', '.join(strange)}, and rag has {known}; name these.")
    chosen = [model for model in MODELS if not only or model.name in only]
    return {model.name: trained(model, scale).path for model in chosen}


def options() -> argparse.ArgumentParser:
    """What this script takes beside what all take."""
    made = parser("Reproduce ESE, table 4: exact match on HotpotQA.")
    made.add_argument("--corpus", type=Path, help="in place of DATA/beir/hotpotqa")
    made.add_argument("--split", default="test", help="of its judgements")
    made.add_argument("--model", action="append", default=[], help="in place of the paper's three")
    made.add_argument("--generator", type=Path, help="folder of a causal language model")
    made.add_argument("--retrieval-only", action="store_true", help="answer recall alone")
    made.add_argument("--queries", type=int, default=0, help="so many questions; 0: all")
    made.add_argument("--contexts", type=int, default=1, help="documents that the model reads")
    made.add_argument("--max-new-tokens", type=int, default=16, help="of an answer")
    return made


def main(words: Sequence[str] | None = None) -> None:
    """Do what the command line (or `words`) asks."""
    try:
        run(options().parse_args(words))
    except Exception as error:  # told in a sentence where a person can mend it
        end(error)


if __name__ == "__main__":
    main()
