"""m2dr export: cuts as folders and graphs, what is told of them, and what is refused."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from world import make_fitted

import m2dr
from m2dr.cli import main
from m2dr.core.errors import UserError
from m2dr.core.requests import ExportRequest
from m2dr.model.cut_readme import read_exported
from m2dr.tasks import export as verb
from m2dr.tasks.encoder import QueryEncoder
from m2dr.tasks.figures import read_results

TEXTS = ["open the file", "a list of numbers and a class of text and a line of words", "path"]
GRAPHS = ("onnx", "openvino")

# Runs the lines of a graph's README where neither m2dr nor torch can be imported.
ELSEWHERE = r"""
import json, re, sys
from pathlib import Path
sys.modules["m2dr"] = sys.modules["torch"] = None
import numpy as np
texts, found = json.loads(sys.argv[1]), {}
for folder in map(Path, sys.argv[3:]):
    page = (folder / "README.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    block = block.replace("FOLDER", str(folder)).replace('["a question"]', repr(texts))
    names = {}
    exec(block, names)
    alone = [names["encode"]([text], "", 256)[0] for text in texts]
    found[folder.name] = np.stack([names["queries"], alone])
np.savez(sys.argv[2], **found)
"""


def run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["export", *map(str, words)])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def all_layers(tiny_fitted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose exits read the states of all layers up to theirs."""
    place = tmp_path_factory.mktemp("all-layers")
    return make_fitted(tiny_fitted, place / "fitted", inputs="all-layers")


@pytest.fixture(scope="module")
def graphs(
    tiny_fitted: Path, all_layers: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, Path]]:
    """Graphs of two models, by name, with their models."""
    place, found = tmp_path_factory.mktemp("graphs"), {}
    for model, form in ((tiny_fitted, "onnx"), (tiny_fitted, "openvino"), (all_layers, "onnx")):
        out = place / f"{model.name}-{form}"
        code, told, noted = run(model, "--cut", "L2D8", "--format", form, "--out", out)
        assert code == 0, noted
        lowest = re.search(r"Lowest cosine to the vectors of torch in fp32: (\S+)", told)
        assert lowest
        assert float(lowest[1]) >= 0.9999
        assert f"m2dr export {model} --cut L4D8 --format {form}" in noted
        found[out.name] = out, model
    return found


def test_graphs_give_the_vectors_of_the_cut_without_torch_and_m2dr(
    graphs: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    folders = [str(folder) for folder, _ in graphs.values()]
    file = tmp_path / "found.npz"
    line = [sys.executable, "-W", "ignore", "-c", ELSEWHERE, json.dumps(TEXTS), str(file), *folders]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = np.load(file)
    for name, (_, model) in graphs.items():
        encoder = m2dr.Encoder.from_pretrained(model, 2, 8, device="cpu", dtype="fp32")
        together, alone = found[name]
        np.testing.assert_allclose(together, encoder.encode_queries(TEXTS), atol=1e-4)
        np.testing.assert_allclose(alone, together, atol=1e-4)


@pytest.mark.parametrize("form", GRAPHS)
def test_int8_weights_are_small_and_say_what_they_lose(
    form: str, tiny_fitted: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "small"
    code, told, noted = run(
        tiny_fitted, "--cut", "L2D8", "--format", form, "--int8", "--corpus", tiny_corpus,
        "--out", out,
    )  # fmt: skip
    assert code == 0, noted
    record = read_exported(out)
    assert record
    assert record.int8
    assert record.int8.cosine > 0.999
    assert abs(record.int8.loss) < 0.05
    assert f"is {record.int8.cosine:.5f} in the mean" in told
    assert f"a loss of {record.int8.loss:.4f}" in told
    if form == "onnx":
        kinds = {one.data_type for one in onnx.load(out / "model.onnx").graph.initializer}
        assert onnx.TensorProto.INT8 in kinds
    else:
        assert 'element_type="i8"' in (out / "model.xml").read_text()
    asked = ExportRequest(out=out)
    verb.refuse_loss(asked, record)
    for worse in ({"cosine": 0.998}, {"value": record.int8.fp32 - 0.03}):
        bad = replace(record, int8=replace(record.int8, **worse))
        verb.refuse_loss(replace(asked, force=True), bad)
        with pytest.raises(UserError, match="int8 weights of L2D8 lose too much: on 8 queries"):
            verb.refuse_loss(asked, bad)
    page = (out / "README.md").read_text()
    assert "Its weights are int8. On 8 queries and 40 documents of" in page


def test_a_folder_shows_the_scores_and_costs_of_its_cut_and_is_a_model(
    tiny_fitted: Path, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    grid = m2dr.evaluate(tiny_fitted, str(tiny_corpus), layers=[2, 4], dims=[8, 32])
    (result,) = read_results([Path("results")])
    assert result.grid.cells

    code, told, noted = run(tiny_fitted, "--cut", "L2D8", "--out", "small")

    assert code == 0, noted
    value = grid.values("nDCG@10")
    page = Path("small", "README.md").read_text()
    mine, full = (next(v for c, v in value.items() if str(c) == n) for n in ("L2D8", "L4D32"))
    assert f"nDCG@10 {mine:.4f}, {full:.4f} of L4D32" in told
    assert f"| nDCG@10 | {mine:.4f} | {full:.4f} |" in page
    assert "| bytes of a document in an index | 32 | 128 |" in page
    card = CliRunner().invoke(main, ["card", "small"])
    assert card.exit_code == 0, card.stderr
    assert f"| nDCG@10 | {mine:.4f} | {full:.4f} |" in Path("small", "README.md").read_text()
    small = m2dr.Encoder.from_pretrained("small", device="cpu")
    index = m2dr.Index.build(small, str(tiny_corpus), dims=[8])
    assert len(index.search("open the file", k=3).hits) == 3
    code, _, noted = run("small", "--cut", "L1D8", "--out", "smaller")
    assert (code, noted.count("\n")) == (2, 1)
    assert f"which is L2D8 of {tiny_fitted.name}" in noted
    assert "m2dr export" in noted


def test_python_writes_the_folder_that_the_command_writes(
    tiny_fitted: Path, tmp_path: Path
) -> None:
    run(tiny_fitted, "--cut", "L2D8", "--out", tmp_path / "one")
    run("--model", tiny_fitted, "--layers", 2, "--dim", 8, "--out", tmp_path / "two")
    encoder = m2dr.Encoder.from_pretrained(tiny_fitted, device="cpu", dtype="fp32").cut(2, 8)

    encoder.save_pretrained(tmp_path / "three")

    files = sorted(p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*.*"))
    for other in ("two", "three"):
        for name in files:
            mine, theirs = (tmp_path / folder / name for folder in ("one", other))
            assert mine.read_bytes() == theirs.read_bytes(), name
    assert encoder.document_layer == 4
    again = m2dr.Encoder.from_pretrained(tmp_path / "three", device="cpu", dtype="fp32")
    np.testing.assert_allclose(
        again.encode_queries(TEXTS), encoder.encode_queries(TEXTS), atol=1e-6
    )


def test_exits_of_an_index_are_exported(
    tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = m2dr.Encoder.from_pretrained(tiny_backbone, device="cpu", dtype="fp32")
    m2dr.Index.build(model, str(tiny_corpus), dims=[32])
    (exits,) = Path("indexes").glob("*/*/exits")

    code, _, noted = run(
        tiny_backbone, "--cut", "L2D8", "--exits", exits, "--out", tmp_path / "small"
    )

    assert code == 0, noted
    assert "L2D8 encodes queries, and finds documents of L4D8 best" in noted
    opened = QueryEncoder(str(tiny_backbone), 2, "torch", "cpu", "fp32", exits)
    expected = opened.embed(opened.tokenize(TEXTS))[:, :8]
    again = m2dr.Encoder.from_pretrained(tmp_path / "small", device="cpu", dtype="fp32")
    found = again.encode_queries(TEXTS)
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    cosine = again.card.similarity == "cosine"
    np.testing.assert_allclose(found, unit if cosine else expected, atol=1e-5)


def test_an_untrained_cut_is_refused_unless_it_is_forced(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    words = tiny_backbone, "--cut", "L2D8", "--out", tmp_path / "out"
    code, _, noted = run(*words)
    assert code == 2
    assert noted.count("\n") == 1
    assert "L2D8 of" in noted
    assert f"m2dr fit --backbone {tiny_backbone}" in noted
    assert not (tmp_path / "out").exists()
    assert run(*words, "--force")[0] == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--cut", "L2D8", "--corpus", "scifact"), "is of the sample of --int8, which was not"),
        (("--cut", "L4D32", "--exits", "x/exits"), "are those of layers below 4, the last one of"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    words: tuple[str, ...], sentence: str, tiny_fitted: Path, tmp_path: Path
) -> None:
    code, _, noted = run(tiny_fitted, *words, "--out", tmp_path / "cut")

    assert code == 2
    assert sentence in noted
    assert not (tmp_path / "cut").exists()


def test_an_export_into_the_model_is_refused(tiny_fitted: Path) -> None:
    before = sorted(tiny_fitted.rglob("*"))
    for out in (tiny_fitted / "small", tiny_fitted / "a" / ".." / "b", tiny_fitted):
        code, _, noted = run(tiny_fitted, "--cut", "L2D8", "--out", out)
        assert (code, noted.count("\n")) == (2, 1), noted
        assert "lies in the folder of the model" in noted
    assert sorted(tiny_fitted.rglob("*")) == before


def test_a_graph_without_its_library_names_the_extra(
    tiny_fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = replace(verb.require_graph("onnx", ""), packages=("absent_library",))
    monkeypatch.setitem(verb.require_graph.__globals__["RUNTIMES"], "onnx", kind)

    code, _, noted = run(tiny_fitted, "--cut", "L2D8", "--format", "onnx", "--out", tmp_path / "o")

    assert code == 2
    assert "absent_library is not installed; install it with: pip install 'm2dr[onnx]'" in noted
