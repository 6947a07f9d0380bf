"""The model of a command, its cuts, and the label of its vectors."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from m2dr.core.arguments import whole_number
from m2dr.core.errors import UserError, command
from m2dr.core.progress import say
from m2dr.core.records import Cut, ModelCard
from m2dr.core.requests import MODELS
from m2dr.index.manifest import Label
from m2dr.model.folder import read_card_file
from m2dr.model.hub import CARD, pinned

Function = TypeVar("Function", bound=Callable[..., Any])


class OfBackbone(Protocol):
    """Settings that name a backbone."""

    @property
    def backbone(self) -> str:
        """Folder or id."""
        ...

    @property
    def revision(self) -> str:
        """Branch, tag or commit of an id; empty for its main branch."""
        ...


def at_revision(function: Function) -> Function:
    """Return a function in which the backbone of its settings is one commit of the hub."""

    @wraps(function)
    def run(settings: OfBackbone, *rest: Any, **named: Any) -> Any:  # the function's
        with pinned(settings.backbone, settings.revision):
            return function(settings, *rest, **named)

    return cast(Function, run)


def newest_model(folder: Path = MODELS) -> str:
    """Return the model that was trained last, for commands that name none, and say which it is.

    Exported cuts and pre-trained backbones are passed over.

    Raises:
        UserError: there is no trained model, or the newest m2dr.json is damaged.
    """
    cards = [(path.stat().st_mtime_ns, path) for path in folder.glob(f"*/{CARD}")]
    passed: list[str] = []
    for _, path in sorted(cards, reverse=True):
        model = str(path.parent)
        if read_card_file(path).is_trained:
            newer = f" (exported or pre-trained, so not used: {_few(passed)})" if passed else ""
            say(f"Model: {model}, the newest in {folder}/{newer}; --model names another.")
            return model
        passed.append(model)
    raise UserError(
        f"No --model was given and there is no trained one in {folder}/"
        f"{f', only what was exported or pre-trained ({_few(passed)})' if passed else ''}. "
        f"Name one, such as minilm, or fit one without labels: {command('fit', backbone='minilm')}"
    )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def label_of(card: ModelCard, model: str, source: str = "") -> Label:
    """Return the label that an index keeps of the vectors of a model.

    Args:
        card: model card.
        model: folder or id, as given to m2dr.
        source: corpus, as given to m2dr.
    """
    return Label(
        fingerprint=card.fingerprint,
        similarity=card.similarity,
        pooling=card.pooling,
        query_prefix=card.query_prefix,
        document_prefix=card.document_prefix,
        query_length=card.query_length,
        document_length=card.document_length,
        document_layer=card.documents,
        cuts=tuple((cut.layer, cut.dim) for cut in card.cuts),
        model=model,
        source=source,
    )


def default_dims(width: int) -> tuple[int, ...]:
    """Return the powers of two from 8 to below the full width, and the full width.

    >>> default_dims(384)
    (8, 16, 32, 64, 128, 256, 384)
    """
    powers = [2**n for n in range(3, width.bit_length()) if 2**n < width]
    return (*powers, width)


def document_layer(card: ModelCard, query_layer: int) -> int:
    """Return the layer of the documents that queries of a layer were trained to search."""
    return card.layers if card.documents == "last" else query_layer


def document_layers(card: ModelCard) -> tuple[int, ...]:
    """Return the layers whose documents trained cuts search."""
    return (card.layers,) if card.documents == "last" else card.layers_trained or (card.layers,)


def cuts_of(
    card: ModelCard, layers: Sequence[int], dims: Sequence[int], model: str
) -> tuple[Cut, ...]:
    """Return the cuts of every layer and every dim, increasing.

    Args:
        card: model card.
        layers: by default all, with layer 0 of a fitted model.
        dims: by default the powers of two from 8, and the full width.
        model: folder or id, for the command in a refusal.

    Raises:
        UserError: the model has no such layer or dim.
    """
    layers = layers or range(card.lowest_layer, card.layers + 1)
    dims = dims or default_dims(card.width)
    found = {card.check(Cut(layer, dim), model) for layer in layers for dim in dims}
    return tuple(sorted(found))


def fitted_cuts(card: ModelCard) -> tuple[Cut, ...]:
    """Return the cuts that a fit makes retrieve: every layer from 0 at the default dims."""
    dims = default_dims(card.width)
    return tuple(Cut(layer, dim) for layer in range(card.layers + 1) for dim in dims)


def through_exits(card: ModelCard) -> ModelCard:
    """Return the card of a model whose queries pass the exits of an index."""
    return replace(card, exit_head="fitted", documents="last", cuts=fitted_cuts(card))


def find_cut(card: ModelCard, layer: int | None, dim: int | None, model: str) -> Cut:
    """Return the cut of a layer and a dim; None stands for all layers or dims.

    Args:
        card: model card.
        layer: from 0.
        dim: from 1.
        model: folder or id, for the command in a refusal.

    Raises:
        UserError: the model has no such cut.
    """
    full = card.full
    layer = None if layer is None else whole_number("layer", layer, 0)
    dim = None if dim is None else whole_number("dim", dim, 1)
    cut = Cut(full.layer if layer is None else layer, full.dim if dim is None else dim)
    return card.check(cut, model)


def names_of(models: Sequence[str]) -> list[str]:
    """Return names of models for tables: the folder's, with more of its path where names repeat."""
    places = [Path(model).resolve() if Path(model).is_dir() else Path(model) for model in models]
    for parts in range(1, 9):
        names = ["-".join(part for part in place.parts[-parts:] if part != "/") for place in places]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"The models {', '.join(models)} repeat; name each once.")
