"""A build that is killed leaves no index that is taken for finished."""

import os
import signal

import pytest

from m2dr.core.errors import UserError
from m2dr.index.faiss import build_index, open_index
from m2dr.index.manifest import IndexManifest
from m2dr.index.store import Store


def test_a_build_killed_just_before_its_end_is_no_index(store: Store) -> None:
    folder = store.folder / "dim-8-hnsw"
    child = os.fork()
    if child == 0:
        IndexManifest.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        build_index(store, 8, "hnsw")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    assert (folder / "index").exists()
    with pytest.raises(UserError, match="holds no finished index"):
        open_index(folder)
    assert open_index(build_index(store, 8, "hnsw")).documents == 35
