"""Vectors that nobody has a model of, in a folder in which the test runs."""

import shutil
from pathlib import Path

import pytest
from given import Given


@pytest.fixture
def world(tiny_corpus: Path, here: Path) -> Given:
    shutil.copytree(tiny_corpus, here / "corpus")
    return Given(here / "corpus", here)
