"""Open a corpus by name, and say so when that takes a while."""

from m2dr.text import pydocs
from m2dr.text.collection import Dataset
from m2dr.text.datasets import open_dataset
from m2dr.verbs.progress import say


def open_corpus(name: str) -> Dataset:
    """The dataset of this name; see `m2dr.text.datasets.LOADERS`."""
    if not pydocs.is_cached(name):
        say(f"Reading {name} from the docstrings of this Python, once; it takes up to a minute")
    return open_dataset(name)
