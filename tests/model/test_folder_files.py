"""Files of a model folder that are missing, changed, irregular, or ask for code of their own."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from m2dr.core.errors import UserError
from m2dr.index.manifest import Label
from m2dr.model.backbones import BACKBONES
from m2dr.model.checkpoint import load, load_tokenizer, read_card, save
from m2dr.tasks.encoder import label_of

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@pytest.fixture
def backbone_folder(backbone: Callable[[str], Path], tmp_path: Path) -> Path:
    """A backbone's folder that a test may change."""
    return Path(shutil.copytree(backbone("bert"), tmp_path / "backbone_folder"))


@pytest.fixture
def own(backbone: Callable[[str], Path], tmp_path: Path) -> Path:
    """A folder that m2dr wrote."""
    encoder, tokenizer = load(backbone("bert"))
    save(encoder, tokenizer, encoder.card, tmp_path / "own")
    return tmp_path / "own"


def edit(path: Path, **fields: object) -> None:
    """Set fields of a JSON object."""
    table = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**table, **fields}))


def label(folder: Path) -> Label:
    return label_of(read_card(folder), str(folder))


# The tokenizer.


@pytest.mark.parametrize("kept", [(), ("tokenizer_config.json",)], ids=["no-files", "config-alone"])
@pytest.mark.parametrize("model_type", BACKBONES)
def test_a_folder_without_a_vocabulary_is_refused(
    model_type: str, kept: tuple[str, ...], backbone: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(backbone(model_type), tmp_path / "model"))
    for name in set(TOKENIZER_FILES) - set(kept):
        (folder / name).unlink()

    with pytest.raises(UserError, match=r"has no tokenizer: none of tokenizer.json, vocab.txt"):
        load(folder)
    with pytest.raises(UserError, match="has no tokenizer"):
        load_tokenizer(folder)


def test_the_merges_of_a_vocabulary_are_a_part_of_it(backbone_folder: Path) -> None:
    (backbone_folder / "tokenizer.json").unlink()
    (backbone_folder / "vocab.json").write_text(json.dumps({"a": 0, "b": 1}))

    with pytest.raises(UserError, match="has no tokenizer"):
        load_tokenizer(backbone_folder)


@pytest.mark.parametrize(
    "words", [[], ["[UNUSED]"], ["▁"]], ids=["special-alone", "added-special", "a-space"]
)
def test_a_tokenizer_that_knows_no_words_is_refused(
    words: list[str], backbone_folder: Path
) -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]
    table = {token: number for number, token in enumerate(tokens)}
    made = Tokenizer(models.WordLevel(table, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens([AddedToken(word) for word in words if word.startswith("[")])
    PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]",
    ).save_pretrained(backbone_folder)  # fmt: skip

    with pytest.raises(UserError, match="knows special tokens alone"):
        load(backbone_folder)


def test_byte_level_and_sentencepiece_vocabularies_are_words(backbone_folder: Path) -> None:
    specials = {"pad_token": "<pad>", "unk_token": "<unk>"}
    byte_level = Tokenizer(
        models.BPE({"<pad>": 0, "<unk>": 1, "Ġ": 2, "a": 3, "Ġa": 4}, [("Ġ", "a")])
    )
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    pieces = Tokenizer(models.Unigram([("<pad>", 0.0), ("<unk>", 0.0), ("▁a", -1.0)], unk_id=1))
    pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    for made, expected in ((byte_level, [4, 4]), (pieces, [2, 2])):
        PreTrainedTokenizerFast(tokenizer_object=made, **specials).save_pretrained(backbone_folder)
        assert load(backbone_folder)[1](["a a"], 8) == [expected]


def test_a_tokenizer_with_more_words_than_the_encoder_is_refused(backbone_folder: Path) -> None:
    table = json.loads((backbone_folder / "tokenizer.json").read_text())
    table["model"]["vocab"]["another"] = 64
    (backbone_folder / "tokenizer.json").write_text(json.dumps(table))

    with pytest.raises(UserError, match=r"ids up to 64, and config.json says that 64 have"):
        load(backbone_folder)


# The fingerprint.


def change_vocabulary(folder: Path) -> None:
    table = json.loads((folder / "tokenizer.json").read_text())
    words = table["model"]["vocab"]
    words["read"], words["write"] = words["write"], words["read"]
    (folder / "tokenizer.json").write_text(json.dumps(table))


CHANGES: dict[str, Callable[[Path], object]] = {
    "vocabulary": change_vocabulary,
    "truncation": lambda folder: edit(folder / "tokenizer_config.json", truncation_side="left"),
    "added tokens": lambda folder: edit(folder / "added_tokens.json", read=7),
    "heads": lambda folder: edit(folder / "config.json", num_attention_heads=2),
    "activation": lambda folder: edit(folder / "config.json", hidden_act="relu"),
    "epsilon": lambda folder: edit(folder / "config.json", layer_norm_eps=0.1),
    "decoder": lambda folder: edit(folder / "config.json", is_decoder=True),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_tokenizer_or_configuration_is_another_model(
    change: Callable[[Path], object], backbone_folder: Path, own: Path
) -> None:
    before = label(backbone_folder)

    change(backbone_folder)
    change(own)

    with pytest.raises(UserError, match="were encoded by model"):
        before.accept(label(backbone_folder), "tiny")
    with pytest.raises(UserError, match=r"fingerprint .* one of them was changed"):
        read_card(own)


@pytest.mark.parametrize("field", [{"attention": "bidirectional"}, {"exit_head": "linear"}])
def test_what_the_card_says_of_attention_and_heads_is_covered(
    field: dict[str, str], own: Path
) -> None:
    (own / "exit_heads.safetensors").touch()  # so that not its absence is what is refused
    before = read_card_of_weights(own)

    edit(own / "m2dr.json", **field)

    with pytest.raises(UserError, match="one of them was changed"):
        read_card(own)
    assert before == read_card_of_weights(own)


def read_card_of_weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_how_a_backbone_folder_prepares_texts_is_a_part_of_it(backbone_folder: Path) -> None:
    before = read_card(backbone_folder).fingerprint

    edit(backbone_folder / "sentence_bert_config.json", do_lower_case=True)

    assert read_card(backbone_folder).fingerprint != before


def test_what_changes_no_vector_keeps_the_fingerprint(backbone_folder: Path, own: Path) -> None:
    before = [read_card(backbone_folder).fingerprint, read_card(own).fingerprint]
    for folder in (backbone_folder, own):
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            table = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps(dict(reversed(table.items())), indent=7))
        edit(folder / "config.json", transformers_version="9", _name_or_path="/x", dtype="float16")
        edit(folder / "tokenizer_config.json", name_or_path="/x", model_max_length=10**30)
        truncation = {"max_length": 9, "strategy": "LongestFirst", "stride": 0, "direction": "Left"}
        edit(folder / "tokenizer.json", truncation=truncation)
        (folder / "README.md").write_text("# Another text")
    moved = [
        folder.rename(folder.with_name(f"{folder.name}-moved")) for folder in (backbone_folder, own)
    ]

    assert [read_card(folder).fingerprint for folder in moved] == before


def test_saving_what_was_loaded_and_used_keeps_the_fingerprint(own: Path, tmp_path: Path) -> None:
    encoder, tokenizer = load(own)
    tokenizer(["read a file", "line"], 3)

    again = save(encoder, tokenizer, encoder.card, tmp_path / "again")

    assert again.fingerprint == read_card(own).fingerprint
    assert json.loads((tmp_path / "again" / "tokenizer.json").read_text())["truncation"] is None


def test_a_folder_whose_fingerprint_is_of_the_weights_alone_still_loads(own: Path) -> None:
    from m2dr.model.checkpoint import hash_weights

    today = read_card(own)
    edit(own / "m2dr.json", format=1, fingerprint=hash_weights(own))
    assert read_card(own) == today

    edit(own / "m2dr.json", fingerprint="0" * 64)
    with pytest.raises(UserError, match="one of them was changed"):
        read_card(own)


def test_files_of_an_earlier_model_do_not_stay_behind_a_new_one(own: Path) -> None:
    encoder, tokenizer = load(own)
    for name in ("added_tokens.json", "vocab.txt", "model.safetensors.index.json"):
        (own / name).write_text("{}")

    save(encoder, tokenizer, encoder.card, own)

    assert load(own)[0].card == read_card(own)


# Code of others.

CODE = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\nclass Own: pass\n"


@pytest.mark.parametrize("answer", ["y", "n"])
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("config.json", "AutoConfig"),
        ("config.json", "AutoModel"),
        ("config.json", "AutoTokenizer"),
        ("tokenizer_config.json", "AutoTokenizer"),
    ],
)
def test_code_that_a_folder_brings_is_never_asked_about_and_never_run(
    file: str,
    name: str,
    answer: str,
    backbone_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (backbone_folder / "own.py").write_text(CODE.replace("__file__", repr(str(tmp_path / "x"))))
    edit(backbone_folder / file, auto_map={name: "own.Own"})
    asked: list[object] = []
    monkeypatch.setattr("builtins.input", lambda *words: asked.append(words) or answer)
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))

    with pytest.raises(UserError, match=rf"asks for code of its own \(auto_map, {name}: own.Own"):
        load(backbone_folder)
    assert not asked
    assert not (tmp_path / "ran").exists()


def test_a_type_that_only_its_own_code_knows_is_refused(
    backbone_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asked"))
    edit(backbone_folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.Own"})

    with pytest.raises(UserError, match="code of its own"):
        read_card(backbone_folder)


def test_code_for_other_heads_does_not_matter(backbone_folder: Path) -> None:
    before = read_card(backbone_folder).fingerprint
    edit(
        backbone_folder / "config.json", auto_map={"AutoModelForSequenceClassification": "own.Own"}
    )

    assert load(backbone_folder)[0].card.fingerprint == before


# Sizes.


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("num_hidden_layers", 10**9, "has num_hidden_layers = 1000000000, and 1 to 4096 belong"),
        ("num_hidden_layers", 4000, "promises 4000 layers"),
        ("num_hidden_layers", 0, "1 to 4096 belong"),
        ("num_attention_heads", 0, "has num_attention_heads = 0"),
        ("hidden_size", -32, "has hidden_size = -32"),
        ("vocab_size", 2**31, "promises 4 layers, 68,7"),
        ("intermediate_size", 2**30, "promises 4 layers, 2"),
        ("max_position_embeddings", 2**31 - 1, "promises 4 layers, 68,7"),
        ("type_vocab_size", 2**40, "promises 4 layers, 35,"),
        ("max_position_embeddings", 10**12, "has max_position_embeddings"),
        ("vocab_size", "64", "vocab_size: Expected"),
        ("layer_norm_eps", float("nan"), "holds a number that is not finite"),
    ],
)
def test_sizes_are_compared_with_the_weights_before_room_is_made(
    field: str, value: object, sentence: str, backbone_folder: Path
) -> None:
    edit(backbone_folder / "config.json", **{field: value})

    with pytest.raises(UserError, match=sentence):
        load(backbone_folder, layer=2)


@pytest.mark.parametrize(
    "field",
    [
        {"layers": 10**9}, {"layers": "4"}, {"width": 64}, {"query_length": -1},
        {"document_length": 10**6}, {"query_length": 2**40}, {"pooling": "median"},
        {"temperature": 0}, {"cuts": [[9, 32]]}, {"cuts": [[0, 1]]},
        {"cuts": {"4": 32}}, {"cuts": [[4, 32, 1]]}, {"similarity": None}, {"format": 3},
        {"fingerprint": ""}, {"query_prefix": ["query: "]},
    ],
    ids=str,
)  # fmt: skip
def test_a_card_that_no_model_has_is_refused_by_name(field: dict[str, object], own: Path) -> None:
    edit(own / "m2dr.json", **field)

    with pytest.raises(UserError, match=rf"m2dr.json .*{next(iter(field))}"):
        read_card(own)


@pytest.mark.parametrize("length", [1, 2])
def test_a_length_that_leaves_no_room_for_a_word_is_refused(length: int, own: Path) -> None:
    edit(own / "m2dr.json", query_length=length)

    with pytest.raises(
        UserError, match=f"query_length = {length}, .* puts 2 special tokens around each text"
    ):
        load(own)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\0", b"\xff" * 8, b"\0" * 4096, (2**62).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]", (40).to_bytes(8, "little") + b'{"a": ' * 10,
    ],
)  # fmt: skip
def test_damaged_weights_are_a_sentence(content: bytes, backbone_folder: Path) -> None:
    (backbone_folder / "model.safetensors").write_bytes(content)

    with pytest.raises(UserError, match="cannot be loaded"):
        load(backbone_folder)


# What is no file.


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("adapter_config.json", {}, "Merge the two with peft's merge_and_unload"),
        ("model.safetensors.index.json", {"weight_map": {"x": "../model.safetensors"}},
         "not one beside it"),
        ("model.safetensors.index.json", {"weight_map": {"x": "x" * 5000}}, "not one beside it"),
        ("model.safetensors.index.json", {"weight_map": [1]}, "Expected `object`"),
    ],
)  # fmt: skip
def test_weights_that_lie_elsewhere_are_refused(
    name: str, content: dict[str, Any], sentence: str, backbone_folder: Path
) -> None:
    (backbone_folder / name).write_text(json.dumps(content))

    with pytest.raises(UserError, match=sentence):
        load(backbone_folder)


def test_an_export_says_whose_it_is_and_a_fresh_training_does_not(
    own: Path, tmp_path: Path
) -> None:
    from m2dr.model.checkpoint import export_cut

    card = export_cut(own, 2, tmp_path / "cut")

    assert card.exported_from == read_card(own).fingerprint
    assert read_card(tmp_path / "cut") == card
    assert not replace(card, variant="plain").is_trained
