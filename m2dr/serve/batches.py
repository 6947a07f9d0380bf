"""Requests of many clients, encoded and searched together by one thread.

Shapes: N texts of a batch, H width of a vector.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from m2dr.core.files import return_free_memory
from m2dr.core.records import Ranking, Side
from m2dr.index.ranker import Ranker
from m2dr.tasks.query import QueryEncoder

_TRIM = 20.0  # seconds between two returns of free memory to the system


class QueueFullError(Exception):
    """More texts wait than may."""


@dataclass
class Outcome:
    """What came of a request, and the milliseconds that its share of a batch took."""

    vectors: NDArray[np.float32]  # [n, H], not normalised
    tokens: int = 0
    cut: str = ""  # says which queries were not read to their ends
    rankings: list[Ranking] = field(default_factory=list)
    tokenise_ms: float = 0.0
    encode_ms: float = 0.0
    search_ms: float = 0.0
    batch: int = 0  # texts that were encoded with it, its own included


@dataclass
class _Work:
    """A request that waits."""

    encoder: QueryEncoder
    texts: Sequence[str]
    side: Side
    documents: Ranker | None  # to search
    k: int
    future: Future[Outcome] = field(default_factory=Future)


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
        measured: Callable[[Sequence[Outcome]], None] = lambda _: None,
    ) -> None:
        """Start the thread.

        Args:
            most: texts of a batch; a request with more makes a batch of its own.
            wait_seconds: for further requests, while there are many.
            queue: texts that may wait.
            measured: is called with the outcomes of each batch.
        """
        self._most, self._wait, self._queue, self._measured = most, wait_seconds, queue, measured
        self._waiting: deque[_Work] = deque()
        self.waiting = 0  # texts
        self._changed = threading.Condition()
        self._busy, self._stopped = False, False
        self._thread = threading.Thread(target=self._serve, name="m2dr-batches", daemon=True)
        self._thread.start()

    async def run(
        self,
        encoder: QueryEncoder,
        texts: Sequence[str],
        side: Side,
        documents: Ranker | None = None,
        k: int = 0,
    ) -> Outcome:
        """Encode texts, and search `documents` with them; together with those of other requests.

        Raises:
            QueueFullError: too many texts wait.
            UserError: what the search raised.
        """
        work = _Work(encoder, texts, side, documents, k)
        with self._changed:
            if self._stopped or (self.waiting and self.waiting + len(texts) > self._queue):
                raise QueueFullError
            self._waiting.append(work)
            self.waiting += len(texts)
            self._changed.notify()
        return await asyncio.wrap_future(work.future)

    def stop(self) -> None:
        """End the thread when nothing waits any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(timeout=60)

    def _serve(self) -> None:
        trimmed = time.monotonic()
        while batch := self._take():
            # Of some the time is over.
            batch = [work for work in batch if work.future.set_running_or_notify_cancel()]
            for work, outcome in zip(batch, self._outcomes(batch), strict=True):
                if isinstance(outcome, Exception):
                    work.future.set_exception(outcome)
                else:
                    work.future.set_result(outcome)
            if time.monotonic() > trimmed + _TRIM:  # batches are of ever other shapes
                trimmed = time.monotonic()
                return_free_memory()

    def _take(self) -> list[_Work]:
        """Return requests of one encoder and side, the oldest first; none when it is to end."""
        with self._changed:
            while not self._waiting:
                if self._stopped:
                    return []
                self._changed.wait()
            if self._busy and self._wait > 0:
                end = time.monotonic() + self._wait
                while self.waiting < self._most and (left := end - time.monotonic()) > 0:
                    self._changed.wait(left)
            encoder, side, texts = self._waiting[0].encoder, self._waiting[0].side, 0
            batch: list[_Work] = []
            rest: deque[_Work] = deque()
            for work in self._waiting:
                fits = not batch or texts + len(work.texts) <= self._most
                if work.encoder is encoder and work.side == side and fits:
                    batch.append(work)
                    texts += len(work.texts)
                else:
                    rest.append(work)
            self._waiting = rest
            self.waiting -= texts
            self._busy = len(batch) > 1
            return batch

    def _outcomes(self, batch: Sequence[_Work]) -> Sequence[Outcome | Exception]:
        """Run a batch; where it fails, each of its requests alone, to see which one it is."""
        if not batch:
            return []
        try:
            outcomes = _run(batch)
        except Exception as error:
            if len(batch) == 1:
                return [error]
            return [outcome for work in batch for outcome in self._outcomes([work])]
        self._measured(outcomes)
        return outcomes


def _run(batch: Sequence[_Work]) -> list[Outcome]:
    """Tokenise, encode and search for a batch of one encoder and side."""
    encoder, texts = batch[0].encoder, [text for work in batch for text in work.texts]
    begun = time.perf_counter()
    rows = encoder.tokenize(texts, batch[0].side)
    tokenised = time.perf_counter()
    vectors = encoder.embed(rows, texts)
    encoded = time.perf_counter()
    start, outcomes = 0, []
    for work in batch:
        own = slice(start, start + len(work.texts))
        share = 1000 * len(work.texts) / len(texts)
        outcomes.append(
            Outcome(
                vectors[own],
                sum(map(len, rows[own])),
                encoder.cut(rows[own], work.texts) if work.side == "query" else "",
                tokenise_ms=share * (tokenised - begun),
                encode_ms=share * (encoded - tokenised),
                batch=len(texts),
            )
        )
        start = own.stop
    _search(batch, outcomes)
    return outcomes


def _search(batch: Sequence[_Work], outcomes: Sequence[Outcome]) -> None:
    """Search for the requests that ask for it, those of the same documents and k at once."""
    groups: dict[tuple[int, int], list[int]] = {}
    for number, work in enumerate(batch):
        if work.documents is not None:
            groups.setdefault((id(work.documents), work.k), []).append(number)
    for numbers in groups.values():
        documents, k = batch[numbers[0]].documents, batch[numbers[0]].k
        assert documents is not None  # those without were left out
        begun = time.perf_counter()
        vectors = np.concatenate([outcomes[number].vectors for number in numbers])
        names = [str(number) for number in range(len(vectors))]
        texts = [text for number in numbers for text in batch[number].texts]
        run = documents.ranked(names, vectors, k, texts=texts)
        rankings = iter(run.rankings[name] for name in names)
        spent = 1000 * (time.perf_counter() - begun) / len(vectors)
        for number in numbers:
            outcomes[number].rankings = [next(rankings) for _ in batch[number].texts]
            outcomes[number].search_ms = spent * len(batch[number].texts)
