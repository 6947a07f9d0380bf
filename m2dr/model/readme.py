"""The README.md of a model folder, which the Hugging Face hub shows as its model card."""

import json
from pathlib import Path

from huggingface_hub import ModelCardData

from m2dr.model.places import hub_id
from m2dr.records.card import ModelCard
from m2dr.records.cut import Cut

README = "README.md"
TAGS = ["sentence-transformers", "feature-extraction", "sentence-similarity", "matryoshka", "m2dr"]
LIBRARY = "sentence-transformers"  # the hub's name of a library that opens the folder

_TEXT = """\
# {title}

A dual encoder for dense retrieval, written by m2dr. Each of its layers and each prefix of its
embedding, a cut, can retrieve; the cuts below were {made}.

| | |
|---|---|
| recipe | {variant} |
| layers | {layers} |
| dims | {width} |
| pooling | {pooling} |
| similarity | {similarity} |
| tokens of a query | {query_length} |
| tokens of a document | {document_length} |
| documents of a shallow query | {documents} |

{cuts}

What it began from, and what stands before each text:

```json
{told}
```

## Use

FOLDER is this folder.

m2dr, with {layer} layers for a query and {dim} dims:

```bash
m2dr index corpus --corpus CORPUS --model FOLDER --dim {dim}
m2dr search "a question" --corpus CORPUS --model FOLDER --query-layer {layer} --dim {dim}
```
{static}{sentence_transformers}
transformers gives the states of the tokens, without pooling, prefixes or what stands behind them:

```python
from transformers import AutoModel, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("FOLDER"), AutoModel.from_pretrained("FOLDER")
states = model(**tokenizer("a question", return_tensors="pt")).last_hidden_state
```
"""

_STATIC = """
Layer 0 is a table of one vector per token: `--query-layer 0` runs no transformer layer.
`m2dr export --model FOLDER --layer 0 --out TABLE` writes it for sentence-transformers, and with
`--format model2vec` for model2vec.
"""

_SENTENCE_TRANSFORMERS = """
sentence-transformers, with all layers and {dim} dims:

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER", truncate_dim={dim})
queries = model.encode_query(["a question"])
documents = model.encode_document(["a text that may answer it"])
scores = model.similarity(queries, documents)
```
{export}{lengths}"""

_EXPORT = """
Fewer layers for sentence-transformers: `m2dr export --model FOLDER --layer {layer} --out SMALLER`
writes the first {layer} as a model of their own.
"""

_LENGTHS = """
sentence-transformers has one length for all texts: it cuts a query at {document_length} tokens as
it cuts a document, where m2dr cuts it at {query_length}. A query of more than {shorter} tokens
therefore has another vector there, unless `model.max_seq_length = {query_length}` is set while
queries are encoded.
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
| similarity | {similarity} |
| tokens of a query | {query_length} |
| recipe of the full model | {variant} |
| fingerprint of the full model | {fingerprint} |

Of the documents' vectors the first {dim} dims are compared. A vector of a query is parallel to the
one that m2dr gives at layer 0, and of another length: cosines are the same, and a dot product
is the same but for one factor per query, which changes no ranking.

What the full model began from, and what stands before each query:

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
model2vec puts nothing before a text: `query_prefix` above, where it is not empty, is put there by
whoever calls it. Of a text of very many characters model2vec reads a beginning alone.

```python
from model2vec import StaticModel

queries = StaticModel.from_pretrained("FOLDER").encode(["a question"])
```
""",
}


def write_readme(card: ModelCard, folder: Path) -> None:
    """Write what a model is, its trained or fitted cuts, and how m2dr and other tools open it.

    Texts that people chose stand in YAML or JSON alone, which escape what would end them.
    """
    data = ModelCardData(
        base_model=hub_id(card.backbone),
        library_name=LIBRARY,
        pipeline_tag="sentence-similarity",
        tags=TAGS,
    )
    cut = _example(card)
    fitted = card.exit_head == "fitted"
    told = {
        "backbone": card.backbone,
        "query_prefix": card.query_prefix,
        "document_prefix": card.document_prefix,
    }
    text = _TEXT.format(
        title=f"{card.variant}: {card.layers} layers, {card.width} dims",
        variant=card.variant,
        layers=card.layers,
        width=card.width,
        pooling=card.pooling,
        similarity=card.similarity,
        query_length=card.query_length,
        document_length=card.document_length,
        documents=f"from layer {card.layers}" if card.documents == "last" else "from its layer",
        cuts=_cuts(card),
        told=json.dumps(told, indent=2),
        made="fitted" if fitted else "trained",
        layer=cut.layer,
        dim=cut.dim,
        static=_STATIC if fitted else "",
        sentence_transformers=_in_sentence_transformers(card, cut),
    )
    (folder / README).write_text(f"---\n{data.to_yaml()}\n---\n\n{text}", encoding="utf-8")


def write_static_readme(card: ModelCard, dim: int, dtype: str, library: str, folder: Path) -> None:
    """Write what a table of layer 0 is, and how the tool opens it that it was exported for.

    Args:
        card: of the model that it is the layer 0 of.
        dim: dims that were kept.
        dtype: of the rows.
        library: sentence-transformers or model2vec.
        folder: of the table.
    """
    data = ModelCardData(
        base_model=hub_id(card.backbone),
        library_name=library,
        pipeline_tag="sentence-similarity",
        tags=[*TAGS, "static-embeddings"],
    )
    told = {"backbone": card.backbone, "query_prefix": card.query_prefix}
    text = _TABLE.format(
        dim=dim,
        dtype=dtype,
        similarity=card.similarity,
        query_length=card.query_length,
        variant=card.variant,
        fingerprint=card.fingerprint,
        told=json.dumps(told, indent=2),
        use=_TABLE_USE[library],
    )
    (folder / README).write_text(f"---\n{data.to_yaml()}\n---\n\n{text}", encoding="utf-8")


def _example(card: ModelCard) -> Cut:
    """Return the smallest of the cuts that run a layer."""
    return min((cut for cut in card.cuts if cut.layer), default=card.whole)


def _in_sentence_transformers(card: ModelCard, cut: Cut) -> str:
    """Return how sentence-transformers opens the folder; nothing where it cannot.

    It has no module for a fitted exit, by which an exported cut of a fitted model ends.
    """
    fitted = card.exit_head == "fitted"
    if fitted and card.exported_from:
        return ""
    lengths = card.query_length, card.document_length
    exported = card.documents == "same" and cut.layer < card.layers and not fitted
    told = _LENGTHS.format(
        query_length=lengths[0], document_length=lengths[1], shorter=min(lengths)
    )
    return _SENTENCE_TRANSFORMERS.format(
        dim=cut.dim,
        export=_EXPORT.format(layer=cut.layer) if exported else "",
        lengths=told if lengths[0] != lengths[1] else "",
    )


def _cuts(card: ModelCard) -> str:
    """Return a table of the trained or fitted cuts: layers, and the dims of each."""
    rows = [
        f"| {layer} | {', '.join(str(cut.dim) for cut in card.cuts if cut.layer == layer)} |"
        for layer in card.layers_trained
    ]
    return "\n".join(["| layers | dims |", "|---|---|", *rows])
