"""Fields of documents, written for stores that lack them."""

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from m2dr.core.files import atomic_path, lock_folder, sync
from m2dr.core.records import Fields
from m2dr.index.field_files import field_file, write_fields
from m2dr.index.layout import store_folders_of
from m2dr.index.manifest import FieldFile
from m2dr.index.store import Store, open_store

_ELSEWHERE = "give another --indexes"


def keep_fields(
    home: Path, rows: Callable[[Store], Iterable[Fields]], say: Callable[[str], None] | None = None
) -> None:
    """Write the fields of the documents of finished stores, which do not have them yet.

    Args:
        home: folder of the stores of all layers.
        rows: returns the fields of each stored document; called twice.
        say: as `write_fields` takes it.

    Raises:
        UserError: another process changes the stores, or the disk refuses.
    """
    made: dict[str, tuple[Path, FieldFile]] = {}  # by documents: layers share them
    with lock_folder(home):
        for folder in store_folders_of(home):
            with lock_folder(folder):
                _keep_fields_of(open_store(folder), rows, made, say)


def _keep_fields_of(
    store: Store,
    rows: Callable[[Store], Iterable[Fields]],
    made: dict[str, tuple[Path, FieldFile]],
    say: Callable[[str], None] | None,
) -> None:
    held, key = store.manifest, store.manifest.docids
    if held.fields is not None:
        return
    if key not in made:
        path = store.folder / field_file(0)
        made[key] = path, write_fields(path, partial(rows, store), say)
    path, record = made[key]
    if record.name and path.parent != store.folder:
        link(path, store.folder / path.name)
    replace(held, fields=(record,)).write(store.folder)


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where a disk has no links."""
    try:
        os.link(source, target)
    except OSError:
        with atomic_path(target) as temporary:
            shutil.copyfile(source, temporary)
    sync(target.parent)
