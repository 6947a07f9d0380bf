"""Write the README.md of a model folder, which the Hugging Face hub shows as its model card."""

import json
from pathlib import Path

from huggingface_hub import ModelCardData

from m2dr.model.backbones import backbone_of, read_config
from m2dr.model.hub import hub_id
from m2dr.records.cut import Cut
from m2dr.records.model_card import ModelCard

README = "README.md"
TAGS = ["sentence-transformers", "feature-extraction", "sentence-similarity", "matryoshka", "m2dr"]

_TEXT = """\
# {title}

A dual encoder for dense retrieval, written by m2dr. Each of its layers and each prefix of its
embedding, a cut, can retrieve; the cuts below were {made}.

| | |
|---|---|
| recipe | {card.variant} |
| layers | {card.layers} |
| dims | {card.width} |
| pooling | {card.pooling} |
| similarity | {card.similarity} |
| tokens of a query | {card.query_length} |
| tokens of a document | {card.document_length} |
| documents of a shallow query | {documents} |

{cuts}

The backbone that training began from, and the prefixes of texts:

```json
{told}
```

## Use

FOLDER is this folder.

m2dr, with {cut.layer} layers for a query and {cut.dim} dims:

```bash
m2dr index corpus --corpus CORPUS --model FOLDER --dim {cut.dim}
m2dr search "a question" --corpus CORPUS --model FOLDER --query-layer {cut.layer} --dim {cut.dim}
```
{static}{sentence_transformers}
transformers gives the states of the tokens, without prefixes, pooling and the modules behind it:

```python
from transformers import {model_class}, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("FOLDER"), {model_class}.from_pretrained("FOLDER")
states = model(**tokenizer("a question", return_tensors="pt")).last_hidden_state
```
"""

_STATIC = """
Layer 0 is a table of one vector per token: `--query-layer 0` runs no transformer layer.
`m2dr export --model FOLDER --layers 0 --out TABLE` writes it for sentence-transformers, and with
`--format model2vec` for model2vec.
"""

_SENTENCE_TRANSFORMERS = """
sentence-transformers, with all layers and {cut.dim} dims:

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER", truncate_dim={cut.dim})
queries = model.encode_query(["a question"])
documents = model.encode_document(["a text that may answer it"])
scores = model.similarity(queries, documents)
```
{export}{lengths}"""

_EXPORT = """
Fewer layers for sentence-transformers:
`m2dr export --model FOLDER --layers {cut.layer} --out SMALLER` writes the first {cut.layer} as a
model of their own.
"""

_LENGTHS = """
sentence-transformers has one length for all texts:
it cuts a query at {card.document_length} tokens, as a document,
where m2dr cuts it at {card.query_length}. A query of more than {shorter} tokens
therefore has another vector there, unless
`model.max_seq_length = {card.query_length}` is set while queries are encoded.
"""

_TABLE = """\
# Layer 0 of a model by m2dr: {dim} dims

An encoder of queries that is a table of one vector per token, and runs no transformer layer. It
was fitted to the embeddings of a full model, which encodes the documents: a query by this table
finds documents by that model. Written by m2dr.

| | |
|---|---|
| dims | {dim} |
| numbers | {dtype} |
| similarity | {card.similarity} |
| tokens of a query | {card.query_length} |
| recipe of the full model | {card.variant} |
| fingerprint of the full model | {card.fingerprint} |

Of the documents' vectors the first {dim} dims are compared. A vector of a query is parallel to the
one that m2dr gives at layer 0, and of another length: cosines are the same, and a dot product
is the same but for one factor per query, which changes no ranking.

The backbone that training of the full model began from, and the prefix of queries:

```json
{told}
```

## Use

FOLDER is this folder.

{use}"""

_TABLE_USE = {
    "sentence-transformers": """\
```python
from sentence_transformers import SentenceTransformer

queries = SentenceTransformer("FOLDER").encode_query(["a question"])
```
""",
    "model2vec": """\
model2vec adds no prefix: put `query_prefix` above, where it is not empty, before each query
yourself. Of a text of very many characters model2vec reads a beginning alone.

```python
from model2vec import StaticModel

queries = StaticModel.from_pretrained("FOLDER").encode(["a question"])
```
""",
}


def write_readme(card: ModelCard, folder: Path) -> None:
    """Write the README of a model: what it is, its cuts, and how m2dr and other tools open it.

    Texts that users chose are written in YAML and JSON alone, which escape them.
    """
    cut = min((cut for cut in card.cuts if cut.layer), default=card.full)
    fitted = card.exit_head == "fitted"
    told = {
        "backbone": card.backbone,
        "query_prefix": card.query_prefix,
        "document_prefix": card.document_prefix,
    }
    text = _TEXT.format(
        card=card,
        cut=cut,
        title=f"{card.variant}: {card.layers} layers, {card.width} dims",
        documents=f"from layer {card.layers}" if card.documents == "last" else "from its layer",
        cuts=_cuts(card),
        model_class=backbone_of(read_config(folder)).class_name,
        told=json.dumps(told, indent=2),
        made="fitted" if fitted else "trained",
        static=_STATIC if fitted else "",
        sentence_transformers=_in_sentence_transformers(card, cut),
    )
    _write(text, card, "sentence-transformers", TAGS, folder)


def write_static_readme(card: ModelCard, dim: int, dtype: str, library: str, folder: Path) -> None:
    """Write the README of an exported table of layer 0, for the tool that opens it.

    Args:
        card: of the full model.
        dim: dims that were kept.
        dtype: of the rows.
        library: sentence-transformers or model2vec.
        folder: of the table.
    """
    text = _TABLE.format(
        card=card,
        dim=dim,
        dtype=dtype,
        told=json.dumps({"backbone": card.backbone, "query_prefix": card.query_prefix}, indent=2),
        use=_TABLE_USE[library],
    )
    _write(text, card, library, [*TAGS, "static-embeddings"], folder)


def _write(text: str, card: ModelCard, library: str, tags: list[str], folder: Path) -> None:
    """Write README.md, with the hub's metadata before the text."""
    data = ModelCardData(
        base_model=hub_id(card.backbone),
        library_name=library,
        pipeline_tag="sentence-similarity",
        tags=tags,
    )
    (folder / README).write_text(f"---\n{data.to_yaml()}\n---\n\n{text}", encoding="utf-8")


def _in_sentence_transformers(card: ModelCard, cut: Cut) -> str:
    """Return how sentence-transformers opens the folder; empty where it cannot.

    It has no module for a fitted exit, in which an exported cut of a fitted model ends.
    """
    fitted = card.exit_head == "fitted"
    if fitted and card.exported_from:
        return ""
    query, document = card.query_length, card.document_length
    exported = card.documents == "same" and cut.layer < card.layers and not fitted
    lengths = _LENGTHS.format(card=card, shorter=min(query, document))
    return _SENTENCE_TRANSFORMERS.format(
        cut=cut,
        export=_EXPORT.format(cut=cut) if exported else "",
        lengths=lengths if query != document else "",
    )


def _cuts(card: ModelCard) -> str:
    """Return a table of the trained or fitted cuts: layers, and the dims of each."""
    rows = [
        f"| {layer} | {', '.join(str(cut.dim) for cut in card.cuts if cut.layer == layer)} |"
        for layer in card.layers_trained
    ]
    return "\n".join(["| layers | dims |", "|---|---|", *rows])
