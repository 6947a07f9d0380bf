"""What a model folder is: its fingerprint, what may change in it, and what is refused."""

import json
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoModel, AutoTokenizer
from world import load_plain, make_model

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.model.checkpoint import export_cut, load, open_model, read_card, save

CUTS = (Cut(2, 8), Cut(2, 16), Cut(2, 32), Cut(4, 8), Cut(4, 32))


@pytest.fixture
def theirs(backbone: Callable[[str], Path], tmp_path: Path) -> Path:
    """A backbone's folder that a test may change."""
    return Path(shutil.copytree(backbone("bert"), tmp_path / "theirs"))


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


# Tokenizers


def with_ends(folder: Path, template: str, **settings: object) -> Path:
    """Give a folder a tokenizer.json with a template, and a tokenizer_config.json."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ends = [(str(tokenizer.id_to_token(number)), number) for number in (2, 3)]
    single = template.replace("<s>", ends[0][0]).replace("</s>", ends[1][0])
    tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": ends[0][0], "eos_token": ends[1][0], **settings}
    edit(folder / "tokenizer_config.json", **named)
    return folder


@pytest.fixture
def decoder(backbone: Callable[[str], Path], tmp_path: Path) -> Path:
    """The folder of a decoder that a test may change."""
    return Path(shutil.copytree(backbone("mistral"), tmp_path / "theirs"))


@pytest.mark.parametrize("kind", ["LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizerFast"])
@pytest.mark.parametrize(
    ("template", "begin", "end", "ids"),
    [
        ("<s> $A", True, True, [2, 12, 3]),  # E5-Mistral's
        ("<s> $A", None, True, [2, 12, 3]),
        ("$A", True, False, [2, 12]),
        ("<s> $A </s>", False, False, [12]),
        ("<s> $A </s>", None, None, [2, 12, 3]),
    ],
)
def test_ends_of_a_text_are_those_of_the_settings(
    kind: str,
    template: str,
    begin: object,
    end: object,
    ids: list[int],
    decoder: Path,
    tmp_path: Path,
) -> None:
    told = {"tokenizer_class": kind, "add_bos_token": begin, "add_eos_token": end}
    encoder, tokenizer = load(with_ends(decoder, template, **told))

    assert tokenizer(["open"], 16) == [ids]
    assert tokenizer(["open " * 20], 8)[0][-1] == ids[-1]
    save(encoder, tokenizer, encoder.card, tmp_path / "own")
    assert AutoTokenizer.from_pretrained(tmp_path / "own")("open")["input_ids"] == ids


def test_an_end_that_no_tokenizer_adds_is_refused(decoder: Path) -> None:
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "add_eos_token": True}

    with pytest.raises(UserError, match="add_eos_token is true, and PreTrainedTokenizerFast"):
        load(with_ends(decoder, "<s> $A", **told))


def test_a_tokenizer_with_more_words_than_the_encoder_is_refused(theirs: Path) -> None:
    table = json.loads((theirs / "tokenizer.json").read_text())
    table["model"]["vocab"]["another"] = 64
    (theirs / "tokenizer.json").write_text(json.dumps(table))
    with pytest.raises(UserError, match=r"ids up to 64; 64 have"):
        load(theirs)


# Fingerprints


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
    "lower case": lambda folder: edit(folder / "sentence_bert_config.json", do_lower_case=True),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_vectors_is_another_model(
    change: Callable[[Path], object], theirs: Path, own: Path
) -> None:
    before = open_model(theirs).label()
    change(theirs)
    change(own)
    with pytest.raises(UserError, match="were encoded by model"):
        before.accept(open_model(theirs).label(), "tiny")
    with pytest.raises(UserError, match="were changed"):
        read_card(own)


@pytest.mark.parametrize("field", [{"attention": "bidirectional"}, {"exit_head": "linear"}])
def test_attention_and_exit_heads_are_part_of_the_fingerprint(
    field: dict[str, str], own: Path
) -> None:
    (own / "exit_heads.safetensors").touch()  # so that not its absence is what is refused
    edit(own / "m2dr.json", **field)
    with pytest.raises(UserError, match="were changed"):
        read_card(own)


def test_what_changes_no_vector_keeps_the_fingerprint(theirs: Path, own: Path) -> None:
    before = [read_card(theirs).fingerprint, read_card(own).fingerprint]
    for folder in (theirs, own):
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            table = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps(dict(reversed(table.items())), indent=7))
        edit(folder / "config.json", transformers_version="9", _name_or_path="/x", dtype="float16")
        edit(folder / "tokenizer_config.json", name_or_path="/x", model_max_length=10**30)
        truncation = {"max_length": 9, "strategy": "LongestFirst", "stride": 0, "direction": "Left"}
        edit(folder / "tokenizer.json", truncation=truncation)
        (folder / "README.md").write_text("# Another text")
    moved = [folder.rename(folder.with_name(f"{folder.name}-moved")) for folder in (theirs, own)]
    assert [read_card(folder).fingerprint for folder in moved] == before


ROPE = {"rope_type": "default", "rope_theta": 1e6}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 32}
FULL, SLIDING = {"rope_theta": 160000.0}, {"rope_theta": 10000.0}
# A config.json in the form of transformers 4, and the fields that transformers 5 has in their place.
FORMS: list[tuple[str, dict[str, object], dict[str, object]]] = [
    ("bert", {}, {"bos_token_id": None, "is_decoder": False, "tie_word_embeddings": True}),
    ("qwen2", {"rope_theta": 1e6}, {"rope_parameters": ROPE, "pad_token_id": None}),
    (
        "qwen2",
        {"rope_theta": 1e6, "use_sliding_window": False, "sliding_window": 32},
        {
            "rope_parameters": ROPE,
            "use_sliding_window": False,
            "sliding_window": None,
            "layer_types": ["full_attention"] * 4,
        },
    ),
    (
        "llama",
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
    ),
    (
        "modernbert",
        {
            "global_attn_every_n_layers": 2,
            "global_rope_theta": 160000.0,
            "local_rope_theta": 10000.0,
        },
        {
            "global_attn_every_n_layers": 2,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "rope_parameters": {
                "full_attention": {**FULL, "rope_type": "default"},
                "sliding_attention": {**SLIDING, "rope_type": "default"},
            },
        },
    ),
]


@pytest.mark.parametrize(("kind", "old", "new"), FORMS, ids=str)
def test_a_model_has_one_fingerprint_in_transformers_older_and_newer_form(
    kind: str,
    old: dict[str, object],
    new: dict[str, object],
    backbone: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    base = json.loads((backbone(kind) / "config.json").read_text())
    formed = ("rope_parameters", "rope_theta", "layer_types", "pad_token_id", "is_decoder")
    rest = {k: v for k, v in base.items() if k not in {*formed, *old, *new}}
    found, ropes = [], []
    for fields in (old, new, {**new, "head_dim": 8}, {**new, "rms_norm_eps": 0.5}):
        folder = Path(shutil.copytree(backbone(kind), tmp_path / str(len(found))))
        (folder / "config.json").write_text(json.dumps(rest | fields))
        ropes.append(getattr(AutoConfig.from_pretrained(folder), "rope_parameters", {}))
        ropes[-1].pop("type", None)  # the older name, which transformers keeps beside the newer
        found.append(read_card(folder).fingerprint)
    assert ropes[0] == ropes[1]  # transformers reads the same
    assert found[0] == found[1] == found[2] != found[3]


def test_saving_what_was_loaded_and_used_keeps_the_fingerprint(own: Path, tmp_path: Path) -> None:
    encoder, tokenizer = load(own)
    tokenizer(["read a file", "line"], 3)
    for name in ("added_tokens.json", "vocab.txt", "model.safetensors.index.json"):
        (own / name).write_text("{}")  # of an earlier model
    for folder in (tmp_path / "again", own):
        card = save(encoder, tokenizer, encoder.card, folder)
        assert card == read_card(folder) == encoder.card
    assert json.loads((own / "tokenizer.json").read_text())["truncation"] is None


@pytest.mark.parametrize("model_type", ["bert", "qwen3"])
def test_servers_read_the_dims_of_the_last_layer(
    model_type: str, backbone: Callable[[str], Path], tmp_path: Path
) -> None:
    def dims_of(folder: Path) -> list[int] | None:
        config = AutoConfig.from_pretrained(folder)
        dims: list[int] | None = getattr(config, "matryoshka_dimensions", None)
        assert getattr(config, "is_matryoshka", False) is (dims is not None)
        return dims

    model = make_model(backbone(model_type), tmp_path / "model", cuts=CUTS)
    export_cut(open_model(model), 2, tmp_path / "cut")
    assert (dims_of(model), dims_of(tmp_path / "cut")) == ([8, 32], [8, 16, 32])
    _, report = load_plain(model, output_loading_info=True)
    assert not any(report.values())
    before = read_card(model)
    edit(model / "config.json", matryoshka_dimensions=[4])
    assert read_card(model) == before
    plain = make_model(model, tmp_path / "plain", cuts=(Cut(4, 32),))
    assert dims_of(plain) is None


# What is refused


@pytest.mark.parametrize("name", ["theirs", "own"])
def test_a_model_is_loaded_as_it_was_opened_or_not_at_all(
    name: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(name)
    opened = open_model(folder, query_length=9)
    assert load(opened)[0].card == opened.card == replace(read_card(folder), query_length=9)
    edit(folder / "config.json", layer_norm_eps=0.5)
    with pytest.raises(UserError, match=f"Files in {folder} are not those that {folder} was"):
        load(opened)


CODE = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\nclass Own: pass\n"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("config.json", "AutoModel"),
        ("tokenizer_config.json", "AutoTokenizer"),
    ],
)
def test_code_of_a_folder_is_never_asked_about_and_never_run(
    file: str, name: str, theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (theirs / "own.py").write_text(CODE.replace("__file__", repr(str(tmp_path / "x"))))
    edit(theirs / file, auto_map={name: "own.Own"})
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asked"))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    with pytest.raises(UserError, match=rf"needs its own Python code, auto_map {name}"):
        load(theirs)
    assert not (tmp_path / "ran").exists()


def test_weights_that_do_not_belong_are_refused(theirs: Path, own: Path) -> None:
    edit(theirs / "config.json", num_hidden_layers=6)
    with pytest.raises(UserError, match="lack .* and others"):
        load(theirs)
    (theirs / "model.safetensors").write_bytes(b"\0" * 4096)
    with pytest.raises(UserError, match="cannot be loaded"):
        load(theirs)
    (theirs / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="or an adapter"):
        load(theirs)
    (own / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no weights as safetensors"):
        load(own)


def test_weights_that_no_layer_takes_are_refused(theirs: Path) -> None:
    path = theirs / "model.safetensors"
    name = "encoder.layer.1.attention.self.distance_embedding.weight"
    weights = load_file(path) | {name: torch.ones(3, 8), "cls.predictions.bias": torch.ones(64)}
    save_file(weights, path, metadata={"format": "pt"})

    load(theirs, layer=1)  # reads none of them
    with pytest.raises(UserError, match="have encoder.layer.1.*, which no layer of bert takes"):
        load(theirs)


UNREAD: list[tuple[str, dict[str, object]]] = [
    ("bert", {"position_embedding_type": "relative_key_query"}),
    ("bert", {"position_embedding_type": "alibi"}),
    ("bert", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    ("bert", {"quantization_config": {"quant_method": "unheard of"}}),
    ("bert", {"is_decoder": True}),
    ("bert", {"add_cross_attention": True}),
    ("modernbert", {"is_decoder": True}),
    ("deberta-v2", {"conv_kernel_size": 3}),
    ("nomic_bert", {"rotary_scaling_factor": 2}),
    ("nomic_bert", {"rotary_emb_base": 10000}),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    ("qwen2", {"rope_parameters": {"rope_type": "longrope", "partial_rotary_factor": 1.0}}),
]


@pytest.mark.parametrize(("model_type", "settings"), UNREAD, ids=str)
def test_settings_that_a_backbone_would_not_follow_are_refused(
    model_type: str, settings: dict[str, object], backbone: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(backbone(model_type), tmp_path / "theirs"))
    edit(folder / "config.json", **settings)

    with pytest.raises(UserError, match=r"config\.json (asks for|scales positions by)"):
        read_card(folder)


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("modernbert", {"position_embedding_type": "absolute"}),
        ("gte", {"position_embedding_type": "rope"}),
        ("bert", {"position_embedding_type": None}),
        ("bert", {"is_decoder": False}),
        ("llama", {"is_decoder": True}),
        ("nomic_bert", {"rotary_emb_base": 1000, "rotary_scaling_factor": None}),
    ],
    ids=str,
)
def test_settings_that_ask_for_nothing_are_not_refused(
    model_type: str, settings: dict[str, object], backbone: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(backbone(model_type), tmp_path / "theirs"))
    edit(folder / "config.json", **settings)

    assert load(folder, 2)[0].layers == 2


# Threads


def test_threads_load_one_at_a_time_and_keep_the_default_dtype(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, most, defaults = 0, 0, []
    counting, plain, set_default = (
        threading.Lock(),
        AutoModel.from_pretrained,
        torch.set_default_dtype,
    )

    def counted(*args: object, **options: object) -> object:
        nonlocal inside, most
        with counting:
            inside += 1
            most = max(most, inside)
        time.sleep(0.05)
        found = plain(*args, **options)
        with counting:
            inside -= 1
        return found

    def seen(dtype: torch.dtype) -> None:
        defaults.append(dtype)
        set_default(dtype)

    monkeypatch.setattr(AutoModel, "from_pretrained", counted)
    monkeypatch.setattr(torch, "set_default_dtype", seen)

    with ThreadPoolExecutor(4) as pool:
        loaded = [*pool.map(lambda _: load(theirs, dtype=torch.bfloat16)[0], range(4))]

    assert most == 1
    assert set(defaults) == {torch.float32}
    assert {weights.dtype for each in loaded for weights in each.parameters()} == {torch.bfloat16}
