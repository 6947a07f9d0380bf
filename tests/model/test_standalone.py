"""Exported cuts give the vectors of m2dr where m2dr cannot be imported."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from shell import python
from world import make_fitted, make_model

import m2dr
from m2dr.core.errors import UserError
from m2dr.core.records import Cut, ExportRecord
from m2dr.model.backbones import BACKBONES
from m2dr.model.checkpoint import export_cut, load, open_model, read_card, save
from m2dr.model.export import cut_model
from m2dr.model.modules import Dense, rotate

TEXTS = ["open the file", "a list of numbers and a class of text and a line of words", "path"]
CUT = Cut(2, 8)
Vectors = NDArray[np.float32]

# Runs where m2dr cannot be imported: sentence-transformers, then the README's lines for transformers.
ELSEWHERE = r"""
import json, sys
from pathlib import Path
sys.modules["m2dr"] = None
import numpy as np
from sentence_transformers import SentenceTransformer
import transformers
transformers.logging.set_verbosity_error()
texts, found = json.loads(sys.argv[1]), {}
for folder in map(Path, sys.argv[3:]):
    model = SentenceTransformer(str(folder), device="cpu")
    found[folder.name] = model.encode(texts, prompt="")
np.savez(sys.argv[2], **found)
"""


def export(model: Path, cut: Cut, folder: Path) -> Path:
    made = cut_model(open_model(model), cut)
    parent = made.parent
    record = ExportRecord(
        cut, parent.full, model.name, parent.fingerprint, made.query_only, "folder"
    )
    save(*made.loaded, made.card, folder, record)
    return folder


def vectors(model: Path, cut: Cut) -> Vectors:
    encoder = m2dr.Encoder.from_pretrained(model, cut.layer, cut.dim, device="cpu", dtype="fp32")
    found: Vectors = encoder.encode(TEXTS, layer=cut.layer, side="document")
    return found


def headed(backbone: Path, folder: Path, similarity: str = "cosine") -> Path:
    """A model with trained exit heads, modules behind them and a rotation."""
    model = make_model(backbone, folder, similarity=similarity)
    encoder, tokenizer = load(model)
    torch.manual_seed(7)
    encoder.add_exit_heads([2, 4])
    with torch.no_grad():
        for head in encoder.exit_heads.values():
            head.weight.add_(torch.randn_like(head.weight) / 8)
    rotation = np.linalg.qr(np.random.default_rng(7).standard_normal((32, 32)))[0]
    encoder.behind = rotate(encoder.behind, 32, rotation.astype(np.float32))
    cuts = tuple(Cut(layer, dim) for layer in (2, 4) for dim in (8, 32))
    card = replace(encoder.card, exit_head="linear", cuts=cuts, exported_from="")
    save(encoder, tokenizer, card, folder.with_name(f"{folder.name}-headed"))
    return folder.with_name(f"{folder.name}-headed")


@pytest.fixture(scope="module")
def exported(
    backbone: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, Path, Cut]]:
    """Exported folders by name, each with its model and its cut: every row, and every exit."""
    place = tmp_path_factory.mktemp("standalone")
    models: dict[str, tuple[Path, Cut]] = {}
    for model_type in BACKBONES:
        trained = make_model(
            backbone(model_type),
            place / model_type,
            cuts=(Cut(2, 8), Cut(2, 32)),
            similarity="cosine",
        )
        models[model_type] = trained, CUT
    fitted = make_fitted(place / "bert", place / "fits" / "fitted")
    models["fitted"], models["fitted, last layer"] = (fitted, CUT), (fitted, Cut(4, 16))
    models["headed"] = headed(backbone("bert"), place / "cosine"), CUT
    models["headed, dot"] = headed(backbone("bert"), place / "dot", "dot"), Cut(4, 8)
    models["all of it"] = models["headed"][0], Cut(4, 32)
    return {
        name: (export(model, cut, place / "out" / name), model, cut)
        for name, (model, cut) in models.items()
    }


@pytest.fixture(scope="module")
def elsewhere(
    exported: dict[str, tuple[Path, Path, Cut]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Vectors]:
    """What sentence-transformers gives in a process without m2dr."""
    file = tmp_path_factory.mktemp("elsewhere") / "found.npz"
    folders = [str(folder) for name, (folder, _, _) in exported.items() if name != "fitted"]
    python("-W", "ignore", "-c", ELSEWHERE, json.dumps(TEXTS), file, *folders, cwd=file.parent)
    return dict(np.load(file))


def test_every_export_without_words_gives_the_same_vectors_without_m2dr(
    exported: dict[str, tuple[Path, Path, Cut]], elsewhere: dict[str, Vectors]
) -> None:
    for name, found in elsewhere.items():
        _, model, cut = exported[name]
        assert found.shape == (len(TEXTS), cut.dim), name
        np.testing.assert_allclose(found, vectors(model, cut), atol=1e-5, err_msg=name)


def test_every_export_is_a_model_of_m2dr_with_the_same_vectors(
    exported: dict[str, tuple[Path, Path, Cut]],
) -> None:
    for name, (folder, model, cut) in exported.items():
        card = read_card(folder)
        assert card.full == cut, name
        assert cut in card.cuts, name
        assert card.exported_from == read_card(model).fingerprint, name
        np.testing.assert_allclose(vectors(folder, cut), vectors(model, cut), atol=1e-5)


def test_a_cut_that_reads_words_gives_its_vectors_in_sentence_transformers(
    exported: dict[str, tuple[Path, Path, Cut]], tmp_path: Path
) -> None:
    folder, fitted, cut = exported["fitted"]
    opened = partial(SentenceTransformer, device="cpu", trust_remote_code=True)
    expected = vectors(fitted, cut)
    model = opened(str(folder))
    np.testing.assert_allclose(model.encode_document(TEXTS), expected, atol=1e-5)
    # The words of a prompt do not count.
    encoder, tokenizer = load(folder)
    prompted = replace(encoder.card, document_prefix="a class ")
    encoder.card = save(encoder, tokenizer, prompted, tmp_path / "prompted")
    found = opened(str(tmp_path / "prompted")).encode_document(TEXTS)
    np.testing.assert_allclose(found, vectors(tmp_path / "prompted", cut), atol=1e-5)
    assert np.abs(found - expected).max() > 0.01

    model.save(str(tmp_path / "again"))

    np.testing.assert_allclose(vectors(tmp_path / "again", cut), expected, atol=1e-5)
    np.testing.assert_allclose(
        opened(str(tmp_path / "again")).encode_document(TEXTS), expected, atol=1e-5
    )
    with pytest.raises(UserError, match="embeds texts; int was given"):
        model.encode_query([5])


def test_such_a_cut_opens_nowhere_as_another_model(
    exported: dict[str, tuple[Path, Path, Cut]], tmp_path: Path
) -> None:
    folder = exported["fitted"][0]
    head = [(path / "README.md").read_text().split("<!--")[0] for path, *_ in exported.values()]
    assert ["Not for transformers" in each for each in head] == [n == "fitted" for n in exported]
    whole = tmp_path / "whole"  # with exits below its last layer, which others leave out
    export_cut(open_model(exported["fitted"][1]), 4, whole)
    assert "where m2dr is installed" not in (whole / "README.md").read_text()
    with pytest.raises(ValueError, match="trust_remote_code"):
        SentenceTransformer(str(folder), device="cpu")
    lines = (
        'import sys; sys.modules["m2dr"] = None',
        "from sentence_transformers import SentenceTransformer as Model",
        f"try: Model({str(folder)!r}, device='cpu', trust_remote_code=True)",
        "except ImportError as error: print(error)",
    )
    assert "m2dr" in python("-W", "ignore", "-c", "\n".join(lines), cwd=tmp_path)


def test_an_export_holds_no_layer_and_no_dim_beyond_its_cut(
    exported: dict[str, tuple[Path, Path, Cut]],
) -> None:
    folder, model, _ = exported["headed"]
    dense, _ = load(folder)

    assert dense.layers == 2
    (head,) = dense.behind
    assert isinstance(head, Dense)  # exit head, rotation and prefix in one matrix
    assert head.linear.weight.shape == (8, 32)
    names = {path.name for path in folder.iterdir() if path.is_dir()}
    assert names == {"1_Pooling", "2_Dense", "3_Normalize"}
    assert not (folder / "exit_heads.safetensors").exists()


def test_an_export_of_an_export_is_cut_again(
    exported: dict[str, tuple[Path, Path, Cut]], tmp_path: Path
) -> None:
    for name in ("fitted", "headed"):
        folder, model, _ = exported[name]
        again = export(folder, Cut(2, 4), tmp_path / name)
        np.testing.assert_allclose(
            vectors(again, Cut(2, 4)), vectors(model, Cut(2, 4)), atol=1e-5, err_msg=name
        )
