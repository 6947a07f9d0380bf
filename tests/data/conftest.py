"""Small data sets, written where a test wants them."""

import atexit
import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[..., Path]

# ir_datasets reads this once, when it is imported: what lies in a person's home is not looked at.
os.environ["IR_DATASETS_HOME"] = tempfile.mkdtemp(prefix="m2dr-irds-")
atexit.register(shutil.rmtree, os.environ["IR_DATASETS_HOME"], ignore_errors=True)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write lines (strings as they are, anything else as JSON) to a file below tmp_path."""

    def write_lines(name: str, *lines: object) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        data = "".join(f"{text}\n" for text in texts).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path

    return write_lines


@pytest.fixture
def beir(tmp_path: Path, write: Write) -> Path:
    """A BEIR folder of four documents, three queries and two splits."""
    folder = "tiny"
    write(
        f"{folder}/corpus.jsonl",
        {"_id": "d1", "title": "Cats", "text": "They sleep."},
        {"_id": "d2", "title": "", "text": "A line separator \u2028 inside."},
        {"_id": "d3", "text": "No title."},
        {"_id": "d4", "title": None, "text": ""},
    )
    write(
        f"{folder}/queries.jsonl",
        {"_id": "q2", "text": "second"},
        {"_id": "q1", "text": "first"},
        {"_id": "q3", "text": "asked by nobody", "metadata": {}},
    )
    write(f"{folder}/qrels/test.tsv", "query-id\tcorpus-id\tscore", "q1\td1\t2", "q2\td2\t0")
    write(f"{folder}/qrels/train.tsv", "query-id\tcorpus-id\tscore", "q1\td3\t1")
    return tmp_path / folder
