"""Query encoders of several layers, which share the weights that are the same."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from m2dr.tasks.encoder import QueryEncoder


@dataclass(frozen=True)
class EncoderKey:
    """What decides the vectors of a query encoder."""

    model: str
    fingerprint: str
    layer: int
    exits: Path | None
    exits_digest: str  # of the record of these exits


class EncoderPool:
    """Encoders by key, each loaded when it is first needed; thread-safe.

    An encoder cut to a layer holds the tensors of the others in place of its own copies, so that
    all layers together take the memory of the deepest one and of the exits.
    """

    def __init__(self, runtime: str, device: str, dtype: str) -> None:
        self._runtime, self._device, self._dtype = runtime, device, dtype
        self._open: dict[EncoderKey, QueryEncoder] = {}
        self._lock = threading.Lock()

    def find(self, key: EncoderKey) -> QueryEncoder | None:
        """Return an encoder that is open already."""
        return self._open.get(key)

    def get(self, key: EncoderKey) -> QueryEncoder:
        """Return the encoder of a key, loading it if needed.

        Raises:
            UserError: as `open_query_encoder` does.
        """
        with self._lock:
            found = self._open.get(key)
            if found is None:
                found = self._load(key)
                self._open[key] = found
            return found

    def keep(self, keys: Iterable[EncoderKey]) -> None:
        """Forget the encoders of all other keys."""
        wanted = set(keys)
        with self._lock:
            for key in [key for key in self._open if key not in wanted]:
                del self._open[key]

    def _load(self, key: EncoderKey) -> QueryEncoder:
        runtime = "torch" if key.layer == 0 else self._runtime
        encoder = QueryEncoder(key.model, key.layer, runtime, self._device, self._dtype, key.exits)
        alike = [one for one in self._open if one.fingerprint == key.fingerprint]
        for other in sorted(alike, key=lambda one: -one.layer):
            encoder.share_weights(self._open[other])
        encoder.warm_up()
        return encoder
