"""Settings meet a backbone: what is trained, and what is refused before anything is loaded."""

from pathlib import Path

import pytest

from m2dr.core.errors import UserError
from m2dr.core.settings import read_train_settings
from m2dr.tasks.fit import fit_texts
from m2dr.tasks.recipe import Kind, Recipe, explain, recipe_of
from m2dr.tasks.training_data import open_training_data


def made(backbone: Path, *words: str, kind: Kind = "documents") -> Recipe:
    return recipe_of(read_train_settings(None, [f'backbone="{backbone}"', *words]), kind)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["variant=starbucks", 'checkpoints=["L9D8"]'],
            "Checkpoint L9D8 was asked for; the full model is L",
        ),
        (["variant=mrl", "loss=angle"], "loss = angle trains on pairs of sentences"),
        (["variant=mipic", "dims=[8]"], "Token relations need prefixes of 16 and more"),
        (["variant=separate", "layers=[0]"], "cut to layer 0 has no layer"),
        (["variant=starbucks", "draw=exit"], "set draw=step"),
        (["variant=2dmse", "embeddings=true", "exit_head=fitted"], "a table that no step reaches"),
        (
            [
                "variant=ese",
                "whole=false",
                "layers=[0]",
                "prefixes=none",
                "full_dim=true",
                "align=none",
            ],
            "trains no cut to retrieve",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(
    words: list[str], sentence: str, tiny_backbone: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        made(tiny_backbone, *words)


@pytest.mark.parametrize(
    ("words", "unread"),
    [
        ("variant=plain align=score share=0.5", "align, share"),
        (
            "variant=mrl documents=last exit_head=linear weights=uniform",
            "documents, weights, exit_head",
        ),
        ("variant=2dmse layers=[1]", ""),
        ("variant=starbucks layers=[1] dims=[8]", "layers, dims"),
        ("variant=mrl checkpoints=[L1D8] distill_weight=2.0", "checkpoints, distill_weight"),
        ("variant=full-dim compress=max-k align_reduction=batch average=true", ""),
        ("variant=full-dim align=none compress=max-k add_mse=false", "add_mse, compress"),
        ("variant=mipic chain_temperature=0.1 alpha=0.5", ""),
        ("variant=mrl chain_temperature=0.1 faithful=true", "faithful, chain_temperature"),
    ],
)
def test_settings_that_no_term_reads_are_named(
    words: str, unread: str, tiny_backbone: Path
) -> None:
    given = [word.replace("[L1D8]", '["L1D8"]') for word in words.split()]
    settings = read_train_settings(None, [f'backbone="{tiny_backbone}"', *given])

    last = explain(settings).splitlines()[-1]

    if unread:
        assert last == f"Given, and read by no term: {unread}."
    else:
        assert last.endswith("terms")


@pytest.mark.parametrize(
    ("words", "kind", "sentence"),
    [
        (["variant=mrl", "dims=[3]"], "scored pairs", r"dims = \[3\] must be even"),
        (["variant=mrl", "loss=cosent"], "sentences", "needs pairs with scores"),
    ],
)
def test_a_loss_that_the_sentences_cannot_serve_is_refused(
    words: list[str], kind: Kind, sentence: str, tiny_backbone: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        made(tiny_backbone, *words, kind=kind)


@pytest.mark.parametrize(
    ("kind", "loss"),
    [("documents", "contrastive"), ("scored pairs", "angle"), ("sentences", "simcse")],
)
def test_the_corpus_decides_the_loss_where_nobody_does(
    kind: Kind, loss: str, tiny_backbone: Path
) -> None:
    assert made(tiny_backbone, "variant=plain", kind=kind).setting.loss == loss


def test_a_staircase_is_scaled_to_the_backbone(tiny_backbone: Path) -> None:
    recipe = made(tiny_backbone, "variant=starbucks")

    assert [str(cut) for cut in recipe.card.cuts] == ["L1D8", "L2D16", "L4D32"]


def test_sentences_are_compared_by_cosine_whatever_the_backbone_was_made_for(
    tiny_backbone: Path,
) -> None:
    assert made(tiny_backbone, "variant=plain").card.similarity == "dot"
    assert made(tiny_backbone, "variant=plain", kind="scored pairs").card.similarity == "cosine"


def test_as_published_the_embeddings_are_trained_and_are_no_cut_to_search_with(
    tiny_backbone: Path,
) -> None:
    recipe = made(tiny_backbone, "variant=ese", "faithful=true", kind="scored pairs")

    assert recipe.layers == (0, 1, 2, 4)
    assert {cut.layer for cut in recipe.card.cuts} == {1, 2, 4}
    assert recipe.setting.candidates == "all"


@pytest.mark.parametrize("loss", ["angle", "cosent"])
def test_a_query_and_its_documents_are_pairs_where_it_has_negatives(
    loss: str, tiny_backbone: Path
) -> None:
    found = made(tiny_backbone, "variant=mrl", f"loss={loss}", "negatives=1")

    assert found.setting.loss == loss
    with pytest.raises(UserError, match="with negatives, losses angle and cosent make pairs"):
        made(tiny_backbone, "variant=mrl", f"loss={loss}")


def test_what_is_set_beside_faithful_overrules_it(tiny_backbone: Path) -> None:
    words = ["variant=2dmse", "faithful=true", "align_reduction=mean"]

    assert made(tiny_backbone, *words).variant.align_reduction == "mean"
    assert made(tiny_backbone, *words[:2]).variant.align_reduction == "batch"


def test_the_weight_of_the_last_layer_is_not_learned(tiny_backbone: Path) -> None:
    learned = made(tiny_backbone, "variant=dims", "weights=dynamic", "layers=[2,4]").setting.learned
    assert learned == (2,)


def test_texts_without_queries_are_said_to_be_their_own_positives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"_id": "d1", "title": "A", "text": "one"}\n{"_id": "d2", "text": "two"}\n')

    data = open_training_data(read_train_settings(None, (), {"corpus": str(path)}))

    assert (data.kind, data.count) == ("sentences", 2)
    assert "mine holds texts without queries: each is its own positive" in capsys.readouterr().err


def test_splits_of_training_may_be_named_by_an_alias(tiny_corpus: Path) -> None:
    def quality(split: str) -> object:
        asked = {"corpus": str(tiny_corpus), "split": split, "dev": "validation"}
        return open_training_data(read_train_settings(None, (), asked)).quality

    assert quality("train") is not None
    assert quality("dev") is None  # the same split is not held out
    assert len(fit_texts(str(tiny_corpus), 1000, 13, "validation")) == 40 + 8
