"""Folders of sentence-transformers: the same vectors as it gives, or a refusal by name."""

import importlib
import json
import pkgutil
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import sentence_transformers
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules.module import Module
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Dropout,
    InputModule,
    LayerNorm,
    Normalize,
    Pooling,
    Transformer,
)
from torch import nn
from world import make_backbone

from m2dr.core.errors import UserError
from m2dr.core.settings import TrainSettings, read_settings
from m2dr.model import checkpoint
from m2dr.model.checkpoint import export_cut, load, open_model, read_card
from m2dr.model.folder import MODULE_KEYS, RUN
from m2dr.model.hub import MODEL_SETTINGS, TRANSFORMER_SETTINGS
from m2dr.tasks.encoder import Encoder
from m2dr.tasks.training.train import train

TEXTS = ["open the file", "a list of numbers and a class of text and a line of words", "path"]
Chain = Sequence[Module]
Make = Callable[..., Path]


def dense(*sizes: int, **options: object) -> Dense:
    torch.manual_seed(sum(sizes))
    return Dense(*sizes, **options)


def layer_norm(width: int) -> LayerNorm:
    module = LayerNorm(width)
    with torch.no_grad():
        module.norm.weight.uniform_(0.5, 2)
        module.norm.bias.uniform_(-1, 1)
    return module


def prelu() -> nn.PReLU:
    return nn.PReLU(init=0.1)


POOLINGS = [
    *Pooling.POOLING_MODES,
    ("cls", "max", "mean"),
    ("lasttoken", "cls"),
    Pooling.POOLING_MODES,
]
CHAINS: dict[str, Callable[[], Chain]] = {
    "dense": lambda: [dense(32, 24)],
    "wider": lambda: [dense(32, 48, bias=False, activation_function=nn.Identity())],
    "two dense": lambda: [dense(32, 16), dense(16, 20, activation_function=nn.GELU())],
    "trained activation": lambda: [dense(32, 8, activation_function=prelu())],
    "residual": lambda: [dense(32, 32, use_residual=True)],
    "residual, projected": lambda: [dense(32, 8, use_residual=True)],
    "layer norm": lambda: [layer_norm(32)],
    "normalize": lambda: [Normalize()],
    "normalize first": lambda: [Normalize(), dense(32, 8)],
    "dropout": lambda: [Dropout(0.5)],
    "all": lambda: [Dropout(0.3), dense(32, 16), layer_norm(16), Normalize()],
}


@pytest.fixture(scope="module")
def tiny(tiny_backbone: Path) -> Transformer:
    return Transformer(str(tiny_backbone))


@pytest.fixture
def make(tiny: Transformer, tmp_path: Path) -> Make:
    """Write a folder of sentence-transformers, and give it settings of files that it has."""

    def written(
        pooling: object = "mean", chain: Chain = (), name: str = "theirs", **options: object
    ) -> Path:
        chosen = [tiny, Pooling(32, pooling), *chain]
        folder = tmp_path / name
        SentenceTransformer(modules=chosen, **options).save(str(folder), create_model_card=False)
        return folder

    return written


def change(path: Path, **values: object) -> None:
    """Set keys of a JSON file; a value of None takes the key away."""
    table = json.loads(path.read_text()) if path.exists() else {}
    table |= values
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({key: value for key, value in table.items() if value is not None}))


def ours(folder: Path, layer: int | None = None, side: str = "document") -> NDArray[np.float32]:
    encoder = load(folder, layer)
    vectors = encoder.vectors(TEXTS, side, [encoder.runtime.layers])[0]
    if encoder.card.similarity == "cosine" and ends_normalised(folder):
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def ends_normalised(folder: Path) -> bool:
    return open_model(folder).found.normalizes


def theirs(folder: Path, layers: int = 4) -> SentenceTransformer:
    """The model as sentence-transformers opens it, its transformer cut to the first layers."""
    model = SentenceTransformer(str(folder), device="cpu")
    bert = model[0].model.encoder
    bert.layer = bert.layer[:layers]
    return model


def assert_same(folder: Path, layers: int = 4) -> None:
    expected = theirs(folder, layers).encode(TEXTS)
    np.testing.assert_allclose(ours(folder, layers), expected, atol=1e-5)
    assert read_card(folder).width == expected.shape[1]


def shipped() -> list[type[Module]]:
    """Every module class that sentence-transformers holds, of any kind of model."""
    for found in pkgutil.walk_packages(sentence_transformers.__path__, "sentence_transformers."):
        if ".modules" in found.name:
            importlib.import_module(found.name)
    known: list[type] = [Module]
    for kind in known:
        known += [sub for sub in kind.__subclasses__() if sub not in known]
    mine = [k for k in known if k.__module__.startswith("sentence_transformers.")]
    return [kind for kind in mine if kind not in (Module, InputModule)]


@pytest.mark.parametrize("pooling", POOLINGS, ids=str)
def test_every_pooling_gives_the_vectors_that_sentence_transformers_gives(
    pooling: object, make: Make
) -> None:
    folder = make(pooling)

    assert_same(folder)
    assert_same(folder, layers=2)


@pytest.mark.parametrize("chain", CHAINS)
def test_every_module_behind_a_pooling_is_run(chain: str, make: Make) -> None:
    folder = make("mean", CHAINS[chain]())

    assert_same(folder)
    assert_same(folder, layers=2)


def test_every_module_that_sentence_transformers_ships_is_run_or_refused_by_name(
    make: Make,
) -> None:
    folder = make()
    run = {type(module) for chain in CHAINS.values() for module in chain()}
    run |= {Transformer, Pooling}

    assert {kind.__name__ for kind in run} == set(RUN)
    assert set(RUN[2:]) == set(MODULE_KEYS)
    for kind in shipped():
        if kind in run:
            continue
        listed = json.loads((folder / "modules.json").read_text())[:2]
        listed.append({"path": "2_X", "type": f"{kind.__module__}.{kind.__name__}"})
        (folder / "modules.json").write_text(json.dumps(listed))
        with pytest.raises(UserError, match=rf"names .*\b{kind.__name__}\b"):
            read_card(folder)


REFUSED: dict[str, tuple[str, dict[str, object], str]] = {
    "pooling": ("1_Pooling", {"pooling_mode": "attention"}, "attention"),
    "token dense": ("2_Dense", {"module_input_name": "token_embeddings"}, "module_input_name"),
    "unknown activation": ("2_Dense", {"activation_function": "elsewhere.GELU"}, "elsewhere"),
    "width": ("2_Dense", {"in_features": 31}, "31 dims"),
    "unknown key": ("2_Dense", {"gate": 1}, "gate"),
    "similarity": ("", {"similarity_fn_name": "euclidean"}, "euclidean"),
    "kind of model": ("", {"model_type": "SparseEncoder"}, "SparseEncoder"),
    "unknown": ("bert", {"shout": True}, "shout"),
    "config": ("bert", {"config_args": {"is_causal": False}}, "is_causal"),
    "tokenizer": ("bert", {"processor_kwargs": {"add_eos_token": True}}, "add_eos_token"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_run_is_refused_by_name(case: str, make: Make) -> None:
    place, values, sentence = REFUSED[case]
    folder = make("mean", [dense(32, 8)])
    path = {"": folder / MODEL_SETTINGS, "bert": folder / TRANSFORMER_SETTINGS[0]}
    change(path.get(place, folder / place / "config.json"), **values)

    with pytest.raises(UserError, match=sentence):
        load(folder)


def test_weights_in_a_pickle_are_refused(make: Make) -> None:
    folder = make("mean", [dense(32, 8)])
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")

    with pytest.raises(UserError, match=r"reads no pickles"):
        load(folder)


@pytest.mark.parametrize("named", [None, "cosine", "dot"])
def test_vectors_are_compared_as_sentence_transformers_compares_them(
    named: str | None, make: Make
) -> None:
    folder = make()
    change(folder / MODEL_SETTINGS, similarity_fn_name=named)

    assert read_card(folder).similarity == theirs(folder).similarity_fn_name


# What a folder says, and the prompts of queries, of documents and of texts of no side.
PROMPTS: dict[str, tuple[dict[str, object], tuple[str, str, str]]] = {
    "spaces": (
        {"prompts": {"query": "read: ", "document": " line :\n"}},
        ("read: ", " line :\n", ""),
    ),
    "default": (
        {"prompts": {"text": "read: "}, "default_prompt_name": "text"},
        ("read: ", "read: ", "read: "),
    ),
    "default of queries": (
        {"prompts": {"query": "read: "}, "default_prompt_name": "query"},
        ("read: ", "", ""),
    ),
    "default of queries by another name": (
        {"prompts": {"a_query": "read: "}, "default_prompt_name": "a_query"},
        ("read: ", "", ""),
    ),
    "default of documents": (
        {"prompts": {"passage": "line: "}, "default_prompt_name": "passage"},
        ("", "line: ", "line: "),
    ),
    "saved by sentence-transformers": (
        {"prompts": {"query": "", "document": "", "search_query": "read: ", "passage": "line: "}},
        ("read: ", "line: ", ""),
    ),
    "dots": (
        {"prompts": {"retrieval.query": "read: ", "retrieval.passage": "line: ", "class": "a "}},
        ("read: ", "line: ", ""),
    ),
}


@pytest.mark.parametrize("case", PROMPTS)
def test_prompts_stand_before_the_texts_of_their_side(case: str, make: Make) -> None:
    folder = make(chain=[Normalize()])
    settings = json.loads((folder / MODEL_SETTINGS).read_text())
    del settings["prompts"]
    told, prompts = PROMPTS[case]
    (folder / MODEL_SETTINGS).write_text(json.dumps(settings | told))
    model = theirs(folder)

    encoder = Encoder(folder, dtype="fp32")
    found = [
        each(TEXTS) for each in (encoder.encode_queries, encoder.encode_documents, encoder.encode)
    ]

    for vectors, prompt in zip(found, prompts, strict=True):
        np.testing.assert_allclose(vectors, model.encode(TEXTS, prompt=prompt), atol=1e-5)


def test_prompts_that_are_not_taken_are_named(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make()
    change(folder / MODEL_SETTINGS, prompts={"s2p_query": "read: ", "document": "line: "})

    assert read_card(folder).query_prefix == read_card(folder).query_prefix == ""
    assert capsys.readouterr().err.count("prompts named 's2p_query'") == 1


def test_a_length_of_null_is_none(make: Make) -> None:
    folder = make()
    change(folder / TRANSFORMER_SETTINGS[0], max_seq_length=None)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": None}))

    assert read_card(folder).document_length == theirs(folder).max_seq_length


def test_texts_are_cut_where_sentence_transformers_cuts_them(make: Make, tiny: Transformer) -> None:
    long = " ".join(["list of numbers"] * 60)
    before = tiny.max_seq_length

    def length(folder: Path) -> int:
        return theirs(folder).tokenize([long])["input_ids"].shape[1]

    folder = make()
    assert read_card(folder).document_length == length(folder) == 64
    tiny.max_seq_length = 9
    shorter = make(name="shorter")
    tiny.max_seq_length = before
    assert read_card(shorter).document_length == length(shorter) == 9
    change(folder / TRANSFORMER_SETTINGS[0], max_seq_length=7)
    assert read_card(folder).document_length == length(folder) == 7
    (folder / TRANSFORMER_SETTINGS[0]).rename(folder / "sentence_roberta_config.json")
    assert read_card(folder).query_length == length(folder) == 7


@pytest.mark.parametrize("model_type", ["nomic_bert", "gte", "modernbert", "llama"])
def test_rotary_backbones_read_as_far_as_the_folder_says(model_type: str, tmp_path: Path) -> None:
    plain = make_backbone(tmp_path / "plain", model_type, max_position_embeddings=16)
    model = SentenceTransformer(
        modules=[Transformer(str(plain), max_seq_length=40), Pooling(32, "mean"), Normalize()],
        device="cpu",
    )
    model.save(str(tmp_path / "saved"))
    change(tmp_path / "saved" / TRANSFORMER_SETTINGS[0], max_seq_length=40)
    text = "list of numbers " * 20

    vector = Encoder(tmp_path / "saved", dtype="fp32").encode(text)

    np.testing.assert_allclose(vector, model.encode(text), atol=1e-5)
    assert read_card(tmp_path / "saved").document_length == 40


def test_a_model_that_lowercases_does_so_when_it_was_saved_again(
    make: Make, tmp_path: Path
) -> None:
    folder = make()
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer | {"normalizer": None}))
    change(folder / TRANSFORMER_SETTINGS[0], do_lower_case=True)
    rows = load(folder)[1](["Open The FILE"], 64)

    checkpoint.save(*load(folder), read_card(folder), tmp_path / "saved")

    assert rows == load(tmp_path / "saved")[1](["Open The FILE"], 64)
    assert rows == theirs(tmp_path / "saved").tokenize(["Open The FILE"])["input_ids"].tolist()


def test_a_transformer_in_a_folder_of_its_own_is_found(make: Make) -> None:
    folder = make("max", [dense(32, 8)])
    inner = folder / "0_Transformer"
    inner.mkdir()
    for path in [path for path in folder.iterdir() if path.is_file()]:
        if path.name not in ("modules.json", MODEL_SETTINGS):
            path.rename(inner / path.name)
    listed = json.loads((folder / "modules.json").read_text())
    listed[0]["path"] = inner.name
    (folder / "modules.json").write_text(json.dumps(listed))

    assert_same(folder)


def test_the_fingerprint_covers_the_modules_that_are_run(make: Make) -> None:
    folder = make("mean", [dense(32, 8)])
    plain = make("mean", [Normalize()], name="plain")
    before = read_card(folder).fingerprint

    change(
        folder / "2_Dense" / "config.json", activation_function="torch.nn.modules.activation.GELU"
    )
    after = read_card(folder).fingerprint

    assert len({before, after, read_card(plain).fingerprint}) == 3


def test_the_hub_is_asked_for_the_weights_of_the_modules(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    hub = make("mean", [dense(32, 8)], name="hub")
    (hub / "onnx").mkdir()
    shutil.copy(hub / "model.safetensors", hub / "onnx")
    (hub / "pytorch_model.bin").write_bytes(b"")
    copy = tmp_path / "copy"

    def download(name: str, **patterns: list[str]) -> str:
        assert name == "someone/model"
        files = [str(path.relative_to(hub)) for path in hub.rglob("*") if path.is_file()]
        for file in filter_repo_objects(files, **patterns):
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(hub / file, copy / file)
        return str(copy)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    vectors = ours(Path("someone/model"))

    np.testing.assert_allclose(vectors, theirs(hub).encode(TEXTS), atol=1e-5)
    assert {path.name for path in copy.glob("*.bin")} | set(copy.glob("onnx/*")) == set()


def settings(backbone: Path, corpus: Path, *words: str) -> list[str]:
    return [
        f'backbone="{backbone}"', f'corpus="{corpus}"', "steps=2", "batch_size=4",
        "evaluate_steps=0", "device=cpu", "query_length=16", "document_length=16", *words,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["variant=full-dim", "dims=[8]"],
        ["variant=elastic", "dims=[8]", "exit_head=linear", "lora_rank=2"],
        ["variant=plain", "refit=false", "pooling=weightedmean", "similarity=dot"],
    ],
    ids=lambda words: words[0],
)
def test_modules_are_trained_on_and_written_back(
    words: list[str], make: Make, tiny_corpus: Path, tmp_path: Path
) -> None:
    chain = [dense(32, 24), layer_norm(24), Dropout(0.1), Normalize()]
    backbone = make("mean", chain, truncate_dim=20)

    card = train(
        read_settings(TrainSettings, None, settings(backbone, tiny_corpus, *words)), tmp_path / "m"
    )

    assert card.card.width == 20
    before, after = (load(folder)[0].behind.state_dict() for folder in (backbone, tmp_path / "m"))
    assert all((before[name] != after[name]).any() for name in before)
    export_cut(open_model(tmp_path / "m"), 2, tmp_path / "cut")
    for folder, layer in (("m", 4), ("cut", 2)):
        referee = SentenceTransformer(str(tmp_path / folder), device="cpu")
        unit = read_card(tmp_path / folder).similarity == "cosine"  # truncated behind Normalize
        expected = referee.encode(TEXTS, normalize_embeddings=unit)
        np.testing.assert_allclose(ours(tmp_path / folder), expected, atol=1e-5)
        np.testing.assert_allclose(ours(tmp_path / "m", layer), expected, atol=1e-5)
