"""BEIR's own search and evaluation drive a cut of a model."""

import gc
import random
import warnings
from pathlib import Path

import pytest
from world import make_corpus, make_model, ndcg

from m2dr import Encoder

pytest.importorskip("beir")
pytestmark = pytest.mark.filterwarnings("default")  # beir's own are not ours to mend

MACHINE = {"device": "cpu", "dtype": "fp32"}
Loaded = tuple[dict[str, dict[str, str]], dict[str, str], dict[str, dict[str, int]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR folder with graded judgements, several to a query."""
    made = make_corpus(tmp_path_factory.mktemp("beir") / "toy", documents=60)
    generator = random.Random(5)
    rows = [f"q{i}\td{generator.randrange(60)}\t{generator.randint(0, 2)}" for i in range(30, 60)]
    rows += [f"q{i}\td{i}\t2" for i in range(30, 60) if f"q{i}\td{i}\t0" not in rows]
    judged = {tuple(row.split("\t")[:2]): row for row in rows}
    lines = ["query-id\tcorpus-id\tscore", *judged.values()]
    (made / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    return made


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Loaded:
    from beir.datasets.data_loader import GenericDataLoader

    with warnings.catch_warnings():
        # Its files are left open to the garbage collector, which may close them in any later test.
        warnings.simplefilter("ignore", ResourceWarning)
        read = GenericDataLoader(str(folder)).load(split="test")
        gc.collect()
    return read


@pytest.fixture(scope="module", params=["cosine", "dot"])
def model(
    request: pytest.FixtureRequest, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A model with prefixes, and what BEIR calls its similarity."""
    target = tmp_path_factory.mktemp("models") / request.param
    make_model(tiny_backbone, target, similarity=request.param, query_prefix="open ")
    return target, {"cosine": "cos_sim", "dot": "dot"}[request.param]


def ndcg_by_beir(retriever: object, loaded: Loaded, score_function: str) -> float:
    from beir.retrieval.evaluation import EvaluateRetrieval

    corpus, queries, judgements = loaded
    evaluation = EvaluateRetrieval(retriever, k_values=[10], score_function=score_function)
    results = evaluation.retrieve(corpus, queries)
    return evaluation.evaluate(judgements, results, evaluation.k_values)[0]["NDCG@10"]


def test_exact_search_of_beir_with_a_model_scores_as_m2dr_does(
    folder: Path, loaded: Loaded, model: tuple[Path, str], tmp_path: Path
) -> None:
    from beir.retrieval.models import SentenceBERT
    from beir.retrieval.search.dense import DenseRetrievalExactSearch
    from sentence_transformers import SentenceTransformer

    path, score_function = model
    theirs = SentenceBERT(str(path), prompts={"query": "open ", "passage": ""})
    whole = Encoder.from_pretrained(SentenceTransformer(str(path), device="cpu"), **MACHINE)

    cut, whole, expected = (
        ndcg_by_beir(
            DenseRetrievalExactSearch(each, show_progress_bar=False), loaded, score_function
        )
        for each in (Encoder(str(path), 2, 8, **MACHINE), whole, theirs)
    )

    assert cut == pytest.approx(ndcg(folder, path, tmp_path), abs=1e-4)
    assert whole == pytest.approx(expected, abs=1e-4)
