"""Elastic dense retrieval: one dual encoder, cut to any layer and any prefix of its embedding."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from m2dr.api import OpenIndex, open_index

__all__ = ["OpenIndex", "__version__", "open_index"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import the API when it is first used, because torch takes seconds to load."""
    if name in ("OpenIndex", "open_index"):
        from m2dr import api

        return getattr(api, name)
    raise AttributeError(f"module 'm2dr' has no attribute {name!r}")
