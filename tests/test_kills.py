"""Commands that are killed at any moment: given again, they end as if nothing had happened."""

import json
import random
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from shell import m2dr
from world import TEXT, WORDS, make_backbone, make_corpus

from m2dr.core.files import LOCK_NAME, LOG_FILE, TEMPORARY_SUFFIX, read_training_log, sha256_of
from m2dr.index.faiss import open_faiss
from m2dr.index.folder import IndexFolder
from m2dr.index.manifest import built_indexes
from m2dr.index.store import open_store
from m2dr.maps.files import Maps
from m2dr.model.checkpoint import check_exits
from m2dr.tasks.corpus import WRITTEN
from m2dr.tasks.training.run_folder import LOGS

Words = tuple[str, ...]

FP32 = ("--device", "cpu", "--dtype", "fp32")
WHERE = ("--corpus", "corpus", "--model", "backbone", *FP32)
INDEX = ("index", "corpus", *WHERE, "--layers", "2,4", "--dim", "8", "--shard-rows", "20")
ENGINES = (*INDEX, "--engine", "flat", "--engine", "hnsw")
OTHERS = ("-c", "import shutil; shutil.copy('changed.jsonl', 'corpus/corpus.jsonl')")
OPEN = """
import m2dr
index = m2dr.open_index("corpus", model="backbone", device="cpu", dtype="fp32")
"""
ADD = OPEN + 'index.add({f"new-{n}": "open the file" for n in range(3)})'
DELETE = OPEN + 'index.delete({"d3", "d40"} & {*index.searcher().documents.docids})'
IMPORT = ("index", "import", "vectors.npy", "--corpus", "corpus", "--dim", "8")
FIT_INDEX = ("index", "fit", *WHERE)
FIT = ("fit", "--backbone", "backbone", "--corpus", "texts.txt", *FP32, "--out", "model")
TRAINING = (
    *FP32, "--steps", "6", "--batch-size", "4", "--set", "save_steps=2", "--set", "log_steps=2",
)  # fmt: skip
TRAIN = (
    "train", *TRAINING, "--corpus", "corpus", "--set", "evaluate_steps=0", "--set",
    "document_length=16", "--out", "model",
)  # fmt: skip
RESUME = ("train", "--resume", "--out", "model")
PRETRAIN = (
    "pretrain", *TRAINING, "--corpus", "texts.txt", "--backbone", "backbone", "--set", "length=16",
    "--out",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A command, what was done before, and how it goes on where it is not just given again."""

    words: Words
    before: tuple[Words, ...] = ()
    resume: Words = ()
    makes: str = "model"  # the folder that it writes
    documents: bool = False  # whether it changes those of an index
    moments: int = 3


CASES = {
    "index": Case((*INDEX, "--queries", "log.txt"), makes="indexes"),
    "sync": Case(ENGINES, (ENGINES, OTHERS), makes="indexes", documents=True),
    "add": Case(("-c", ADD), (ENGINES,), makes="indexes", documents=True),
    "delete": Case(("-c", DELETE), (ENGINES,), makes="indexes", documents=True),
    "import": Case(IMPORT, makes="indexes"),
    "index fit": Case(
        FIT_INDEX, ((*INDEX, "--no-exits"),), (*FIT_INDEX, "--overwrite"), makes="indexes"
    ),
    "fit": Case(FIT, resume=(*FIT, "--overwrite")),
    "export": Case(("export", "--model", "backbone", "--layers", "2", "--out", "model")),
    "pretrain": Case((*PRETRAIN, "model"), resume=("pretrain", *RESUME[1:]), moments=1),
    "train": Case(
        (*TRAIN, "--variant", "elastic", "--backbone", "pretrained"),
        ((*PRETRAIN, "pretrained"),),
        RESUME,
        moments=1,
    ),
    "separate": Case(
        (
            *TRAIN,
            "--variant",
            "separate",
            "--backbone",
            "backbone",
            "--layers",
            "1,2",
            "--dims",
            "8",
        ),
        resume=RESUME,
        moments=1,
    ),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the commands read."""
    place = tmp_path_factory.mktemp("world")
    make_backbone(place / "backbone", masks=True)
    documents = make_corpus(place / "corpus", 60, 14) / "corpus.jsonl"
    documents.with_name(WRITTEN).touch()
    rows = [json.loads(line) for line in documents.read_text().splitlines()]
    rows[3]["text"], rows[45]["text"] = "a path and a line", "numbers of a list"
    last = rows.pop(7)
    rows = [{"_id": "new", "text": "open the file"}, *rows[:12], *rows[13:], last]
    (place / "changed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    vectors = np.random.default_rng(13).normal(size=(60, 24))
    np.save(place / "vectors.npy", vectors.astype(np.float32))
    for name, more in (("log.txt", ""), ("texts.txt", TEXT)):
        lines = [f"{' '.join(WORDS[n % 9 :][:4])} {more}\n" for n in range(60)]
        (place / name).write_text("".join(lines))
    return place


def begin(start: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(start, place)


def done(words: Words, place: Path) -> str:
    """What a command says that ends well."""
    ended = m2dr(*words, cwd=place, killed_at=0)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def files(place: Path) -> dict[str, object]:
    """Digests of what a command wrote, and a training's log without its seconds.

    Locks, and what was half written under another name, may stay.
    """
    found: dict[str, object] = {
        str(path.relative_to(place)): sha256_of(path)
        for path in place.rglob("*")
        if path.is_file() and not path.name.endswith((TEMPORARY_SUFFIX, LOCK_NAME))
        if LOGS not in path.parts
    }
    for name in [name for name in found if name.endswith(LOG_FILE)]:
        found[name] = [{**line, "seconds": 0} for line in read_training_log((place / name).parent)]
    return found


def look(place: Path) -> dict[str, object]:
    """What every store and engine of a folder of indexes finds."""
    found: dict[str, object] = {}
    for record in sorted(place.glob("*/????????????/layer-*/store.json")):
        store, name = open_store(record.parent), record.parent.name
        found[name] = [list(store.docids), store.rows(range(store.documents)).tobytes()]
        for built in built_indexes(record.parent):
            ranked = open_faiss(built.folder).ranked(["q"], np.ones((1, 32), np.float32), 5)
            found[f"{name}/{built.folder.name}"] = ranked.rankings["q"].docids
    return found


@pytest.mark.parametrize("more", [0, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_a_command_that_is_killed_and_given_again_ends_as_one_that_was_not(
    name: str, more: int, world: Path, tmp_path: Path
) -> None:
    """While documents of an index change, all its stores and engines are of before or of after."""
    case, start, place = CASES[name], tmp_path / "start", tmp_path / "place"
    made = place / case.makes
    begin(world, place)
    for words in case.before:
        done(words, place)
    begin(place, start)
    before = look(made)
    changes = int(done(case.words, place).split()[-1])
    after, expected = look(made), files(made)
    assert expected

    count, draw = case.moments + more, random.Random(more)
    for part in range(count):  # of its changes, in each of which it is killed once
        moment = draw.randint(part * changes // count + 1, (part + 1) * changes // count)
        begin(start, place)
        killed = m2dr(*case.words, cwd=place, killed_at=moment)
        assert killed.returncode == -signal.SIGKILL, (moment, killed.stderr)
        assert not case.documents or look(made) in (before, after), moment
        ways = (case.words, case.resume or case.words)[:: 1 - 2 * (part % 2)]
        ended = m2dr(*ways[0], cwd=place).returncode == 0 or files(made) == expected
        if not ended:  # a training goes on only if told so, or if begun
            done(ways[1], place)
        assert files(made) == expected, moment


def test_a_command_that_is_killed_many_times_in_a_row_ends_as_one_that_was_not(
    world: Path, tmp_path: Path
) -> None:
    case, place, draw = CASES["index"], tmp_path / "place", random.Random(13)
    begin(world, place)
    began = time.monotonic()
    done(case.words, place)
    took, expected = time.monotonic() - began, files(place / case.makes)
    begin(world, place)

    ended = [m2dr(*case.words, cwd=place, killed_at=draw.uniform(0, took)) for _ in range(8)]

    assert -signal.SIGKILL in [each.returncode for each in ended]
    done(case.words, place)
    assert files(place / case.makes) == expected


def test_a_fit_again_that_is_killed_leaves_all_maps_of_before_or_of_after(
    world: Path, tmp_path: Path
) -> None:
    start, place, draw = tmp_path / "start", tmp_path / "place", random.Random(13)
    begin(world, place)
    done((*INDEX, "--queries", "log.txt"), place)
    begin(place, start)
    again = (*FIT_INDEX, "--overwrite", "--language", "german")
    count = int(done(again, place).split()[-1])
    (folder,) = place.glob("indexes/*/*/exits")
    expected, languages = files(place / "indexes"), set()

    for moment in (*draw.sample(range(1, count - 4), 2), *range(count - 4, count + 1)):
        begin(start, place)
        m2dr(*again, cwd=place, killed_at=moment)
        maps = Maps(IndexFolder(folder.parent))
        check_exits(folder, maps.record.fingerprint, *(name for name, _ in maps.record.files))
        languages.add(maps.language)

    assert languages == {"english", "german"}
    done(again, place)
    assert files(place / "indexes") == expected
