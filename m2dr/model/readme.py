"""The README.md of a model folder, which the Hugging Face hub shows as its model card."""

import json
from pathlib import Path

from huggingface_hub import ModelCardData

from m2dr.model.places import hub_id
from m2dr.records.card import ModelCard

README = "README.md"
TAGS = ["sentence-transformers", "feature-extraction", "sentence-similarity", "matryoshka", "m2dr"]
LIBRARY = "sentence-transformers"  # the hub's name of a library that opens the folder

_TEXT = """\
# {title}

A dual encoder for dense retrieval, written by m2dr. Each of its layers and each prefix of its
embedding, a cut, can retrieve; the cuts below were trained.

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

sentence-transformers, with all layers and {dim} dims:

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER", truncate_dim={dim})
queries = model.encode_query(["a question"])
documents = model.encode_document(["a text that may answer it"])
scores = model.similarity(queries, documents)
```
{export}{lengths}
transformers gives the states of the tokens, without pooling, prefixes or what stands behind them:

```python
from transformers import AutoModel, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("FOLDER"), AutoModel.from_pretrained("FOLDER")
states = model(**tokenizer("a question", return_tensors="pt")).last_hidden_state
```
"""

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


def write_readme(card: ModelCard, folder: Path) -> None:
    """Write what a model is, its trained cuts, and how m2dr and other tools open it.

    Texts that people chose stand in YAML or JSON alone, which escape what would end them.
    """
    data = ModelCardData(
        base_model=hub_id(card.backbone),
        library_name=LIBRARY,
        pipeline_tag="sentence-similarity",
        tags=TAGS,
    )
    cut = min(card.cuts, default=card.whole)
    lengths = card.query_length, card.document_length
    exported = card.documents == "same" and cut.layer < card.layers
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
        layer=cut.layer,
        dim=cut.dim,
        export=_EXPORT.format(layer=cut.layer) if exported else "",
        lengths=_LENGTHS.format(
            query_length=card.query_length,
            document_length=card.document_length,
            shorter=min(lengths),
        )
        if lengths[0] != lengths[1]
        else "",
    )
    (folder / README).write_text(f"---\n{data.to_yaml()}\n---\n\n{text}", encoding="utf-8")


def _cuts(card: ModelCard) -> str:
    """A table of the trained cuts: layers, and the dims of each."""
    rows = [
        f"| {layer} | {', '.join(str(cut.dim) for cut in card.cuts if cut.layer == layer)} |"
        for layer in card.layers_trained
    ]
    return "\n".join(["| layers | dims |", "|---|---|", *rows])
