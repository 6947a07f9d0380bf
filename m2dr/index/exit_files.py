"""Exits that were fitted on the documents of an index: their folder, and the states before a fit.

indexes/<corpus>/<model fingerprint>/exits/
states-00007.npz    pooled states of sampled documents of a shard, until the exits are there
exits.safetensors   heads of the layers from 1, as in a fitted model
layer_0.safetensors the table of layer 0
exits.json          what was fitted on what; written last
"""

# Shapes in this file: n documents of a sample.

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError, command
from m2dr.index.layout import EXITS, STORE
from m2dr.index.manifest import StoreManifest
from m2dr.io import read_bytes, remove, write_whole
from m2dr.jsontext import read_json, write_json
from m2dr.records.fit import FitRecord

RECORD = "exits.json"
MOST = 20_000  # documents of a fit; more are hardly any help, and cost time and room on the disk


@dataclass(frozen=True)
class IndexExits:
    """exits.json: what the exits of an index were fitted on."""

    corpus: str
    fingerprint: str  # of the model
    texts: str  # of the store of the last layer: the digest of what was encoded
    fit: FitRecord


def exits_folder(store: Path) -> Path:
    """Return where the exits lie that search a store of the last layer."""
    return store.parent / EXITS


def read_exits_record(folder: Path) -> IndexExits:
    """Read exits.json.

    Raises:
        UserError: it is missing or damaged.
    """
    return read_json(folder / RECORD, IndexExits, lambda: _again(folder))


def write_exits_record(folder: Path, record: IndexExits) -> None:
    """Write exits.json, which says that the exits beside it are whole."""
    write_json(folder / RECORD, record)


def fitting_exits(store: Path) -> Path | None:
    """Return the folder of the exits that were fitted on the documents of a finished store.

    None where there are none, or where they were fitted on other documents or by another model.
    """
    folder = exits_folder(store)
    if not ((folder / RECORD).exists() and (store / STORE).exists()):
        return None
    record, manifest = read_exits_record(folder), StoreManifest.read(store)
    same = (record.fingerprint, record.texts) == (manifest.label.fingerprint, manifest.texts)
    return folder if same else None


def digest_of_exits(folder: Path) -> str:
    """Return the sha256 of what was fitted on what, with its λ and held-out cosines."""
    return hashlib.sha256((folder / RECORD).read_bytes()).hexdigest()


def sampled_rows(documents: int, most: int = MOST) -> NDArray[np.int64]:
    """Return the places of the documents of a fit, evenly spread and increasing.

    >>> sampled_rows(10, 4).tolist()
    [0, 2, 5, 7]
    """
    count = min(documents, most)
    return np.arange(count) * documents // max(count, 1)


@dataclass(frozen=True)
class StateFile:
    """What is kept of the sampled documents of a shard until the exits are fitted.

    Attributes:
        texts: digest of the texts of the whole shard.
        tokens: of the n documents, one after the other.
        lengths: [n].
        states: [n, D] as `Encoder.states` gives them.
    """

    texts: str
    tokens: NDArray[np.int32]
    lengths: NDArray[np.int64]
    states: NDArray[np.float32]

    def write(self, folder: Path, number: int) -> None:
        """Write the file of a shard, whole or not at all."""
        data = io.BytesIO()
        np.savez(
            data,
            allow_pickle=False,
            texts=np.array(self.texts),
            tokens=self.tokens,
            lengths=self.lengths,
            states=self.states,
        )
        write_whole(state_path(folder, number), data.getbuffer())

    @classmethod
    def read(cls, folder: Path, number: int, texts: str) -> "StateFile | None":
        """Read the file of a shard; None where it is missing, damaged, or of other texts."""
        path = state_path(folder, number)
        if not path.exists():
            return None
        try:
            with np.load(io.BytesIO(read_bytes(path, _again(folder))), allow_pickle=False) as file:
                found = cls(str(file["texts"]), file["tokens"], file["lengths"], file["states"])
        except (ValueError, KeyError, EOFError, BadZipFile):
            return None
        return found if found.texts == texts else None


def state_path(folder: Path, number: int) -> Path:
    """Return the file of the states of a shard."""
    return folder / f"states-{number:05d}.npz"


def forget_states(folder: Path) -> None:
    """Remove the states, which nobody needs once the exits are there."""
    remove(folder, "states-*")


def no_exits(place: str, corpus: str, model: str, root: Path | None) -> UserError:
    """Return the refusal of a search that needs exits of an index which has none."""
    made = command("index", "fit", corpus=corpus, model=model, indexes=root)
    return UserError(
        f"{place} has no exits that were fitted on its documents. Fit them with: {made}"
    )


def _again(folder: Path) -> str:
    return f"Remove {folder}, and fit its index again with: {command('index', 'fit')}"
