"""What a person, not a developer, can fix, and the commands that fix it."""

import difflib
import errno
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_SINGULAR = (("ies", "y"), ("xes", "x"), ("sses", "ss"), ("ches", "ch"), ("s", ""))


class UserError(Exception):
    """One sentence: what was asked, what was found, what to do. Shown without a traceback."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the known word most like `word`, or all of them when none is near.

    >>> nearest("ful-dim", ["plain", "full-dim"])
    'Did you mean full-dim?'
    >>> nearest("xyz", ["plain", "full-dim"])
    'Known: plain, full-dim.'
    """
    words = list(known)
    close = difflib.get_close_matches(word, words, n=1)
    return f"Did you mean {close[0]}?" if close else f"Known: {', '.join(words)}."


def counted(count: int, things: str, form: str = "") -> str:
    """Return a count with its noun, which is singular when the count is 1.

    Args:
        count: how many.
        things: the noun in the plural; of several words the last one changes.
        form: how the number is written, such as "," for 1,000.

    >>> counted(1, "collections"), counted(1, "judged queries"), counted(1200, "indexes", ",")
    ('1 collection', '1 judged query', '1,200 indexes')
    """
    if count == 1:
        for plural, singular in _SINGULAR:
            if things.endswith(plural):
                things = things.removesuffix(plural) + singular
                break
    return f"{count:{form}} {things}"


def were(count: int) -> str:
    """Return the verb that agrees with a count.

    >>> were(1), were(2)
    ('was', 'were')
    """
    return "was" if count == 1 else "were"


def command(*words: object, **options: object) -> str:
    """Return a command of m2dr, quoted as a shell reads it.

    Every command that a message prints is made here or by `command_of`, so that none lacks quotes.

    Args:
        words: what follows `m2dr`, in this order.
        options: by name, `_` for `-`. One that is None, False or empty is left out, True is a
            flag, and several values repeat the option.

    >>> command("index", "corpus", corpus="my data", dim=(128, 384), overwrite=True)
    "m2dr index corpus --corpus 'my data' --dim 128 --dim 384 --overwrite"
    >>> command("search", "a query", query_layer=0, dim=None)
    "m2dr search 'a query' --query-layer 0"
    """
    found = ["m2dr", *map(str, words)]
    for name, value in options.items():
        flag = f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, tuple | list) else (value,):
            if each is True:
                found.append(flag)
            elif each is not None and each is not False and each != "":
                found += [flag, str(each)]
    return shlex.join(found)


def command_of(
    words: Iterable[str],
    request: "DataclassInstance",
    names: Mapping[str, str],
    always: Iterable[str] = (),
) -> str:
    """Return the command that makes a request: every field that is not as it is by default.

    Args:
        words: what follows `m2dr`, as ("index", "corpus").
        request: a dataclass whose fields are options of that command.
        names: field -> option, where the two differ.
        always: fields to print although they are as by default.
    """
    options = {}
    for field in fields(request):
        value = getattr(request, field.name)
        if field.name in always or field.default is MISSING or value != field.default:
            options[names.get(field.name, field.name)] = value
    return command(*words, **options)


def install(*extras: str) -> str:
    """Return the command that installs extras of m2dr.

    >>> install("onnx")
    "pip install 'm2dr[onnx]'"
    """
    return shlex.join(["pip", "install", f"m2dr[{','.join(extras)}]"])


class Interrupted(UserError):  # noqa: N818  # what happened, not an error of anyone's
    """Long work that was stopped, and how to go on with it."""


_REFUSALS = {
    errno.ENOSPC: "The disk is full",
    errno.EDQUOT: "The disk quota is used up",
    errno.EACCES: "There is no permission",
    errno.EPERM: "There is no permission",
    errno.EROFS: "The disk is read-only",
    errno.ENOTDIR: "A file stands where a folder should be",
    errno.EEXIST: "Something of that name is there already",
    errno.EISDIR: "A folder stands where a file should be",
    errno.ENAMETOOLONG: "The name is too long",
    errno.ENOENT: "A file or folder is missing",
    errno.ELOOP: "Symbolic links lead in a circle",
    errno.EFBIG: "A file would be larger than this machine allows",
    errno.EMFILE: "Too many files are open",
    errno.ENFILE: "Too many files are open",
    errno.EIO: "The disk could not be read or written",
    errno.EINVAL: "The system does not take this name",
    errno.ENXIO: "A device stands where a file should be",
    errno.ENODEV: "A device stands where a file should be",
    errno.ESPIPE: "A pipe stands where a file should be",
    errno.ENOTEMPTY: "A folder is not empty",
    errno.EBUSY: "Something else holds it",
}
_FULL = ("no space left", "os error 28", "storagefull", "inline_container", "file write failed")
_NO_MEMORY = ("out of memory", "can't allocate memory", "defaultcpuallocator")


def refusal_of(error: BaseException) -> str:
    """A sentence for what the operating system refused; empty for any other error.

    Libraries in Rust and C++ tell a full disk in words of their own.

    >>> refusal_of(OSError(errno.ENOSPC, "No space left on device", "/data/x"))
    'The disk is full: /data/x. Nothing half-written counts; mend that and run the command again.'
    """
    words = str(error).lower()
    full = any(word in words for word in _FULL)
    code = errno.ENOSPC if full else getattr(error, "errno", None)
    if isinstance(error, RuntimeError) and "symlink loop" in words:
        code = errno.ELOOP  # in the words of Path.resolve before Python 3.13
    if isinstance(error, MemoryError) or any(word in words for word in _NO_MEMORY):
        return "There is not enough memory; take fewer queries per batch, or shorter texts."
    if code not in _REFUSALS:
        return ""
    where = f": {error.filename}" if isinstance(error, OSError) and error.filename else ""
    again = "Nothing half-written counts; mend that and run the command again."
    return f"{_REFUSALS[code]}{where}. {again}"
