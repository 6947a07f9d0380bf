"""Schemathesis makes requests of the OpenAPI description, and looks at what is answered."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from http_serving import Server

POSTS = 3  # operations that take a body
# Layers, dims, indexes and filters that a description allows need not be there.
LEFT_OUT = "positive_data_acceptance"


def attack(server: Server, folder: Path, examples: int) -> tuple[int, str]:
    """Run as many cases per operation; the number of all cases, and what was told."""
    found = subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"), "run", f"{server.url}/openapi.json",
            "--max-examples", str(examples), "--phases", "coverage,fuzzing",
            "--exclude-checks", LEFT_OUT, "--no-color", "--seed", "13",
        ],
        cwd=folder, capture_output=True, text=True, timeout=3000, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]
    count = re.search(r"(\d[\d,]*) generated", found.stdout)
    assert count, found.stdout
    return int(count[1].replace(",", "")), found.stdout


def test_no_request_of_the_description_is_answered_otherwise(
    server: Server, tmp_path: Path
) -> None:
    cases, _ = attack(server, tmp_path, 10)

    assert cases > 100
    assert not [event for event in server.events("request") if event["status"] >= 500]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nor_is_one_of_ten_thousand(server: Server, tmp_path: Path) -> None:
    before = len(server.events("request"))

    attack(server, tmp_path, 10_000 // POSTS)

    events = server.events("request")[before:]
    assert len(events) >= 10_000
    assert not [event for event in events if event["status"] >= 500]
