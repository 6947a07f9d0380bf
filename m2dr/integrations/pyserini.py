"""Search an index of m2dr with Pyserini's FaissSearcher.

Shapes: Q queries, D dims of the index.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.core.requests import SearchRequest
from m2dr.index.manifest import INDEX, INDEX_DOCIDS, IndexManifest
from m2dr.index.vectors import prefixes
from m2dr.tasks.searching.search import open_searcher


class PyseriniQueryEncoder:
    """Encodes queries for one index of m2dr, with the interface of Pyserini's QueryEncoder.

    Pyserini opens the folder of the index as it is. It ranks as `m2dr search --index FOLDER` does,
    except that documents of equal score may change places, and that the document with the id of
    the query stays in the ranking where a corpus such as ArguAna has one.

        folder = "indexes/pydocs/0123456789ab/layer-06/dim-128"
        searcher = FaissSearcher(folder, PyseriniQueryEncoder(folder, layer=4))
        hits = searcher.search("read a file", k=10)
    """

    def __init__(
        self,
        folder: Path | str,
        model: str = "",
        layer: int | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
    ) -> None:
        """Load the query encoder of an index.

        Args:
            folder: of an index, as indexes/CORPUS/MODEL/layer-NN/dim-K.
            model: folder or id; the one that the index names when empty.
            layer: layers that a query runs through, from 0; as `m2dr search` when None.
            device: auto, cpu, cuda or cuda:N.
            dtype: auto, fp32 or bf16.

        Raises:
            UserError: the folder holds no index, or the model or the layer do not fit it.
        """
        folder = Path(folder)
        for name in (INDEX, INDEX_DOCIDS):
            if not (folder / name).is_file():
                raise UserError(f"Pyserini reads `{name}`, and {folder} has none.")
        asked = SearchRequest(
            index=str(folder), model=model, layer=layer, device=device, dtype=dtype
        )
        self._manifest = IndexManifest.read(folder)
        self._searcher = open_searcher(asked)
        self.warnings = self._searcher.warnings

    def encode(self, query: str, **_: object) -> NDArray[np.float32]:
        """Return the vector of a query, [D], as the index compares it."""
        vector: NDArray[np.float32] = self.encode_batch([query])[0]
        return vector

    def encode_batch(self, queries: Sequence[str], **_: object) -> NDArray[np.float32]:
        """Return the vectors of queries, [Q, D]."""
        vectors = self._searcher.vectors(list(queries))
        return prefixes(vectors, self._manifest.dim, self._manifest.similarity)
