"""The README.md of a model folder, which the Hugging Face hub shows as its model card."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard as HubCard
from huggingface_hub import ModelCardData, try_to_load_from_cache

from m2dr.core.errors import UserError
from m2dr.core.files import write_text
from m2dr.core.records import Cut, ExportRecord, ModelCard
from m2dr.model.hub import BUILT_IN, FITTED_CUT, MODULES, find_folder, hub_id

README = "README.md"
TEMPLATE = Path(__file__).with_name("card.md.j2")
TAGS = ["feature-extraction", "sentence-similarity", "matryoshka", "m2dr"]
# Text of a person stands between these two, and is kept when the card is written again.
BEGIN = "<!-- m2dr: your text begins here and is kept by m2dr card -->"
END = "<!-- m2dr: your text ends here -->"
_KEPT = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
_COSTS = (
    ("parameters in memory", "parameters"),
    ("multiply-adds of a query", "multiply_adds"),
    ("bytes of a document in an index", "bytes_per_document"),
    ("ms of a query, the median", "latency_p50_ms"),
)


@dataclass(frozen=True)
class MeasuredGrid:
    """The measures of a model on one corpus, as its card shows them."""

    corpus: str  # its name
    split: str
    size: str  # such as "323 queries"
    cells: Mapping[Cut, Mapping[str, float]]  # cut -> measure -> mean; all have the same measures
    notes: tuple[str, ...] = ()
    command: str = ""  # that measured it; empty where it is not known

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the measures."""
        return tuple(next(iter(self.cells.values())))

    def rows(self, measure: str) -> list[list[object]]:
        """Return the table of a measure: the dims, then a row per layer with empty gaps."""
        dims = sorted({cut.dim for cut in self.cells})
        return [["layers", *dims]] + [
            [layer, *(_number(self.cells.get(Cut(layer, dim), {}).get(measure)) for dim in dims)]
            for layer in sorted({cut.layer for cut in self.cells})
        ]


def write_readme(
    card: ModelCard,
    folder: Path,
    settings: Mapping[str, Any] | None = None,
    grids: Sequence[MeasuredGrid] = (),
    export: ExportRecord | None = None,
    **more: Any,
) -> None:
    """Write the README.md of a model, whose other files lie in the folder already.

    Of an earlier README the text between two comments is kept, and metadata that m2dr does not
    write, such as a license. Texts of users are escaped, or written in JSON and Python.

    Args:
        card: of the model; of the words of layer 0, that of the full model.
        folder: to write into.
        settings: of the training or the fit.
        grids: what was measured.
        export: of an exported cut.
        more: what the template needs for a graph (module, pad_id, side) or for words alone
            (fitted_on, dim).

    Raises:
        UserError: README.md is not one of m2dr.
    """
    kept, metadata = _earlier(folder)
    metadata = _licence(card.backbone, card.revision) | metadata
    kind = "graph" if "module" in more else "table" if "fitted_on" in more else "model"
    kind = "export" if export and kind == "model" else kind
    listed = folder / MODULES
    reads_words = listed.exists() and FITTED_CUT in listed.read_text()  # beside its exit
    library = "m2dr" if kind == "table" or reads_words else "sentence-transformers"
    library = more.get("module", library)
    cut = card.full if export else _example(card)
    title = f"{_escaped(card.variant)}: {card.layers} layers, {card.width} dims"
    if kind == "table":
        cut = Cut(0, more["dim"])
        title = f"Layer 0 of a model by m2dr: {cut.dim} dims"
    elif export:
        title = f"{export.cut} of {_escaped(export.model)}"
    made: dict[str, Any] = {name: value for name, value in (
        ("backbone", card.backbone), ("revision", card.revision), ("settings", settings),
        ("fit", asdict(card.fit) if card.fit else None), ("fingerprint", card.fingerprint),
    ) if value}  # fmt: skip
    made |= {"query_prefix": card.query_prefix, "document_prefix": card.document_prefix}
    values: dict[str, Any] = {
        "card": card,
        "kind": kind,
        "cut": cut,
        "title": title,
        "kept": kept,
        "export": export,
        "grids": grids,
        "costs": _COSTS,
        "cosine": card.similarity == "cosine",
        "fitted": card.exit_head == "fitted",
        "md": _escaped,
        "number": _number,
        # Backticks would end its block in Markdown.
        "json": json.dumps(made, indent=2, default=str).replace("`", r"\u0060"),
        "text": lambda prefix: repr(prefix).replace("`", r"\x60"),
        "words": reads_words,
        "licence": metadata.get("license_name") or metadata.get("license"),
        **more,
    }
    dataset = hub_dataset(str((settings or {}).get("corpus", "")))
    own: dict[str, Any] = {
        "base_model": hub_id(card.backbone, card.revision),
        "datasets": [dataset] if dataset else None,
        "library_name": library,
        "pipeline_tag": "sentence-similarity",
        "tags": list(dict.fromkeys([library, *TAGS, *(metadata.get("tags") or [])])),
    }
    data = ModelCardData(**(metadata | {key: value for key, value in own.items() if value}))
    text = HubCard.from_template(data, str(TEMPLATE), **values)
    write_text(folder / README, str(text).rstrip() + "\n")


def read_training_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a training in a file, without those that are not set."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    unset: tuple[object, ...] = (None, "", [])
    return {name: value for name, value in table.items() if value not in unset}


def _earlier(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return what is kept of the README in a folder: a text and metadata."""
    path = folder / README
    if not path.exists():
        return f"{BEGIN}\n{END}", {}
    text = path.read_text(encoding="utf-8", errors="replace")
    kept = _KEPT.search(text)
    if not kept:
        raise UserError(f"{path} would be lost: it lacks the comment {BEGIN}; rename it first.")
    metadata: dict[str, Any] = HubCard(text).data.to_dict() if text.startswith("---") else {}  # type: ignore[no-untyped-call]  # the hub does not annotate it
    metadata.pop("model-index", None)
    return kept[0], metadata


def _licence(backbone: str, revision: str) -> dict[str, Any]:
    """Return the licence in the metadata of a backbone's card; empty where it names none."""
    found: Any = Path(backbone, README)
    with suppress(UserError, ValueError, OSError):  # the name is that of another machine
        if backbone == BUILT_IN:
            found = find_folder(backbone) / README
        elif revision:
            found = try_to_load_from_cache(backbone, README, revision=revision)
        data = HubCard.load(found).data.to_dict() if isinstance(found, str | Path) else {}
        names = ("license", "license_name", "license_link")
        return {name: data[name] for name in names if data.get(name)}
    return {}


def _example(card: ModelCard) -> Cut:
    """Return a cut of the middle of the trained layers, with up to 128 dims but not all."""
    layers = [layer for layer in card.layers_trained if layer]
    if not layers:
        return card.full
    layer = layers[(len(layers) - 1) // 2]
    dims = sorted(cut.dim for cut in card.cuts if cut.layer == layer)
    few = [dim for dim in dims if dim <= min(128, card.width - 1)]
    return Cut(layer, few[-1] if few else dims[0])


def hub_dataset(corpus: str) -> str | None:
    """Return the hub id of a corpus, None if it is unknown.

    >>> hub_dataset("hf:mteb/scifact"), hub_dataset("data/nfcorpus")
    ('mteb/scifact', None)
    """
    remote = re.match(r"hf:(\w[\w.-]*/\w[\w.-]*)", corpus)
    return remote[1] if remote and not Path(remote[1]).exists() else None


def _escaped(text: str) -> str:
    """Return a text of a user on one line, without meaning in Markdown or HTML."""
    line = " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]<>#|!~&])", r"\\\1", line)


def _number(value: float | None) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else ""
