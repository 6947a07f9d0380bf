"""Requests of many clients, encoded and searched together by one thread.

Shapes: N texts of a batch, H width of a vector.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from m2dr.core.records import Ranking, Side
from m2dr.index.searchable import Searchable
from m2dr.tasks.encoder import QueryEncoder

Vectors = NDArray[np.float32]


class QueueFullError(Exception):
    """More texts wait than may."""


@dataclass(frozen=True)
class Search:
    """How the vectors of a request are searched."""

    documents: Searchable  # those that a filter lets through, where there is one
    k: int


@dataclass
class Outcome:
    """What came of a request, and the milliseconds that its share of a batch took."""

    vectors: Vectors  # [n, H], not normalised
    tokens: int = 0
    rankings: list[Ranking] = field(default_factory=list)
    tokenise_ms: float = 0.0
    encode_ms: float = 0.0
    search_ms: float = 0.0
    batch: int = 0  # texts that were encoded with it, its own included


@dataclass
class Work:
    """A request that waits: some texts, and what is to be done with their vectors."""

    encoder: QueryEncoder
    texts: Sequence[str]
    side: Side
    search: Search | None
    future: "asyncio.Future[Outcome]"
    loop: asyncio.AbstractEventLoop


class Batcher:
    """A thread that encodes what waits, as many texts of one encoder at once as there are.

    While a batch runs, requests gather for the next one. Only after a batch of several requests is
    there a short wait for more of them, so that a single client is never kept waiting.
    """

    def __init__(
        self,
        most: int,
        wait_seconds: float,
        queue: int,
        measured: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        """Start the thread.

        Args:
            most: texts of a batch; a request with more makes a batch of its own.
            wait_seconds: for further requests, while there are many.
            queue: texts that may wait.
            measured: is called with the sums of each batch.
        """
        self._most, self._wait, self._queue, self._measured = most, wait_seconds, queue, measured
        self._waiting: deque[Work] = deque()
        self._texts = 0
        self._changed = threading.Condition()
        self._busy, self._stopped = False, False
        self._thread = threading.Thread(target=self._serve, name="m2dr-batches", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of texts that wait."""
        return self._texts

    async def run(
        self, encoder: QueryEncoder, texts: Sequence[str], side: Side, search: Search | None = None
    ) -> Outcome:
        """Encode texts, and search with them; together with those of other requests.

        Raises:
            QueueFullError: too many texts wait.
            UserError: what the search raised.
        """
        loop = asyncio.get_running_loop()
        work = Work(encoder, texts, side, search, loop.create_future(), loop)
        with self._changed:
            if self._stopped or self._texts and self._texts + len(texts) > self._queue:
                raise QueueFullError
            self._waiting.append(work)
            self._texts += len(texts)
            self._changed.notify()
        return await work.future

    def stop(self) -> None:
        """End the thread when nothing waits any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(timeout=60)

    def _serve(self) -> None:
        while batch := self._take():
            batch = [work for work in batch if not work.future.done()]  # else its time is over
            if batch:
                _deliver(batch, self._outcomes(batch))

    def _take(self) -> list[Work]:
        """Return requests of one encoder, the oldest first; none when the thread is to end."""
        with self._changed:
            while not self._waiting:
                if self._stopped:
                    return []
                self._changed.wait()
            if self._busy and self._wait > 0:
                end = time.monotonic() + self._wait
                while self._texts < self._most and (left := end - time.monotonic()) > 0:
                    self._changed.wait(left)
            encoder, count = self._waiting[0].encoder, 0
            batch: list[Work] = []
            rest: deque[Work] = deque()
            for work in self._waiting:
                fits = not batch or count + len(work.texts) <= self._most
                if work.encoder is encoder and fits:
                    batch.append(work)
                    count += len(work.texts)
                else:
                    rest.append(work)
            self._waiting = rest
            self._texts -= count
            self._busy = len(batch) > 1
            return batch

    def _outcomes(self, batch: Sequence[Work]) -> list[Outcome | Exception]:
        """Run a batch; where it fails, each of its requests alone, to see which one it is."""
        try:
            found = _run(batch)
        except Exception as error:
            if len(batch) == 1:
                return [error]
            return [outcome for work in batch for outcome in self._outcomes([work])]
        self._measured(
            Outcome(
                found[0].vectors,
                sum(one.tokens for one in found),
                [],
                sum(one.tokenise_ms for one in found),
                sum(one.encode_ms for one in found),
                sum(one.search_ms for one in found),
                found[0].batch,
            )
        )
        return list(found)


def _run(batch: Sequence[Work]) -> list[Outcome]:
    """Tokenise, encode and search for a batch of one encoder."""
    encoder = batch[0].encoder
    begun = time.perf_counter()
    rows = _tokens(encoder, batch)
    tokenised = time.perf_counter()
    vectors = encoder.embed([row for some in rows for row in some])
    encoded = time.perf_counter()
    total, start, outcomes = sum(map(len, rows)), 0, []
    for some in rows:
        share = 1000 * len(some) / total
        outcomes.append(
            Outcome(
                vectors[start : start + len(some)],
                sum(map(len, some)),
                tokenise_ms=share * (tokenised - begun),
                encode_ms=share * (encoded - tokenised),
                batch=total,
            )
        )
        start += len(some)
    _search(batch, outcomes)
    return outcomes


def _tokens(encoder: QueryEncoder, batch: Sequence[Work]) -> list[list[list[int]]]:
    """Return the token rows of each request; one call for the texts of each side."""
    found: dict[int, list[list[int]]] = {}
    sides: dict[Side, list[int]] = {}
    for number, work in enumerate(batch):
        sides.setdefault(work.side, []).append(number)
    for side, numbers in sides.items():
        texts = [text for number in numbers for text in batch[number].texts]
        rows = iter(encoder.tokenize(texts, side=side))
        for number in numbers:
            found[number] = [next(rows) for _ in batch[number].texts]
    return [found[number] for number in range(len(batch))]


def _search(batch: Sequence[Work], outcomes: Sequence[Outcome]) -> None:
    """Search for the requests that ask for it, those of the same documents and k at once."""
    groups: dict[tuple[int, int], list[int]] = {}
    for number, work in enumerate(batch):
        if work.search is not None:
            key = (id(work.search.documents), work.search.k)
            groups.setdefault(key, []).append(number)
    for numbers in groups.values():
        search = batch[numbers[0]].search
        assert search is not None  # those without were left out
        begun = time.perf_counter()
        vectors = np.concatenate([outcomes[number].vectors for number in numbers])
        rankings = iter(_ranked(search, vectors))
        spent = 1000 * (time.perf_counter() - begun) / len(vectors)
        for number in numbers:
            outcomes[number].rankings = [next(rankings) for _ in batch[number].texts]
            outcomes[number].search_ms = spent * len(batch[number].texts)


def _ranked(search: Search, vectors: Vectors) -> list[Ranking]:
    names = [str(number) for number in range(len(vectors))]
    run = search.documents.ranked(names, vectors, search.k)
    return [run.rankings[name] for name in names]


def _deliver(batch: Sequence[Work], outcomes: Sequence[Outcome | Exception]) -> None:
    """Hand the outcomes to the event loops that wait for them."""

    def give() -> None:
        for work, outcome in zip(batch, outcomes, strict=True):
            if work.future.done():
                continue
            if isinstance(outcome, Exception):
                work.future.set_exception(outcome)
            else:
                work.future.set_result(outcome)

    try:
        batch[0].loop.call_soon_threadsafe(give)
    except RuntimeError:  # the loop was closed
        return
