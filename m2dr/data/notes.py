"""Notes in Markdown: the keys of their front matter, and the first heading as a title."""

import re
from contextlib import suppress
from typing import Any

from m2dr.data.text_files import decoded

# What stands between two lines of --- before a note, its keys with what belongs to each, and the
# items of a list there.
_FRONT = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*$\n*", re.MULTILINE | re.DOTALL)
_KEYS = re.compile(r"^(?=[^\s#-])", re.MULTILINE)
_KEY = re.compile(r"([^\s\"'\[\]{},&*!|>%@`?:#-][^\n]*?)[ \t]*:(?=\s|$)(.*)", re.DOTALL)
_ITEM = re.compile(r"\s*-(?:\s+(.*))?")
_WORD = r"""'(?:[^']|'')*'|"[^"\\]*"|[^\s,\[\]{}"'][^,\[\]{}]*"""
_LIST = re.compile(rf"\[\s*(?:{_WORD})(?:\s*,\s*(?:{_WORD}))*\s*,?\s*\]")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_SPECIAL = ("- ", *"[]{},&*!|>%@`?#\"'")  # first characters of what is no plain text in YAML
# A heading, or a block of code, in which a # is none.
_HEADING = re.compile(
    r"^ {0,3}(?P<fence>`{3,}(?=[^`\n]*$)|~{3,})(?:.*?^ {0,3}(?P=fence)[`~]*[ \t]*$|.*)"
    r"|^ {0,3}#{1,6}[ \t]+(?P<title>[^\n]*?)(?:[ \t]+#+)?[ \t]*$"
    r"|(?:\A|(?<=\n\n)) {0,3}(?P<underlined>\S[^\n]*?)[ \t]*\n {0,3}=+[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


def read_note(text: str) -> tuple[dict[str, Any], list[str]]:
    r"""Return the row of a note, and the keys of its front matter that stay in the text.

    Read are texts, numbers, true, false, null and lists of these: of YAML what notes hold. Its
    title is that of the front matter, or else the first heading, which is taken from the text.

    >>> read_note("---\ntags: [bread, yeast]\n---\n# Dough\n\nKnead.")
    ({'title': 'Dough', 'text': 'Knead.', 'metadata': {'tags': ['bread', 'yeast']}}, [])
    """
    values, left = dict[str, Any](), dict[str, str]()
    front = _FRONT.match(text)
    for entry in _KEYS.split(front[1]) if front else ():
        key, value = found.groups() if (found := _KEY.fullmatch(entry)) else ("", entry)
        try:
            if not key or key in values:
                raise ValueError
            values[key] = _value(value.rstrip())
            if key == "title" and not isinstance(values[key], str | None):
                values[key] = value.strip()
        except ValueError:
            if _COMMENT.sub("", entry).strip():
                name = key or entry.strip()
                left[name] = left.get(name, "") + entry
    before, text = ("".join(left.values()), text[front.end() :]) if front and values else ("", text)
    title = values.pop("title", "")
    for heading in () if title else _HEADING.finditer(text):
        if not heading["fence"]:
            title = heading["title"] or heading["underlined"]
            text = text[: heading.start()] + text[heading.end() :]
            break
    row = {"title": title or "", "text": (before + text).strip(), "metadata": values}
    return row, list(left) if before else []


def _value(written: str) -> Any:  # a text, a number, true, false, None or a list of them
    """Return the value of a key; raise ValueError where it is none of these."""
    lines = [line.strip() for line in written.strip().splitlines()]
    items = [_ITEM.fullmatch(line) for line in lines]
    if lines and all(items):
        return [_scalar(item[1] or "", inside=True) for item in items if item]
    value = " ".join(lines)
    if _LIST.fullmatch(value):
        return [_scalar(word.strip(), inside=True) for word in re.findall(_WORD, value[1:-1])]
    return _scalar(value, below="\n" in written)


def _scalar(word: str, inside: bool = False, below: bool = False) -> Any:
    if quoted := re.fullmatch(r"'((?:[^']|'')*)'", word):
        return quoted[1].replace("''", "'")
    plain = _COMMENT.sub("", word).strip()
    for each in (word, plain):
        with suppress(ValueError):
            return decoded(each)
    # In a list, and below its key, a text with a colon is an object.
    if plain.startswith(_SPECIAL) or (below and plain != word):
        raise ValueError
    if (inside or below) and ": " in f"{plain} ":
        raise ValueError
    return plain
