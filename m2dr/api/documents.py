"""Documents as Python code has them: strings, or dicts with a text, a title and an id."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from m2dr.core.arguments import refuse_half_pair, refuse_table, strings
from m2dr.core.errors import UserError
from m2dr.core.records import Document, Side
from m2dr.data.dataset import DOCUMENT_COLUMNS, DOCUMENT_IDS, DOCUMENT_TEXTS
from m2dr.data.own_fields import own_fields
from m2dr.data.readers import Line, encodable, identifier, refuse_repeat

Item = str | Mapping[str, object]
_FORM = "Give a string, or a dict such as {'id': 'd1', 'title': 'A title', 'text': 'A text'}."


def as_documents(given: Iterable[Item], numbered: bool = True) -> Iterator[Document]:
    """Yield documents; those without an id have their number, from 0, as id.

    Args:
        given: strings, or dicts with a text and perhaps a title and an id.
        numbered: whether a document may come without an id.

    Raises:
        UserError: an item is neither a string nor a dict with a text, or lacks an id.
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise UserError(
            f"The documents are of type {type(given).__name__}. Give a list of strings or dicts."
        )
    refuse_table(given, "documents")
    for number, item in enumerate(given):
        document = _document(number, item)
        if not (numbered or (isinstance(item, Mapping) and _id_key(item))):
            raise UserError(
                f"Number {number} of the documents has no id, by which it would be told from those "
                "that are there. Give a dict such as {'id': 'd1', 'text': 'A text'}."
            )
        yield document


def checked_documents(
    given: Iterable[Item], name: str, numbered: bool = True
) -> Iterator[Document]:
    """Yield documents, each with an id of its own that run files can hold, and text of UTF-8.

    Args:
        given: as `as_documents` takes them.
        name: of all of them, in messages.
        numbered: as `as_documents` takes it.

    Raises:
        UserError: an id or a text is not so, or `as_documents` refuses an item.
    """
    seen: dict[str, tuple[Path, int]] = {}
    for number, document in enumerate(as_documents(given, numbered), start=1):
        line = Line(Path(name), number, "")
        identifier(line, document.id, "the id")
        encodable(line, document.content, "the text")
        refuse_repeat(line, document.id, seen)
        yield document


def contents(given: Iterable[Item], side: Side) -> list[str]:
    """Return the texts that an encoder reads: of a document its title and text.

    Raises:
        UserError: a query is no string, a document neither a string nor a dict with a text, or one
            holds half a surrogate pair.
    """
    if side == "query":
        return strings(given, "queries")
    found = [document.content for document in as_documents(given)]
    for number, text in enumerate(found):
        refuse_half_pair(text, number, "documents")
    return found


def _document(number: int, item: Item) -> Document:
    if isinstance(item, str):
        return Document(str(number), item)
    if not isinstance(item, Mapping):
        kind = type(item).__name__
        raise UserError(f"Number {number} of the documents is of type {kind}. {_FORM}")
    key = _id_key(item)
    docid = number if key is None else item[key]
    text = next((item[key] for key in DOCUMENT_TEXTS if item.get(key) is not None), None)
    title = item.get("title") or ""
    if not isinstance(text, str) or not isinstance(title, str):
        found = "no text" if text is None else f"text = {text!r} and title = {title!r}"
        raise UserError(f"Number {number} of the documents has {found:.200}. {_FORM}")
    if not isinstance(docid, str | int) or isinstance(docid, bool):
        raise UserError(f"Number {number} of the documents has {key} = {docid!r:.200}. {_FORM}")
    return Document(str(docid), text, title, own_fields(item, DOCUMENT_COLUMNS))


def _id_key(item: Mapping[str, object]) -> str | None:
    return next((key for key in DOCUMENT_IDS if item.get(key) is not None), None)
