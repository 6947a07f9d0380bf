"""Elastic dense retrieval: one dual encoder, cut to any layer and any prefix of its embedding."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inspect import Signature

    from m2dr.api import Encoder, Index, UserError, evaluate, fit, mine, open_index, train

__all__ = [
    "Encoder",
    "Index",
    "UserError",
    "__version__",
    "bm25",
    "check_data",
    "compare",
    "draw_figures",
    "encode",
    "evaluate",
    "evaluate_classification",
    "evaluate_mteb",
    "evaluate_pairs",
    "evaluate_sts",
    "export",
    "fit",
    "fuse",
    "index_fit",
    "index_import",
    "index_push",
    "index_verify",
    "mine",
    "open_index",
    "pick",
    "pretrain",
    "push",
    "train",
    "write_card",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import the API when it is first used, because it takes time to load."""
    if name not in __all__:
        raise AttributeError(f"module 'm2dr' has no attribute {name!r}")
    return getattr(import_module("m2dr.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _CallablePackage(ModuleType):
    """A package whose name is that of a function too: `m2dr.train(...)` and `m2dr.train.losses`."""

    def __call__(self, *args: Any, **options: Any) -> object:  # of the function
        """Call the function of the API that has the name of this package."""
        function: Any = __getattr__(self.__name__.rpartition(".")[2])
        return function(*args, **options)

    @property
    def __signature__(self) -> "Signature":
        from inspect import signature

        function: Any = __getattr__(self.__name__.rpartition(".")[2])
        return signature(function)

    @property
    def __doc__(self) -> str:  # type: ignore[override]  # what `help` shows
        name = self.__name__.rpartition(".")[2]
        return f"{name}{self.__signature__}\n\n{__getattr__(name).__doc__}"


for _name in ("evaluate", "train"):  # Python makes a package an attribute once it is imported
    import_module(f"m2dr.{_name}").__class__ = _CallablePackage
