"""Shards of documents to shards of vectors: one is run while others are read and written."""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError
from m2dr.index.exit_files import StateFile, sampled_rows
from m2dr.index.manifest import StorePlan
from m2dr.index.shards import Shards
from m2dr.model import checkpoint
from m2dr.model.checkpoint import Tokenizer
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.model.encoder import Encoder
from m2dr.records.texts import Document
from m2dr.text.collection import Dataset
from m2dr.text.ragged import Ragged
from m2dr.verbs.corpora import open_corpus
from m2dr.verbs.encoding import embed_tokens, embed_tokens_and_states, tokenize

AHEAD = 1  # shards that wait between two stages

Read = TypeVar("Read")
Ran = TypeVar("Ran")


@dataclass(frozen=True)
class Job:
    """What is to be encoded, as any process can be told it."""

    corpus: str
    documents: int
    model: str
    device: str
    dtype: str
    stores: tuple[tuple[Path, StorePlan], ...]  # one per layer, alike in all else
    exits: Path | None = None  # folder of the exits that are fitted on some of the documents

    @property
    def shard_rows(self) -> int:
        """Documents in every shard but the last."""
        return self.stores[0][1].shard_rows

    def rows_of(self, number: int) -> int:
        """Documents in a shard."""
        return min(self.shard_rows, self.documents - number * self.shard_rows)

    def sampled(self, number: int) -> NDArray[np.int64]:
        """The documents of a shard that a fit of exits reads: their places in it, increasing."""
        first = number * self.shard_rows
        rows = sampled_rows(self.documents)
        return rows[(rows >= first) & (rows < first + self.shard_rows)] - first

    def lacks(self, number: int) -> bool:
        """Whether the shard of some layer is not written."""
        return not all(Shards(folder, plan).has(number) for folder, plan in self.stores)


@dataclass(frozen=True)
class Done:
    """A shard that is written at every layer, and the seconds that each stage took for it."""

    number: int
    documents: int
    bytes: int  # of vectors
    tokenise: float
    run: float
    write: float


class Listener(Protocol):
    """Who is told how far encoding is; from several threads."""

    def told(self, done: Done) -> None:
        """A shard is written."""

    def ticked(self, number: int, documents: int) -> None:
        """Some documents of a shard have been run."""


@dataclass(frozen=True)
class _Texts:
    number: int
    docids: list[str]
    digest: str
    rows: Ragged
    seconds: float


@dataclass(frozen=True)
class _Vectors:
    texts: _Texts
    stores: list[Shards]
    vectors: NDArray[np.float32]  # [L, N, H]
    states: StateFile | None  # of the documents that a fit reads
    seconds: float


class ShardEncoder:
    """Encodes shards of a job in this process, one after the other."""

    def __init__(self, job: Job, dataset: Dataset | None = None) -> None:
        self.job = job
        self.device = choose_device(job.device)
        self.dtype = choose_dtype(job.dtype, self.device)
        deepest = max(plan.layer for _, plan in job.stores)
        self._encoder: Encoder
        self._tokenizer: Tokenizer
        self._encoder, self._tokenizer = checkpoint.load(
            job.model, deepest, self.device, self.dtype
        )
        self._stores = [Shards(folder, plan) for folder, plan in job.stores]
        self._windows = Windows(dataset or open_corpus(job.corpus), job.shard_rows)

    def encode(self, numbers: Iterable[int], listener: Listener) -> None:
        """Encode and write these shards.

        Args:
            numbers: is taken from in another thread, while a shard is run.
            listener: is told of each batch, and in another thread of each shard.

        Raises:
            UserError: a text is malformed, a value not finite, the disk full; what was written
                before is there.
        """
        texts = (self._read(number) for number in numbers)
        overlapped(
            texts,
            lambda read: self._run(read, listener),
            lambda ran: listener.told(self._write(ran)),
        )

    def _read(self, number: int) -> _Texts:
        begun = time.perf_counter()
        documents = self._windows.at(number)
        if len(documents) != self.job.rows_of(number):
            raise UserError(
                f"The corpus {self.job.corpus} has become shorter than {self.job.documents} "
                "documents while it was encoded. Encode it again with --overwrite."
            )
        docids, digest = digest_of(documents)
        contents = [document.content for document in documents]
        rows = tokenize(self._encoder.card, self._tokenizer, contents, "document")
        return _Texts(number, docids, digest, Ragged.of(rows), time.perf_counter() - begun)

    def _run(self, texts: _Texts, listener: Listener) -> _Vectors:
        begun = time.perf_counter()
        lacking = [store for store in self._stores if not store.has(texts.number)]
        layers = [store.plan.layer for store in lacking]
        vectors, states = np.empty((0, 0, 0), np.float32), None

        def tell(count: int) -> None:
            listener.ticked(texts.number, count)

        encoder, pad_id = self._encoder, self._tokenizer.pad_id
        sampled = self.job.sampled(texts.number)
        if self.job.exits and sampled.size and encoder.card.layers in layers:
            vectors, kept = embed_tokens_and_states(
                encoder, texts.rows, pad_id, layers, sampled, tell
            )
            rows = texts.rows.some(sampled)
            states = StateFile(texts.digest, rows.tokens, rows.lengths, kept)
        elif layers:  # none where a worker that was given up for lost had written all
            vectors = embed_tokens(encoder, texts.rows, pad_id, layers, tell)
        return _Vectors(texts, lacking, vectors, states, time.perf_counter() - begun)

    def _write(self, ran: _Vectors) -> Done:
        begun, texts = time.perf_counter(), ran.texts
        if ran.states and self.job.exits:  # first: a shard that is recorded has its states
            ran.states.write(self.job.exits, texts.number)
        size = sum(
            store.write(texts.number, texts.docids, vectors, texts.digest)
            for store, vectors in zip(ran.stores, ran.vectors, strict=True)
        )
        seconds = time.perf_counter() - begun
        return Done(texts.number, len(texts.docids), size, texts.seconds, ran.seconds, seconds)


class Windows:
    """The documents of each shard; cheap where numbers are asked for in increasing order."""

    def __init__(self, dataset: Dataset, rows: int) -> None:
        self._dataset = dataset
        self._rows = rows
        self._next, self._stream = 0, dataset.documents()

    def at(self, number: int) -> list[Document]:
        """The documents of a shard; fewer than its rows where the corpus ends."""
        if number < self._next:
            self._next, self._stream = 0, self._dataset.documents()
        skipped = (number - self._next) * self._rows
        self._next = number + 1
        return list(islice(self._stream, skipped, skipped + self._rows))


def digest_of(documents: Iterable[Document]) -> tuple[list[str], str]:
    """The docids of a shard, and the sha256 of what the encoder reads of it."""
    kept = list(documents)
    texts = "\0".join(document.content for document in kept)
    return [document.id for document in kept], hashlib.sha256(texts.encode()).hexdigest()


def overlapped(
    source: Iterator[Read], run: Callable[[Read], Ran], write: Callable[[Ran], None]
) -> None:
    """Run each item in this thread, while another thread makes the next and a third writes.

    At most `AHEAD` items wait on either side. What one stage raises ends all of them: items that
    have been run are still written.
    """
    with ExitStack() as ending:
        reader, writer = ThreadPoolExecutor(1, "read"), ThreadPoolExecutor(1, "write")
        ending.callback(writer.shutdown, wait=True)
        ending.callback(reader.shutdown, wait=True, cancel_futures=True)
        coming = deque(reader.submit(next, source, None) for _ in range(AHEAD + 1))
        going: deque[Future[None]] = deque()
        while (item := coming.popleft().result()) is not None:
            coming.append(reader.submit(next, source, None))
            ran = run(item)
            del item
            while going and (len(going) > AHEAD or going[0].done()):
                going.popleft().result()
            going.append(writer.submit(write, ran))
        for future in going:
            future.result()
