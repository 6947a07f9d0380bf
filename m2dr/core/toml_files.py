"""Settings as a commented TOML file, which `read_settings` reads back."""

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any, get_type_hints

from m2dr.core.option import option_of
from m2dr.core.reading import describe

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

WIDTH = 100  # characters of a line of comment


def settings_text(
    settings: "DataclassInstance", introduction: str, followed: Mapping[str, Any] | None = None
) -> str:
    """Return the text of a file with all settings, each below its meaning.

    A setting that is None has a line in comment: with its value where that is known, else with its
    type.

    Args:
        settings: the values.
        introduction: what the file is; a paragraph.
        followed: values that settings which are None follow, such as those of a variant.
    """
    hints = get_type_hints(type(settings))
    parts = ["\n".join(_comment(introduction))]
    for each in _own_first(settings):
        value = getattr(settings, each.name)
        lines = [*_comment(_meaning(each, hints[each.name]))]
        if value is not None:
            lines.append(f"{each.name} = {toml_value(value)}")
        elif followed and followed.get(each.name) is not None:
            lines.append(f"# {each.name} = {toml_value(followed[each.name])}")
        else:
            lines.append(f"# {each.name} = <{describe(hints[each.name])}>")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def toml_value(value: object) -> str:
    r"""Return a value as TOML writes it.

    >>> toml_value(True), toml_value((1, 2)), toml_value("a \"b\""), toml_value(1e-4)
    ('true', '[1, 2]', '"a \\"b\\""', '0.0001')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value)


def _own_first(settings: "DataclassInstance") -> Iterator[Field[Any]]:
    """Yield the fields of a class, and then those that it has from its base."""
    base = {
        each.name for each in fields(settings) if each.name not in type(settings).__annotations__
    }
    yield from (each for each in fields(settings) if each.name not in base)
    yield from (each for each in fields(settings) if each.name in base)


def _meaning(each: Field[Any], hint: Any) -> str:  # what get_type_hints returns
    described = option_of(each)
    told, kind = described.help if described else "", describe(hint)
    return f"{told} {kind[0].upper()}{kind[1:]}." if kind.startswith("one of ") else told


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )
