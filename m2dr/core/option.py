"""The description of a setting, kept with the field of the dataclass that holds its value."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from m2dr.core.errors import command

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

REQUIRED: Any = MISSING  # the default of a field that must be given


@dataclass(frozen=True)
class Option:
    """What `--help` and docs/settings.md say of a field, and how the command line spells it.

    Type, default and choices are those of the field itself.

    Attributes:
        help: what the setting means.
        flags: spellings, the one that messages print first; none for --FIELD-NAME.
        old: spellings of earlier versions, which still work and are not shown.
        old_values: values of earlier versions, each with what it is called now.
        choices: of a text that only some commands restrict; a Literal type needs none.
        metavar: what `--help` shows for the value.
        default: what `--help` says where the default is empty.
        least: the smallest whole number.
        most: the largest whole number.
        read: what makes the value from the word that was typed.
        is_file: whether a path is that of a file, not of a folder.
        is_argument: whether the value stands without a name.
    """

    help: str = ""
    flags: tuple[str, ...] = ()
    old: tuple[str, ...] = ()
    old_values: Mapping[str, str] = field(default_factory=dict)
    choices: tuple[str, ...] = ()
    metavar: str = ""
    default: str = ""
    least: int = 0
    most: int | None = None
    read: Callable[[str], object] | None = None
    is_file: bool = False
    is_argument: bool = False

    @property
    def name(self) -> str:
        """The spelling that messages print, without dashes; empty for that of the field."""
        return self.flags[0].lstrip("-") if self.flags else ""


def option(
    value: Any, help: str, *flags: str, **rest: Any
) -> Any:  # of any type, as dataclasses.field
    """Return a dataclass field with this default that is described as an `Option`."""
    return field(default=value, metadata={"option": Option(help, flags, **rest)})


def option_of(described: Field[Any]) -> Option | None:
    """Return the description of a field; None for one that no command asks for."""
    found: Option | None = described.metadata.get("option")
    return found


def command_of(
    words: Iterable[str], request: "DataclassInstance", always: Iterable[str] = ()
) -> str:
    """Return the command that makes a request, with each option whose value is not the default.

    Args:
        words: what follows `m2dr`, as ("index", "corpus").
        request: a dataclass whose fields are options of that command.
        always: fields to print although they have their default.
    """
    options: dict[str, object] = {}
    for each in fields(request):
        described, value = option_of(each), getattr(request, each.name)
        name = (described and described.name) or each.name
        if value is False and each.default is True:
            options[f"no_{name}"] = True
        elif each.name in always or value != each.default:
            options[name] = value
    return command(*words, **options)
