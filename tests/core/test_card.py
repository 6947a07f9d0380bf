"""Which cuts a model has, as its card says."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from m2dr.core.errors import UserError
from m2dr.core.files import write_record
from m2dr.core.records import Cut, ModelCard
from m2dr.model.checkpoint import read_card_file

CARD = ModelCard(
    backbone="some backbone", variant="plain", layers=6, width=384, cuts=(Cut(6, 384),),
    documents="last", pooling="mean", similarity="cosine", temperature=0.05, fingerprint="0" * 64,
)  # fmt: skip
FITTED = replace(CARD, exit_head="fitted", cuts=(Cut(0, 64), Cut(6, 384)))


@pytest.mark.parametrize("cut", [Cut(0, 1), Cut(0, 384), Cut(6, 384)])
def test_a_fitted_model_has_layer_0_at_every_dim(cut: Cut) -> None:
    assert FITTED.lowest_layer == 0
    assert FITTED.check(cut) == cut


def test_a_fitted_card_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    write_record(tmp_path / "m2dr.json", FITTED)

    assert read_card_file(tmp_path / "m2dr.json") == FITTED


def test_a_card_with_layer_0_among_its_cuts_is_of_a_fitted_model(tmp_path: Path) -> None:
    path = tmp_path / "m2dr.json"
    write_record(path, FITTED)
    path.write_text(json.dumps({**json.loads(path.read_text()), "exit_head": "linear"}))

    with pytest.raises(UserError, match="holds sizes or cuts that no model has"):
        read_card_file(path)
