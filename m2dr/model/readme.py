"""Write the README.md of a model folder, which the Hugging Face hub shows as its model card."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard as HubCard
from huggingface_hub import ModelCardData

from m2dr.core.errors import UserError, command, counted
from m2dr.core.files import error_summary, read_json, write_text
from m2dr.core.records import Cut, ModelCard
from m2dr.model.backbones import backbone_of, read_config
from m2dr.model.card_results import (
    MeasuredGrid,
    escaped,
    eval_results,
    hub_dataset,
    results_section,
)
from m2dr.model.cut_readme import (
    POOLED,
    POOLING,
    cut_section,
    read_exported,
    sentence_transformers_section,
    transformers_section,
)
from m2dr.model.hub import PROCESSES, behind_pooling, hub_id

README = "README.md"
IMAGES = "images"  # folder of the figures that it shows
TAGS = ["sentence-transformers", "feature-extraction", "sentence-similarity", "matryoshka", "m2dr"]
# Text of a person stands between these two, and is kept when the card is written again.
BEGIN = "<!-- m2dr: your text begins here and is kept by m2dr card -->"
END = "<!-- m2dr: your text ends here -->"
_WRITTEN = "written by m2dr"  # in every card of a model
_KEPT = re.compile(f"{re.escape(BEGIN)}(.*?){re.escape(END)}", re.DOTALL)

_TEXT = """\
# {title}

A dual encoder for dense retrieval, written by m2dr. Each of its layers and each prefix of its
embedding, a cut, can retrieve; the cuts below were {made}.

{kept}

| property | value |
|---|---|
| recipe | {recipe} |
| layers | {card.layers} |
| dims | {card.width} |
| pooling | {card.pooling} |
| similarity | {card.similarity} |
| tokens of a query | {card.query_length} |
| tokens of a document | {card.document_length} |
| documents of a shallow query | {documents} |

{cuts}
{exported}
The backbone that training began from, and the prefixes of texts:

```json
{told}
```
{training}{results}
## Use

FOLDER is this folder, or its id on the hub.

m2dr, with {layers} for a query and {cut.dim} dims:

```bash
m2dr index corpus --corpus CORPUS --model FOLDER --dim {cut.dim}
m2dr search "a question" --corpus CORPUS --model FOLDER --query-layer {cut.layer} --dim {cut.dim}
```

```python
import m2dr

model = m2dr.Encoder.from_pretrained("FOLDER", layer={cut.layer}, dim={cut.dim})
queries = model.encode_queries(["a question"])
documents = model.encode_documents(["a text that may answer it"])
scores = model.similarity(queries, documents)
```
{static}{sentence_transformers}{transformers}"""

_STATES = """
transformers gives the states of the tokens, without prefixes, pooling and the modules behind it:

```python
from transformers import {model_class}, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("FOLDER"), {model_class}.from_pretrained("FOLDER")
states = model(**tokenizer("a question", return_tensors="pt")).last_hidden_state
```
"""

_TRANSFORMERS = (
    """
transformers, with {layers} and {cut.dim} dims, for queries:

```python
import torch
from transformers import {model_class}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = {model_class}.from_pretrained("FOLDER").eval(){cutting}
"""
    + POOLING
    + """\
vectors = {cutting_dims}
```
"""
)

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
`m2dr export --model FOLDER --layers {cut.layer} --out SMALLER` writes a model of
{layers}.
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

| property | value |
|---|---|
| dims | {dim} |
| numbers | {dtype} |
| fitted on | {fitted} |
| similarity | {card.similarity} |
| tokens of a query | {card.query_length} |
| recipe of the full model | {recipe} |
| fingerprint of the full model | {card.fingerprint} |

Of the documents' vectors the first {dim} dims are compared. A vector of a query is parallel to the
one that m2dr gives at layer 0, and of another length: cosines are the same, and a dot product
is the same but for one factor per query, which changes no ranking. The documents are those of the
full model at {dim} dims, of which this command writes an encoder:

```
{documents}
```

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


@dataclass(frozen=True)
class CardParts:
    """What a card says besides that of m2dr.json."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # of the training or the fit
    grids: tuple[MeasuredGrid, ...] = ()
    earlier: str = ""  # the card that is written anew, whose texts by people are kept
    name: str = ""  # of the model, for its results


def read_training_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a training in a file, without those that are not set."""
    try:
        table = read_json(path)
    except UserError:
        return {}
    unset: tuple[object, ...] = (None, "", [])
    return {k: v for k, v in table.items() if k != PROCESSES and v not in unset}


def read_earlier(folder: Path) -> str:
    """Return the card that lies in a folder, empty where there is none.

    Raises:
        UserError: it is not m2dr's, or not UTF-8.
    """
    path = folder / README
    if not path.exists():
        return ""
    try:
        text = path.read_text(encoding="utf-8")
    except ValueError as error:
        raise UserError(f"{path} is not UTF-8; rename it, and give the command again.") from error
    if not _KEPT.search(text) and (BEGIN in text or END in text):
        raise UserError(
            f"One of the two comments in {path} that enclose the text to keep is missing, or they "
            f"are in another order. Put {BEGIN} before that text and {END} behind it."
        )
    if not _KEPT.search(text) and _WRITTEN not in text:
        raise UserError(
            f"{path} was not written by m2dr, and would be lost. Rename it, give the command "
            f"again, and put its text between the two comments in the new one."
        )
    return text


def write_readme(card: ModelCard, folder: Path, parts: CardParts | None = None) -> None:
    """Write the README of a model: what it is, its cuts, and how m2dr and other tools open it.

    Texts that users chose are escaped, or written in YAML, JSON and Python, which escape them.

    Args:
        card: of the model.
        folder: of its files, which lie there already.
        parts: what else is known.
    """
    parts, exported = parts or CardParts(), read_exported(folder)
    cut = card.full if exported else _example(card)
    fitted = card.exit_head == "fitted"
    told = {
        "backbone": card.backbone,
        **({"revision": card.revision} if card.revision else {}),
        "query_prefix": card.query_prefix,
        "document_prefix": card.document_prefix,
    }
    kept = _KEPT.search(parts.earlier)
    text = _TEXT.format(
        card=card,
        cut=cut,
        layers=counted(cut.layer, "layers"),
        kept=kept[0] if kept else f"{BEGIN}\n{END}",
        title=f"{escaped(card.variant)}: {card.layers} layers, {card.width} dims",
        recipe=escaped(card.variant),
        documents=f"from layer {card.layers}" if card.documents == "last" else "from its layer",
        cuts=_cuts(card),
        told=_json(told),
        made="fitted" if fitted or card.exit_head == "table" else "trained",
        exported=cut_section(exported) if exported else "",
        training=_training(card, parts.settings),
        results=results_section(parts.grids),
        static=_STATIC if fitted else "",
        sentence_transformers=sentence_transformers_section(folder)
        if exported
        else _in_sentence_transformers(card, cut),
        transformers=_in_transformers(card, cut, folder, exported is not None),
    )
    _write(text, card, "sentence-transformers", TAGS, folder, parts)


def write_static_readme(
    card: ModelCard,
    model: str,
    fitted: str,
    dim: int,
    dtype: str,
    library: str,
    folder: Path,
) -> None:
    """Write the README of an exported table of layer 0, for the tool that opens it.

    Args:
        card: of the full model.
        model: its folder or id.
        fitted: what the table was fitted on.
        dim: dims that were kept.
        dtype: of the rows.
        library: sentence-transformers or model2vec.
        folder: of the table.
    """
    text = _TABLE.format(
        card=card,
        recipe=escaped(card.variant),
        fitted=escaped(fitted),
        documents=command("export", model, cut=Cut(card.layers, dim), out="documents"),
        dim=dim,
        dtype=dtype,
        told=_json({"backbone": card.backbone, "query_prefix": card.query_prefix}),
        use=_TABLE_USE[library],
    )
    _write(text, card, library, [*TAGS, "static-embeddings"], folder)


def _write(
    text: str,
    card: ModelCard,
    library: str,
    tags: list[str],
    folder: Path,
    parts: CardParts | None = None,
) -> None:
    """Write README.md, with the hub's metadata before the text.

    Fields that m2dr does not write, such as a license, and tags are kept from the earlier card.
    """
    parts = parts or CardParts()
    earlier = _earlier_metadata(parts.earlier)
    dataset = hub_dataset(str(parts.settings.get("corpus", "")))
    own: dict[str, Any] = {
        "base_model": hub_id(card.backbone, card.revision),
        "datasets": [dataset] if dataset else None,
        "library_name": library,
        "pipeline_tag": "sentence-similarity",
        "eval_results": eval_results(parts.grids) or None,
        "model_name": parts.name or card.variant,
    }
    known = {name: value for name, value in own.items() if value is not None}
    tags = [*tags, *(tag for tag in earlier.pop("tags", []) if tag not in tags)]
    data = ModelCardData(**{**earlier, **known, "tags": tags})
    if not parts.grids:
        data.pop("model_name")
    write_text(folder / README, f"---\n{data.to_yaml()}\n---\n\n{text}")


def _earlier_metadata(text: str) -> dict[str, Any]:
    """Return the metadata of a card that people may have written, without results.

    Raises:
        UserError: it is no YAML.
    """
    table: dict[str, Any] = {}
    try:
        if text.startswith("---"):
            table = dict(HubCard(text, ignore_metadata_errors=True).data.to_dict())  # type: ignore[no-untyped-call]  # the hub does not annotate it
    except Exception as error:  # of its YAML parser, or that it is no table
        raise UserError(
            f"The metadata of {README}, between its lines ---, cannot be read "
            f"({error_summary(error)}). Mend it, or remove these lines."
        ) from error
    table.pop("model-index", None)
    tags = table.get("tags")
    table["tags"] = [str(tag) for tag in tags] if isinstance(tags, list) else []
    return {str(name): value for name, value in table.items()}


def _training(card: ModelCard, settings: Mapping[str, Any]) -> str:
    """Return the section on the data and settings of the training or the fit."""
    said = []
    if card.fit:
        corpora = ", ".join(map(escaped, card.fit.corpora))
        said.append(
            f"Exits were fitted on {counted(card.fit.texts, 'texts', ',')} of {corpora}, without "
            f"labels; rotation {card.fit.rotation}, inputs {card.fit.inputs}."
        )
    if settings:
        corpus, split = (escaped(str(settings.get(name, ""))) for name in ("corpus", "split"))
        of_split = f", split {split}" if split else ""
        said.append(f"Made from the corpus {corpus}{of_split}.")
        said.append("<details><summary>Settings</summary>")
        said.append(f"```json\n{_json(settings)}\n```\n\n</details>")
    return "".join(f"\n{part}\n" for part in ["## Training", *said]) if said else ""


def _in_transformers(card: ModelCard, cut: Cut, folder: Path, exported: bool) -> str:
    """Return how transformers gives the vectors of a cut, or the states alone where it cannot."""
    row = backbone_of(read_config(folder))
    alone = transformers_section(card, folder, row.class_name) if exported else ""
    if alone:
        return alone
    plain = card.exit_head == "none" and not behind_pooling(folder, card.similarity)
    if not plain or card.pooling not in POOLED:
        return _STATES.format(model_class=row.class_name)
    layers = f"model.{row.layers_path}"
    dims = f"vectors[:, :{cut.dim}]"
    cosine = card.similarity == "cosine"
    return _TRANSFORMERS.format(
        card=card,
        cut=cut,
        layers=counted(cut.layer, "layers"),
        model_class=row.class_name,
        cutting=f"\n{layers} = {layers}[:{cut.layer}]" if cut.layer < card.layers else "",
        prefix=repr(card.query_prefix).replace("`", r"\x60"),
        pooled=POOLED[card.pooling],
        cutting_dims=f"torch.nn.functional.normalize({dims}, dim=-1)" if cosine else dims,
    )


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
        export=_EXPORT.format(cut=cut, layers=counted(cut.layer, "layers")) if exported else "",
        lengths=lengths if query != document else "",
    )


def _json(value: Mapping[str, Any]) -> str:
    """Return JSON without backticks, which would end its block in Markdown."""
    return json.dumps(value, indent=2).replace("`", r"\u0060")


def _example(card: ModelCard) -> Cut:
    """Return a cut of the middle of the trained layers, with up to 128 dims but not all."""
    cuts = [cut for cut in card.cuts if cut.layer]
    if not cuts:
        return card.full
    layers = sorted({cut.layer for cut in cuts})
    layer = layers[(len(layers) - 1) // 2]
    dims = sorted(cut.dim for cut in cuts if cut.layer == layer)
    fewer = [dim for dim in dims if dim < card.width]
    return Cut(layer, max((dim for dim in fewer if dim <= 128), default=dims[0]))


def _cuts(card: ModelCard) -> str:
    """Return a table of the trained or fitted cuts: layers, and the dims of each."""
    rows = [
        f"| {layer} | {', '.join(str(cut.dim) for cut in card.cuts if cut.layer == layer)} |"
        for layer in card.layers_trained
    ]
    return "\n".join(["| layers | dims |", "|---|---|", *rows])
