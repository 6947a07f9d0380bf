"""Schemathesis makes requests of the OpenAPI description, and looks at what is answered."""

import re
import subprocess
import sys
from pathlib import Path

from http_serving import Server

# Layers, dims, indexes and filters that a description allows need not be there.
LEFT_OUT = "positive_data_acceptance"


def attack(server: Server, folder: Path, examples: int) -> int:
    """Run as many cases per operation; the number of all cases, and what was told."""
    found = subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"), "run", f"{server.url}/openapi.json",
            "--max-examples", str(examples), "--phases", "coverage,fuzzing",
            "--exclude-checks", LEFT_OUT, "--no-color", "--seed", "13",
        ],
        cwd=folder, capture_output=True, text=True, timeout=3000, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-20000:] + found.stderr[-2000:]
    count = re.search(r"(\d[\d,]*) generated", found.stdout)
    assert count, found.stdout
    return int(count[1].replace(",", ""))


def test_no_request_of_the_description_is_answered_otherwise(
    server: Server, tmp_path: Path
) -> None:
    assert attack(server, tmp_path, 10) > 100
