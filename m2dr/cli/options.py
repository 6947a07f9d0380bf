"""Options of commands, made from the fields of the dataclasses that hold their values."""

import functools
import os
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from m2dr.cli.terminal import WholeSummary, echo
from m2dr.core.errors import UserError
from m2dr.core.option import Option, option_of
from m2dr.core.records import Cut

Command = TypeVar("Command", bound=Callable[..., Any])
Hint: TypeAlias = Any  # what get_type_hints returns: a class, or a form of typing
Values = dict[str, Any]


class _Named(click.Path):
    """A path that has a name: an empty one, as of a variable that is not set, would mean here."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # as click declares it
        """Refuse a path that names nothing."""
        if not str(value).strip() or "\0" in str(value):
            self.fail(f"{value!r} names nothing; for this folder write a dot.", param, ctx)
        return super().convert(value, param, ctx)


class Whole(click.IntRange):
    """A whole number of at most 64 bits, which every array and every loop can count to."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:  # as click declares it
        """Refuse what is no number, and a number of more bits."""
        try:
            int(value)
        except ValueError:
            self.fail(f"{str(value)[:40]!r} is not a whole number.", param, ctx)
        number: int = super().convert(value, param, ctx)
        if abs(number) >= 2**63:
            self.fail(f"{str(value)[:40]}… has more than 64 bits.", param, ctx)
        return number


class _Read(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click
    """A value that a function makes from a word; what it says in a ValueError is the refusal."""

    name = "text"

    def __init__(self, read: Callable[[str], object]) -> None:
        self._read = read

    def convert(
        self,
        value: Any,  # as click declares it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> object:
        """Read a word; a default is a value already."""
        try:
            return self._read(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


FOLDER = _Named(path_type=Path, file_okay=False)
FILE = _Named(path_type=Path, dir_okay=False)


class NamedOption(click.Option):
    """An option that earlier versions spelled, or whose values they called, otherwise."""

    def __init__(
        self,
        *args: Any,  # click's
        old: Iterable[str] = (),
        old_values: Mapping[str, str] | None = None,
        **kwargs: Any,  # click's
    ) -> None:
        super().__init__(*args, **kwargs)
        self.old, self.old_values = tuple(old), dict(old_values or {})

    def get_help_extra(self, ctx: click.Context) -> Any:  # click's
        """Return what stands in brackets: texts for a default as they are, no range of counts."""
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        if extra.get("range") == "x>=0":
            del extra["range"]
        return extra


class NamedArgument(click.Argument):
    """An argument with a text for docs/settings.md."""

    def __init__(self, *args: Any, told: str, **kwargs: Any) -> None:  # click's
        super().__init__(*args, **kwargs)
        self.told = told


class NamedCommand(WholeSummary):
    """A command that takes the spellings of earlier versions and says what they are now.

    Attributes:
        examples: command lines that work, without the name of the program, for the end of the help.
    """

    def __init__(self, *args: Any, examples: Iterable[str] = (), **kwargs: Any) -> None:  # click's
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}m2dr {line}\n")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse a command line in which old spellings are replaced."""
        notes: list[str] = []
        words = list(self._renamed(args, notes))
        if not ctx.resilient_parsing:  # as when a shell completes a word
            for note in notes:
                echo(f"Note: {note}.", err=True)
        return super().parse_args(ctx, words)

    def _renamed(self, words: list[str], notes: list[str]) -> Iterable[str]:
        options = [each for each in self.params if isinstance(each, NamedOption)]
        new = {old: each for each in options for old in each.old}
        spelled = {name: each for each in options for name in each.opts}
        rest = iter(words)
        for word in rest:
            if word == "--":
                yield word
                yield from rest
                return
            name, equals, value = word.partition("=")
            named = new.get(name) or spelled.get(name)
            if named is None:
                yield word
                continue
            if name in new:
                notes.append(f"{name} is now {named.opts[0]}")
                name = named.opts[0]
            if not named.old_values:
                yield f"{name}{equals}{value}"
                continue
            yield name
            for word in [value] if equals else rest:
                if word in named.old_values:
                    now = named.old_values[word]
                    notes.append(f"{name} {word} is now {name} {now}")
                yield named.old_values.get(word, word)
                break


class CommandGroup(WholeSummary, click.Group):
    """A group whose commands take old spellings."""

    command_class = NamedCommand

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the group's own options; name its commands where another option is given."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            ctx.fail(
                f"No such option '{error.option_name}' here. Write a command "
                f"before its options: {', '.join(self.list_commands(ctx))}."
            )


command = functools.partial(click.command, cls=NamedCommand)
# Of a command that prints a table; its function takes `as_json`, and prints by `echo_json`.
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON alone on standard output."
)


def cut_option(layer: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator of a command with `takes` that gives it --cut, a layer and a dim at once.

    Args:
        layer: the field of its request for the layer.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(request: Any, cut: Cut | None, **values: Any) -> None:  # any command's
            if cut is not None:
                if (getattr(request, layer), request.dim) != (None, None):
                    flag = f"--{layer.replace('_', '-')}"
                    raise UserError(f"--cut {cut} names layer and dim; leave {flag} and --dim out.")
                request = replace(request, **{layer: cut.layer, "dim": cut.dim})
            function(request, **values)

        return click.option(
            "--cut",
            cls=NamedOption,
            type=_Read(Cut.parse),
            metavar="L4D128",
            help=f"A layer and a dim at once, for --{layer.replace('_', '-')} and --dim.",
        )(run)

    return decorate


def takes(
    kind: type[Any], leave: Iterable[str] = (), **changes: Mapping[str, Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command an option for each field of a request.

    The command is called with the request, and with the values of its other options by name.

    Args:
        kind: a dataclass; the fields of a dataclass that it holds are options too, and their names
            begin with that of the field.
        leave: fields that are no options of this command.
        changes: by field, attributes of its `Option` that this command has otherwise, or its
            default, as `value`.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(**values: Any) -> None:  # of the options
            given = {name: values.pop(name) for name in names}
            function(_request(kind, given), **values)

        command: Callable[..., None] = run
        for name in reversed(names):
            each, hint = described[name]
            command = _parameter(name, each, hint, **changes.get(name, {}))(command)
        return command

    described = {name: row for name, row in _described(kind).items() if name not in leave}
    names = tuple(described)
    return decorate


def options_of(kind: type[Any], *names: str) -> Callable[[Command], Command]:
    """Return a decorator that adds an option for some fields of settings; None is not given."""
    described = _described(kind)

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            each, hint = described[name]
            default = "" if each.default in (None, "", ()) else str(each.default)
            add = _parameter(name, each, hint, value=None, default=default)
            command = add(command)
        return command

    return decorate


def options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return several options as one decorator, in the order of the help."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def refuse_both(resume: bool, overwrite: bool) -> None:
    """Raise UserError when both were given."""
    if resume and overwrite:
        raise UserError("--resume goes on and --overwrite begins again; give one of them.")


def _described(kind: type[Any], prefix: str = "") -> dict[str, tuple[Field[Any], Hint]]:
    """Return the fields that are options, and their types, by the name of their values."""
    found: dict[str, tuple[Field[Any], Hint]] = {}
    hints = get_type_hints(kind)
    for each in fields(kind):
        name = prefix + each.name
        if is_dataclass(hints[each.name]):
            found |= _described(hints[each.name], f"{name}_")
        elif option_of(each):
            found[name] = (each, hints[each.name])
    return found


def _request(kind: Any, given: Mapping[str, Any], prefix: str = "") -> Any:  # of that kind
    """Make a request of what was given; what was not has its default."""
    values = {}
    hints = get_type_hints(kind)
    for each in fields(kind):
        hint, value = hints[each.name], given.get(prefix + each.name)
        if is_dataclass(hint):
            values[each.name] = _request(hint, given, f"{prefix}{each.name}_")
        elif value not in (None, ()) or each.default is each.default_factory is MISSING:
            values[each.name] = value
    return kind(**values)


def _parameter(
    name: str,
    each: Field[Any],
    hint: Hint,
    **changes: Any,  # of the option
) -> Callable[[Command], Command]:
    """Return the decorator that adds one field to a command."""
    value = changes.pop("value", each.default)
    described = replace(option_of(each) or Option(), **changes)
    item, many = _item(hint)
    is_list = many and item in (int, float)
    required = value is MISSING
    if described.is_argument:
        plain = each.name.upper() if required else f"[{each.name.upper()}]"
        shown = described.metavar or plain
        return click.argument(
            name,
            cls=NamedArgument,
            told=described.help,
            metavar=f"[{each.name.upper()}]..." if many else shown,
            nargs=-1 if many else 1,
            type=_type(item, described),
            required=required and not many,
        )
    flags = described.flags or (f"--{each.name.replace('_', '-')}",)
    if hint is bool and value is True:
        flags = (f"{flags[0]}/--no-{flags[0][2:]}",)
    is_empty = bool(described.default) or value is False or value in (None, "", ())
    return click.option(
        *flags,
        name,
        cls=NamedOption,
        old=described.old,
        old_values=described.old_values,
        type=None if hint is bool else str if is_list else _type(item, described),
        is_flag=True if hint is bool else None,  # False would let it stand without its value
        multiple=many,
        callback=_numbers(item, described.least) if is_list else None,
        required=required,
        **({} if required else {"default": None if is_empty and hint is not bool else value}),
        show_default=described.default or not (is_empty or required),
        metavar=described.metavar or _metavar(item, is_list),
        help=described.help + f" Repeatable{', or with commas' * is_list}." * many,
    )


def _item(hint: Hint) -> tuple[Hint, bool]:
    """Return the type of a value, without None, and whether there may be many of them."""
    form: Hint = get_origin(hint)
    if form in (Union, types.UnionType):
        (hint,) = (part for part in get_args(hint) if part is not types.NoneType)
        form = get_origin(hint)
    many = form is tuple and get_args(hint)[-1] is Ellipsis
    return (get_args(hint)[0] if many else hint), many


def _metavar(item: Hint, is_list: bool) -> str | None:
    """Return what the help shows for numbers; None for the name of the type."""
    if is_list:
        return "N,…" if item is int else "X,…"
    return "N" if item is int else None


def _type(item: Hint, described: Option) -> Any:  # a type of click
    form: Hint = get_origin(item)
    literals = [value for value in get_args(item) if value != ""] if form is Literal else []
    choices = described.choices or literals
    if choices:
        return click.Choice(choices, case_sensitive=False)
    if described.read:
        return _Read(described.read)
    if item is int:
        return Whole(described.least, described.most)
    return {Path: FILE if described.is_file else FOLDER, float: float}.get(item, str)


def _numbers(item: type, least: int) -> Callable[..., tuple[float, ...]]:
    """Return a callback that reads `2,4,6`, or an option given several times, as numbers."""

    def read(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> tuple[float, ...]:
        words = [word.strip() for part in value or () for word in part.split(",")]
        if item is float:
            return tuple(_float(word) for word in words)
        for word in words:
            if not word.isdecimal() or len(word) > 18 or int(word) < least:
                raise click.BadParameter(f"{word!r} is not a whole number from {least}.")
        return tuple(sorted({int(word) for word in words}))

    return read


def _float(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise click.BadParameter(f"{word!r} is not a number.") from None
