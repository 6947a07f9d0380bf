from pathlib import Path

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.tasks.indexing.importing import vectors_of

Floats = NDArray[np.float32]


@pytest.mark.parametrize("recipe", ["Flat", "HNSW8", "IVF4,Flat"])
def test_a_pyserini_folder_gives_its_vectors(tmp_path: Path, vectors: Floats, recipe: str) -> None:
    index = faiss.index_factory(vectors.shape[1], recipe, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(tmp_path / "index"))
    (tmp_path / "docid").write_text("".join(f"d{row}\n" for row in range(len(vectors))))

    found = vectors_of(tmp_path)

    np.testing.assert_array_equal(found.finite(found.of(["d9", "d3"], "")), vectors[[9, 3]])
    (tmp_path / "index").write_bytes(b"IxFI")
    with pytest.raises(UserError, match="index does not give its vectors back"):
        vectors_of(tmp_path)
