"""Names of arguments: those of other libraries are understood, and unknown ones refused by name."""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, ParamSpec, TypeVar, Unpack, get_args, get_origin, get_type_hints

from m2dr.core.errors import UserError, nearest, were

Given = ParamSpec("Given")
Result = TypeVar("Result")
Instead = Mapping[str, tuple[tuple[object, ...], str]]  # by name: harmless values, and a sentence
_BOUND = ("self", "cls")


def understood(
    shown: str, same: Mapping[str, str] | None = None, instead: Instead | None = None
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Return a decorator that renames arguments, and refuses wrong ones in one sentence.

    Args:
        shown: name of the function, such as `m2dr.train`.
        same: by other names of an argument, the function's own name of it.
        instead: arguments that the function lacks: the values by which nothing is asked for, and
            a sentence that says how m2dr does what any other value asks for.
    """

    def decorate(function: Callable[Given, Result]) -> Callable[Given, Result]:
        form = _expanded(signature(function))

        @wraps(function)
        def call(*args: Given.args, **named: Given.kwargs) -> Result:
            own = _renamed(shown, named, same or {}, instead or {})
            try:
                form.bind(*args, **own)
            except TypeError:
                raise UserError(_wrong(shown, form, args, own)) from None
            return function(*args, **own)

        call.__signature__ = form  # type: ignore[attr-defined]  # for help()
        return call

    return decorate


def _expanded(form: Signature) -> Signature:
    """Return a signature with the keys of `**options: Unpack[SomeTypedDict]` in its place."""
    found = []
    for one in form.parameters.values():
        if get_origin(one.annotation) is not Unpack:
            found.append(one)
            continue
        keys = get_type_hints(get_args(one.annotation)[0]).items()
        found += [
            Parameter(name, Parameter.KEYWORD_ONLY, default=..., annotation=hint)
            for name, hint in keys
        ]
    return form.replace(parameters=found)


def _renamed(
    shown: str, named: Mapping[str, object], same: Mapping[str, str], instead: Instead
) -> dict[str, Any]:
    """Return arguments by the function's own names."""
    found: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for name, value in named.items():
        harmless, remedy = instead.get(name, ((), ""))
        if remedy:
            if any(value is one for one in harmless):
                continue
            raise UserError(f"{name} = {value!r:.80} was asked for. {remedy}")
        own = same.get(name, name)
        if own in found:
            raise UserError(
                f"{shown} was given {origin[own]} and {name}, which mean the same. Give one of "
                "them."
            )
        found[own], origin[own] = value, name
    return found


def _wrong(
    shown: str, form: Signature, args: tuple[object, ...], named: Mapping[str, object]
) -> str:
    """Say what is wrong with arguments that a function does not take."""
    known = [one for one in form.parameters.values() if one.name not in _BOUND]
    bound = len(form.parameters) - len(known)
    placed = [one.name for one in known if one.kind is Parameter.POSITIONAL_OR_KEYWORD]
    values = len(args) - bound
    names = [one.name for one in known if one.kind is not Parameter.VAR_KEYWORD]
    takes_any = len(names) < len(known)
    strange = [name for name in named if name not in names and not takes_any]
    if strange:
        return f"{shown} has no argument {strange[0]}. {nearest(strange[0], names)}"
    if values > len(placed):
        if not names:
            return f"{shown} takes no arguments, and {values} {were(values)} given."
        first = f"{_listed(placed)} without a name" if placed else "named arguments alone"
        example = next((f", as {name}=" for name in names if name not in placed), "")
        return (
            f"{shown} takes {first}, and {values} {were(values)} given. Name the others{example}."
        )
    twice = [name for name in placed[:values] if name in named]
    if twice:
        return f"{shown} was given {twice[0]} twice, by place and by name. Give it once."
    lacking = [
        one.name
        for number, one in enumerate(known)
        if one.default is Parameter.empty
        and one.kind is not Parameter.VAR_KEYWORD
        and number >= values
        and one.name not in named
    ]
    return f"{shown} needs {_listed(lacking)}. It takes {_listed(names)}."


def _listed(names: Iterable[str]) -> str:
    """Return names as a list in words.

    >>> _listed(["a"]), _listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
