"""One searcher over every way to search, from the command line and from Python."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import m2dr
from m2dr.core.errors import UserError
from m2dr.core.requests import IndexRequest, SearchRequest
from m2dr.tasks.indexing.index import index_corpus
from m2dr.tasks.searching import search as verb
from m2dr.tasks.searching.search import open_searcher

TEXTS = ["read a file", "open the list of numbers", "close"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path, tiny_corpus: Path) -> Path:
    """Layers 2 and 4 of the tiny corpus, indexed at dims 8 and 32."""
    root = tmp_path_factory.mktemp("indexes")
    index_corpus(
        IndexRequest(str(tiny_corpus), str(tiny_backbone), dims=(8, 32), layers=(2, 4), root=root)
    )
    return root


@pytest.fixture
def asked(root: Path, tiny_backbone: Path, tiny_corpus: Path) -> dict[str, object]:
    return {"corpus": str(tiny_corpus), "model": str(tiny_backbone), "root": root}


@pytest.fixture(scope="module")
def opened(root: Path, tiny_backbone: Path, tiny_corpus: Path) -> m2dr.Index:
    with pytest.warns(UserWarning, match="L4D8 was not trained"):
        return m2dr.open_index(str(tiny_corpus), model=str(tiny_backbone), root=root, dim=8)


def docids(answers: list[verb.Answer]) -> list[list[str]]:
    return [[hit.docid for hit in answer.hits] for answer in answers]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("layer", "dim"), [(2, 8), (2, 32), (4, 32)])
def test_each_call_may_choose_another_cut(
    layer: int, dim: int, opened: m2dr.Index, asked: dict[str, object]
) -> None:
    answers = opened.search(TEXTS, layer=layer, dim=dim, k=5)

    alone = open_searcher(SearchRequest(layer=layer, dim=dim, **asked))
    assert docids(answers) == [[hit.docid for hit in alone.search(text, 5).hits] for text in TEXTS]


def test_a_folder_above_an_index_names_its_corpus_and_model(
    root: Path, asked: dict[str, object]
) -> None:
    expected = open_searcher(SearchRequest(**asked)).search(TEXTS[0], 3)
    (home,) = {store.parent for store in root.rglob("layer-*")}

    for folder in (home, home.parent, root):
        found = m2dr.open_index(folder).search(TEXTS[0], k=3)
        assert docids([found]) == docids([expected])
        assert found.hits[0].text == expected.hits[0].text
    with pytest.raises(UserError, match="holds no finished index and no store"):
        open_searcher(SearchRequest(index=str(home / "layer-02" / "elsewhere")))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_folder_of_an_index_is_enough_to_search_it(
    root: Path, asked: dict[str, object], tmp_path: Path
) -> None:

    folder = next(root.glob("tiny/*/layer-02/dim-8"))
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    expected = open_searcher(SearchRequest(layer=2, document_layer=2, dim=8, **asked)).answers(
        TEXTS, 4
    )

    for place in (folder, copy):
        index = m2dr.open_index(place)
        answers = index.search(TEXTS, k=4)
        assert docids(answers) == docids(expected)
        assert index.searcher().cut.layer == 2
        assert answers[0].hits[0].text == expected[0].hits[0].text
    index = m2dr.open_index(copy, corpus=str(tmp_path / "gone"))
    with pytest.raises(UserError, match="There is no data set"):
        _ = index.search(TEXTS[0]).hits[0].text


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_threads_find_what_one_finds(opened: m2dr.Index) -> None:
    cuts = [(2, 8), (4, 8), (2, 32), (4, 32)]
    texts = [*TEXTS, "read " * 99]
    expected = {
        (cut, text): docids([opened.search(text, layer=cut[0], dim=cut[1], k=5)])
        for cut in cuts
        for text in texts
    }
    wrong: list[object] = []

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        for _ in range(40):
            cut, text = cuts[generator.integers(4)], texts[generator.integers(4)]
            found = docids([opened.search(text, layer=cut[0], dim=cut[1], k=5)])
            if found != expected[cut, text]:
                wrong.append((cut, text))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))

    assert not wrong
