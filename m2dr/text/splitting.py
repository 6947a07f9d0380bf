"""A split that needs no list: the hash of a key says where it belongs, on every machine."""

from collections.abc import Mapping
from hashlib import sha256


def split_of(key: str, shares: Mapping[str, float], seed: str) -> str:
    """The split in which everything with this key belongs.

    Args:
        key: what must never be torn apart, such as a document's text.
        shares: fractions by split, which add up to 1.
        seed: another one gives an unrelated split.

    >>> split_of("a text", {"train": 0.0, "test": 1.0}, seed="13")
    'test'
    """
    digest = sha256(f"{seed}\n{key}".encode()).digest()
    point = int.from_bytes(digest[:8], "big") / 2**64  # uniform in [0, 1)
    upper = 0.0
    for name, share in shares.items():
        upper += share
        if point < upper:
            return name
    return name  # the shares add up to a little less than 1 in floating point
