"""Documents encoded on a Ray cluster: two workers, one of which is killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from commands import done
from world import make_backbone, make_corpus, make_model

ray = pytest.importorskip("ray")


@pytest.fixture
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def stores(place: Path) -> dict[str, bytes]:
    """Vectors, ids and indexes of the folders of a place."""
    kinds = (".f16", ".faiss", ".ids")
    paths = [path for path in place.rglob("*") if path.suffix in kinds or "vectors" in path.name]
    return {str(path.relative_to(place)): path.read_bytes() for path in paths if path.is_file()}


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_is_killed_costs_its_shard_alone(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_corpus(here / "tiny", 200)
    make_model(make_backbone(here / "backbone"), here / "model")
    index = ("index", "corpus", "--corpus", "tiny", "--model", "model", "--shard-rows", 20)
    index = (*index, "--dtype", "fp32", "--device", "cpu", "--runtime", "torch")
    done(*index, "--indexes", "alone")
    killed: list[int] = []
    get = ray.get

    def get_and_kill(reference: object, **options: object) -> object:
        """As Ray's; once, after the first shard, a process that works on another is killed."""
        answer = get(reference, **options)
        if not killed:
            below = psutil.Process().children(recursive=True)
            killed.extend(one.pid for one in below if "ray::_run" in str(one.cmdline()))
            os.kill(killed[-1], signal.SIGKILL)
        return answer

    monkeypatch.setattr(ray, "get", get_and_kill)
    done(*index, "--indexes", "cluster", "--backend", "ray", "--workers", 2)

    assert killed
    assert stores(here / "alone") == stores(here / "cluster") != {}
