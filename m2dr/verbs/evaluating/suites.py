"""Suites of corpora by name: which of them this machine has."""

from pathlib import Path

from m2dr.errors import UserError, nearest
from m2dr.evaluate.usual import BEIR13, OTHER_NAMES
from m2dr.text import beir
from m2dr.verbs.progress import say

SUITES = {"beir13": BEIR13}


def corpora_of(suite: str) -> tuple[str, ...]:
    """Folders of the corpora of a suite that are present, in the order of the suite.

    Those that are absent are said. Looked for are the folder names that BEIR publishes, in
    `$M2DR_DATA/beir`, `data`, `datasets` and the `beir` in either.

    Raises:
        UserError: the suite is unknown, or none of its corpora is present.
    """
    if suite not in SUITES:
        raise UserError(f"There is no suite {suite!r}. {nearest(suite, SUITES)}")
    found = {name: _folder(name) for name in SUITES[suite]}
    absent = [name for name, folder in found.items() if folder is None]
    present = tuple(str(folder) for folder in found.values() if folder is not None)
    if not present:
        looked = ", ".join(map(str, _places()))
        raise UserError(
            f"None of the {len(found)} corpora of {suite} was found in {looked}. Put their folders "
            f"(corpus.jsonl, queries.jsonl, qrels/) into one of these, or set M2DR_DATA to the "
            f"folder that holds beir/."
        )
    if absent:
        say(f"{len(present)} of {len(found)} corpora of {suite} are here; absent: {_list(absent)}")
    return present


def collections_of(corpus: str) -> tuple[str, tuple[str, ...]]:
    """Return the name of a mean over the collections that a name stands for, and these.

    CQADupStack is twelve collections, and its measures are the plain means over them, as BEIR
    reports them. Those that are absent are said, and the mean is named after how many there are.
    Any other name stands for itself, and has no mean.
    """
    parts = beir.parts_of(corpus)
    if not parts:
        return "", (corpus,)
    present = tuple(str(folder) for folder in parts.values() if folder is not None)
    name = next(folder for folder in parts.values() if folder is not None).resolve().parent.name
    absent = [part for part, folder in parts.items() if folder is None]
    if absent:
        say(f"{len(present)} of {len(parts)} parts of {name} are here; absent: {_list(absent)}")
        name = f"{name}-{len(present)}-of-{len(parts)}"
    return name, present


def _places() -> tuple[Path, ...]:
    given = beir.places()
    return tuple(dict.fromkeys([*given, *(place / "beir" for place in given)]))


def _folder(name: str) -> Path | None:
    candidates = (place / one for place in _places() for one in (name, *OTHER_NAMES.get(name, ())))
    # The folder itself: a bare name would also find one of the working folder.
    return next((path for path in candidates if path.is_dir() and beir.recognises(str(path))), None)


def _list(names: list[str]) -> str:
    return ", ".join(names)
