"""What `m2dr index corpus` may be asked, and the command that asks it; torch is not needed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from m2dr.errors import command_of
from m2dr.index.manifest import Dtype

Place = Literal["here", "ray"]  # where processes encode

INDEXES = Path("indexes")
SHARD_ROWS = 4096  # documents that an interruption can cost


@dataclass(frozen=True)
class IndexRequest:
    """What `m2dr index corpus` was asked."""

    corpus: str = "pydocs"
    model: str = ""  # empty: the newest trained one
    dims: tuple[int, ...] = ()  # empty: the full width
    layers: tuple[int, ...] = ()  # empty: every layer whose documents the model was trained to give
    engines: tuple[str, ...] = ()  # empty: flat, unless a factory string is given
    factory: str = ""  # of FAISS: one more engine
    graph_threads: int = 1  # 0: all; more than one builds other bytes each time
    root: Path = INDEXES
    device: str = "auto"
    dtype: str = "auto"
    overwrite: bool = False
    shard_rows: int = SHARD_ROWS
    store: Dtype = "f16"  # how vectors are kept
    exits: bool = True  # fitted on some of the documents while they are encoded
    workers: int = 1  # processes that encode
    on: Place = "here"


OPTIONS = {"dims": "dim", "layers": "layer", "engines": "engine", "root": "indexes"}


def index_command(request: IndexRequest) -> str:
    """Return the command that makes a request, with its corpus and model."""
    return command_of(("index", "corpus"), request, OPTIONS, always=("corpus", "model"))
