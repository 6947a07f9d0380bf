"""Changes of an index that are killed at many moments: what a search finds then, and afterwards.

Run with a corpus, a model, a folder of indexes that were made of them, a file of documents, and a
folder to work in. Everything heavy is imported once, as `killing.py` does; each attempt is a fork.
"""

import json
import os
import pickle
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

os.environ["MKL_CBWR"] = "AUTO,STRICT"  # as the command line does

import numpy as np

from m2dr.core import files as io
from m2dr.core.requests import AddRequest, CompactRequest, DeleteRequest
from m2dr.index import changes
from m2dr.index.faiss_build import open_index
from m2dr.index.layout import built_indexes
from m2dr.index.store import open_store
from m2dr.tasks.change_index import ChangeReport, add, compact, delete

MOMENTS = {"add": 8, "delete": 6, "compact": 6}


def forked(work: Callable[..., object], *arguments: object) -> tuple[int, object]:
    """Do something in a fork; its exit code, and what it returned."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        try:
            data = pickle.dumps(work(*arguments))
        except BaseException as error:
            data = pickle.dumps(f"{type(error).__name__}: {error}")
        with os.fdopen(writes, "wb") as pipe:
            pipe.write(data)
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        data = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, pickle.loads(data) if data else None


class Steps:
    """Counts the calls that change the disk, and kills the process at one of them."""

    def __init__(self, last: int) -> None:
        self.done, self.last = 0, last

    def watch(self, place: object, name: str) -> None:
        call = getattr(place, name)

        def counted(*args: object, **rest: object) -> object:
            self.done += 1
            if self.done == self.last:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **rest)

        setattr(place, name, counted)


def watched(work: Callable[[], object], last: int = 0) -> int:
    """Do something, and end before the step `last`; the number of steps."""
    steps = Steps(last)
    for place, names in (
        (Path, ("replace", "unlink", "rmdir", "mkdir")), (os, ("link",)), (io, ("sync",)),
        (changes, ("sync",)), (changes.shutil, ("rmtree",)),
    ):  # fmt: skip
        for name in names:
            steps.watch(place, name)
    work()
    return steps.done


def look(root: Path) -> dict[str, object]:
    """What every store and index finds."""
    found: dict[str, object] = {}
    vector = np.ones((1, 32), np.float32)
    for path in sorted(root.glob("*/*/layer-*/store.json")):
        store = open_store(path.parent)
        assert len(store.rows(range(store.documents))) == store.documents
        shards = [shard.name for shard in store.manifest.shards]
        found[path.parent.name] = list(store.docids)
        found[f"files of {path.parent.name}"] = shards
        for built in built_indexes(path.parent):
            exhaustive = {"efSearch": 99} if built.engine == "hnsw" else None
            index = open_index(built.folder, search_params=exhaustive)
            ranking = index.ranked(["q"], vector, index.documents).rankings["q"]
            assert sorted(ranking.docids) == sorted(store.docids)
            found[f"{path.parent.name}/{built.folder.name}"] = ranking.docids[:5]
    return found


def documents_after(command: Callable[[], ChangeReport]) -> int:
    """How many documents there are once a command has ended."""
    return command().documents


def documents_of(found: object) -> object:
    """What was found, without the names of files."""
    assert isinstance(found, dict), found
    return {name: each for name, each in found.items() if not name.startswith("files")}


def left(root: Path) -> list[str]:
    """Files and folders of a change that should be gone after it."""
    names = ("change.json", "next", "added", ".m2dr.lock")
    return [str(path) for path in root.rglob("*") if path.name in names]


def main(corpus: str, model: str, made: str, new: str, place: str) -> None:
    """Kill each command at some of its steps, spread evenly, and say what was found."""
    root, told = Path(place, "indexes"), []
    known = {"corpus": corpus, "model": model, "root": root}
    commands: dict[str, Callable[[], ChangeReport]] = {
        "add": lambda: add(AddRequest(new, replace=True, device="cpu", **known)),
        "delete": lambda: delete(DeleteRequest(("d5", "d9"), **known)),
        "compact": lambda: compact(CompactRequest(**known)),
    }

    def begin() -> None:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(made, root)

    for kind, command in commands.items():
        begin()
        before = forked(look, root)[1]
        _, steps = forked(watched, command)
        after = forked(look, root)[1]
        assert isinstance(steps, int), steps
        for moment in np.linspace(1, steps, MOMENTS[kind]).round().astype(int).tolist():
            begin()
            code, _ = forked(watched, command, moment)
            seen = forked(look, root)[1]
            again = forked(documents_after, command)[1]
            ended = forked(look, root)[1]
            told.append({
                "kind": kind, "moment": moment, "of": steps, "code": code, "again": again,
                "seen": "before" if seen == before else "after" if seen == after else str(seen),
                "ended": documents_of(ended) == documents_of(after) and before != after,
                "compact": ended == after, "left": left(root),
            })  # fmt: skip
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:6])
