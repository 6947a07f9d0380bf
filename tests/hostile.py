"""Hostile cases: a command that works, one thing spoilt, and what must be true of its end.

A case is a number: the same number is the same case on any machine. Run some alone with

    python tests/hostile.py 17            one case, with what it printed
    python tests/hostile.py 0 5000        cases 0 to 4999; prints those that fail
"""

import hashlib
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from click.testing import CliRunner, Result
from spoiling import spoil
from world import make_backbone, make_corpus, make_model

PATIENCE = 60.0  # seconds until a case counts as hanging
COUNTS = (
    "0",
    "-1",
    "1",
    "3",
    "x",
    "",
    " ",
    "1.5",
    "²",
    "٣",
    "1e3",
    "nan",
    "9" * 18,
    "9" * 30,
    "9" * 5_000,
    "--",
    "1,2",
    ",",
    "[",
)
NUMBERS = (
    "0",
    "-1",
    "1.5",
    "x",
    "",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "1e-999",
    "9" * 400,
    "9" * 5_000,
    "1_0",
    "٣",
    "0x1",
)
WORDS = (
    "", " ", "x", "-", "--", ".", "..", "/", "~", "nowhere/else", "x" * 300, "x" * 5_000, "a b", "a\tb", "a\nb", "\x1b[2J", "\u202ex",
    "é日本", "@", "@L2D8", "x@L2D8", ":", "irds:", "irds:x/y", "milvus:", "pydocs:", "pydocs:x", "=", "*", "[", "{}", "%s", "$HOME", "\udcff",
    "nDCG@10", "nDCG@0", "nDCG@" + "9" * 400, "P(rel=2)@5", "Q" * 2_000, "8:20,32", "9:9:9", "32,", "8:0,32", "8:" + "9" * 50 + ",32",
)  # fmt: skip
PAIRS = (
    "", "=", "x", "steps=", "=1", "nprobe=1", "nprobe=-1", "nprobe=x", "steps=[[[[", "steps=" + "[" * 50_000, "steps=" + "9" * 5_000,
    "learning_rate=" + "9" * 400, "learning_rate=nan", "learning_rate=1e-3", "layers=[1,2]", "layers=[]", "layers=[99]", "dims=[0]",
    "layers=['a']", "query_prefix=\x1b", "steps=1\nseed=3", "seed=-1", "variant={a=1}", "checkpoints=['L1D8']", "checkpoints=['x']",
    "document_length=0", "document_length=999999999999", "loss_weights=[1,2]", "temperature=1e-300", "dropout=1979-05-27", "é=1",
)  # fmt: skip
# Where something may be written: nothing that lies outside the folder of the case.
INSIDE = (
    "",
    " ",
    ".",
    "x" * 300,
    "x\ty",
    "\x1b[2J",
    "é",
    "corpus",
    "model",
    "corpus/corpus.jsonl",
    "nowhere",
    "\udcff",
)
_RANKS = ("abc", "-1", "1", "", "9" * 5_000, "1.5", "٣")
VARIABLES: dict[str, tuple[str | None, ...]] = {
    "HOME": (None, "", "/nonexistent", "/dev/null"), "TMPDIR": ("/nonexistent", "", "/dev/null"),
    "M2DR_DATA": ("", "/dev/null", ".", "x" * 5_000, "\x1b[2J"), "M2DR_CACHE": ("", "/dev/null/x", "x" * 300),
    "M2DR_DTYPE": ("", "x", "fp16", "float32", " "), "XDG_CACHE_HOME": ("", "/dev/null"),
    "WORLD_SIZE": ("abc", "-1", "2", "0", "9" * 5_000, "1.5"), "RANK": _RANKS, "LOCAL_RANK": _RANKS,
    "MASTER_PORT": ("x", "-1", "9" * 20), "COLUMNS": ("0", "-1", "x"), "LANG": ("C", "x"), "NO_COLOR": ("1",),
}  # fmt: skip


@dataclass(frozen=True)
class Command:
    """A command line that works, from a folder with copies of its inputs.

    Attributes:
        words: of the command; `{x}` stands for nothing, paths are relative.
        inputs: files and folders of the world that it reads.
        options: options and what hostile values they may get.
        outputs: patterns of what it may leave when it ends well or may go on with later.
        weight: how often it is drawn; slow ones seldom.
    """

    words: str
    inputs: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    outputs: tuple[str, ...] = ()
    weight: int = 4


_MACHINE = {"--device": ("", "x", "cpu:9", "meta", "cuda:x"), "--dtype": ("", "x", "fp16")}
_ASK = {
    "--layer": COUNTS,
    "--dim": COUNTS,
    "-k": COUNTS,
    "--corpus": WORDS,
    "--model": WORDS,
    "--indexes": INSIDE,
    **_MACHINE,
}
_CUTS = {"--layers": COUNTS, "--dims": COUNTS, "--model": WORDS, **_MACHINE}
_ON = "--device cpu --dtype fp32"
_STORE = "--corpus corpus --model model --indexes indexes"
_RESULT = "results/corpus/test/model"

COMMANDS = (
    Command("train --explain --config train.toml", ("train.toml", "backbone", "corpus"), {"--set": PAIRS, "--corpus": WORDS, "--backbone": WORDS, "--layers": COUNTS, "--dims": COUNTS, "--steps": COUNTS, "--seed": COUNTS, "--variant": WORDS}, weight=12),
    *(
        Command(f"train --explain --backbone backbone --corpus {file}", ("backbone", file), {"--set": PAIRS}, weight=2)
        for file in ("pairs.jsonl", "groups.jsonl", "pairs.csv", "triples.train.tsv", "scored.tsv", "marco", "corpus")
    ),
    *(
        Command(f"index corpus --corpus {file} --model model --layer 2 --dim 8 {_ON}", ("model", file), {"--shard-rows": COUNTS}, ("indexes",), weight=2)
        for file in ("pairs.jsonl", "groups.jsonl", "pairs.csv", "triples.train.tsv", "marco", "corpus")
    ),
    Command(f"index corpus {_STORE} --layer 4 --dim 8 --dim 16 {_ON}", ("model", "corpus", "indexes"), {**_ASK, "--engine": WORDS, "--factory": WORDS}, ("indexes",), weight=6),
    Command(f"train --backbone backbone --corpus corpus --steps 1 --batch-size 4 --out new {_ON}", ("backbone", "corpus"), {"--set": PAIRS, "--out": ("", ".", "corpus", "x" * 300, "corpus/corpus.jsonl")}, ("new", "models"), weight=1),
    Command("index list --indexes indexes", ("indexes",), {"--indexes": INSIDE}, weight=6),
    Command(f"index verify --indexes indexes --sample 0 {_ON}", ("indexes",), {"--sample": COUNTS, "--indexes": INSIDE}, weight=8),
    Command(f"index verify --indexes indexes --sample 2 --corpus corpus --model model {_ON}", ("indexes", "corpus", "model"), {"--corpus": WORDS, "--model": WORDS}, weight=3),
    Command(f"index import --vectors v.npy --ids ids.txt --corpus c --model model --sample 0 {_ON}", ("v.npy", "ids.txt", "model"), {"--layer": COUNTS, "--dim": COUNTS, "--sample": COUNTS, "--corpus": WORDS, "--engine": WORDS}, ("indexes",), weight=10),
    Command(f"index import --pyserini flat --corpus corpus --model model --sample 2 {_ON}", ("flat", "corpus", "model"), {"--dim": COUNTS, "--pyserini": WORDS}, ("indexes",), weight=4),
    Command(f"search {_STORE} {_ON} file", ("model", "corpus", "indexes"), {**_ASK, "--search-param": PAIRS, "--engine": WORDS, "--funnel": WORDS, "--index": WORDS, "--query-layer": COUNTS, "--runtime": WORDS}, weight=6),
    Command(f"search {_STORE} --engine exact --dim 16 {_ON} file", ("model", "corpus", "indexes"), {**_ASK, "--search-param": PAIRS}, weight=3),
    Command(f"search {_STORE} --funnel 8:20,32 {_ON} file", ("model", "corpus", "indexes"), {"--funnel": WORDS, "-k": COUNTS}, weight=3),
    *(
        Command(f"search {_STORE} --topics {file} --run out.trec {_ON}", ("model", "corpus", "indexes", file), {"-k": COUNTS, "--run": ("", ".", "corpus", "x" * 300, "no/where")}, ("out.trec", "no"), weight=3)
        for file in ("topics.tsv", "topics.jsonl")
    ),
    Command(f"evaluate beir --corpus corpus --model model --layers 2 --dims 8 --out r --runs all {_ON}", ("corpus", "model"), {**_CUTS, "--measure": WORDS, "--documents": WORDS, "--against": WORDS, "--split": WORDS}, ("r", "indexes"), weight=2),
    Command(f"evaluate msmarco --corpus marco --model model --layers 2 --dims 8 --out r {_ON}", ("marco", "model"), {"--split": WORDS}, ("r", "indexes"), weight=1),
    Command(f"evaluate sts --task scored.tsv --model model --layers 2 --dims 8 --out r {_ON}", ("scored.tsv", "model"), {**_CUTS, "--task": WORDS, "--split": WORDS}, ("r",), weight=2),
    Command(f"evaluate pairs --task alike.tsv --model model --layers 2 --dims 8 --out r {_ON}", ("alike.tsv", "model"), {"--task": WORDS, "--split": WORDS}, ("r",), weight=2),
    Command(f"evaluate classification --task bank --model model --layers 2 --dims 8 --out r --samples 2 --experiments 2 {_ON}", ("bank", "model"), {"--task": WORDS, "--samples": COUNTS, "--seed": COUNTS}, ("r",), weight=2),
    Command(f"compare {_RESULT} --against {_RESULT}@L2D8 --out out", ("results",), {"--measure": WORDS, "--alpha": NUMBERS, "--against": WORDS, "--out": ("", "x" * 300)}, ("out",), weight=14),
    Command(f"compare {_RESULT} --against a.trec --out out", ("results", "a.trec"), {"--qrels": WORDS}, ("out",), weight=6),
    Command(f"pick {_RESULT} --latency 5s --quality 50%", ("results",), {"--latency": NUMBERS, "--bytes-per-document": NUMBERS, "--multiply-adds": NUMBERS, "--quality": NUMBERS, "--at-least": (*WORDS, "nDCG@10=", "=1", "nDCG@10=nan"), "--measure": WORDS}, weight=14),
    Command("figures results --out out", ("results",), {"--measure": WORDS, "--published": WORDS, "--separate": WORDS}, ("out",), weight=2),
    Command("fuse a.trec b.trec --out out.trec", ("a.trec", "b.trec"), {"--weights": (*NUMBERS, ",", "1,1", "0,0", "1,2,3", "-1,1"), "-k": COUNTS, "--rrf-k": NUMBERS, "--scale": WORDS, "--method": WORDS}, ("out.trec",), weight=14),
    Command("fuse a.trec b.trec --method interpolate --weights .3,.7 --out out.trec", ("a.trec", "b.trec"), {"--weights": NUMBERS, "--scale": ("none", "z", "x")}, ("out.trec",), weight=6),
    Command("bm25 --corpus corpus --split test --run out.trec", ("corpus",), {"--corpus": WORDS, "--split": WORDS, "-k": COUNTS}, ("out.trec",), weight=12),
    Command("bm25 --corpus marco --topics topics.tsv --run out.trec", ("marco", "topics.tsv"), {"--topics": WORDS}, ("out.trec",), weight=8),
    Command("mine --retriever bm25 --corpus corpus --margin 0 --out out.jsonl", ("corpus",), {"--depth": COUNTS, "--negatives": COUNTS, "--skip": COUNTS, "--queries": COUNTS, "--margin": NUMBERS, "--split": WORDS}, ("out.jsonl",), weight=10),
    Command(f"mine {_STORE} --margin 0 --out out.jsonl {_ON}", ("model", "corpus", "indexes"), {**_ASK, "--margin": NUMBERS}, ("out.jsonl",), weight=3),
    Command("export --model model --layers 2 --out small", ("model",), {"--layers": COUNTS, "--model": WORDS, "--out": ("", ".", "model", "x" * 300)}, ("small",), weight=8),
)  # fmt: skip


def make_world(root: Path) -> Path:
    """Write every valid input that the commands need."""
    make_corpus(root / "corpus")
    make_model(make_backbone(root / "backbone", masks=True), root / "model")
    texts = [
        "the file",
        "read a line",
        "write text",
        "open a class",
        "close the list",
        "path number",
    ]
    marco = root / "marco"
    marco.mkdir()
    numbered = [(i, text) for i, text in enumerate(texts)]
    for name in ("collection.tsv", "queries.dev.small.tsv"):
        (marco / name).write_text("".join(f"{i}\t{text}\n" for i, text in numbered))
    for split in ("dev.small", "train"):
        (marco / f"qrels.{split}.tsv").write_text("".join(f"{i}\t0\t{i}\t1\n" for i, _ in numbered))
    (marco / "queries.train.tsv").write_text("".join(f"{i}\t{text}\n" for i, text in numbered))
    (marco / "qidpidtriples.train.tsv").write_text(
        "".join(f"{i}\t{i}\t{5 - i}\n" for i, _ in numbered)
    )
    following = [(texts[i], texts[i - 1], texts[i - 2]) for i in range(len(texts))]
    (root / "triples.train.tsv").write_text("".join("\t".join(row) + "\n" for row in following))
    (root / "pairs.csv").write_text(
        "query,positive,negative\n" + "".join(f'"{q}","{p}",{n}\n' for q, p, n in following)
    )
    (root / "pairs.jsonl").write_text(
        "".join(f'{{"query": "{q}", "positive": "{p}"}}\n' for q, p, _ in following)
    )
    (root / "groups.jsonl").write_text(
        "".join(
            f'{{"query_id": "q{n[-3:]}", "query": "{q}", "positives": [{{"docid": "a{p[-3:]}", "text": "{p}"}}], "negatives": ["{n}"]}}\n'
            for q, p, n in following
        )
    )
    (root / "scored.tsv").write_text(
        "score\ttext1\ttext2\n"
        + "".join(f"{i}.5\t{p}\t{q}\n" for i, (p, q, _) in enumerate(following))
    )
    (root / "alike.tsv").write_text(
        "label\ttext1\ttext2\n"
        + "".join(f"{i % 2}\t{p}\t{q}\n" for i, (p, q, _) in enumerate(following))
    )
    (root / "bank").mkdir()
    for split in ("train", "test"):
        (root / "bank" / f"{split}.csv").write_text(
            "text,category\n" + "".join(f"{text},{'ab'[i % 2]}\n" for i, text in numbered)
        )
    (root / "topics.tsv").write_text("".join(f"t{i}\t{text}\n" for i, text in numbered))
    (root / "topics.jsonl").write_text(
        "".join(f'{{"_id": "t{i}", "text": "{text}"}}\n' for i, text in numbered)
    )
    (root / "train.toml").write_text(
        'corpus = "corpus"\nbackbone = "backbone"\nsteps = 3\nlayers = [2]\ndims = [8]\nlearning_rate = 1e-4\nquery_prefix = "query: "\nvariant = "2dmse"\nbatch_queries = 4\n'
    )
    _make_derived(root)
    return root


def _make_derived(root: Path) -> None:
    """Write what m2dr makes of the valid inputs: indexes, results, runs, vectors."""
    import numpy as np

    store = _STORE.split()
    results = ["--layers", "2,4", "--dims", "8,32", "--out", "results"]
    for words in (
        ["index", "corpus", *store, "--layer", "4", "--dim", "8", "--dim", "32"],
        ["index", "corpus", *store, "--layer", "4", "--dim", "8", "--engine", "ivf"],
        ["evaluate", "beir", *store, *results, "--costs"],
        ["compare", _RESULT, "--against", f"{_RESULT}@L2D8"],
        ["bm25", "--corpus", "corpus", "--split", "test", "--run", "a.trec"],
        ["search", *store, "--topics", "corpus/queries.jsonl", "--run", "b.trec"],
    ):
        done = _invoke(
            [*words, *(_ON.split() if words[0] in ("index", "evaluate", "search") else [])], root
        )
        assert done.exit_code == 0, (words, done.output, done.exception)
    shutil.copytree(next(root.glob("indexes/**/dim-32")), root / "flat")
    docids = (root / "flat" / "docid").read_text()
    (root / "ids.txt").write_text(docids)
    draws = np.random.default_rng(13).normal(size=(len(docids.splitlines()), 32))
    np.save(root / "v.npy", draws.astype(np.float32))


def refusal(words: str, folder: Path) -> str:
    """Run a command that must be refused; return its sentence."""
    done = _invoke(words.split(), folder)
    assert done.exit_code == 2, (done.exit_code, done.output, done.exception)
    assert not _wrong_end(done)
    return done.stderr


def sentence_of(command: Command, world: Path) -> str:
    """Run a command on valid inputs; return what it said if it did not work."""
    with tempfile.TemporaryDirectory() as folder:
        _copy(command, world, Path(folder))
        done = _invoke(command.words.split(), Path(folder))
    return "" if done.exit_code == 0 else f"{done.stderr} {done.exception!r}"


def _copy(command: Command, world: Path, folder: Path) -> None:
    for name in command.inputs:
        copy = shutil.copytree if (world / name).is_dir() else shutil.copy2
        copy(world / name, folder / name)


@dataclass(frozen=True)
class Case:
    """One hostile case, made in a folder."""

    number: int
    words: tuple[str, ...]
    told: str  # what was spoilt
    variables: dict[str, str | None]  # of the environment
    outputs: tuple[str, ...]
    folder: Path


def make_case(number: int, world: Path, folder: Path) -> Case:
    """Copy what a command reads, and spoil one thing."""
    draw = Random(number)
    command = draw.choices(COMMANDS, [one.weight for one in COMMANDS])[0]
    _copy(command, world, folder)
    words = command.words.split()
    if draw.random() < 0.3:
        option = draw.choice(sorted(command.options))
        value = draw.choice(command.options[option])
        while option in words:
            at = words.index(option)
            del words[at : at + 2]
        words[1:1] = [] if words[0] in ("index", "evaluate") else [option, value]
        words += [option, value] if words[0] in ("index", "evaluate") else []
        return Case(number, tuple(words), f"{option} {value[:60]!r}", {}, command.outputs, folder)
    if draw.random() < 0.03:
        name = draw.choice(sorted(VARIABLES))
        value = draw.choice(VARIABLES[name])
        told = f"${name} {value!r}"
        return Case(number, tuple(words), told, {name: value}, command.outputs, folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    chosen = draw.choice(command.inputs)
    file = draw.choice([path for path in files if path.relative_to(folder).parts[0] == chosen])
    how = spoil(file, draw, waits=chosen not in ("model", "indexes", "results"))
    told = f"{file.relative_to(folder)} {how}"
    return Case(number, tuple(words), told, {}, command.outputs, folder)


class Hung(BaseException):
    """A case did not end in time."""


def wrong(case: Case) -> list[str]:
    """Run a case; return what must not be true of its end."""
    before = _state(case.folder, case.outputs)
    try:
        with _watched():
            done = _invoke(list(case.words), case.folder, case.variables)
    except Hung:
        return [f"it did not end within {PATIENCE:g} s"]
    found = _wrong_end(done)
    after = _state(case.folder, case.outputs)
    found += [
        f"{name} was changed or removed" for name in before if after.get(name) != before[name]
    ]
    found += [f"{name} was left behind" for name in after.keys() - before.keys()]
    found += [
        f"{path} was left half-written"
        for path in case.folder.rglob("*")
        if _UNFINISHED.search(path.name)
    ]
    if done.exit_code:
        single = [name for name in case.outputs if "." in name and (case.folder / name).exists()]
        found += [f"{name} was written by a command that failed" for name in single]
    return found


_UNFINISHED = re.compile(r"\.(tmp|unfinished|partial)$")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def _wrong_end(done: Result) -> list[str]:
    """What is wrong with the exit code and with what was printed."""
    error = done.exception
    if error is not None and not isinstance(error, SystemExit):
        lines = traceback.format_exception(error)
        return ["a traceback: " + "".join(lines[-3:])]
    found = []
    if done.exit_code not in (0, 2):
        found.append(f"exit code {done.exit_code}")
    if "Traceback" in done.output:
        found.append("a traceback was printed")
    if _CONTROL.search(done.output):
        found.append(f"control characters were printed: {_CONTROL.findall(done.output)[:5]}")
    told = [line for line in done.stderr.split("\n") if line.startswith("Error: ")]
    if done.exit_code == 2 and len(told) != 1 and ": WRONG" not in done.stdout:
        found.append(f"{len(told)} sentences begin with Error: {done.output[-300:]!r}")
    if told and (len(told[0]) > 6_000 or done.stderr.rstrip("\n").split("\n")[-1] != told[0]):
        found.append(f"not one sentence of a readable length: {done.stderr[-400:]!r}")
    return found


def _invoke(
    words: list[str], folder: Path, variables: dict[str, str | None] | None = None
) -> Result:
    from m2dr.cli import main

    here = Path.cwd()
    os.chdir(folder)
    try:
        return CliRunner().invoke(main, words, env=variables)
    finally:
        os.chdir(here)


@contextmanager
def _watched() -> Iterator[None]:
    def late(*_: object) -> None:
        raise Hung

    handler = signal.signal(signal.SIGALRM, late)
    left, _ = signal.setitimer(signal.ITIMER_REAL, PATIENCE)  # pytest-timeout's own, put back after
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, handler)


def _state(folder: Path, outputs: tuple[str, ...]) -> dict[str, str]:
    """Every name below `folder` that is no output, and a digest of what it is."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        mode = path.lstat().st_mode
        if (
            name.split("/")[0] in outputs
            or outputs
            and name.split("/")[0] in ("x\ty", "é", "nowhere")
        ):
            continue
        if stat.S_ISREG(mode):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = str(path.readlink()) if stat.S_ISLNK(mode) else f"{stat.S_IFMT(mode):o}"
    return found


def failures(numbers: range, world: Path) -> Iterator[str]:
    """Run cases in order; tell of each that fails how to run it alone."""
    for number in numbers:
        with tempfile.TemporaryDirectory(prefix=f"case-{number}-") as folder:
            case = make_case(number, world, Path(folder))
            if found := wrong(case):
                words = " ".join(word[:60] for word in case.words)
                yield f"case {number}: m2dr {words!r}; spoilt: {case.told}; " + "; ".join(found)


def main(first: int, after: int) -> int:
    """Run cases from a terminal."""
    os.environ.setdefault("M2DR_DATA", "/nonexistent")
    with tempfile.TemporaryDirectory(prefix="world-") as folder:
        world = make_world(Path(folder))
        failed = 0
        for told in failures(range(first, after), world):
            failed += 1
            sys.stdout.write(f"{told}\n\n")
            sys.stdout.flush()
    sys.stdout.write(f"{after - first} cases, {failed} failed\n")
    return int(failed > 0)


if __name__ == "__main__":
    low = int(sys.argv[1])
    sys.exit(main(low, int(sys.argv[2]) if len(sys.argv) > 2 else low + 1))
