"""config.json says which dims vectors may be cut to, and no fingerprint changes with it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoConfig
from world import load_plain, make_fitted, make_model

from m2dr.core.records import Cut
from m2dr.model.backbones import BACKBONES
from m2dr.model.checkpoint import export_cut, fingerprint, load, read_card, save

CUTS = (Cut(2, 8), Cut(2, 16), Cut(2, 32), Cut(4, 8), Cut(4, 32))
FIELDS = {"is_matryoshka", "matryoshka_dimensions"}


def change(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    kept = {k: v for k, v in json.loads(path.read_text()).items() if k not in FIELDS}
    path.write_text(json.dumps({**kept, **fields}))


def dims_of(folder: Path) -> list[int] | None:
    config = AutoConfig.from_pretrained(folder)
    dims = getattr(config, "matryoshka_dimensions", None)
    assert getattr(config, "is_matryoshka", False) is (dims is not None)
    return dims


@pytest.mark.parametrize("model_type", BACKBONES)
def test_servers_read_the_dims_of_the_last_layer_and_transformers_opens_the_folder(
    model_type: str, backbone: Callable[[str], Path], tmp_path: Path
) -> None:
    model = make_model(backbone(model_type), tmp_path / "model", cuts=CUTS)
    encoder, tokenizer = load(model)
    save(encoder, tokenizer, encoder.card, tmp_path / "again")
    export_cut(model, 2, tmp_path / "cut")

    assert dims_of(model) == dims_of(tmp_path / "again") == [8, 32]
    assert dims_of(tmp_path / "cut") == [8, 16, 32]
    _, report = load_plain(tmp_path / "again", output_loading_info=True)
    assert not any(report.values())


def test_a_fitted_model_says_its_dims_and_one_of_full_width_none(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    change(Path(shutil.copytree(tiny_backbone, tmp_path / "theirs")), matryoshka_dimensions=[4])
    plain = make_model(tmp_path / "theirs", tmp_path / "plain", cuts=(Cut(4, 32),))

    assert dims_of(make_fitted(tiny_backbone, tmp_path / "fitted")) == [8, 16, 32]
    assert dims_of(plain) is None


def test_a_folder_that_was_written_without_the_dims_opens_with_the_same_fingerprint(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    model = make_model(tiny_backbone, tmp_path / "model", cuts=CUTS)
    before = read_card(model)
    change(model)  # as earlier versions left it

    assert read_card(model) == before


def test_an_older_folder_with_dims_of_its_backbone_keeps_its_fingerprint(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    model = make_model(tiny_backbone, tmp_path / "model", cuts=CUTS)
    change(model, matryoshka_dimensions=[4, 16], is_matryoshka=True)
    card = read_card(model)
    counted = fingerprint(model, card, backbone=True)
    assert counted != card.fingerprint
    table = json.loads((model / "m2dr.json").read_text())
    (model / "m2dr.json").write_text(json.dumps({**table, "fingerprint": counted}))

    assert read_card(model).fingerprint == counted
    assert export_cut(model, 2, tmp_path / "cut").exported_from == counted


def test_the_dims_of_a_backbone_that_m2dr_did_not_write_count_as_before(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    theirs = Path(shutil.copytree(tiny_backbone, tmp_path / "theirs"))
    before = read_card(theirs).fingerprint

    change(theirs, matryoshka_dimensions=[4])

    assert read_card(theirs).fingerprint != before
