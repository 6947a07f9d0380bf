"""Fields of documents, written for stores that lack them."""

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from m2dr.core.files import atomic_path, lock_folder, sync
from m2dr.core.records import Fields
from m2dr.index.fields import FIELDS, write_fields
from m2dr.index.layout import store_folders_of
from m2dr.index.store import Store, open_store

_ELSEWHERE = "give another --indexes"


def keep_fields(home: Path, rows: Callable[[Store], Iterable[Fields]]) -> None:
    """Write the fields of the documents of finished stores, which do not have them yet.

    Args:
        home: folder of the stores of all layers.
        rows: returns the fields of each stored document.

    Raises:
        UserError: another process changes the stores, or the disk refuses.
    """
    written: dict[str, tuple[Path, str]] = {}  # file and digest, by documents: layers share them
    with lock_folder(home):
        for folder in store_folders_of(home):
            with lock_folder(folder):
                _keep_fields_of(open_store(folder), rows, written)


def _keep_fields_of(
    store: Store,
    rows: Callable[[Store], Iterable[Fields]],
    written: dict[str, tuple[Path, str]],
) -> None:
    manifest, path = store.manifest, store.folder / FIELDS
    if manifest.fields is not None:
        return
    if manifest.docids not in written:
        written[manifest.docids] = path, write_fields(path, rows(store))
    source, digest = written[manifest.docids]
    if digest and source != path:
        link(source, path)
    replace(manifest, fields=digest).write(store.folder)


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where a disk has no links."""
    try:
        os.link(source, target)
    except OSError:
        with atomic_path(target) as temporary:
            shutil.copyfile(source, temporary)
    sync(target.parent)
