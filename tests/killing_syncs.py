"""Syncs of a corpus that changed, killed at many moments: what a search finds then, and afterwards.

Run with a corpus, the same corpus changed, a model, a folder of indexes of the first, and a folder
to work in. Everything heavy is imported once, as `killing.py` does; each attempt is a fork.
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

from m2dr.core import files
from m2dr.core.requests import IndexRequest
from m2dr.index import folder as folders
from m2dr.index.faiss import open_index
from m2dr.index.manifest import built_indexes
from m2dr.index.store import open_store
from m2dr.tasks.indexing.index import index_corpus

MOMENTS = 6


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


def watched(work: Callable[[], object], last: int = 0) -> int:
    """Do something, and kill this process before its step `last`; the number of steps."""
    steps = [0]

    def watch(place: object, name: str) -> None:
        call = getattr(place, name)

        def counted(*args: object, **rest: object) -> object:
            steps[0] += 1
            if steps[0] == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **rest)

        setattr(place, name, counted)

    for place, names in (
        (Path, ("replace", "rename", "unlink", "rmdir", "mkdir", "touch")), (os, ("link",)),
        (files, ("sync",)), (folders, ("sync", "_exchange")), (shutil, ("rmtree",)),
    ):  # fmt: skip
        for name in names:
            watch(place, name)
    work()
    return steps[0]


def look(root: Path) -> dict[str, object]:
    """What every store and index finds."""
    found: dict[str, object] = {}
    vector = np.ones((1, 32), np.float32)
    for path in sorted(root.glob("*/????????????/layer-*/store.json")):
        store = open_store(path.parent)
        found[path.parent.name] = list(store.docids)
        found[f"vectors of {path.parent.name}"] = store.rows(range(store.documents)).tobytes()
        for built in built_indexes(path.parent):
            ranking = open_index(built.folder).ranked(["q"], vector, 5).rankings["q"]
            found[f"{path.parent.name}/{built.folder.name}"] = ranking.docids
    return found


def main(corpus: str, changed: str, model: str, made: str, place: str) -> None:
    """Kill a sync at some of its steps, spread evenly, and say what was found."""
    root, told = Path(place, "indexes"), []
    asked = IndexRequest(
        corpus, model, layers=(2, 4), dims=(8,), engines=("flat", "hnsw"), root=root, device="cpu",
        dtype="fp32", shard_rows=10, exits=False,
    )  # fmt: skip

    def begin() -> None:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(made, root)

    begin()
    before = forked(look, root)[1]
    shutil.copy(Path(changed, "corpus.jsonl"), Path(corpus, "corpus.jsonl"))
    _, steps = forked(watched, lambda: index_corpus(asked))
    after = forked(look, root)[1]
    assert isinstance(steps, int), steps
    for moment in np.linspace(1, steps, MOMENTS).round().astype(int).tolist():
        begin()
        code, _ = forked(watched, lambda: index_corpus(asked), moment)
        seen = forked(look, root)[1]
        again = forked(lambda: index_corpus(asked).documents)[1]
        told.append({
            "moment": moment, "of": steps, "code": code, "again": again,
            "seen": "before" if seen == before else "after" if seen == after else str(seen),
            "ended": forked(look, root)[1] == after != before,
            "left": [str(path) for path in root.rglob("*")
                     if path.suffix in (".new", ".old", ".tmp") or path.name == "syncing"],
        })  # fmt: skip
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:6])
