import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run

import m2dr
from m2dr.core.errors import UserError
from m2dr.core.files import sha256_of
from m2dr.core.requests import IndexRequest, VerifyRequest
from m2dr.index.manifest import StoreManifest
from m2dr.index.store import open_store
from m2dr.tasks.indexing.index import index_corpus
from m2dr.tasks.indexing.verify import verify


@pytest.fixture
def folder(tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path) -> Path:
    """A store of the tiny corpus in four shards, with one index."""
    index_corpus(
        IndexRequest(
            str(tiny_corpus), str(tiny_backbone), layers=(2,), dims=(8,), root=tmp_path,
            device="cpu", shard_rows=10,
        )
    )  # fmt: skip
    return next(tmp_path.glob("*/*/layer-02"))


def problems(folder: Path, corpus: Path, sample: int = 4) -> str:
    (verdict,) = verify(
        VerifyRequest((folder,), corpus=str(corpus), sample=sample, device="cpu")
    ).verdicts
    return " ".join(verdict.problems)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_vectors_that_the_model_would_not_give_are_found_by_the_sample(
    folder: Path, tiny_corpus: Path
) -> None:
    """As after a fault that came before the checksum."""
    shutil.rmtree(folder / "dim-8")  # which is of the store as it was
    shard = open_store(folder).manifest.shards[0]
    vectors = np.fromfile(folder / shard.name, "<f2").reshape(10, -1)
    vectors[0] *= -1
    vectors.tofile(folder / shard.name)
    held = StoreManifest.read(folder)
    changed = replace(shard, sha256=sha256_of(folder / shard.name))
    replace(held, shards=(changed, *held.shards[1:])).write(folder)

    told = run("index", "verify", folder, "--corpus", tiny_corpus, "--device", "cpu", "--sample", 4)
    assert (told.exit_code, "WRONG" in told.output) == (2, True)
    assert "'d0'" in problems(folder, tiny_corpus)
    assert "cosine -1.000" in problems(folder, tiny_corpus)
    assert not problems(folder, tiny_corpus, sample=0)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_changed_byte_in_any_file_is_named_and_its_search_refused(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(["file", "list", "decode", "path"], 6)) for _ in range(60)]
    np.save(tmp_path / "v.npy", vectors := generator.normal(size=(60, 8)).astype("f4"))
    np.save(tmp_path / "q.npy", vectors[:1])
    made, given = tmp_path / "made", tmp_path / "given"
    rows = [{"id": f"d{n}", "text": text, "year": 1990 + n} for n, text in enumerate(texts)]
    m2dr.Index.build(tiny_backbone, rows, folder=made, name="c", device="cpu", dims=[8])
    corpus = str(made / "c")
    m2dr.index_import(vectors=tmp_path / "v.npy", corpus=corpus, root=given, rotate="yes")
    by = {"model": tiny_backbone, "device": "cpu"}

    def search(**options: Any) -> None:
        filters = {"filter": "year > 1"} if options.pop("filters", False) else {}
        m2dr.open_index(made / "c", root=made, **by, **options).search("file list", k=3, **filters)

    def search_given(**options: Any) -> None:
        filters = {"filter": "year > 1"} if options.pop("filters", False) else {}
        m2dr.open_index(given / "c", corpus=corpus, **options).search("file list", k=3, **filters)

    def refuses(search: Callable[[], None]) -> bool:
        try:
            search()
        except UserError:
            return True
        return False

    searches = [
        partial(search, layer=0), partial(search, layer=1), partial(search, hybrid=True),
        partial(search, engine="exact"), partial(search, filters=True),
    ]  # fmt: skip
    of_given = [
        search_given,
        partial(search_given, query_vectors=tmp_path / "q.npy"),
        partial(search_given, engine="exact"), partial(search_given, hybrid=True),
        partial(search_given, filters=True),
    ]  # fmt: skip
    assert not any(map(refuses, searches + of_given))
    files = sorted(
        path for path in (*made.rglob("*"), *given.rglob("*"))
        if path.is_file() and path.stat().st_size
    )  # fmt: skip
    assert len(files) > 18
    for record in ("exits.json", "manifest.json"):
        path = next(made.rglob(record))
        path.rename(path.with_name("aside"))
        (verdict,) = m2dr.index_verify(folders=[made], device="cpu", sample=1).verdicts
        assert verdict.problems == (f"{path.parent} holds files without their record, {record}.",)
        path.with_name("aside").rename(path)
    for path in files:
        whole = path.read_bytes()
        flip(path)
        root, own = (made, searches) if made in path.parents else (given, of_given)
        refused = any(map(refuses, own))
        verdicts = m2dr.index_verify(folders=[root], device="cpu", sample=1).verdicts
        told = " ".join(problem for verdict in verdicts for problem in verdict.problems)
        assert path.name in told or path.name == "corpus.jsonl", path
        assert told
        assert refused or path.name == "digests.bin", path
        path.write_bytes(whole)
