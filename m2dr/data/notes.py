"""Notes in Markdown: the keys of their front matter, and the first heading as a title."""

import re
from contextlib import suppress
from typing import Any

from m2dr.data.text_files import decoded

# What stands between two lines of --- before a note, and a key there with its value or its list.
_FRONT = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*$\n*", re.MULTILINE | re.DOTALL)
_KEYS = re.compile(r"^(?=[^\s#-])", re.MULTILINE)
_UNREAD = re.compile(r"^\s*(?:#.*)?\n", re.MULTILINE)  # blank lines and comments
_PAIR = re.compile(r"(\w[^\n]*?)[ \t]*:(?:[ \t]+(.*))?\n(([ \t]*)-[ \t].*\n(?:\4-[ \t].*\n)*)?")
_ITEM = re.compile(r"^[ \t]*-[ \t]+(.*)$", re.MULTILINE)
_WORD = r"""'(?:[^']|'')*'|"[^"\\]*"|[^\s,\[\]{}"'][^,\[\]{}]*"""
_LIST = re.compile(rf"\[\s*(?:{_WORD})(?:\s*,\s*(?:{_WORD}))*\s*,?\s*\]")
_SPECIAL = tuple("[]{},&*!|>%@`?\"'")  # first characters of what is no plain text in YAML
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
    values, left = dict[str, Any](), list[str]()
    front = _FRONT.match(text)
    for entry in _KEYS.split(front[1]) if front else ():
        try:
            if cleared := _UNREAD.sub("", entry):
                key, value = _pair(cleared)
                if values.setdefault(key, value) is not value:
                    raise ValueError
        except ValueError:
            left.append(entry)
    left, text = (left, text[front.end() :]) if front and values else ([], text)
    title = values.pop("title", None)
    for heading in () if title else _HEADING.finditer(text):
        if not heading["fence"]:
            title = heading["title"] or heading["underlined"]
            text = text[: heading.start()] + text[heading.end() :]
            break
    whole = ("".join(left) + text).strip()
    row = {"title": str(title or ""), "text": whole, "metadata": values}
    return row, [entry.partition(":")[0].strip() for entry in left]


def _pair(
    entry: str,
) -> tuple[str, Any]:  # of a text, a number, true, false, None or a list of them
    """Return a key of front matter and its value; raise ValueError where it is none of these."""
    found = _PAIR.fullmatch(entry)
    if not found or (found[2] and found[3]):
        raise ValueError
    key, word = found[1], (found[2] or "").strip()
    if found[3] or _LIST.fullmatch(word):
        words = _ITEM.findall(found[3] or "") or re.findall(_WORD, word[1:-1])
        return key, [_scalar(each.strip(), inside=True) for each in words]
    return key, _scalar(word)


def _scalar(word: str, inside: bool = False) -> Any:
    if quoted := re.fullmatch(r"'((?:[^']|'')*)'", word):
        return quoted[1].replace("''", "'")
    plain = re.sub(r"(?:^|\s+)#.*", "", word)
    for each in (word, plain):
        with suppress(ValueError):
            return decoded(each)
    # In a list a text with a colon is an object.
    if plain.startswith(_SPECIAL) or (inside and ": " in f"{plain} "):
        raise ValueError
    return plain
