"""Measurements for Prometheus, whose client is imported here alone."""

from typing import TYPE_CHECKING

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

if TYPE_CHECKING:
    from m2dr.serve.batches import Outcome

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Meters:
    """Counts and times of one server."""

    def __init__(self) -> None:
        kept = self._registry = CollectorRegistry()
        ProcessCollector(registry=kept)
        self._requests = Counter(
            "m2dr_requests", "Requests that were answered.", ("path", "status"), registry=kept
        )
        self._seconds = Histogram(
            "m2dr_request_seconds",
            "Seconds of a request.",
            ("path",),
            registry=kept,
            buckets=_SECONDS,
        )
        self._steps = Histogram(
            "m2dr_step_seconds",
            "Seconds of a step of a batch.",
            ("step",),
            registry=kept,
            buckets=_SECONDS,
        )
        self._batches = Histogram(
            "m2dr_batch_texts", "Texts that were encoded at once.", registry=kept, buckets=_SIZES
        )
        self._tokens = Counter("m2dr_tokens", "Tokens that were encoded.", registry=kept)
        self._waiting = Gauge("m2dr_waiting_texts", "Texts that wait for a batch.", registry=kept)
        self._documents = Gauge(
            "m2dr_documents", "Documents that are searched.", ("index",), registry=kept
        )
        self._taken_over = Counter("m2dr_takeovers", "New versions of an index.", registry=kept)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def batch(self, sums: "Outcome") -> None:
        """Count a batch, of which the sums are given."""
        self._batches.observe(sums.batch)
        self._tokens.inc(sums.tokens)
        for step in ("tokenise", "encode", "search"):
            self._steps.labels(step).observe(getattr(sums, f"{step}_ms") / 1000)

    def taken_over(self) -> None:
        """Count a new version of an index."""
        self._taken_over.inc()

    def text(self, waiting: int, documents: dict[str, int]) -> bytes:
        """Return everything in the format of Prometheus."""
        self._waiting.set(waiting)
        for name, count in documents.items():
            self._documents.labels(name).set(count)
        return generate_latest(self._registry)
