"""scripts/pyserini_check gives Pyserini the queries that m2dr search searched with."""

from argparse import Namespace
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from world import make_model

from m2dr.core.requests import IndexRequest, SearchRequest
from m2dr.data.qrels import read_topics
from m2dr.evaluate.runs import write_run
from m2dr.index.faiss import load_faiss
from m2dr.tasks.index import index_corpus
from m2dr.tasks.search import Searcher

SCRIPTS = Path(__file__).parents[2] / "scripts"
DEPTH = 10


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = spec_from_loader("check", SourceFileLoader("check", str(SCRIPTS / "pyserini_check")))
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_run_of_any_dtype_agrees_with_a_search_of_the_same_folder(
    dtype: str, script: ModuleType, tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model = make_model(tiny_backbone, tmp_path / "model")
    root, topics, run = tmp_path / "indexes", tmp_path / "topics.tsv", tmp_path / "run.trec"
    report = index_corpus(
        IndexRequest(
            str(tiny_corpus), str(model), (16,), (4,), root=root, device="cpu", dtype=dtype
        )
    )
    topics.write_text(
        "".join(
            f"q{n}\t{text}\n"
            for n, text in enumerate(["read a file", "close the text module class path"])
        )
    )
    asked = SearchRequest(
        str(tiny_corpus), str(model), 4, dim=16, root=root, device="cpu", dtype=dtype
    )
    write_run(Searcher(asked).run(read_topics(topics), DEPTH), run)
    options = Namespace(
        folder=report.folders[0], topics=topics, run=run, model="", query_layer=None, device="cpu",
        dtype=dtype,
    )  # fmt: skip

    assert script.encode(options, tmp_path) == DEPTH
    assert (
        script.compare(
            options, {"rankings": ranked(options.folder, tmp_path), "measured": {}}, DEPTH
        )
        == 0
    )
    assert "They agree." in capsys.readouterr().out


def ranked(folder: Path, work: Path) -> dict[str, list[tuple[str, float]]]:
    """What FAISS alone finds with the vectors that were handed over, as Pyserini does."""
    index = load_faiss().read_index(str(folder / "index"))
    docids = (folder / "docid").read_text().splitlines()
    scores, rows = index.search(np.load(work / "queries.npy"), DEPTH)
    return {
        f"q{n}": [(docids[row], float(score)) for score, row in zip(*pair, strict=True)]
        for n, pair in enumerate(zip(scores, rows, strict=True))
    }
