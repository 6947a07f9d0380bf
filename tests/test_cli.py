"""Mistakes are sentences with exit code 2."""

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from shell import m2dr as run_process

from m2dr.cli import main


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


def refused(*words: str | Path) -> str:
    """What is said about a mistake: nothing but a sentence, and exit code 2."""
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.stderr


@pytest.fixture
def broken(tiny_corpus: Path, tmp_path: Path) -> Path:
    """A copy of the tiny corpus to be spoilt."""
    return Path(shutil.copytree(tiny_corpus, tmp_path / "broken"))


@pytest.fixture(scope="module")
def indexed(
    tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path, tiny_corpus: Path
) -> Path:
    """Indexes of the tiny corpus by the tiny backbone, untrained."""
    root = tmp_path_factory.mktemp("indexes")
    result = run(
        "index", "corpus", "--corpus", tiny_corpus, "--model", tiny_backbone, "--dim", "8",
        "--layer", "2", "--indexes", root,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return root


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trian"], "There is no command 'trian'. Did you mean train?"),
        (["train", "--variant", "ful-dim"], "unknown variant 'ful-dim' (Did you mean full-dim?)"),
        (["train", "--set", "temprature=1"], "unknown setting 'temprature' (Did you mean temperature?)"),
        (["train", "--set", "steps"], "--set takes key=value"),
        (["train", "--set", "steps=many"], "steps = 'many' is not a whole number"),
        (["train", "--set", "variant=ful-dim"], "unknown variant 'ful-dim' (Did you mean full-dim?)"),
        (["train", "--set", "learning_rate=0", "--set", "warmup=2"], "learning_rate must be above 0; warmup"),
        (["train", "--config", "nowhere.toml"], "The settings file nowhere.toml cannot be read"),
        (["train", "--steps", "3k"], "'3k' is not a whole number."),
        (["train", "--layers", "2,x"], "'x' is not a whole number from 0"),
        (["train", "--dims", "0"], "'0' is not a whole number from 1"),
        (["train", "--variant", "plain", "--dims", "8"], "trains no prefixes, so dims = [8] would do nothing"),
        (["train", "--variant", "2dmse", "--dims", "8,16"], "trains one prefix"),
        (["train", "--variant", "plain", "--layers", "2"], "trains no shallow layers"),
        (["train", "--layers", "7"], "Layer 7 was asked for; this encoder has 4"),
        (["train", "--dims", "64"], "Dim 64 was asked for; this backbone has 32"),
        (["train", "--device", "gpu"], "--device gpu names no device"),
        (["train", "--corpus", "nowhere/else"], "There is no data set 'nowhere/else'"),
        (["train", "--corpus", "pydoc"], "Did you mean pydocs?"),
        (["train", "--set", "split=tain"], "tain"),
        (["train", "--backbone", "./nowhere"], "There is no model folder ./nowhere"),
        (["train", "--resume"], "was never begun"),
        (["train", "--resume", "--overwrite"], "give one of them"),
        (["train", "--set", "document_length=513"], "reads 512 tokens at most"),
        (["train", "--set", "epochs=inf"], "epochs = inf is not a number"),
        (["train", "--set", "epochs=-1.0"], "epochs cannot be below 0"),
        (["train", "--seed", "99999999999"], "seed must be below 4294967296"),
        (["train", "--dims", "²"], "'²' is not a whole number from 1"),
        (["train", "--device", "meta"], "--device meta is not supported"),
        (["search", "--topics", "t.tsv", "--run", "r.trec", "text"], "give one of them"),
        (["index", "corpus", "--layer", "9"], "Layer 9 was asked for; this encoder has 4"),
        (["index", "corpus", "--dim", "33"], "Dim 33 was asked for; an embedding of this encoder has 32"),
        (["index", "corpus", "--resume", "--overwrite"], "give one of them"),
        (["index", "corpus", "--engine", "flatt"], "Did you mean flat?"),
        (["search", "read"], "There is no index of tiny by model"),
        (["search"], "Nothing to search for"),
        (["search", " "], "The query is empty; give it a word"),
        (["search", "read", "--runtime", "onxx"], "There is no index of tiny by model"),
        (["search", "read", "--search-param", "nprobe"], "'--search-param': 'nprobe' is no name=number, such as nprobe=32"),
        (["search", "read", "--index", "nowhere"], "nowhere holds no finished index and no store"),
        (["search", "read", "--index", "milvus:"], "names no server"),
        (["search", "--topics", "t.tsv", "--run", "r.trec"], "t.tsv cannot be read"),
        (["search", "--topics", "t.tsv"], "give both"),
        (["evaluate", "beir", "--corpus", "CORPUS", "--split", "tets"], "tets"),
        (["evaluate", "beir", "--corpus", "CORPUS", "--measure", "ndcg"], "nDCG"),
        (["evaluate", "beir", "--corpus", "CORPUS", "--dims", "40"], "Dim 40 was asked for"),
        (["evaluate", "--corpus", "CORPUS"], "here. Write a command before its options: "),
        (["evaluate", "sts"], "Missing option '--task'"),
        (["evaluate", "sts", "--task", "nowhere.tsv"], "There is no task 'nowhere.tsv'"),
        (["evaluate", "sts", "--task", "x", "--measure", "kendall"], "'kendall' is not one of 'spearman', 'pearson'"),
        (["export", "--layers", "5", "--out", "small"], "Layer 5 was asked for; this encoder has 1 to 4"),
        (["mine", "--out", "g.jsonl"], "There is no index of tiny by"),
        (["mine", "--out", "g.jsonl", "--query-layer", "5"], "Layer 5 was asked for; this encoder has 4"),
        (["mine", "--out", "g.jsonl", "--corpus", "pydoc"], "Did you mean pydocs?"),
        (["mine", "--out", "g.jsonl", "--split", "tain"], "has no split 'tain'. Did you mean train?"),
        (["mine", "--out", "g.jsonl", "--margin", "1.5"], "--margin 1.5 was asked for; it is the share"),
        (["mine", "--out", "g.jsonl", "--depth", "8"], "--depth 8 less --skip 0 leaves 8 candidates"),
        (["mine", "--out", "g.jsonl", "--retriever", "bm25"], "leave them out with BM25"),
        (["mine", "--out", "CORPUS/corpus.jsonl"], "corpus.jsonl exists; choose another --out"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(
    words: list[str],
    sentence: str,
    tiny_backbone: Path,
    tiny_corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word.replace("CORPUS", str(tiny_corpus)) for word in words]
    verb = words[0]
    if verb == "train" and "--backbone" not in words:
        words += ["--backbone", str(tiny_backbone)]
    if verb in ("train", "index", "search", "mine") and "--corpus" not in words:
        words += ["--corpus", str(tiny_corpus)]
    if verb in ("index", "search", "evaluate", "export", "mine"):
        words += ["--model", str(tiny_backbone)]

    told = refused(*words)

    assert sentence in " ".join(told.split())
    assert not (tmp_path / "models").exists()


def spoil(path: Path, line: int, text: str) -> None:
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("corpus.jsonl", "{not json", "corpus.jsonl, line 3: is not JSON"),
        ("corpus.jsonl", '{"_id": "d0", "text": "again"}', "d0"),
        ("corpus.jsonl", '{"_id": "a\\tb", "text": "tab"}', "holds whitespace"),
        ("corpus.jsonl", '{"_id": "a\\nb", "text": "newline"}', "holds whitespace"),
        ("corpus.jsonl", '{"text": "no id"}', "has no '_id'"),
        ("qrels/test.tsv", "q33\td33\tmuch", "line 3"),
    ],
)
def test_a_malformed_line_is_named(
    file: str, text: str, sentence: str, broken: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    spoil(broken / file, 3, text)

    told = refused(
        "evaluate", "beir", "--corpus", broken, "--model", tiny_backbone,
        "--indexes", tmp_path / "i", "--out", tmp_path / "r",
    )  # fmt: skip

    assert sentence in told
    assert not list(tmp_path.glob("i/**/store.json"))


@pytest.mark.parametrize("spoilt", ["missing", "empty", "folder"])
def test_a_corpus_that_is_none_is_named(
    spoilt: str, broken: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    if spoilt == "missing":
        (broken / "corpus.jsonl").unlink()
    elif spoilt == "empty":
        (broken / "corpus.jsonl").write_text("")
    else:
        broken = tmp_path

    told = refused(
        "index", "corpus", "--corpus", broken, "--model", tiny_backbone, "--indexes", tmp_path / "i"
    )

    assert "corpus.jsonl" in told
    assert not list(tmp_path.glob("i/**/store.json"))


@pytest.fixture
def index_copy(indexed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(indexed, tmp_path / "copy"))


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("dim-8/index", "cut"),
        ("dim-8/index", "flip"),
        ("dim-8/index", "remove"),
        ("dim-8/docid", "cut"),
        ("dim-8/manifest.json", "cut"),
        ("dim-8/manifest.json", "remove"),
    ],
)
def test_a_damaged_index_is_refused_with_the_command_that_builds_it(
    file: str, damage: str, index_copy: Path, tiny_backbone: Path, tiny_corpus: Path
) -> None:
    path = next(index_copy.glob(f"tiny/*/layer-02/{file}"))
    content = path.read_bytes()
    if damage == "remove":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    told = refused(
        "search", "--corpus", tiny_corpus, "--model", tiny_backbone, "--query-layer", "2", "--dim",
        "8", "--indexes", index_copy, "read",
    )  # fmt: skip

    assert f"m2dr index corpus --corpus {tiny_corpus} --model {tiny_backbone} " in told
    assert {"--layer 2", "--dim 8"} <= set(re.findall(r"--\w+ \d+", told))


def test_an_index_of_another_model_is_refused(
    index_copy: Path, backbone, tiny_corpus: Path
) -> None:
    from m2dr.model.checkpoint import read_card

    other = backbone("roberta")
    home = next(index_copy.glob("tiny/*"))
    home.rename(home.parent / read_card(other).fingerprint[:12])

    told = refused(
        "search", "--corpus", tiny_corpus, "--model", other, "--query-layer", "2", "--dim", "8",
        "--indexes", index_copy, "read",
    )  # fmt: skip

    assert "were encoded by model" in told
    assert "Search with the first model" in told


def test_an_untrained_cut_is_named_as_such(
    indexed: Path, tiny_backbone: Path, tiny_corpus: Path
) -> None:
    result = run(
        "search", "--corpus", tiny_corpus, "--model", tiny_backbone, "--query-layer", "2", "--dim",
        "8", "--indexes", indexed, "read",
    )  # fmt: skip

    assert result.exit_code == 0
    assert "L2D8 was not trained" in result.stderr


def test_a_folder_that_cannot_be_written_is_named(
    tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")

    told = refused(
        "index", "corpus", "--corpus", tiny_corpus, "--model", tiny_backbone,
        "--indexes", tmp_path / "file",
    )  # fmt: skip

    assert "file" in told


def test_a_full_disk_is_a_sentence_and_leaves_no_finished_index(
    tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno
    import os

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    told = refused(
        "index", "corpus", "--corpus", tiny_corpus, "--model", tiny_backbone,
        "--indexes", tmp_path,
    )  # fmt: skip
    monkeypatch.undo()

    assert "disk" in told.lower() or "space" in told.lower()
    assert not list(tmp_path.glob("**/store.json"))


def test_a_model_folder_is_never_overwritten_unasked(
    tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    words = ("--corpus", tiny_corpus, "--backbone", tiny_backbone, "--batch-size", "4")

    told = refused("train", *words, "--out", tmp_path)

    assert "holds other files; choose another --out" in told
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("words", [("train", "--out"), ("export", "--layers", "2", "--out")])
def test_a_folder_below_a_file_is_a_sentence(
    words: tuple[str, ...], tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    train = ("--corpus", tiny_corpus, "--backbone", tiny_backbone, "--batch-size", "4")
    rest = train if words[0] == "train" else ("--model", tiny_backbone)

    assert "There is a file where a folder should be" in refused(
        *words, tmp_path / "file" / "x", *rest
    )


def test_a_corpus_that_changed_since_it_was_encoded_is_refused(
    broken: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    words = (
        "index", "corpus", "--corpus", broken, "--model", tiny_backbone, "--indexes", tmp_path,
    )  # fmt: skip
    assert run(*words).exit_code == 0
    spoil(broken / "corpus.jsonl", 3, '{"_id": "d2", "text": "something else"}')

    told = refused(*words)

    assert "broken has changed since encoding began" in told
    assert run(*words, "--overwrite").exit_code == 0


def test_weights_beside_an_interrupted_training_are_no_model(
    backbone, tiny_corpus: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(backbone("bert"), tmp_path / "model"))
    (folder / "checkpoints").mkdir()

    told = refused("index", "corpus", "--corpus", tiny_corpus, "--model", folder)

    assert "holds a training that is not finished" in told


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("config.json", "{", "config.json, line 1: is not JSON"),
        ("config.json", "{}", "config.json cannot be read"),
        ("config.json", '{"model_type": "clip"}', "whose layers are not described"),
        ("config_sentence_transformers.json", "{", "is not JSON"),
        ("model.safetensors", "half", "cannot be loaded"),
    ],
)
def test_a_damaged_backbone_is_a_sentence(
    file: str, content: str, sentence: str, backbone, tiny_corpus: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(backbone("bert"), tmp_path / "model"))
    (folder / file).write_text(content)

    told = refused(
        "index", "corpus", "--corpus", tiny_corpus, "--model", folder, "--indexes", tmp_path / "i"
    )

    assert sentence in told


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = run_process("train", "--set", "stepz=1", "--debug", cwd=tmp_path)

    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "unknown setting 'stepz'" in done.stderr


def test_explain_prints_the_terms_and_trains_nothing(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    result = run("train", "--variant", "dims", "--backbone", tiny_backbone, "--explain")

    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["L2D8", "contrastive", "0.5906"] in rows
    assert ["L4D32", "contrastive", "1.0000"] in rows
    assert not list(tmp_path.iterdir())


def test_topics_with_a_repeated_id_are_refused(
    indexed: Path, tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    topics = tmp_path / "topics.jsonl"
    topics.write_text("".join(json.dumps({"_id": "q1", "text": t}) + "\n" for t in ("a", "b")))

    told = refused(
        "search", "--corpus", tiny_corpus, "--model", tiny_backbone, "--query-layer", "2",
        "--indexes", indexed, "--topics", topics, "--run", tmp_path / "run.trec",
    )  # fmt: skip

    assert "topics.jsonl, line 2: the id 'q1' is already used in line 1" in told
    assert not (tmp_path / "run.trec").exists()


def test_sentence_similarity_prints_a_table_and_where_the_figure_lies(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    rows = ["score\tsentence1\tsentence2", "5\tread\topen", "1\tlist\ttext", "3\tfile\tpath"]
    (tmp_path / "pairs.tsv").write_text("\n".join(rows) + "\n")

    result = run(
        "evaluate", "sts", "--task", tmp_path / "pairs.tsv", "--model", tiny_backbone, "--layers",
        "2,4", "--dims", "8", "--measure", "pearson", "--out", tmp_path / "r",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == f"{tiny_backbone.name}: Pearson on pairs, 3 pairs, * best"
    assert lines[-1] == str(tmp_path / "r" / "pairs" / f"{tiny_backbone.name}_Pearson.png")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "t.tsv holds no queries"),
        (b"q1\tread\nq2\tcaf\xe9\n", "t.tsv, line 2: is not UTF-8 (byte 7 of the line)"),
        (b"q1\t \n", "t.tsv, line 1"),
        (b"q 1\tread\n", "holds whitespace, which run files cannot hold"),
    ],
)
def test_topics_that_cannot_be_searched_are_named(
    content: bytes, sentence: str, indexed: Path, tiny_backbone: Path, tiny_corpus: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    (tmp_path / "t.tsv").write_bytes(content)

    told = refused(
        "search", "--corpus", tiny_corpus, "--model", tiny_backbone, "--query-layer", "2",
        "--indexes", indexed, "--topics", tmp_path / "t.tsv", "--run", tmp_path / "r.trec",
    )  # fmt: skip

    assert sentence in told
    assert not (tmp_path / "r.trec").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--dim", "16"), "by --engine exact, or build it with: m2dr index corpus --corpus"),
        (("--dim", "8", "--runtime", "onxx"), "There is no runtime 'onxx'. Did you mean onnx?"),
        (("--dim", "8", "--runtime", "onnx", "--dtype", "bf16"), "multiplies in fp32, not in bf16"),
        (("--dim", "8", "--search-param", "nprobe=4"), "has no search-time setting 'nprobe'"),
        (("--funnel", "8:x"), "The funnel '8:x' ends in '8:x', not in a dim"),
        (("--funnel", "8:20,32", "--dim", "8"), "--funnel ends at dim 32 and --dim 8"),
        (("--funnel", "8:20,32", "--engine", "flat"), "give one of them"),
        (("--engine", "exact", "--search-param", "nprobe=4"), "this way to search has none"),
    ],
)
def test_a_way_to_search_that_is_none_is_named(
    words: tuple[str, ...], sentence: str, indexed: Path, tiny_backbone: Path, tiny_corpus: Path
) -> None:
    told = refused(
        "search", "--corpus", tiny_corpus, "--model", tiny_backbone, "--query-layer", "2",
        "--indexes", indexed, *words, "read",
    )  # fmt: skip

    assert sentence in told


def test_more_documents_than_there_are_and_a_long_query_are_said_once(
    indexed: Path, tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    topics = tmp_path / "t.tsv"
    topics.write_text("a\tread\nb\t" + "read " * 999 + "\nc\t" + "file " * 999 + "\n")

    result = run(
        "search", "--corpus", tiny_corpus, "--model", tiny_backbone, "--query-layer", "2", "--dim",
        "16", "--engine", "exact", "--indexes", indexed, "--topics", topics, "--run",
        tmp_path / "r.trec", "-k", "99", "--report",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    assert result.stderr.count("99 documents per query were asked for, and tiny holds 40") == 1
    assert result.stderr.count("2 of 3 queries are longer than") == 1
    assert len((tmp_path / "r.trec").read_text().splitlines()) == 3 * 40
    assert "recall@40 1.0000 of a full scan over 3 queries" in result.stdout


def test_an_index_of_a_newer_format_is_refused(
    index_copy: Path, tiny_backbone: Path, tiny_corpus: Path
) -> None:
    manifest = next(index_copy.glob("tiny/*/layer-02/dim-8/manifest.json"))
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 99}))

    told = refused(
        "search", "--corpus", tiny_corpus, "--model", tiny_backbone, "--query-layer", "2", "--dim",
        "8", "--indexes", index_copy, "read",
    )  # fmt: skip

    assert "has format 99, and this m2dr reads format" in told
