"""Every command that a message prints is complete: it runs word for word, and mends what it says."""

import ast
import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import parsed
from world import make_model, stopped_after

import m2dr
from m2dr.cli import main
from m2dr.errors import command, install
from m2dr.index.layout import store_remedy
from m2dr.model.hub import resume_command

ROOT = Path(m2dr.__file__).parent
COMMANDS = "|".join(main.commands)
PRINTED = re.compile(rf"\bm2dr ({COMMANDS})\b|\bpip install\b|\btorchrun\b")

# Where a literal names a command in passing, and asks nobody to run it as it stands.
IN_PASSING = {
    "commands/mine.py": ("by which m2dr train knows it",),
    "data/pydocs.py": ("Install its folder with: pip install FOLDER",),
    "index/import_vectors.py": ("or of m2dr index corpus.",),
    "index/milvus.py": ("with m2dr index push, from where the index lies",),
    "model/cut_readme.py": ("# {cut} of {model} for {tool}",),  # read where m2dr is not installed
    "model/distributed.py": ("Start them with torchrun.",),
    "model/hub.py": ("torchrun{} --nproc-per-node {} -m {}",),  # what it wraps is rendered
    "pipelines/make_stores.py": ("torchrun has started several processes already",),
    "progress.py": ("Start the processes with torchrun, or for one alone",),
    "records/fault.py": ("(?:m2dr|pip|torchrun)",),  # finds commands in messages
    "serve/app.py": ("m2dr serve",),  # the title of its description
    "settings/index_requests.py": ("as for m2dr index corpus", "m2dr train reads 64 at most"),
    "settings/serve_requests.py": ("grid.json of m2dr evaluate",),
    "settings/trainings.py": ("as for `m2dr index corpus`", "as for `m2dr train`"),
}


def literals(path: Path) -> Iterator[str]:
    """Strings of a module but for docstrings; what an f-string computes is `{}`."""
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    skipped = {id(n.value) for n in nodes if isinstance(n, ast.Expr)}
    skipped |= {id(part) for n in nodes if isinstance(n, ast.JoinedStr) for part in n.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                getattr(part, "value", "{}") if isinstance(part, ast.Constant) else "{}"
                for part in node.values
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in skipped
        ):
            yield node.value


def test_no_message_spells_a_command_by_hand() -> None:
    by_hand = [
        (path.relative_to(ROOT).as_posix(), text)
        for path in sorted(ROOT.rglob("*.py"))
        if path.name != "readme.py"  # a page, whose commands are run by its own test
        for text in literals(path)
        if PRINTED.search(text)
    ]

    strange = [
        (name, text)
        for name, text in by_hand
        if not any(known in text for known in IN_PASSING.get(name, ()))
    ]
    assert not strange, "Render it by m2dr.errors.command, or list it as named in passing."
    assert {name for name, _ in by_hand} == set(IN_PASSING)  # nothing is listed in vain


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (command("index", "corpus", corpus="a b", dim=(8, 16)), {"corpus": "a b", "dims": (8, 16)}),
        (command("search", "it's $5", query_layer=4, k=3), {"text": "it's $5", "query_layer": 4, "top_k": 3}),
        (command("train", set=("learning_rate=1e-4", "dims=[8, 16]")), {"words": ("learning_rate=1e-4", "dims=[8, 16]")}),
        (command("train", variant=None, seed=0, resume=False, corpus=""), {"variant": None, "seed": 0, "resume": False}),
        (resume_command("train", Path("my models/a")), {"resume": True, "out": Path("my models/a")}),
        (resume_command("pretrain", Path("b"), 4), {"resume": True, "out": Path("b")}),
    ],
)  # fmt: skip
def test_a_rendered_command_is_read_back_as_it_was_meant(line: str, expected: dict) -> None:
    found = parsed(line).params

    assert {name: found[name] for name in expected} == expected


def test_the_processes_that_began_a_training_are_named_in_the_command(monkeypatch) -> None:
    assert resume_command("train", Path("m"), 4).startswith("torchrun --nproc-per-node 4 -m m2dr ")

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert "--nnodes 3 --nproc-per-node 2 " in resume_command("train", Path("m"), 6)
    assert shlex.split(install("cpu", "onnx")) == ["pip", "install", "m2dr[cpu,onnx]"]


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, [str(word) for word in words])
    return done.exit_code, done.output


def remedy(told: str) -> list[str]:
    """The words of the last command that a message prints; it ends the message."""
    (line,) = re.findall(r": (m2dr .*)$", told, flags=re.MULTILINE)[-1:]
    parsed(line)
    return shlex.split(line)[1:]


def mended(*words: object, steps: int = 1) -> str:
    """Run a command that is refused, what it says mends that, and the command again."""
    for _ in range(steps):
        code, told = run(*words)
        assert code == 2, told
        code, said = run(*remedy(told))
        assert code == 0, said
    code, said = run(*words)
    assert code == 0, said
    return told


@pytest.fixture
def place(
    tmp_path: Path, tiny_backbone: Path, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with a space in every name; a wrong default would find nothing in it."""
    (tmp_path / "my corpora").mkdir()
    (tmp_path / "my corpora" / "the tiny").symlink_to(tiny_corpus)
    make_model(tiny_backbone, tmp_path / "my models" / "one")
    monkeypatch.chdir(tmp_path)
    return tmp_path


ASKED = ("--corpus", "my corpora/the tiny", "--model", "my models/one", "--indexes", "my indexes")
SEARCH = ("search", "read a file", *ASKED)
INDEX = ("index", "corpus", *ASKED)


@pytest.mark.usefixtures("place")
def test_what_is_not_encoded_at_all_is_encoded_by_the_command_told() -> None:
    mended(*SEARCH)
    mended("search", "read", *ASKED, "--document-layer", "3", "--dim", "8")
    mended(
        "mine",
        *ASKED,
        "--out",
        "groups.jsonl",
        "--depth",
        "9",
        "--negatives",
        "2",
        "--query-layer",
        "2",
        "--dim",
        "16",
    )


@pytest.mark.parametrize(
    "words",
    [("--dim", "8"), ("--dim", "16", "--engine", "hnsw"), ("--document-layer", "2", "--dim", "8")],
)
def test_an_index_that_is_not_built_is_built_of_the_vectors_that_are_there(
    words: Sequence[str], place: Path
) -> None:
    assert run(*INDEX, "--store", "f32", "--layer", "4")[0] == 0
    stores = {path: path.stat().st_mtime_ns for path in place.rglob("vectors-*")}

    mended(*SEARCH, *words)

    assert stores == {path: path.stat().st_mtime_ns for path in stores}


def changed(name: str, content: bytes | None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (path,) = folder.rglob(name)
        path.unlink() if content is None else path.write_bytes(content)

    return change


def cut(folder: Path) -> None:
    (path,) = folder.rglob("vectors-00000.f16")
    path.write_bytes(path.read_bytes()[:-2])


@pytest.mark.parametrize(
    "damage",
    [
        changed("dim-8/index", b"x"),
        changed("dim-8/docid", None),
        changed("dim-8/manifest.json", b"{"),
        changed("store.json", b"{"),
        changed("docids.txt", b"d1\n"),
        cut,
    ],
    ids=["index", "docid", "manifest", "store", "docids", "shard"],
)
@pytest.mark.parametrize("way", [("--dim", "8"), ("--funnel", "4:20,8")], ids=["index", "store"])
def test_what_is_damaged_is_made_again_by_the_command_told(
    damage: Callable[[Path], None], way: Sequence[str], place: Path
) -> None:
    assert run(*INDEX, "--layer", "4", "--dim", "8")[0] == 0
    damage(place / "my indexes")
    if run(*SEARCH, *way)[0] == 0:
        return  # this way does not need that file

    mended(*SEARCH, *way)


def test_an_interrupted_encoding_goes_on_by_the_command_told(place: Path) -> None:
    with stopped_after(2):
        assert run(*INDEX, "--layer", "4", "--shard-rows", "7", "--store", "f32")[0] == 1
    written = {path: path.stat().st_mtime_ns for path in place.rglob("vectors-*.f32")}
    assert len(written) == 2

    told = mended(*SEARCH)

    assert "half-written" in told
    assert written == {path: path.stat().st_mtime_ns for path in written}


def test_queries_of_another_layer_or_prefix_are_answered_after_the_command_told(
    place: Path,
) -> None:
    assert run(*INDEX, "--layer", "4", "--dim", "8")[0] == 0
    shallow = (*SEARCH, "--query-layer", "2", "--exits", "model")
    code, told = run(*shallow)
    assert (code, "not aligned" in told) == (0, True)
    warning = next(line for line in told.splitlines() if "not aligned" in line)
    assert run(*remedy(warning))[0] == 0
    assert "not aligned" not in run(*shallow)[1]

    card = place / "my models" / "one" / "m2dr.json"
    card.write_text(card.read_text().replace('"query_prefix": ""', '"query_prefix": "q: "'))
    mended(*SEARCH)


@pytest.mark.usefixtures("place")
def test_an_unfinished_training_goes_on_by_the_command_told(
    tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from m2dr.train.module import TrainingModule

    forward, left = TrainingModule.forward, [2]

    def stopped(self: TrainingModule, *rest: object, **named: object) -> object:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return forward(self, *rest, **named)  # type: ignore[arg-type]

    words = "steps=3 save_steps=1 batch_queries=4 evaluate_steps=0 dims=[16] document_length=16 query_length=16"
    sets = [part for word in words.split() for part in ("--set", word)]
    train = (
        "train",
        "--backbone",
        tiny_backbone,
        "--corpus",
        "my corpora/the tiny",
        *sets,
        "--out",
        "my models/two",
    )
    with monkeypatch.context() as patch:
        patch.setattr(TrainingModule, "forward", stopped)
        code, told = run(*train)
    assert code == 1
    assert remedy(told) == ["train", "--resume", "--out", "my models/two"]

    two = ("--corpus", "my corpora/the tiny", "--model", "my models/two")
    told = mended("index", "corpus", *two, "--layer", "4")
    assert "holds a training that is not finished" in told
    mended("search", "read", *two, "--dim", "16")


def test_costs_that_cannot_be_read_are_measured_again_by_the_command_told(place: Path) -> None:
    asked = (
        "--corpus",
        "my corpora/the tiny",
        "--model",
        "my models/one",
        "--indexes",
        "my indexes",
    )
    assert (
        run("evaluate", "beir", *asked, "--layers", "4", "--dims", "8", "--out", "my results")[0]
        == 0
    )
    (folder,) = {path.parent for path in (place / "my results").rglob("grid.json")}
    (folder / "costs.json").write_text("{")

    mended("pick", folder.relative_to(place), "--indexes", "my indexes")
    code, told = run("compare", folder, "--against", folder, "--measure", "P@5")
    assert code == 2
    assert "does not hold P@5" in told


@pytest.mark.usefixtures("place")
def test_places_without_a_store_or_model_name_a_command_that_makes_one() -> None:
    for words in (
        ("index", "list", "--indexes", "my indexes"),
        ("index", "verify", "--indexes", "my indexes"),
        ("index", "push", "--to", "milvus", "--uri", "x.db", *ASKED),
        ("search", "read", *ASKED, "--index", "milvus:my.db"),
        ("search", "read", "--model", "./my models/none", "--corpus", "my corpora/the tiny"),
        ("search", "read", "--corpus", "my corpora/the tiny"),
        ("search", "", *ASKED),
        ("figures", "my results"),
    ):
        _, told = run(*words)
        line = remedy(told)
        place_given = {"my indexes", "my results", "./my models/none"} & set(map(str, words))
        assert place_given <= set(line) or words[:2] == ("search", ""), told


@pytest.mark.parametrize("value", [{"a": 1}, ["x"], "many", 1.5, True, None])
@pytest.mark.parametrize("name", ["shard_rows", "dtype", "corpus", "label", "source", "model"])
def test_records_of_other_types_still_have_a_remedy(
    name: str, value: object, tmp_path: Path
) -> None:
    label = {"source": "c", "model": "m", "fingerprint": "0" * 64}
    record = {"corpus": "c", "dtype": "f16", "shard_rows": 8, "label": label}
    (label if name in label else record)[name] = value
    folder = tmp_path / "layer-04"
    folder.mkdir()
    (folder / "store.json").write_text(json.dumps(record))

    told = store_remedy(folder, resume=True)

    assert told.startswith("with")
    assert isinstance(value, str) or str(value) not in told
    assert ("--shard-rows 8" in told) is ("--shard-rows" in told)
