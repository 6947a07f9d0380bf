"""Models by name, and the cuts, layers and labels of a model card."""

from collections.abc import Sequence
from pathlib import Path

from m2dr.core.errors import UserError
from m2dr.core.progress import say
from m2dr.core.records import CARD_FILE, GIVEN, Cut, ModelCard, default_dims
from m2dr.core.requests import MODELS
from m2dr.index.folder import IndexFolder
from m2dr.maps.files import Maps
from m2dr.model.checkpoint import Model, read_card, read_card_file
from m2dr.model.folder import ModelFolder
from m2dr.model.hub import BUILT_IN, CARD, find_folder


def device_name(device: object) -> str:
    """Return a device, also one of torch, by its name; None is auto."""
    return "auto" if device is None else str(device)


def dtype_name(dtype: object) -> str:
    """Return a number format, also one of torch, by the name that m2dr has for it."""
    name = "auto" if dtype is None else str(dtype).removeprefix("torch.")
    return {"float32": "fp32", "bfloat16": "bf16"}.get(name, name)


def newest_model(folder: Path = MODELS) -> str:
    """Return the model that was trained last, for commands that name none, and say which it is.

    Exported cuts and pre-trained backbones are passed over. Without a trained one it is the
    built-in one, where that is installed.

    Raises:
        UserError: there is neither, or the newest m2dr.json is damaged.
    """
    cards = [(path.stat().st_mtime_ns, path) for path in folder.glob(f"*/{CARD}")]
    for _, path in sorted(cards, reverse=True):
        if read_card_file(path).is_trained:
            say(f"Model: {path.parent}, the newest in {folder}/; --model names another.")
            return str(path.parent)
    try:
        find_folder(BUILT_IN)
    except UserError as error:
        missing = f"No --model was given and there is no trained one in {folder}/."
        raise UserError(f"{missing} {error}") from None
    say(f"Model: {BUILT_IN}, as there is no trained one in {folder}/; --model names another.")
    return BUILT_IN


def with_lengths_of_index(
    model: Model, index: IndexFolder, query_length: int | None, document_length: int | None
) -> Model:
    """Return a model whose texts are as long as was asked, or else as in the stores of an index."""
    for plan in index.plans[:1]:
        if plan.label.fingerprint == model.card.fingerprint:
            model = model.with_lengths_of(plan.label)
    return model.with_lengths(query_length, document_length)


def words_of_index(index: IndexFolder) -> Model | None:
    """Return a stand-in for a missing model: it can answer at layer 0 from the index's words.

    None where the index has no words that fit its documents.
    """
    maps = Maps(index)
    if not maps.are_fitted:
        return None
    layers, manifest = maps.record.layer, index.record(maps.record.layer)
    label = manifest.label
    card = ModelCard(
        backbone=label.model, variant=GIVEN, layers=layers, width=manifest.width,
        cuts=label.cuts, temperature=1.0, **vars(label.encoding),
    )  # fmt: skip
    return Model(label.model, ModelFolder(index.path), card)


def document_layers(card: ModelCard) -> tuple[int, ...]:
    """Return the layers whose documents trained cuts search."""
    return (card.layers,) if card.documents == "last" else card.layers_trained or (card.layers,)


def cuts_of(card: ModelCard, layers: Sequence[int], dims: Sequence[int]) -> tuple[Cut, ...]:
    """Return the cuts of every layer and every dim, increasing.

    Args:
        card: model card.
        layers: by default all, with layer 0 of a fitted model.
        dims: by default the powers of two from 8, and the full width.

    Raises:
        UserError: the model has no such layer or dim.
    """
    layers = layers or range(card.lowest_layer, card.query_layer + 1)
    dims = dims or default_dims(card.width)
    cuts = {card.check(Cut(layer, dim)) for layer in layers for dim in dims}
    return tuple(sorted(cuts))


def fitted_cuts(card: ModelCard) -> tuple[Cut, ...]:
    """Return the cuts that a fit makes retrieve: every layer from 0 at the default dims."""
    dims = default_dims(card.width)
    return tuple(Cut(layer, dim) for layer in range(card.layers + 1) for dim in dims)


def names_of(models: Sequence[str]) -> list[str]:
    """Return names of models for tables: the folder's, with more of its path where names repeat."""
    paths = [Path(model).resolve() if Path(model).is_dir() else Path(model) for model in models]
    paths = [
        Path(read_card(path).backbone) if (path / CARD_FILE).exists() else path for path in paths
    ]
    for parts in range(1, 9):
        names = ["-".join(part for part in path.parts[-parts:] if part != "/") for path in paths]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"The models {', '.join(models)} repeat; name each once.")
