"""What was named once when an index was built holds for every later command of it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import done, refused
from world import TEXT, WORDS, make_model

import m2dr
from m2dr.index.bm25 import Bm25
from m2dr.index.docids import Docids
from m2dr.index.folder import IndexFolder
from m2dr.maps.files import Maps
from m2dr.tasks.corpus import WRITTEN

pytestmark = pytest.mark.usefixtures("exits_of_few")
WHERE = ("--model", "model", "--device", "cpu", "--dtype", "fp32")
# Options that are named at building, and the corpus that they are of.
NAMED = {
    "store": ("kept", "--store", "f32"),
    "language": ("kept", "--language", "german"),
    "queries": ("kept", "--queries", "log.txt"),
    "weight": ("kept", "--queries", "log.txt", "--query-weight", "0.7"),
    "no exits": ("kept", "--no-exits"),
    "lengths": ("kept", "--document-length", "9", "--query-length", "7"),
    "columns": ("named.jsonl", "--columns", "text=Words,id=Key"),
    "passages": ("plain.jsonl", "--passages", "6:1"),
}


def write_rows(path: Path, name: str = "text", key: str = "_id", count: int = 24) -> None:
    draw = np.random.default_rng(13)
    texts = [" ".join(draw.choice(WORDS, 13)) for _ in range(count)]
    lines = [json.dumps({key: f"d{n}", name: text}) + "\n" for n, text in enumerate(texts)]
    path.write_text("".join(lines))


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path
) -> Callable[[str], tuple[Path, str]]:
    """A folder with the index of a row of NAMED at layer 4, and its corpus."""
    start, made = tmp_path_factory.mktemp("start"), dict[str, Path]()
    make_model(tiny_backbone, start / "model", similarity="cosine")
    for folder in ("kept", "queries"):
        (start / folder).mkdir()
    write_rows(start / "kept" / "corpus.jsonl")
    (start / "kept" / WRITTEN).touch()
    write_rows(start / "plain.jsonl")
    write_rows(start / "named.jsonl", "Words", "Key")
    (start / "log.txt").write_text("".join(f"{' '.join(WORDS[n : n + 3])}\n" for n in range(9)))
    queries = [json.dumps({"_id": f"q{n}", "text": WORDS[n]}) + "\n" for n in range(4)]
    (start / "kept" / "queries.jsonl").write_text("".join(queries))
    (start / "kept" / "qrels").mkdir()
    judged = "".join(f"q{n}\td{n}\t1\n" for n in range(4))
    (start / "kept" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)

    def get(name: str) -> tuple[Path, str]:
        corpus, *words = NAMED[name]
        if name not in made:
            made[name] = tmp_path_factory.mktemp("built")
            shutil.copytree(start, made[name], dirs_exist_ok=True)
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(made[name])
                patch.setattr("m2dr.maps.files.FEWEST_DOCUMENTS", 1)
                done("index", "corpus", corpus, *words, *WHERE, "--layer", "4")
        return made[name], corpus

    return get


def further(*words: str) -> Callable[[str], object]:
    return lambda corpus: done("index", "corpus", corpus, *words, *WHERE)


def fit(corpus: str) -> None:
    done("index", "fit", corpus, *WHERE, "--overwrite")


def load(corpus: str) -> None:
    """Import the vectors of layer 4 as those of layer 3."""
    store = folder().store(4)
    np.save("v.npy", np.asarray(store.rows(range(store.documents)), np.float32))
    Path("ids.txt").write_text("".join(f"{docid}\n" for docid in store.docids))
    done(
        "index", "import", "v.npy", "--corpus", corpus, *WHERE, "--layer", "3", "--ids", "ids.txt",
        "--sample", "0",
    )  # fmt: skip


def grow(corpus: str) -> None:
    name, key = ("Words", "Key") if corpus == "named.jsonl" else ("text", "_id")
    path = Path(corpus) / "corpus.jsonl" if Path(corpus).is_dir() else Path(corpus)
    write_rows(path, name, key, 26)
    done("index", "corpus", corpus, *WHERE, "--layer", "4")


def add(corpus: str) -> None:
    m2dr.open_index(corpus, model="model", device="cpu", dtype="fp32").add({"new": "open a file"})


def delete(corpus: str) -> None:
    m2dr.open_index(corpus, model="model", device="cpu", dtype="fp32").delete("d3")


def grid(corpus: str) -> None:
    done("evaluate", "retrieval", corpus, *WHERE, "--layers", "2,4", "--documents", "same")


LATER: dict[str, Callable[[str], object]] = {
    "again": further("--layer", "4"),
    "layer": further("--layer", "2"),
    "dim": further("--dim", "8", "--layer", "4"),
    "overwrite": further("--overwrite", "--layer", "4"),
    "sync": grow,
    "add": add,
    "delete": delete,
    "fit": fit,
    "import": load,
    "grid": grid,
}
NO_FOLDER = "has no corpus.jsonl to change: change it, then run m2dr index corpus"
REFUSED = {  # of a corpus in a file
    "add": NO_FOLDER,
    "delete": NO_FOLDER,
    "grid": "has no judged queries|it has no value under any of text",
}


def folder() -> IndexFolder:
    (path,) = Path("indexes").glob("*/????????????")
    return IndexFolder(path)


def what_is() -> dict[str, object]:
    """What an index is, of what can be named."""
    index = folder()
    bm25 = Bm25.open(index.bm25, Docids(b""))
    fitted = Maps(index).record.fit if Maps(index).are_fitted else None
    assert bm25
    assert fitted is None or fitted.language == bm25.language
    stores = index.stores()
    return {
        "store": {store.manifest.dtype for store in stores},
        "lengths": {
            (s.manifest.label.document_length, s.manifest.label.query_length) for s in stores
        },
        "language": bm25.language,
        "queries": fitted and fitted.queries,
        "weight": fitted and fitted.query_weight,
        "no exits": fitted is None,
        "passages": {docid.partition("#")[2] for store in stores for docid in store.docids},
    }


@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("name", NAMED)
def test_what_was_named_once_holds_for_later_commands(
    name: str,
    later: str,
    built: Callable[[str], tuple[Path, str]],
    here: Path,
) -> None:
    place, corpus = built(name)
    shutil.copytree(place, here, dirs_exist_ok=True)
    before = what_is()

    if corpus != "kept" and later in REFUSED:
        with pytest.raises((m2dr.UserError, AssertionError), match=REFUSED[later]):
            LATER[later](corpus)
    else:
        LATER[later](corpus)

    if (name, later) == ("no exits", "fit"):  # which is what it is for
        before |= {"no exits": False, "queries": 0, "weight": 0.0}
    assert what_is() == before


@pytest.mark.parametrize(
    ("name", "words", "found"),
    [
        ("store", ("--store", "f16", "--layer", "4"), "has dtype 'f32', not 'f16'"),
        ("lengths", ("--document-length", "8", "--layer", "2"), "has document_length 9, not 8"),
        ("no exits", ("--queries", "log.txt"), "was asked to have none"),
    ],
)
def test_what_does_not_go_with_what_was_named_once_is_refused(
    name: str,
    words: tuple[str, ...],
    found: str,
    built: Callable[[str], tuple[Path, str]],
    here: Path,
) -> None:
    place, corpus = built(name)
    shutil.copytree(place, here, dirs_exist_ok=True)
    before = what_is()

    assert found in refused("index", "corpus", corpus, *words, *WHERE)

    assert what_is() == before


def test_documents_that_are_added_are_divided_as_those_of_the_build(
    built: Callable[[str], tuple[Path, str]], here: Path
) -> None:
    shutil.copytree(built("store")[0], here, dirs_exist_ok=True)
    index = m2dr.Index.build("model", {"a": TEXT}, name="mine", passages=[4, 1], device="cpu")

    m2dr.open_index("indexes/mine", model="model", device="cpu").add({"b": TEXT})

    docids = [*m2dr.open_index("indexes/mine", model="model").searcher().documents.docids]
    assert len(index) > 2
    assert docids[len(index) :] == [docid.replace("a", "b") for docid in docids[: len(index)]]
