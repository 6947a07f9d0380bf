"""Grids of the tiny world, against other tools on the files they leave."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from m2dr.core.errors import Interrupted, UserError
from m2dr.core.records import Cut
from m2dr.core.requests import EvaluateRequest, IndexRequest, SearchRequest
from m2dr.evaluation.costs import read_costs
from m2dr.evaluation.grid import LayerScores, read_grid, read_provenance, read_query_scores
from m2dr.evaluation.measures import Evaluator
from m2dr.evaluation.runs import read_run
from m2dr.model.checkpoint import read_card
from m2dr.tasks.corpus import open_corpus
from m2dr.tasks.evaluating import rank as ranking
from m2dr.tasks.evaluating.evaluate import EvaluateReport, evaluate
from m2dr.tasks.indexing.index import index_corpus
from m2dr.tasks.searching.search import open_searcher

LAYERS, DIMS = (2, 4), (8, 16, 32)
CODES = ("f32", "1", "1+")


@pytest.fixture
def place(
    tiny_backbone: Path, tiny_corpus: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with corpora of the names of BEIR, one of which drops the query's document."""
    monkeypatch.delenv("M2DR_DATA", raising=False)
    for name in ("scifact", "arguana"):
        shutil.copytree(tiny_corpus, here / "data" / name)
    # The queries of ArguAna are documents of its corpus.
    folder = here / "data" / "arguana"
    for path in (folder / "queries.jsonl", *(folder / "qrels").iterdir()):
        path.write_text(path.read_text().replace('"q', '"d').replace("\nq", "\nd"))
    rows = [f"d{i}\td{(i + 1) % 40}\t{i % 3}\n" for i in range(32, 40)]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    shutil.copytree(tiny_backbone, here / "model")
    return here


def grid(**fields: object) -> EvaluateReport:
    asked = {"corpora": ("scifact",), "layers": LAYERS, "dims": DIMS, "runs": "all"} | fields
    return evaluate(EvaluateRequest(models=("model",), **asked))


@pytest.mark.usefixtures("place")
def test_the_own_document_is_dropped_where_the_corpus_says_so() -> None:
    report = grid(corpora=("arguana",))

    run = read_run(report.folder / "model" / "runs" / "L4D32.trec")
    assert all(query not in ranking.docids for query, ranking in run.rankings.items())
    assert all(len(ranking.docids) == 39 for ranking in run.rankings.values())
    assert "the query's own document is dropped" in str(report)


@pytest.mark.usefixtures("place")
def test_each_grid_says_how_it_was_made() -> None:
    report = grid(layers=(4,), dims=(8,), command="m2dr evaluate 'a corpus'")
    made = read_provenance(report.folder / "model")

    assert made is not None
    assert (made.model, made.corpus, made.split) == ("model", "scifact", "test")
    assert made.command == "m2dr evaluate 'a corpus'"
    assert made.fingerprint == read_card("model").fingerprint
    assert "torch" in made.versions


@pytest.mark.usefixtures("place")
def test_what_was_measured_is_not_measured_again_unless_something_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranked = []
    first = ranking.grid_top_k
    monkeypatch.setattr(
        ranking,
        "grid_top_k",
        lambda *words, **more: ranked.extend([words[2]] * len(words[0])) or first(*words, **more),
    )
    whole = grid()
    folder = whole.folder / "model"
    assert len(ranked) == 2

    again = grid()
    assert len(ranked) == 2
    assert again.grids == whole.grids

    next((folder / "parts").glob("queries-02-*")).unlink()  # as if killed before it
    assert grid().grids == whole.grids
    assert len(ranked) == 3

    (folder / "runs" / "L4D8.trec").unlink()
    assert grid().grids == whole.grids
    assert len(ranked) == 4

    (more,) = grid(measures=("RR@10",)).grids
    assert more.measures == ("RR@10",)
    assert len(ranked) == 6
    assert grid().grids == whole.grids
    assert len(ranked) == 8

    qrels = Path("data/scifact/qrels/test.tsv")
    qrels.write_text(qrels.read_text().replace("q39\td39", "q39\td0"))
    assert grid().grids != whole.grids
    assert len(ranked) == 10
    assert len(list((folder / "parts").iterdir())) == 2  # what is stale is gone

    grid(overwrite=True)
    assert len(ranked) == 12


@pytest.mark.usefixtures("place")
def test_a_smaller_grid_is_cut_from_a_larger_one(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = grid()
    with monkeypatch.context() as patch:
        patch.setattr(ranking, "grid_top_k", None)  # nothing is ranked
        (found,) = grid(layers=(2,), dims=(8, 32), measures=("nDCG@10",)).grids
        assert grid().grids == whole.grids

    assert found.cuts == (Cut(2, 8), Cut(2, 32))
    assert found.measures == ("nDCG@10",)
    assert all(found.cells[c]["nDCG@10"] == whole.grids[0].cells[c]["nDCG@10"] for c in found.cuts)


@pytest.mark.usefixtures("place")
def test_fewer_cuts_leave_the_others_and_another_model_all(tiny_backbone: Path) -> None:
    (whole,) = grid().grids

    (one,) = grid(layers=(2,), dims=(24,)).grids

    assert one.cuts == (Cut(2, 24),)
    folder = Path("results/scifact/test/model")
    assert read_grid(folder).cells == {**whole.cells, **one.cells}
    assert set(next(iter(read_query_scores(folder).values())).cuts) == {*whole.cuts, *one.cuts}
    other = Path("elsewhere/model")
    shutil.copytree(tiny_backbone, other)
    weights = load_file(other / "model.safetensors")
    save_file(
        {name: tensor.flip(0) for name, tensor in weights.items()}, other / "model.safetensors"
    )
    asked = {"corpora": ("scifact",), "layers": (2,), "dims": (8,)}
    with pytest.raises(UserError, match="holds results of model;"):
        evaluate(EvaluateRequest(models=(str(other),), **asked))
    evaluate(EvaluateRequest(models=(str(other),), overwrite=True, **asked))
    assert read_grid(folder).cuts == (Cut(2, 8),)


@pytest.mark.usefixtures("place")
def test_runs_of_other_weights_are_not_taken_for_those_of_the_model() -> None:
    run = grid().folder / "model" / "runs" / "L4D8.trec"
    of_old_weights = run.read_bytes()
    weights = load_file("model/model.safetensors")
    save_file({name: tensor.flip(0) for name, tensor in weights.items()}, "model/model.safetensors")

    grid(runs="none")
    grid()

    assert run.read_bytes() != of_old_weights


@pytest.mark.usefixtures("place")
def test_a_suite_measures_what_is_here_and_ends_in_the_mean(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = grid(corpora=(), suite="beir13")

    assert [one.grids[0].corpus for one in report.places] == ["arguana", "scifact"]
    assert "2 of 13 corpora of beir13 are here; absent: trec-covid" in capsys.readouterr().err
    (mean,) = report.means
    assert mean.corpus == "beir13-2-of-13"
    pair = [one.grids[0].cells[Cut(4, 32)]["nDCG@10"] for one in report.places]
    assert mean.cells[Cut(4, 32)]["nDCG@10"] == pytest.approx(sum(pair) / 2)
    assert read_grid(Path("results/beir13-2-of-13/model/grid.json")) == mean
    assert "Default measures of BEIR: nDCG@10, R@100" in str(report)


@pytest.mark.usefixtures("place")
def test_costs_are_of_the_documents_that_a_grid_searched() -> None:
    (costs,) = grid(dims=(8,), documents="last", costs=True).costs

    assert costs.document_layer(Cut(2, 8)) == 4
    assert read_costs(Path("results/scifact/test/model.documents-04")) == costs


@pytest.mark.usefixtures("place")
def test_two_corpora_that_would_share_a_folder_are_refused_before_the_first_is_measured() -> None:
    shutil.copytree("data/scifact", "other/scifact")

    with pytest.raises(
        UserError,
        match="The results of scifact and other/scifact would share the folder results/scifact/test",
    ):
        grid(corpora=("scifact", "other/scifact"))

    assert not Path("results").exists()


@pytest.mark.usefixtures("place")
def test_codes_are_an_axis_whose_cells_rank_as_the_engine_does() -> None:
    (plain,) = grid().grids
    folder = Path("results/scifact/test/model")
    before = (folder / "grid.json").read_bytes(), (folder / "grid.csv").read_bytes()

    (coded,) = grid(codes=("f32,int8", "1", "1+")).grids

    assert coded.codes == ("f32", "1", "1+", "int8")
    assert {cut: of for cut, of in coded.cells.items() if cut.code == "f32"} == plain.cells
    assert read_grid(folder).cells == coded.cells
    assert "layer,dim,code,measure" in (folder / "grid.csv").read_text()
    shutil.rmtree(folder)
    grid()
    assert before == ((folder / "grid.json").read_bytes(), (folder / "grid.csv").read_bytes())
    for dim in DIMS:
        index_corpus(IndexRequest("scifact", "model", dims=(dim,), layers=(4,), engines=("int8",)))
        search = SearchRequest(corpus="scifact", model="model", dim=dim, engine="int8")
        searcher = open_searcher(search)
        task = ranking.RankingTask(open_corpus("scifact"), "test", coded.measures)
        run = searcher.run(task.queries, 1000)
        scores = Evaluator(task.judgements, coded.measures).scores(run).mean
        assert scores == pytest.approx(coded.cells[Cut(4, dim, "int8")], abs=1e-6)


@pytest.mark.usefixtures("place")
def test_a_grid_goes_by_the_lengths_of_its_index_and_a_note_names_them() -> None:
    index_corpus(IndexRequest("scifact", "model", dims=(8,), layers=(4,), document_length=6))

    (found,) = grid(documents="last").grids

    own = read_card("model").document_length
    assert f"documents are cut at 6 tokens; the model's default is {own}" in found.notes
    shutil.rmtree("indexes")
    assert grid(documents="last", document_length=6).grids == (found,)


@pytest.mark.usefixtures("place")
def test_documents_are_searched_as_they_were_stored_and_a_note_names_int8() -> None:
    index_corpus(IndexRequest("scifact", "model", dims=(8,), layers=(4,), store="int8"))
    (found,) = grid(documents="last").grids
    shutil.rmtree("indexes")

    (usual,) = grid(documents="last").grids

    assert {*found.notes} - {*usual.notes} == {"vectors of the documents are stored in int8"}
    assert found.cells != usual.cells


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("more", "off"),  # a blend divides by the spread of scores, which is small here
    [({}, 1e-6), ({"hybrid": 0.4}, 1e-3), ({"corpora": ("arguana",)}, 1e-6)],
)
def test_all_documents_scored_again_rank_as_they_are_stored(
    more: dict[str, object], off: float
) -> None:
    report = grid(codes=CODES, **more)
    runs = report.folder / report.grids[0].model / "runs"

    for cut in (Cut(2, 8), Cut(4, 32)):
        stored, few, again = (
            read_run(runs / f"{cut}{code}.trec").rankings for code in ("", "-1", "-1+")
        )
        for query, ranked in stored.items():
            assert again[query].scores == pytest.approx(ranked.scores, rel=1e-5, abs=off)
            scores = dict(zip(again[query].docids, again[query].scores, strict=True))
            by_docid = dict(zip(ranked.docids, ranked.scores, strict=True))
            assert scores == pytest.approx(by_docid, rel=1e-5, abs=off)
        assert few != stored


@pytest.mark.usefixtures("place")
def test_codes_that_were_measured_stay_when_measuring_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = grid(codes=CODES, out=Path("whole")).grids
    measure, done = ranking.GridRanker._measure, []

    def killed(self: ranking.GridRanker, *words: object) -> LayerScores:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(words[:3])
        return measure(self, *words)

    with monkeypatch.context() as patch:
        patch.setattr(ranking.GridRanker, "_measure", killed)
        with pytest.raises(Interrupted, match="after 3 of 6"):
            grid(codes=CODES)
    rest = []
    monkeypatch.setattr(
        ranking.GridRanker, "_measure", lambda *words: rest.append(words[1:4]) or measure(*words)
    )

    assert grid(codes=CODES).grids == whole
    assert len(rest) == 3
    assert not {*rest} & {*done}


@pytest.mark.usefixtures("place")
def test_a_code_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match=r"There is no code '3\+'"):
        grid(codes=("f32", "3+"))
