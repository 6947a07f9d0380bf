"""What sentence-transformers writes into a folder, read and written."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from m2dr.errors import UserError
from m2dr.jsontext import read_json_file
from m2dr.model.backbones import most_tokens, read_config, usual_pooling
from m2dr.records.card import ModelCard, Pooling, Similarity
from m2dr.records.cut import Cut

POOLING_FLAGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
POOLING_NAMES: dict[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
TEMPERATURE: dict[Similarity, float] = {"dot": 1.0, "cosine": 0.05}
DENSE = "2_Dense"  # folder of an exit head
MAX_LENGTH = 256  # tokens of a document, where the folder asks for nothing else


def foreign_card(name: str, folder: Path) -> ModelCard:
    """The card of a backbone as it comes: whole, untrained at any cut, pooled as it asks to be."""
    config = read_config(folder)
    layers, width = config.num_hidden_layers, config.hidden_size
    similarity = _similarity(folder)
    prompts = _read(folder / "config_sentence_transformers.json").get("prompts", {})
    length = _read(folder / "sentence_bert_config.json").get("max_seq_length") or MAX_LENGTH
    length = min(length, most_tokens(config))
    return ModelCard(
        backbone=name,
        variant="untrained",
        layers=layers,
        width=width,
        cuts=(Cut(layers, width),),
        documents="same",
        pooling=_pooling(folder) or usual_pooling(config),
        similarity=similarity,
        temperature=TEMPERATURE[similarity],
        query_prefix=prompts.get("query") or "",
        document_prefix=prompts.get("document") or prompts.get("passage") or "",
        query_length=length,
        document_length=length,
    )


def write_sentence_transformers_files(
    card: ModelCard, folder: Path, head: Tensor | None = None
) -> None:
    """What SentenceTransformer(folder) needs to give the same vectors.

    Args:
        card: says how to pool, what stands before a text and how long it may be.
        folder: of the model.
        head: [H, H], the exit head of the last layer in the folder, where it has one.

    There is no module that normalises: sentence-transformers cuts behind its modules, and a
    prefix must be cut first and normalised after. Its cosine does that by itself.
    """
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if head is not None:
        kinds.append((DENSE, "Dense"))
        _write_dense(head, folder / DENSE)
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    flags = {flag: pooling == card.pooling for flag, pooling in POOLING_FLAGS.items()}
    settings = {
        "prompts": {"query": card.query_prefix, "document": card.document_prefix},
        "default_prompt_name": None,
        "similarity_fn_name": card.similarity,
    }
    _write(folder / "modules.json", modules)
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": card.width, **flags})
    _write(folder / "config_sentence_transformers.json", settings)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": card.document_length})


def _write_dense(head: Tensor, folder: Path) -> None:
    """An exit head as the module that sentence-transformers knows."""
    height, width = head.shape
    settings = {
        "in_features": width,
        "out_features": height,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    _write(folder / "config.json", settings)
    save_file({"linear.weight": head.contiguous()}, folder / "model.safetensors")


def _pooling(folder: Path) -> Pooling | None:
    table = _read(folder / "1_Pooling" / "config.json")
    chosen = [pooling for flag, pooling in POOLING_FLAGS.items() if table.get(flag)]
    return chosen[0] if chosen else POOLING_NAMES.get(str(table.get("pooling_mode")))


def _similarity(folder: Path) -> Similarity:
    named = _read(folder / "config_sentence_transformers.json").get("similarity_fn_name")
    modules = folder / "modules.json"
    normalises = modules.exists() and "Normalize" in modules.read_text(encoding="utf-8")
    return "cosine" if named == "cosine" or (normalises and named != "dot") else "dot"


def _read(path: Path) -> dict[str, Any]:
    try:
        table = read_json_file(path)
    except FileNotFoundError:
        return {}
    except UserError as error:
        raise UserError(f"{error} Get the model again.") from error
    return table if isinstance(table, dict) else {}


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
