"""Which model a command means, and how its vectors are labelled."""

from collections.abc import Sequence
from pathlib import Path

from m2dr.errors import UserError, command
from m2dr.index.label import Label
from m2dr.model.card import CARD, read_card_file
from m2dr.records.card import ModelCard
from m2dr.records.cut import Cut
from m2dr.verbs.progress import say

MODELS = Path("models")


def newest_model(folder: Path = MODELS) -> str:
    """Choose the model trained last, for commands that name none, and say so.

    Exported cuts and pre-trained backbones are no candidates: neither was trained last, as it is.

    Raises:
        UserError: there is no trained model, or the newest m2dr.json is damaged.
    """
    cards = [(path.stat().st_mtime_ns, path) for path in folder.glob(f"*/{CARD}")]
    passed: list[str] = []
    for _, path in sorted(cards, reverse=True):
        model = str(path.parent)
        if read_card_file(path).is_trained:
            newer = f" (exported or pre-trained, so not asked: {_few(passed)})" if passed else ""
            say(f"Model: {model}, the newest in {folder}/{newer}; --model names another.")
            return model
        passed.append(model)
    raise UserError(
        f"No --model was given and there is no trained one in {folder}/"
        f"{f', only what was exported or pre-trained ({_few(passed)})' if passed else ''}. "
        f"Train one with: {command('train', variant='full-dim')}"
    )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def label_of(card: ModelCard, model: str, source: str = "") -> Label:
    """What the vectors of this model carry into an index.

    Args:
        card: of the model.
        model: what m2dr was given as the model.
        source: the same of the corpus.
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


def usual_dims(width: int) -> tuple[int, ...]:
    """Powers of two from 8 to below the full width, and the full width.

    >>> usual_dims(384)
    (8, 16, 32, 64, 128, 256, 384)
    """
    powers = [2**n for n in range(3, width.bit_length()) if 2**n < width]
    return (*powers, width)


def document_layer(card: ModelCard, query_layer: int) -> int:
    """Which layer's documents the queries of a layer were trained against."""
    return card.layers if card.documents == "last" else query_layer


def cuts_of(
    card: ModelCard, layers: Sequence[int], dims: Sequence[int], model: str
) -> tuple[Cut, ...]:
    """Return every layer with every dim, increasing.

    Args:
        card: of the model.
        layers: empty: all that the model has, with layer 0 where it is fitted.
        dims: empty: the powers of two from 8, and the full width.
        model: folder or id, for the command in a refusal.

    Raises:
        UserError: the model has no such layer or dim.
    """
    layers = layers or range(card.lowest_layer, card.layers + 1)
    dims = dims or usual_dims(card.width)
    found = {card.check(Cut(layer, dim), model) for layer in layers for dim in dims}
    return tuple(sorted(found))


def names_of(models: Sequence[str]) -> list[str]:
    """What tables call each model: its folder's name, with more of the path where that repeats."""
    places = [Path(model).resolve() if Path(model).is_dir() else Path(model) for model in models]
    for parts in range(1, 9):
        names = ["-".join(part for part in place.parts[-parts:] if part != "/") for place in places]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"The models {', '.join(models)} repeat; name each once.")
