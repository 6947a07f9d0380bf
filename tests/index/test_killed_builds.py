"""A build that is killed leaves no index that is taken for finished."""

import subprocess
import sys
import time

import pytest

from m2dr.core.errors import UserError
from m2dr.index.faiss_build import build_index, open_index
from m2dr.index.store import Store

SCRIPT = """
import sys
from pathlib import Path
from m2dr.index import faiss_build
from m2dr.index.store import open_store
write = faiss_build._write
def slow(index, path):
    write(index, path)
    (path.parent / "reached").touch()
    import time
    time.sleep(60)
faiss_build._write = slow
faiss_build.build_index(open_store(Path(sys.argv[1])), 8, "hnsw")
"""


def test_a_build_killed_just_before_its_end_is_no_index(store: Store) -> None:
    folder = store.folder / "dim-8-hnsw"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(store.folder)])
    deadline = time.monotonic() + 60
    while not (folder / "reached").exists():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()

    assert (folder / "index").exists()
    with pytest.raises(UserError, match="holds no finished index.*--engine hnsw"):
        open_index(folder)
    assert open_index(build_index(store, 8, "hnsw")).documents == 35
