"""What a word of a command line may become: variants, corpora, models, indexes, layers and dims.

A shell asks at each TAB, so that torch and numpy are not loaded, and what cannot be read is passed
over in silence.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import click
from click.shell_completion import CompletionItem, FishComplete, add_completion_class

from m2dr.core.errors import UserError
from m2dr.core.jsontext import load_json
from m2dr.core.records import Cut

Items: TypeAlias = Iterable[str | CompletionItem]
Find: TypeAlias = Callable[[click.Context, str], Items]  # of a command line and a word
Complete: TypeAlias = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

MOST_FOLDERS = 200  # folders of data that are looked into, at most


class _Fish(FishComplete):
    """Completion in fish of values with commas, such as `--layers 2,4`, and of whole sentences.

    click's own script splits a line at each comma; the first one alone ends the type.
    """

    source_template = FishComplete.source_template.replace("string split ", "string split --max 1 ")


def use_whole_lines() -> None:
    """Let fish complete by the class above."""
    add_completion_class(_Fish)


def completer(name: str) -> Complete | None:
    """Return the function that completes the option of a field; None where click's own does.

    Args:
        name: of the field, which means the same in all requests.
    """
    find = _BY_FIELD.get(name)
    if find is None:
        return None

    def complete(ctx: click.Context, _: click.Parameter, word: str) -> list[CompletionItem]:
        comma = word.rfind(",") + 1 if name in _WITH_COMMAS else 0  # the last item is being typed
        done, begun = word[:comma], word[comma:]
        try:
            items = [_item(each) for each in find(ctx, begun)]
        except (OSError, ValueError, KeyError, TypeError, UserError):
            items = []
        found = [
            CompletionItem(done + item.value, help=item.help)
            for item in items
            if item.value.startswith(begun)
        ]
        no_file = find in (_layers, _dims, _variants, _reporters)
        return found or ([] if no_file else [CompletionItem(word, type="file")])

    return complete


def _item(value: str | CompletionItem) -> CompletionItem:
    return CompletionItem(value) if isinstance(value, str) else value


def _variants(_: click.Context, __: str) -> Items:
    from m2dr.core.variants import VARIANTS

    return [CompletionItem(row.name, help=row.summary) for row in VARIANTS.values()]


def _reporters(_: click.Context, __: str) -> Items:
    from m2dr.core.trainings import REPORTERS

    return (*REPORTERS, "none")


def _corpora(_: click.Context, __: str) -> Items:
    """Yield the built-in corpora, and those in the folders where a bare name is looked for."""
    from m2dr.data import beir, msmarco, pydocs

    yield from pydocs.NAMES
    for home in beir.data_folders():
        for folder in sorted(home.glob("*"))[:MOST_FOLDERS]:
            if beir.recognises(str(folder)):
                yield folder.name
            elif msmarco.recognises(str(folder)):
                yield str(folder)


def _models(_: click.Context, __: str) -> Items:
    from m2dr.core.requests import MODELS

    return sorted(str(card.parent) for card in _cards(MODELS))


def _backbones(ctx: click.Context, word: str) -> Items:
    from m2dr.model.hub import BUILT_IN

    return [BUILT_IN, *_models(ctx, word)]


def _cards(folder: Path) -> Iterator[Path]:
    """Yield the model cards in a folder, those of models that were trained together too."""
    from m2dr.model.hub import CARD

    for depth in ("*", "*/*"):
        yield from folder.glob(f"{depth}/{CARD}")


def _indexes(ctx: click.Context, _: str) -> Items:
    from m2dr.index.layout import MANIFEST

    return ["milvus:", *sorted(str(path.parent) for path in _root(ctx).rglob(f"dim-*/{MANIFEST}"))]


def _stores(ctx: click.Context, _: str) -> Items:
    from m2dr.index.layout import STORE

    return sorted(str(path.parent) for path in _root(ctx).rglob(STORE))


def _root(ctx: click.Context) -> Path:
    from m2dr.core.requests import INDEXES

    return ctx.params.get("root") or INDEXES


def _layers(ctx: click.Context, _: str) -> Items:
    """Return the layers of the model that the command names, or else of the newest one."""
    card = _card(ctx)
    return [str(layer) for layer in range(card.lowest_layer, card.layers + 1)] if card else []


def _dims(ctx: click.Context, _: str) -> Items:
    """Return the dims that the model was trained at."""
    card = _card(ctx)
    return [str(dim) for dim in sorted({cut.dim for cut in card.cuts})] if card else []


def _card(ctx: click.Context) -> Any:  # a ModelCard, or None
    """Return the card of the model that the command line names, or of the newest trained one."""
    from m2dr.core.requests import MODELS
    from m2dr.model.folder import read_card, read_card_file
    from m2dr.model.hub import CARD

    names = ("model", "named", "models", "backbone")
    given = next((ctx.params[name] for name in names if ctx.params.get(name)), None)
    if given:
        return read_card(given if isinstance(given, str) else given[0])
    cards = sorted(MODELS.glob(f"*/{CARD}"), key=lambda path: path.stat().st_mtime_ns)
    found = (read_card_file(path) for path in reversed(cards))
    return next((card for card in found if card.is_trained), None)


def _baselines(_: click.Context, word: str) -> Items:
    """Return folders of results; behind an @, the cuts that the folder before it has."""
    from m2dr.core.requests import RESULTS

    folder, at, _cut = word.partition("@")
    if not at:
        return sorted(str(path.parent) for path in RESULTS.rglob("grid.json"))
    cells = load_json(Path(folder) / "grid.json")["cells"]
    return [f"{folder}@{Cut(cell['layer'], cell['dim'])}" for cell in cells]


_BY_FIELD: dict[str, Find] = {
    "variant": _variants,
    "report_to": _reporters,
    "corpus": _corpora,
    "corpora": _corpora,
    "backbone": _backbones,
    "model": _models,
    "named": _models,
    "models": _models,
    "index": _indexes,
    "folders": _stores,
    "against": _baselines,
    "layer": _layers,
    "layers": _layers,
    "query_layer": _layers,
    "document_layer": _layers,
    "dim": _dims,
    "dims": _dims,
}
_WITH_COMMAS = ("layers", "dims", "report_to", "corpus")
