"""What the README of an exported cut says: its scores and costs, and how other tools run it."""

import json
from pathlib import Path

from m2dr.core.files import read_record, write_text
from m2dr.core.records import EXPORTED_FILE, CutCosts, ExportRecord, ModelCard
from m2dr.model.card_results import escaped
from m2dr.model.hub import (
    ONNX_FILE,
    OPENVINO_FILE,
    ListedModule,
    listed_modules,
    table_chain,
)
from m2dr.model.tokenizer import ModelTokenizer

_README = "README.md"
_IDENTITY = "torch.nn.modules.linear.Identity"
POOLED = {
    "cls": "states[:, 0]",
    "mean": "(states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)",
    "last": "states[torch.arange(len(states)), mask.sum(1) - 1]",
}

# From a tokenizer and a model to vectors, in examples of transformers.
POOLING = """\
texts = [{prefix} + text for text in ["a question"]]
batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="right",
                  truncation=True, max_length={card.query_length})
with torch.no_grad():
    states, mask = model(**batch).last_hidden_state, batch["attention_mask"]
vectors = {pooled}
"""

_TRANSFORMERS = (
    """
transformers, for queries{reads}:

```python
{imports}import torch
{safetensors}from transformers import {model_class}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = {model_class}.from_pretrained("FOLDER").eval()
"""
    + POOLING
    + """\
{head}{unit}```
"""
)

_HEAD = """\
head = load_file("FOLDER/{path}/model.safetensors")
vectors = vectors @ head["linear.weight"].T{bias}
"""

_TABLE = """\
table = load_file("FOLDER/{table}/model.safetensors")["emb_layer.weight"]
with open("FOLDER/{rarity}/config.json") as file:
    rarity = json.load(file)
weights = torch.tensor([rarity["word_weights"][name] for name in rarity["vocab"]])
shares = weights[batch["input_ids"]] * mask
shares = shares / shares.sum(1, keepdim=True).clamp(min=1e-9)
vectors = vectors + torch.einsum("bt,btk->bk", shares, table[batch["input_ids"]])
"""

_SENTENCE_TRANSFORMERS = """
sentence-transformers:

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER")
queries = model.encode_query(["a question"])
documents = model.encode_document(["a text that may answer it"])
scores = model.similarity(queries, documents)
```
{servers}"""

_SERVERS = """
Servers that read `modules.json`, `1_Pooling` and `2_Dense`, such as text-embeddings-inference,
give the same vectors.
"""

_NO_SERVERS = """
Its exit adds a table of token vectors (`2_WordEmbeddings`), which sentence-transformers runs, and
servers that know Pooling and Dense alone do not.
"""

_GRAPH = """\
# {cut} of {model} for {tool}

An encoder for dense retrieval: {layers} of the {full.layer} layers of that model, and the first
{cut.dim} dims of its embedding. The graph takes token ids and a mask, and gives the vectors of the
texts{unit}; neither m2dr nor torch is needed. Written by m2dr.

| | |
|---|---|
| graph | {file}, {weights} |
| inputs | `input_ids` and `attention_mask`, int64, any number of texts and tokens |
| output | `sentence_embedding`, float32, texts × {cut.dim} |
| similarity | {card.similarity} |
| tokens of a query | {card.query_length} |
| tokens of a document | {card.document_length} |
| lowest cosine to the vectors of torch | {lowest:.6f} |
{section}
## Use

```bash
pip install {package} tokenizers numpy
```

FOLDER is this folder.

```python
import numpy as np
import {module}
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("FOLDER/tokenizer.json")
tokenizer.enable_padding(pad_id={pad_id})
{opened}

def encode(texts, prompt, length):
    tokenizer.enable_truncation(length{side})
    rows = tokenizer.encode_batch([prompt + text for text in texts])
    ids = np.array([row.ids for row in rows], np.int64)
    mask = np.array([row.attention_mask for row in rows], np.int64)
    return {run}

queries = encode(["a question"], {query}, {card.query_length})
documents = encode(["a text that may answer it"], {document}, {card.document_length})
scores = queries @ documents.T
```
{settings}"""

_OPENED = {
    "onnx": f'session = onnxruntime.InferenceSession("FOLDER/{ONNX_FILE}")',
    "openvino": f"""\
settings = {{"INFERENCE_PRECISION_HINT": "f32"}}
model = openvino.Core().compile_model("FOLDER/{OPENVINO_FILE}", "CPU", settings)""",
}
_RUNS = {
    "onnx": 'session.run(None, {"input_ids": ids, "attention_mask": mask})[0]',
    "openvino": "np.array(model([ids, mask])[0])",
}
_SETTINGS = {
    "onnx": "",
    "openvino": """
Without the setting OpenVINO multiplies in bf16 where the processor can: faster, and off by some
1e-3.
""",
}


def read_exported(folder: Path) -> ExportRecord | None:
    """Return the record of an exported cut; None in the folder of any other model."""
    path = folder / EXPORTED_FILE
    if not path.exists():
        return None
    return read_record(path, ExportRecord)


def cut_section(record: ExportRecord) -> str:
    """Return the section on what an exported cut is, what it scores and what it costs."""
    said = [
        "## The cut",
        f"{record.cut} of {escaped(record.model)} (fingerprint {record.fingerprint[:12]}), whose "
        f"full model is {record.full}: layers that it does not run and dims that it does not keep "
        "are left out.",
    ]
    if record.query_only:
        said.append(
            f"It is an encoder of queries: that model trained such queries to search documents of "
            f"its layer {record.full.layer}, which L{record.full.layer}D{record.cut.dim} gives, "
            "exported in the same way. Documents encoded by this folder are found less well."
        )
    if record.measured:
        said.append("\n".join(_measured(record)))
    else:
        said.append("Its quality was not measured when it was exported.")
    if record.costs is not None:
        said.append("\n".join(_costs(record.costs, record.full_costs, record)))
    if record.int8 is not None:
        said.append(_int8(record))
    return "".join(f"\n{part}\n" for part in said)


def _measured(record: ExportRecord) -> list[str]:
    rows = [f"| corpus | queries | measure | {record.cut} | {record.full} | share |"]
    rows.append("|---|---|---|---|---|---|")
    for one in record.measured:
        place = escaped(f"{one.corpus} {one.split}".strip())
        full = "" if one.full is None else f"{one.full:.4f}"
        share = f"{one.value / one.full:.1%}" if one.full else ""
        cells = place, str(one.queries), escaped(one.measure), f"{one.value:.4f}", full, share
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _costs(costs: CutCosts, full: CutCosts | None, record: ExportRecord) -> list[str]:
    rows = [f"| cost | {record.cut} | {record.full} |", "|---|---|---|"]
    names = {
        "parameters in memory": "parameters",
        "multiply-adds of a query": "multiply_adds",
        "bytes of a document in an index": "bytes_per_document",
        "ms of a query, the median": "latency_p50_ms",
    }
    for name, field in names.items():
        mine, whole = (getattr(one, field) if one else None for one in (costs, full))
        if mine is not None:
            form = "{:.2f}" if isinstance(mine, float) else "{:,}"
            other = "" if whole is None else form.format(whole)
            rows.append(f"| {name} | {form.format(mine)} | {other} |")
    return [*rows, *(["", escaped(costs.setup)] if costs.setup else [])]


def _int8(record: ExportRecord) -> str:
    found = record.int8
    assert found is not None
    return (
        f"Its weights are int8. On {found.queries} queries and {found.documents:,} documents of "
        f"{escaped(found.corpus)} the mean cosine to fp32 weights is {found.cosine:.5f}, the "
        f"lowest {found.lowest:.5f}, and {escaped(found.measure)} is {found.value:.4f} where fp32 "
        f"weights give {found.fp32:.4f}."
    )


def sentence_transformers_section(folder: Path) -> str:
    """Return how sentence-transformers and servers open an exported cut."""
    wide = bool(table_chain(folder))
    return _SENTENCE_TRANSFORMERS.format(servers=_NO_SERVERS if wide else _SERVERS)


def transformers_section(card: ModelCard, folder: Path, model_class: str) -> str:
    """Return how transformers gives the vectors of an exported cut; empty where code is long."""
    chain, behind = table_chain(folder), listed_modules(folder)[2:]
    dense = chain[2] if chain else next((row for row in behind if row.kind == "Dense"), None)
    others = [row for row in behind if row.kind != "Normalize" and row is not dense]
    if card.pooling not in POOLED or (others and not chain) or not _is_linear(folder, dense):
        return ""
    head = "" if dense is None else _head(folder, dense)
    if chain:
        head += _TABLE.format(table=chain[0].path, rarity=chain[1].path)
    cosine = card.similarity == "cosine"
    return _TRANSFORMERS.format(
        card=card,
        reads=", which reads the states alone" if dense is None else "",
        imports="import json\n\n" if chain else "",
        safetensors="from safetensors.torch import load_file\n" if head else "",
        model_class=model_class,
        prefix=repr(card.query_prefix).replace("`", r"\x60"),
        pooled=POOLED[card.pooling],
        head=head,
        unit="vectors = torch.nn.functional.normalize(vectors, dim=-1)\n" if cosine else "",
    )


def _settings(folder: Path, dense: ListedModule) -> dict[str, object]:
    path = folder / dense.path / "config.json"
    found: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _is_linear(folder: Path, dense: ListedModule | None) -> bool:
    if dense is None:
        return True
    settings = _settings(folder, dense)
    return settings["activation_function"] == _IDENTITY and not settings.get("use_residual")


def _head(folder: Path, dense: ListedModule) -> str:
    bias = ' + head["linear.bias"]' if _settings(folder, dense)["bias"] else ""
    return _HEAD.format(path=dense.path, bias=bias)


def write_graph_readme(
    card: ModelCard, tokenizer: ModelTokenizer, record: ExportRecord, folder: Path
) -> None:
    """Write the README of a graph: what it is, and how it is run in a few lines."""
    onnx = record.written_as == "onnx"
    left = tokenizer.inner.truncation_side != "right"
    query, document = (
        repr(text).replace("`", r"\x60") for text in (card.query_prefix, card.document_prefix)
    )
    text = _GRAPH.format(
        cut=record.cut,
        full=record.full,
        model=escaped(record.model),
        layers=record.cut.layer,
        tool="ONNX Runtime" if onnx else "OpenVINO",
        unit=", of length one" if card.similarity == "cosine" else "",
        file=ONNX_FILE if onnx else OPENVINO_FILE,
        weights="int8 weights" if record.int8 else "fp32",
        card=card,
        lowest=record.lowest_cosine or 0.0,
        section=cut_section(record),
        package="onnxruntime" if onnx else "openvino",
        module="onnxruntime" if onnx else "openvino",
        pad_id=tokenizer.pad_id,
        opened=_OPENED[record.written_as],
        side=', direction="left"' if left else "",
        run=_RUNS[record.written_as],
        query=query,
        document=document,
        settings=_SETTINGS[record.written_as],
    )
    write_text(folder / _README, text)
