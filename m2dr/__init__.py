"""Elastic dense retrieval: one dual encoder, cut to any layer and any prefix of its embedding."""

from importlib import import_module
from typing import TYPE_CHECKING

from m2dr.core import VERSION

if TYPE_CHECKING:
    from m2dr.api import Encoder, Index, Interrupted, UserError, evaluate, fit, open_index, train

__all__ = [
    "Encoder", "Index", "Interrupted", "UserError", "__version__", "bm25", "card", "compare",
    "data_check", "encode", "evaluate", "evaluate_classification", "evaluate_mteb",
    "evaluate_pairs", "evaluate_sts", "export", "figures", "fit", "fuse", "index_fit",
    "index_import", "index_list", "index_push", "index_verify", "mine", "open_index", "pick",
    "pretrain", "push", "train",
]  # fmt: skip
__version__ = VERSION


def __getattr__(name: str) -> object:
    """Import the API when it is first used, because it takes time to load."""
    if name not in __all__:
        raise AttributeError(f"module 'm2dr' has no attribute {name!r}")
    return getattr(import_module("m2dr.api"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
