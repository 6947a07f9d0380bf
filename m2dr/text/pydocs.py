"""The built-in corpus: what the docstrings of the Python on this machine ask and answer."""

import gc
import json
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from m2dr.errors import UserError, nearest
from m2dr.io import write_text
from m2dr.records.texts import Document, Judgement, Query
from m2dr.text.collection import Asked, Dataset, Split
from m2dr.text.corpora import MemoryCorpus
from m2dr.text.docstrings import Entry, distinct, entries, is_private
from m2dr.text.fields import string
from m2dr.text.lines import read_lines
from m2dr.text.splitting import split_of

NAMES = ("pydocs", "pydocs:stdlib")
SHARES = {"train": 0.8, "dev": 0.1, "test": 0.1}  # of the modules
_SEED = "pydocs-1"  # another word is another split, and makes trained models incomparable
_FORMAT = 1  # raise it when other docstrings are kept, so that what is cached is read again
_FILE_BYTES = 1_000_000  # larger sources are tables
_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages"}


class Source(NamedTuple):
    """A Python file and the module that it is."""

    module: str
    path: Path


def recognises(name: str) -> bool:
    """Whether the name is pydocs, or a misspelt part of it."""
    return name.partition(":")[0] == "pydocs"


def open_pydocs(name: str) -> Dataset:
    """Open the corpus, split by module: no module has entries in two splits."""
    if name not in NAMES:
        raise UserError(f"There is no corpus {name!r}. {nearest(name, NAMES)}")
    found = read_entries(name)
    if not found:
        raise UserError(
            f"{name}: this Python carries no sources to read docstrings from. "
            "Use another data set, or a Python installed with its .py files."
        )
    by_split: dict[str, list[Entry]] = {split: [] for split in SHARES}
    for entry in found:
        by_split[split_of(entry.module, SHARES, _SEED)].append(entry)
    return Dataset(
        name.replace(":", "-"),
        MemoryCorpus(Document(entry.name, entry.text, title=entry.name) for entry in found),
        {split: Split(partial(_asked, chosen)) for split, chosen in by_split.items() if chosen},
    )


def read_entries(name: str, progress: Callable[[int], None] | None = None) -> list[Entry]:
    """All entries of a corpus, sorted by name: from the cache, or by parsing every source.

    Parsing takes about half a minute for `pydocs` and two seconds for `pydocs:stdlib`.

    Args:
        name: one of NAMES.
        progress: told 1 after each source file that was parsed.
    """
    path = _cache_of(name)
    with suppress(UserError):  # absent, or damaged since it was written: parse again
        return _cached(path)
    found = _parsed(_packages(name), progress)
    _keep(path, "".join(json.dumps(asdict(entry)) + "\n" for entry in found))
    return found


def is_cached(name: str) -> bool:
    """Whether opening this name needs no parsing."""
    return name not in NAMES or _cache_of(name).exists()


def _packages(name: str) -> list[Distribution]:
    return [] if name == "pydocs:stdlib" else requirements("m2dr")


def _cache_of(name: str) -> Path:
    """The file that changes with Python, with any package's version and with what is kept."""
    versions = [(package.name, package.version) for package in _packages(name)]
    digest = sha256(json.dumps([_FORMAT, sys.version, versions]).encode()).hexdigest()[:16]
    return cache_folder() / f"{name.replace(':', '-')}-{digest}.jsonl"


def cache_folder() -> Path:
    """Where what can be made again is kept: $M2DR_CACHE, else m2dr in the user's cache."""
    if given := os.environ.get("M2DR_CACHE"):
        return Path(given)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "m2dr"
    except RuntimeError:  # neither $HOME nor an account
        raise UserError(
            "This user has no home folder to keep a cache in; name one with: export "
            "M2DR_CACHE=FOLDER"
        ) from None


def requirements(package: str) -> list[Distribution]:
    """Installed packages that this one names as needed, without extras; sorted by name.

    What those need in turn is left out: nobody asks m2dr for the documentation of sympy.

    Raises:
        UserError: the package itself is not installed, so nobody knows what it needs.
    """
    try:
        needs = distribution(package).requires or []
    except PackageNotFoundError:
        raise UserError(
            f"{package} is not installed, only copied here: install its folder by pip."
        ) from None
    names = {re.split(r"[^\w.-]", need, maxsplit=1)[0] for need in needs if "extra ==" not in need}
    found: dict[str, Distribution] = {}
    for name in names:
        with suppress(PackageNotFoundError):  # needed on another system only
            found[name] = distribution(name)
    return [found[name] for name in sorted(found)]


def _asked(chosen: list[Entry]) -> Asked:
    # The query's id is not its document's: some tools drop a document of the query's own id.
    queries = [Query(f"query:{entry.name}", entry.query) for entry in chosen]
    return queries, [Judgement(f"query:{entry.name}", entry.name, 1) for entry in chosen]


def _parsed(packages: list[Distribution], progress: Callable[[int], None] | None) -> list[Entry]:
    found: list[Entry] = []
    was_enabled = gc.isenabled()
    gc.disable()  # syntax trees hold no cycles; looking for some takes a quarter of the time
    try:
        for source in _sources(packages):
            found += entries(source.path.read_bytes(), source.module)
            if progress is not None:
                progress(1)
    finally:
        if was_enabled:
            gc.enable()
    return distinct(found)


def _sources(packages: list[Distribution]) -> Iterator[Source]:
    """Readable sources: the standard library first, then each package, by module."""
    for source in (*_of_stdlib(), *(one for package in packages for one in _of(package))):
        try:
            if source.path.stat().st_size <= _FILE_BYTES:
                yield source
        except OSError:
            continue  # listed by the package, and deleted since


def _of_stdlib() -> list[Source]:
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = [(path.relative_to(root), path) for path in root.rglob("*.py")]
    found = (_source(relative, path) for relative, path in paths)
    return sorted(
        source
        for source in found
        if source and source.module.partition(".")[0] in sys.stdlib_module_names
    )


def _of(package: Distribution) -> list[Source]:
    files = [file for file in package.files or [] if file.suffix == ".py"]
    found = (_source(Path(file), Path(str(package.locate_file(file)))) for file in files)
    return sorted(source for source in found if source)


def _source(relative: Path, path: Path) -> Source | None:
    """The module that a file is, unless it is a test or lies in a private folder.

    A private file in a public folder stays: libraries keep their public functions in some.
    """
    parts = relative.with_suffix("").parts
    folders = parts[:-1]
    if not all(part.isidentifier() for part in parts) or _SKIPPED & set(parts):
        return None
    if any(map(is_private, folders)):
        return None
    return Source(".".join(folders if parts[-1] == "__init__" else parts), path)


def _cached(path: Path) -> list[Entry]:
    keys = ("name", "module", "query", "text")
    rows = ((line, line.json()) for line in read_lines(path))
    return [Entry(*(string(line, row, key) for key in keys)) for line, row in rows]


def _keep(path: Path, text: str) -> None:
    """Write the cache, which is done without where it cannot be written."""
    with suppress(UserError):
        write_text(path, text)
