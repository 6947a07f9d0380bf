"""Encode shards of documents into shards of vectors, overlapping reading, encoding and writing."""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.core.progress import Advance
from m2dr.core.records import Document
from m2dr.data.dataset import Dataset
from m2dr.data.pydocs import cache_folder
from m2dr.data.tokens import Ragged
from m2dr.index.exit_files import StateFile, encoding_of, sampled_rows
from m2dr.index.manifest import StorePlan
from m2dr.index.store_writer import Shards
from m2dr.model.graphs import BatchEncoder, DocumentSource
from m2dr.model.tokenizer import ModelTokenizer, tokenize
from m2dr.tasks.encode_texts import embed_tokens, embed_tokens_and_states, open_corpus

AHEAD = 1  # shards that wait between two stages
STAGES = ("tokenise", "run", "write")

Read = TypeVar("Read")
Ran = TypeVar("Ran")


@dataclass(frozen=True)
class EncodingJob:
    """What to encode: corpus, model and stores, by names that any process can open."""

    corpus: str
    documents: int
    model: str
    device: str
    dtype: str
    stores: tuple[tuple[Path, StorePlan], ...]  # one per layer, alike in all else
    exits: Path | None = None  # folder of the exits that are fitted on some of the documents
    runtime: str = "torch"  # what multiplies: torch, openvino, or auto until it is chosen

    @property
    def shard_rows(self) -> int:
        """Documents of every shard but the last."""
        return self.stores[0][1].shard_rows

    @property
    def encoding(self) -> str:
        """Digest of what determines the states of a text, --dtype and --runtime included."""
        runtime = "" if self.runtime == "torch" else f" {self.runtime}"
        return encoding_of(self.stores[0][1].label, self.dtype + runtime)

    @property
    def source(self) -> DocumentSource:
        """The model, up to the deepest layer that some store needs."""
        deepest = max(plan.layer for _, plan in self.stores)
        return DocumentSource(self.model, deepest, self.device, self.dtype, cache_folder())

    def rows_of(self, number: int) -> int:
        """Return the number of documents in a shard."""
        return min(self.shard_rows, self.documents - number * self.shard_rows)

    def sampled(self, number: int) -> NDArray[np.int64]:
        """Return the positions, increasing, of the shard's documents that a fit of exits reads."""
        first = number * self.shard_rows
        rows = sampled_rows(self.documents)
        return rows[(rows >= first) & (rows < first + self.shard_rows)] - first

    def lacks(self, number: int) -> bool:
        """Whether any layer lacks this shard."""
        return not all(Shards(folder, plan).has(number) for folder, plan in self.stores)


class WrittenShard(NamedTuple):
    """A shard that is written at every layer, with the seconds of each stage."""

    number: int
    documents: int
    bytes: int  # of vectors
    tokenise: float
    run: float
    write: float


class Listener(Protocol):
    """Receives the progress of encoding, from several threads."""

    def written(self, shard: WrittenShard) -> None:
        """Record a shard that is written."""

    def advanced(self, number: int, documents: int) -> None:
        """Record that more documents of a shard have been encoded."""


@dataclass(frozen=True)
class _Texts:
    """A shard of documents, tokenised."""

    number: int
    docids: list[str]
    digest: str
    rows: Ragged
    seconds: float


@dataclass(frozen=True)
class _Vectors:
    """An encoded shard, and the stores that lack it."""

    texts: _Texts
    stores: list[Shards]
    vectors: NDArray[np.float32]  # [L, N, H]
    states: StateFile | None  # of the documents that a fit reads
    seconds: float


class ShardEncoder:
    """Encodes the shards of a job in this process, one after the other."""

    def __init__(self, job: EncodingJob, dataset: Dataset | None = None) -> None:
        self.job = job
        self._encoder: BatchEncoder
        self._tokenizer: ModelTokenizer
        self._encoder, self._tokenizer = job.source.open(job.runtime)
        self._stores = [Shards(folder, plan) for folder, plan in job.stores]
        self._reader = ShardReader(dataset or open_corpus(job.corpus), job.shard_rows)

    def encode(
        self, numbers: Iterable[int], listener: Listener, stop: Callable[[], None] = lambda: None
    ) -> None:
        """Encode and write shards.

        Args:
            numbers: shards, iterated over by another thread.
            listener: receives each batch, and from another thread each shard.
            stop: ends an iteration of `numbers` that waits; called at the end and after an error.

        Raises:
            UserError: a text is malformed, a value is not finite or the disk is full. Shards that
                were written before are kept.
        """
        overlapped(
            (self._read(number) for number in numbers),
            lambda read: self._run(read, listener),
            lambda ran: listener.written(self._write(ran)),
            stop,
        )

    def _read(self, number: int) -> _Texts:
        begun = time.perf_counter()
        documents = self._reader.read(number)
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
        advance = partial(listener.advanced, texts.number)
        encoder, pad_id = self._encoder, self._tokenizer.pad_id
        sampled = self.job.sampled(texts.number)
        if self.job.exits and sampled.size and encoder.card.layers in layers:
            vectors, kept = embed_tokens_and_states(
                encoder, texts.rows, pad_id, layers, sampled, advance
            )
            rows = texts.rows.some(sampled)
            encoding = self.job.encoding
            states = StateFile(texts.digest, encoding, rows.tokens, rows.lengths, kept)
        elif layers:  # empty where a worker that was lost had written the shard at every layer
            vectors = embed_tokens(encoder, texts.rows, pad_id, layers, advance)
        return _Vectors(texts, lacking, vectors, states, time.perf_counter() - begun)

    def _write(self, ran: _Vectors) -> WrittenShard:
        begun, texts = time.perf_counter(), ran.texts
        if ran.states and self.job.exits:  # first, so that every recorded shard has its states
            ran.states.write(self.job.exits, texts.number)
        size = sum(
            store.write(texts.number, texts.docids, vectors, texts.digest)
            for store, vectors in zip(ran.stores, ran.vectors, strict=True)
        )
        seconds = time.perf_counter() - begun
        return WrittenShard(
            texts.number, len(texts.docids), size, texts.seconds, ran.seconds, seconds
        )


class ShardReader:
    """Reads the documents of a shard; shards in increasing order take one pass over the corpus."""

    def __init__(self, dataset: Dataset, rows: int) -> None:
        self._dataset, self._rows = dataset, rows
        self._next, self._stream = 0, dataset.documents()

    def read(self, number: int) -> list[Document]:
        """Return the documents of a shard, fewer than its rows where the corpus ends."""
        if number < self._next:
            self._next, self._stream = 0, self._dataset.documents()
        skipped = (number - self._next) * self._rows
        self._next = number + 1
        return list(islice(self._stream, skipped, skipped + self._rows))


def digest_of(documents: Sequence[Document]) -> tuple[list[str], str]:
    """Return the docids of a shard, and the sha256 of the texts that the encoder reads."""
    texts = "\0".join(document.content for document in documents)
    return [document.id for document in documents], hashlib.sha256(texts.encode()).hexdigest()


def overlapped(
    source: Iterator[Read],
    run: Callable[[Read], Ran],
    write: Callable[[Ran], None],
    stop: Callable[[], None] = lambda: None,
) -> None:
    """Run items in this thread, while a second thread reads the next and a third writes.

    At most `AHEAD` items wait on either side. An error in one stage ends all of them; items that
    have been run are still written. `stop` is called before the threads are waited for.
    """
    with ExitStack() as ending:
        reader, writer = ThreadPoolExecutor(1, "read"), ThreadPoolExecutor(1, "write")
        ending.callback(writer.shutdown, wait=True)
        ending.callback(reader.shutdown, wait=True, cancel_futures=True)
        ending.callback(stop)
        coming = deque(reader.submit(next, source, None) for _ in range(AHEAD + 1))
        going: deque[Future[None]] = deque()
        while (item := _next_item(coming.popleft(), going)) is not None:
            coming.append(reader.submit(next, source, None))
            ran = run(item)
            del item
            while going and (len(going) > AHEAD or going[0].done()):
                going.popleft().result()
            going.append(writer.submit(write, ran))
        for future in going:
            future.result()


def _next_item(item: Future[Read | None], going: deque[Future[None]]) -> Read | None:
    """Return an item when it is read, or raise the error of a write, whichever comes first.

    The next item may be one that another process gives only after an item has been written.
    """
    while going and not item.done():
        either: tuple[Future[Any], ...] = (item, going[0])
        wait(either, return_when=FIRST_COMPLETED)
        while going and going[0].done():
            going.popleft().result()
    return item.result()


@dataclass
class EncodingStats:
    """Sums over the shards that are written, by whichever process."""

    advance: Advance = lambda _: None
    documents: int = 0
    bytes: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    _under_way: dict[int, int] = field(default_factory=dict)  # shard -> documents encoded so far

    def written(self, shard: WrittenShard) -> None:
        """Add a shard that is written."""
        self.advance(shard.documents - self._under_way.pop(shard.number, 0))
        self.documents += shard.documents
        self.bytes += shard.bytes
        for stage in STAGES:
            self.seconds[stage] += getattr(shard, stage)

    def advanced(self, number: int, documents: int) -> None:
        """Advance by documents of a shard that is under way."""
        self._under_way[number] = self._under_way.get(number, 0) + documents
        self.advance(documents)

    def lost(self, number: int) -> None:
        """Take back the progress of a shard that must be encoded again."""
        self.advance(-self._under_way.pop(number, 0))

    def size(self) -> str:
        """Return the size of the vectors so far, for people."""
        return f"{self.bytes / 1e6:,.1f} MB written"

    def summary(self) -> str:
        """Return the rate of each stage and the slowest one.

        Stages overlap: their seconds add up to more than the time that encoding took.
        """
        parts = [
            f"{stage} {seconds:,.1f} s ({self.documents / max(seconds, 1e-9):,.0f}/s)"
            for stage, seconds in self.seconds.items()
        ]
        slowest = max(STAGES, key=lambda stage: self.seconds[stage])
        return (
            f"Stages: {', '.join(parts)}; {self.bytes / 1e6:,.1f} MB of vectors. "
            f"The slowest is {slowest}."
        )
