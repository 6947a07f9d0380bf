"""Settings meet a backbone: what is trained, and what is refused before anything is loaded."""

import json
from pathlib import Path

import pytest
from world import make_shape, write_beir

from m2dr.core.errors import UserError
from m2dr.core.settings import TrainSettings, read_settings
from m2dr.model.checkpoint import load, read_card
from m2dr.tasks.training.fit import fit_texts
from m2dr.tasks.training.recipe import Kind, Recipe, explain, recipe_of
from m2dr.tasks.training.training_data import open_training_data


def made(backbone: Path, *words: str, kind: Kind = "documents") -> Recipe:
    return recipe_of(read_settings(TrainSettings, None, [f'backbone="{backbone}"', *words]), kind)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["variant=starbucks", 'checkpoints=["L9D8"]'], "L9D8"),
        (["variant=mrl", "loss=angle"], "angle"),
        (["variant=mipic", "dims=[8]"], "16"),
        (["variant=separate", "layers=[0]"], "layer 0"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    words: list[str], sentence: str, tiny_backbone: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        made(tiny_backbone, *words)


def test_exits_of_ml_embed_are_sparse_and_others_are_named(tmp_path: Path) -> None:
    deep = make_shape(tmp_path / "deep", 28, 64)

    assert made(deep, "variant=ml-embed").layers == (1, 2, 4, 8, 16, 24, 28)
    assert made(deep, "variant=ml-embed", "layers=[3]").layers == (3, 28)


@pytest.mark.parametrize(
    ("words", "unread"),
    [
        (
            "variant=mrl documents=last exit_head=linear weights=uniform",
            "documents, weights, exit_head",
        ),
        ("variant=full-dim compress=max-k align_reduction=batch average=true", ""),
        ("variant=full-dim align=none compress=max-k add_mse=false", "add_mse, compress"),
    ],
)
def test_settings_without_effect_are_named(words: str, unread: str, tiny_backbone: Path) -> None:
    given = [f'backbone="{tiny_backbone}"', *words.split()]
    settings = read_settings(TrainSettings, None, given)

    last = explain(settings).splitlines()[-1]

    if unread:
        assert last == f"No effect on this recipe: {unread}."
    else:
        assert last.endswith("terms")


def test_a_staircase_is_scaled_to_the_backbone(tiny_backbone: Path) -> None:
    recipe = made(tiny_backbone, "variant=starbucks")

    assert [str(cut) for cut in recipe.card.cuts] == ["L1D8", "L2D16", "L4D32"]


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
    with pytest.raises(UserError, match="cosent and angle: or negatives"):
        made(tiny_backbone, "variant=mrl", f"loss={loss}")


def test_what_is_set_beside_faithful_overrules_it(tiny_backbone: Path) -> None:
    words = ["variant=2dmse", "faithful=true", "align_reduction=mean"]

    assert made(tiny_backbone, *words).variant.align_reduction == "mean"
    assert made(tiny_backbone, *words[:2]).variant.align_reduction == "batch"


def test_lengths_are_those_of_the_backbone_unless_set(tiny_backbone: Path) -> None:
    own = read_card(tiny_backbone)
    cards = [made(tiny_backbone, *words).card for words in ([], ["query_length=9"])]

    assert [(card.query_length, card.document_length) for card in cards] == [
        (own.query_length, own.document_length),
        (9, own.document_length),
    ]


def test_splits_of_training_may_be_named_by_an_alias(tiny_corpus: Path) -> None:
    def quality(split: str) -> object:
        asked = {"corpus": str(tiny_corpus), "split": split, "dev": "validation"}
        return open_training_data(read_settings(TrainSettings, None, (), asked)).quality

    assert quality("train") is not None
    assert quality("dev") is None  # the same split is not held out
    assert len(fit_texts(str(tiny_corpus), 1000, 13, "validation").texts) == 40 + 8


def test_dev_drops_the_querys_own_document(tiny_backbone: Path, tmp_path: Path) -> None:
    texts, judged = (
        {"list": "list", "string": "string"},
        [("list", "string", 1), ("string", "list", 1)],
    )
    rows = [{"_id": name, "text": name} for name in texts]
    folder = write_beir(tmp_path / "quora", rows, texts, train=judged, dev=judged)

    quality = open_training_data(TrainSettings(corpus=str(folder))).quality

    assert quality is not None
    assert {*quality.of(load(tiny_backbone)).values()} == {1.0}


@pytest.mark.parametrize(("rows", "drawn"), [(0, "at random"), (2, "given"), (1, "1 of 2")])
def test_a_training_says_where_its_negatives_come_from(
    rows: int, drawn: str, tmp_path: Path
) -> None:
    path = tmp_path / "groups.jsonl"
    groups = [{"query": f"q{n}", "pos": [f"p{n}"], "neg": [f"n{n}"] * (n < rows)} for n in range(2)]
    path.write_text("".join(json.dumps(group) + "\n" for group in groups))

    data = open_training_data(TrainSettings(corpus=str(path), negatives=1))

    assert drawn in data.negatives
