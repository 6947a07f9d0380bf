"""A name that is not known is answered with what was meant, never with all there is."""

from pathlib import Path

import pytest

from m2dr.core.errors import UserError
from m2dr.core.trainings import read_pretrain_settings, read_train_settings
from m2dr.evaluate.measures import parse


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("lr", "learning_rate"),
        ("LR", "learning_rate"),
        ("bs", "batch_queries"),
        ("batch-size", "batch_queries"),
        ("epoch", "epochs"),
        ("num_train_epochs", "epochs"),
        ("wd", "weight_decay"),
        ("tau", "temperature"),
        ("max_seq_length", "document_length"),
        ("temprature", "temperature"),
        ("lerning_rate", "learning_rate"),
        ("rank", "lora_rank"),
        ("length", "query_length or document_length"),
    ],
)
def test_a_setting_of_another_name_is_answered_with_ours(
    key: str, meant: str, tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text(f"{key} = 1\n")

    for words in ((None, [f"{key}=1"]), (tmp_path / "run.toml", [])):
        with pytest.raises(UserError) as told:
            read_train_settings(*words)
        assert str(told.value).endswith(f"unknown setting {key!r} (Did you mean {meant}?).")


def test_what_a_pretraining_lacks_is_answered_with_what_it_has() -> None:
    for key, meant in (("bs", "batch_texts"), ("max_length", "length"), ("lr", "learning_rate")):
        with pytest.raises(UserError, match=f"Did you mean {meant}"):
            read_pretrain_settings(None, [f"{key}=1"])


@pytest.mark.parametrize("key", ["zzzz", "x", "", "e", "a_b_c", "prefixes_of_everything"])
def test_no_unknown_setting_is_answered_with_a_list_of_all(key: str) -> None:
    with pytest.raises(UserError, match="unknown setting") as told:
        read_train_settings(None, [f"{key}=1"])

    assert len(str(told.value)) < 200


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("recall@100", "R@100"),
        ("precision@5", "P@5"),
        ("ndgc@10", "nDCG@10"),
        ("mrr@10", "RR@10"),
        ("p(rel=2)@5", "P(rel=2)@5"),
        ("map", "AP"),
        ("hits@3", "Success@3"),
    ],
)
def test_what_follows_the_name_of_a_measure_is_kept_in_the_suggestion(
    name: str, meant: str
) -> None:
    with pytest.raises(UserError) as told:
        parse([name])

    suggested = str(told.value).removesuffix("?").rpartition("Did you mean ")[2]
    assert suggested == meant
    assert parse([suggested])
