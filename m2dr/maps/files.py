"""Files of exits that were fitted on the documents of an index.

indexes/<corpus>/<model fingerprint>/exits/
states-00007.npz    pooled states of sampled documents of a shard, until the exits are fitted
spans.safetensors   spans of documents, and queries of a log, with their vectors
exits.safetensors   heads of the layers from 1, as in a fitted model
words.safetensors   layer 0, and what words add to the exits
exits.json          what was fitted on what, and the digests of the files; written last
"""

# Shapes in this file: n documents of a sample.

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from m2dr.core import files
from m2dr.core.arrays import Array, Float32, Int64
from m2dr.core.errors import UserError
from m2dr.core.records import EXITS_FILE, IndexExits
from m2dr.index.folder import IndexFolder
from m2dr.index.manifest import StoreManifest
from m2dr.index.store import DIGEST_BYTES, Digests

SPANS_FILE = "spans.safetensors"
# Documents of which exits are fitted by default. On parts of NFCorpus and SciFact layers 0 to 5 of
# MiniLM keep .84 and .95 of the full model's nDCG@10 with 50 documents, .97 and 1.02 with 200.
FEWEST_DOCUMENTS = 50
MOST_STATES = 20_000  # documents whose states are read; more hardly help, and cost time and space
MOST_WORD_TEXTS = 250_000  # documents whose words are read


@dataclass(frozen=True)
class Maps:
    """Words, exits and a bridge that were fitted to the documents of an index, or will be."""

    index: IndexFolder

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def folder(self) -> Path:
        """Where they lie."""
        return self.index.exits

    @property
    def exist(self) -> bool:
        """Whether a record exists."""
        return (self.folder / EXITS_FILE).exists()

    @property
    def record(self) -> IndexExits:
        """What was fitted on what.

        Raises:
            UserError: it is missing or damaged.
        """
        return files.read_record(self.folder / EXITS_FILE, IndexExits)

    @property
    def are_fitted(self) -> bool:
        """Whether they were fitted to the documents of the index, as it encodes them.

        Documents may have changed since: `is_old`.

        Raises:
            UserError: a record is damaged.
        """
        return self._records() is not None

    def is_old(self, layer: int = 0) -> bool:
        """Return whether documents have changed since an exit was fitted.

        Args:
            layer: of the exit; 0 is the words, which every change of documents fits again.

        Raises:
            UserError: a record is damaged.
        """
        if not (records := self._records()):
            return False
        record, manifest = records
        return (record.exits_texts if layer else record.texts) != manifest.texts

    def _records(self) -> tuple[IndexExits, StoreManifest] | None:
        """Return the record of fitted maps, and that of the store of the last layer."""
        if not self.exist:
            return None
        record = self.record
        if not (record.files and self.index.holds(record.layer)):
            return None
        manifest = self.index.record(record.layer)
        encoded = (manifest.label.fingerprint, manifest.corpus, manifest.label.digest())
        fitted = (record.fingerprint, record.corpus, record.encoding)
        return (record, manifest) if fitted == encoded else None

    @property
    def language(self) -> str:
        """Language of the words; empty where none are fitted.

        Raises:
            UserError: a record is damaged.
        """
        return self.record.fit.language if self.are_fitted else ""

    @property
    def digest(self) -> str:
        """Sha256 of what vectors depend on: the record, which holds digests of the files.

        Raises:
            UserError: the record is missing or damaged.
        """
        record = asdict(self.record)
        del record["bridge"]  # no vector depends on it
        return files.json_sha256(record)

    @property
    def missing(self) -> UserError:
        """The error for a search that needs maps where there are none."""
        return UserError(
            f"{self.index} has no exits fitted on its documents; run m2dr index fit first."
        )

    def drop(self) -> None:
        """Remove the record and the states of maps whose documents are encoded again."""
        if self.folder.is_dir():
            files.remove_files(self.folder, EXITS_FILE)
            forget_states(self.folder)


def sampled_rows(documents: int, most: int = MOST_STATES) -> Int64:
    """Return the rows of the documents of a fit, evenly spread and increasing.

    >>> sampled_rows(10, 4).tolist()
    [0, 2, 5, 7]
    """
    count = min(documents, most)
    return np.arange(count) * documents // max(count, 1)


@dataclass(frozen=True)
class StateFile:
    """States of the sampled documents of a shard, kept until the exits are fitted.

    Attributes:
        texts: digest of the texts of the whole shard.
        encoding: as `Encoding.digest` gives it.
        states: [n, D] as `Encoder.states` gives them.
    """

    texts: str
    encoding: str
    states: Float32

    def write(self, folder: Path, number: int) -> None:
        """Write the file of a shard, complete or not at all."""
        data = io.BytesIO()
        np.savez(
            data,
            allow_pickle=False,
            texts=np.array(self.texts),
            encoding=np.array(self.encoding),
            states=self.states,
        )
        files.write_bytes(_state_path(folder, number), data.getbuffer())

    @classmethod
    def read(cls, folder: Path, number: int, texts: str, encoding: str) -> "StateFile | None":
        """Read the file of a shard; None where it is missing, damaged, or of something else."""
        path = _state_path(folder, number)
        if not path.exists():
            return None
        data = io.BytesIO(path.read_bytes())
        try:
            with np.load(data, allow_pickle=False) as file:
                words = (str(file["texts"]), str(file["encoding"]))
                states = cls(*words, file["states"])
        except (ValueError, KeyError, EOFError, BadZipFile):
            return None
        return states if words == (texts, encoding) else None


@dataclass(frozen=True)
class ShortFile:
    """Short training texts: document spans, then log queries, with their vectors.

    Attributes:
        texts: n + m of them, without line ends.
        vectors: [n + m, W] float16, of the full model.
        digests: [n], of the documents that the spans are of.
    """

    texts: Sequence[str]
    vectors: Array
    digests: Digests

    @classmethod
    def packed(cls, texts: Sequence[str], vectors: Float32, digests: Digests) -> "ShortFile":
        """Return texts with their vectors in float16.

        Raises:
            UserError: a number is too large for it.
        """
        most = float(np.finfo(np.float16).max)
        for row in np.flatnonzero((np.abs(vectors) > most).any(axis=1))[:1]:
            raise UserError(
                f"The vector of {texts[row][:80]!r} holds {np.abs(vectors[row]).max():,.0f}, and "
                f"the maximum of spans and logs (float16) is {most:,.0f}; scale all vectors."
            )
        return cls(texts, vectors.astype(np.float16), digests)

    def of(self, digests: Digests) -> "ShortFile":
        """Return it without the spans of removed documents."""
        spans = np.isin(self.digests, digests)
        kept = np.append(spans, np.full(len(self.texts) - len(spans), True)).nonzero()[0]
        texts = [self.texts[row] for row in kept.tolist()]
        return ShortFile(texts, self.vectors[kept], self.digests[spans])

    def write(self, folder: Path) -> None:
        """Write the file, complete or not at all; none without a text."""
        if not self.texts:
            (folder / SPANS_FILE).unlink(missing_ok=True)
            return
        from safetensors.numpy import save  # which no search at layer 0 needs

        texts = np.frombuffer("\n".join(self.texts).encode(), np.uint8)
        digests = np.frombuffer(self.digests.tobytes(), np.uint8)
        tables = {"texts": texts, "vectors": self.vectors, "digests": digests}
        files.write_bytes(folder / SPANS_FILE, save(tables))

    @classmethod
    def read(cls, folder: Path) -> "ShortFile":
        """Read the file; where there is none, there is no text.

        Raises:
            UserError: it is damaged.
        """
        path = folder / SPANS_FILE
        if not path.exists():
            return NO_SHORT_TEXTS
        from safetensors.numpy import load

        with files.explain_failure(f"{path} cannot be read"):
            tables = load(path.read_bytes())
            texts = tables["texts"].tobytes().decode().split("\n")
            digests = np.frombuffer(tables["digests"].tobytes(), f"S{DIGEST_BYTES}")
            return cls(texts, tables["vectors"], digests)


NO_SHORT_TEXTS = ShortFile((), np.zeros((0, 0), np.float16), np.empty(0, f"S{DIGEST_BYTES}"))


def _state_path(folder: Path, number: int) -> Path:
    """Return the file of the states of a shard."""
    return folder / f"states-{number:05d}.npz"


def forget_states(folder: Path) -> None:
    """Remove the states, which are not needed once the exits are fitted."""
    files.remove_files(folder, "states-*", f".states-*{files.TEMPORARY_SUFFIX}")
