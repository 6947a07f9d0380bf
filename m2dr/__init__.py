"""Elastic dense retrieval: one dual encoder, cut to any layer and any prefix of its embedding."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from m2dr.api.evaluation import evaluate
    from m2dr.api.fit_and_train import fit, train
    from m2dr.api.index_documents import Index
    from m2dr.api.open_index import OpenIndex, open_index
    from m2dr.api.text_encoder import TextEncoder as Encoder

__all__ = [
    "Encoder",
    "Index",
    "OpenIndex",
    "__version__",
    "evaluate",
    "fit",
    "open_index",
    "train",
]
__version__ = "0.1.0"
_PLACES = {  # by name: the module of m2dr.api, and the name there
    "Encoder": ("text_encoder", "TextEncoder"),
    "Index": ("index_documents", "Index"),
    "OpenIndex": ("open_index", "OpenIndex"),
    "evaluate": ("evaluation", "evaluate"),
    "fit": ("fit_and_train", "fit"),
    "open_index": ("open_index", "open_index"),
    "train": ("fit_and_train", "train"),
}


def __getattr__(name: str) -> object:
    """Import a part of the API when it is first used, because torch takes seconds to load."""
    if name not in _PLACES:
        raise AttributeError(f"module 'm2dr' has no attribute {name!r}")
    module, there = _PLACES[name]
    return getattr(import_module(f"m2dr.api.{module}"), there)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _CallablePackage(ModuleType):
    """A package whose name is that of a function too: `m2dr.train(...)` and `m2dr.train.losses`."""

    def __call__(self, *args: Any, **options: Any) -> object:  # of the function
        """Call the function of the API that has the name of this package."""
        function: Any = __getattr__(self.__name__.rpartition(".")[2])
        return function(*args, **options)


for _name in ("evaluate", "train"):  # Python makes a package an attribute once it is imported
    import_module(f"m2dr.{_name}").__class__ = _CallablePackage
