"""Options of commands, made from the fields of the dataclasses that hold their values."""

import functools
import shlex
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from m2dr.core.errors import UserError
from m2dr.core.option import Option, option_of
from m2dr.core.report import Report
from m2dr.core.settings import meant_by

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Result = TypeVar("Result")
Hint: TypeAlias = Any  # what get_type_hints returns: a class, or a form of typing
Described = dict[str, tuple[Field[Any], Hint]]  # fields that are options, and their types


FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
# Other tools take these wherever a model is opened; here export writes them into its folder.
_ADOPTED = ("--pooling", "--similarity")


class _Value(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click
    """A value that a function makes from a word; what it says in an error is the refusal."""

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
        except (ValueError, UserError) as error:
            self.fail(str(error), param, ctx)


class OnceCommand(click.Command):
    """A command that refuses a second value of an option that takes one, and guesses options."""

    settings: tuple[str, ...] = ()  # what --set takes

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of a command line."""
        try:
            given = self.make_parser(ctx).parse_args(list(args))[2]
            for each in given:
                takes_one = isinstance(each, click.Option) and not (each.multiple or each.is_flag)
                if takes_one and not each.is_eager and given.count(each) > 1:
                    flag = max(each.opts, key=len)
                    raise click.UsageError(f"{flag} was given twice; it takes one value.", ctx)
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            own = [each for each in self.params if isinstance(each, click.Option)]
            flags = {flag.lstrip("-").replace("-", "_"): flag for each in own for flag in each.opts}
            flags = {name: f"--set {name}=…" for name in self.settings} | flags
            name = error.option_name
            meant = meant_by(name.lstrip("-").replace("-", "_"), flags)
            hint = f" Did you mean {flags[meant]}?" if meant else ""
            if not meant and name in _ADOPTED and {"model", "backbone"} & flags.keys():
                hint = f" A folder gets it by: m2dr export --model FOLDER {name} … --out ADOPTED"
            ctx.fail(f"There is no option {name}.{hint}")


def _of_data(function: Callable[..., Result], described: Described) -> Callable[..., Result]:
    """Give a command that names a corpus --columns, --passages, and it as its argument."""
    corpus = next((name for name in ("corpus", "corpora") if name in described), "")
    if not corpus:
        return function
    many = _item(described[corpus][1])[1]

    @functools.wraps(function)
    def run(
        columns: dict[str, str],
        passages: tuple[int, int] | None,
        data: Any = (),
        **values: Any,  # of the options
    ) -> Result:
        if data:
            if values[corpus]:
                raise UserError("A corpus was given, and --corpus too; give one of them.")
            values[corpus] = data
        if columns or passages:
            from m2dr.tasks.corpus import changed_corpus

            names = values[corpus] if many else [values[corpus]] * bool(values[corpus])
            if not names:  # that of --config, or the default one
                raise UserError("--columns and --passages change a corpus; name it beside them.")
            copies = [changed_corpus(name, columns, passages) for name in names]
            values[corpus] = tuple(copies) if many else copies[0]
        return function(**values)

    told = "Columns with other names than m2dr's."
    command: Callable[..., Result] = click.option(
        "--columns", type=_Value(_columns), metavar="text=Body,id=ID", help=told
    )(run)
    told = "Split long documents into passages of so many words, some shared with the one before."
    command = click.option("--passages", type=_Value(_passages), metavar="200:50", help=told)(
        command
    )
    if not any((option_of(other) or Option()).is_argument for other, _ in described.values()):
        nargs, metavar = (-1, "[CORPUS]...") if many else (1, "[CORPUS]")
        command = click.argument("data", nargs=nargs, metavar=metavar, required=False)(command)
    return command


def _passages(word: str) -> tuple[int, int]:
    words, _, shared = word.partition(":")
    try:
        return int(words), int(shared or 0)
    except ValueError:
        raise ValueError(f"{word!r} is no length of passages, such as 200 or 200:50.") from None


def _columns(word: str) -> dict[str, str]:
    pairs = [part.partition("=")[::2] for part in word.split(",")]
    if not all(name.strip() and of.strip() for name, of in pairs):
        raise ValueError(f"{word!r} names no columns, such as text=Body,id=ID.")
    return {name.strip(): of.strip() for name, of in pairs}


def from_options(kind: type[Any], function: Callable[[Any], Result]) -> Callable[..., Result]:
    """Return a function of a request as one of options, one for each field of the request.

    Args:
        kind: of the request, a dataclass.
        function: takes one.
    """

    def run(**values: Any) -> Result:  # of the options
        is_ours = Path(sys.argv[0]).name in ("m2dr", "__main__.py")
        if is_ours and any(each.name == "command" for each in fields(kind)):
            values["command"] = shlex.join(["m2dr", *sys.argv[1:]])
        return function(kind(**_given(values)))

    run.__doc__ = kind.__doc__
    return _with_options(_of_data(run, _described(kind)), _described(kind))


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, ())}


def _with_options(command: Callable[..., Result], described: Described) -> Callable[..., Result]:
    for name, (each, hint) in reversed(described.items()):
        command = _parameter(name, each, hint)(command)
    return command


def settings_of(
    kind: type[Any], folder: str, *names: str, resumes: bool = True
) -> Callable[[Callable[..., Report]], Callable[..., Report]]:
    """Return a decorator for a command that reads settings.

    It is called with the settings, the folder of the model, and its other options.

    Args:
        kind: of the settings.
        folder: the end of the default name of the folder; VARIANT for that of the settings.
        names: of the settings that have an option.
        resumes: whether an interrupted run can go on.
    """
    every = _described(kind)
    described = {name: every[name] for name in names}

    def decorate(function: Callable[..., Report]) -> Callable[..., Report]:
        @functools.wraps(function)
        def run(
            config: str | None, words: tuple[str, ...], out: Path | None, **values: Any
        ) -> Report:
            from m2dr.tasks.training.run_folder import read_training

            resume, what = values.get("resume", False), folder.removeprefix("VARIANT")
            given = _given({name: values.pop(name) for name in names})
            how = (config, words, given, out, resume, values["overwrite"])
            return function(*read_training(kind, what, *how), **values)

        command = _of_data(run, described)
        told = "Begin again in a used folder."
        command = click.option("--overwrite", is_flag=True, help=told)(command)
        if resumes:
            told = "Go on with an interrupted run."
            command = click.option("--resume", is_flag=True, help=told)(command)
        told = "Any setting of the list below. Repeatable."
        command = click.option("--set", "words", multiple=True, metavar="NAME=VALUE", help=told)(
            command
        )
        told = "TOML file of settings, or the name of a built-in one."
        command = click.option("--config", help=told)(command)
        told = f"Model folder. Default: models/CORPUS-{folder}."
        command = click.option("--out", type=FOLDER, help=told)(command)
        return _with_options(command, described)

    return decorate


def settings_command(kind: type[Any]) -> type[click.Command]:
    """Return the class of a command whose help lists all settings of a kind."""

    class SettingsCommand(OnceCommand):
        settings = tuple(_described(kind))

        def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            super().format_options(ctx, formatter)
            taken = {parameter.name for parameter in self.params}
            rows = [
                (f"{name}={_word(each.default)}", _meaning(each, hint))
                for name, (each, hint) in _described(kind).items()
                if name not in taken
            ]
            with formatter.section("Settings with their defaults, for --set and --config"):
                formatter.write_dl(rows, col_max=36)

    return SettingsCommand


def _meaning(each: Field[Any], hint: Hint) -> str:
    item: Hint = _item(hint)[0]
    form: Hint = get_origin(item)
    choices = f" One of {', '.join(filter(None, get_args(item)))}." if form is Literal else ""
    return (option_of(each) or Option()).help + choices


def _word(value: object) -> str:
    """Return a value as `--set` takes it; three dots where it follows something else."""
    if value in (None, "", ()):
        return "…"
    if isinstance(value, tuple):
        return ",".join(map(_word, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _described(kind: type[Any]) -> dict[str, tuple[Field[Any], Hint]]:
    """Return the fields that are options by name, and their types."""
    hints = get_type_hints(kind)
    # What many commands share is keyword-only, and comes last.
    in_order = sorted(fields(kind), key=lambda field: bool(field.kw_only))
    return {each.name: (each, hints[each.name]) for each in in_order if option_of(each)}


def _parameter(name: str, each: Field[Any], hint: Hint) -> Callable[[Decorated], Decorated]:
    """Return the decorator that adds one field to a command; None or () is not given."""
    described, value = option_of(each) or Option(), each.default
    item, many = _item(hint)
    is_list = many and item in (int, float)
    required = value is MISSING
    if described.is_argument:
        plain = name.upper() if required else f"[{name.upper()}]"
        return click.argument(
            name,
            metavar=described.metavar or plain + "..." * many,
            nargs=-1 if many else 1,
            type=_type(item, described),
            required=required,
        )
    flags = described.flags or (f"--{name.replace('_', '-')}",)
    if item is bool and value is None:  # not named is neither
        flags = (f"{flags[0]}/--no-{flags[0][2:]}",)
    is_empty = required or value is False or value in (None, "", ())
    default = described.default or ("" if is_empty else _word(value))
    if value is True:
        default, flags = flags[0][2:], (f"{flags[0]}/--no-{flags[0][2:]}",)
    return click.option(
        *flags,
        name,
        type=None if item is bool else _type(item, described, is_list),
        is_flag=True if item is bool else None,  # False would let it stand without its value
        multiple=many,
        callback=_joined if is_list else None,
        required=required,
        **({} if required else {"default": None}),  # None would be a value
        metavar=described.metavar or _metavar(item, is_list),
        help=described.help
        + f" Repeatable{', or with commas' * is_list}." * many
        + f"  [default: {default}]" * bool(default),
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
    letter = {int: "N", float: "X"}.get(item)
    return f"{letter},…" if is_list else letter


def _type(item: Hint, described: Option, is_list: bool = False) -> Any:  # a type of click
    form: Hint = get_origin(item)
    literals = [value for value in get_args(item) if value != ""] if form is Literal else []
    choices = described.choices or literals
    if choices:
        return click.Choice(choices, case_sensitive=False)
    if described.read:
        return _Value(described.read)
    if item in (int, float):
        read = number(item, described)
        return (
            _Value(lambda word: [read(part) for part in word.split(",")])
            if is_list
            else _Value(read)
        )
    return (FILE if described.is_file else FOLDER) if item is Path else str


def number(kind: type[int] | type[float], described: Option) -> Callable[[str], float]:
    """Return a reader of numbers in a range."""

    def read(word: str) -> float:
        try:
            value = kind(word)
        except ValueError:
            whole = "whole " if kind is int else ""
            raise ValueError(f"{word!r} is not a {whole}number.") from None
        if not described.takes(value):
            raise ValueError(f"{word} is not {described.range}.")
        return value

    return read


def _joined(_: click.Context, __: click.Parameter, value: Any) -> tuple[float, ...]:
    """Return the numbers of `2,4,6`, or of an option given several times; whole ones sorted."""
    numbers = tuple(chain.from_iterable(value or ()))
    return tuple(sorted(set(numbers))) if all(isinstance(n, int) for n in numbers) else numbers
